"""Streams of other libraries, in a process that is killed by SIGKILL after every batch, and started again."""

import gc
import io
import json
import multiprocessing
import os
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset
from torch.utils.data import IterableDataset
from torch.utils.data.datapipes.iter import IterableWrapper
from torchdata.nodes import IterableWrapper as NodeWrapper

import stoker

pytestmark = pytest.mark.filterwarnings("ignore:.*DataPipe", "ignore:.*datapipes")
COUNT, BATCH = 100, 5


def huggingface(folder: Path, *, shuffled: bool) -> Any:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    files = [str(folder / f"{number}.jsonl") for number in range(4)]
    for number, name in enumerate(files):
        Path(name).write_text("".join(json.dumps({"n": 25 * number + line}) + "\n" for line in range(25)))
    cache = str(folder / "cache")
    stream = datasets.load_dataset("json", data_files=files, split="train", streaming=True, cache_dir=cache)
    return stream.shuffle(seed=3, buffer_size=10) if shuffled else stream


def number_of(sample: dict[str, bytes]) -> int:
    return int(sample["cls"])


def tar_shards(folder: Path, *, shuffled: bool) -> Any:
    """WebDataset over a list of shards, in a random order and through a buffer, or not."""
    names = [str(folder / f"{number}.tar") for number in range(4)]
    for shard, name in enumerate(names):
        with tarfile.open(name, "w") as archive:
            for number in range(25 * shard, 25 * shard + 25):
                member = tarfile.TarInfo(f"{number:03}.cls")
                member.size = len(content := str(number).encode())
                archive.addfile(member, io.BytesIO(content))
    stream = webdataset.WebDataset(names, shardshuffle=4 if shuffled else False, detshuffle=shuffled, seed=3)
    return (stream.compose(webdataset.detshuffle(10, seed=5)) if shuffled else stream).map(number_of)


def datapipe(folder: Path) -> Any:
    return IterableWrapper(range(COUNT)).shuffle().sharding_filter()


class OfNodes(IterableDataset[Any]):
    """A graph of torchdata's nodes, which has the state."""

    def __init__(self) -> None:
        self.node: Any = NodeWrapper(range(COUNT))
        self.state: Any = None

    def __iter__(self) -> Any:
        self.node.reset(self.state)
        self.state = None
        yield from self.node

    def state_dict(self) -> dict[str, Any]:
        return {"node": self.node.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state["node"]


KINDS: dict[str, tuple[Callable[[Path], Any], int]] = {
    "huggingface": (lambda folder: huggingface(folder, shuffled=False), 2),
    "huggingface, shuffled": (lambda folder: huggingface(folder, shuffled=True), 2),
    "webdataset": (lambda folder: tar_shards(folder, shuffled=False), 2),
    "webdataset, shuffled": (lambda folder: tar_shards(folder, shuffled=True), 2),
    "datapipe": (datapipe, 2),
    "nodes": (lambda folder: OfNodes(), 1),
}


def train(kind: str, folder: Path, kill: bool) -> None:
    """See the rest of the stream, and write down what was seen with the loader's state."""
    make, workers = KINDS[kind]
    torch.manual_seed(1)
    loader = stoker.DataLoader(make(folder), batch_size=BATCH, num_workers=workers)
    saved, seen = folder / "saved.json", []
    if saved.exists():
        read = json.loads(saved.read_text())
        seen = read["seen"]
        loader.load_state_dict(read["state"])
    for batch in loader:
        seen.append((batch["n"] if isinstance(batch, dict) else batch).tolist())
        (folder / "next").write_text(json.dumps({"seen": seen, "state": loader.state_dict()}))
        (folder / "next").rename(saved)
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_after_every_batch(kind: str, tmp_path: Path) -> None:
    plainly, killed = tmp_path / "plainly", tmp_path / "killed"
    for folder in (plainly, killed):
        folder.mkdir()
    if kind.startswith("huggingface"):
        pytest.importorskip("datasets")
    train(kind, plainly, kill=False)
    expected = json.loads((plainly / "saved.json").read_text())["seen"]
    assert sorted(number for batch in expected for number in batch) == list(range(COUNT))
    fork = multiprocessing.get_context("fork")
    ends = []
    while not ends or ends[-1]:
        process = fork.Process(target=train, args=(kind, killed, True))
        process.start()
        process.join()
        ends.append(process.exitcode)
        assert len(ends) < 30
    assert ends == [-signal.SIGKILL] * (COUNT // BATCH) + [0]
    assert json.loads((killed / "saved.json").read_text())["seen"] == expected


@pytest.mark.filterwarnings("ignore:unclosed file")
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "persistent_workers": True, "workers": "threads"},
    ],
    ids=str,
)
def test_later_epochs_of_webdataset_have_their_own_order(options: dict[str, Any], tmp_path: Path) -> None:
    """Its stages count epochs, and a process that is started again begins to count anew."""

    def made() -> Any:
        return stoker.DataLoader(tar_shards(tmp_path, shuffled=True), batch_size=BATCH, **options)

    with made() as loader:
        epochs = [[batch.tolist() for batch in loader] for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    with made() as loader:
        list(loader)
        iterator = iter(loader)
        seen, states = [next(iterator).tolist() for _ in range(3)], [loader.state_dict()]
        seen += [batch.tolist() for batch in iterator]
        states.append(loader.state_dict())
    assert seen == epochs[1]
    with made() as other:
        other.load_state_dict(json.loads(json.dumps(states[0])))
        iterator = iter(other)
        again = other.state_dict()
        assert next(iterator).tolist() == epochs[1][3]
        other.load_state_dict(again)
        assert [batch.tolist() for batch in other] == epochs[1][3:]
        assert [batch.tolist() for batch in other] == epochs[2]
    with made() as other:
        other.load_state_dict(states[1])
        assert [batch.tolist() for batch in other] == epochs[2]
    del iterator
    gc.collect()  # WebDataset leaves files of epochs that were left to be closed by this
