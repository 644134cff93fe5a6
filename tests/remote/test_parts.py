"""A batch's preparation divided between hosts in other ways: files read here, or samples collated here."""

import contextlib
import os
import pickle
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.remote.test_remote import free_port, secret, until_used, workers  # noqa: F401
from torch.utils.data import Dataset

import stoker
from stoker.cache.cached import Cache
from stoker.cache.intercept import FileReads
from stoker.checksum import load
from stoker.feed.parts import candidates
from stoker.remote import said
from stoker.remote.far import FarReads
from stoker.remote.files import LONGEST_BYTES, ServedFiles
from stoker.remote.parts import Parts
from stoker.remote.said import Word
from stoker.wire import handshake
from stoker.wire.channel import Channel
from stoker.wire.streams import PlainStream


def loader_of(dataset: Any, port: int | None, part: str = "all", **options: Any) -> stoker.DataLoader:
    plan = stoker.Plan(offload_ratio=1.0, offload_part=part)
    offload = {} if port is None else {"offload": f"tcp://127.0.0.1:{port}", "plan": plan}
    return stoker.DataLoader(dataset, 8, shuffle=True, num_workers=1, seed=5, **offload, **options)


def plain(thing: Any) -> Any:
    """A batch as values that can be compared, with kinds and bytes."""
    if isinstance(thing, torch.Tensor):
        return str(thing.dtype), tuple(thing.shape), thing.numpy().tobytes()
    if isinstance(thing, np.ndarray):
        return "array", str(thing.dtype), thing.shape, thing.tobytes()
    if isinstance(thing, dict):
        return {key: plain(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return type(thing).__name__, [plain(value) for value in thing]
    return thing


class Spoken(Dataset[Any]):
    """Nested samples of many lengths, which draw."""

    def __init__(self, count: int, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        length = 1 + (index * 7919) % 300
        return {
            "wave": torch.rand(length),
            "meta": {"name": f"sample {index}", "at": [index, float(np.random.random())]},
            "marks": np.arange(length % 5, dtype=np.int16),
            "pair": (random.random(), None, b"bytes"),
        }


def pad(samples: list[Any]) -> Any:
    """Pads, and draws from all generators while it does."""
    waves = torch.nn.utils.rnn.pad_sequence([sample["wave"] for sample in samples], batch_first=True)
    long = torch.nn.functional.pad(waves, (0, 3000)) + torch.rand(1) + random.random() + float(np.random.random())
    return {"waves": long, "rest": [(sample["meta"], sample["marks"], sample["pair"]) for sample in samples]}


def keep(samples: list[Any]) -> Any:
    return samples


@pytest.mark.parametrize("collate_fn", [pad, keep])
def test_samples_that_are_collated_here_make_the_same_batches(collate_fn: Any) -> None:
    port, before = free_port(), (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state())  # type: ignore[union-attr]
    here = loader_of(Spoken(80), None, collate_fn=collate_fn)
    with (
        workers(port),
        loader_of(Spoken(80, 0.004), port, "samples", collate_fn=collate_fn, persistent_workers=True) as loader,
    ):
        for _ in range(until_used(loader)):
            for _ in here:
                pass
        used = loader.stats().remote
        for _ in range(4):
            assert [plain(batch) for batch in loader] == [plain(batch) for batch in here]
        assert loader.stats().remote > used
    after = (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state())  # type: ignore[union-attr]
    assert before[:2] == after[:2] and torch.equal(before[2], after[2])


def test_an_error_of_the_collate_function_is_raised_here() -> None:
    def fails(samples: list[Any]) -> Any:
        if os.getpid() == trainer:
            raise ValueError("these samples do not go together")
        return samples

    trainer, port = os.getpid(), free_port()
    with (
        workers(port),
        loader_of(Spoken(80, 0.004), port, "samples", collate_fn=fails, persistent_workers=True) as loader,
        pytest.raises(ValueError, match="do not go together"),
    ):
        until_used(loader)


# ---- files that are read here


class Filed(Dataset[Any]):
    """Files in the ways that datasets open them."""

    def __init__(self, folder: Path, seconds: float = 0.004) -> None:
        self.folder, self.seconds = str(folder), seconds

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        number = index % 8
        path = os.path.join(self.folder, str(number))
        with Image.open(path + ".png") as picture:
            pixels = np.asarray(picture.convert("RGB"))
        with Image.open(path + ".bmp") as picture:  # Pillow maps these
            mapped = np.asarray(picture)
        with open(path + ".bin", "rb") as file:
            content = file.read()
        array = np.load(path + ".npy") + np.load(path + ".npy", mmap_mode="r")
        flat = np.frombuffer(content, np.uint8)
        with open(path + ".txt", encoding="utf-8") as lines, open(path + ".empty") as nothing:
            text = Path(path + ".txt").read_text() + lines.readline() + nothing.read()
        scaled = pixels * np.float32(np.random.random())
        return scaled, mapped.copy(), array, flat.copy(), text, index


def write_files(folder: Path, seed: int) -> None:
    folder.mkdir(exist_ok=True)
    draws = np.random.default_rng(seed)
    for number in range(8):
        path = folder / str(number)
        Image.fromarray(draws.integers(0, 255, (16, 12, 3), np.uint8)).save(f"{path}.png")
        Image.fromarray(draws.integers(0, 255, (16, 12, 3), np.uint8)).save(f"{path}.bmp")
        Path(f"{path}.bin").write_bytes(draws.bytes(100))
        np.save(f"{path}.npy", draws.random((4, 3)))
        Path(f"{path}.txt").write_text(f"{seed} and {number}\nmore\n")
        Path(f"{path}.empty").touch()


@contextlib.contextmanager
def workers_elsewhere(port: int, folder: Path, other: Path | None) -> Iterator[None]:
    """Workers on a host that has other files in the place of the trainer's, or none."""
    apart = ["unshare", "--mount", "--propagation", "private"]
    if os.getuid():
        apart.insert(1, "--map-root-user")
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("`unshare --mount` is not possible here")
    mount = f"mount -t tmpfs tmpfs {folder}" if other is None else f"mount --bind {other} {folder}"
    command = [sys.executable, "-m", "stoker", "worker", f"tcp://127.0.0.1:{port}", "-n", "1"]
    process = subprocess.Popen([*apart, "sh", "-c", f'{mount} && exec "$@"', "sh", *command])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize(("has_others", "has_cache"), [(True, False), (False, True)])
def test_files_are_read_on_the_trainers_host(tmp_path: Path, has_others: bool, has_cache: bool) -> None:
    folder, other = tmp_path / "data", tmp_path / "other"
    write_files(folder, 1)
    write_files(other, 2)
    port, here = free_port(), loader_of(Filed(folder, 0.0), None)
    options: dict[str, Any] = {"cache": 1 << 20} if has_cache else {}
    with (
        workers_elsewhere(port, folder, other if has_others else None),
        loader_of(Filed(folder), port, "prepare", persistent_workers=True, **options) as loader,
    ):
        for _ in range(until_used(loader)):
            for _ in here:
                pass
        used = loader.stats().remote
        for _ in range(4):
            assert [plain(batch) for batch in loader] == [plain(batch) for batch in here]
        assert loader.stats().remote > used


def test_which_files_are_given(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "old").write_bytes(b"content")
    (folder / "empty").touch()
    (folder / "link").symlink_to(folder / "old")
    (tmp_path / "secret").write_bytes(b"not for others")
    with open(folder / "long", "wb") as file:
        file.truncate(LONGEST_BYTES + 1)
    os.mkfifo(folder / "pipe")
    files = ServedFiles([str(folder)])
    assert files.content(f"{folder}/old") == b"content"
    assert files.content(f"{folder}/link") == b"content"
    assert files.content(f"{folder}/empty") == b""
    for path in ("absent", "long", "pipe", "../secret", "x/../old", ".", "a\0b"):
        assert files.content(f"{folder}/{path}") is None
    for path in (tmp_path / "secret", "/etc/passwd", "data/old", "", f"{folder}"):
        assert files.content(str(path)) is None
    (folder / "old").write_bytes(b"changed")
    assert files.content(f"{folder}/old") is None
    assert ServedFiles(()).content("/etc/passwd") is None


def test_files_come_through_the_hosts_cache(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"content")
    os.utime(tmp_path / "one", (1, 1))  # a file that was changed just now is not kept
    reads = FileReads(Cache("files for other hosts", 1 << 20, is_private=True), [str(tmp_path)])
    files = ServedFiles([str(tmp_path)], pickle.loads(pickle.dumps(reads)))
    for _ in range(2):
        assert files.content(f"{tmp_path}/one") == b"content"
    counts = files._reads.cache.tally.take()  # type: ignore[union-attr]
    assert counts is not None and counts[:2] == (1, 1)  # one from the cache, one from storage
    reads.cache.close()


@contextlib.contextmanager
def channels() -> Iterator[tuple[Channel, Channel]]:
    """Both ends of a connection."""
    load()
    ends = socket.socketpair()
    with ends[0], ends[1]:
        streams = [PlainStream(end, 60.0) for end in ends]
        found: list[Channel] = []

        def answer() -> None:
            session = handshake.answer(b"s" * 32, handshake.fresh_name(), streams[0], lambda: True)
            found.append(Channel(streams[0], session))

        with running(answer):
            session = handshake.ask(b"s" * 32, handshake.fresh_name(), streams[1], "there")
        yield found[0], Channel(streams[1], session)


@contextlib.contextmanager
def running(act: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def content_of(path: Path) -> str:
    with open(path) as file:
        return file.read()


def test_what_a_worker_writes_for_itself_it_reads_itself(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
        (folder / "kept").write_text(f"of {folder.name}")
        (folder / "scratch").write_text(f"of {folder.name}")
    files = ServedFiles([str(theirs)])

    def answer() -> None:
        frame = said.receive(here, Word.OPEN)
        assert frame is not None
        path = frame.body.replace(b"/ours/", b"/theirs/")  # where another host has it
        files.answer(here, replace(frame, body=path))

    with channels() as (here, there), running(answer):
        reads = FarReads([str(ours)], "/nowhere", (ours / "scratch").stat().st_ctime_ns)
        while (ours / "scratch").stat().st_ctime_ns <= reads._began_ns:  # a tick of the kernel's clock may be long
            (ours / "scratch").write_text("of ours, and new")
        with reads.over(there):
            assert content_of(ours / "scratch") == "of ours, and new"
            assert content_of(ours / "kept") == "of theirs"
            assert content_of(theirs / "scratch") == "of theirs"  # outside the folders: nobody is asked
            child = os.fork()
            if not child:
                os._exit(content_of(ours / "kept") != "of ours")
            assert os.waitpid(child, 0)[1] == 0
        assert content_of(ours / "kept") == "of ours"


def test_a_damaged_file_ends_the_connection(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("here")

    def answer() -> None:
        assert said.receive(here, Word.OPEN) is not None
        said.send(here, Word.FILE, said.pack_file(b"there"), b"theer")

    with channels() as (here, there):
        reads = FarReads([str(tmp_path)], "/nowhere", (tmp_path / "kept").stat().st_ctime_ns)
        with running(answer), reads.over(there):
            assert reads.opened(str(tmp_path / "kept")) is None
        with pytest.raises(BrokenPipeError):
            said.send(there, Word.FAILED)


# ---- which of them can work


def test_candidates(tmp_path: Path) -> None:
    assert set(candidates(loader_of(Spoken(8), None))) == {"prepare", "samples"}
    assert candidates(loader_of(Filed(tmp_path), None, collate_fn=keep)) == {}
    alone = stoker.DataLoader(Filed(tmp_path), batch_size=None, num_workers=1, seed=1)
    assert "one sample" in candidates(alone)["samples"]
    assert "default collate_fn" in candidates(loader_of(Filed(tmp_path), None))["samples"]


def test_a_part_that_cannot_work_is_named() -> None:
    with pytest.warns(UserWarning, match="instead of 'prepare': no attribute of the dataset"):
        list(loader_of(Spoken(16), free_port(), "prepare", collate_fn=keep))


def test_what_trials_tell() -> None:
    parts = Parts(against={"prepare": "said before"})
    assert parts.possible() == ["all", "samples"] and parts.against("prepare") == "said before"
    for _ in range(4):
        parts.note("all", 0, 1000)
        parts.note("samples", 0, 950)
    assert parts.possible() == ["all"] and "950 and 1000 bytes" in parts.against("samples")
    parts = Parts()
    for _ in range(4):
        parts.note("all", 0, 1000)
        parts.note("samples", 0, 100)
        parts.note("prepare", 0, 1000)
    assert parts.possible() == ["all", "samples"] and "opened no file" in parts.against("prepare")
    parts.note("prepare", 1, 1000)
    assert not parts.against("prepare")
    parts = Parts()
    for _ in range(4):
        parts.note("samples", 0, None)
    assert "could not make" in parts.against("samples")


def test_the_plan_says_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('version = 1\n[offload]\npart = "samples"\n')
    assert stoker.Plan.load(path).offload_part == "samples"
    path.write_text('version = 1\n[offload]\npart = "some"\n')
    with pytest.raises(stoker.errors.ConfigError, match="all, prepare, samples"):
        stoker.Plan.load(path)
