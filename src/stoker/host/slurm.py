"""The hosts of a step of a Slurm job, as `srun` tells each of its tasks."""

import itertools
import os
import re
from collections.abc import Iterator

_FIRST_PORT, _PORTS = 16384, 16384
"""Below those that Linux gives to programs that ask for any."""
_PART = re.compile(r"\[([^\[\]]*)\]")


def step_nodes() -> list[str]:
    """The names of the hosts; none if `srun` did not start this process."""
    return nodes(os.environ.get("SLURM_STEP_NODELIST", ""))


def nodes(text: str) -> list[str]:
    """The names in a list such as `node[01-03,7],gpu5`."""
    return [name for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text) for name in _names(part)]


def _names(part: str) -> Iterator[str]:
    pieces = _PART.split(part)  # fixed, ranges, fixed, ranges, ... fixed
    choices = [list(_numbers(piece)) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    for one in ranges.split(","):
        first, _, last = one.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            yield one
            continue
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1))


def port() -> int:
    """A port that all tasks of a job agree on, and that another job probably does not have."""
    number = os.environ.get("SLURM_JOB_ID", "")
    return _FIRST_PORT + (int(number) if number.isdigit() else 0) % _PORTS
