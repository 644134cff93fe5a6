"""Whether the script has failed. Then nothing of ours is printed at its end, so that its own error stands last.

At exit Python tells of an uncaught exception, but not of an exit code. So `sys.exit` is replaced by a function that notes
the code. A `raise SystemExit(1)` is not noticed, and the script gets the usual line.
"""

import functools
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

import stoker
from stoker.errors import StokerError

_HOME = os.path.dirname(stoker.__file__) + os.sep
_statuses: list[object] = []
"""What `sys.exit` was called with last."""
_interrupts: list[int] = []
_interrupt = signal.default_int_handler


def watch() -> None:
    """Take note of exit codes, from now on."""
    leave = sys.exit

    @functools.wraps(leave)
    def noted(status: object = None, /) -> NoReturn:
        _statuses[:] = [status]
        leave(status)  # type: ignore[arg-type] # any object will do

    sys.exit = noted


def watch_interrupts() -> None:
    """Take note of Ctrl-C, too, from now on: many scripts catch it and end as if they had finished."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: FrameType | None) -> None:
    _interrupts.append(number)
    _interrupt(number, frame)


def was_interrupted() -> bool:
    """Whether there was a Ctrl-C, even if the script caught it."""
    return bool(_interrupts)


def leave_quietly() -> None:
    """At Ctrl-C print nothing: the command that started this script does."""
    show = sys.excepthook

    def shown(kind: type[BaseException], *rest: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            show(kind, *rest)

    sys.excepthook = shown


def show_own_frames() -> None:
    """Let the traceback of an error of ours end in the script: its message says what to do, our code does not."""
    show = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, StokerError):
            error.__cause__, error.__suppress_context__ = None, True  # the message has said it
            trace = _outside(trace)
            error = error.with_traceback(trace)
        show(kind, error, trace)

    sys.excepthook = shown


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """A traceback up to the last frame before those of Stoker."""
    frames = []
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_HOME):
        frames.append(trace)
        trace = trace.tb_next
    if frames:
        frames[-1].tb_next = None
    return frames[0] if frames else None


def has_failed() -> bool:
    """At exit: whether the script ended by an exception, or with another code than 0."""
    return getattr(sys, "last_value", None) is not None or any(status not in (None, 0) for status in _statuses)
