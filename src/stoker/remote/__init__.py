"""Preparation on other hosts: a relay on the trainer's host, and workers elsewhere that dial it."""
