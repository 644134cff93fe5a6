"""Keeping by reuse over several hosts, live: what this host's cache keeps, lets go and is listed for.

One ledger for all ranks of this host, with the rules of `cache.cooperation`. A batch is decided on when the loop has taken
it: what was brought for it is still staged then, and what makes room is in no batch that is ordered. Everything that
happens is done by one thread, one thing after the other:

    begin      an epoch begins, and the one that came into sight is read from the loader's orders
    use        samples of a batch were used: keep them or not, forget others, tell the other hosts
    told       another host is listed for samples now: what is here of them are copies
    given      another host has read samples from here

Only what this host is listed for is told. A host that says so has the sample in its store: one that was listed before it
lets go only then, so that a sample is never without a host that keeps it.
"""

import os
import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stoker.cache.cooperation import CacheChoice, Cooperation
from stoker.cache.shares import Shares
from stoker.cache.shelf import Budget
from stoker.cache.staging import Stager
from stoker.cache.store import Store, StoreBusyError, StoreFullError
from stoker.cache.walking import KEY_BYTES
from stoker.keeper.directory import NUMBER_BYTES
from stoker.keeper.orders import EpochOrders
from stoker.keeper.peering import Peering
from stoker.keeper.table import KeeperTable
from stoker.memory import Bytes
from stoker.sealed import payload_bytes
from stoker.source.files import shared_file_key

_AT_ONCE = 512


class Reuse:
    """What decides on the cache of one folder."""

    def __init__(
        self,
        store: Store,
        budget: Budget,
        peering: Peering,
        table: KeeperTable,
        roots: tuple[str, ...],
        told: dict[str, Any],
    ) -> None:
        self._store, self._budget, self.peering, self._table, self._roots = store, budget, peering, table, roots
        self.digest = table.digest
        """Of the files that are decided on. A loader of others keeps nothing in this cache."""
        self._orders: EpochOrders | None = None
        ranks = int(told["ranks_of_host"])
        me, capacity_bytes = int(told["rank"]) // ranks, int(told["capacity"])
        shares = Shares(self._epoch_ids, [rank // ranks for rank in range(int(told["world"]))])
        self._cooperation = Cooperation(me, capacity_bytes, self._sizes_of, self._holder, shares)
        self._epoch: int | None = None
        self._sizes: dict[int, int] = {}
        """Of the samples that are being decided on."""
        self._brought: dict[bytes, bytes] = {}
        """The keys of items that had to be brought for batches that are ordered, by their names."""
        self._left: set[bytes] = set()
        """Names that are still to be removed from the store."""
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._events.put(self._resume)
        self._thread = threading.Thread(target=self._run, name="reuse", daemon=True)
        peering.watch(self, me)
        self._thread.start()

    # -- called by any thread

    def orders_are(self, orders: EpochOrders) -> None:
        """A loader has told what all ranks read."""
        self._orders = orders

    def begin(self, epoch: int) -> None:
        """An epoch begins on this host."""
        self._events.put(lambda: self._begin(epoch))

    def brought(self, key: bytes) -> None:
        """An item was not in the cache, and is staged now, or will be."""
        self._brought[key[:KEY_BYTES]] = key

    def use(self, ids: Sequence[int], stager: Stager, freed: Callable[[], None]) -> None:
        """Samples were used. When they have been decided on, what was staged for them may go."""
        self._events.put(lambda: self._use(ids, stager, freed))

    def told(self, names: Sequence[bytes]) -> None:
        """Another host is listed for these."""
        self._events.put(lambda: self._cooperation.unlist(self._give_up(names)))

    def given(self, names: Sequence[bytes]) -> None:
        """Another host has read these from here."""
        self._events.put(lambda: self._served(names))

    def close(self) -> None:
        """Decide on nothing any more."""
        self.peering.unwatch(self)
        self._events.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    # -- in the thread

    def _run(self) -> None:
        paths = (self._table.path(index) for index in range(len(self._table)))
        names = b"".join((shared_file_key(path, self._roots) or bytes(KEY_BYTES))[:NUMBER_BYTES] for path in paths)
        numbers = np.frombuffer(names, ">u8").astype(np.uint64)
        self._by_number = np.argsort(numbers, kind="stable")
        self._numbers = numbers[self._by_number]
        while (event := self._events.get()) is not None:
            try:
                event()
            except OSError:
                pass  # the store has gone, and with it everything
            except Exception:  # what was to be decided is not; the cache is as it was
                traceback.print_exc()

    def _epoch_ids(self, epoch: int) -> Any:
        return np.empty(0, np.int64) if self._orders is None else self._orders.epoch(epoch)

    def _resume(self) -> None:
        """What lies in the store from before is listed here, as far as it is of these samples."""
        after = bytes(KEY_BYTES)
        while names := self._store.names(after, _AT_ONCE)[1]:
            sizes: list[int] = []

            def note(found: Sequence[Bytes | None], sizes: list[int] = sizes) -> None:
                sizes += [payload_bytes(len(item or b"")) for item in found]

            self._store.visit(names, note)
            known = dict(zip(names, sizes, strict=True))
            samples = {sample: name for name in names for sample in self._samples([name])}
            too_much = self._cooperation.resume(samples, [known[name] for name in samples.values()])
            kept = {name for sample, name in samples.items() if sample not in too_much}
            self._left |= known.keys() - kept
            self.peering.say(kept, ())
            after = names[-1]

    def _begin(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self._cooperation.begin(epoch)

    def _use(self, ids: Sequence[int], stager: Stager, freed: Callable[[], None]) -> None:
        try:
            self._decide(ids, stager)
        finally:
            freed()

    def _decide(self, ids: Sequence[int], stager: Stager) -> None:
        cooperation, items = self._cooperation, {}
        for sample in ids:
            key = self._brought.pop(self._name(sample), None)
            payload = None if key is None else stager.staging.look(key)
            if key is not None and payload is not None:
                items[sample] = key, payload
        cooperation.lost(items)  # they were not in the store, whatever the ledger says
        self._sizes = {sample: len(payload) for sample, (_, payload) in items.items()}
        # What neither is here nor was brought cannot be kept: its worker has read it by itself.
        choice = cooperation.decide([sample for sample in ids if sample in items or sample in cooperation.ledger])
        if choice.kept or choice.forgotten:
            self._carry_out(choice, items)

    def _carry_out(self, choice: CacheChoice, items: dict[int, tuple[bytes, bytes]]) -> None:
        kept = [sample for sample in choice.kept if sample in self._cooperation.ledger]
        gone = {self._name(sample) for sample in choice.forgotten if sample not in self._cooperation.ledger}
        self._left |= gone
        count = 0
        try:
            count = self._store.put([items[sample] for sample in kept], self._budget.bytes(), list(self._left))
            self._left.clear()
        except (StoreFullError, StoreBusyError):
            pass
        if count < len(kept):
            lost = [sample for sample in kept if self._store.size(items[sample][0]) is None]
            self._cooperation.lost(lost)
            kept = [sample for sample in kept if sample not in lost]
        listed = set(choice.listed)
        self.peering.say({items[sample][0][:KEY_BYTES] for sample in kept if sample in listed}, gone)

    def _give_up(self, names: Sequence[bytes]) -> list[int]:
        """Those of another host's samples that this host was listed for. Others hear that it is not any more."""
        found = [sample for sample in self._samples(names) if self._cooperation.policy.is_listed(sample)]
        self.peering.say((), {self._name(sample) for sample in found})
        return found

    def _served(self, names: Sequence[bytes]) -> None:
        for sample in self._samples(names):
            self._cooperation.served(sample)

    def _samples(self, names: Sequence[bytes]) -> list[int]:
        """The samples whose files have these names, or begin so."""
        wanted = np.frombuffer(b"".join(name[:NUMBER_BYTES] for name in names), ">u8").astype(np.uint64)
        places = np.searchsorted(self._numbers, wanted)
        found = places < len(self._numbers)
        places, wanted = places[found], wanted[found]
        return [int(sample) for sample in self._by_number[places[self._numbers[places] == wanted]]]

    def _name(self, sample: int) -> bytes:
        return shared_file_key(self._table.path(sample), self._roots) or bytes(KEY_BYTES)

    def _sizes_of(self, ids: Sequence[int]) -> list[int]:
        return [self._sizes.get(sample, 0) for sample in ids]

    def _holder(self, sample: int) -> int | None:
        return self.peering.listed_host(self._name(sample))


def orders_of(told: dict[str, Any], descriptor: int) -> EpochOrders:
    """The orders that a loader has handed over. Raises ValueError if they are none."""
    try:
        return EpochOrders(int(told["samples"]), int(told["epochs"]), descriptor)
    except (KeyError, ValueError):
        os.close(descriptor)
        raise ValueError("orders that make no sense") from None
