"""Slots and leases, both sides in one process."""

import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest

from stoker.errors import ResourceError
from stoker.slots import outbox as outboxes
from stoker.slots.area import Area
from stoker.slots.inbox import Inbox
from stoker.slots.outbox import Outbox


def send(outbox: Outbox, value: int, length: int = 1 << 16) -> tuple[int, int, int]:
    assert outbox.claim()
    _, room = outbox.room(length)
    room[:] = value
    return outbox.announce()


def test_a_slot_is_free_again_when_its_last_view_is_gone() -> None:
    area = Area(workers=1, prefetch=2)
    outbox, inbox = Outbox(area, 0), Inbox(area)
    slot, length, used = send(outbox, 1)
    batch = inbox.open((0, slot), length, used)[0]
    part = np.ndarray((10,), np.uint8, batch, 100)  # type: ignore[arg-type]
    del batch
    assert send(outbox, 2)[0] != slot
    assert (part == 1).all()
    assert len(inbox._loans) == 1
    del part
    assert len(inbox._loans) == 0
    assert send(outbox, 3)[0] == slot


def test_small_batches_are_copied_out_at_once() -> None:
    area = Area(workers=1, prefetch=2)
    outbox, inbox = Outbox(area, 0), Inbox(area)
    kept = [inbox.open((0, slot), length, used)[0] for slot, length, used in (send(outbox, n, 100) for n in range(50))]
    assert len(inbox._loans) == 0
    assert [int(batch[99]) for batch in kept] == list(range(50))


def test_however_many_are_kept_a_worker_finds_a_slot() -> None:
    area = Area(workers=1, prefetch=3)
    outbox, inbox = Outbox(area, 0), Inbox(area)
    kept, under_way = [], []
    for number in range(100):
        under_way.append(send(outbox, number % 256))
        if len(under_way) == 3:
            slot, length, used = under_way.pop(0)
            kept.append(inbox.open((0, slot), length, used)[0])
    assert [int(batch[1000]) for batch in kept] == list(range(98))


def test_a_batch_may_outgrow_its_slot_while_it_is_made() -> None:
    area = Area(workers=1, prefetch=2)
    outbox, inbox = Outbox(area, 0), Inbox(area)
    assert outbox.claim()
    rooms = [outbox.room(1 << size) for size in range(10, 24)]
    for number, (_, room) in enumerate(rooms):
        room[:] = number
    for offset, room in rooms:
        assert outbox.find(room.__array_interface__["data"][0]) == offset
    slot, length, used = outbox.announce()
    batch = inbox.open((0, slot), length, used)[0]
    for number, (offset, room) in enumerate(rooms):
        assert (batch[offset : offset + len(room)] == number).all()
        assert offset % outboxes.ALIGNMENT == 0


def test_what_the_worker_keeps_is_not_overwritten() -> None:
    area = Area(workers=1, prefetch=2)
    outbox, inbox = Outbox(area, 0), Inbox(area)
    assert outbox.claim()
    _, room = outbox.room(1 << 16)
    room[:] = 7
    slot, length, used = outbox.announce()
    inbox.open((0, slot), length, used)[0]
    assert send(outbox, 8)[0] != slot
    assert (room == 7).all()


def test_an_abandoned_claim_leaves_the_slot_free() -> None:
    area = Area(workers=1, prefetch=2)
    outbox = Outbox(area, 0)
    assert outbox.claim()
    outbox.room(100)
    outbox.abandon()
    assert not outbox.claimed
    assert send(outbox, 1)[0] == 0


def test_renewed_slots_are_free_but_for_the_lent_ones() -> None:
    area = Area(workers=1, prefetch=2)
    inbox, before = Inbox(area), Outbox(area, 0)
    slot, length, used = send(before, 1)
    kept = inbox.open((0, slot), length, used)[0]
    for number in range(3):
        send(before, number)  # reported to nobody
    inbox.renew()
    after = Outbox(area, 0)
    assert {send(after, 9)[0] for _ in range(3)} == {1, 2, 3}
    assert (kept[:used] == 1).all()


def test_closing_leaves_lent_batches_valid_and_gives_the_rest_back() -> None:
    area = Area(workers=2, prefetch=2)
    inbox = Inbox(area)
    slot, length, used = send(Outbox(area, 1), 5)
    send(Outbox(area, 0), 6)
    kept = inbox.open((1, slot), length, used)[0]
    inbox.close()
    assert (kept[:used] == 5).all()
    del kept
    gc.collect()
    assert area.memory.descriptor == -1


def test_no_memory_is_an_error_before_a_page_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "headroom_bytes", lambda: 100 << 20)
    outbox = Outbox(Area(workers=2, prefetch=2), 0)
    assert outbox.claim()
    outbox.room(30 << 20)
    with pytest.raises(ResourceError, match=r"2 workers need 92 MiB more and 100 MiB|need 112 MiB more and 100 MiB"):
        outbox.room(40 << 20)


def test_memory_in_a_cycle_is_there_until_the_last_finalizer_has_run() -> None:
    """The collector runs finalizers in an order of its own: none may find its memory unmapped."""
    seen = []

    class Late:
        def __init__(self, inbox: Inbox, batch: np.ndarray) -> None:  # type: ignore[type-arg]
            self.inbox, self.batch, self.itself = inbox, batch, self

        def __del__(self) -> None:
            self.inbox.renew()
            seen.append(int(self.batch[5]))

    for number in range(20):
        area = Area(workers=1, prefetch=2)
        inbox = Inbox(area)
        slot, length, used = send(Outbox(area, 0), number)
        Late(inbox, inbox.open((0, slot), length, used)[0])
        del area, inbox
    gc.collect()
    assert sorted(seen) == list(range(20))


@pytest.mark.parametrize("first", ["close", "renew", "make_private", None])
def test_batches_may_be_dropped_by_other_threads_while_the_inbox_is_closed(
    first: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is closed twice, or used after it was closed: the number may be another file's by then."""
    wrong: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", wrong.append)
    for _ in range(50):
        area = Area(workers=2, prefetch=2)
        inbox = Inbox(area)
        sides = [Outbox(area, worker) for worker in range(2)]
        batches = []
        for number in range(12):
            slot, length, used = send(sides[number % 2], number)
            batches.append(inbox.open((number % 2, slot), length, used)[0])
        piles = [batches[number::3] for number in range(3)]
        batches.clear()
        ready = threading.Barrier(len(piles) + 1)
        threads = [threading.Thread(target=_drop, args=(pile, ready)) for pile in piles]
        for thread in threads:
            thread.start()
        ready.wait()
        if first is not None:
            getattr(inbox, first)()
        for thread in threads:
            thread.join()
        inbox.close()
        assert (len(inbox._loans), area.memory.descriptor) == (0, -1)
    assert not wrong


def _drop(batches: list[Any], ready: threading.Barrier) -> None:
    ready.wait()
    while batches:
        batches.pop()
