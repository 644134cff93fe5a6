"""Running a user's script unchanged, with our loader in the place of torch's."""
