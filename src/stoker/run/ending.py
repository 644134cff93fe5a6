"""Whether the script has failed, for those who speak when it ends: a failing script has the last word.

Python tells at exit of an exception that nobody caught, but not of an exit code. So `sys.exit` takes note of it. Who writes
`raise SystemExit(1)` instead is not noticed, and gets the line that every script gets.
"""

import functools
import sys
from typing import Any, NoReturn

_statuses: list[object] = []
"""What `sys.exit` was called with last."""


def watch() -> None:
    """Take note of exit codes, from now on."""
    leave = sys.exit

    @functools.wraps(leave)
    def noted(status: object = None, /) -> NoReturn:
        _statuses[:] = [status]
        leave(status)  # type: ignore[arg-type] # any object will do

    sys.exit = noted


def leave_quietly() -> None:
    """At Ctrl-C say nothing: whoever has started this script does."""
    show = sys.excepthook

    def shown(kind: type[BaseException], *rest: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            show(kind, *rest)

    sys.excepthook = shown


def has_failed() -> bool:
    """At exit: whether the script ended by an exception, or with another code than 0."""
    return getattr(sys, "last_value", None) is not None or any(status not in (None, 0) for status in _statuses)
