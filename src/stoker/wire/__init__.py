"""Frames between hosts over TCP, for those who share a secret. See docs/design/wire.md."""
