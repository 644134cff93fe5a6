"""Who prepares batches: work, makers, crews, and the exchanges between them."""
