"""Several jobs that read the same data on one host, started when each is best: measured, planned, conducted, told."""
