"""How far an analysis is, as a line for a terminal and as a page that shows itself anew every second. Pure."""

from html import escape

from stoker.report.html import ours

_BAR = 16
_LEAST_TOLD_S = 1.5


def progress_line(what: str, elapsed_s: float, left_s: float, part: float, width: int) -> str:
    """A bar, what is measured now, and what is left; never longer than the terminal is wide."""
    done = round(part * _BAR)
    line = f"stoker: {'█' * done}{'░' * (_BAR - done)} {_seconds(elapsed_s)}, {_left(left_s)}: {what}"
    return line if len(line) < width else line[: max(0, width - 4)] + "..."


def progress_page(script: str, what: str, elapsed_s: float, left_s: float, part: float, known: tuple[str, ...]) -> str:
    """The page while the analysis runs. The report takes its place at the end."""
    return _page(
        script,
        f"<h1>{escape(what[:1].upper() + what[1:])}</h1>"
        f'<p class="lead">{_seconds(elapsed_s)} so far, {_left(left_s)}. This page becomes the report.</p>'
        f'<section><progress value="{part:.3f}" style="width:100%">{part:.0%}</progress>'
        f"<p>Measured so far: {escape(', '.join(known) or 'nothing yet')}.</p></section>",
        again=True,
    )


def failure_page(script: str, words: str) -> str:
    """The page of an analysis that found nothing."""
    return _page(
        script, f'<h1>Nothing was measured</h1><section><p class="warning">{escape(words)}</p></section>', again=False
    )


def _page(script: str, body: str, *, again: bool) -> str:
    refresh = '<meta http-equiv="refresh" content="1">' if again else ""
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{refresh}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(script)} - stoker</title><style>{ours('page.css')}</style></head>"
        f'<body><header><div class="top"><p><strong>stoker</strong> <code>{escape(script)}</code></p></div></header>'
        f"<main>{body}</main></body></html>\n"
    )
    return page.encode("ascii", "xmlcharrefreplace").decode()


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s"


def _left(left_s: float) -> str:
    return f"about {_seconds(left_s)} left" if left_s >= _LEAST_TOLD_S else "a moment left"
