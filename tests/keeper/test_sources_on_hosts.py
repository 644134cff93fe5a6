"""`stoker.Dataset` with peers: hosts whose copies of the data lie at different places give each other what they hold."""

import os
import shutil
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.keeper.test_peering import free_ports
from tests.tries import until
from torch.utils.data import ConcatDataset

import stoker
from stoker.cache.store import Store
from stoker.keeper.peering import Peering
from stoker.run.afar import peer_rate, shared_keys
from stoker.source.files import Files
from stoker.source.opening import open_source
from stoker.source.reading import Shared
from stoker.wire.addresses import parse_addresses

SECRET = b"of these tests" * 4
SAMPLES, SIZE = 24, 3000


def contents(raw: memoryview, index: int, rng: np.random.Generator) -> bytes:
    return bytes(raw)


def files_in(folder: Path) -> str:
    folder.mkdir(parents=True)
    for number in range(SAMPLES):
        (folder / f"{number:03}").write_bytes(bytes([number]) * SIZE)
        os.utime(folder / f"{number:03}", (1e9, 1e9))
    return str(folder)


def shards_in(folder: Path) -> str:
    loose = Path(files_in(folder / "loose"))
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for path in sorted(loose.iterdir())[shard::2]:
                tar.add(path, f"{path.name}.bin")
        os.utime(folder / f"{shard}.tar", (1e9, 1e9))
    shutil.rmtree(loose)
    return str(folder / "*.tar")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Store, Peering]]:
    """Another host, with a store of its own, and how all hosts are named."""
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("STOKER_SECRET_FILE", str(tmp_path / "secret"))
    peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    own, other = parse_addresses(peers)
    store, peering = Store(tmp_path / "store"), Peering(other, [own], SECRET)
    peering._gifts._stores[store.folder] = store, 1
    try:
        yield peers, store, peering
    finally:
        peering.close()
        store.close()


def hold(store: Store, peering: Peering, source: Any) -> list[bytes]:
    """Let the other host hold all samples of its own copy. Returns what they are called."""
    assert isinstance(source, Shared)
    keys = [source.shared_key(number, (source.name,)) + source.version(number) for number in range(len(source))]
    store.put(list(zip(keys, source.read(range(len(source))), strict=True)), 1 << 20)
    peering.kept(keys)
    return keys


@pytest.mark.parametrize("make", [files_in, shards_in], ids=["files", "shards"])
@pytest.mark.parametrize("is_ahead", [True, False], ids=["ahead", "asked"])
def test_a_copy_at_another_place_is_given(
    tmp_path: Path, make: Any, is_ahead: bool, there: tuple[str, Store, Peering], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers, store, peering = there
    here = make(tmp_path / "here" / "data")
    shutil.copytree(tmp_path / "here" / "data", tmp_path / "elsewhere" / "data")
    hold(store, peering, open_source(here.replace("/here/", "/elsewhere/")))
    if not is_ahead:  # nothing is read ahead: what comes from there was asked for by a worker
        monkeypatch.setattr("stoker.feed.ahead.Ahead.ordered", lambda self, index: None)
    dataset = stoker.Dataset(here, contents)
    expected = [bytes(raw) for raw in dataset.source.read(range(SAMPLES))]
    with stoker.DataLoader(dataset, 4, cache="64kB", peers=peers, num_workers=1, collate_fn=list) as loader:

        def epoch() -> bool:
            before = loader.stats()
            assert [one for batch in loader for one in batch] == expected
            return loader.stats().hits_peer > before.hits_peer

        until(epoch)


def test_what_one_host_keeps_is_called_as_on_all_hosts(tmp_path: Path, there: tuple[str, Store, Peering]) -> None:
    peers, _, peering = there
    dataset = stoker.Dataset(shards_in(tmp_path / "here" / "data"), contents)
    shutil.copytree(tmp_path / "here" / "data", tmp_path / "elsewhere" / "data")
    copy = open_source(str(tmp_path / "elsewhere" / "data" / "*.tar"))
    assert isinstance(copy, Shared)
    keys = [copy.shared_key(number, (copy.name,)) + copy.version(number) for number in range(SAMPLES)]
    with stoker.DataLoader(dataset, 4, cache="1MB", peers=peers, num_workers=1, collate_fn=list) as loader:
        list(loader)
        until(lambda: None not in peering.fetch(keys))
        assert peering.fetch(keys) == [bytes(raw) for raw in copy.read(range(SAMPLES))]


def test_sources_in_one_loader_that_end_alike_are_told_apart(tmp_path: Path, there: tuple[str, Store, Peering]) -> None:
    folders = [Path(files_in(tmp_path / year / "train")) for year in ("2019", "2020")]
    for path in folders[1].iterdir():
        path.write_bytes(b"\xff" * SIZE)
        os.utime(path, (1e9, 1e9))
    parts = ConcatDataset([stoker.Dataset(folder, contents) for folder in folders])
    with stoker.DataLoader(parts, 4, cache="1MB", peers=there[0], num_workers=1, collate_fn=list) as loader:
        for _ in range(3):
            found = [one for batch in loader for one in batch]
            assert found == [bytes([number]) * SIZE for number in range(SAMPLES)] + [b"\xff" * SIZE] * SAMPLES
            time.sleep(0.01)


class Eager(Files):
    """Files that note when somebody wants the kernel to read them ahead."""

    def __init__(self, where: str, note: Path) -> None:
        super().__init__(where)
        self._note = note

    def expect(self, ids: Sequence[int]) -> None:
        if ids:
            self._note.touch()


def test_what_other_hosts_may_have_is_not_read_ahead_from_storage(
    tmp_path: Path, there: tuple[str, Store, Peering]
) -> None:
    note = tmp_path / "note"
    dataset = stoker.Dataset(Eager(files_in(tmp_path / "data"), note), contents)
    options: dict[str, Any] = {"cache": "4kB", "num_workers": 1, "collate_fn": list}
    with stoker.DataLoader(dataset, 4, peers=there[0], **options) as loader:
        list(loader)
        assert not note.exists()
    with stoker.DataLoader(dataset, 4, **options) as loader:
        list(loader)
        assert note.exists()


def test_analyze_asks_for_them_by_the_names_of_all_hosts(tmp_path: Path, there: tuple[str, Store, Peering]) -> None:
    _, store, peering = there
    dataset = stoker.Dataset(shards_in(tmp_path / "here" / "data"), contents)
    shutil.copytree(tmp_path / "here" / "data", tmp_path / "elsewhere" / "data")
    hold(store, peering, open_source(str(tmp_path / "elsewhere" / "data" / "*.tar")))
    keys = shared_keys(dataset, range(SAMPLES), list)
    other = ":".join(map(str, peering.address))
    until(lambda: peer_rate(other, keys, 2, 0.05)[0] > 0)
    assert shared_keys(stoker.Dataset(_Unnamed(), contents), range(2), list) == []


class _Unnamed:
    """A source whose samples are called nothing."""

    def __len__(self) -> int:
        return 2

    def sizes(self, ids: Sequence[int]) -> Sequence[int]:
        return [1] * len(ids)

    def read(self, ids: Sequence[int]) -> Sequence[bytes]:
        return [b"x"] * len(ids)
