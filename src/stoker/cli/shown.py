"""What `analyze` shows while it measures: a line with a bar on a terminal, and a page that a browser has open (`--open`).

The page is a file, which the report replaces: nothing is served. Both are drawn once a second, and when a phase begins.
"""

import os
import shutil
import sys
import time
import webbrowser
from pathlib import Path

from stoker.profile import write_text
from stoker.report.progress import failure_page, progress_line, progress_page
from stoker.run.progress import AnalysisFollower, AnalysisProgress

_EVERY_S = 1.0
LINE_AGAIN = "\r\x1b[K"
_APART = "  "
"""What the script prints comes right behind the line."""


class Shown:
    """Draws how far an analysis is, when it is called and there is something new."""

    def __init__(self, follower: AnalysisFollower, script: str, page: Path | None) -> None:
        self._follower, self._script, self._page = follower, script, page
        self._on_terminal = sys.stderr.isatty()
        self._drawn, self._due = "", 0.0
        self._is_reported = False
        if page is not None:
            self._draw(follower.look())
            self.clear()
            _open(page)

    def __call__(self) -> None:
        """Draw, if it is time to, or another phase has begun."""
        if self._on_terminal or self._page:
            now = self._follower.look()
            if now.what != self._drawn or time.monotonic() >= self._due:
                self._draw(now)

    def _draw(self, now: AnalysisProgress) -> None:
        self._drawn, self._due = now.what, time.monotonic() + _EVERY_S
        if self._on_terminal:
            width = shutil.get_terminal_size().columns
            line = progress_line(now.what, now.elapsed_s, now.left_s, now.part, width - len(_APART))
            print(f"{LINE_AGAIN}{line}{_APART}", end="", file=sys.stderr, flush=True)
        if self._page is not None:
            page = progress_page(self._script, now.what, now.elapsed_s, now.left_s, now.part, now.known)
            write_text(self._page, page)

    def clear(self) -> None:
        """Take the line away: all is measured, or will not be."""
        if self._on_terminal:
            print(LINE_AGAIN, end="", file=sys.stderr, flush=True)

    def reported(self) -> None:
        """The report has taken the place of the page."""
        self._is_reported = True

    def __enter__(self) -> "Shown":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._page is not None and not self._is_reported:
            words = str(error) if isinstance(error, Exception) else "The terminal says why."
            write_text(self._page, failure_page(self._script, words))


def _open(page: Path) -> None:
    """Have a browser show the page. One that would take this terminal is not started."""
    has_window = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not (has_window and webbrowser.open(page.absolute().as_uri())):
        print(f"stoker: there is no browser to open here; the page is {page.absolute()}", file=sys.stderr)
