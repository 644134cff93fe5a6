"""Share a cluster by sensitivity: jobs that need cores and memory get them from jobs that do not.

`simulate` plays a trace, or random arrivals, through the scheduler in seconds. docs/schedule.md explains all of it.
"""

import argparse
from importlib import import_module
from typing import Any

_ACTIONS = ("simulate", "profile", "run", "submit", "ls", "cancel", "why")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name in _ACTIONS:
        module = _module(name)
        module.add_options(
            actions.add_parser(
                name,
                help=(module.__doc__ or "").splitlines()[0],
                description=module.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
        )


def run(options: argparse.Namespace) -> int:
    """Do what the action says."""
    code: int = _module(options.action).run(options)
    return code


def _module(action: str) -> Any:
    return import_module(f"stoker.cli.schedule_{action}")
