"""Measure where the time of a training script goes, and what would change it.

SCRIPT is run unchanged, as by `stoker run`, until it makes its first update. Then its own loop is given batches that are
on the device already, cached ones and cold ones, in turn; in between workers and storage are measured by themselves. When
all is known the script is stopped. It takes a minute or two, with the default --time at most three, and no root. Where the
loop waits for preparing on a GPU host, it is also measured what the GPU could prepare, which takes a minute more. A script
that ends before that is started again for what is missing, at most three times.

The script trains on distorted data meanwhile: what it writes (checkpoints, logs) means nothing. With --scratch it sees its
directory as it is, and what it writes there is thrown away.

Written are profile.json and plan.toml; a profile that was there becomes profile.json.bak, and so does a plan that you have
changed. Exit code 3: the loop waits for data more than --fail-above says.
"""

import argparse
import os
import platform
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from stoker.cli import places
from stoker.cli.shown import Shown
from stoker.decide.offload import Remote
from stoker.decide.planner import decide, render
from stoker.errors import CommandError, ConfigError
from stoker.profile import write_text
from stoker.report.html import charts_library, html_report
from stoker.report.offload import offload_lines
from stoker.report.text import text_report
from stoker.run import scratch
from stoker.run.measured import Measured
from stoker.run.profiling import profile_of
from stoker.run.progress import AnalysisFollower
from stoker.run.scratch import folders_of, place_for
from stoker.run.script import command
from stoker.run.starts import measure
from stoker.wire.addresses import parse_addresses
from stoker.wire.secret import shared_secret
from stoker.wire.tls import from_environment

STALLED = 3


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
        "--open",
        action="store_true",
        help="open the page in a browser now: it shows how far it is (default: X.html for X.json)",
    )
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
        "--peers",
        metavar="HOST:PORT,...",
        help="measure, too, how fast other hosts give samples from their caches: jobs with this data and these peers run "
        "there now, and share a secret (docs/peers.md)",
    )
    parser.add_argument(
        "--offload",
        metavar="tcp://HOST:PORT",
        help="measure, too, what workers on other hosts prepare that dial this address (`stoker worker`), and say what "
        "part of the work should go there (docs/offload.md)",
    )
    parser.add_argument(
        "--loader",
        metavar="K",
        type=int,
        help="the K-th loader that the script iterates, instead of the one whose batches precede updates",
    )
    parser.add_argument(
        "--scratch",
        action="store_true",
        help="run the script over an overlay of its directory: what it writes there is thrown away",
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
    if options.iterations < 1 or not 0 < options.time < float("inf") or (options.loader is not None and options.loader < 1):
        raise ConfigError("--iterations, --time and --loader must be more than 0")
    if options.fail_above is not None and not 0 <= options.fail_above < 100:  # at 100 it could never fail
        raise ConfigError(f"--fail-above is a percentage from 0 to below 100, not {options.fail_above:g}")
    if options.peers is not None:
        parse_addresses(options.peers, least=1)
        shared_secret()
        from_environment()
    if options.offload is not None:
        from stoker.remote.address import check

        check(options.offload)
    if options.open and not options.html:
        options.html = str(Path(options.json).with_suffix(".html"))
    if options.html:
        charts_library()  # known to be there before the minutes that follow
    target = Path(options.json)
    plan = Path(options.plan) if options.plan else places.plan_beside(target)
    places.check_differ(target, plan, *([Path(options.html)] if options.html else []))
    places.check_profile(target)
    places.check_plan(plan)
    if options.html:
        places.check_page(Path(options.html))
    script = shlex.join(options.script)
    folders = folders_of(options.script, Path.cwd()) if options.scratch else []
    words = command(options.script)
    with tempfile.TemporaryDirectory(prefix="stoker-", dir=place_for(folders, tempfile.gettempdir())) as folder:
        if options.scratch:
            scratch.check(folder, folders)
            words = scratch.command(folder, folders, words)
        else:
            print(
                f"stoker: while it is analysed, {script} trains on distorted data: do not use what it writes meanwhile "
                "(--scratch throws that away)",
                file=sys.stderr,
            )
        measured, progress = Path(folder) / "measured.json", Path(folder) / "progress.json"
        settings = {
            "measured": str(measured),
            "progress": str(progress),
            "iterations": options.iterations,
            "cached": options.cache,
            "loader": options.loader,
            "peers": options.peers or "",
            "offload": options.offload or "",
            "phase_s": options.time,
        }
        with Shown(
            AnalysisFollower(progress, measured, options.time), script, Path(options.html) if options.open else None
        ) as shown:
            code, found = measure(words, settings, shown)
            shown.clear()
            if code or found is None or not found.is_enough:
                return _explain(code, found, options.loader)
            profile = profile_of(found, script, platform.node(), time.strftime("%Y-%m-%d %H:%M"))
            before = places.set_aside(target, plan)
            profile.save(target)
            decision = decide(profile)
            write_text(plan, render(decision.plan, decision.reasons, f"made of {target.name} by stoker analyze"))
            places.mark(plan, target)
            if options.html:
                write_text(options.html, html_report(profile, str(plan)))
            shown.reported()
    is_terminal = sys.stdout.isatty()
    width = min(100, shutil.get_terminal_size().columns) if is_terminal else 80
    print(text_report(profile, str(plan), width=width, colour=is_terminal and "NO_COLOR" not in os.environ))
    if options.offload is not None and found.remote:
        speed, ways = profile.speed, {part: Remote(*remote) for part, remote in found.remote.items()}
        print("\n".join(offload_lines(profile.rates.gpu, min(speed.cold or speed.cached, speed.cached), ways)))
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


def _explain(code: int, found: Measured | None, wanted: int | None) -> int:
    """No profile can be made: the script's own exit code and words, or one line of ours."""
    if code in (-signal.SIGINT, 128 + signal.SIGINT):
        print("stoker: interrupted, nothing was measured", file=sys.stderr)
        return 128 + signal.SIGINT
    if code:
        print(f"stoker: nothing was measured: the script ended with code {code}", file=sys.stderr)
        return code if code > 0 else 128 - code
    if found is None:
        word = "the script never imported torch"
    elif found.word:
        word = found.word
    elif not found.loaders:
        word = "the script iterated no DataLoader"
    elif wanted is not None and wanted > found.loaders:
        word = f"--loader {wanted} asks for more loaders than the {found.loaders} that the script iterated"
    else:
        done = ", ".join(found.parts) or "nothing"
        word = f"the script ended before the analysis did; measured were: {done}. Give it more iterations to run"
    raise CommandError(f"nothing was measured: {word}")
