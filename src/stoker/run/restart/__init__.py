"""`stoker run --checkpoint`: checkpoints of a script that knows nothing of them, and its restart."""
