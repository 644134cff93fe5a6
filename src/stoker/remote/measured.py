"""What was measured for offloading, kept for the next start: numbers in a JSON file of this user's alone.

    loop    by the model (the script, its arguments, batch size, devices, ranks)    G
    here    by the pipeline and the model                                           L, P
    there   by both, the kind of remote worker and the part that it does            R of one worker, O

So a second start measures nothing, and another kind of remote worker only the last. Where there is no file to be had, every
start measures. `XDG_CACHE_HOME` or ~/.cache has the folder.
"""

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stoker.decide.looks import Known, There
from stoker.host import folders

VERSION = 1
_MOST = 500
_SAVE_EVERY_S = 60.0
_MOST_BYTES = 1 << 20
_TOO_MUCH = 1e300


class MeasuredFile:
    """The file, as one job uses it."""

    def __init__(self, model: str, pipeline: str) -> None:
        self._model, self._pipeline = model, pipeline
        self._found: dict[str, dict[str, float]] = {}
        self._saved_at = -_SAVE_EVERY_S
        self._saved: set[str] = set()

    def before(self) -> Known:
        """What is known of the loop and of this host."""
        stored = _load()
        loop, here = stored.get(f"loop {self._model}", {}), stored.get(f"here {self._here}", {})
        return Known(_number(loop, "rate"), _number(here, "rate"), _number(here, "cpu_s"))

    def with_remote(self, known: Known, kind: str, parts: Iterable[str]) -> Known:
        """The same with what is known of remote workers of a kind that do some parts."""
        stored = _load()
        for part in parts:
            there = stored.get(f"there {self._there(kind, part)}")
            if there is not None:
                found = There(_number(there, "rate") or 0.0, _number(there, "cpu_s"), _number(there, "loss") or 0.0)
                known = known.with_there(part, found)
        return known

    def keep(self, known: Known, kind: str | None) -> None:
        """Note what is known now. It is written when something is new, and now and then."""
        if known.loop:
            self._found[f"loop {self._model}"] = {"rate": known.loop}
        if known.local:
            self._found[f"here {self._here}"] = {"rate": known.local, "cpu_s": known.cpu_here or 0.0}
        if kind is not None and any(there.rate for there in known.there.values()):
            for part, there in known.there.items():
                found = {"rate": there.rate, "cpu_s": there.cpu or 0.0, "loss": there.loss or 0.0}
                self._found[f"there {self._there(kind, part)}"] = found
        if self._found.keys() - self._saved or time.monotonic() - self._saved_at > _SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Write it down, beside what other jobs have written."""
        self._saved_at = time.monotonic()
        if not self._found or not self._model:
            return
        self._saved |= self._found.keys()
        stored = _load() | {key: {**values, "at": time.time()} for key, values in self._found.items()}
        kept = dict(sorted(stored.items(), key=lambda item: -(_number(item[1], "at") or 0.0))[:_MOST])
        with contextlib.suppress(OSError):
            folder = _folder()
            folder.parent.mkdir(parents=True, exist_ok=True)
            folders.make(folder)
            partial = folder / f".offload.{secrets.token_hex(4)}"
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump({"version": VERSION, "measured": kept}, file, indent=1)
            partial.rename(folder / "offload.json")

    @property
    def _here(self) -> str:
        return name_of(self._pipeline, self._model)

    def _there(self, kind: str, part: str) -> str:
        return name_of(self._pipeline, self._model, kind, part)


def name_of(*parts: object) -> str:
    """A name for things that belong together."""
    return hashlib.blake2b(json.dumps([str(part) for part in parts]).encode(), digest_size=16).hexdigest()


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")).absolute() / "stoker"


def _load() -> dict[str, dict[str, Any]]:
    """What the file says; nothing if there is none, or if it is not ours."""
    try:
        folder = _folder()
        folders.check(folder)
        with open(folder / "offload.json") as file:
            found = json.loads(file.read(_MOST_BYTES))
        if found["version"] != VERSION:
            return {}
        return {str(key): dict(values) for key, values in found["measured"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _number(values: dict[str, Any], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 < value < _TOO_MUCH else None
