"""Jobs that run together, as text for a terminal: the makespan over the offset, the starts, and what happened. Pure."""

from collections.abc import Sequence

Corners = Sequence[Sequence[float]]
"""Each has an offset and its makespan first."""
_ROWS = 10
_LEAST = 30


def value_at(corners: Corners, offset_s: float) -> float:
    """The makespan of an offset, on the lines between the corners; beyond the last, each second costs one."""
    before = corners[0]
    for corner in corners:
        if corner[0] >= offset_s:
            width_s = corner[0] - before[0]
            part = (offset_s - before[0]) / width_s if width_s > 0 else 1.0
            return before[1] + part * (corner[1] - before[1])
        before = corner
    return before[1] + offset_s - before[0]


def plot(corners: Corners, best_s: float, *, width: int = 78, now_s: float | None = None) -> str:
    """The makespan over the offset of the second job; `best_s` is marked, and so is an offset that was real."""
    room = max(_LEAST, width) - 10
    last_s = max(corners[-1][0], best_s, now_s or 0.0) or 1.0
    offsets = [last_s * column / (room - 1) for column in range(room)]
    values = [value_at(corners, offset) for offset in offsets]
    spans = [*values, *(corner[1] for corner in corners if corner[0] <= last_s)]
    low, high = min(spans), max(spans)
    rows = [[" "] * room for _ in range(_ROWS)]
    for column, value in enumerate(values):
        rows[_row(value, low, high)][column] = "*"
    column = min(room - 1, round(best_s / last_s * (room - 1)))
    rows[_row(values[column], low, high)][column] = "O"
    lines = []
    for number, row in enumerate(rows):
        label = high - (high - low) * number / (_ROWS - 1)
        lines.append(
            f"{label:8.1f} |{''.join(row).rstrip()}" if number in (0, _ROWS - 1) else f"{'':8} |{''.join(row).rstrip()}"
        )
    lines.append(f"{'':8} +{'-' * room}")
    lines.append(f"{'':10}{'0':<{room - 12}}{last_s:>10.1f} s")
    return "\n".join(lines)


def _row(value: float, low: float, high: float) -> int:
    return _ROWS - 1 if high - low < 1e-9 * max(high, 1.0) else round((_ROWS - 1) * (high - value) / (high - low))


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def against(real: float, predicted: float) -> str:
    """How a value that was measured compares with the one that was predicted."""
    return f"{(real / predicted - 1):+.1%}".replace("%", " %") if predicted else "unknown"
