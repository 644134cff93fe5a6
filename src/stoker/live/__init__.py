"""What the loaders of a user on a host are doing right now: published by them, read by whoever asks."""
