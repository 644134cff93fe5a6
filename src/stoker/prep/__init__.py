"""Turning samples into batches."""
