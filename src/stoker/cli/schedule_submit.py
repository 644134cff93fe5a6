"""Submit a script to the scheduler; its job's number is printed.

The job runs as `stoker run --seed N --checkpoint ... -- SCRIPT`, with this environment, in this folder. With a profile
(`stoker schedule profile`) it is known what cores and memory do for it; without one it has its GPUs' share and nothing
more.
"""

import argparse
import getpass
import os
import sys
import time
from pathlib import Path

from stoker.cli.schedule_places import add_place, add_script, name_of, opened, script_of
from stoker.cli.schedule_profile import add_measuring, measure
from stoker.errors import CommandError, ConfigError
from stoker.schedule.job import Server
from stoker.schedule.matrix import Matrix
from stoker.schedule.profiles import read_profiles
from stoker.schedule.state import UNKNOWN_ITERATIONS, Wish
from stoker.units import parse_bytes

_MOST = 2**63 - 1
"""The largest number that SQLite keeps."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_place(parser)
    parser.add_argument("--gpus", metavar="N", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--profile", metavar="FILE", help="what `stoker schedule profile` wrote")
    parser.add_argument("--model", metavar="NAME", help="which of a profile's, if it has several")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure now and here what cores and memory do for it, before it is queued; that counts as its waiting",
    )
    add_measuring(parser.add_argument_group("with --measure"))
    parser.add_argument(
        "--iterations",
        metavar="N",
        type=int,
        default=UNKNOWN_ITERATIONS,
        help="of the whole job: policies that go by time left need it",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="as of `stoker run` (default: %(default)s)")
    parser.add_argument("--cache", metavar="SIZE", help="as of `stoker run`")
    parser.add_argument(
        "--to-its-end", action="store_true", help="the script cannot be stopped and go on: its first lease lasts to its end"
    )
    add_script(parser)


def run(options: argparse.Namespace) -> int:
    """Add the job to the state."""
    words = script_of(options)
    if words[0].endswith(".py") and not Path(words[0]).is_file():
        raise CommandError(f"there is no script {words[0]} in {os.getcwd()}")
    if not 1 <= options.gpus <= _MOST or not 1 <= options.iterations <= _MOST:
        raise ConfigError(f"--gpus and --iterations must be from 1 to {_MOST:,}")
    if options.measure and options.profile:
        raise ConfigError("--measure makes a profile, and --profile has one: give one of them")
    if options.cache:
        parse_bytes(options.cache, "--cache")
    profiled = None if options.measure else _matrix(options)
    state = opened(options, make=True)
    came_at = time.time()
    name, matrix = profiled or _measured(options, words)
    wish = Wish(
        tuple(words),
        os.getcwd(),
        dict(os.environ),
        matrix,
        options.gpus,
        options.iterations,
        getpass.getuser(),
        name,
        options.seed,
        not options.to_its_end,
        ("--cache", options.cache) if options.cache else (),
        came_at,
    )
    print(state.submit(wish))
    if not (Path(options.state) / "daemon.lock").exists():
        print(f"stoker: no daemon has run there yet: stoker schedule run --state {options.state}", file=sys.stderr)
    return 0


def _measured(options: argparse.Namespace, words: list[str]) -> tuple[str, Matrix]:
    matrix, _ = measure(options, words, lambda line: print(f"stoker: {line}", file=sys.stderr, flush=True))
    return name_of(words), matrix


def _matrix(options: argparse.Namespace) -> tuple[str, Matrix | None]:
    if options.profile is None:
        return "", None
    models = read_profiles(Path(options.profile), [Server("", 1, 3.0, 1.0)])
    if options.model is None and len(models) == 1:
        return next((name, one.matrix) for name, one in models.items())
    if options.model not in models:
        has = "several models" if options.model is None else f"no model {options.model!r}"
        raise ConfigError(f"{options.profile} has {has}: choose one of {', '.join(models)} by --model")
    return options.model, models[options.model].matrix
