"""Preparing batches: work, makers, crews, and the exchanges between them."""
