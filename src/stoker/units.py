"""Sizes and rates as people write them: `8GB`, `512MiB`, `530MB/s`."""

import math
import re
from collections.abc import Sequence

from stoker.errors import ConfigError

_UNITS = {
    "B": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4,
    "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: int | str, what: str = "a size") -> int:
    """A number of bytes, at least 1; `what` names it in the error. Text has a unit: a plain 8 may be meant in any."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is not None and not match[2]:
            number = match[1]
            raise ConfigError(f"{what} needs a unit: '{number}GB', '{number}MiB', or '{number}B' for bytes, not {value!r}")
        if match is None or match[2].upper() not in _UNITS:
            raise ConfigError(f"{what} is a number of bytes, or text such as '8GB' or '512MiB', not {value!r}")
        size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size < 1:
        raise ConfigError(f"{what} must be at least one byte, not {value!r}")
    return size


def parse_place(value: str, what: str = "a place") -> tuple[str, int]:
    """A folder and a number of bytes, from DIR:SIZE."""
    folder, colon, size = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not folder:
        raise ConfigError(f"{what} is DIR:SIZE, such as '/nvme:2TB', not {value!r}")
    return folder, parse_bytes(size, what)


def parse_rate(value: str, what: str = "a rate") -> float:
    """Bytes per second."""
    if not value.endswith("/s"):
        raise ConfigError(f"{what} is text such as '530MB/s', not {value!r}")
    return float(parse_bytes(value[:-2], what))


def whole_percents(parts: Sequence[float]) -> list[int]:
    """Parts of a whole in per cent, without decimals. If they sum to 1, these sum to 100: the largest rests round up."""
    exact = [100 * part for part in parts]
    found = [math.floor(one) for one in exact]
    for number in sorted(range(len(exact)), key=lambda one: found[one] - exact[one])[: round(sum(exact)) - sum(found)]:
        found[number] += 1
    return found


def format_bytes(count: float) -> str:
    """For people: three digits and a unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
