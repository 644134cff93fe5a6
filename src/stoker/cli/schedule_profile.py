"""Measure how fast a script is by its cores and memory; the matrix that `stoker schedule submit --profile` takes.

First `stoker analyze` is run on it, or a profile of that is taken. From that follows the matrix by the cost model.
Then the script is run for some seconds at a time with other numbers of CPUs, at most eight in all, and the matrix is
corrected by what is seen. The first count is run again if it read from a disk what the analysis had dropped from
memory. It trains meanwhile: what it writes means nothing.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from stoker.cli.places import check_output
from stoker.cli.schedule_places import add_script, name_of, script_of
from stoker.errors import CommandError, ConfigError
from stoker.profile import Profile, write_text
from stoker.schedule.matrix import Matrix
from stoker.schedule.observing import Observed, observe
from stoker.schedule.quota import limited
from stoker.schedule.sensitivity import (
    MOST_MEASUREMENTS,
    MeasuredRate,
    document,
    matrix_of,
    measured_counts,
    process_memory_gb,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="where to write the matrix")
    add_measuring(parser)
    add_script(parser)


def add_measuring(parser: argparse._ActionsContainer) -> None:
    """Declare the options that say how a script is measured."""
    parser.add_argument("--analysis", metavar="FILE", help="a profile.json of `stoker analyze`, instead of analysing anew")
    parser.add_argument("--cpus", metavar="N", type=int, help="the most for one GPU (default: those of this host)")
    parser.add_argument(
        "--core", metavar="F", type=float, default=1.0, help="what one CPU is of a core, as of `stoker schedule run`"
    )
    parser.add_argument(
        "--measurements", metavar="N", type=int, default=MOST_MEASUREMENTS, help="at most so many (default: %(default)s)"
    )
    parser.add_argument(
        "--time",
        metavar="S",
        type=float,
        default=6.0,
        help="seconds for each, and up to five times as long for whole epochs (default: %(default)g)",
    )


def run(options: argparse.Namespace) -> int:
    """Analyse, observe, and write the matrix."""
    words = script_of(options)
    check_output(Path(options.output), "--output")  # which takes minutes to make
    matrix, rates = measure(options, words, lambda line: print(line, flush=True))
    write_text(options.output, json.dumps(document(name_of(words), matrix, {"measured": rates}), indent=1) + "\n")
    print(f"Written: {options.output}")
    return 0


def measure(options: argparse.Namespace, words: list[str], tell: Callable[[str], None]) -> tuple[Matrix, dict[int, float]]:
    """The matrix of a script, and the rates that were measured for it."""
    finite = 0 < options.core < math.inf and 0 < options.time < math.inf
    if not (finite and 1 <= options.measurements <= MOST_MEASUREMENTS and (options.cpus is None or options.cpus >= 1)):
        raise ConfigError(f"--measurements is from 1 to {MOST_MEASUREMENTS}; --cpus, --core and --time are more than 0")
    most = options.cpus or int(max(1, len(os.sched_getaffinity(0)) / options.core))
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)  # as for Ctrl-C: the script is not left behind
    with limited(f"profile-{os.getpid()}", options.core) as group:
        _check_limit(group is not None)  # before what takes minutes
    profile = Profile.load(options.analysis) if options.analysis else _analysed(words, options.time)
    seen: dict[int, Observed] = {}

    def measured(count: int) -> float:
        one = observe(words, count * options.core, options.time)
        if one.read_bytes and not seen:
            one = observe(words, count * options.core, options.time)  # the analysis had dropped the data from memory
        if count not in seen or one.rate > seen[count].rate:
            seen[count] = one
        from_disk = f", {one.read_bytes / 1e6:.3g} MB each from a disk" if one.read_bytes else ""
        tell(f"{count} CPU{'' if count == 1 else 's'}: {one.rate:.3g} iterations per second{from_disk}")
        return one.rate

    rates = measured_counts(most, measured, options.measurements)
    _check_limit(all(one.is_limited for one in seen.values()))
    process_gb = process_memory_gb(one.memory_bytes for one in seen.values())
    iteration_bytes = profile.batch_size * profile.dataset.sample_bytes
    found = {count: _measured(one, iteration_bytes) for count, one in seen.items()}
    matrix = matrix_of(profile, found, process_gb, options.core)
    reads_mb_s = matrix.storage_mb_s(process_gb, matrix.rate(*matrix.wanted))
    tell(
        f"It wants {matrix.wanted[0]:g} CPU{'' if matrix.wanted[0] == 1 else 's'} and {matrix.wanted[1]:.3g} GB "
        f"for each GPU, and would read {reads_mb_s:.3g} MB/s with nothing cached."
    )
    return matrix, rates


def _check_limit(is_limited: bool) -> None:
    if not is_limited:
        raise CommandError(
            "the number of cores could not be limited here: it needs root, or a control group that was delegated"
        )


def _measured(one: Observed, iteration_bytes: float) -> MeasuredRate:
    """With the part of the data that was in memory; all, if it is not known what an iteration reads."""
    return MeasuredRate(one.rate, min(1.0, max(0.0, 1 - one.read_bytes / iteration_bytes)) if iteration_bytes else 1.0)


def _analysed(words: list[str], seconds: float) -> Profile:
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        target = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "stoker", "analyze", "--json", str(target), "--time", str(seconds), "--", *words]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode or not target.exists():
            raise CommandError(f"the analysis ended with code {done.returncode}")
        return Profile.load(target)
