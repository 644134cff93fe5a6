"""Running a policy where the order is known: in the process that orders batches, ahead of the workers.

Noting uses in shared memory would make every reader write, so workers only get and put. What to keep, and what to forget
for it, is decided when a batch is ordered, with the ledger that the simulator uses. The decision travels with the order.
"""

from collections.abc import Callable, Sequence

from stoker.cache.ledger import Ledger
from stoker.cache.policy import make_policy
from stoker.cache.replay import Foresight, far_enough
from stoker.order import Ids

KeptAndForgotten = tuple[list[int], list[int]]
"""Samples to keep of those ordered, and samples to forget."""


class Steering:
    """A policy, and the ledger of what it has decided."""

    def __init__(
        self,
        policy: str,
        capacity_bytes: int,
        sizes: Callable[[Sequence[int]], Sequence[int]],
        epoch_ids: Callable[[int], Ids] | None,
        readers: int,
    ) -> None:
        self._epoch_ids = epoch_ids
        knows_order = epoch_ids is not None and policy == "reuse-distance"
        self._foresight = Foresight(self._ids_of, far_enough(readers)) if knows_order else None
        next_use = None if self._foresight is None else self._foresight.next_use
        self._ledger = Ledger(capacity_bytes, make_policy(policy, next_use))
        self._sizes = sizes

    def follow(self, epoch_ids: Callable[[int], Ids] | None) -> None:
        """What is used in an epoch is known from here on: each iterator has a route of its own."""
        self._epoch_ids = epoch_ids

    def _ids_of(self, epoch: int) -> Ids:
        assert self._epoch_ids is not None
        return self._epoch_ids(epoch)

    def begin(self, epoch: int, consumed: int) -> None:
        """An epoch begins, or goes on after so many of its samples."""
        if self._foresight is not None:
            self._foresight.begin(epoch)
            self._foresight.advance(consumed)

    def decide(self, ids: Sequence[int]) -> KeptAndForgotten:
        """Decide on the samples that are ordered next: which are kept, and which go for them."""
        kept: list[int] = []
        evicted: list[int] = []
        for key, size in zip(ids, self._sizes(ids), strict=True):
            if self._foresight is not None:
                self._foresight.advance()
            if not self._ledger.look(key):
                admission = self._ledger.admit(key, size)
                evicted += admission.evicted
                if admission.kept:
                    kept.append(key)
        # What has made room for another one already is not to be put there: it would stay for ever.
        return [key for key in kept if key in self._ledger], evicted
