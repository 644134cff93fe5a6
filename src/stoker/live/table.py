"""Rows of `stoker top` as lines of text, no wider and no more of them than asked. Pure.

Text from outside (the name of a script) is made harmless: what a terminal would act on is shown as an escape.
"""

import os
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.live.watch import Row

NOBODY = "no loaders: they are shown once iterated, in scripts that run under `stoker run` or use stoker.DataLoader"
_HINT_LINES = 2
_LEAST_NAME, _MOST_NAME = 14, 36
_LEAST_SPARKS, _MOST_SPARKS = 8, 60
_SPARKS = "▁▂▃▄▅▆▇█"
_PLAIN_SPARKS = "_.-=+*%#"


@dataclass(frozen=True, slots=True)
class Style:
    """What the terminal can show."""

    width: int = 100
    height: int | None = None
    """None: as many lines as there are."""
    colour: bool = False
    blocks: bool = True
    """Whether it can show block characters."""


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    rank: int
    """Those of the highest rank go first when there is no room."""


_COLUMNS = (
    _Column("RANK", 4, 5),
    _Column("PID", 7, 7),
    _Column("SAMPLES/S", 9, 0),
    _Column("WAITING", 7, 0),
    _Column("FETCH/PREP", 10, 2),
    _Column("HITS", 5, 3),
    _Column("WORKERS", 7, 4),
    _Column("EPOCH", 10, 6),
    _Column("LAST", 6, 1),
)


def table(rows: Sequence[Row], style: Style) -> list[str]:
    """The lines. A hint stands below its row; if not all fit, those that are stalled come first."""
    if not rows:
        return [clip(NOBODY, style.width)]
    cells = [_cells(row) for row in rows]
    unknown = {column.title for column in _COLUMNS if all(one[column.title] == "-" for one in cells)}
    layout = _lay_out(style.width, unknown)
    titles = [fit("LOADER", layout.name_width), *(column.title.rjust(column.width) for column in layout.columns)]
    head = clip("  ".join(titles), style.width)
    blocks = [_block(row, layout, style) for row in rows]
    left = 0
    if style.height is not None and 1 + sum(map(len, blocks)) > style.height:
        order = sorted(range(len(rows)), key=lambda number: (not rows[number].is_stalled, number))
        room, kept = style.height - 2, set()
        for number in order:
            if len(blocks[number]) <= room:
                room -= len(blocks[number])
                kept.add(number)
            else:
                break
        left = len(rows) - len(kept)
        blocks = [block for number, block in enumerate(blocks) if number in kept]
    lines = [_paint(head, "1", style), *(line for block in blocks for line in block)]
    return [*lines, clip(f"... and {left} more", style.width)] if left else lines


@dataclass(frozen=True, slots=True)
class _Layout:
    columns: list[_Column]
    name_width: int
    spark_width: int


def _lay_out(width: int, unknown: set[str]) -> _Layout:
    """What fits; columns of which nothing is known go first."""
    columns = list(_COLUMNS)
    while columns and sum(column.width + 2 for column in columns) + _LEAST_NAME + _LEAST_SPARKS + 2 > width:
        columns.remove(max(columns, key=lambda column: (column.title in unknown, column.rank)))
    room = width - sum(column.width + 2 for column in columns)
    spark_width = min(_MOST_SPARKS, max(_LEAST_SPARKS, room - _MOST_NAME - 2))
    return _Layout(columns, max(1, min(room - spark_width - 2, _MOST_NAME)), spark_width)


def _block(row: Row, layout: _Layout, style: Style) -> list[str]:
    cells = _cells(row)
    shows_rank = any(column.title == "RANK" for column in layout.columns)
    rank = "" if shows_rank or row.seen.facts.rank is None else f"{row.seen.facts.rank}:"
    parts = [fit(rank + _name(row), layout.name_width)]
    parts += [cells[column.title].rjust(column.width) for column in layout.columns]
    if len(row.history) > 1:
        parts.append(spark(row.history, layout.spark_width, blocks=style.blocks))
    line = clip("  ".join(parts).rstrip(), style.width)
    is_quiet = row.state in ("between epochs", "pauses")
    lines = [_paint(line, "31" if row.is_stalled else "2" if is_quiet else "", style)]
    if row.hint:
        hint = textwrap.wrap(printable(row.hint), max(10, style.width - 4), max_lines=_HINT_LINES, placeholder=" ~")
        colour = "31" if row.is_stalled else "33"
        lines += [
            _paint(clip(("    " if number else "  ! ") + text, style.width), colour, style)
            for number, text in enumerate(hint)
        ]
    return lines


def _name(row: Row) -> str:
    facts = row.seen.facts
    script = facts.script if facts.script.startswith("-") else os.path.basename(facts.script)
    return f"{script or '?'} {facts.dataset}".rstrip()


def _cells(row: Row) -> dict[str, str]:
    seen = row.seen
    epoch = "-" if seen.epoch < 0 else str(seen.epoch)
    if seen.epoch_length and seen.epoch >= 0:
        epoch += f" ({percent(min(1.0, seen.epoch_batches / seen.epoch_length))})"
    kind = {"processes": "p", "threads": "t"}.get(seen.facts.kind, "")
    return {
        "RANK": "-" if seen.facts.rank is None else str(seen.facts.rank),
        "PID": str(seen.facts.pid),
        "SAMPLES/S": number(row.samples_per_s),
        "WAITING": percent(row.waiting),
        "FETCH/PREP": "-" if row.fetch is None else f"{100 * row.fetch:.0f}/{100 - round(100 * row.fetch)} %",
        "HITS": percent(row.hits),
        "WORKERS": f"{seen.workers}{kind}" if seen.workers else "0",
        "EPOCH": epoch,
        "LAST": "-" if row.age_s is None else duration(row.age_s),
    }


def percent(share: float | None) -> str:
    """A share for people."""
    return "-" if share is None else f"{100 * share:.0f} %"


def number(value: float) -> str:
    """Three digits or more, in at most nine places."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}" if value < 9_999_999 else f"{value:.2e}"


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def spark(values: Sequence[float], width: int, *, blocks: bool = True) -> str:
    """The latest values as bars, as high as they compare with the highest."""
    signs = _SPARKS if blocks else _PLAIN_SPARKS
    shown = values[-width:]
    top = max(shown, default=0.0)
    return "".join(signs[round((len(signs) - 1) * value / top) if top > 0 else 0] for value in shown).rjust(width)


def printable(text: str) -> str:
    """Text in which nothing moves the cursor, changes a colour or turns the direction of writing."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _places(sign: str) -> int:
    return 0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def clip(text: str, width: int) -> str:
    """Text of at most so many places."""
    if sum(map(_places, text)) <= width:
        return text
    kept, room = "", width - 1
    for sign in text:
        room -= _places(sign)
        if room < 0:
            break
        kept += sign
    return kept + "~"


def fit(text: str, width: int) -> str:
    """Text of exactly so many places, made harmless."""
    shown = clip(printable(text), width)
    return shown + " " * (width - sum(map(_places, shown)))


def _paint(line: str, colour: str, style: Style) -> str:
    return f"\x1b[{colour}m{line}\x1b[0m" if style.colour and colour else line
