"""Whether a script has ended well, as far as that can be known before it has ended.

An exception that nobody caught is known to python. A code that was given to `sys.exit`, and Ctrl-C, after which many
scripts end as if nothing had happened, are noted here. Not seen is `raise SystemExit(1)`.
"""

import _sitebuiltins
import signal
import sys
import threading
from typing import Any, NoReturn


class Ending:
    """Takes note from now on."""

    def __init__(self) -> None:
        self._is_bad = False
        leave = sys.exit

        def leave_noted(status: Any = None, /) -> NoReturn:
            self._note(status)
            leave(status)

        sys.exit = leave_noted
        quit_as_ever = _sitebuiltins.Quitter.__call__

        def quit_noted(quitter: Any, code: Any = None) -> None:
            self._note(code)
            quit_as_ever(quitter, code)

        _sitebuiltins.Quitter.__call__ = quit_noted  # type: ignore[assignment]
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupted)

    def _note(self, status: Any) -> None:
        self._is_bad = status not in (None, 0)

    def _interrupted(self, number: int, frame: Any) -> None:
        self._is_bad = True
        signal.default_int_handler(number, frame)

    def is_cut_short(self) -> None:
        """The script ends before it is done."""
        self._is_bad = True

    @property
    def is_good(self) -> bool:
        """Whether nothing speaks against it, at the end."""
        return not self._is_bad and getattr(sys, "last_value", None) is None and sys.exc_info()[0] is None
