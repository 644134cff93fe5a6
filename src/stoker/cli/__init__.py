"""The `stoker` command: one file per subcommand; here is only who is called, and what becomes of an error.

Exit codes: 0 fine, 1 error (one line on stderr), 2 usage, 3 a stall above the one that was allowed. As of any command, 130
if Ctrl-C ended it, and 141 if nobody reads its output any more (`| head -1`).
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import stoker
from stoker import signs
from stoker.errors import StokerError
from stoker.run.script import BEFORE_CODE

_COMMANDS = (
    "analyze",
    "cache",
    "checkpoint",
    "doctor",
    "metrics",
    "plan",
    "report",
    "run",
    "schedule",
    "together",
    "top",
    "whatif",
    "worker",
)
_WITH_SCRIPT = ("analyze", "run")
_FLAGS = ("-h", "--help", "--debug", "--version", "--scratch")
"""Options without a value."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    signs.set_output()
    try:
        return _main(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="stoker",
        description="Keeps accelerators fed.",
        epilog="Start with `stoker analyze train.py`, then `stoker run train.py`. In a script: `from stoker import "
        "DataLoader` in place of torch's.",
    )
    parser.add_argument("--version", action="version", version=f"stoker {stoker.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in words if word not in _FLAGS), None)
    modules: dict[str, Any] = {}
    for name in [asked] if asked in _COMMANDS else _COMMANDS:  # what is not asked for is not loaded
        module = modules[name] = import_module(f"stoker.cli.{name}")
        summary = (module.__doc__ or "").splitlines()[0]
        formatter = argparse.RawDescriptionHelpFormatter
        # A short form of an option today may be that of two tomorrow.
        module.add_options(
            commands.add_parser(
                name, help=summary, description=module.__doc__, formatter_class=formatter, allow_abbrev=False
            )
        )
    script: list[str] = []
    if asked in _WITH_SCRIPT:
        begin = words.index(asked) + 1
        own, script = _split(words[begin:])
        words = words[:begin] + own
    options = parser.parse_args(words)
    options.script = script
    try:
        code: int = modules[options.command].run(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where an error can be told
        return code
    except BrokenPipeError:
        _leave_output()
        return 128 + signal.SIGPIPE
    except (StokerError, OSError) as error:
        if options.debug:
            raise
        print(f"stoker: {error}", file=sys.stderr)
        if not isinstance(error, StokerError):
            _leave_output()
        return 1


def _leave_output() -> None:
    """Drop output that could not be written, so that Python does not try again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own options, and the script with its own, among which there may be any."""
    number = 0
    while number < len(words) and words[number].startswith("-") and words[number] not in ("--", *BEFORE_CODE):
        number += 1 if words[number] in _FLAGS or "=" in words[number] else 2
    return list(words[:number]), list(words[number + (words[number : number + 1] == ["--"]) :])
