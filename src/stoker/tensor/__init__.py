"""Tensors: collating, slots, pinning, seeding, and the dataset of ours."""
