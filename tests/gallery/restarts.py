"""A script under `run --checkpoint` that is killed again and again: what must hold of its losses and of its files.

After each start that restores something, the losses that follow are those of a run that was never interrupted, from an
iteration that had been reached before, so that none is left out. Before the run is restored no loss counts.

Files that were there stay there, and they hold what an uninterrupted run would have written, too. In the end all files are
those of an uninterrupted run, apart from logs and best models: a script begins anew with its own variables, but it must not
write a loss that was never reached. After the end of the run the same command ends at once.
"""

import re
from pathlib import Path
from typing import Any

import torch
from tests.gallery.started import Ended, run
from tests.gallery.table import RESTART, Entry, Moment

_LOSS = re.compile(r"^(?P<label>.*) loss (?P<loss>.+)$")
_REFUSED = r"stoker: .*(refused|cannot|no checkpoint was taken|not .*(restored|resumed|supported))"


class Reference:
    """A run without interruption: its lines with losses, and its files."""

    def __init__(self, ended: Ended, out: Path) -> None:
        self.ended = ended
        self.out = out
        self.lines = [line for line in ended.lines if _LOSS.match(line)]
        self.losses = {loss for line in self.lines for loss in _loss(line).split()}


class Wrong(Exception):  # noqa: N818
    """Something that must not be."""


def check_restarts(
    entry: Entry, reference: Reference, command: list[str], out: Path, place: Path
) -> tuple[str, str, float]:
    """Kill and start again until it ends. The verdict ("ok", "refused", "FAILED"), why, and how long it took."""
    watch = Watch(entry, reference, out, place)
    seconds = 0.0
    try:
        for number, moment in enumerate((*entry.moments, None)):
            ended = run(command, out, kill_at=moment, kill_all=entry.ranks > 1)
            seconds += ended.seconds
            watch.start(number, ended, moment)
            if watch.refusal:
                break
        else:
            ended = run(command, out)
            seconds += ended.seconds
            watch.after_the_end(ended)
    except Wrong as wrong:
        return "FAILED", str(wrong), seconds
    if watch.refusal:
        is_right = "refused" in entry.checkpoint
        return ("refused" if is_right else "FAILED"), ("" if is_right else "refused: ") + watch.refusal, seconds
    if "exact" not in entry.checkpoint:
        return "FAILED", "it should have been refused", seconds
    return "ok", "", seconds


class Watch:
    """What was seen of one script over all its starts."""

    def __init__(self, entry: Entry, reference: Reference, out: Path, place: Path) -> None:
        self._entry = entry
        self._reference = reference
        self._compared = [line for line in reference.lines if re.search(entry.compares, line)]
        self._out = out
        self._place = place
        self._reached = 0
        """So many lines of the uninterrupted run have been printed by some start."""
        self._kept: dict[str, list[str]] = {}
        self._good: set[str] = set()
        """Best files that have held a loss of the uninterrupted run."""
        self._has_checkpoint = False
        """Some start before has left one: the next must go on from it."""
        self.refusal = ""

    def start(self, number: int, ended: Ended, moment: Moment | None) -> None:
        """One start has ended."""
        which = f"start {number + 1}"
        if ended.took_too_long:
            raise Wrong(f"{which} did not end: {ended.last}")
        restored = next((i for i, line in enumerate(ended.lines) if re.search("stoker: .*restored step", line)), None)
        if restored is None and (refusal := ended.says(_REFUSED)):
            self.refusal = refusal
            return
        if moment is not None and not ended.was_killed:
            raise Wrong(f"{which} ended with code {ended.code} before {moment[0]!r}: {_complaint(ended)}")
        if moment is None and ended.code != self._entry.code:
            raise Wrong(f"{which} ended with code {ended.code}: {_complaint(ended)}")
        if restored is None and self._has_checkpoint and moment != RESTART:
            raise Wrong(f"{which} did not restore anything")
        self._has_checkpoint = bool(list(self._place.rglob("*.json")))
        lines = ended.lines[restored + 1 if restored is not None else 0 :]
        self._check_losses(which, [line for line in lines if _LOSS.match(line)], restored is not None, moment is None)
        if restored is not None or not number:
            self._check_files(which)
        if moment is None:
            self._check_final_files()

    def _check_losses(self, which: str, lines: list[str], is_restored: bool, is_last: bool) -> None:
        lines = [line for line in lines if re.search(self._entry.compares, line)]
        if not lines:
            return
        theirs = [_key(line) for line in self._compared]
        ours = [_key(line) for line in lines]
        first = theirs.index(ours[0]) if ours[0] in theirs else None
        if first is None:
            raise Wrong(f"{which} went on with a loss that is none of the uninterrupted run's: {lines[0]}")
        if is_restored and first > self._reached:
            raise Wrong(f"{which} left out {first - self._reached} lines before: {lines[0]}")
        if is_restored and not first:
            raise Wrong(f"{which} began anew")
        rest = theirs[first:]
        if self._entry.counts_anew:
            ours = ours[: len(rest)]
        for number, key in enumerate(ours):
            if number >= len(rest) or key != rest[number]:
                raise Wrong(f"{which} differs {number} lines after it went on: {lines[number]}")
        if is_last and len(ours) < len(rest):
            raise Wrong(f"{which} ended {len(rest) - len(ours)} lines too early")
        self._reached = max(self._reached, first + len(ours))

    def _check_files(self, which: str) -> None:
        for name in self._entry.rows:
            rows = (self._out / name).read_text().split() if (self._out / name).exists() else []
            if missing := [row for row in self._kept.get(name, []) if row not in rows]:
                raise Wrong(f"after {which} {name} has lost {missing[0]!r}")
            for row in rows:
                if "0x" in row and row.rpartition(",")[2] not in self._reference.losses:
                    raise Wrong(f"after {which} {name} has a row of an epoch that never was: {row!r}")
            self._kept[name] = rows
        for name in self._entry.best:
            if not (self._out / name).exists():
                if name in self._good:
                    raise Wrong(f"after {which} {name} is gone")
                continue
            loss = _saved_loss(self._out / name)
            if loss in self._reference.losses:
                self._good.add(name)
            elif name in self._good:
                raise Wrong(f"after {which} {name} holds a model that never was, of loss {loss}")

    def _check_final_files(self) -> None:
        for path in sorted(self._reference.out.iterdir()):
            ours = self._out / path.name
            if not ours.exists():
                raise Wrong(f"{path.name} is missing in the end")
            own = (*self._entry.best, *self._entry.rows, *self._entry.counted)
            if not path.name.startswith(own) and not self._entry.counts_anew and ours.read_bytes() != path.read_bytes():
                raise Wrong(f"{path.name} is another in the end")

    def after_the_end(self, ended: Ended) -> None:
        """The same command, once more: it says that all is done, and does nothing."""
        if self._entry.counts_anew or self._entry.code:
            return
        if ended.took_too_long or ended.code:
            raise Wrong(f"once more after the end: code {ended.code}: {_complaint(ended)}")
        if again := [line for line in ended.lines if _LOSS.match(line)]:
            raise Wrong(f"once more after the end it trained: {again[0]}")


def _loss(line: str) -> str:
    found = _LOSS.match(line)
    assert found is not None
    return found["loss"]


def _key(line: str) -> tuple[str, str]:
    """What of a line must be the same: the epoch and the losses; a count of batches begins anew after a restart."""
    epoch = re.search(r"(fold \d+ )?epoch \d+", line)
    return (epoch[0] if epoch else ""), _loss(line)


def _saved_loss(path: Path) -> str:
    try:
        saved: Any = torch.load(path, weights_only=True)
        return float(saved["loss"]).hex()
    except Exception as error:
        return f"unreadable ({type(error).__name__})"


def _complaint(ended: Ended) -> str:
    """The line that says what went wrong: the error's own, or what we say of it."""
    errors = [line for line in ended.lines if re.match(r"[\w.]*(Error|Exception|Exit): ", line)]
    return (errors[-1] if errors else ended.says(r"^stoker: ") or ended.last)[:200]
