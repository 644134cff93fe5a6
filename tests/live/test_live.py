"""What loaders publish of themselves: consistent, private, and gone with them."""

import fcntl
import gc
import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.datasets import Numbers
from tests.live.rows import FACTS, FOR_BATCH, FOR_ROOM, LATE, group_row, seen_at

import stoker
from stoker.host import process
from stoker.live import folder
from stoker.live.doing import doing
from stoker.live.folder import loaders, publish
from stoker.live.groups import Waits
from stoker.live.record import Facts, Record, Seen
from stoker.live.watch import LoaderWatch, measure
from stoker.meter import Meter, Scalars


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_TOP", str(tmp_path / "own"))
    monkeypatch.setattr(folder, "_swept_at", -100.0)
    gc.collect()
    return tmp_path / "own" / "loaders"


def own_facts(**changes: Any) -> Facts:
    own = process.find(os.getpid())
    assert own is not None
    return replace(FACTS, started=own.started, namespace=process.namespace(), **changes)


def only() -> Seen:
    (seen,) = loaders().values()
    return seen


# ---- records


@pytest.mark.parametrize(
    ("script", "read"),
    [
        ("train.py", "train.py"),
        ("t\n\x1b[31m\"'\\.py", "t\n\x1b[31m\"'\\.py"),
        ("a\0b", "ab"),
        ("", ""),
        ("\udcff.py", "\\udcff.py"),
        ("x" * 300 + "/train.py", "..." + "x" * 244 + "/train.py"),
        ("ü" * 200 + ".p", "..." + "ü" * 125 + ".p"),
    ],
)
def test_facts_come_back(place: Path, script: str, read: str) -> None:
    record = publish(own_facts(script=script))
    assert only().facts == own_facts(script=read)
    assert record is not None
    record.close()
    assert not loaders()


def meter_of(number: int) -> Any:
    names = "batches samples wait_s prep_s fetch_s hits misses bytes_cache bytes_storage faults workers"
    names += " remote remote_bytes remote_ratio remote_workers"
    return SimpleNamespace(**dict.fromkeys(names.split(), number))


HAMMER = """
import sys
from stoker.live.folder import publish
from tests.live.test_live import meter_of, own_facts
from types import SimpleNamespace
record = publish(own_facts())
print("ready", flush=True)
number = 0
while True:
    number += 1
    record.times[0] = number
    record.tell(meter_of(number), SimpleNamespace(epoch=number, batches=number), number, is_over=number % 2)
"""


def test_what_is_read_is_of_one_moment(place: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", HAMMER], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        counts = []
        enough = time.monotonic() + 1.5
        while time.monotonic() < enough or len(set(counts)) <= 100:
            for seen in loaders().values():
                values = {seen.batches, seen.samples, seen.wait_s, seen.prep_s, seen.fetch_s, seen.hits, seen.misses}
                values |= {seen.bytes_cache, seen.bytes_storage, seen.faults, seen.workers, seen.epoch, seen.left_at}
                assert len(values | {seen.epoch_batches}) == 1
                assert seen.is_over == seen.batches % 2
                counts.append(seen.batches)
    finally:
        writer.kill()
        writer.communicate()
    assert counts == sorted(counts)


def test_a_write_that_was_broken_off_leaves_what_was_there(place: Path) -> None:
    record = publish(own_facts())
    assert record is not None
    for number in (1, 2, 3):
        record.tell(meter_of(number), SimpleNamespace(epoch=0, batches=number), 1.0)
    record._buffer[1024:1100] = random.Random(0).randbytes(76)  # as the fourth would begin
    assert only().batches == 3
    record.close()


def test_numbers_that_cannot_be_published_do_no_harm(place: Path) -> None:
    loader = stoker.DataLoader(Numbers(16), batch_size=4)
    loader.set_epoch(0.5)  # type: ignore[arg-type]
    assert len(list(loader)) == 4
    assert not loaders()


# ---- who is there


def test_a_loader_is_seen_from_its_first_iteration_until_it_is_closed(place: Path) -> None:
    loader = stoker.DataLoader(Numbers(40), batch_size=4, num_workers=2)
    assert not place.exists()
    iterator = iter(loader)
    next(iterator)
    seen = only()
    assert (seen.batches, seen.samples, seen.workers, seen.epoch, seen.epoch_batches, seen.epoch_length) == (
        1,
        4,
        2,
        0,
        1,
        10,
    )
    assert (seen.facts.pid, seen.facts.rank, seen.facts.kind, seen.facts.dataset) == (
        os.getpid(), None, "processes", "Numbers"
    )  # fmt: skip
    assert not seen.is_waiting
    (path,) = place.iterdir()
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (place.parent, place, path)]
    assert modes == [0o700, 0o700, 0o600]
    list(iterator)
    assert only().is_over
    list(loader)
    assert (only().batches, only().epoch, only().epoch_batches) == (20, 1, 10)
    loader.close()
    assert not list(place.iterdir())
    next(iter(loader))
    assert only().batches == 21
    loader.close()


def test_it_goes_with_the_loader_and_keeps_no_descriptor(place: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        iterator = iter(stoker.DataLoader(Numbers(8), batch_size=4))
        next(iterator)
        assert only().batches == 1
    del iterator
    gc.collect()
    assert not list(place.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_ends_the_wait(place: Path, error: BaseException) -> None:
    class Fails(Numbers):
        def __getitem__(self, index: int) -> Any:
            raise error

    loader = stoker.DataLoader(Fails())
    with pytest.raises(type(error)):
        next(iter(loader))
    assert not only().is_waiting
    loader.close()


def test_a_wait_is_seen_with_the_worker_that_is_late(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.feed import carrier

    class Blocks(Numbers):
        def __getitem__(self, index: int) -> Any:
            os.read(reader, 1)
            return index

    monkeypatch.setattr(carrier.WorkersIter._try_get_data, "__defaults__", (0.01,))
    reader, writer = os.pipe()
    loader = stoker.DataLoader(Blocks(8), batch_size=4, num_workers=2)
    iterator: Any = iter(loader)
    thread = threading.Thread(target=lambda: next(iterator))
    thread.start()
    try:
        while not only().late_pid:
            time.sleep(0.001)
        seen = only()
        assert seen.is_waiting
        assert seen.late_pid == iterator._workers[0].pid
    finally:
        os.write(writer, bytes(8))
        thread.join()
    assert not only().is_waiting
    assert only().late_pid == 0
    loader.close()
    os.close(reader)
    os.close(writer)


def test_turned_off(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TOP", "0")
    monkeypatch.setattr("stoker.host.folders._TMPFS", place.parent.parent)
    assert len(list(stoker.DataLoader(Numbers(8), batch_size=4))) == 2
    assert not list(place.parent.parent.iterdir())


def spoil(place: Path, how: str) -> None:
    if how == "open to others":
        place.mkdir(mode=0o755, parents=True)
        place.chmod(0o755)
        place.parent.chmod(0o700)
    elif how == "above it open to others":
        place.mkdir(parents=True)
        place.chmod(0o700)
        place.parent.chmod(0o770)
    elif how == "a link":
        place.parent.mkdir(mode=0o700)
        (place.parent.parent / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(place.parent.parent / "elsewhere")
    elif how == "a file":
        place.parent.write_text("")


@pytest.mark.parametrize("how", ["open to others", "above it open to others", "a link", "a file"])
def test_a_folder_that_is_not_ours_alone_is_not_used(place: Path, how: str) -> None:
    spoil(place, how)
    loader = stoker.DataLoader(Numbers(8), batch_size=4)
    with pytest.warns(UserWarning, match="will not see this loader: .* is not a folder of this user alone"):
        assert len(list(loader)) == 2
    assert loader.here.record() is None
    assert how == "a file" or not list(place.iterdir())


def test_no_room(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(os.listdir("/proc/self/fd"))
    assert publish(own_facts()) is None
    assert not list(place.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_memory_for_a_record_leaves_nobody_behind(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("stoker.live.record.mmap.mmap", refuse)
        assert publish(own_facts()) is None
    assert loaders() == {}
    assert list(place.iterdir()) == []


def test_a_forked_child_publishes_for_itself_alone(place: Path) -> None:
    loader = stoker.DataLoader(Numbers(40), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    (path,) = place.iterdir()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        list(iterator)  # the parent's: to no avail
        next(iter(loader))
        pids = sorted(seen.facts.pid for seen in loaders().values())
        os.write(writer, f"{str(path) in held} {pids == sorted([os.getpid(), os.getppid()])}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 100) == b"False True"
    assert (only().facts.pid, only().batches) == (os.getpid(), 1)
    loader.close()
    os.close(reader)
    os.close(writer)


ORPHAN = """
import ctypes, os
from tests.live.test_live import own_facts, publish
record = publish(own_facts(pid=os.getpid()))
libc = ctypes.CDLL(None)
child = libc.fork()  # Python does not hear of it, so the child holds the lock
if child == 0:
    libc.pause()
print(child, flush=True)
libc.pause()
"""


def test_the_dead_are_swept_though_a_child_holds_their_lock(place: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert only().facts.pid == parent.pid
        parent.kill()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
        assert process.find(child) is not None
        assert not loaders()
        assert not list(place.iterdir())
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_the_next_start_sweeps(place: Path) -> None:
    place.mkdir(parents=True)
    for one in (place, place.parent):
        one.chmod(0o700)
    (place / "0123").write_bytes(bytes(2048))
    (place / ".4567").write_bytes(b"")
    (place / ".89ab").write_bytes(b"")
    with (place / ".89ab").open() as made:  # somebody is just making it
        fcntl.flock(made, fcntl.LOCK_EX)
        record = publish(own_facts())
        assert record is not None
        assert len(list(place.iterdir())) == 2
        record.close()
        assert [path.name for path in place.iterdir()] == [".89ab"]


def test_one_that_is_swept_while_it_is_made_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock says meanwhile."""
    lock, swept = fcntl.flock, []

    def lock_late(file: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not swept:
            swept.append(loaders())
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    monkeypatch.setattr(time, "time", lambda: 1e11)
    record = publish(own_facts())
    assert record is not None
    assert swept == [{}]
    assert only().facts.pid == os.getpid()
    record.close()


def test_a_pid_of_another_container_is_not_judged(place: Path) -> None:
    record = publish(replace(own_facts(), pid=1 << 22, namespace=1))
    assert only().facts.pid == 1 << 22  # the lock is held
    assert record is not None
    record.close()


def test_loaders_travel_without_their_record(place: Path) -> None:
    import copy
    import pickle

    loader = stoker.DataLoader(Numbers(8), batch_size=4)
    list(loader)
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert "_record" not in other.__dict__
        list(other)
        other.close()
    assert only().batches == 2
    loader.close()


# ---- rates and words


def test_a_rate_is_of_whole_steps() -> None:
    before, after = (200.3, seen_at(200.0, 100)), (200.8, seen_at(200.6, 101, wait_s=0.3))
    row = measure(before, after)
    assert row.samples_per_s == pytest.approx(8 / 0.6)
    assert row.waiting == pytest.approx(0.5)


def test_a_loop_slower_than_the_look_shows_its_average() -> None:
    row = measure((200.3, seen_at(200.0, 100, wait_s=20.0)), (200.8, seen_at(200.0, 100, wait_s=20.0)))
    assert (row.samples_per_s, row.waiting) == (pytest.approx(8.0), pytest.approx(0.2))


def test_a_wait_that_goes_on_counts() -> None:
    before, after = (210.0, seen_at(200.0, 100)), (210.5, seen_at(200.0, 100, asked_at=210.25))
    row = measure(before, after)
    assert (row.samples_per_s, row.waiting, row.state) == (0.0, pytest.approx(0.5), "waits")
    row = measure(before, (212.0, seen_at(200.0, 100, asked_at=200.0001)))
    assert row.waiting == 1.0
    assert row.is_stalled
    assert "waiting 12 s for one of 2 workers" in row.hint


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"left_at": 160.0}, "the loop itself has taken no batch for 40 s: not the loader"),
        ({"wait_s": 50.0, "prep_s": 80.0, "fetch_s": 60.0, "hits": 3, "misses": 97}, "fetch-bound: hits 3 %"),
        ({"wait_s": 50.0, "prep_s": 80.0, "fetch_s": 60.0}, "fetch-bound: no cache"),
        ({"wait_s": 50.0, "prep_s": 198.0}, "prep-bound: workers are busy 99 % of the time"),
        ({"wait_s": 50.0, "prep_s": 60.0}, "waits with workers 30 % busy"),
        ({"wait_s": 50.0, "prep_s": 50.0, "workers": 0}, "prep-bound: the loop prepares its batches itself"),
        ({"wait_s": 5.0}, ""),
        ({"left_at": 160.0, "is_over": True}, ""),
        ({"faults": 2}, "the cache failed 2 times"),
        ({"faults": 1}, "the cache failed once"),
        ({"left_at": 160.0, "asked_at": 161.0, "workers": 1}, "waiting 39 s for its only worker"),
        ({"left_at": 160.0, "asked_at": 161.0, "workers": 0}, f"waiting 39 s for its own process {os.getpid()}"),
        ({"left_at": 0.0, "batches": 0, "asked_at": 100.0, "late_pid": 77}, "waiting 100 s for worker pid 77"),
    ],
)
def test_hints(changes: dict[str, Any], hint: str) -> None:
    row = measure(None, (200.0, seen_at(**({"left_at": 200.0, "batches": 1000} | changes))))
    assert row.hint.startswith(hint)
    assert hint or not row.hint


def test_another_loader_of_the_process_has_the_turn() -> None:
    now = [200.0]
    validation = seen_at(150.0, 10, facts=replace(FACTS, number=1))
    watch = LoaderWatch(lambda: {"a": seen_at(now[0], int(now[0])), "b": validation}, lambda: now[0])
    for _ in range(3):
        rows = watch.rows()
        now[0] += 1
    assert [(row.state, row.hint) for row in rows] == [("trains", ""), ("pauses", "")]
    assert rows[0].history == (8.0, 8.0)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (("S", 1.0, 0, ""), ("R", 1.9, 0, ""), "prep: 90 % of a core"),
        (("S", 1.0, 0, ""), ("S", 1.1, 5_000_000, ""), "fetch: reads 5.0 MB/s"),
        (None, ("D", 1.0, 0, ""), "fetch: waits for storage"),
        (None, ("S", 1.0, 0, "sk_wait_data"), "fetch: waits for a socket"),
        (("S", 1.0, 0, ""), ("S", 1.0, 0, "futex_wait_queue"), "asleep in futex_wait_queue"),
        (None, ("S", 1.0, 0, ""), "asleep"),
        (None, ("T", 1.0, 0, ""), "stopped by a signal or a debugger"),
        (None, ("Z", 1.0, 0, ""), "dead"),
        (None, None, "dead"),
    ],
)
def test_what_a_worker_is_doing(before: Any, after: Any, words: str) -> None:
    def one(values: Any) -> Any:
        return None if values is None else process.Process(values[0], 7, *values[1:])

    assert doing(one(before), one(after), 1.0) == words


# ---- groups


def test_a_loader_says_which_group_it_is_in(place: Path) -> None:
    from stoker.group.door import home
    from stoker.group.glance import groups_of

    name = "n" * 54 + f"{os.getpid():010}"  # the longest that there may be
    with stoker.DataLoader(Numbers(40), batch_size=4, group=name) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        facts = only().facts
        assert facts.group == name
        (group,) = groups_of(loaders().values()).values()
        (member,) = group.members
        assert (group.name, group.stream, member.number) == (name, facts.stream, facts.member)
        assert (member.pid, member.step, member.behind, member.is_reading, member.workers) == (os.getpid(), 2, 0, True, ())
        assert group.prepared >= 2
        assert group.last is None
        stats = loader.stats().group
        assert stats is not None
        assert (stats.prepared, stats.budget_bytes) == (group.prepared, group.budget_bytes)
        seen = list(loaders().values())
        (about,) = (home() / name).glob("*/about")
        content = about.read_text()
        about.write_text(content.replace('"version": "', '"version": "9'))
        assert not groups_of(seen)  # the table of another version means something else
        about.write_text(content)
        assert groups_of(seen)
    assert not groups_of(seen)  # it has gone
    for odd in ("..", "/etc", "a/b", ""):
        assert not groups_of([replace(one, facts=replace(one.facts, group=odd)) for one in seen])


def test_groups_are_seen_at_one_moment(tmp_path: Path) -> None:
    from stoker.group.room import StagingRoom
    from stoker.group.rules import Group
    from stoker.group.table import Table, glance

    Table.create(tmp_path / "table", Group(StagingRoom(1000)).values())
    table = Table(tmp_path / "table", Group.of)
    is_over = False

    def write() -> None:
        while not is_over:
            with table.change() as group:
                number = group.prepared + 1
                group.prepared = group.repeated = group.taken_over = group.passed_by = number
                group.room.capacities = [number] * (number % 1000)

    writer = threading.Thread(target=write)
    writer.start()
    descriptor = os.open(tmp_path / "table", os.O_RDONLY)
    try:
        counts = []
        while len(set(counts)) < 100:
            values = glance(descriptor)
            if values is not None:
                group = Group.of(values)
                assert group.prepared == group.repeated == group.taken_over == group.passed_by
                assert group.room.capacities == [group.prepared] * (group.prepared % 1000)
                counts.append(group.prepared)
        assert counts == sorted(counts)
    finally:
        is_over = True
        writer.join()
        os.close(descriptor)
        table.close()


@pytest.mark.parametrize(
    ("late", "own", "hint"),
    [
        (
            {},
            {"waiting_s": 1.0, "waits": FOR_ROOM},
            "waiting 1 s for {}, which is 7 batches behind in the group search-7 (dead)",
        ),
        (
            {"is_reading": False},
            {"waiting_s": 5.0, "waits": FOR_ROOM},
            "waiting 5 s for {}, which is 7 batches behind in the group search-7 and is not",
        ),
        (
            {"stopped": (1 << 22,)},
            {},
            "{} is stopped by a signal or a debugger (`kill -CONT 4194304`), 7 batches behind in",
        ),
        (
            {"stopped": (8,)},
            {"waiting_s": 5.0, "waits": FOR_BATCH},
            "waiting 5 s: worker pid 8 of {}, in the group search-7, is stopped",
        ),
        ({"stopped": (1 << 22,), "is_passed": True}, {}, ""),
        (
            {},
            {"stopped": (os.getpid(),)},
            f"stopped by a signal or a debugger (`kill -CONT {os.getpid()}`); another in the",
        ),
        ({}, {"waiting_s": 1.0, "waits": FOR_BATCH}, ""),
        (
            {},
            {"waiting_s": 5.0, "waits": FOR_BATCH},
            "waiting 5 s for {}, which prepares it in the group search-7: worker pid 8",
        ),
        ({}, {"waiting_s": 5.0, "waits": Waits("prepared", 0, 7)}, "waiting 5 s for worker pid 7 ("),
        ({}, {"waiting_s": 5.0, "waits": Waits("prepared", None, 0)}, "waiting 5 s for one of the 2 workers of the group"),
        (
            {},
            {"waiting_s": 5.0, "waits": Waits("nobody", None, 0)},
            "waiting 5 s for workers, of which the group search-7 has",
        ),
        ({}, {"waiting_s": 5.0}, "waiting 5 s for others, in the group search-7"),
        (
            {},
            {"waits": FOR_ROOM, "seen": {"wait_s": 50.0}},
            "waits for {}, which is 7 batches behind in the group search-7",
        ),
        ({}, {"seen": {"wait_s": 50.0, "prep_s": 399.0}}, "prep-bound: the 2 workers of the group search-7 are busy 100 %"),
        (
            {"workers": ()},
            {"seen": {"wait_s": 50.0, "prep_s": 199.0}},
            "prep-bound: the only worker of the group search-7 is busy",
        ),
        (
            {"workers": ()},
            {"waiting_s": 5.0, "waits": Waits("prepared", None, 0)},
            "waiting 5 s for the only worker of the group search-7",
        ),
        ({}, {}, ""),
    ],
)
def test_hints_in_a_group(late: dict[str, Any], own: dict[str, Any], hint: str) -> None:
    row = group_row(replace(LATE, **late), **own)
    assert row.hint.startswith(hint.format(f"late\x1b.py (pid {1 << 22})"))
    assert hint or not row.hint


# ---- numbers for loggers


class Writer:
    """The ways of TensorBoard, Weights & Biases and MLflow to take numbers."""

    def __init__(self) -> None:
        self.logged: list[Any] = []

    def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, float], global_step: int | None = None) -> None:
        self.logged.append((main_tag, tag_scalar_dict, global_step))

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self.logged.append((values, step))

    log_metrics = log


def test_scalars_of_a_loader(place: Path) -> None:
    writer = Writer()
    loader = stoker.DataLoader(Numbers(40), batch_size=4)
    assert loader.scalars() == {"waiting_pct": 0.0, "samples_per_s": 0.0, "batches_per_s": 0.0}
    for step, _ in enumerate(loader):
        if step == 5:
            writer.add_scalars("loader", loader.scalars(), step)
    writer.log(loader.scalars("loader/"), step=10)
    (tag, first, _), (second, _) = writer.logged
    assert tag == "loader"
    assert set(first) == {"waiting_pct", "samples_per_s", "batches_per_s"}
    assert set(second) == {"loader/waiting_pct", "loader/samples_per_s", "loader/batches_per_s"}
    assert 0 < first["waiting_pct"] <= 100
    assert first["samples_per_s"] == pytest.approx(4 * first["batches_per_s"])
    loader.close()


def test_scalars_are_of_the_time_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("stoker.meter.now", lambda: now[0])
    meter = Meter()
    meter.began_at = 90.0
    meter.samples, meter.batches, meter.wait_s = 80, 10, 2.5
    scalars = Scalars([meter])
    assert scalars.take() == {"waiting_pct": 25.0, "samples_per_s": 8.0, "batches_per_s": 1.0}
    now[0] = 110.0
    meter.samples, meter.wait_s, meter.prep_s, meter.fetch_s, meter.hits, meter.misses = 180, 7.5, 8.0, 2.0, 1, 3
    assert scalars.take("l/") == {
        "l/waiting_pct": 50.0, "l/samples_per_s": 10.0, "l/batches_per_s": 0.0, "l/fetch_pct": 25.0, "l/hits_pct": 25.0
    }  # fmt: skip


def test_the_lightning_callback(place: Path, tmp_path: Path) -> None:
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.loggers.logger import DummyLogger

    from stoker.torch.lightning import StokerStats

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return self.layer(batch[0]).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Logger(DummyLogger):
        def __init__(self) -> None:
            super().__init__()
            self.logged: list[Any] = []

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.logged.append((step, metrics))

    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    for kind, warned in ((stoker.DataLoader, False), (torch.utils.data.DataLoader, True)):
        logger = Logger()
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=1, logger=logger, log_every_n_steps=4, callbacks=[StokerStats()],
            default_root_dir=tmp_path, **quiet,
        )  # fmt: skip
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            trainer.fit(Module(), kind(Numbers(32, (2,)), batch_size=4))
        assert any("no loader of this run is a stoker.DataLoader" in str(one.message) for one in told) == warned
        if not warned:
            assert [step for step, _ in logger.logged] == [3, 7]
            assert all(0 <= metrics["loader/waiting_pct"] <= 100 for _, metrics in logger.logged)
            assert all(metrics["loader/samples_per_s"] > 0 for _, metrics in logger.logged)


def test_what_it_costs(place: Path) -> None:
    """Far less than a microsecond where it is measured; here only that it is not a hundred times that."""
    record = publish(own_facts())
    assert isinstance(record, Record)
    meter, progress = Meter(), SimpleNamespace(epoch=0, batches=0)
    best = float("inf")
    for _ in range(50):
        began = time.thread_time()
        for _ in range(1000):
            record.times[0] = 1.0
            record.tell(meter, progress, 1.0)
        best = min(best, time.thread_time() - began)
    record.close()
    assert best / 1000 < 20e-6


def test_the_code_in_the_documentation_runs(place: Path, tmp_path: Path) -> None:
    """With the loggers themselves: TensorBoard's and Lightning's here, the others in a process of their own, offline."""
    import lightning.pytorch as pl
    from tensorboardX import SummaryWriter

    text = (Path(__file__).parents[2] / "docs" / "top.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert len(blocks) == 4
    (to_tensorboard,) = [block for block in blocks if "writer." in block]
    (in_lightning,) = [block for block in blocks if "Trainer" in block]
    board = SummaryWriter(str(tmp_path / "board"))
    with stoker.DataLoader(Numbers(200), batch_size=2) as loader:
        exec(to_tensorboard, {"loader": loader, "writer": board})
    board.close()
    exec(in_lightning, {"Trainer": lambda **_: pl.Callback()})
    written = [str(path).encode() + path.read_bytes() for path in (tmp_path / "board").rglob("*") if path.is_file()]
    assert any(b"waiting_pct" in one for one in written)

    script = Path(__file__).parents[1] / "scripts" / "loggers.py"
    surroundings = {**os.environ, "WANDB_SILENT": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(script), json.dumps(blocks), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for values in json.loads(done.stdout.splitlines()[-1]).values():
        assert {"loader/waiting_pct", "loader/samples_per_s", "loader/batches_per_s"} <= set(values)
        assert 0 <= values["loader/waiting_pct"] <= 100
        assert values["loader/samples_per_s"] > 0
