"""Which process of a distributed run this one is, as its launcher said in the environment.

torchrun and those like it set RANK, WORLD_SIZE and LOCAL_RANK. Under Slurm's srun the tasks of a step are numbered, too;
they may be runs of their own (a search), so nothing that a run does alone may depend on the number of a task: it is a name,
and a hint that others may have to agree. What makes no sense was not said.
"""

import os


def rank() -> int | None:
    """The number of this process among all of its run; None if it was not started as one of several."""
    found = _number("RANK")
    return _number("SLURM_PROCID") if found is None and _tasks() > 1 else found


def world() -> int:
    """How many processes there may be in this run."""
    return _number("WORLD_SIZE") or (max(1, _tasks()) if _number("RANK") is None else 1)


def local_rank() -> int | None:
    """The number of this process among those of its run on this host, if a launcher of runs has said so."""
    return _number("LOCAL_RANK")


def _tasks() -> int:
    return _number("SLURM_STEP_NUM_TASKS") or 1  # which a batch script does not have: it is no task


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
