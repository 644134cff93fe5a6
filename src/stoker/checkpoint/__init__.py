"""Saving and resuming: snapshots beside the training loop, files that are always whole, an interval that keeps a budget."""
