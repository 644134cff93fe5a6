"""Ranks of one job on one host that share their workers."""

import contextlib
import multiprocessing
import os
import random
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tries import HANG_S, in_some_try, until
from torch.utils.data import Dataset, DistributedSampler

import stoker
import stoker.errors
from stoker.feed import sharing
from stoker.host import folders
from stoker.pool.processes import Serving
from stoker.pool.shared import SharedPool
from stoker.slots.area import Area
from stoker.slots.messages import framed, marshalled
from stoker.slots.offers import OffersSeen
from stoker.source.synthetic import Synthetic

STEPS, BATCH = 24, 4


class Uneven(Dataset[Any]):
    """Draws for every sample. Samples of rank 0 take long, and say in a folder which process is at them."""

    def __init__(self, folder: Path | None = None, dear_s: float = 0.01, ranks: int = 2) -> None:
        self.folder, self.dear_s, self.ranks = folder, dear_s, ranks

    def __len__(self) -> int:
        return STEPS * BATCH * self.ranks

    def __getitem__(self, index: int) -> Any:
        if index % self.ranks == 0:
            if self.folder is not None:
                (self.folder / f"{os.getpid()}").write_text(str(index))
            time.sleep(self.dear_s)
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


def loader_of(dataset: Any, rank: int, **options: Any) -> Any:
    sampler: Any = DistributedSampler(dataset, dataset.ranks, rank, shuffle=False)
    options = {"num_workers": 1, "seed": 3, "ranks": "shared", "sampler": sampler, **options}
    return stoker.DataLoader(dataset, BATCH, **options)


def read(dataset: Any, rank: int, options: dict[str, Any], line: Any, epochs: int) -> None:
    """A rank: it says when an epoch is over, and stays until it is told to go."""
    warnings.simplefilter("ignore")  # that it draws
    torch.manual_seed(rank)
    loader = loader_of(dataset, rank, **options)
    try:
        for _ in range(epochs):
            line.send([batch.clone() for batch in loader])
            line.recv()
        line.send(loader.stats().helped)
        line.recv()
    except RuntimeError as error:
        line.send(str(error))
        line.recv()
    finally:
        loader.close()


class Rank:
    def __init__(self, dataset: Any, number: int, epochs: int = 2, **options: Any) -> None:
        self.line, its = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=read, args=(dataset, number, options, its, epochs))
        self.process.start()
        its.close()

    def get(self) -> Any:
        assert self.line.poll(HANG_S), "no answer"
        return self.line.recv()

    def go_on(self) -> None:
        self.line.send(None)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            for _ in range(4):
                self.line.send(None)
        self.process.join(HANG_S)
        assert not self.process.is_alive()


@contextlib.contextmanager
def ranks_of(dataset: Any, *options: dict[str, Any]) -> Iterator[list[Rank]]:
    ranks = [Rank(dataset, number, **own) for number, own in enumerate(options)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.end()
        assert not left_behind(*(rank.process.pid for rank in ranks))


def left_behind(*pids: int | None) -> list[Path]:
    """Entries of these processes, after somebody has looked. Other jobs may have theirs."""
    place = folders.home() / "ranks"
    found = list(folders.entries(place)) if place.exists() else []
    return [path for path, _ in found if path.exists() and OffersSeen(path).about["pid"] in pids]


def alone(dataset: Any, rank: int) -> list[list[torch.Tensor]]:
    loader = loader_of(dataset, rank, ranks=None, num_workers=0)
    return [[batch.clone() for batch in loader] for _ in range(2)]


def are_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_rank_behind_is_helped_and_gets_what_it_would_get_alone(persistent: bool) -> None:
    dataset = Uneven()
    own = {"persistent_workers": persistent}

    def check() -> None:
        with ranks_of(dataset, own, {**own, "num_workers": 2}) as ranks:
            for epoch in range(2):
                got = [rank.get() for rank in ranks[::-1]][::-1]
                for number in range(2):
                    assert are_equal(got[number], alone(dataset, number)[epoch])
                for rank in ranks:
                    rank.go_on()
            helped = [rank.get() for rank in ranks]
        assert helped[0] > 0  # by workers of the other, which waited for this one after their own epoch

    in_some_try(check)


def workers_of(pid: int) -> list[int]:
    """The worker processes of a rank."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until_helped(folder: Path, helper: Rank) -> int:
    """Wait until a worker of a rank makes a batch for another one. Returns its pid."""
    assert helper.process.pid is not None
    own = workers_of(helper.process.pid)
    found: list[int] = []

    def look() -> bool:
        found[:] = [int(path.name) for path in folder.iterdir() if int(path.name) in own]
        return bool(found)

    until(look)
    return found[0]


@pytest.mark.parametrize("act", [signal.SIGKILL, signal.SIGSTOP])
def test_a_helper_that_is_killed_or_stopped_holds_up_nobody(act: signal.Signals, tmp_path: Path) -> None:
    dataset = Uneven(tmp_path, dear_s=0.04)
    with ranks_of(dataset, {"epochs": 1}, {"persistent_workers": True}) as (behind, helper):
        helper.get()
        worker = until_helped(tmp_path, helper)
        os.kill(worker, act)
        try:
            assert are_equal(behind.get(), alone(Uneven(dear_s=0), 0)[0])
        finally:
            if act == signal.SIGSTOP:
                os.kill(worker, signal.SIGCONT)
        if act == signal.SIGKILL:  # it raises in the rank that it belongs to
            helper.go_on()
            assert "SIGKILL" in helper.get()


def test_a_rank_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
    dataset = Uneven(tmp_path, dear_s=0.04)
    with ranks_of(dataset, {"epochs": 1}, {"persistent_workers": True}) as (behind, helper):
        helper.get()
        until_helped(tmp_path, helper)
        assert helper.process.pid is not None
        os.kill(helper.process.pid, signal.SIGKILL)
        assert are_equal(behind.get(), alone(Uneven(dear_s=0), 0)[0])


class SlowForAWhile(Uneven):
    """Dear in the middle of the epoch only."""

    def __getitem__(self, index: int) -> Any:
        step = index // self.ranks // BATCH
        if index % self.ranks == 0 and STEPS // 3 <= step < 2 * STEPS // 3:
            time.sleep(self.dear_s)
        else:
            time.sleep(0.002)
        return torch.tensor([index])


def in_step(dataset: Any, rank: int, meet: Any, line: Any) -> None:
    """A rank that meets the others after every step. It tells how many batches others had made for it by then."""
    loader = loader_of(dataset, rank, persistent_workers=True)
    helped = []
    for _ in loader:
        meet.wait(HANG_S)
        helped.append(loader.stats().helped)
    line.send(helped)
    meet.wait(HANG_S)
    loader.close()


def test_help_comes_while_a_rank_is_slow_and_no_longer() -> None:
    def check() -> None:
        dataset, meet = SlowForAWhile(dear_s=0.03), multiprocessing.Barrier(2)
        lines = [multiprocessing.Pipe() for _ in range(2)]
        ranks = [multiprocessing.Process(target=in_step, args=(dataset, n, meet, lines[n][1])) for n in range(2)]
        for one in ranks:
            one.start()
        assert lines[0][0].poll(HANG_S)
        helped = lines[0][0].recv()
        for one in ranks:
            one.join(HANG_S)
        before, slow, after = helped[STEPS // 3 - 1], helped[2 * STEPS // 3 + 1], helped[-1]
        assert slow - before >= 2  # of eight
        assert after - slow <= 1

    in_some_try(check)


def step_by_step(dataset: Any, begun: Any, over: Any) -> None:
    """A rank whose worker gets an order every 30 ms, and is idle for most of that time."""
    loader = loader_of(dataset, 1, persistent_workers=True)
    for number, _ in enumerate(batch for _ in range(100) for batch in loader):
        if number == 20:
            begun.set()
        if over.wait(0.03):
            break
    loader.close()


def test_a_worker_that_is_never_idle_for_long_helps_a_rank_that_comes_later() -> None:
    def check() -> None:
        dataset = Uneven(dear_s=0.02)
        begun, over = multiprocessing.Event(), multiprocessing.Event()
        other = multiprocessing.Process(target=step_by_step, args=(dataset, begun, over))
        other.start()
        try:
            assert begun.wait(HANG_S)
            with ranks_of(dataset, {"epochs": 1}) as (rank,):
                rank.get()
                rank.go_on()
                assert rank.get() > 0
        finally:
            over.set()
            other.join(HANG_S)

    in_some_try(check)


KILLS = [pytest.param(6, id="some"), pytest.param(100, id="many", marks=pytest.mark.soak)]


@pytest.mark.parametrize("kills", KILLS)
def test_workers_and_ranks_killed_at_random_moments(kills: int) -> None:
    """Rank 0 gets all its batches. Rank 1 either does, too, or is told that a worker of its own was killed."""
    chance = random.Random(5)
    for number in range(kills):
        kind, seed = (Uneven, 3) if number % 2 else (Still, None)  # what draws nothing needs no seed
        whole = [alone(kind(dear_s=0), rank)[0] for rank in range(2)]
        own = {"seed": seed, "persistent_workers": True}
        with ranks_of(kind(dear_s=0.004), {"epochs": 1, **own}, {"num_workers": 2, **own}) as (behind, helper):
            assert helper.process.pid is not None
            until(lambda pid=helper.process.pid: len(workers_of(pid)) == 2)
            time.sleep(chance.random() * 0.6)
            victim = chance.choice([helper.process.pid, *workers_of(helper.process.pid)])
            os.kill(victim, signal.SIGKILL)
            assert are_equal(behind.get(), whole[0])
            if victim != helper.process.pid:
                said = helper.get()
                assert "SIGKILL" in said if isinstance(said, str) else are_equal(said, whole[1])


class Failing(Uneven):
    def __getitem__(self, index: int) -> Any:
        if index == 40 * self.ranks:
            raise LookupError(f"sample {index}")
        return super().__getitem__(index)


def test_errors_are_those_of_the_own_worker(tmp_path: Path) -> None:
    dataset = Failing(tmp_path)

    def rank(number: int, line: Any) -> None:
        loader = loader_of(dataset, number)
        try:
            list(loader)
        except LookupError as error:
            line.send(str(error))
        else:
            line.send("")
        line.recv()

    lines = [multiprocessing.Pipe() for _ in range(2)]
    processes = [multiprocessing.Process(target=rank, args=(number, lines[number][1])) for number in range(2)]
    for process in processes:
        process.start()
    words = []
    for line, _ in lines:
        assert line.poll(HANG_S)
        words.append(line.recv())
    for (line, _), process in zip(lines, processes, strict=True):
        line.send(None)
        process.join(HANG_S)
    assert "DataLoader worker process 0" in words[0] and "sample 80" in words[0]
    assert words[1] == ""


class OwnGenerator(Uneven):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)


class DrawsLate(Uneven):
    """Draws for some samples only, in the middle of the epoch."""

    def __getitem__(self, index: int) -> Any:
        if index % self.ranks == 0:
            time.sleep(self.dear_s)
        drawn = torch.rand(()).item() + random.random() if 50 < index < 60 or 100 < index < 103 or index > 150 else 0.0
        return torch.tensor([index, drawn], dtype=torch.float64)


class Still(Uneven):
    """Draws nothing at all."""

    def __getitem__(self, index: int) -> Any:
        if index % self.ranks == 0:
            time.sleep(self.dear_s)
        return torch.tensor([index], dtype=torch.float64)


class AsksWho(Still):
    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        return super().__getitem__(index) + (info.id if info is not None and index > 60 else 0) / 2


class AsksHowMany(Still):
    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        return super().__getitem__(index) + (info.num_workers if info is not None and index > 60 else 0) / 8


class AsksForTheSeed(Still):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + (torch.initial_seed() % 1000 / 1000 if index > 60 else 0)


class CountsLate(Still):
    """Another dataset from the middle of an epoch on."""

    count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += index > 60
        return super().__getitem__(index) + self.count / 1000


class Counts(Still):
    """Another dataset after every sample."""

    count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return super().__getitem__(index) + self.count / 1000


class Counter:
    count = 0


class CountsWithin(Still):
    """Another dataset from the middle of an epoch on, by what one of its parts remembers."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.parts = [Counter()]

    def __getitem__(self, index: int) -> Any:
        self.parts[0].count += index > 60
        return super().__getitem__(index) + self.parts[0].count / 1000


def torchs(dataset: Any, rank: int, workers: int) -> list[list[torch.Tensor]]:
    """What torch's own loader gives a rank."""
    sampler: Any = DistributedSampler(dataset, dataset.ranks, rank, shuffle=False)
    with torch.random.fork_rng():
        torch.manual_seed(rank)
        options: Any = {"num_workers": workers, "persistent_workers": True}
        loader = torch.utils.data.DataLoader(dataset, BATCH, sampler=sampler, **options)
        return [[batch.clone() for batch in loader] for _ in range(2)]


KINDS_WITHOUT_A_SEED = [Still, DrawsLate, AsksWho, AsksHowMany, AsksForTheSeed, Counts, CountsLate, CountsWithin]


@pytest.mark.parametrize("kind", KINDS_WITHOUT_A_SEED)
@pytest.mark.parametrize("workers", [1, 2])
def test_without_a_seed_it_is_torchs_bit_for_bit(kind: type[Uneven], workers: int) -> None:
    dataset = kind()
    options = {"seed": None, "persistent_workers": True}
    numbers = workers, 3 - workers
    with ranks_of(dataset, *({**options, "num_workers": number} for number in numbers)) as ranks:
        for epoch in range(2):
            got = [rank.get() for rank in ranks[::-1]][::-1]
            for number in range(2):
                assert are_equal(got[number], torchs(kind(dear_s=0), number, numbers[number])[epoch])
            for rank in ranks:
                rank.go_on()
        helped = [rank.get() for rank in ranks]
    if kind is Still:
        assert helped[0] > 0
    if kind is Counts:
        assert not any(helped)


class TakesMany(Still):
    """Gives what it was asked for."""

    def __getitem__(self, indices: Any) -> Any:
        return indices * 2


def test_without_a_seed_a_dataset_gets_arrays_that_a_sampler_gives_and_torch_converts_what_it_makes_of_them() -> None:
    class Arrays(DistributedSampler[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from np.array(list(super().__iter__())).reshape(-1, BATCH)

    dataset = TakesMany()
    sampler: Any = Arrays(dataset, 2, 0, shuffle=False)
    loader = stoker.DataLoader(dataset, None, sampler=sampler, num_workers=1, ranks="shared")
    theirs = torch.utils.data.DataLoader(dataset, None, sampler=sampler)
    assert are_equal(list(loader), list(theirs))


KINDS: dict[str, Callable[[Any], Any]] = {"numpy": np.int64, "tensors": torch.tensor}


class OfAKind(DistributedSampler[Any]):
    """Gives indices as samplers do that are made with NumPy or torch."""

    def __init__(self, dataset: Any, rank: int, kind: str) -> None:
        super().__init__(dataset, dataset.ranks, rank, shuffle=False)
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        return iter([KINDS[self.kind](index) for index in super().__iter__()])


class AnyIndex(Still):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(int(index))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [None, 3])
def test_indices_of_numpy_and_torch_are_shared_too(kind: str, seed: int | None) -> None:
    dataset = AnyIndex(dear_s=0.03)
    own = {"seed": seed, "persistent_workers": True, "epochs": 1}
    options = [{**own, "sampler": OfAKind(dataset, rank, kind)} for rank in range(2)]
    with ranks_of(dataset, *options) as ranks:
        for number in (1, 0):
            assert are_equal(ranks[number].get(), alone(AnyIndex(dear_s=0), number)[0])
        for rank in ranks:
            rank.go_on()
        assert ranks[0].get() > 0


REASONS: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "threads": (Uneven, {"workers": "threads"}, "threads"),
    "any order": (Uneven, {"in_order": False}, "in_order"),
    "worker_init_fn": (Uneven, {"worker_init_fn": print}, "worker_init_fn"),
    "a generator": (OwnGenerator, {}, "generator of its own"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_not_shared_says_why_once(name: str) -> None:
    make, options, why = REASONS[name]
    loader = loader_of(make(), 0, **options)
    with pytest.warns(UserWarning, match=why):
        assert sharing.job_of(loader) is None
    assert sharing.job_of(loader) is None
    assert not left_behind(os.getpid())


def test_threads_that_are_not_shared_say_so_when_an_epoch_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "of a launch that has said nothing yet")
    loader = loader_of(Still(dear_s=0), 1, workers="threads")
    with pytest.warns(UserWarning, match="worker threads belong to their process"):
        assert len(list(loader)) == STEPS


def test_a_cache_that_follows_one_ranks_order_is_not_shared_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "of a launch that has said nothing yet")
    dataset: Any = stoker.Dataset(Synthetic(32, 16), lambda raw, index, rng: len(raw))
    sampler: Any = DistributedSampler(dataset, 2, 0, shuffle=False)
    options: dict[str, Any] = {"cache": 1 << 20, "cache_policy": "reuse-distance"}
    with (
        stoker.DataLoader(dataset, BATCH, sampler=sampler, num_workers=1, seed=3, ranks="shared", **options) as loader,
        pytest.warns(UserWarning, match="reuse-distance.*follows the order of one rank"),
    ):
        assert len(list(loader)) == 4
    assert not left_behind(os.getpid())


@pytest.mark.parametrize("seed", [None, 3])
def test_a_worker_that_begins_when_its_epoch_is_over_ends_quietly(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = Serving.__call__

    def late(self: Serving, *lines: Any) -> None:
        (tmp_path / f"{os.getpid()}").touch()
        until(lambda: (tmp_path / "over").exists())
        begun(self, *lines)

    monkeypatch.setattr(Serving, "__call__", late)
    closed = SharedPool._close_helpers

    def close(self: SharedPool) -> None:
        closed(self)
        (tmp_path / "over").touch()

    monkeypatch.setattr(SharedPool, "_close_helpers", close)
    loader = loader_of(Still(dear_s=0), 0, seed=seed)
    iter(loader)  # and nothing more
    loader.close()
    assert len(list(tmp_path.iterdir())) == 2, "no worker has begun"
    assert capfd.readouterr().err == ""


def memfds() -> int:
    """How many descriptors of shared memory this process has."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum("memfd:stoker" in os.readlink(path) for path in links)


def come_and_go(address: str) -> None:
    """A worker of another rank that comes, and ends before it has made anything."""
    area = Area(1, 2)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as line:
        line.connect(f"\0{address}")
        socket.send_fds(line, [framed(marshalled((1, area.prefetch, area.stride)))], [area.memory.descriptor])
    area.memory.close()


def test_memory_of_workers_that_have_gone_is_given_back() -> None:
    loader = loader_of(Still(dear_s=0.01), 0, seed=None)
    batches = iter(loader)
    next(batches)
    [path] = left_behind(os.getpid())
    address = OffersSeen(path).about["address"]
    before = memfds()
    for _ in range(5):
        come_and_go(address)
        next(batches)
        next(batches)
    assert memfds() == before
    rest = list(batches)
    assert len(rest) == STEPS - 11
    loader.close()


def resume(rank: int, line: Any) -> None:
    """A rank that stops in the middle of an epoch, and goes on with a new loader."""
    dataset = Uneven()
    first = loader_of(dataset, rank, persistent_workers=True)
    begun = [batch.clone() for _, batch in zip(range(7), first, strict=False)]
    state = first.state_dict()
    first.close()
    second = loader_of(dataset, rank, persistent_workers=True)
    second.load_state_dict(state)
    for _ in range(2):
        begun += [batch.clone() for batch in second]
    line.send((begun, second.stats().helped))
    line.recv()
    second.close()


def test_ranks_that_share_go_on_in_the_middle_of_an_epoch() -> None:
    lines = [multiprocessing.Pipe() for _ in range(2)]
    ranks = [multiprocessing.Process(target=resume, args=(rank, lines[rank][1])) for rank in range(2)]
    for one in ranks:
        one.start()
    found = []
    for line, _ in lines[::-1]:
        assert line.poll(HANG_S)
        found.insert(0, line.recv())
    for (line, _), one in zip(lines, ranks, strict=True):
        line.send(None)
        one.join(HANG_S)
    for rank in range(2):
        epochs = alone(Uneven(dear_s=0), rank)
        assert are_equal(found[rank][0], epochs[0] + epochs[1])
    assert found[0][1] > 0


def say_why(rank: int, line: Any) -> None:
    """A rank that draws without a seed, and that nobody has told its number."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = loader_of(Uneven(dear_s=0), rank, seed=None)
        list(loader)
        line.send([str(one.message) for one in said])
        line.recv()


def test_only_one_rank_says_that_a_seed_would_share_what_draws() -> None:
    lines = [multiprocessing.Pipe() for _ in range(3)]
    ranks = [multiprocessing.Process(target=say_why, args=(rank % 2, lines[rank][1])) for rank in range(3)]
    for one in ranks:
        one.start()
    said = []
    for line, _ in lines:
        assert line.poll(HANG_S)
        said += line.recv()
    for (line, _), one in zip(lines, ranks, strict=True):
        line.send(None)
        one.join(HANG_S)
    assert len(said) == 1 and "stoker run --seed N" in said[0]


def test_ranks_with_other_data_are_strangers() -> None:
    jobs = {sharing.job_of(loader_of(Uneven(dear_s=dear_s), 0, seed=seed)) for dear_s in (0, 1) for seed in (1, 2)}
    assert len(jobs) == 4
    assert sharing.job_of(loader_of(Uneven(), 0)) == sharing.job_of(loader_of(Uneven(), 1))


def test_accelerates_shards_are_of_several_ranks() -> None:
    shard = pytest.importorskip("accelerate.data_loader").BatchSamplerShard
    dataset: Any = Uneven()
    batches = torch.utils.data.BatchSampler(range(len(dataset)), BATCH, drop_last=False)
    loaders = [
        stoker.DataLoader(dataset, batch_sampler=shard(batches, 2, rank), num_workers=1, seed=1, ranks="shared")
        for rank in range(2)
    ]
    jobs = {sharing.job_of(loader) for loader in loaders}
    assert len(jobs) == 1 and None not in jobs


def test_loaders_that_give_a_dataset_whole_batches_are_strangers_to_others() -> None:
    dataset = Uneven()
    sampler: Any = DistributedSampler(dataset, 2, 0)
    options: Any = {"sampler": sampler, "collate_fn": list, "num_workers": 1, "ranks": "shared"}
    assert sharing.job_of(stoker.DataLoader(dataset, None, **options)) != sharing.job_of(
        stoker.DataLoader(dataset, BATCH, **options)
    )


def test_one_process_alone_shares_nothing_and_says_nothing(recwarn: pytest.WarningsRecorder) -> None:
    loader = stoker.DataLoader(Uneven(dear_s=0), BATCH, num_workers=1, ranks="shared", seed=1)
    assert len(list(loader)) == 2 * STEPS
    assert not left_behind(os.getpid()) and not recwarn
