"""What was measured of jobs on this host, kept for the next time: one JSON file, for its owner alone.

    ${XDG_CACHE_HOME:-~/.cache}/stoker/together.json       {"version": 2, "solo": {KEY: ...}, "pairs": {KEY: {KEY: ...}}}

Solo values are those of a job by itself, pair values those of a job (first key) beside another (second key). A key names
the host, the folder and the command without its number of epochs. A file that makes no sense is as if there were none: its
values can be measured again.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from stoker.host.locks import alone
from stoker.profile import write_text

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Solo:
    """What a job does by itself; times are seconds per iteration."""

    compute_s: float
    wait_cold_s: float
    wait_cached_s: float
    startup_s: float
    """From its start to its first batch."""
    batch: int
    samples: int
    """In an epoch."""
    iterations: int
    sample_bytes: float
    data: str
    """The name of its cache: what it reads."""
    cold_iterations: int
    """So many iterations were seen that waited for storage; 0: `wait_cold_s` follows from another job's."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What a job does beside another; None was not measured."""

    wait_both_cold_s: float | None = None
    wait_beside_s: float | None = None
    compute_beside_s: float | None = None


class Catalogue:
    """The file, read when it is asked, and changed under a lock."""

    def __init__(self, path: Path | None = None) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self.path = path or Path(cache) / "stoker" / "together.json"

    def solo(self, key: str) -> Solo | None:
        """The values of a job by itself, if they were measured."""
        found: Solo | None = _of(Solo, self._read()["solo"].get(key))
        return found

    def beside(self, key: str, other: str) -> Beside | None:
        """The values of a job beside another, if they were measured."""
        found: Beside | None = _of(Beside, self._read()["pairs"].get(key, {}).get(other))
        return found

    def keep_solo(self, key: str, values: Solo) -> None:
        """Keep the values of a job by itself."""
        with self._changing() as document:
            document["solo"][key] = asdict(values)

    def keep_beside(self, key: str, other: str, values: Beside) -> None:
        """Keep the values of a job beside another."""
        with self._changing() as document:
            document["pairs"].setdefault(key, {})[other] = asdict(values)

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            document = json.loads(self.path.read_text())
            if isinstance(document, dict) and document.get("version") == _VERSION:
                solo, pairs = document.get("solo"), document.get("pairs")
                if (
                    isinstance(solo, dict)
                    and isinstance(pairs, dict)
                    and all(isinstance(one, dict) for one in pairs.values())
                ):
                    return document
        return {"version": _VERSION, "solo": {}, "pairs": {}}

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with alone(self.path.with_suffix(".lock")):
            document = self._read()
            yield document
            write_text(self.path, json.dumps(document, indent=1) + "\n")
            self.path.chmod(0o600)


def _of(kind: Any, value: Any) -> Any:
    """Values as they were kept; None if these are not all of them, or are no numbers."""
    if not isinstance(value, dict) or value.keys() != {item.name for item in fields(kind)}:
        return None
    for item in fields(kind):
        one = value[item.name]
        is_number = isinstance(one, int | float) and not isinstance(one, bool) and one >= 0
        if not (is_number or (item.name == "data" and isinstance(one, str)) or (one is None and kind is Beside)):
            return None
    return kind(**value)
