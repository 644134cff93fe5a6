"""What the keeper reads ahead: the same batches as without, for every kind of loader; readers go where they are needed."""

import contextlib
import io
import multiprocessing
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.keeper.conftest import FILES, SIZE
from tests.keeper.test_life import is_gone, keepers, the_keeper
from tests.latent_folder import Latent, latent_folder
from tests.tries import HANG_S, until
from torch.utils.data import ConcatDataset, Dataset, Subset

import stoker
from stoker.cache.asked import Origin
from stoker.cache.staging import Stager, Staging
from stoker.feed.tables import paths_of
from stoker.keeper import view
from stoker.keeper.bringing import Bringing, Brought, Near
from stoker.keeper.queues import LoaderQueue, Queued
from stoker.keeper.table import range_entry, where
from stoker.source.files import Files, file_version, range_key
from stoker.source.tar import members


class Listed(Dataset[Any]):
    """As torchvision's ImageFolder keeps its files."""

    draws = True
    """As augmentations do."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        names = sorted(name for name in os.listdir(folder) if name.startswith(prefix))
        self.samples = [(str(folder / name), number) for number, name in enumerate(names)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, number = self.samples[index]
        with open(path, "rb") as file:
            content = np.frombuffer(file.read(), np.uint8)
        first = np.random.randint(100) if self.draws else 0
        return content[first:][:64].copy(), number


def batches(loader: Any) -> list[Any]:
    torch.manual_seed(5)
    np.random.seed(5)
    return [(batch.clone(), numbers.clone()) for batch, numbers in loader]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(one, other, strict=True)
    )


REGIMES: dict[str, dict[str, Any]] = {
    "torch's workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
    "spawned workers": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "seeded workers": {"num_workers": 2, "seed": 3},
    "seeded threads": {"num_workers": 2, "workers": "threads", "seed": 3},
    "no workers": {"num_workers": 0},
    "no workers, seeded": {"num_workers": 0, "seed": 3},
}


@pytest.mark.parametrize("room", ["all", "a quarter"])
@pytest.mark.parametrize("regime", REGIMES)
def test_batches_are_the_same_and_were_read_ahead(
    regime: str, room: str, latent: Latent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = FILES * SIZE if room == "all" else FILES * SIZE // 4
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, **REGIMES[regime]}
    if regime == "spawned workers" and room == "a quarter":
        options["persistent_workers"] = True  # starting them anew in each epoch takes seconds, and once is enough
    dataset = Listed(latent.path)
    dataset.draws = options.get("workers") != "threads"
    monkeypatch.setenv("STOKER_READERS", "0")
    with stoker.DataLoader(dataset, cache=cache, cache_dir=tmp_path / "without", **options) as loader:
        expected = [batches(loader) for _ in range(2)]
        without = loader.stats()
        assert without.read_ahead == 0
    monkeypatch.delenv("STOKER_READERS")
    with kept_alive(latent.path, tmp_path):
        for attempt in range(10):  # a busy machine starts the keeper when all is read
            with stoker.DataLoader(dataset, cache=cache, cache_dir=tmp_path / f"with-{attempt}", **options) as loader:
                for epoch in range(2):
                    assert same(batches(loader), expected[epoch])
                stats = loader.stats()
            if "seed" not in options:  # with one, each worker makes a sample twice to find out that it draws
                found = FILES if room == "all" else FILES // 4
                assert (stats.hits, stats.misses) == (found, 2 * FILES - found)
            if "seed" not in options or room == "all":
                assert (stats.hits, stats.misses) == (without.hits, without.misses)
            assert stats.bytes_storage == stats.misses * SIZE
            if stats.read_ahead:
                return
    raise AssertionError("nothing was read ahead")


@contextlib.contextmanager
def kept_alive(folder: Path, tmp_path: Path) -> Iterator[None]:
    """A loader that keeps the keeper alive."""
    with stoker.DataLoader(Listed(folder), 8, cache=FILES * SIZE, cache_dir=tmp_path / "beside") as loader:
        next(iter(loader))
        yield


def test_nothing_is_read_for_loaders_without_a_cache_or_files(data: Path) -> None:
    with stoker.DataLoader(Listed(data), 8, num_workers=1) as loader:
        list(loader)
        assert not keepers()
    with stoker.DataLoader(torch.utils.data.TensorDataset(torch.arange(64)), 8, num_workers=1, cache=1 << 20) as loader:
        with pytest.warns(UserWarning, match="has seen no file"):
            list(loader)
        assert not keepers()


def test_a_dataset_that_opens_other_files_than_it_lists_is_given_up(tmp_path: Path, latent: Latent) -> None:
    class Other(Listed):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__((index * 31 + 7) % len(self))

    dataset = torch.utils.data.ConcatDataset([Other(latent.path)] * 8)
    before = latent.reads()
    with stoker.DataLoader(dataset, 4, num_workers=2, cache=SIZE, cache_dir=tmp_path) as loader:
        list(loader)
    assert latent.reads() - before < 1.7 * 8 * FILES  # all would be 2


class Computed(Listed):
    """Makes the paths of a sample as it is asked for: a picture, and its mask."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = len(os.listdir(folder)) // 2

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        first = np.random.randint(100) if self.draws else 0
        contents = [(self.folder / f"{1 + number % 2}-{number:04}").read_bytes() for number in self.numbers(index)]
        return np.concatenate([np.frombuffer(content, np.uint8)[first:][:64] for content in contents]), index

    def numbers(self, index: int) -> list[int]:
        return [2 * index, 2 * index + 1]


@pytest.mark.parametrize("regime", REGIMES)
def test_what_a_dataset_opens_in_the_first_epoch_is_read_ahead_in_the_second(
    regime: str, latent: Latent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latent.set(0.004, 1)
    latent.set(0.004, 2)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "cache": 2 * SIZE, **REGIMES[regime]}
    if regime == "spawned workers":
        options["persistent_workers"] = True  # starting them takes seconds
    dataset = Computed(latent.path)
    dataset.draws = options.get("workers") != "threads"
    monkeypatch.setenv("STOKER_READERS", "0")
    with stoker.DataLoader(dataset, cache_dir=tmp_path / "without", **options) as loader:
        expected = [batches(loader) for _ in range(2)]
    monkeypatch.delenv("STOKER_READERS")
    with kept_alive(latent.path, tmp_path):
        for attempt in range(10):  # a busy machine may not get round to it
            with stoker.DataLoader(dataset, cache_dir=tmp_path / f"with-{attempt}", **options) as loader:
                assert same(batches(loader), expected[0])
                assert loader.stats().read_ahead == 0
                assert same(batches(loader), expected[1])
                if loader.stats().read_ahead:
                    return
    raise AssertionError("nothing was read ahead")


@pytest.mark.parametrize("is_chosen_anew", [False, True])
def test_a_dataset_that_opens_other_files_each_time_is_given_up(
    is_chosen_anew: bool, tmp_path: Path, latent: Latent
) -> None:
    class Anew(Computed):
        def numbers(self, index: int) -> list[int]:
            return [secrets.randbelow(FILES) if is_chosen_anew else 2 * index]

    latent.set(0.001, 1)
    latent.set(0.001, 2)
    epochs, each = 4, FILES // 2 * 8
    dataset = ConcatDataset([Anew(latent.path)] * 8)
    with stoker.DataLoader(dataset, 2, shuffle=True, num_workers=1, cache=SIZE, cache_dir=tmp_path) as loader:
        with kept_alive(latent.path, tmp_path):
            before = latent.reads()
            for _ in range(epochs):
                list(loader)
            if is_chosen_anew:
                assert latent.reads() - before < (epochs + 1) * each  # all that was recorded would be 3 epochs more
            else:
                until(lambda: list(loader) and loader.stats().read_ahead > 2 * each)


def test_samples_that_were_noted_are_not_noted_again(data: Path, tmp_path: Path) -> None:
    with stoker.DataLoader(Computed(data), 4, num_workers=2, cache=SIZE, cache_dir=tmp_path) as loader:
        lengths = []
        for _ in range(3):
            list(loader)
            ahead = loader.here.ahead
            assert ahead is not None and ahead.staging.notes is not None
            lengths.append(os.fstat(ahead.staging.notes.log.descriptor).st_size)
        assert lengths[0] and len(set(lengths)) == 1
        assert not ahead.staging.notes.is_open


def test_tables_of_parts_and_chains(data: Path) -> None:
    listed = Listed(data)
    paths = [path for path, _ in listed.samples]
    assert paths_of(listed) == paths
    assert paths_of(Subset(listed, [3, 1])) == [paths[3], paths[1]]
    assert paths_of(ConcatDataset([listed, Subset(listed, [5])])) == [*paths, paths[5]]
    assert paths_of(stoker.Dataset(Files(paths), prep=lambda raw, index, rng: 0)) == paths
    assert paths_of(torch.utils.data.TensorDataset(torch.arange(3))) is None


def _first_bytes(raw: memoryview, index: int, rng: Any) -> Any:
    content = members(raw)["bin"]
    return np.frombuffer(content, np.uint8)[:64].copy(), index


@pytest.mark.parametrize("room", ["all", "none"])
def test_samples_of_tar_shards_are_read_ahead(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))  # for the indices: that folder cannot be written
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(3):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(32):
                about = tarfile.TarInfo(f"{number:04}.bin")
                about.size = SIZE
                tar.addfile(about, io.BytesIO(np.random.default_rng(32 * shard + number).bytes(SIZE)))
        os.utime(folder / f"{shard}.tar", (1e9, 1e9))
    with latent_folder(folder, 0.004) as made:
        if made is None:
            pytest.skip("/dev/fuse cannot be mounted here")
        dataset = stoker.Dataset(str(made.path / "*.tar"), _first_bytes)
        options: dict[str, Any] = {"shuffle": True, "num_workers": 2, "seed": 3}
        cache = 4 * FILES * SIZE if room == "all" else 1
        monkeypatch.setenv("STOKER_READERS", "0")
        with stoker.DataLoader(dataset, 8, cache=cache, cache_dir=tmp_path / "without", **options) as loader:
            expected = batches(loader)
        monkeypatch.delenv("STOKER_READERS")
        with kept_alive(made.path, tmp_path):
            for attempt in range(10):
                with stoker.DataLoader(
                    dataset, 8, cache=cache, cache_dir=tmp_path / f"with-{attempt}", **options
                ) as loader:
                    assert same(batches(loader), expected)
                    if loader.stats().read_ahead:
                        return
    raise AssertionError("nothing was read ahead")


def test_no_range_of_a_shard_is_brought_that_has_been_replaced(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(b"old" * 1000)
    os.utime(path, (1e9, 1e9))
    entry = range_entry(str(path), 30, 60, file_version(os.stat(path))).encode()
    with stoker.DataLoader(Listed(tmp_path), 1, cache=1 << 20, cache_dir=tmp_path / "cache") as loader:
        assert loader.caching.cache is not None and loader.caching.cache.folder is not None
        memory = Staging(1 << 20).memory
        stager = Stager(1 << 20, os.dup(memory.descriptor))
        near = Near(loader.caching.cache.folder)
        bringing = Bringing(near, stager, ("/",), fills_cache=False, is_shared=False, far=None)
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        status = os.stat(path)
        found = bringing._look_at_range(where(entry))
        assert found == (range_key(str(path), 30, 60) + file_version(status), 60)
        path.write_bytes(b"new" * 1000)
        os.utime(path, (1e9, 1e9))
        assert bringing.bring(0, entry)[0] is Brought.LEFT
        near.close()


class _Elsewhere:
    """Other hosts that have everything, and count what is fetched from them."""

    def __init__(self, content: bytes) -> None:
        self.content, self.fetched = content, 0
        self.keeps_copies = False

    def has(self, key: bytes) -> bool:
        return True

    def fetch(self, key: bytes) -> bytes:
        self.fetched += 1
        return self.content


def test_what_a_worker_was_given_is_not_fetched_a_second_time_for_its_batch(tmp_path: Path) -> None:
    path = tmp_path / "files" / "one.bin"
    path.parent.mkdir()
    path.write_bytes(b"one" * 1000)
    os.utime(path, (1e9, 1e9))
    roots = (str(path.parent) + os.sep,)
    with stoker.DataLoader(Listed(path.parent), 1, cache=1 << 20, cache_dir=tmp_path / "cache") as loader:
        assert loader.caching.cache is not None and loader.caching.cache.folder is not None
        memory = Staging(1 << 20).memory
        stager = Stager(1 << 20, os.dup(memory.descriptor))
        near, far = Near(loader.caching.cache.folder), _Elsewhere(path.read_bytes())
        bringing = Bringing(near, stager, roots, fills_cache=False, is_shared=True, far=far)  # type: ignore[arg-type]
        found = bringing._look(os.fsencode(path))
        assert found is not None
        bringing.latest_work = 5
        assert bringing.give(found[0], os.fsencode(path)) == (far.content, Origin.PEER)
        assert bringing.bring(3, os.fsencode(path))[0] is Brought.LEFT
        assert far.fetched == 1
        stager.taken(6)  # its batch was used: a later one needs it again
        assert bringing.bring(7, os.fsencode(path))[0] is Brought.READ
        assert far.fetched == 2
        near.close()


def _rank(number: int, folder: Path, cache_dir: Path, stop: Any) -> None:
    os.environ["RANK"], os.environ["STOKER_READERS"] = str(number), "8"
    dataset = ConcatDataset([Listed(folder, str(number + 1))] * 50)
    loader = stoker.DataLoader(dataset, 16, shuffle=True, num_workers=1, prefetch_factor=4, cache=1, cache_dir=cache_dir)
    while not stop.is_set():
        for _ in loader:
            time.sleep(0.04)
            if stop.is_set():
                break
    loader.close()


def test_readers_go_to_a_rank_that_becomes_slow_and_come_back(latent: Latent, tmp_path: Path) -> None:
    latent.set(0.002, 1)
    latent.set(0.002, 2)
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    ranks = [context.Process(target=_rank, args=(number, latent.path, tmp_path, stop)) for number in range(2)]
    for rank in ranks:
        rank.start()

    def readers() -> dict[int, int]:
        return {queue["rank"]: queue["readers"] for state in keepers() for queue in state.get("queues", ())}

    def moved(is_so: Callable[[dict[int, int]], bool]) -> float:
        began = time.monotonic()
        until(lambda: len(readers()) == 2 and is_so(readers()))
        return time.monotonic() - began

    try:
        moved(lambda now: sum(now.values()) == 0)
        times = []
        for _ in range(3):  # a busy machine may take longer once
            latent.set(0.05, 1)
            away = moved(lambda now: now[0] >= 5)
            latent.set(0.002, 1)
            (shown,) = view.keepers()
            assert any(move.target == "rank 0" for move in shown.moves)
            times.append((away, moved(lambda now: now[0] <= 4)))
            if max(times[-1]) < 2:
                break
        assert any(max(both) < 2 for both in times), times
    finally:
        stop.set()
        for rank in ranks:
            rank.join(HANG_S)
    assert [rank.exitcode for rank in ranks] == [0, 0]


def test_killed_keepers_and_workers_change_nothing(latent: Latent, tmp_path: Path) -> None:
    latent.set(0.002)
    for group in (1, 2):
        latent.set(0.002, group)
    dataset = Listed(latent.path)
    draw = np.random.default_rng(1)
    with stoker.DataLoader(dataset, 8, num_workers=2, seed=3, cache=FILES * SIZE // 2, cache_dir=tmp_path) as loader:
        expected = None
        for _ in range(12):
            loader.set_epoch(0)
            found = []
            kill_at = int(draw.integers(12))
            for number, (batch, numbers) in enumerate(loader):
                found.append((batch.clone(), numbers.clone()))
                if number == kill_at and keepers():
                    os.kill(keepers()[0]["pid"], signal.SIGKILL)
            expected = expected or found
            assert same(found, expected)
            assert sorted(int(one) for _, numbers in found for one in numbers) == list(range(FILES))
    until(lambda: not keepers())


def test_a_killed_rank_leaves_nothing(latent: Latent, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for pause in (0.0, 0.3):
        rank = context.Process(target=_rank, args=(0, latent.path, tmp_path, context.Event()))
        rank.start()
        pid = the_keeper()["pid"]
        time.sleep(pause)
        rank.kill()
        rank.join()
        until(lambda pid=pid: is_gone(pid))  # type: ignore[misc]
        assert not keepers()


WITHOUT_READERS: dict[tuple[int, str], list[str]] = {}
"""The losses of some ranks on some kind of dataset. How much is cached makes no difference."""


@pytest.mark.parametrize(
    ("ranks", "room", "kind"),
    [
        (1, "all", "listed"),
        (1, "a quarter", "listed"),
        (2, "all", "listed"),
        (2, "a quarter", "listed"),
        (2, "a quarter", "computed"),
    ],
)
def test_losses_are_bit_for_bit_those_without(
    ranks: int, room: str, kind: str, latent: Latent, tmp_path: Path, scripts: Path
) -> None:
    cache = FILES * SIZE if room == "all" else FILES * SIZE // 4

    def train(readers: str) -> tuple[list[str], int]:
        words = [str(scripts / "files_ranks.py"), str(latent.path), str(tmp_path / readers), str(cache), kind]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        environment = {**os.environ, "STOKER_READERS": readers}
        command = [sys.executable, *launch, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
        assert done.returncode == 0, done.stderr
        ahead = sum(int(count) for count in re.findall(r"read ahead (\d+)", done.stderr))
        return sorted(done.stdout.splitlines()), ahead

    if (ranks, kind) not in WITHOUT_READERS:
        losses, none = train("0")
        assert len(losses) == 2 * FILES // 8
        assert none == 0
        WITHOUT_READERS[ranks, kind] = losses
    with kept_alive(latent.path, tmp_path):
        until(view.keepers)
        with_readers, ahead = train("16")
    assert with_readers == WITHOUT_READERS[ranks, kind]
    assert ahead > 0


def test_batches_of_very_many_samples_do_not_end_the_line(data: Path) -> None:
    class Many(Listed):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.samples *= 1000

        def __getitem__(self, index: int) -> Any:
            return index

    with stoker.DataLoader(Many(data), 80_000, cache=1 << 20) as loader, pytest.warns(UserWarning, match="seen no file"):
        list(loader)
        before = the_keeper()
        list(loader)
        until(lambda: the_keeper()["queues"])
        assert the_keeper()["token"] == before["token"]


def removed_and_held(pid: int) -> list[str]:
    """The files that a process has open though they have no name any more. Memory without a name is none of them."""
    links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    return [link for link in links if link.endswith(" (deleted)") and not link.startswith("/memfd:")]


def test_the_keeper_does_not_hold_the_memory_of_caches_that_are_gone(data: Path, tmp_path: Path) -> None:
    dataset = Listed(data)
    with stoker.DataLoader(dataset, 8, cache="4MB", cache_dir=tmp_path / "stays") as stays:
        list(stays)
        with stoker.DataLoader(dataset, 8, cache="4MB", cache_dir=tmp_path / "goes") as goes:
            list(goes)
            until(lambda: len(the_keeper()["queues"]) == 2)
        pid = the_keeper()["pid"]
        until(lambda: len(the_keeper()["queues"]) == 1)
        shutil.rmtree(tmp_path / "goes")
        assert removed_and_held(pid) == []


def test_the_keeper_lets_go_of_a_cache_that_is_removed_under_a_loader(data: Path, tmp_path: Path) -> None:
    with stoker.DataLoader(Listed(data), 8, cache="4MB", cache_dir=tmp_path / "cache") as loader:
        list(loader)
        pid = the_keeper()["pid"]
        while (tmp_path / "cache").exists():  # the keeper may add a file meanwhile
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        with pytest.warns(UserWarning, match="cache"):
            list(loader)
        until(lambda: removed_and_held(pid) == [])


def test_where_everything_is_in_the_cache_few_samples_are_looked_at() -> None:
    class Unlimited(list[bytes]):
        def __len__(self) -> int:
            return 1 << 30

    def looked_at(queue: LoaderQueue) -> int:
        queue.works.append(Queued(0, np.arange(1600, dtype=np.uint32)))
        count = 0
        while queue.next() is not None:
            count += 1
        queue.works.clear()
        return count

    queue = LoaderQueue({}, Unlimited(), None)  # type: ignore[arg-type]
    assert looked_at(queue) == 1600
    for _ in range(300):
        queue.met(None, is_there=True)
    assert looked_at(queue) == 100
    queue.met(0.01, is_there=False)  # one was not there
    assert looked_at(queue) == 1600
