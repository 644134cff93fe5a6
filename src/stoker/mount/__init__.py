"""A source as a read-only folder: for scripts, and for readers in C."""
