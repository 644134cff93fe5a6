"""A terminal that is drawn on again and again, and left as it was found.

It uses plain escape sequences on the alternate screen. However it ends (q, Ctrl-C, SIGTERM, an error) or pauses (Ctrl-Z),
the screen, the cursor and the keyboard are restored first.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from stoker import signs

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_QUIT = b"qQ\x03"
_SIGNALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGTERM, signal.SIGINT)


class Screen:
    """The terminal of this process. Use it within `with`."""

    def __init__(self) -> None:
        self._output = sys.stdout.fileno()
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._attributes: list[Any] = []
        self._said = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Screen":
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._hear)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            self._give_back()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for descriptor in self._said:
            os.close(descriptor)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._said[1], bytes([number]))

    def _take(self) -> None:
        if self._keys is not None:
            self._attributes = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._write(_ENTER)

    def _give_back(self) -> None:
        self._write(_LEAVE)
        if self._keys is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._attributes)

    def _write(self, text: str) -> None:
        content = text.encode(sys.stdout.encoding or "utf-8", signs.ERRORS)
        while content:
            content = content[os.write(self._output, content) :]

    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        size = os.get_terminal_size(self._output)
        return max(20, size.columns), max(2, size.lines)

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, and nothing else."""
        self._write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")

    def frames(self, every_s: float, clock: Callable[[], float]) -> Iterator[None]:
        """Say when to draw: at once, then every so often and when the size changes, until somebody wants to leave."""
        due = clock()
        while True:
            yield
            due = max(due + every_s, clock())
            while (left := due - clock()) > 0:
                said = self._listen(left)
                if said is None:
                    return
                if said:
                    break

    def _listen(self, seconds: float) -> bool | None:
        """Wait. None: leave. True: draw now."""
        sources = [self._said[0]] if self._keys is None else [self._said[0], self._keys]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._keys in ready:
            keys = os.read(self._keys or 0, 100)
            if not keys:
                self._keys = None  # nobody is there any more
            elif any(key in _QUIT for key in keys):
                return None
        if self._said[0] in ready:
            numbers = os.read(self._said[0], 100)
            if signal.SIGTERM in numbers or signal.SIGINT in numbers:
                return None
            if signal.SIGTSTP in numbers:
                self._give_back()
                os.kill(os.getpid(), signal.SIGSTOP)
                self._take()
            return True
        return False
