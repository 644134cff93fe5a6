"""Schedule submitted jobs on Slurm, until this is stopped.

Each lease of a job is one `sbatch` on a node with the CPUs, the memory and the GPUs that the job has now. A job that is
to have another share is saved, ended, and started again with that. All is written down in --state before it is done: a
daemon that was killed, or a Slurm that was, goes on from there. Nothing is cancelled that was not started here. Ctrl-C
stops the daemon, and no job.
"""

import argparse
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

from stoker.cli.schedule_places import add_place, opened
from stoker.errors import CommandError, ConfigError
from stoker.host.locks import holder_of, open_lock, take
from stoker.schedule.daemon import Daemon
from stoker.schedule.mechanisms import MECHANISMS
from stoker.schedule.queue import POLICIES
from stoker.schedule.rules import Rules
from stoker.schedule.slurm import Slurm

_LOOK_S = 1.0
_PATIENCE_S = 0.5
"""Who looks whether there is a daemon shares its lock for a moment."""
_FIRST_COST_S = 5.0
"""What a new lease is held to cost until one was seen."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_place(parser)
    parser.add_argument(
        "--partition", metavar="NAME", default="", help="Slurm's partition, which should be the scheduler's alone"
    )
    parser.add_argument("--account", metavar="NAME", default="", help="the account that `sbatch` is told")
    parser.add_argument("--policy", choices=POLICIES, default="fifo", help="who is first (default: %(default)s)")
    parser.add_argument(
        "--mechanism", choices=[*MECHANISMS, "opt"], default="tune", help="who gets what (default: %(default)s)"
    )
    parser.add_argument(
        "--round", metavar="S", type=float, default=60.0, help="seconds between decisions (default: %(default)g)"
    )
    parser.add_argument(
        "--switch-cost",
        metavar="S",
        type=float,
        help="what a job loses by a new lease; without it that is measured, and jobs' rates are, too",
    )
    parser.add_argument(
        "--core",
        metavar="F",
        type=float,
        default=1.0,
        help="what one CPU of Slurm's is of a core: 0.5 where it counts threads",
    )
    parser.add_argument("--until-idle", action="store_true", help="end when no job is left")


def run(options: argparse.Namespace) -> int:
    """Look, decide and act, again and again."""
    if not 0 < options.round < float("inf") or not 0 < options.core < float("inf"):
        raise ConfigError("--round and --core must be more than 0")
    if options.switch_cost is not None and not 0 <= options.switch_cost < float("inf"):
        raise ConfigError("--switch-cost must not be below 0")
    state = opened(options, make=True)
    lock = open_lock(Path(options.state) / "daemon.lock", os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + _PATIENCE_S
    while not take(lock, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            raise CommandError(f"{options.state} has a daemon already: {holder_of(lock)}")
        time.sleep(0.01)
    rules = Rules(
        options.policy,
        options.mechanism,
        options.round,
        _FIRST_COST_S if options.switch_cost is None else options.switch_cost,
    )
    slurm = Slurm(options.partition, options.account)
    daemon = Daemon(state, slurm, rules, core=options.core, measures=options.switch_cost is None, tell=_tell)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _tell(f"schedules on {len(slurm.nodes() or [])} servers, state in {state.folder}")
    while daemon.look() or not options.until_idle:
        time.sleep(min(_LOOK_S, options.round / 4))
    return 0


def _tell(words: str) -> None:
    print(f"stoker: {words}", file=sys.stderr, flush=True)
