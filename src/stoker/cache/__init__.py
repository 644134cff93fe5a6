"""Caches: bytes of samples in memory that all processes and jobs of a host share."""
