"""A group's door, memory and waits, without any loader."""

import contextlib
import gc
import multiprocessing
import os
import resource
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.tries import HANG_S

from stoker.group import door as groups
from stoker.group import seat as seats
from stoker.group.answers import Draw, EpochOver, Prepare, Task
from stoker.group.life import WAITING
from stoker.group.records import StagedBatch
from stoker.group.seat import Patience, Seat
from stoker.host import process
from stoker.memory import PAGE

_fork = multiprocessing.get_context("fork")
STEPS = 6


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    yield name
    gc.collect()
    deadline = time.monotonic() + HANG_S
    while (groups.home() / name).exists():  # one that was killed may have a worker at the door just now
        groups.sweep()
        assert time.monotonic() < deadline


def sit(name: str, about: str = "same", budget_bytes: int = 100 * PAGE) -> Seat:
    def differences(theirs: dict[str, Any]) -> list[str]:
        return [] if theirs["about"] == about else ["it is another"]

    return Seat(name, {"about": about}, differences, budget_bytes, "job")


def patient(patience_s: float | None = None) -> Patience:
    return Patience(True, patience_s, lambda *_: None)


def answer(seat: Seat, task: Task, pages: int = 1) -> bool:
    if isinstance(task, Draw):
        return bool(seat.staging.draw(task.epoch, STEPS, ""))
    return seat.staging.publish(task.point, [np.full(pages * PAGE, task.point[1], np.uint8)])


def read_one(seat: Seat, wait: Patience, pages: int = 1) -> int | None:
    """The next batch, which this process prepares itself if need be."""
    while True:
        with seat.turn(wait) as turn:
            if isinstance(turn, StagedBatch):
                room = np.empty(turn.used, np.uint8)
                seat.staging.copy(turn, room)
                assert (room == turn.step).all()
        match turn:
            case EpochOver():
                return None
            case StagedBatch():
                return turn.step
            case task:
                answer(seat, task, pages)


def read_epoch(seat: Seat, wait: Patience) -> list[int]:
    seat.begin()
    return [step for step in iter(lambda: read_one(seat, wait), None) if step is not None]


def test_members_without_workers_share_what_each_prepares(name: str) -> None:
    one, two = sit(name), sit(name)
    one.begin()
    two.begin()
    wait = patient()
    for step in range(STEPS):
        assert [read_one(one, wait), read_one(two, wait)] == [step, step]
    assert [read_one(one, wait), read_one(two, wait)] == [None, None]
    assert one.stats().prepared == STEPS
    one.close()
    two.close()


def test_one_who_prepares_passes_by_who_is_in_the_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "PASSED_BY_AFTER_S", 0.1)
    idle = _fork.Process(target=sit_and_sleep, args=(name, 3 * PAGE))
    idle.start()
    seat = join_when_there(name)
    seat.begin()
    wait = patient()
    pages = iter([1, 1, 3, 1, 1, 1])  # room for the third is there when the other is not waited for
    assert [read_one(seat, wait, next(pages)) for _ in range(STEPS)] == list(range(STEPS))
    assert seat.stats().passed_by == 1
    seat.close()
    os.kill(idle.pid or 0, signal.SIGKILL)
    idle.join()


def sit_and_sleep(name: str, budget_bytes: int) -> None:
    seat = sit(name, budget_bytes=budget_bytes)
    signal.pause()
    seat.close()


def join_when_there(name: str) -> Seat:
    deadline = time.monotonic() + HANG_S
    while not any((groups.home() / name).glob("*/about")) and time.monotonic() < deadline:
        time.sleep(0.005)
    return sit(name)


def test_a_batch_that_fails_to_be_staged_is_free_for_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = sit(name), sit(name)
    one.begin()
    two.begin()
    answer(one, Draw(0))
    with one.turn(patient()) as task:
        assert task == Prepare((0, 0))

    def fail(*_: Any) -> int:
        raise OSError("no")

    monkeypatch.setattr(groups.os, "pwrite", fail)
    with pytest.raises(OSError, match="no"):
        answer(one, task)
    monkeypatch.undo()
    assert read_one(two, patient()) == 0
    one.close()
    two.close()


def test_a_wait_that_is_interrupted_holds_nothing(name: str) -> None:
    one = sit(name)
    one.begin()
    with one.staging.table.change() as group:
        group.add_worker(one.address.member, one.staging.process)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), one.turn(Patience(False, None, interrupt)):
        pass
    with one.staging.table.look() as group:
        assert group.members[one.address.member].phase != WAITING
    one.close()


def come_and_go(name: str, has: Any) -> None:
    has.set()
    while True:
        sit(name).close()


def test_a_seat_may_be_garbage_at_any_line(name: str) -> None:
    """The collector runs within a change of one loader's table, and the other's seat is left through the door."""
    kept = sit(name)
    has = _fork.Event()
    other = _fork.Process(target=come_and_go, args=(name, has))
    other.start()
    has.wait()
    for _ in range(30):
        cycle: list[Any] = [sit(name, "same")]
        cycle.append(cycle)
        del cycle
        with kept.staging.table.change() as group:
            gc.collect()
            assert len(group.members) >= 2
    os.kill(other.pid or 0, signal.SIGKILL)
    other.join()
    kept.staging.look_around()
    with kept.staging.table.look() as group:
        assert list(group.members) == [kept.address.member]
    kept.close()


def test_who_has_no_descriptors_left_takes_nobody_for_dead(name: str) -> None:
    seat = sit(name)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, limits[0]), limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                spare.append(os.dup(0))
        assert process.is_alive(*seat.staging.process)
        seat.staging.look_around()
        failures = 0
        while True:  # it fails everywhere on the way, once
            try:
                late = sit(name)
                break
            except OSError:
                failures += 1
                os.close(spare.pop())
        assert failures >= 3
        with contextlib.suppress(OSError):
            while True:
                spare.append(os.dup(0))
        late.close()
    finally:
        for descriptor in spare:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with seat.staging.table.look() as group:
        assert list(group.members) == [seat.address.member]
    assert seat.staging.folder.is_dir()
    seat.close()


def test_a_child_that_is_forked_while_another_thread_is_at_the_door_may_join(name: str) -> None:
    is_there, may_go = threading.Event(), threading.Event()

    def stand_at_the_door() -> None:
        with groups._door(groups.home() / name):
            is_there.set()
            may_go.wait()

    thread = threading.Thread(target=stand_at_the_door)
    thread.start()
    is_there.wait()
    child = _fork.Process(target=lambda: sit(name).close())
    child.start()
    may_go.set()
    thread.join()
    child.join(HANG_S)
    assert child.exitcode == 0


def test_nothing_is_left_open(name: str) -> None:
    def seats() -> None:
        one, two = sit(name), sit(name)
        read_epoch(one, patient(0.01))
        two.close()
        one.close()

    seats()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        seats()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def join_and_leave_often(name: str, times: int) -> None:
    for _ in range(times):
        sit(name).close()


def test_many_come_and_go_at_once(name: str) -> None:
    crowd = [_fork.Process(target=join_and_leave_often, args=(name, 40)) for _ in range(3)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    assert [one.exitcode for one in crowd] == [0, 0, 0]
