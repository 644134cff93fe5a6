"""The rank of this process in a distributed run, as its launcher said in the environment.

torchrun and similar launchers set RANK, WORLD_SIZE and LOCAL_RANK. Slurm's srun numbers the tasks of a step, but these may
be separate runs (a search). So the number of a task is only a name, and a hint that other processes may have to agree:
nothing that a run does alone may depend on it. Values that make no sense are ignored.
"""

import os


def rank() -> int | None:
    """The number of this process among all of its run; None if it was not started as one of several."""
    found = _number("RANK")
    return _number("SLURM_PROCID") if found is None and _tasks() > 1 else found


def world() -> int:
    """The number of processes that this run may have."""
    return _number("WORLD_SIZE") or (max(1, _tasks()) if _number("RANK") is None else 1)


def hosts() -> int | None:
    """The number of hosts that this run has; None if no launcher has said so."""
    return _number("GROUP_WORLD_SIZE") or (_number("SLURM_STEP_NUM_NODES") if _tasks() > 1 else None)


def local_rank() -> int | None:
    """The number of this process among those of its run on this host, if a launcher has set it."""
    return _number("LOCAL_RANK")


def local_world() -> int | None:
    """How many processes of this run are on this host, if a launcher has set it."""
    return _number("LOCAL_WORLD_SIZE")


def _tasks() -> int:
    return _number("SLURM_STEP_NUM_TASKS") or 1  # a batch script is no task, and has no such number


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
