"""Measures what a host and a run can do."""
