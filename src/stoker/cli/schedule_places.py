"""What commands of the scheduler have in common: where its state is, and which script is meant."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from stoker.errors import CommandError
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


def add_script(parser: argparse.ArgumentParser) -> None:
    """Declare the end of the command line: a script, or a module, with arguments of its own."""
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE [ARGS...]", help="instead of SCRIPT")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGS...]")


def script_of(options: argparse.Namespace) -> list[str]:
    """The script's words, as `stoker run` takes them."""
    if options.module is not None:
        words = ["-m", *options.module]
    else:
        words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not words or words == ["-m"]:
        raise CommandError("no script was given: the command ends with SCRIPT [ARGS...]")
    return words


def name_of(words: Sequence[str]) -> str:
    """What a script is called."""
    return words[1] if words[0] == "-m" and len(words) > 1 else Path(words[0]).stem
