"""The ways in which a script of the gallery is run, and what must hold in each of them.

python      as it is: what the others are compared with
run         the same exit code, and the same losses bit for bit
cache       the same with `--cache 64MB`
analyze     a version of hours: ends within three minutes, with the loader and the limit that were planted
short       the same for the script as it is, which ends before all is measured
scratch     the same as analyze with `--scratch`, in a folder with the files of a run before: all are as they were
checkpoint  killed at several moments and started again with the same command until it ends: see `restarts`
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.gallery.restarts import Reference, check_restarts
from tests.gallery.started import Ended, plainly, run, under, words
from tests.gallery.table import Entry
from tests.slow_disk import slow_disk

ANALYSIS_S = 180.0
DISK = 4_000_000
"""Bytes per second, where it is to be slow."""
_PLANTED = 2.0
"""What is left of the margin of three, at least, on a host that is busy."""
OK, REFUSED, FAILED = "ok", "refused", "FAILED"


@dataclass(frozen=True)
class Outcome:
    """What became of one script in one mode."""

    verdict: str
    why: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}" if self.why else self.verdict


class Gallery:
    """Runs scripts, each mode in a folder of its own, over the same data. What plain python gives is kept."""

    def __init__(self, data: Path, work: Path, time_s: float = 1.0) -> None:
        self._data = data
        self._work = work
        self._time_s = time_s
        self._references: dict[str, Reference] = {}

    def run(self, entry: Entry, mode: str) -> Outcome:
        """One script in one mode."""
        modes: dict[str, Callable[[Entry], Outcome]] = {
            "python": self._python,
            "run": lambda entry: self._compared(entry, "run"),
            "cache": lambda entry: self._compared(entry, "run", "--cache", "64MB"),
            "analyze": lambda entry: self._analyze(entry, entry.hours),
            "short": lambda entry: self._analyze(entry, ()),
            "scratch": self._scratch,
            "checkpoint": self._checkpoint,
        }
        return modes[mode](entry)

    def reference(self, entry: Entry) -> Reference:
        """What the script does under plain python."""
        if entry.name not in self._references:
            out = self._folder(entry, "python")
            self._references[entry.name] = Reference(run(plainly(entry, words(entry, self._data, out)), out), out)
        return self._references[entry.name]

    def _python(self, entry: Entry) -> Outcome:
        ended = self.reference(entry).ended
        if ended.code != entry.code or not self.reference(entry).lines:
            return Outcome(FAILED, f"code {ended.code}: {ended.last}", ended.seconds)
        return Outcome(OK, seconds=ended.seconds)

    def _compared(self, entry: Entry, *command: str) -> Outcome:
        reference, out = self.reference(entry), self._folder(entry, "".join(command[:2]))
        ended = run(under(entry, list(command), words(entry, self._data, out)), out)
        why = ""
        if ended.took_too_long or ended.code != reference.ended.code:
            why = f"code {ended.code} instead of {reference.ended.code}: {ended.last}"
        elif [line for line in ended.lines if " loss " in line] != reference.lines:
            why = "other losses"
        return Outcome(FAILED if why else OK, why, ended.seconds)

    def _analyze(self, entry: Entry, more: tuple[str, ...]) -> Outcome:
        return self._analyze_in(self._folder(entry, "analyze" if more else "short"), entry, more)

    def _scratch(self, entry: Entry) -> Outcome:
        before, out = self.reference(entry).out, self._folder(entry, "scratch")
        shutil.copytree(before, out, dirs_exist_ok=True)
        outcome = self._analyze_in(out, entry, entry.hours, "--scratch")
        changed = [path.name for path in before.iterdir() if (out / path.name).read_bytes() != path.read_bytes()]
        more = {path.name for path in out.iterdir()} - {path.name for path in before.iterdir()}
        if changed or more:
            return Outcome(FAILED, f"files were changed: {', '.join([*changed, *more])}", outcome.seconds)
        return outcome

    def _analyze_in(self, out: Path, entry: Entry, more: tuple[str, ...], *options: str) -> Outcome:
        profile = self._folder(entry, "profiles") / "profile.json"
        analyze = ["analyze", "--time", f"{self._time_s:g}", "--json", str(profile), *options]
        command = under(entry, analyze, words(entry, self._data, out, *more))
        if entry.slow_disk:
            with slow_disk(self._data, DISK) as join:
                ended = run(command, out, limit_s=ANALYSIS_S, join=join)
            limit = "gpu" if join is None else entry.limit
        else:
            limit, ended = entry.limit, run(command, out, limit_s=ANALYSIS_S)
        if options and ended.code and (line := ended.says("stoker: .*--scratch")):
            return Outcome(REFUSED, line, ended.seconds)
        if entry.not_analyzed:
            if ended.code and (line := ended.says(f"stoker: .*{entry.not_analyzed}")):
                return Outcome(REFUSED, line, ended.seconds)
            return Outcome(FAILED, f"code {ended.code}: {ended.last}", ended.seconds)
        why = _wrong(entry, ended, profile, limit)
        return Outcome(FAILED if why else OK, why, ended.seconds)

    def _checkpoint(self, entry: Entry) -> Outcome:
        out = self._folder(entry, "checkpoint")
        place = self._folder(entry, "checkpoints")
        options = ["run", "--checkpoint", str(place), "--checkpoint-every", "4", *entry.checkpoint_options]
        command = under(entry, options, words(entry, self._data, out))
        verdict, why, seconds = check_restarts(entry, self.reference(entry), command, out, place)
        return Outcome(verdict, why, seconds)

    def _folder(self, entry: Entry, name: str) -> Path:
        folder = self._work / entry.name / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


def _wrong(entry: Entry, ended: Ended, profile: Path, limit: str) -> str:
    """What is wrong with an analysis; nothing if it is as it should be."""
    if ended.took_too_long:
        return f"not ended after {ANALYSIS_S:.0f} s"
    if ended.code or not profile.exists():
        return f"code {ended.code}: {ended.says('^stoker: ') or ended.last}"
    found = json.loads(profile.read_text())
    loader = (found["dataset"]["samples"], found["batch_size"], found["workers"])
    samples = entry.samples or loader[0]
    if loader != (samples, entry.batch, entry.workers):
        return f"another loader: {loader} instead of {(samples, entry.batch, entry.workers)}"
    if found["limit"] != limit:
        rates = {name: round(found["rates"][name]) for name in ("gpu", "prep", "storage")}
        return f"the limit is {found['limit']}, not {limit}: {rates}"
    rates = found["rates"]
    faster, slower = (rates["prep"], rates["gpu"]) if limit == "gpu" else (rates["gpu"], rates["prep"])
    if limit != "fetch" and faster < _PLANTED * slower:
        return f"of a margin of 3 only {faster / slower:.1f} is left: {round(faster)} and {round(slower)} samples/s"
    if traceback := ended.says("^Traceback|Error: "):
        return f"something went wrong meanwhile: {traceback}"
    return "" if re.search(r"\d", ended.lines[0] if ended.lines else "") else "no report"
