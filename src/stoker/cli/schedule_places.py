"""Where a live scheduler has its state, for all commands that speak with it."""

import argparse
import os
from pathlib import Path

from stoker.schedule.state import State

_PLACE = "STOKER_SCHEDULE"


def add_place(parser: argparse.ArgumentParser) -> None:
    """Declare the option that says where."""
    parser.add_argument(
        "--state",
        metavar="DIR",
        default=os.environ.get(_PLACE) or str(Path.home() / ".stoker-schedule"),
        help=f"the scheduler's folder, which all nodes see (default: ${_PLACE}, or ~/.stoker-schedule)",
    )


def opened(options: argparse.Namespace, *, make: bool = False) -> State:
    """The state in that folder."""
    return State(Path(options.state), make=make)
