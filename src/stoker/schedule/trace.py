"""Traces: jobs as they came to a cluster, in a CSV. An error names the line and the field.

A trace has job_id, model, arrival_s, total_iterations and gpus, with or without a header. A digest of the Philly cluster
has a header with timestamp, duration, num_gpus and cluster; its jobs get their models in turn, by a split.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from stoker.errors import ConfigError
from stoker.schedule.arrivals import as_job, models_in_turn
from stoker.schedule.job import Job
from stoker.schedule.profiles import ModelProfile
from stoker.schedule.rules import Rules

FIELDS = ("job_id", "model", "arrival_s", "total_iterations", "gpus")
_DIGEST_FIELDS = ("timestamp", "duration", "num_gpus", "cluster")
_MOST_ROUNDS = 1e7
_LATEST_S = 1e12
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class TraceBounds:
    """Which jobs of a digest are taken: those within these bounds."""

    gpus: tuple[float, float] = (1, math.inf)
    minutes: tuple[float, float] = (0, math.inf)


def read_trace(
    path: Path, profiles: Mapping[str, ModelProfile], split: Sequence[float], kept: TraceBounds | None = None
) -> list[Job]:
    """The jobs of a trace, in the order of their arrival."""
    rows = [(number, row) for number, row in enumerate(_rows(path), start=1) if any(cell.strip() for cell in row)]
    header = [cell.strip() for cell in rows[0][1]] if rows else []
    if "num_gpus" in header:
        jobs = _digest(path, rows[1:], header, profiles, split, kept or TraceBounds())
    elif len({*header} & {*FIELDS, *_DIGEST_FIELDS}) > 1:
        wanted = FIELDS if set(header) & set(FIELDS) else _DIGEST_FIELDS
        if lacks := [field for field in wanted if field not in header]:
            raise ConfigError(f"{path}: the header has no {', '.join(lacks)}")
        jobs = _plain(path, rows[1:], header, profiles)
    else:
        jobs = _plain(path, rows, list(FIELDS), profiles)
    if not jobs:
        raise ConfigError(f"{path} has no jobs")
    jobs.sort(key=lambda job: job.arrival_s)
    return jobs


def write_trace(path: Path, jobs: Sequence[Job]) -> None:
    """Write jobs as a trace with a header."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(FIELDS)
            writer.writerows((job.id, job.model, repr(job.arrival_s), job.iterations, job.gpus) for job in jobs)
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be written: {error.strerror}") from None


def _rows(path: Path) -> list[list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:  # spreadsheets put a mark before the first name
            return list(csv.reader(lines))
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the trace {path} is not text in UTF-8: {error}") from None
    except csv.Error as error:
        raise ConfigError(f"the trace {path} is not a CSV: {error}") from None


class _Row:
    """One line of a CSV."""

    def __init__(self, path: Path, number: int, names: Sequence[str], cells: Sequence[str]) -> None:
        self._where, self._cells = f"{path} line {number}", dict(zip(names, cells, strict=False))

    def text(self, field: str) -> str:
        text = self._cells.get(field, "").strip()
        if not text:
            raise ConfigError(f"{self._where}: {field} is missing")
        return text

    def value(self, field: str, read: Callable[[str], Value], what: str, least: float | None = None) -> Value:
        text = self.text(field)
        try:
            value = read(text)
        except (ValueError, OverflowError):
            raise ConfigError(f"{self._where}: {field} is {what}, not {text!r}") from None
        if isinstance(value, float | int) and not (math.isfinite(value) and (least is None or value >= least)):
            raise ConfigError(f"{self._where}: {field} is {what}, not {text!r}")
        return value

    def fail(self, words: str) -> ConfigError:
        return ConfigError(f"{self._where}: {words}")


def _plain(
    path: Path, rows: Sequence[tuple[int, list[str]]], names: list[str], profiles: Mapping[str, ModelProfile]
) -> list[Job]:
    jobs: dict[str, Job] = {}
    for number, cells in rows:
        row = _Row(path, number, names, cells)
        name, model = row.text("job_id"), row.text("model")
        arrival_s = row.value("arrival_s", float, "a number of seconds, at least 0", 0)
        iterations = row.value("total_iterations", _whole, "a number of iterations, at least 1", 1)
        gpus = row.value("gpus", _whole, "a number of GPUs, at least 1", 1)
        if model not in profiles:
            raise row.fail(f"model: there is no profile of {model!r} (there are {', '.join(sorted(profiles))})")
        if name in jobs:
            raise row.fail(f"job_id: {name} is there twice")
        jobs[name] = Job(name, gpus, iterations, profiles[model].matrix, arrival_s, model)
    return list(jobs.values())


def _digest(
    path: Path,
    rows: Sequence[tuple[int, list[str]]],
    names: list[str],
    profiles: Mapping[str, ModelProfile],
    split: Sequence[float],
    kept: TraceBounds,
) -> list[Job]:
    found = []
    for number, cells in rows:
        row = _Row(path, number, names, cells)
        when = row.value("timestamp", _time, "a time such as 2017-10-09 07:01:55")
        duration_s = row.value("duration", float, "a number of seconds, at least 0", 0)
        gpus = row.value("num_gpus", _whole, "a number of GPUs, at least 0", 0)
        if kept.gpus[0] <= gpus <= kept.gpus[1] and kept.minutes[0] <= duration_s / 60 <= kept.minutes[1]:
            found.append((when, duration_s, gpus, row.text("cluster")))
    found.sort(key=lambda one: one[0])
    models = models_in_turn(split, profiles)
    return [
        as_job(str(number), next(models), when - found[0][0], duration_s, gpus, user)
        for number, (when, duration_s, gpus, user) in enumerate(found)
    ]


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _whole(text: str) -> int:
    number = float(text)
    if number != int(number):
        raise ValueError(text)
    return int(number)


def check_sizes(jobs: Sequence[Job], gpus: int) -> None:
    """Refuse a job that is larger than the cluster."""
    for job in jobs:
        if job.gpus > gpus:
            raise ConfigError(f"job {job.id} asks for {job.gpus} GPUs, and the cluster has {gpus}")


def check_times(jobs: Sequence[Job], rules: Rules, cpus: float) -> None:
    """Refuse a job that nobody would wait for: all its rounds are played, and seconds become inexact.

    There are so many CPUs in all, with which a start is quickest.
    """
    start_s = rules.start_s(cpus)
    for job in jobs:
        rounds = (start_s + job.iterations / max(map(max, job.matrix.rates))) / rules.round_s
        if rounds > _MOST_ROUNDS:
            raise ConfigError(
                f"job {job.id} takes {rounds:.2g} rounds of {rules.round_s:g} s at its fastest, and {_MOST_ROUNDS:g} are "
                "the most that can be played: look at its iterations, or make --round longer"
            )
        if job.arrival_s > _LATEST_S:
            raise ConfigError(f"job {job.id} arrives after {job.arrival_s:g} s, and {_LATEST_S:g} are the most")


def from_start(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs, where the first arrives at 0."""
    return [replace(job, arrival_s=job.arrival_s - jobs[0].arrival_s) for job in jobs]
