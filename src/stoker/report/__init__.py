"""Documents to people."""
