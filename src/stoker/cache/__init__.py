"""Keeping bytes near."""
