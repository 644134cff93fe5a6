"""A table that processes share: transactions, sudden deaths, and waiting."""

import fcntl
import gc
import multiprocessing
import os
import random
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.tries import HANG_S, fastest, seconds, until

from stoker.errors import ConfigError
from stoker.group import table as tables
from stoker.group.table import Table
from stoker.host import locks
from stoker.host.locks import when_outside

_fork = multiprocessing.get_context("fork")
PAIRS = 200


class Numbers:
    """A state: many numbers that are all the same."""

    def __init__(self, values: list[Any]) -> None:
        self.numbers: list[int] = values
        self.to_wake = {0}

    def values(self) -> list[Any]:
        return self.numbers

    def add(self) -> None:
        for index in range(len(self.numbers)):
            self.numbers[index] += 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Table.create(tmp_path / "table", [0] * PAIRS)
    return tmp_path / "table"


def total(path: Path) -> int:
    table = Table(path, Numbers)
    try:
        with table.look() as state:
            assert len(set(state.numbers)) == 1
            return int(state.numbers[0])
    finally:
        table.close()


def add_often(path: Path, times: int) -> None:
    table = Table(path, Numbers)
    for _ in range(times):
        with table.change() as state:
            state.add()


def test_counts_add_up_over_processes_and_threads(path: Path) -> None:
    processes = [_fork.Process(target=add_often, args=(path, 300)) for _ in range(3)]
    for one in processes:
        one.start()
    table = Table(path, Numbers)

    def add() -> None:
        for _ in range(300):
            with table.change() as state:
                state.add()

    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for one in (*processes, *threads):
        one.join()
    table.close()
    assert total(path) == 1500


def add_and_tell(path: Path, pipe: Any) -> None:
    table = Table(path, Numbers)
    while True:
        with table.change() as state:
            state.add()
        pipe.send_bytes(b".")


def test_a_killed_member_has_changed_all_or_nothing(path: Path) -> None:
    chance = random.Random(1)
    done = 0
    for _ in range(100):
        receiver, sender = _fork.Pipe(duplex=False)
        writer = _fork.Process(target=add_and_tell, args=(path, sender))
        writer.start()
        sender.close()
        receiver.recv_bytes()
        done += 1
        deadline = time.monotonic() + chance.random() * 2e-3
        while time.monotonic() < deadline:
            pass
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
        try:
            while True:
                receiver.recv_bytes()
                done += 1
        except EOFError:
            pass
        assert total(path) - done in (0, 1)  # it may have died before it told
        done = total(path)


def test_a_change_that_fails_changes_nothing(path: Path) -> None:
    table = Table(path, Numbers)
    with pytest.raises(ZeroDivisionError), table.change() as state:
        state.numbers[0] = 1 // 0
    with pytest.raises(ZeroDivisionError), table.change() as state:
        state.add()
        raise ZeroDivisionError
    assert total(path) == 0
    with table.change() as state:
        state.add()
    assert total(path) == 1
    table.close()


def test_what_is_too_large_is_refused(path: Path) -> None:
    table = Table(path, Numbers)
    with pytest.raises(RuntimeError, match="too many members"), table.change() as state:
        state.numbers += [1 << 30] * 100_000
    assert total(path) == 0
    table.close()


def test_waiting_ends_at_once(path: Path) -> None:
    table = Table(path, Numbers)

    def delay() -> float:
        ticket = table.ticket(0)
        begin, told = _fork.Event(), _fork.SimpleQueue()
        other = _fork.Process(target=change_when_told, args=(path, begin, told))
        other.start()
        timer = threading.Timer(0.05, begin.set)
        timer.start()
        table.wait(0, ticket, 2 * HANG_S)
        after_s = time.monotonic() - told.get()
        other.join()
        timer.join()
        return after_s

    assert fastest(delay, 0.02, tries=20) < 0.02
    table.close()


def change_when_told(path: Path, begin: Any, told: Any) -> None:
    table = Table(path, Numbers)
    begin.wait()
    told.put(time.monotonic())
    with table.change() as state:
        state.add()


def test_a_ticket_from_before_a_change_does_not_sleep(path: Path) -> None:
    table = Table(path, Numbers)
    ticket = table.ticket(0)
    with table.change() as state:
        state.add()
    assert seconds(lambda: table.wait(0, ticket, 2 * HANG_S)) < HANG_S
    table.wait(0, table.ticket(0), 0.01)  # and one from after it ends in time
    table.close()


def test_another_version_is_refused(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"stoker group 0")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match="another version"):
        Table(path, Numbers)
    path.write_bytes(tables._MAGIC)
    with pytest.raises(ConfigError, match="another version"):
        Table(path, Numbers)
    assert len(os.listdir("/proc/self/fd")) <= before


def hold(path: Path, has: Any) -> None:
    table = Table(path, Numbers)
    with table.change() as state:
        state.add()
        has.set()
        signal.pause()


def test_a_stopped_holder_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_TELL_AFTER_S", 0.05)
    has = _fork.Event()
    holder = _fork.Process(target=hold, args=(path, has))
    holder.start()
    has.wait()
    os.kill(holder.pid or 0, signal.SIGSTOP)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ends = threading.Thread(target=lambda: (until(lambda: told), os.kill(holder.pid or 0, signal.SIGKILL)))
        ends.start()
        assert total(path) == 0
    ends.join()
    assert f"locked by process {holder.pid}" in str(told[0].message)
    holder.join()


def fork_and_die(path: Path, has: Any, children: Any) -> None:
    """A process that is killed within a change, and whose forked children live on."""
    table = Table(path, Numbers)
    other = Table(path.parent / "other", Numbers)  # of another thread, say
    with table.change(), other.change():
        pid = os.fork()
        if not pid:
            signal.pause()
        children.put(pid)
        has.wait()


def test_a_forked_child_keeps_no_lock(path: Path) -> None:
    Table.create(path.parent / "other", [0] * PAIRS)
    has, children = _fork.Event(), _fork.SimpleQueue()
    parent = _fork.Process(target=fork_and_die, args=(path, has, children))
    parent.start()
    child = children.get()
    os.kill(parent.pid or 0, signal.SIGKILL)
    parent.join()
    try:
        add_often(path, 1)
        add_often(path.parent / "other", 1)
        assert total(path) == total(path.parent / "other") == 1
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_interrupt_that_comes_with_the_lock_frees_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(path, Numbers)
    real = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        real(descriptor, operation)
        if operation & fcntl.LOCK_EX:
            raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(KeyboardInterrupt), table.change():
        pass
    monkeypatch.undo()
    add_often(path, 1)
    assert total(path) == 1
    table.close()


def test_finalizers_that_take_locks_wait_until_this_thread_has_none(path: Path) -> None:
    Table.create(path.parent / "other", [0] * PAIRS)
    table, other = Table(path, Numbers), Table(path.parent / "other", Numbers)

    def change_both() -> None:
        for one in (table, other):
            with one.change() as state:
                state.add()

    class Garbage:
        def __del__(self) -> None:
            when_outside(change_both)

    for act in (table.change, table.look):
        before = total(path)
        with act():
            garbage: list[Any] = [Garbage()]
            garbage.append(garbage)
            del garbage
            gc.collect()
        assert total(path) == before + 1
    with pytest.raises(ZeroDivisionError), table.change():
        Garbage()
        raise ZeroDivisionError
    assert total(path) == total(path.parent / "other") == 3
    Garbage()
    assert total(path) == 4
    table.close()
    other.close()
