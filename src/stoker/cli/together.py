"""Start jobs that read the same data when each is best: the later ones read what the first has cached.

A JOB is a command line in one word, as it would stand after `stoker run`, or a .toml with `command`, `epochs` and `name`.
All are started as by `stoker run --seed N --cache SIZE`, with one order of samples and one cache. Each start waits for the
progress of an earlier job, or for its end. What is not known of the jobs yet is measured while one of them begins its work:
the others are started, too, ended after a moment, and started again when it is best. Do not use what those write before.
What they have read stays in the cache.

With --join one JOB is started beside a job that runs already: the one with this PID, or the best of all that read the same.
docs/together.md has more, and how to use it with Slurm and with `at`.
"""

import argparse
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from stoker.cli import places
from stoker.decide.stagger import OBJECTIVES
from stoker.errors import CommandError, ConfigError
from stoker.extras import CACHE
from stoker.host.headroom import headroom_bytes
from stoker.profile import write_text
from stoker.report.together import against, duration, plot
from stoker.report.together_page import check, together_page
from stoker.run.together.catalogue import Catalogue
from stoker.run.together.conducting import Real, conduct
from stoker.run.together.jobs import read_jobs
from stoker.run.together.joining import join
from stoker.run.together.learning import KnownValues, Learning, leader_of, recall, unknown
from stoker.run.together.planning import TogetherPlan, make_plan, ready_part
from stoker.run.together.running import Running, ending
from stoker.units import format_bytes, parse_bytes

_PART_OF_MEMORY = 2
_ENDING = signal.SIGTERM, signal.SIGHUP
_NOT_AS_SAID = 0.5
"""By so many epochs a job did other than it was planned for."""
LINE_AGAIN = "\r\x1b[K"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="a command line in one word, or a .toml")
    parser.add_argument(
        "--join",
        metavar="auto|PID",
        help="start one JOB beside a job that runs already: this one, or the best that there is",
    )
    parser.add_argument(
        "--cache",
        metavar="SIZE",
        help="of the cache that all share (8GB, 512MiB; default: half of the memory that is free)",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the order that all share (default: 0)")
    parser.add_argument("--epochs", metavar="N,N...", help="of each job, where its command line does not say --epochs N")
    parser.add_argument(
        "--objective",
        choices=list(OBJECTIVES),
        default="balanced",
        help="balanced: the least sum of the jobs' times within 1 %% of the least makespan (default); makespan: the least "
        "of all; times: the least sum of the jobs' times",
    )
    parser.add_argument(
        "--iterations", metavar="K", type=int, default=100, help="for each state that is measured, at most (default: 100)"
    )
    parser.add_argument(
        "--offset",
        metavar="S",
        type=float,
        help="let B begin so many seconds after A (before it, if negative), instead of at the best moment; 0: all at once",
    )
    parser.add_argument("--again", action="store_true", help="measure, even if all is known from before")
    parser.add_argument("--dry-run", action="store_true", help="measure and plan, and start nothing")
    parser.add_argument(
        "--print-delay",
        action="store_true",
        help="plan only, and print the delay of the last start in whole seconds, for a scheduler",
    )
    parser.add_argument("--json", metavar="FILE", help="write the plan, and what happened, as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page, too, with the curve and what happened")


def run(options: argparse.Namespace) -> int:
    """Measure what is missing, plan, start, watch, and tell."""
    CACHE.check()
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)  # as for Ctrl-C: no job is left behind
    if options.iterations < 1:
        raise ConfigError("--iterations must be more than 0")
    if options.html:
        check()
        places.check_page(Path(options.html))
    if options.json:
        places.check_output(Path(options.json), "--json")
    cache_bytes = parse_bytes(options.cache, "--cache") if options.cache else headroom_bytes() // _PART_OF_MEMORY
    jobs = read_jobs(options.jobs, options.epochs, first=0 if options.join is None else 1)
    if options.join is None and len(jobs) < 2:
        raise CommandError("two jobs are needed, or --join with one")
    if options.join is None and len({job.name for job in jobs}) < len(jobs):
        raise CommandError("each job needs a name of its own")
    catalogue = Catalogue()
    for job in jobs:
        if not job.says_epochs:
            _say(f"{job.name} is taken to have 1 epoch: its command line names none (--epochs)")
    if options.join is not None:
        if len(jobs) > 1:
            raise CommandError("--join starts one job beside another that runs: give one")
        if options.offset is not None:
            raise CommandError("--offset is for jobs that are started together, and not for --join")
        plan, partner = join(jobs[0], options.join, catalogue, options.objective, _tell)
        _clear()
        return _carry_out(options, plan, partner.seed, partner.cache_bytes, {0: partner.run})
    starts = _starts(options, len(jobs))
    known, leader = recall(catalogue, jobs), leader_of(jobs)
    missing = unknown(KnownValues({}, {}) if options.again else known, len(jobs), leader)
    runs: list[Running] = []
    with ending(runs):
        if missing:
            learning = Learning(jobs, missing, leader, runs)
            is_plan_only = options.dry_run or options.print_delay or starts is not None
            learning.start(options.seed, cache_bytes, quietly=is_plan_only)
            try:
                known = learning.measure(known, catalogue, options.iterations, _tell if is_plan_only else _note)
            finally:
                _clear()
            _say(learning.said)
            if not is_plan_only:
                going, running = learning.go_on(known, options.objective)
                return _carry_out(options, going.plan, options.seed, cache_bytes, running)
    solo = known.solos
    ready = ready_part(solo[0].data, solo[0].samples * solo[0].sample_bytes)
    plan = make_plan(jobs, solo, known.beside, cache_bytes, objective=options.objective, ready=ready, starts_s=starts)
    return _carry_out(options, plan, options.seed, cache_bytes, {})


def _starts(options: argparse.Namespace, count: int) -> list[float] | None:
    """The starts that --offset names."""
    starts = None if options.offset is None else [0.0] * count
    if starts and options.offset:
        if count > 2 or not math.isfinite(options.offset):
            raise ConfigError("--offset is a number of seconds for two jobs, or 0 for more")
        starts[int(options.offset > 0)] = abs(options.offset)
    return starts


def _carry_out(
    options: argparse.Namespace, plan: TogetherPlan, seed: int, cache_bytes: int, running: Mapping[int, Running]
) -> int:
    """Show the plan, and do as it says."""
    if options.print_delay:
        last, since = plan.starts[-1], "the first" if plan.elapsed_s is None else "now"
        _say(f"the last to be started is {plan.jobs[last.number].name}, {duration(max(0.0, last.delay_s))} after {since}")
        print(max(0, round(last.delay_s)))
        return 0
    _show(plan)
    real = None
    if not options.dry_run:
        real = conduct(plan, seed, cache_bytes, _tell, running)
        _clear()
        report(plan, real)
    _write(options, plan, real)
    return 0 if real is None or real.is_fine else 1


def _show(plan: TogetherPlan) -> None:
    outcome = plan.outcome
    if len(plan.jobs) == 2:
        curve = dict(plan.curves)[plan.order[0]]
        later = plan.jobs[ord(plan.order[1]) - ord("A")].name
        first = plan.jobs[ord(plan.order[0]) - ord("A")].name
        print(f"Makespan in seconds, by how much later {later} begins than {first}:\n")
        width = min(100, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 80
        print(plot(curve, plan.offset_s, width=width) + "\n")
    for number, start in sorted(enumerate(outcome.starts_s), key=lambda one: one[1]):
        job = plan.jobs[number]
        print(f"  {job.name}: first batch at {duration(start)}, takes {duration(outcome.times_s[number])}")
    print(
        f"Predicted: {duration(outcome.makespan_s)} for all, {duration(sum(outcome.times_s))} of the jobs' time; at once "
        f"{duration(plan.simultaneous_s)}, one after the other {duration(plan.sequential_s)}."
    )
    held = "all of the data" if plan.cached >= 1 else f"{plan.cached:.0%} of the data".replace("%", " %")
    already = f", {plan.ready:.0%} of it are there already".replace("%", " %") if plan.ready >= 0.005 else ""
    print(f"The cache holds {held}{already}.", flush=True)


def report(plan: TogetherPlan, real: Real) -> None:
    """Tell what happened beside what was predicted."""
    predicted = plan.outcome
    for number, job in enumerate(real.jobs):
        if job.code:
            print(f"  {job.name}: ended with code {job.code} after {job.passes:.2f} of {plan.jobs[number].epochs} epochs")
        elif job.first_s is None:
            print(f"  {job.name}: ended without a batch")
        else:
            took_s = job.end_s - job.first_s
            expected_s = predicted.times_s[number]
            print(
                f"  {job.name}: first batch at {duration(job.first_s)}, took {duration(took_s)} "
                f"({against(took_s, expected_s)} against the prediction)"
            )
            if job.code == 0 and abs(job.passes - (epochs := plan.jobs[number].epochs)) >= _NOT_AS_SAID:
                print(
                    f"  {job.name}: passed its data {job.passes:.3g} times, planned for were {epochs}: "
                    "say how many epochs it has (--epochs)"
                )
    if real.is_fine:
        print(
            f"Really: {duration(real.makespan_s)} for all, predicted were {duration(predicted.makespan_s)} "
            f"({against(real.makespan_s, predicted.makespan_s)}). From storage came "
            f"{format_bytes(sum(job.bytes_storage for job in real.jobs))} of {format_bytes(plan.dataset_bytes)}."
        )
    else:
        print(f"Really: {duration(real.makespan_s)} until the last one ended.")


def _write(options: argparse.Namespace, plan: TogetherPlan, real: Real | None) -> None:
    document = plan.document() | ({} if real is None else {"real": real.document()})
    if options.json:
        write_text(options.json, json.dumps(document, indent=2) + "\n")
    if options.html:
        points = [[] for _ in plan.jobs] if real is None else [list(job.points) for job in real.jobs]
        write_text(options.html, together_page(document, dict(plan.curves), plan.lines, points))


def _say(words: str) -> None:
    print(f"stoker: {words}", file=sys.stderr)


def _tell(words: str) -> None:
    """Tell what is going on, in one line of a terminal. The last column stays free for a job that writes behind it."""
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        width = max(1, shutil.get_terminal_size().columns - 2)
        print(f"{LINE_AGAIN}{f'stoker: {words}'[:width]} ", end="", file=sys.stderr, flush=True)


def _note(words: str) -> None:
    """The same in lines of their own, where jobs write between them."""
    if sys.stderr.isatty():
        _say(words)


def _clear() -> None:
    if sys.stderr.isatty():
        print(LINE_AGAIN, end="", file=sys.stderr, flush=True)
