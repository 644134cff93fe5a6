"""Several jobs that read the same batches."""
