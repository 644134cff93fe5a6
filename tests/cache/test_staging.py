"""What is staged is found as it was put there, or not at all; its room is used again when its batch was taken."""

import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cache.staging import FROM_PEER, USED, Stager, Staging, active, current

CAPACITY = 64 << 10


def pair(capacity: int = CAPACITY) -> tuple[Staging, Stager]:
    staging = Staging(capacity)
    return staging, Stager(capacity, os.dup(staging.memory.descriptor))


def key(number: int) -> bytes:
    return number.to_bytes(16, "big") + b"version"


def payload(number: int, size: int) -> bytes:
    return bytes([number % 251]) * size


def stage(stager: Stager, work: int, number: int, size: int) -> bool:
    place = stager.reserve(work, key(number), size)
    if place is None:
        return False
    stager.fill(place, key(number), payload(number, size))
    return True


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20_000), st.booleans()), max_size=120))
def test_found_as_it_was_or_not_at_all(steps: list[tuple[int, int, bool]]) -> None:
    staging, stager = pair()
    sizes: dict[int, int] = {}
    taken = 0
    for work, (number, size, takes) in enumerate(steps):
        if not stager.has(work, key(number)) and stage(stager, work, number, size):
            sizes[number] = size
        if takes:
            taken = work + 1
            stager.taken(taken)
        for one in range(41):
            found = staging.get(key(one))
            assert found is None or found == (payload(one, sizes[one]), False)
        assert stager.bytes_staged <= CAPACITY
    stager.taken(len(steps))
    assert stager.bytes_staged == 0
    assert all(staging.get(key(one)) is None for one in range(41))
    assert stage(stager, len(steps), 1, CAPACITY - 100)  # all room is there again


def test_full_until_a_batch_is_taken_and_what_two_batches_need_stays_for_both() -> None:
    staging, stager = pair()
    assert stage(stager, 0, 0, 30_000)
    assert stage(stager, 1, 1, 30_000)
    assert not stage(stager, 2, 2, 30_000)
    assert stager.has(2, key(0))
    stager.taken(2)
    assert staging.get(key(0)) == (payload(0, 30_000), False)
    assert staging.get(key(1)) is None
    stager.taken(3)
    assert staging.get(key(0)) is None


def test_what_was_read_ahead_into_the_cache_is_no_hit_once() -> None:
    staging, stager = pair()
    assert not staging.was_ahead(key(5))
    place = stager.announce(0, key(5))
    assert place is not None
    stager.confirm(place)
    assert [bool(staging.was_ahead(key(5))) for _ in range(2)] == [True, False]
    assert staging.get(key(5)) is None
    stager.taken(1)
    assert (stager.used, stager.unused) == (1, 0)


def test_a_new_keeper_begins_with_nothing() -> None:
    staging, stager = pair()
    assert stager.reserve(0, key(1), 100) is not None  # it is killed while it reads
    assert staging.is_coming(key(1))
    again = Stager(CAPACITY, os.dup(staging.memory.descriptor))
    assert not staging.is_coming(key(1))
    assert stage(again, 0, 1, 100)
    assert staging.get(key(1)) == (payload(1, 100), False)


def test_it_is_active_within_the_context_only() -> None:
    staging, _ = pair()
    assert current() is None
    with active(staging):
        assert current() is staging
    assert current() is None


def test_what_came_from_another_host_is_marked() -> None:
    staging, stager = pair()
    place = stager.reserve(0, key(1), 100)
    assert place is not None
    stager.fill(place, key(1), payload(1, 100), is_from_peer=True)
    assert staging.get(key(1)) == (payload(1, 100), True)
    kept = stager.announce(0, key(2))
    assert kept is not None
    stager.confirm(kept, is_from_peer=True)
    assert staging.was_ahead(key(2)) & FROM_PEER


def test_nobody_waits_for_a_keeper_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    staging, stager = pair()
    assert stager.reserve(0, key(1), 100) is not None
    assert not staging.is_late()
    later = time.monotonic_ns() + 2_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: later)
    assert staging.is_late()
    stager.beat()
    assert not staging.is_late()


def test_rows_that_a_worker_writes_to_too_late_are_used_again() -> None:
    staging, stager = pair()
    assert stage(stager, 0, 1, 100)
    stager.taken(1)
    for at in range(3, len(staging._rows), 4):
        staging._rows[at - 2] = USED  # by workers that were copying as the batches were dropped
    assert stage(stager, 1, 2, 100)
    assert staging.get(key(2)) == (payload(2, 100), False)
