"""Play a trace through the scheduler, and tell how long jobs take.

TRACE is a CSV of job_id, model, arrival_s, total_iterations, gpus, or a digest of the Philly cluster, whose jobs get models
by --split. With --jobs-per-hour it is -, and jobs are drawn. Profiles say how fast each model is by its cores and memory.

  stoker schedule simulate trace.csv --profiles models.json --policy fifo --mechanism tune --servers 4
  stoker schedule simulate - --profiles models.json --policy srtf --mechanism tune --servers 16 --jobs-per-hour 9 \\
         --jobs 5000 --window 4000:5000 --html page.html

Compare mechanisms on the same jobs: `proportional` is what GPU schedulers do without Stoker, `tune` is never slower for any
job, `opt` shows how much more could be had, and `greedy` what happens without tune's guarantee.
"""

import argparse
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from stoker.cli import places
from stoker.errors import CommandError, ConfigError
from stoker.extras import SCHEDULE
from stoker.profile import write_text
from stoker.report import schedule_page
from stoker.report.together_page import check
from stoker.schedule.arrivals import check_split, draw
from stoker.schedule.job import Job, Server
from stoker.schedule.mechanisms import MECHANISMS
from stoker.schedule.profiles import read_profiles
from stoker.schedule.queue import POLICIES
from stoker.schedule.rules import Rules
from stoker.schedule.simulate import Simulation
from stoker.schedule.summary import summarise
from stoker.schedule.trace import TraceBounds, read_trace, write_trace
from stoker.units import parse_bytes

_LINE_AGAIN = "\r\x1b[K"
_TELL_EVERY_S = 0.2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("trace", metavar="TRACE", help="a CSV of jobs, or - with --jobs-per-hour")
    parser.add_argument("--profiles", metavar="FILE", type=Path, required=True, help="how fast models are, as JSON")
    parser.add_argument("--policy", choices=list(POLICIES), required=True, help="who is first")
    parser.add_argument("--mechanism", choices=[*MECHANISMS, "opt"], required=True, help="who gets which cores and memory")
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument(
        "--servers",
        metavar="N",
        required=True,
        help="how many; or, of different kinds, COUNTxGPUS:CPUS:MEMORY,... such as 4x8:24:500GB,2x4:32:256GB",
    )
    cluster.add_argument("--gpus", metavar="N", type=int, default=8, help="of each server (default: 8)")
    cluster.add_argument("--cpus", metavar="N", type=float, default=24, help="of each server (default: 24)")
    cluster.add_argument("--memory", metavar="SIZE", default="500GB", help="of each server (default: 500GB)")
    drawn = parser.add_argument_group("jobs that are drawn, instead of a trace")
    drawn.add_argument("--jobs-per-hour", metavar="X", type=float, help="on average; gaps are exponential")
    drawn.add_argument("--jobs", metavar="N", type=int, help="how many are drawn (default: 5000); of a trace, the first N")
    drawn.add_argument("--job-gpus", metavar="N|mixed", default="1", help="of each job; mixed: 1, 2, 4 or 8 (default: 1)")
    drawn.add_argument("--seed", metavar="S", type=int, default=0, help="of what is drawn (default: 0)")
    drawn.add_argument("--write-trace", metavar="FILE", type=Path, help="write the jobs as a trace")
    drawn.add_argument(
        "--split", metavar="A,B,C", default="20,70,10", help="of image, language and speech models (default: 20,70,10)"
    )
    digest = parser.add_argument_group("jobs of a digest that count")
    digest.add_argument("--keep-gpus", metavar="A:B", default=":", help="those with so many GPUs")
    digest.add_argument("--keep-minutes", metavar="A:B", default=":", help="those that took so long")
    parser.add_argument("--round", metavar="S", type=float, default=300.0, help="seconds between decisions (default: 300)")
    parser.add_argument(
        "--switch-cost", metavar="S", type=float, default=0.0, help="what a lease's start costs (default: 0)"
    )
    parser.add_argument(
        "--start-work",
        metavar="S",
        type=float,
        default=0.0,
        help="and on top, in seconds of one whole core: a start with half a core takes twice as long (default: 0)",
    )
    parser.add_argument("--core", metavar="F", type=float, default=1.0, help="what one CPU is of a core (default: 1)")
    parser.add_argument("--as-published", action="store_true", help="FTF and tune by the rules as printed, for comparison")
    parser.add_argument("--window", metavar="A:B", default=":", help="arrivals that the times are of (default: all)")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with charts")
    parser.add_argument("--log", metavar="FILE", help="write a JSON line for each round, job and server")


def run(options: argparse.Namespace) -> int:
    """Simulate, tell, and write what was asked for."""
    if options.mechanism == "opt":
        SCHEDULE.check()
    if options.html:
        check()
        places.check_page(Path(options.html))
    for option, path in (("--json", options.json), ("--log", options.log), ("--write-trace", options.write_trace)):
        if path is not None:
            places.check_output(Path(path), option)
    _check_numbers(options)
    rules = Rules(
        options.policy,
        options.mechanism,
        options.round,
        options.switch_cost,
        options.as_published,
        start_work_s=options.start_work,
        core=options.core,
    )
    servers = _servers(options)
    first, last = _bounds(options.window, "--window", whole=True)
    jobs = _jobs(options, servers)
    window = int(first), min(len(jobs), int(last) if math.isfinite(last) else len(jobs))
    if window[0] >= window[1]:
        raise ConfigError(f"--window {options.window} has none of the jobs, whose arrivals are 0:{len(jobs)}")
    with _opened(options.log) as log, _progress() as tell:
        history = Simulation(jobs, servers, rules, log).run(tell)
    document = summarise(history, window)
    print(_words(options, document))
    if options.json:
        write_text(options.json, json.dumps(document, indent=2) + "\n")
    if options.html:
        title = f"{options.policy.upper()}, {options.mechanism}"
        write_text(options.html, schedule_page.schedule_page(title, history, document, window))
    return 0


def _check_numbers(options: argparse.Namespace) -> None:
    """Refuse numbers that mean nothing, also where they are not used."""
    per_hour, jobs = options.jobs_per_hour, options.jobs
    for option, value, is_fine, what in (
        ("--gpus", options.gpus, options.gpus >= 1, "at least 1"),
        ("--cpus", options.cpus, 0 < options.cpus < math.inf, "above 0 and finite"),
        ("--jobs-per-hour", per_hour, per_hour is None or 0 < per_hour < math.inf, "above 0 and finite"),
        ("--jobs", jobs, jobs is None or jobs >= 1, "at least 1"),
        ("--seed", options.seed, options.seed >= 0, "at least 0"),
        ("--round", options.round, 0 < options.round < math.inf, "above 0 and finite"),
        ("--switch-cost", options.switch_cost, 0 <= options.switch_cost < math.inf, "at least 0 and finite"),
        ("--start-work", options.start_work, 0 <= options.start_work < math.inf, "at least 0 and finite"),
        ("--core", options.core, 0 < options.core < math.inf, "above 0 and finite"),
    ):
        if not is_fine:
            raise ConfigError(f"{option} must be {what}, not {value}")
    parse_bytes(options.memory, "--memory")
    if options.job_gpus != "mixed" and not (options.job_gpus.isdecimal() and int(options.job_gpus)):
        raise ConfigError(f"--job-gpus is a number, at least 1, or mixed, not {options.job_gpus!r}")


def _servers(options: argparse.Namespace) -> list[Server]:
    """All servers, by name."""
    if options.servers.isdigit():
        text = f"{options.servers}x{options.gpus}:{options.cpus:g}:{options.memory}"
    else:
        text = options.servers
    servers: list[Server] = []
    for kind in text.split(","):
        try:
            count, rest = kind.split("x", 1)
            gpus, cpus, memory = rest.split(":")
            copies, shape = int(count), (int(gpus), float(cpus))
        except ValueError:
            raise ConfigError(
                f"--servers is a number, or such as 4x8:24:500GB,2x4:32:256GB, not {options.servers!r}"
            ) from None
        if (text == options.servers and min(copies, shape[0]) < 1) or not 0 < shape[1] < math.inf:
            raise ConfigError(f"--servers {kind}: there must be at least one server, with one GPU and some CPU")
        memory_gb = parse_bytes(memory, "the memory of --servers") / 1e9
        servers += [Server(f"server{len(servers) + one}", *shape, memory_gb) for one in range(copies)]
    if not servers:
        raise ConfigError("--servers must be at least 1")
    return servers


def _jobs(options: argparse.Namespace, servers: list[Server]) -> list[Job]:
    profiles = read_profiles(options.profiles, servers)
    split = _split(options.split)
    if (options.trace == "-") != (options.jobs_per_hour is not None):
        raise CommandError("give a TRACE, or - with --jobs-per-hour")
    if options.trace == "-":
        count = 5000 if options.jobs is None else options.jobs
        jobs = draw(options.jobs_per_hour, count, split, profiles, seed=options.seed, gpus=options.job_gpus)
    else:
        kept = TraceBounds(_bounds(options.keep_gpus, "--keep-gpus", 1), _bounds(options.keep_minutes, "--keep-minutes"))
        jobs = read_trace(Path(options.trace), profiles, split, kept)[: options.jobs]
    if options.write_trace:
        write_trace(options.write_trace, jobs)
    return jobs


def _split(text: str) -> list[float]:
    try:
        split = [float(part) for part in text.split(",")]
        check_split(split)
    except ValueError:
        raise ConfigError(
            f"--split has three numbers that are not below 0 and not all 0, such as 20,70,10, not {text!r}"
        ) from None
    return split


def _bounds(text: str, option: str, least: float = 0, *, whole: bool = False) -> tuple[float, float]:
    first, colon, last = text.partition(":")
    try:
        bounds = float(first or least), float(last or math.inf)
        is_fine = bool(colon) and 0 <= bounds[0] < math.inf and bounds[0] <= bounds[1]
    except ValueError:
        is_fine = False
    if not is_fine or (whole and any(math.isfinite(bound) and not bound.is_integer() for bound in bounds)):
        numbers = "whole numbers" if whole else "numbers"
        raise ConfigError(
            f"{option} is such as 4000:5000, two {numbers} of which either may be left out, the first not below 0 and not "
            f"above the second, not {text!r}"
        )
    return bounds


@contextlib.contextmanager
def _opened(path: str | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
    else:
        try:
            with Path(path).open("w", encoding="utf-8") as file:
                yield file
        except OSError as error:
            raise CommandError(f"--log: {path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[float], None]]:
    """Shows on a terminal which part of the jobs has ended."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield lambda part: None
        return
    told_s = time.monotonic()

    def tell(part: float) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > _TELL_EVERY_S:
            told_s = time.monotonic()
            print(f"{_LINE_AGAIN}stoker: {part:.0%} of the jobs have ended", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        print(_LINE_AGAIN, end="", file=sys.stderr, flush=True)


def _words(options: argparse.Namespace, document: dict[str, object]) -> str:
    return schedule_page.summary(f"{options.policy} with {options.mechanism}", document)
