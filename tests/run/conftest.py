"""What the tests of `stoker run` share."""

from tests.run.restarted import starter

__all__ = ["starter"]
