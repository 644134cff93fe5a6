"""A loader with a cache: what it reads from storage, and what becomes of it when the cache fails."""

import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import soundfile
import torch
import torch.utils.data
from PIL import Image
from tests.tries import HANG_S
from torch.utils.data import DistributedSampler

import stoker
from stoker.cache.replay import SimulatedCache, far_enough, replay
from stoker.cache.shelf import Shelf
from stoker.errors import ConfigError
from stoker.feed.route import distributed_ids
from stoker.order import Drawn

FILES, BATCH = 60, 8
KINDS: dict[str, dict[str, Any]] = {
    "no workers": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "threads": {"num_workers": 2, "workers": "threads"},
    "seeded": {"num_workers": 2, "seed": 1},
    "seeded, no workers": {"num_workers": 0, "seed": 1},
    "seeded threads": {"num_workers": 2, "workers": "threads", "seed": 1},
}


@pytest.fixture(autouse=True)
def without_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits and misses are counted here; with a seed, what is read ahead may count as found (tests/keeper has readers)."""
    monkeypatch.setenv("STOKER_READERS", "0")


class Pictures(torch.utils.data.Dataset[Any]):
    """As ImageFolder does it: paths from a folder, PIL opens them."""

    def __init__(self, root: Path) -> None:
        self.samples = sorted((str(path), int(path.parent.name)) for path in root.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            picture = Image.open(file).convert("RGB")
        return torch.from_numpy(np.array(picture)[:8, :8]), label


class Sounds(torch.utils.data.Dataset[Any]):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = sorted(path.name for path in root.glob("*.wav"))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        wave, _ = soundfile.read(self.root / self.names[index], dtype="float32")
        return torch.from_numpy(wave[:100]), index


class Silent(torch.utils.data.Dataset[Any]):
    """Reads files as libraries in C do."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        descriptor = os.open(self.paths[index], os.O_RDONLY)
        try:
            return len(os.read(descriptor, 1 << 20))
        finally:
            os.close(descriptor)


def crop(raw: memoryview, index: int, rng: np.random.Generator) -> Any:
    picture = np.asarray(Image.open(io.BytesIO(raw)))
    return torch.from_numpy(picture[:8, :8].copy()), rng.random(), index


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(FILES):
        (root / str(number % 3)).mkdir(exist_ok=True)
        path = root / str(number % 3) / f"{number:03d}.jpg"
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)
        with path.open("ab") as file:
            file.write(bytes(3000 - path.stat().st_size))  # all of one size, so that what fits is known
        os.utime(path, (1, 1))  # what was changed a moment ago is not kept
    return root


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sounds")
    for number in range(FILES):
        soundfile.write(root / f"{number:03d}.wav", np.random.default_rng(number).normal(0, 0.1, 1478), 8000)
        os.utime(root / f"{number:03d}.wav", (1, 1))
    assert {path.stat().st_size for path in root.iterdir()} == {3000}
    return root


@pytest.fixture
def shelf_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def epochs(loader: Any, count: int) -> list[tuple[int, int, int, int]]:
    """Hits, misses, and bytes from the cache and from storage, of each epoch."""
    counted, before = [], (0, 0, 0, 0)
    for _ in range(count):
        for _ in loader:
            pass
        stats = loader.stats()
        after = stats.hits, stats.misses, stats.bytes_cache, stats.bytes_storage
        counted.append(tuple(new - old for new, old in zip(after, before, strict=True)))
        before = after
    return counted  # type: ignore[return-value]


def exactly(room: int) -> list[tuple[int, int, int, int]]:
    later = room, FILES - room, room * 3000, (FILES - room) * 3000
    return [(0, FILES, 0, FILES * 3000), later, later]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [Pictures, Sounds, lambda root: stoker.Dataset(root, crop)], ids=["PIL", "audio", "ours"])
def test_what_is_cached_is_not_read_again(
    kind: str, make: Callable[[Path], Any], pictures: Path, sounds: Path, shelf_dir: Path
) -> None:
    dataset = make(sounds if make is Sounds else pictures)
    with stoker.DataLoader(dataset, BATCH, shuffle=True, cache=25 * 3000, cache_dir=shelf_dir, **KINDS[kind]) as loader:
        count = 2 if kind == "spawned" else 3  # they start anew in each epoch, which takes a second
        assert epochs(loader, count) == exactly(25)[:count]
        assert loader.stats().cache_faults == 0


@pytest.mark.parametrize("kind", ["no workers", "processes", "threads", "seeded", "spawned"])
def test_the_same_batches_with_and_without(kind: str, pictures: Path, shelf_dir: Path) -> None:
    def batches(**options: Any) -> list[Any]:
        torch.manual_seed(3)
        with stoker.DataLoader(Pictures(pictures), BATCH, shuffle=True, **KINDS[kind], **options) as loader:
            return [batch for _ in range(2) for batch in loader]

    cached = batches(cache=25 * 3000, cache_dir=shelf_dir)
    for left, right in zip(batches(), cached, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def test_a_cache_is_found_by_the_next_job_and_by_another_dataset(pictures: Path, shelf_dir: Path) -> None:
    options: dict[str, Any] = {"cache": FILES * 3000, "cache_dir": shelf_dir, "num_workers": 2}
    with stoker.DataLoader(Pictures(pictures), BATCH, **options) as loader:
        epochs(loader, 1)
    with stoker.DataLoader(stoker.Dataset(pictures, crop), BATCH, **options) as loader:
        assert epochs(loader, 1) == [(FILES, 0, FILES * 3000, 0)]
    (found,) = Shelf(shelf_dir).caches()
    assert (found.name, found.stats.items, found.jobs) == (str(pictures), FILES, 0)


def test_a_dataset_with_a_cache_under_torchs_own_loader(pictures: Path, shelf_dir: Path) -> None:
    dataset = stoker.Dataset(pictures, crop, cache=FILES * 3000, cache_dir=shelf_dir)
    for options in ({"num_workers": 2}, {"num_workers": 1, "multiprocessing_context": "spawn"}, {}):
        loader = torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, **options)
        drawn = [value for batch in loader for value in batch[1].tolist()]
        assert len(set(drawn)) == FILES  # every sample has randomness of its own
        (found,) = Shelf(shelf_dir).caches()
        assert found.stats.items == FILES
    assert len(pickle.loads(pickle.dumps(dataset))) == FILES


def test_a_dataset_counts_under_ours_with_its_own_cache(pictures: Path, shelf_dir: Path) -> None:
    dataset = stoker.Dataset(pictures, crop, cache=25 * 3000, cache_dir=shelf_dir)
    with stoker.DataLoader(dataset, BATCH, shuffle=True, num_workers=2) as loader:
        assert epochs(loader, 3) == exactly(25)
        assert loader.stats().fetch_s > 0


def test_without_a_cache_bytes_are_counted(pictures: Path) -> None:
    with stoker.DataLoader(stoker.Dataset(pictures, crop), BATCH, num_workers=2) as loader:
        assert epochs(loader, 1) == [(0, 0, 0, FILES * 3000)]


@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "workers": "threads"}])
def test_a_seed_gives_each_sample_its_own_randomness(pictures: Path, workers: Any) -> None:
    dataset = stoker.Dataset(pictures, crop)
    with stoker.DataLoader(dataset, BATCH, shuffle=True, seed=4, **workers) as loader:
        drawn = {int(i): float(r) for _, values, ids in loader for r, i in zip(values, ids, strict=True)}
    with stoker.DataLoader(dataset, BATCH, shuffle=True, seed=4, num_workers=1) as loader:
        assert drawn == {int(i): float(r) for _, values, ids in loader for r, i in zip(values, ids, strict=True)}
    assert len(set(drawn.values())) == FILES


@pytest.mark.parametrize("policy", ["lru", "reuse-distance"])
def test_a_policy_does_live_what_its_simulation_says(policy: str, pictures: Path, shelf_dir: Path) -> None:
    room = 20
    with stoker.DataLoader(
        stoker.Dataset(pictures, crop),
        batch_size=1,  # what goes for a batch goes when all of it has been looked for
        shuffle=True,
        seed=7,
        num_workers=1,
        cache=room * 3000,
        cache_policy=policy,
        cache_dir=shelf_dir,
    ) as loader:
        live = [hits for hits, _, _, _ in epochs(loader, 4)]
        (found,) = Shelf(shelf_dir).caches()
        assert found.stats.payload_bytes <= room * 3000
    simulated = replay(Drawn(FILES, 7), capacity=room, policy=policy, epochs=4)
    assert live == [epoch.hits for epoch in simulated.epochs]
    assert not Shelf(shelf_dir).caches()  # what a policy has steered is of use to nobody else


@pytest.mark.parametrize("workers", [0, 1])
def test_the_order_of_a_distributed_sampler_stays_known_after_many_epochs(
    workers: int, pictures: Path, shelf_dir: Path
) -> None:
    """Of two readers the next four epochs are in sight: later ones are drawn while the first are over."""
    room, count = 20, 9
    dataset = stoker.Dataset(pictures, crop)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, 2, 0, seed=3)
    options: dict[str, Any] = {"cache": room * 3000, "cache_policy": "reuse-distance", "cache_dir": shelf_dir}
    live = [0]
    with stoker.DataLoader(dataset, 1, sampler=sampler, seed=7, num_workers=workers, **options) as loader:
        for epoch in range(count):
            sampler.set_epoch(epoch)
            live.append(epochs(loader, 1)[0][0])
    simulated = SimulatedCache(
        lambda epoch: distributed_ids(sampler, epoch)[::2], room, "reuse-distance", horizon=far_enough(2), epochs=count
    )
    assert np.diff(live).tolist() == [
        sum(simulated.use(sample) is None for sample in simulated.begin(epoch).tolist()) for epoch in range(count)
    ]


def test_a_changed_file_is_read_anew(pictures: Path, shelf_dir: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(pictures, root)
    with stoker.DataLoader(Pictures(root), BATCH, cache="10MB", cache_dir=shelf_dir, num_workers=2) as loader:
        before = [batch[0] for batch in loader]
        Image.fromarray(np.full((40, 40, 3), 200, np.uint8)).save(root / "0" / "000.jpg")
        after = [batch[0] for batch in loader]
        assert loader.stats().misses == FILES + 1
    assert not torch.equal(before[0][0], after[0][0])
    assert torch.all(after[0][0].float().mean() > 190)
    assert torch.equal(before[1], after[1])


class Bytes:
    """A source without names."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __len__(self) -> int:
        return 8

    def sizes(self, ids: Any) -> Any:
        return [4] * len(ids)

    def read(self, ids: Any) -> Any:
        return [bytes([self.value] * 4) for _ in ids]


def test_sources_without_names_are_not_taken_for_each_other(shelf_dir: Path) -> None:
    def tell(raw: memoryview, index: int, rng: Any) -> int:
        return raw[0]

    both: Any = torch.utils.data.ConcatDataset([stoker.Dataset(Bytes(value), tell) for value in (1, 2)])
    warnings.simplefilter("ignore")  # such sources have no place in a cache that others share
    for dataset in (both, stoker.Dataset(Bytes(3), tell)):
        with stoker.DataLoader(dataset, 4, cache="1MB", cache_dir=shelf_dir) as loader:
            seen = [int(value) for _ in range(2) for batch in loader for value in batch]
        assert seen == ([3] * 16 if dataset is not both else [1] * 8 + [2] * 8 + [1] * 8 + [2] * 8)
    assert stoker.Dataset(Bytes(3), tell)[np.int64(2)] == 3


def test_names_of_any_length(shelf_dir: Path) -> None:
    class Short(Bytes):
        name = "numbers in words"

        def key(self, number: int) -> bytes:
            return (
                f"a long prefix that all samples have in common, and then {number}".encode()
                if self.value
                else b"%d" % number
            )

        def version(self, number: int) -> bytes:
            return b"1"

        def read(self, ids: Any) -> Any:
            return [bytes([number] * 4) for number in ids]

    for value in (0, 1):
        dataset = stoker.Dataset(Short(value), lambda raw, index, rng: raw[0])
        with stoker.DataLoader(dataset, 4, cache=1000 + value, cache_dir=shelf_dir / str(value)) as loader:
            assert [int(v) for _ in range(2) for batch in loader for v in batch] == [*range(8), *range(8)]
            assert loader.stats().hits == 8


def test_descriptors_do_not_pile_up(pictures: Path, shelf_dir: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    counts = []
    for number in range(12):
        with stoker.DataLoader(Pictures(pictures), BATCH, cache="1MB", cache_dir=shelf_dir / str(number % 3)) as loader:
            epochs(loader, 1)
        counts.append(open_files())
    assert counts[-1] <= counts[2]


def test_no_file_seen(pictures: Path, shelf_dir: Path) -> None:
    with stoker.DataLoader(Silent(pictures), BATCH, cache="1MB", cache_dir=shelf_dir, num_workers=1) as loader:
        with pytest.warns(UserWarning, match="the cache has seen no file") as caught:
            epochs(loader, 3)
    assert len(caught) == 1


def test_removed_under_a_running_loader(pictures: Path, shelf_dir: Path) -> None:
    with stoker.DataLoader(Pictures(pictures), BATCH, cache="1MB", cache_dir=shelf_dir, num_workers=2) as loader:
        epochs(loader, 1)
        iterator = iter(loader)
        next(iterator)
        subprocess.run([sys.executable, "-m", "stoker", "cache", "clear", "--force", "--dir", str(shelf_dir)], check=True)
        assert not Shelf(shelf_dir).caches()
        with pytest.warns(UserWarning, match=r"cache .* storage") as caught:
            seen = 1 + sum(1 for _ in iterator)
            assert seen == len(loader)
            epochs(loader, 2)
        assert len(caught) == 1
        assert loader.stats().cache_faults > 0
        assert loader.stats().samples == 4 * FILES


class Tearing(Pictures):
    """Does to the cache what a disk may do, in the worker that then meets it: LMDB has the file mapped."""

    store = ""

    def __getitem__(self, index: int) -> Any:
        if self.store:
            size = os.stat(self.store).st_size
            os.truncate(self.store, 2 * 4096)
            os.truncate(self.store, size)  # as long as before, so that only what is in it can tell
            os.kill(os.getpid(), signal.SIGBUS)
        return super().__getitem__(index)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_worker_that_a_torn_store_has_ended_is_an_error_that_names_it(
    pictures: Path, shelf_dir: Path, seed: int | None
) -> None:
    dataset = Tearing(pictures)
    options: dict[str, Any] = {"cache": "1MB", "cache_dir": shelf_dir, "num_workers": 1, "seed": seed}
    with stoker.DataLoader(dataset, BATCH, **options) as loader:
        epochs(loader, 1)
        (found,) = Shelf(shelf_dir).caches()
        dataset.store = str(found.folder / "data.mdb")
        with pytest.raises(RuntimeError, match=rf"(?s)SIGBUS.*the cache in {found.folder} is damaged"):
            epochs(loader, 1)
    dataset.store = ""
    with stoker.DataLoader(dataset, BATCH, **options) as loader:
        with pytest.warns(UserWarning, match="is damaged"):
            epochs(loader, 2)
        stats = loader.stats()
        assert (stats.samples, stats.misses, stats.cache_faults) == (2 * FILES, FILES, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_under_a_running_loader(pictures: Path, shelf_dir: Path, workers: int) -> None:
    dataset = Pictures(pictures)
    with stoker.DataLoader(dataset, BATCH, cache="1MB", cache_dir=shelf_dir, num_workers=workers) as loader:
        expected = list(loader)
        (found,) = Shelf(shelf_dir).caches()
        path = found.folder / "data.mdb"
        content = path.read_bytes()
        picture = min(pictures.rglob("*.*")).read_bytes()
        with path.open("r+b") as file:
            file.seek(content.index(picture) + len(picture) // 2)
            file.write(b"~~~~")
        with pytest.warns(UserWarning, match="an item of the cache in .* is damaged"):
            again = list(loader)
        assert all(
            torch.equal(left, right)
            for one, two in zip(expected, again, strict=True)
            for left, right in zip(one, two, strict=True)
        )
        stats = loader.stats()
        assert (stats.cache_faults, stats.misses) == (1, FILES + 1)


def test_a_folder_that_cannot_be_written(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options: dict[str, Any] = {"cache": "1MB", "cache_dir": tmp_path / "file", "num_workers": 2}
    with stoker.DataLoader(Pictures(pictures), BATCH, **options) as loader:
        with pytest.warns(UserWarning, match="the cache cannot be used") as caught:
            epochs(loader, 2)
        assert len(caught) == 1
        stats = loader.stats()
        assert (stats.samples, stats.hits, stats.cache_faults) == (2 * FILES, 0, 1)


def test_killed_while_it_fills_the_cache(pictures: Path, shelf_dir: Path) -> None:
    script = (
        "import sys, stoker\nfrom pathlib import Path\nfrom tests.torch.test_caching import Pictures\n"
        "loader = stoker.DataLoader(Pictures(Path(sys.argv[1])), 2, cache='1MB', cache_dir=sys.argv[2], num_workers=2)\n"
        "for number, _ in enumerate(loader):\n    print(number, flush=True)\n"
    )
    here = str(Path(__file__).parent.parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(pictures), str(shelf_dir)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ["PYTHONPATH"]])},
    )
    assert process.stdout is not None
    process.stdout.readline()
    workers = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(workers, timeout=HANG_S)
    (found,) = Shelf(shelf_dir).caches()
    assert found.jobs == 0
    with stoker.DataLoader(Pictures(pictures), BATCH, cache="1MB", cache_dir=shelf_dir, num_workers=2) as loader:
        ((hits, misses, _, _),) = epochs(loader, 1)
    assert hits == found.stats.items > 0
    assert hits + misses == FILES


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache": "much"}, "cache is a number of bytes, or text such as '8GB'"),
        ({"cache": "8"}, "cache needs a unit: '8GB'"),
        ({"cache": 0}, "at least one byte"),
        ({"cache": "900TB"}, r"a cache of 900.0 TB cannot be held.*room for"),
        ({"cache": "1MB", "cache_policy": "fifo"}, "cache_policy must be one of keep-first"),
        ({"cache": "1MB", "cache_policy": "lru"}, "needs seed=n and a stoker.Dataset"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], words: str, pictures: Path, shelf_dir: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        stoker.DataLoader(Pictures(pictures), BATCH, cache_dir=shelf_dir, **options)
    assert not Shelf(shelf_dir).caches()


def test_frameworks_keep_the_cache(pictures: Path, shelf_dir: Path) -> None:
    from accelerate import Accelerator
    from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper  # noqa: F401
    from lightning.pytorch.utilities.data import _update_dataloader

    with stoker.DataLoader(Pictures(pictures), BATCH, cache="1MB", cache_dir=shelf_dir) as loader:
        again = _update_dataloader(loader, torch.utils.data.SequentialSampler(loader.dataset))
        assert (again.cache, again.cache_dir, again.cache_policy) == (1_000_000, shelf_dir, "keep-first")
    dataset = stoker.Dataset(pictures, crop, cache=FILES * 3000, cache_dir=shelf_dir)
    prepared = Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(dataset, BATCH))
    assert sum(len(batch[2]) for batch in prepared) == FILES
    assert Shelf(shelf_dir).caches()[0].stats.items == FILES


def test_reads_are_announced_before_their_turn(pictures: Path) -> None:
    class Announced:
        """Files that are announced while an earlier order is carried out."""

        def __init__(self) -> None:
            self.inner = stoker.open_source(pictures)
            self.announced: set[int] = set()

        def __len__(self) -> int:
            return len(self.inner)

        def sizes(self, ids: Any) -> Any:
            return self.inner.sizes(ids)

        def expect(self, ids: Any) -> None:
            self.announced.update(ids)

        def read(self, ids: Any) -> Any:
            return [bytes([len(self.announced), all(number in self.announced for number in ids)]) for _ in ids]

    dataset = stoker.Dataset(Announced(), lambda raw, index, rng: (raw[0], raw[1]))
    for options in ({}, {"seed": 1}):
        with stoker.DataLoader(dataset, 4, num_workers=1, prefetch_factor=3, **options) as loader:
            batches = list(loader)
        ahead = [int(counts[0]) - 4 * (number + 1) for number, (counts, _) in enumerate(batches)]
        assert all(bool(known.all()) for _, known in batches)
        assert max(ahead) >= 4


@pytest.fixture(autouse=True)
def _no_other_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        yield
