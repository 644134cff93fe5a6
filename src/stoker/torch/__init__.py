"""The PyTorch face: all that knows tensors and torch's rules."""
