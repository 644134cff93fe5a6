"""Cancel a job of the scheduler: it is ended, and does not come back."""

import argparse

from stoker.cli.schedule_places import add_place, opened


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_place(parser)
    parser.add_argument("job", metavar="JOB", nargs="+")


def run(options: argparse.Namespace) -> int:
    """Ask for it; the daemon does it at its next look."""
    state = opened(options)
    for job in options.job:
        if not state.ask_cancel(job):
            print(f"job {job} has ended already")
    return 0
