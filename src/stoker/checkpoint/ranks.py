"""The processes of a distributed run agree on which checkpoint counts, and on when to stop.

One process of each node writes. A process group of our own (gloo, on the CPU) keeps messages apart from the training's.
"""

import json
from typing import Any, Protocol

import torch
import torch.distributed

from stoker.host import ranks
from stoker.internals.ranks import rank_and_world, words_apart


class CheckpointRanks(Protocol):
    """The processes of a run."""

    rank: int
    node: int | None
    """The number of this process's node, if there are several."""
    is_writer: bool
    is_alone: bool
    group: Any
    """The process group, for callers that send messages of their own; None for a single process."""

    def exchange(self, value: Any) -> list[Any]:
        """Send a value to all processes. Returns all values by rank, in JSON's terms. All must call it at the same step."""

    def any_wants_to_stop(self, here: bool) -> bool:
        """Whether a process wanted to stop at the step before. All must call it at every step, until it is true."""

    def part(self) -> None:
        """Leave the group. All must have received all messages."""


class OneProcess:
    """The only process."""

    rank: int = 0
    node: int | None = None
    is_writer: bool = True
    is_alone: bool = True
    group: Any = None

    def exchange(self, value: Any) -> list[Any]:
        """Returns only our own value."""
        return [json.loads(json.dumps(value))]

    def any_wants_to_stop(self, here: bool) -> bool:
        """Whether this process wants to stop."""
        return here

    def part(self) -> None:
        """Nothing to do for a single process."""


class OneOfSeveral:
    """One of the processes that `torch.distributed` knows."""

    is_alone: bool = False
    node: int | None

    def __init__(self) -> None:
        self.rank, self.world = rank_and_world()
        self.group = words_apart()
        self._flag = torch.zeros((), dtype=torch.uint8)
        self._under_way: Any = None
        # The ranks of a node are consecutive, and the first of them writes. Nodes may differ in size.
        own = ranks.local_rank()
        local = self.exchange(self.rank if own is None else own)
        self.is_writer = local[self.rank] == 0
        self.node = local[: self.rank + 1].count(0) - 1 if local.count(0) > 1 else None

    def exchange(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([len(text)])
        lengths = [torch.zeros_like(length) for _ in range(self.world)]
        torch.distributed.all_gather(lengths, length, group=self.group)
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(text)] = text
        texts = [torch.zeros_like(padded) for _ in range(self.world)]
        torch.distributed.all_gather(texts, padded, group=self.group)
        return [json.loads(text[: int(length)].numpy().tobytes()) for text, length in zip(texts, lengths, strict=True)]

    def any_wants_to_stop(self, here: bool) -> bool:
        """Ask for this step, and return the answer for the step before, which has arrived already."""
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = None
            if self._flag:
                return True  # all get the same answer, and ask no more: a process may end now without an open question
        self._flag.fill_(here)
        self._under_way = torch.distributed.all_reduce(
            self._flag, torch.distributed.ReduceOp.MAX, group=self.group, async_op=True
        )
        return False

    def part(self) -> None:
        """End the group's threads. A thread that frees a tensor while the interpreter ends would abort the process."""
        group, self.group = self.group, None
        torch.distributed.destroy_process_group(group)


def ranks_here() -> CheckpointRanks:
    """The processes of this run."""
    _, world = rank_and_world()
    return OneOfSeveral() if world > 1 else OneProcess()
