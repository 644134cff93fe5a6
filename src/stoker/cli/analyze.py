"""Measure where the time of a training script goes, and what would change it.

SCRIPT is run unchanged, as by `stoker run`, until its first loader that shuffles is iterated. Then its own loop is given
batches that are on the device already, cached ones and cold ones, in turn; in between workers and storage are measured by
themselves. When all is known the script is ended. It takes a minute or two, and no root.

Written are profile.json and plan.toml; a profile that was there becomes profile.json.bak, and so does a plan that you have
changed. Exit code 3: the loop waits for data more than --fail-above says.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from stoker.cache.shelf import Shelf
from stoker.cli import places
from stoker.decide.planner import decide, render
from stoker.errors import CommandError, ConfigError
from stoker.profile import Profile, write_text
from stoker.report.html import charts_library, html_report
from stoker.report.text import text_report
from stoker.run.script import command, environment

STALLED = 3
LINE_AGAIN = "\r\x1b[K"
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument(
        "--json", metavar="FILE", default="profile.json", help="where to write the profile (default: %(default)s)"
    )
    parser.add_argument(
        "--plan", metavar="FILE", help="where to write the plan (default: plan.toml, or X.plan.toml for X.json)"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page, too, as `stoker report` does")
    parser.add_argument(
        "--iterations", metavar="N", type=int, default=100, help="of the loop, for each phase (default: 100)"
    )
    parser.add_argument(
        "--cache",
        metavar="FRACTION",
        type=float,
        default=0.0,
        help="how much of the data is cached in the cold phase (0 to 1)",
    )
    parser.add_argument(
        "--loader", metavar="K", type=int, help="the K-th loader that is iterated, instead of the first that shuffles"
    )
    parser.add_argument(
        "--fail-above", metavar="PCT", type=float, help="exit code 3 if the loop waits longer for data (per cent)"
    )
    parser.add_argument(
        "--time", metavar="S", type=float, default=6.0, help="seconds for each phase, about (default: %(default)g)"
    )
    parser.usage = "stoker analyze [OPTIONS] [--] SCRIPT [ARGS...]"
    parser.set_defaults(script=[])


def run(options: argparse.Namespace) -> int:
    """Run the script under analysis, and report."""
    if not 0 <= options.cache <= 1:
        raise ConfigError(f"--cache is a fraction from 0 to 1, not {options.cache:g}")
    if options.iterations < 1 or options.time <= 0 or (options.loader is not None and options.loader < 1):
        raise ConfigError("--iterations, --time and --loader must be more than 0")
    if options.html:
        charts_library()  # known to be there before the minutes that follow
    target = Path(options.json)
    plan = Path(options.plan) if options.plan else places.plan_beside(target)
    places.check_profile(target)
    places.check_plan(plan)
    if options.html:
        places.check_page(Path(options.html))
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        made = Path(folder) / "profile.json"
        settings = {
            "profile": str(made),
            "script": shlex.join(options.script),
            "iterations": options.iterations,
            "cached": options.cache,
            "loader": options.loader,
            "phase_s": options.time,
        }
        code = _run_script(options.script, {"analyze": settings})
        if not made.exists():
            return _explain(code, made)
        profile = Profile.load(made)
    before = places.set_aside(target, plan)
    profile.save(target)
    decision = decide(profile)
    write_text(plan, render(decision.plan, decision.reasons, f"made of {target.name} by stoker analyze"))
    places.mark(plan, target)
    if options.html:
        write_text(options.html, html_report(profile, str(plan)))
    is_terminal = sys.stdout.isatty()
    width = min(100, shutil.get_terminal_size().columns) if is_terminal else 80
    print(text_report(profile, str(plan), width=width, colour=is_terminal and "NO_COLOR" not in os.environ))
    written = ", ".join(map(str, (target, plan, *filter(None, [options.html]))))
    kept = f" What was there before: {', '.join(map(str, before))}." if before else ""
    print(f"Written: {written}.{kept} Ask on: stoker whatif {shlex.quote(str(target))} --cores 4,8 --cache 0.5")
    stall = profile.stalls.prep + profile.stalls.fetch
    if options.fail_above is not None and 100 * stall > options.fail_above:
        print(
            f"stoker: the loop waits for data during {stall:.1%} of its time, more than {options.fail_above:g} %",
            file=sys.stderr,
        )
        return STALLED
    return 0


def _run_script(script: list[str], settings: dict[str, object]) -> int:
    """Run it to its end, which Ctrl-C brings about in both processes; other signals that end are passed on to it."""
    words = command(script)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *_PASSED_ON)}
    try:
        process = subprocess.Popen(
            words,
            env=environment(settings, os.environ),
            preexec_fn=lambda: [signal.signal(number, handler) for number, handler in before.items()],
        )
        for number in _PASSED_ON:
            if before[number] is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, lambda number, _: process.send_signal(number))
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):
            Shelf().sweep()  # what a script that was killed has left


def _explain(code: int, made: Path) -> int:
    """The script ended by itself: its own exit code and words, and one line of ours."""
    failed = Path(f"{made}.failed")
    if code in (-signal.SIGINT, 128 + signal.SIGINT):
        print(f"{LINE_AGAIN if sys.stderr.isatty() else ''}stoker: interrupted, nothing was measured", file=sys.stderr)
        return 128 + signal.SIGINT
    if code:
        print(f"stoker: nothing was measured: the script ended with code {code}", file=sys.stderr)
        return code if code > 0 else 128 - code
    word = json.loads(failed.read_text())["word"] if failed.exists() else "the script never imported torch"
    raise CommandError(f"nothing was measured: {word}")
