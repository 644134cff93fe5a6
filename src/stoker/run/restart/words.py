"""What is said to the user: one line each, on stderr."""

import sys
from typing import NoReturn

LINES = """\
stoker: in the script itself a few lines do it:
    checkpointer = stoker.Checkpointer("checkpoints", model=model, optimizer=optimizer, loader=loader)
    done = checkpointer.restore() or 0  # the number of updates before; right before the loop
    ...
    checkpointer.step()                 # the last line of the loop's body"""

AGAIN = "make room there, and start it again: nothing was trained since"


def say(words: str) -> None:
    """One line for the user, beside what the script prints."""
    print(f"stoker: {words}", file=sys.stderr, flush=True)


def refuse(words: str) -> NoReturn:
    """Say why the script cannot go on, and end it. Nothing was changed."""
    say(words)
    sys.exit(1)


def say_refused(why: str) -> None:
    """Say why a script gets no checkpoints; it runs on."""
    say(f"--checkpoint is refused, and the script runs on without: {why}")
    print(LINES, file=sys.stderr, flush=True)
