"""Stoker's errors, by what the caller can do about them.

StokerError
  ConfigError (ValueError)        an option or a document is wrong: change it
  ResourceError (RuntimeError)    this host has too little of something: the message says what to change
  SourceError (OSError)           a sample cannot be read: the message names it
    SampleNotFound (LookupError)  and trying again would not help
  MemberLost (RuntimeError)       a job and its group have lost each other: the message says why
  CheckpointError (RuntimeError)  a checkpoint cannot be written, read or used here: the message says which and why
  CommandError                    a command cannot do what was asked: one line on stderr, exit code 1

Faults of the user's own dataset keep their own type, as under torch's loader. `warn` says what is only worth a warning.
"""

import sys
import warnings

_NOT_THE_USERS = ("stoker", "torch")


class StokerError(Exception):
    """The root of everything that Stoker raises on its own account."""


class ConfigError(StokerError, ValueError):
    """An option or a document is wrong."""


class ResourceError(StokerError, RuntimeError):
    """The host cannot give what is needed; the message names the need, what there is, and what to change."""


class SourceError(StokerError, OSError):
    """A sample, or what it is stored in, cannot be read."""


class SampleNotFound(SourceError, LookupError):  # noqa: N818
    """A sample does not exist, or this process may not read it."""


class MemberLost(StokerError, RuntimeError):  # noqa: N818
    """A job is no longer in its group."""


class CheckpointError(StokerError, RuntimeError):
    """A checkpoint, or a directory of them, cannot be used."""


class CommandError(StokerError):
    """A command cannot do what was asked."""


def warn(message: str) -> None:
    """Warn. The line that is shown is the nearest one of the user's, neither ours nor torch's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
