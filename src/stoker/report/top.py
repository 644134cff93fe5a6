"""Rows of `stoker top` as lines of text, no wider and no more of them than asked. Pure.

Text from outside (the name of a script) is made harmless: what a terminal would act on is shown as an escape.
"""

import os
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stoker.live.doing import STOPPED
from stoker.live.groups import GroupView, Key
from stoker.live.hints import behind
from stoker.live.row import LoaderRow

NOBODY = "no loaders: they are shown once iterated, in scripts that run under `stoker run` or use stoker.DataLoader"
_HINT_LINES = 2
_LEAST_NAME, _MOST_NAME, _MOST_GROUP = 14, 36, 20
_LEAST_SPARKS, _MOST_SPARKS = 8, 60
_SPARKS = "▁▂▃▄▅▆▇█"
_UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


@dataclass(frozen=True, slots=True)
class Style:
    """What the terminal can show."""

    width: int = 100
    height: int | None = None
    """None: as many lines as there are."""
    colour: bool = False


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    rank: int
    """Those of the highest rank go first when there is no room."""


_COLUMNS = (
    _Column("FOR", 5, 1),
    _Column("RANK", 4, 5),
    _Column("PID", 7, 7),
    _Column("SAMPLES/S", 9, 0),
    _Column("WAITING", 7, 0),
    _Column("FETCH/PREP", 10, 2),
    _Column("HITS", 5, 3),
    _Column("WORKERS", 7, 4),
    _Column("REMOTE", 18, 3),
    _Column("EPOCH", 10, 6),
    _Column("LAST", 6, 2),
)


def table(rows: Sequence[LoaderRow], style: Style) -> list[str]:
    """The lines. A hint stands below its row; if not all fit, those that are stalled come first. Groups stand below all."""
    if not rows:
        return textwrap.wrap(NOBODY, max(style.width, 1))[: style.height]
    below = _groups(rows, style)
    if style.height is None:
        return [*_loaders(rows, style, None), *below]
    below = below[: style.height // 2]  # if there is no room for all, some of both
    return [*_loaders(rows, style, style.height - len(below)), *below]


def _loaders(rows: Sequence[LoaderRow], style: Style, height: int | None) -> list[str]:
    groups = _group_names(rows)
    cells = [_cells(row, groups) for row in rows]
    columns: tuple[_Column, ...] = _COLUMNS
    if groups:
        columns = (_Column("GROUP", min(_MOST_GROUP, max(5, *map(_places_of, groups.values()))), 1), *_COLUMNS)
    if all(row.remote is None for row in rows):
        columns = tuple(column for column in columns if column.title != "REMOTE")
    unknown = {column.title for column in columns if all(one[column.title] == "-" for one in cells)}
    layout = _lay_out(columns, style.width, unknown, max(_places_of(_name(row)) for row in rows))
    titles = [fit("LOADER", layout.name_width), *(column.title.rjust(column.width) for column in layout.columns)]
    head = clip("  ".join(titles), style.width)
    blocks = [_block(row, one, layout, style) for row, one in zip(rows, cells, strict=True)]
    left = 0
    if height is not None and 1 + sum(map(len, blocks)) > height:
        order = sorted(range(len(rows)), key=lambda number: (not rows[number].is_stalled, number))
        room, kept = height - 2, set()
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


def _lay_out(known: Sequence[_Column], width: int, unknown: set[str], longest: int) -> _Layout:
    """The columns that fit. Columns without values are dropped first, also to make room for names."""
    columns = list(known)
    while columns and sum(column.width + 2 for column in columns) + _LEAST_NAME + _LEAST_SPARKS + 2 > width:
        columns.remove(max(columns, key=lambda column: (column.title in unknown, column.rank)))
    least = min(longest, _MOST_NAME)
    for column in [column for column in columns if column.title in unknown]:
        if sum(one.width + 2 for one in columns) + least + _LEAST_SPARKS + 2 > width:
            columns.remove(column)
    room = width - sum(column.width + 2 for column in columns)
    spark_width = min(_MOST_SPARKS, max(_LEAST_SPARKS, room - _MOST_NAME - 2))
    return _Layout(columns, max(1, min(room - spark_width - 2, _MOST_NAME)), spark_width)


def _block(row: LoaderRow, cells: dict[str, str], layout: _Layout, style: Style) -> list[str]:
    shows_rank = any(column.title == "RANK" for column in layout.columns)
    rank = "" if shows_rank or row.seen.facts.rank is None else f"{row.seen.facts.rank}:"
    parts = [fit(rank + _name(row), layout.name_width)]
    parts += [cells[column.title].rjust(column.width) for column in layout.columns]
    if len(row.history) > 1:
        parts.append(spark(row.history, layout.spark_width))
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


_GROUP_COLUMNS = (
    _Column("MEMBERS", 7, 0),
    _Column("WORKERS", 7, 1),
    _Column("PREPARED", 9, 0),
    _Column("REPEATED", 8, 3),
    _Column("TAKEN OVER", 10, 2),
    _Column("STAGING", 11, 0),
)


def _groups(rows: Sequence[LoaderRow], style: Style) -> list[str]:
    """The groups that these are in: a line for each, and one on who is last."""
    names = _group_names(rows)
    found = {row.seen.facts.key: row.group for row in rows if row.group is not None}
    if not found:
        return []
    known = [(group, names[key], _group_cells(group)) for key, group in found.items()]
    nothing = {column.title for column in _GROUP_COLUMNS if all(cells[column.title] == "0" for _, _, cells in known)}
    columns = list(_GROUP_COLUMNS)
    wanted = min(_MOST_NAME, max(_places_of(name) for _, name, _ in known))
    while columns and sum(column.width + 2 for column in columns) + wanted > style.width:
        columns.remove(max(columns, key=lambda column: (column.title in nothing, column.rank)))
    width = max(1, min(_MOST_NAME, style.width - sum(column.width + 2 for column in columns)))
    titles = [fit("GROUP", width), *(column.title.rjust(column.width) for column in columns)]
    lines = ["", _paint(clip("  ".join(titles), style.width), "1", style)]
    for group, name, cells in known:
        parts = [fit(name, width), *(cells[column.title].rjust(column.width) for column in columns)]
        lines.append(clip("  ".join(parts), style.width))
        last = group.last
        if last is not None:
            how = f"last is {last.name}, {behind(last)}" + (f", {STOPPED}" if last.pid in last.stopped else "")
            wrapped = textwrap.wrap(printable(how), max(10, style.width - 2), max_lines=_HINT_LINES, placeholder=" ~")
            lines += [clip("  " + text, style.width) for text in wrapped]
    return lines


def _group_names(rows: Sequence[LoaderRow]) -> dict[Key, str]:
    """What each group is called: its name, and what it is for, its dataset or its stream where a name is not enough."""
    of = {row.seen.facts.key: row for row in rows if row.seen.facts.group}
    known = {key: [key[0], row.seen.role, row.seen.facts.dataset, key[1]] for key, row in of.items()}
    names = dict.fromkeys(known, "")
    for part in range(4):
        shared = [name for name, count in Counter(names.values()).items() if count > 1 or not name]
        for key in known:
            if names[key] in shared:
                names[key] = printable(f"{names[key]} {known[key][part]}".strip())
    return names


def _group_cells(group: GroupView) -> dict[str, str]:
    return {
        "MEMBERS": str(len(group.members)),
        "WORKERS": str(group.workers),
        "PREPARED": number(group.prepared),
        "REPEATED": number(group.repeated),
        "TAKEN OVER": number(group.taken_over),
        "STAGING": f"{size(group.staging_bytes)}/{size(group.budget_bytes)}",
    }


def size(count: int) -> str:
    """Bytes, in at most five places."""
    unit, name = next((one for one in _UNITS if count >= one[0]), (1, ""))
    return f"{count / unit:.3g}{name}" if count < 1000 * unit else f"{count / unit:.0f}{name}"


def _name(row: LoaderRow) -> str:
    facts = row.seen.facts
    script = facts.script if facts.script.startswith("-") else os.path.basename(facts.script)
    return f"{script or '?'} {facts.dataset}".rstrip()


def _cells(row: LoaderRow, groups: Mapping[Key, str]) -> dict[str, str]:
    seen = row.seen
    epoch = "-" if seen.epoch < 0 else str(seen.epoch)
    if seen.epoch_length and seen.epoch >= 0:
        epoch += f" ({percent(min(1.0, seen.epoch_batches / seen.epoch_length))})"
    kind = {"processes": "p", "threads": "t"}.get(seen.facts.kind, "")
    return {
        "GROUP": clip(groups.get(seen.facts.key, "-"), _MOST_GROUP),
        "FOR": seen.role or "-",
        "RANK": "-" if seen.facts.rank is None else str(seen.facts.rank),
        "PID": str(seen.facts.pid),
        "SAMPLES/S": number(row.samples_per_s),
        "WAITING": percent(row.waiting),
        "FETCH/PREP": "-" if row.fetch is None else f"{100 * row.fetch:.0f}/{100 - round(100 * row.fetch)} %",
        "HITS": percent(row.hits),
        "WORKERS": f"{seen.workers}{kind}" if seen.workers else "0",
        "REMOTE": _remote(row),
        "EPOCH": epoch,
        "LAST": "-" if row.age_s is None else duration(row.age_s),
    }


def _remote(row: LoaderRow) -> str:
    """What other hosts prepare: the share of the samples, how many workers there are, and the bytes that come."""
    if row.remote is None:
        return "-"
    return f"{percent(row.remote)} {row.seen.remote_workers}w {size(int(row.remote_bytes_per_s))}B/s"


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


def spark(values: Sequence[float], width: int) -> str:
    """The latest values as bars, as high as they compare with the highest."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    return "".join(_SPARKS[round((len(_SPARKS) - 1) * value / top) if top > 0 else 0] for value in shown).rjust(width)


def printable(text: str) -> str:
    """Text in which nothing moves the cursor, changes a colour or turns the direction of writing."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _places(sign: str) -> int:
    return 0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _places_of(text: str) -> int:
    return sum(map(_places, text))


def clip(text: str, width: int) -> str:
    """Text of at most so many places."""
    if _places_of(text) <= width:
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
    return shown + " " * (width - _places_of(shown))


def _paint(line: str, colour: str, style: Style) -> str:
    return f"\x1b[{colour}m{line}\x1b[0m" if style.colour and colour else line
