"""State that two processes share under `fully_shard`: what was saved is loaded, or an older one, never anything else."""

import json
import os
import pickle
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.checkpoint.processes import end, started
from tests.tries import HANG_S

from stoker.checkpoint.sharded import ShardedCheckpoints
from stoker.errors import CheckpointError

SCRIPT = Path(__file__).parent.parent / "scripts" / "sharded.py"


class Pair:
    """Two processes that are told what to do, and answer."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.processes = processes

    def tell(self, *words: object) -> None:
        for process in self.processes:
            assert process.stdin is not None
            print(*words, file=process.stdin, flush=True)

    def __call__(self, *words: object) -> dict[str, Any]:
        """What both answer, which is the same."""
        self.tell(*words)
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()
            answers.append(json.loads(line))
        assert answers[0] == answers[1]
        return answers[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with started(SCRIPT, tmp_path_factory.mktemp("pair")) as processes:
        yield Pair(processes)


@pytest.fixture
def two(pair: Pair, tmp_path: Path) -> tuple[str, str]:
    """The digests of two states that are saved in the directory "there", of steps 1 and 2."""
    first, second = (pair("save", tmp_path / "there", step)["digest"] for step in (1, 2))
    assert first != second
    return first, second


def files_of(directory: Path, step: int) -> list[Path]:
    """All that belongs to a checkpoint, its manifest last."""
    (folder,) = (path for path in directory.glob(f"{step:010d}-*") if path.is_dir())
    return [*sorted(folder.iterdir()), directory / f"{folder.name}.json"]


def content(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_what_was_saved_is_loaded(pair: Pair, tmp_path: Path, two: tuple[str, str]) -> None:
    assert pair("load", tmp_path / "there") == {"step": 2, "digest": two[1], "note": 0.2, "warnings": []}
    assert [path.name for path in files_of(tmp_path / "there", 2)[:-1]] == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert not list((tmp_path / "there").glob("*.partial"))


def test_another_number_of_processes(tmp_path: Path, two: tuple[str, str]) -> None:
    state = {"model": {"0.weight": torch.full((13, 7), torch.nan)}}
    assert ShardedCheckpoints(tmp_path / "there").load(state) == 2
    assert state["model"]["0.weight"].isfinite().all()


def test_nothing_is_there(pair: Pair, tmp_path: Path) -> None:
    assert pair("load", tmp_path / "there")["step"] is None


def flip(path: Path) -> None:
    changed = bytearray(path.read_bytes())
    changed[random.Random(path.name).randrange(len(changed))] ^= 1 << 3
    path.write_bytes(changed)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


@pytest.mark.parametrize("harm", [flip, truncate, lengthen, Path.unlink, link])
def test_a_damaged_one_is_passed_by(pair: Pair, tmp_path: Path, two: tuple[str, str], harm: Callable[[Path], None]) -> None:
    there = tmp_path / "there"
    for number in range(4 if harm is not Path.unlink else 3):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(there, copy)
        harmed = files_of(copy, 2)[number]
        if harm is link and harmed.suffix == ".json":
            continue
        harm(harmed)
        before = content(copy)
        answer = pair("load", copy)
        assert (answer["step"], answer["digest"]) == (1, two[0]), harmed
        (warning,) = answer["warnings"]
        assert warning.startswith("a damaged checkpoint was passed by and left as it is: 0000000002-")
        assert harmed.name in warning or "manifest" in warning
        assert content(copy) == before


def test_none_is_whole(pair: Pair, tmp_path: Path, two: tuple[str, str]) -> None:
    there = tmp_path / "there"
    flip(files_of(there, 1)[2])
    files_of(there, 2)[0].unlink()
    before = content(there)
    error = pair("load", there)["error"]
    assert "none of the 2 checkpoints" in error
    assert "__1_0.distcp is damaged" in error
    assert ".metadata cannot be read (No such file or directory)" in error
    assert content(there) == before


class Evil:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def test_nothing_damaged_is_unpickled(pair: Pair, tmp_path: Path, two: tuple[str, str]) -> None:
    metadata = files_of(tmp_path / "there", 2)[0]
    metadata.write_bytes(pickle.dumps(Evil(tmp_path / "trace")).ljust(metadata.stat().st_size, b"\0"))
    assert pair("load", tmp_path / "there")["step"] == 1
    assert not (tmp_path / "trace").exists()


def test_only_ones_own_are_loaded(pair: Pair, tmp_path: Path, two: tuple[str, str]) -> None:
    error = pair("strange", tmp_path / "there")["error"]
    assert f"belongs to user {os.geteuid()}, and this process runs as user {os.geteuid() + 1}" in error


def test_a_save_that_was_cut_short_is_ignored(pair: Pair, tmp_path: Path, two: tuple[str, str]) -> None:
    there = tmp_path / "there"
    folder = files_of(there, 2)[0].parent
    shutil.copytree(folder, there / "0000000003-00000000.partial")
    shutil.copytree(folder, there / "0000000004-00000000")
    shutil.copy(there / f"{folder.name}.json", there / "0000000004-00000000.json.partial")
    assert pair("load", there) == {"step": 2, "digest": two[1], "note": 0.2, "warnings": []}
    assert pair("prune", there, 2)["removed"] == []
    assert not list(there.glob("*.partial"))
    assert pair("load", there)["step"] == 2


def test_killed_while_saving(pair: Pair, tmp_path: Path) -> None:
    there, saved = tmp_path / "there", 0
    with started(SCRIPT, tmp_path) as processes:
        victim = Pair(processes)
        for saved in (1, 2, 3):
            victim("save", there, saved)
        victim.tell("save", there, 4)
        deadline = time.monotonic() + HANG_S
        while not list(there.glob("0000000004-*")):
            assert time.monotonic() < deadline
        end(processes)
    answer = pair("load", there)
    assert answer["step"] >= saved
    assert answer["digest"] == pair("save", tmp_path / "twin", answer["step"])["digest"]
    assert answer["warnings"] == []


def test_a_disk_is_full(pair: Pair, tmp_path: Path, two: tuple[str, str]) -> None:
    there = tmp_path / "there"
    before = content(there)
    second = psutil.Process(pair.processes[1].pid)
    limits = second.rlimit(psutil.RLIMIT_FSIZE)
    second.rlimit(psutil.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        error = pair("save", there, 3)["error"]
    finally:
        second.rlimit(psutil.RLIMIT_FSIZE, limits)
    assert error.startswith("the checkpoint of step 3 could not be written: rank 1: ")
    assert content(there) == before
    assert not list(there.glob("*.partial"))
    assert pair("load", there)["step"] == 2


def test_another_model(pair: Pair, tmp_path: Path, two: tuple[str, str]) -> None:
    error = pair("narrow", tmp_path / "there")["error"]
    assert "does not fit this run" in error
    assert "Size mismatch" in error


def test_prune(pair: Pair, tmp_path: Path, two: tuple[str, str]) -> None:
    there = tmp_path / "there"
    for step in (3, 4, 5):
        pair("save", there, step)
    truncate(files_of(there, 5)[1])
    damaged = content(files_of(there, 5)[0].parent)
    assert [name[:10] for name in pair("prune", there, 2)["removed"]] == ["0000000002", "0000000001"]
    assert sorted({path.name[:10] for path in there.iterdir()}) == ["0000000003", "0000000004", "0000000005"]
    assert content(files_of(there, 5)[0].parent) == damaged
    assert pair("load", there)["step"] == 4


def test_alone(tmp_path: Path) -> None:
    checkpoints = ShardedCheckpoints(tmp_path / "there")
    assert checkpoints.load({}) is None
    checkpoints.save(7, {"weights": torch.arange(5.0), "epoch": 3})
    state = {"weights": torch.zeros(5), "epoch": 0}
    assert checkpoints.load(state) == 7
    assert state["weights"].tolist() == [0, 1, 2, 3, 4]
    assert state["epoch"] == 3
    with pytest.raises(CheckpointError, match="does not fit this run"):
        checkpoints.load({"others": torch.zeros(5)})
    assert checkpoints.prune(1) == []
