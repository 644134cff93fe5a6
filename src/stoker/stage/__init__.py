"""Finished batches in shared memory, and who still reads them."""
