"""A loader with a disk tier: what memory has no room for is on the disk, and the rest comes from storage."""

import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from tests.cache.requests import Numbered
from tests.tries import HANG_S

import stoker
from stoker.cache import places
from stoker.cache.cached import Cache
from stoker.cli import main
from stoker.errors import ConfigError

FILES, SIZE = 100, 3000


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hits and misses are counted, so nobody reads ahead; and the list of disk tiers is this test's own."""
    monkeypatch.setenv("STOKER_READERS", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "data"
    place.mkdir()
    for number in range(FILES):
        path = place / f"{number:03}.bin"
        path.write_bytes(bytes([number]) * SIZE)
        os.utime(path, (1, 1))
    return place


class Files(torch.utils.data.Dataset[Any]):
    def __init__(self, root: Path) -> None:
        self.paths = sorted(str(path) for path in root.glob("*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            content = file.read()
        assert content == bytes([index]) * SIZE
        return index


def first(raw: memoryview, index: int, rng: Any) -> int:
    assert bytes(raw) == bytes([index]) * SIZE
    return index


def make_loader(dataset: Any, near: Path, disk: Path, **more: Any) -> Any:
    return stoker.DataLoader(
        dataset, 10, shuffle=True, cache=30 * SIZE, cache_dir=near, cache_disk=f"{disk}:{40 * SIZE}B", **more
    )


def epochs(loader: Any, count: int) -> list[tuple[int, int, int]]:
    """For each epoch: files found in memory, found on the disk, and read from storage."""
    rows = [(0, 0, 0)]
    for _ in range(count):
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(FILES))
        stats = loader.stats()
        assert not stats.cache_faults
        rows.append((stats.hits - stats.hits_disk, stats.hits_disk, stats.bytes_storage // SIZE))
    return [(b[0] - a[0], b[1] - a[1], b[2] - a[2]) for a, b in itertools.pairwise(rows)]


WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "workers": "threads"},
    {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
]


def numbered(root: Path) -> Any:
    return stoker.Dataset(str(root), first)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", [Files, numbered])
def test_tiers_add_up_and_outlive_the_job(
    folder: Path, shelf_dir: Path, tmp_path: Path, kind: Callable[[Path], Any], workers: dict[str, Any]
) -> None:
    with make_loader(kind(folder), shelf_dir, tmp_path / "disk", **workers) as loader:
        assert epochs(loader, 3) == [(0, 0, 100), (30, 40, 30), (30, 40, 30)]
    with make_loader(kind(folder), shelf_dir, tmp_path / "disk", **workers) as loader:
        assert epochs(loader, 1) == [(30, 40, 30)]


def test_readers_of_the_host_fill_both_tiers(
    folder: Path, shelf_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOKER_READERS")
    with make_loader(Files(folder), shelf_dir, tmp_path / "disk", num_workers=2) as loader:
        counts = epochs(loader, 3)
    assert counts[0] == (0, 0, 100)
    assert counts[2] == (30, 40, 30)


def test_a_long_file_is_read_in_parts_from_the_disk(shelf_dir: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    content = os.urandom(3 << 20)
    (root / "0.bin").write_bytes(content)
    os.utime(root / "0.bin", (1, 1))

    class Part(Files):
        def __getitem__(self, index: int) -> Any:
            with open(self.paths[index], "rb") as file:
                file.seek(1_000_000)
                return int(file.read(700_000) == content[1_000_000:1_700_000])

    with stoker.DataLoader(Part(root), cache=1000, cache_dir=shelf_dir, cache_disk=f"{tmp_path}/disk:4MB") as loader:
        assert [int(batch) for _ in range(2) for batch in loader] == [1, 1]
        assert (loader.stats().misses, loader.stats().hits_disk) == (1, 1)


def test_a_full_disk_is_one_warning(folder: Path, shelf_dir: Path, small_tmpfs: Callable[[str], Path]) -> None:
    disk = small_tmpfs("size=66m")
    with make_loader(Files(folder), shelf_dir, disk) as loader:
        (disk / "filler").write_bytes(bytes(3 << 20))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                assert sorted(torch.cat(list(loader)).tolist()) == list(range(FILES))
        assert len([warning for warning in caught if "is full" in str(warning.message)]) == len(caught) == 1
        stats = loader.stats()
    assert (stats.hits, stats.hits_disk) == (30, 0)


def test_folders_whose_names_are_no_text(shelf_dir: Path, tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/nvme \xff"))
    memory = Path(os.fsdecode(os.fsencode(shelf_dir) + b"/\xff"))
    for kept, found in ((20, 0), (10, 20)):  # the store is copied for the job with a smaller budget
        cache = Cache("numbers", kept * 1000, memory, disk=f"{place}:1GB")
        request = Numbered(range(40))
        for on_disk in (found, 40 - kept):
            assert cache.fetch(request) == [request.payload(number) for number in range(40)]
            *_, faults, _, _, _, _, hits_disk = cache.tally.take()
            assert (faults, hits_disk) == (0, on_disk)
        cache.close()
    assert places.remembered() == [place.resolve()]


def test_options_that_make_no_sense(folder: Path, shelf_dir: Path, tmp_path: Path) -> None:
    dataset = stoker.Dataset(str(folder), first)
    for options, said in (
        ({"cache_disk": "/nvme:2TB"}, "needs cache="),
        ({"cache": "1MB", "cache_disk": "/nvme"}, "DIR:SIZE"),
        ({"cache": "1MB", "cache_disk": "/nvme:2"}, "needs a unit"),
        ({"cache": "1MB", "cache_disk": f"{tmp_path}:1MB", "cache_policy": "lru", "seed": 1}, "keep-first"),
        ({"cache": "1MB", "cache_dir": shelf_dir, "cache_disk": f"{tmp_path}:5000TB"}, "cache_disk"),
    ):
        with pytest.raises(ConfigError, match=said):
            stoker.DataLoader(dataset, **options)


def test_an_unchanged_script_and_what_ls_shows(
    folder: Path, shelf_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\nfrom pathlib import Path\nfrom torch.utils.data import DataLoader, Dataset\n"
        "class Files(Dataset):\n"
        "    def __init__(self, root): self.paths = sorted(str(path) for path in Path(root).glob('*.bin'))\n"
        "    def __len__(self): return len(self.paths)\n"
        "    def __getitem__(self, index): return len(open(self.paths[index], 'rb').read())\n"
        f"loader = DataLoader(Files({str(folder)!r}), 10)\n"
        "print(sum(int(batch.sum()) for _ in range(3) for batch in loader))\n"
    )
    plan = tmp_path / "plan.toml"
    plan.write_text(f'version = 1\n[cache]\ncapacity_bytes = {30 * SIZE}\ndir = "{shelf_dir}"\n')
    command = [
        sys.executable,
        "-m",
        "stoker",
        "run",
        "--plan",
        str(plan),
        "--cache-disk",
        f"disk:{40 * SIZE}B",
        str(script),
    ]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    assert (found.returncode, found.stdout) == (0, f"{3 * FILES * SIZE}\n"), found.stderr
    assert "47 % of reads from the cache, 27 % from its disk tier" in found.stderr
    assert main(["cache", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("disk") and " 40 " in line and line.endswith(str(folder)) for line in lines)
    assert main(["run", "--cache-disk", "/nvme:1GB", str(script)]) == 1
    assert "--cache-disk needs --cache" in capsys.readouterr().err
