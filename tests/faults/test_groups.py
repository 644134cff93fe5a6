"""A group under fire: members come, leave, are killed and stopped at any moment; everybody sees every sample once."""

import contextlib
import fcntl
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from tests.tries import HANG_S, fastest
from torch.utils.data import Dataset

import stoker
from stoker.group import door as groups
from stoker.group.life import READY
from stoker.group.rules import Group
from stoker.group.staging import LOOK_S, GroupAddress, GroupStaging
from stoker.group.table import Table
from stoker.host import process
from stoker.host.locks import holder_of
from stoker.host.parent import end_with_parent
from stoker.pool import members

SAMPLES, BATCH = 60, 4
STEPS = SAMPLES // BATCH
_fork = multiprocessing.get_context("fork")


class Drawing(Dataset[Any]):
    """Samples with a number that is drawn for each."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s

    def __len__(self) -> int:
        return SAMPLES

    def __likeness__(self) -> int:
        return SAMPLES

    def __getsample__(self, index: int, rng: np.random.Generator) -> tuple[int, torch.Tensor]:
        time.sleep(self.pause_s)
        return index, torch.from_numpy(rng.random(3))


class Job:
    """A process that trains in a group, epoch after epoch, and writes down what it sees."""

    def __init__(self, name: str, folder: Path, number: int, **options: Any) -> None:
        self.path = folder / f"{number}.jsonl"
        self.path.touch()
        self.options = {"num_workers": 1, "pause_s": 0.002, "epochs": 10**9, "kind": "processes", **options}
        self.process = _fork.Process(target=self._train, args=(name,))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # until it knows what to do then
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.was_killed = False

    def _train(self, name: str) -> None:
        torch.set_num_threads(1)
        leaving = []
        signal.signal(signal.SIGUSR1, lambda *_: leaving.append(1))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        options = self.options
        loader = stoker.DataLoader(
            Drawing(options["pause_s"]),
            BATCH,
            shuffle=True,
            num_workers=options["num_workers"],
            workers=options["kind"] if options["num_workers"] else "processes",
            group=name,
            group_patience_s=options.get("patience_s"),
        )
        if "state" in options:
            loader.load_state_dict(options["state"])
        with self.path.open("a", buffering=1) as log:
            log.write(json.dumps({"pid": os.getpid()}) + "\n")
            for _ in range(options["epochs"]):
                for ids, drawn in loader:
                    state = loader.state_dict()
                    line = {"ids": ids.tolist(), "drawn": drawn.tolist(), "epoch": loader._progress.epoch, "state": state}
                    log.write(json.dumps({**line, "step": loader._progress.batches - 1}) + "\n")
                    if leaving:
                        loader.close()
                        return
                    time.sleep(options.get("compute_s", 0.0))
                log.write(json.dumps({"end": loader._progress.epoch}) + "\n")
        log.close()
        loader.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def lines(self) -> list[dict[str, Any]]:
        text = self.path.read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def epochs_done(self) -> int:
        return sum("end" in line for line in self.lines())

    def batches(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if "ids" in line]

    def workers(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.was_killed = True
        os.kill(self.pid, number)


def wait_until(what: Callable[[], Any], why: str, limit_s: float = HANG_S) -> float:
    """How long it took. The looks are short; what is waited for is not changed by them."""
    began = time.monotonic()
    while not what():
        if time.monotonic() - began > limit_s:
            pytest.fail(f"{why}: not within {limit_s:.0f} s")
        time.sleep(0.005)
    return time.monotonic() - began


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    # If the last was killed with all its workers, the next one sweeps; if not, they may be at the door just now.
    wait_until(lambda: groups.sweep() or not (groups.home() / name).exists(), "no group is left behind")


@pytest.fixture
def jobs(name: str, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def start(**options: Any) -> Job:
        started.append(Job(name, tmp_path, len(started), **options))
        return started[-1]

    yield start
    for job in started:
        if job.process.is_alive():
            os.kill(job.pid, signal.SIGCONT)
            os.kill(job.pid, signal.SIGUSR1)
    for job in started:
        job.process.join(HANG_S)
        if job.process.is_alive():
            job.process.kill()
            job.process.join()
            pytest.fail("a job did not leave")
    for job in started:
        if not job.was_killed:
            assert job.process.exitcode == 0


def group_of(name: str) -> Group:
    (path,) = (groups.home() / name).glob("*/table")
    table = Table(path, Group.of)
    try:
        with table.look() as group:
            assert isinstance(group, Group)
            return group
    finally:
        table.close()


def check_everything_once(jobs: list[Job]) -> None:
    """Whole epochs hold every sample once, parts of epochs none twice, and all jobs agree on every batch."""
    known: dict[tuple[int, int], Any] = {}
    for job in jobs:
        seen: list[int] = []
        steps: list[int] = []
        resumed = job.options.get("state", {}).get("_num_yielded", 0)
        for line in job.lines():
            if "ids" in line:
                seen += line["ids"]
                steps.append(line["step"])
                assert known.setdefault((line["epoch"], line["step"]), (line["ids"], line["drawn"])) == (
                    line["ids"],
                    line["drawn"],
                )
            elif "end" in line:
                assert steps == list(range(resumed, STEPS))
                assert len(seen) == len(set(seen)) == SAMPLES - resumed * BATCH
                seen, steps, resumed = [], [], 0
        assert len(seen) == len(set(seen))
        assert steps == list(range(resumed, resumed + len(steps)))
    drawn = [tuple(values) for _, rows in known.values() for values in rows]
    assert len(set(drawn)) == len(drawn)  # augmentations are new in every epoch


def storm(name: str, start: Callable[..., Job], events: int, seed: int) -> None:
    rng = random.Random(seed)
    everybody = [start(num_workers=workers) for workers in (1, 2, 0)]
    living = list(everybody)
    for _ in range(events):
        time.sleep(rng.uniform(0.0, 0.25))
        living = [job for job in living if job.process.is_alive()]
        event = rng.choice(["kill", "kill worker", "terminate", "join", "join", "leave", "stop"])
        if event == "join" or len(living) < 2:
            kind = rng.choice(["processes", "processes", "threads"])
            living.append(start(num_workers=rng.choice([0, 1, 2]), kind=kind, compute_s=rng.choice([0.0, 0.002])))
            everybody.append(living[-1])
            continue
        victim = living.pop(rng.randrange(len(living)))
        if event == "kill":
            victim.kill()
        elif event == "terminate":
            victim.kill(signal.SIGTERM)
        elif event == "leave":
            os.kill(victim.pid, signal.SIGUSR1)
        elif event == "kill worker" and (workers := victim.workers()):
            victim.was_killed = True  # it fails, as torch's loader would; the others do not
            os.kill(rng.choice(workers), signal.SIGKILL)
        else:
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(rng.uniform(0.0, 0.2))
            os.kill(victim.pid, signal.SIGCONT)
            living.append(victim)
    living = [job for job in living if job.process.is_alive()]
    assert living
    done = {id(job): job.epochs_done() for job in living}
    for job in living:
        wait_until(job.batches, "it has come: the last of them may have been started just now, to an empty place")
        wait_until(lambda job=job: job.epochs_done() > done[id(job)] + 1, f"job {job.pid} goes on: {group_of(name)}")
    check_everything_once(everybody)


def test_a_storm(name: str, jobs: Callable[..., Job]) -> None:
    storm(name, jobs, 10, int(os.environ.get("STORM", "0")) or random.randrange(10**6))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_a_long_storm(name: str, jobs: Callable[..., Job], seed: int) -> None:
    storm(name, jobs, 100, seed)


def test_a_killed_member_is_replaced_at_once(name: str, jobs: Callable[..., Job]) -> None:
    """Also one that nobody has reaped, whose workers are stopped and so outlive it, in the middle of a batch."""
    reader = jobs(num_workers=1, pause_s=0.02)
    killed: list[Job] = []

    def kill_one() -> float:
        slow = jobs(num_workers=2, pause_s=0.02)
        killed.append(slow)
        wait_until(lambda: reader.batches() and slow.batches(), "both read")
        workers = slow.workers()
        assert len(workers) >= 2
        claimed = stop_at_work(name, workers)
        taken_over = group_of(name).taken_over
        slow.kill()  # it becomes a zombie: this process does not wait for it
        took_s = wait_until(lambda: any((b["epoch"], b["step"]) == claimed for b in reader.batches()), "taken over")
        assert group_of(name).taken_over > taken_over
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):  # the kernel lets stopped orphans go on, or ends them
                os.kill(worker, signal.SIGCONT)
        wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), "workers end with their job")
        return took_s

    limit_s = 1.0 + 2 * BATCH * 0.02
    assert fastest(kill_one, limit_s) < limit_s
    wait_until(lambda: reader.epochs_done() >= 2, "goes on")
    check_everything_once([*killed, reader])


def stop_at_work(name: str, workers: list[int]) -> tuple[int, int]:
    """Stop workers, of which one is in the middle of a batch and none is in the middle of a change. Which batch that is."""
    (path,) = (groups.home() / name).glob("*/table")
    while True:
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        wait_until(lambda: all(psutil.Process(worker).status() == psutil.STATUS_STOPPED for worker in workers), "stopped")
        with path.open("rb") as table:
            holder = holder_of(table.fileno())
        if holder not in {f"process {worker}" for worker in workers}:
            for batch in group_of(name).batches.values():
                if batch.process[0] in workers and batch.state != READY:
                    return batch.point
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        time.sleep(0.01)


def test_the_last_one_is_killed(name: str, jobs: Callable[..., Job]) -> None:
    """Its workers take everything along, and the memory has no name."""
    job = jobs(num_workers=1)
    wait_until(job.batches, "reads")
    job.kill()
    wait_until(lambda: not (groups.home() / name).exists(), "nothing is left")


def test_the_last_one_is_killed_and_is_swept_before_its_worker_knows(
    name: str, jobs: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that removes the files is late: the worker's other thread has found the member dead by itself."""

    def watch_late(last: Callable[[], None]) -> bool:
        def late() -> None:
            while group_of(name).members:
                time.sleep(0.01)
            time.sleep(10 * LOOK_S)
            last()

        return end_with_parent(late)

    monkeypatch.setattr(members, "end_with_parent", watch_late)
    job = jobs(num_workers=1)
    wait_until(job.batches, "reads")
    job.kill()
    wait_until(lambda: not (groups.home() / name).exists(), "nothing is left", limit_s=20)


def test_the_last_one_is_killed_before_its_worker_has_begun(
    name: str, jobs: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker finds nobody through whom it could open the group's memory."""

    def open_late(address: GroupAddress) -> GroupStaging:
        if os.getpid() != address.pid:
            wait_until(lambda: (found := process.find(address.pid)) is None or found.is_dead, "killed")
        return GroupStaging(address)

    monkeypatch.setattr(members, "GroupStaging", open_late)
    job = jobs(num_workers=1)
    wait_until(job.workers, "its worker is started")
    job.kill()
    wait_until(lambda: not (groups.home() / name).exists(), "nothing is left")


def test_all_are_killed_with_their_workers(name: str, jobs: Callable[..., Job]) -> None:
    """What is left has a few pages, and goes with the next that comes."""
    job = jobs(num_workers=1)
    wait_until(job.batches, "reads")
    for pid in [*job.workers(), job.pid]:
        os.kill(pid, signal.SIGSTOP)
    workers = job.workers()
    for pid in [*workers, job.pid]:
        os.kill(pid, signal.SIGKILL)
    job.was_killed = True
    job.process.join()
    with stoker.DataLoader(Drawing(), group=f"{name}-other"):  # the next that comes, to any group
        assert not (groups.home() / name).exists()
    again = jobs(num_workers=0)
    wait_until(lambda: again.epochs_done() >= 1, "another opens it anew")
    assert again.batches()[0]["epoch"] == 0
    assert len(list((groups.home() / name).glob("*/table"))) == 1


def stop(job: Job, name: str) -> None:
    """Stop a job that does not hold the lock of its group just then: others would wait for that."""
    (table,) = (groups.home() / name).glob("*/table")
    with table.open("rb") as file:
        while True:
            os.kill(job.pid, signal.SIGSTOP)
            wait_until(lambda: psutil.Process(job.pid).status() == psutil.STATUS_STOPPED, "it is stopped")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                os.kill(job.pid, signal.SIGCONT)


def test_a_stopped_member_holds_the_others_and_goes_on(name: str, jobs: Callable[..., Job]) -> None:
    """It is slow, not dead; they wait for it, and say so."""
    stopped, other = jobs(), jobs()
    wait_until(lambda: stopped.batches() and other.batches(), "both read")
    stop(stopped, name)
    before = group_of(name)
    held = next(m for m in before.members.values() if m.process[0] == stopped.pid).point
    wait_until(lambda: _is_held(name, stopped.pid, other.pid), "the other one is held up")
    assert next(m for m in group_of(name).members.values() if m.process[0] == stopped.pid).point == held
    os.kill(stopped.pid, signal.SIGCONT)
    done = stopped.epochs_done(), other.epochs_done()
    wait_until(lambda: stopped.epochs_done() > done[0] + 1 and other.epochs_done() > done[1] + 1, "both go on")
    check_everything_once([stopped, other])


def _is_held(name: str, by: int, whom: int) -> bool:
    group = group_of(name)
    late = {m.process[0]: m.number for m in group.members.values()}
    reason = group.reason(late[whom])
    return reason.kind == "room" and reason.member == late[by]


def test_a_limit_to_patience(name: str, jobs: Callable[..., Job]) -> None:
    """The others go on without it; it misses nothing, and catches up."""
    stopped, other = jobs(), jobs(patience_s=0.3)
    wait_until(lambda: stopped.batches() and other.batches(), "both read")
    stop(stopped, name)
    done = other.epochs_done()
    wait_until(lambda: other.epochs_done() > done + 3, "goes on without")
    assert group_of(name).passed_by >= 1
    os.kill(stopped.pid, signal.SIGCONT)
    done = stopped.epochs_done()
    wait_until(lambda: stopped.epochs_done() > done + 2, "comes again")
    check_everything_once([stopped, other])


def test_a_job_comes_back(name: str, jobs: Callable[..., Job]) -> None:
    """From its state, at the same step, while the group is still there."""
    first, other = jobs(compute_s=0.002), jobs(compute_s=0.002)
    wait_until(lambda: len(first.batches()) > STEPS + 3, "is in its second epoch")
    first.kill()
    first.process.join()
    last = first.batches()[-1]
    back = jobs(state=last["state"])
    wait_until(lambda: back.epochs_done() >= 2 and other.process.is_alive(), "goes on")
    begun = back.batches()[0]
    assert (begun["epoch"], begun["step"]) == (last["state"]["epoch"], last["step"] + 1)
    check_everything_once([first, other, back])


def test_all_jobs_come_back_to_a_group_that_has_gone(name: str, jobs: Callable[..., Job]) -> None:
    before = [jobs(compute_s=0.001), jobs(compute_s=0.002)]
    wait_until(lambda: all(len(job.batches()) > STEPS + 3 for job in before), "both are in the second epoch")
    for job in before:
        job.kill()
        job.process.join()
    wait_until(lambda: groups.sweep() or not (groups.home() / name).exists(), "nothing is left")
    states = [job.batches()[-1]["state"] for job in before]
    after = [jobs(state=state) for state in states]
    wait_until(lambda: all(job.epochs_done() >= 2 for job in after), "both go on")
    for job, state in zip(after, states, strict=True):
        whole, step = divmod(state["_num_yielded"], STEPS)
        assert (job.batches()[0]["epoch"], job.batches()[0]["step"]) == (state["epoch"] + whole, step)
    check_everything_once([*before, *after])


def test_the_memory_stays_within_its_budget(name: str, tmp_path: Path) -> None:
    """With batches of all sizes, for which there is room for a few."""
    budget = 400_000
    with stoker.DataLoader(
        Ragged(), 2, shuffle=True, num_workers=2, collate_fn=pad, group=name, group_bytes=budget
    ) as loader:
        other = _fork.Process(target=_read_ragged, args=(name, budget, str(tmp_path / "out")))
        other.start()
        wait_until(lambda: len(group_of(name).members) == 2, "two members")
        for _ in range(2):
            sizes = [int(batch.numel()) for batch in loader]
            assert len(sizes) == 50
            stats = loader.stats().group
            assert 0 < stats.staging_bytes <= stats.most_bytes <= budget
            memory = loader.here.member.seat.staging.memory.descriptor
            assert 0 < os.fstat(memory).st_blocks * 512 <= budget
        other.join(60)
        assert other.exitcode == 0


class Ragged(Dataset[Any]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1 + (index * 7919) % 20_000, dtype=torch.int64)


def pad(batch: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(batch)


def _read_ragged(name: str, budget: int, out: str) -> None:
    torch.set_num_threads(1)  # a forked process hangs in the pool of threads that its parent has used
    with stoker.DataLoader(Ragged(), 2, shuffle=True, collate_fn=pad, group=name) as loader:
        for _ in range(2):
            for _ in loader:
                time.sleep(0.001)


def test_a_worker_that_is_killed_is_said(name: str, jobs: Callable[..., Job]) -> None:
    job, other = jobs(num_workers=2), jobs()
    wait_until(lambda: job.batches() and other.batches(), "both read")
    job.was_killed = True
    os.kill(job.workers()[0], signal.SIGKILL)
    job.process.join(HANG_S)
    assert job.process.exitcode == 1
    done = other.epochs_done()
    wait_until(lambda: other.epochs_done() > done + 1, "the other goes on")
    check_everything_once([job, other])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_another_user(name: str, jobs: Callable[..., Job]) -> None:
    """Cannot read it, join it, or see that it is there."""
    job = jobs()
    wait_until(job.batches, "reads")
    (path,) = (groups.home() / name).glob("*/table")
    member = next(iter(group_of(name).members.values()))
    found = _fork.Queue()
    other = _fork.Process(target=_as_nobody, args=(str(path), member.process[0], member.descriptor, name, found))
    other.start()
    assert found.get(timeout=HANG_S) == ["PermissionError", "PermissionError", "PermissionError", "own"]
    other.join()
    done = job.epochs_done()
    wait_until(lambda: job.epochs_done() > done, "undisturbed")


def _as_nobody(path: str, pid: int, descriptor: int, name: str, found: Any) -> None:
    os.setgid(65534)
    os.setuid(65534)
    tried = []
    for act in (
        lambda: os.open(path, os.O_RDONLY),
        lambda: os.listdir(groups.home().parent.parent / "stoker-0" / "groups"),
        lambda: os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR),
    ):
        try:
            act()
            tried.append("could")
        except OSError as error:
            tried.append(type(error).__name__)
    with stoker.DataLoader(Drawing(), BATCH, group=name) as loader:  # a group of its own, of the same name
        tried.append("own" if loader.stats().group.members == 1 else "joined")
    os.rmdir(groups.home())
    with contextlib.suppress(OSError):  # unless it has something else there
        os.rmdir(groups.home().parent)
    found.put(tried)


def test_opening_is_interrupted(name: str, jobs: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """The opener dies before there is anything to join: the next one finds no half of a group."""

    def dies(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for where in ("Table.create", "json.dumps", "Group.join"):
        target, attribute = where.split(".")
        with monkeypatch.context() as patch:
            patch.setattr({"Table": groups.Table, "json": groups.json, "Group": Group}[target], attribute, dies)
            job = jobs()
            job.was_killed = True
            job.process.join(HANG_S)
            assert job.process.exitcode == -signal.SIGKILL
    job = jobs()
    wait_until(lambda: job.epochs_done() >= 1, "opens it anew")
    assert process.is_alive(*next(iter(group_of(name).members.values())).process)
