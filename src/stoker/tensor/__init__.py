"""All that knows tensors."""
