import io
import json
import mmap
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from stoker.cache.cached import Cache
from stoker.cache.intercept import FileReads, active
from stoker.cache.roots import roots_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "text.txt").write_text("grün\nzwei\n", encoding="utf-8")
    (folder / "bytes.bin").write_bytes(bytes(range(256)) * 40)
    np.save(folder / "array.npy", np.arange(1000.0))
    np.savez(folder / "arrays.npz", a=np.arange(3), b=np.eye(2))
    Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(folder / "image.png")
    Image.fromarray(np.full((64, 64, 3), 7, np.uint8)).save(folder / "image.jpg")
    Image.fromarray(np.full((64, 64), 7, np.uint8)).save(folder / "image.bmp")  # PIL maps these
    soundfile.write(folder / "sound.wav", np.linspace(-1, 1, 4000), 8000)
    (folder / "object.pickle").write_bytes(pickle.dumps({"a": 1}))
    (folder / "object.json").write_text(json.dumps({"a": 1}))
    for path in folder.iterdir():
        age(path)
    return folder


def age(path: Path, seconds: int = 100) -> None:
    """Files that were changed a moment ago may be under change still, and are not kept."""
    os.utime(path, (time.time() - seconds,) * 2)


@pytest.fixture
def reads(data: Path, shelf_dir: Path) -> FileReads:
    return FileReads(Cache("files", 1_000_000, shelf_dir), [str(data)])


def _memory_mapped(folder: Path) -> Any:
    return np.array(np.load(folder / "array.npy", mmap_mode="r"))


def _half(folder: Path) -> Any:
    with open(folder / "bytes.bin", "rb") as file:
        file.seek(100)
        assert file.peek(4)[:4] == bytes(range(100, 104))
        read = file.read(200), file.tell(), file.readline()
        return read, file.read1(3), file.readinto(bytearray(5)), os.path.basename(file.name)


def _lines(folder: Path) -> Any:
    with open(folder / "text.txt", encoding="utf-8") as file:
        return list(file), file.mode, file.encoding


READERS = {
    "bytes": lambda folder: (folder / "bytes.bin").read_bytes(),
    "text": lambda folder: (folder / "text.txt").read_text("utf-8"),
    "lines": _lines,
    "a part": _half,
    "str path": lambda folder: open(str(folder / "bytes.bin"), "rb").read(),
    "bytes path": lambda folder: open(os.fsencode(folder / "bytes.bin"), mode="rb").read(),
    "npy": lambda folder: np.load(folder / "array.npy"),
    "npz": lambda folder: {name: value.tolist() for name, value in np.load(folder / "arrays.npz").items()},
    "fromfile": lambda folder: np.fromfile(folder / "bytes.bin", np.uint8),
    "genfromtxt": lambda folder: np.genfromtxt(folder / "text.txt", dtype=str, encoding="utf-8"),
    "mapped npy": _memory_mapped,
    "png": lambda folder: np.asarray(Image.open(folder / "image.png")),
    "jpg": lambda folder: np.asarray(Image.open(folder / "image.jpg")),
    "bmp": lambda folder: np.asarray(Image.open(folder / "image.bmp")),
    "sound": lambda folder: soundfile.read(folder / "sound.wav"),
    "a part of a sound": lambda folder: soundfile.read(str(folder / "sound.wav"), frames=100, start=50),
    "info of a sound": lambda folder: soundfile.info(folder / "sound.wav").frames,
    "pickle": lambda folder: pickle.load(open(folder / "object.pickle", "rb")),
    "json": lambda folder: json.load(open(folder / "object.json")),
}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(np.array_equal(left, right)) if isinstance(left, np.ndarray) else bool(left == right)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", READERS)
def test_the_same_with_and_without(name: str, data: Path, reads: FileReads) -> None:
    expected = READERS[name](data)
    for hits in (0, 1):
        with active(reads):
            assert same(READERS[name](data), expected)
        counts = reads.cache.tally.take()
        assert counts[0] > 0 or not hits
        assert (counts[1] > 0) == (not hits)


def test_a_changed_file_is_read_anew(data: Path, reads: FileReads) -> None:
    path = data / "bytes.bin"
    with active(reads):
        assert len(path.read_bytes()) == 10240
    path.write_bytes(b"other")
    with active(reads):
        assert path.read_bytes() == b"other"
        age(path)
        assert path.read_bytes() == b"other"
    stats = reads.cache.stats()
    assert stats is not None
    assert (stats.items, stats.payload_bytes) == (1, 5)


def test_the_same_size_at_another_time_is_read_anew(data: Path, reads: FileReads) -> None:
    path = data / "bytes.bin"
    with active(reads):
        path.read_bytes()
    path.write_bytes(b"x" * 10240)
    with active(reads):
        assert path.read_bytes() == b"x" * 10240


def test_another_file_of_the_same_size_and_time_is_read_anew(data: Path, reads: FileReads) -> None:
    path, other = data / "bytes.bin", data / "other.bin"
    other.write_bytes(b"y" * 10240)
    os.utime(path, (1000, 1000))
    os.utime(other, (1000, 1000))
    with active(reads):
        assert path.read_bytes() != b"y" * 10240
        other.rename(path)
        assert path.read_bytes() == b"y" * 10240


def _in_place(path: Path, new: bytes) -> None:
    path.write_bytes(new)


def _without_truncation(path: Path, new: bytes) -> None:
    with path.open("r+b") as file:
        file.write(new)


def _by_memory(path: Path, new: bytes) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:] = new


def _by_rename(path: Path, new: bytes) -> None:
    """As rsync and most editors do it."""
    other = path.with_name(".other")
    other.write_bytes(new)
    other.rename(path)


def _by_backup(path: Path, new: bytes) -> None:
    """As others do it: the old file stays under another name."""
    path.rename(path.with_name("backup~"))
    path.write_bytes(new)


def _by_link(path: Path, new: bytes) -> None:
    other = path.with_name("other")
    other.write_bytes(new)
    path.unlink()
    path.symlink_to(other)


@pytest.mark.parametrize("keeps_time", [True, False], ids=["same time", "new time"])
@pytest.mark.parametrize("way", [_in_place, _without_truncation, _by_memory, _by_rename, _by_backup, _by_link])
def test_a_file_replaced_between_epochs_by_one_of_its_size(
    data: Path, reads: FileReads, way: Callable[[Path, bytes], None], keeps_time: bool
) -> None:
    path = data / "bytes.bin"
    times = path.stat()
    with active(reads):
        assert path.read_bytes() == path.read_bytes() != b"z" * 10240
    time.sleep(0.02)  # a tick of the clock that the kernel stamps files with
    way(path, b"z" * 10240)
    if keeps_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with active(reads):
        assert path.read_bytes() == b"z" * 10240
        assert path.read_bytes() == b"z" * 10240


def test_a_file_of_a_time_to_come_is_kept(data: Path, reads: FileReads) -> None:
    """The clock was put back after the data had come."""
    path = data / "bytes.bin"
    age(path, -3600)
    with active(reads):
        for _ in range(2):
            assert len(path.read_bytes()) == 10240
        assert reads.cache.tally.take()[:2] == (1, 1)
        path.write_bytes(b"z" * 10240)
        assert path.read_bytes() == b"z" * 10240


def test_a_file_that_is_being_written_is_not_kept(data: Path, reads: FileReads) -> None:
    path = data / "bytes.bin"
    path.touch()
    for _ in range(2):
        with active(reads):
            path.read_bytes()
    assert reads.cache.tally.take()[:2] == (0, 2)


def test_what_lies_behind_a_link(data: Path, reads: FileReads, tmp_path: Path) -> None:
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "far" / "text.txt").write_text("right")
    (data / "link").symlink_to(tmp_path / "far" / "deep")
    with active(reads), open(f"{data}/link/../text.txt") as file:
        assert file.read() == "right"


def test_long_files_are_copied_as_they_are_read(data: Path, shelf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = FileReads(Cache("files", 50_000_000, shelf_dir), [str(data)])
    values = np.arange(500_000.0)
    np.save(data / "long.npy", values)
    age(data / "long.npy")
    with active(reads):
        assert np.array_equal(np.load(data / "long.npy"), values)
        with open(data / "long.npy", "rb") as file:
            whole = file.read()
            assert file.seek(-8, os.SEEK_END) == len(whole) - 8
            assert file.read() == whole[-8:]
            assert file.read(5) == b""
            file.seek(1000)
            assert (file.read(100), file.tell(), file.peek(4)[:4]) == (whole[1000:1100], 1100, whole[1100:1104])
            buffer = bytearray(64)
            assert file.readinto(buffer) == 64
            assert buffer == whole[1100:1164]
            file.seek(0)
            assert file.readline() == whole[: whole.index(b"\n") + 1]
            with pytest.raises(io.UnsupportedOperation):
                file.write(b"x")
            reads.cache.close()  # what is lost while it is open comes from the file itself
            file.seek(2000)
            assert file.read(10) == whole[2000:2010]
        assert np.array_equal(np.load(data / "long.npy", mmap_mode="r")[-3:], values[-3:])


def test_a_long_file_that_is_damaged_in_the_cache(data: Path, shelf_dir: Path) -> None:
    reads = FileReads(Cache("files", 50_000_000, shelf_dir), [str(data)])
    values = np.random.default_rng(0).random(500_000)
    np.save(data / "long.npy", values)
    age(data / "long.npy")
    with active(reads):
        np.load(data / "long.npy")
        assert reads.cache.folder is not None
        path = reads.cache.folder / "data.mdb"
        place = path.read_bytes().index(values[400_000:400_002].tobytes())
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes(16))
        reads.cache.tally.take()
        assert np.array_equal(np.load(data / "long.npy"), values)
        assert reads.cache.tally.take()[5] == 1
        assert np.array_equal(np.load(data / "long.npy"), values)
        assert reads.cache.tally.take()[:2] == (0, 1)  # it was kept again
        assert np.array_equal(np.load(data / "long.npy"), values)
        assert reads.cache.tally.take()[:2] == (1, 0)


def test_what_a_user_put_in_the_place_of_open_still_runs(data: Path) -> None:
    script = (
        "import builtins, sys\n"
        "seen, before = [], builtins.open\n"
        "def own(*a, **k):\n    seen.append(a[0])\n    return before(*a, **k)\n"
        "builtins.open = own\n"
        "from stoker.cache.cached import Cache\n"
        "from stoker.cache.intercept import FileReads, active\n"
        "finders = len(sys.meta_path)\n"
        "class Reader:\n    pass\n"
        "for _ in range(3):\n"
        "    with active(FileReads(Cache('x', 100, sys.argv[2]), [sys.argv[1]])):\n"
        "        Reader.opener = open\n"
        "        Reader().opener(sys.argv[1] + '/bytes.bin', 'rb').read()\n"
        "assert len(seen) == 3, seen\n"
        "assert len(sys.meta_path) <= finders + 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(data), str(data.parent)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_cache_within_the_dataset(data: Path) -> None:
    reads = FileReads(Cache("files", 1_000_000, data / "cache"), ["/"])
    for _ in range(2):
        with active(reads):
            assert (data / "bytes.bin").read_bytes()
    assert reads.cache.tally.take()[0] == 1


def test_what_passes_through(data: Path, reads: FileReads, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("x")
    with active(reads):
        assert elsewhere.read_text() == "x"
        (data / "new").write_bytes(b"written")
        with open(data / "new", "r+b") as file:
            file.write(b"W")
        with open(data / "text.txt", "rb", buffering=0) as file:
            assert isinstance(file, io.FileIO)
        with open(data / "text.txt", opener=os.open) as text:
            text.read()
        descriptor = os.open(data / "text.txt", os.O_RDONLY)
        with open(descriptor, "rb") as file:
            file.read()
        (data / "empty").touch()
        assert (data / "empty").read_bytes() == b""
        with pytest.raises(FileNotFoundError, match="missing"):
            open(data / "missing")
        with pytest.raises(IsADirectoryError):
            open(data)
    with open(data / "text.txt", "rb") as file:  # nothing is active any more
        file.read()
    assert reads.cache.tally.take()[:2] == (0, 0)
    assert (data / "new").read_bytes() == b"Written"


def test_only_on_the_thread_that_asked(data: Path, reads: FileReads) -> None:
    kinds = []

    def look() -> None:
        with (data / "bytes.bin").open("rb") as file:
            kinds.append(type(file).__name__)

    with active(reads):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        look()
    assert kinds == ["BufferedReader", "CachedFile"]


def test_what_does_not_fit_is_opened_as_ever(data: Path, shelf_dir: Path) -> None:
    reads = FileReads(Cache("files", 5000, shelf_dir), [str(data)])
    for _ in range(2):
        with active(reads), open(data / "bytes.bin", "rb") as file:
            assert isinstance(file, io.BufferedReader)
            file.read()
    assert reads.cache.tally.take()[:4] == (0, 2, 0, 2 * 10240)


def test_roots() -> None:
    class Holding:
        def __init__(self, **attributes: Any) -> None:
            self.__dict__.update(attributes)

        def __getitem__(self, index: int) -> None:
            pass

    here = Path(__file__).parent
    files = sorted(here.glob("*.py"))
    assert roots_of(Holding(root=here)) == (str(here),)
    assert roots_of(Holding(root=str(here), split="train")) == (str(here),)
    assert roots_of(Holding(files=files)) == (str(here),)
    assert roots_of(Holding(samples=[(str(path), 0) for path in files])) == (str(here),)
    assert roots_of(Holding(paths=np.array([str(path) for path in files]))) == (str(here),)
    assert roots_of(Holding(root=here, up=here.parent)) == (str(here.parent),)
    assert roots_of(Holding(dataset=Holding(root=here), indices=[1, 2])) == (str(here),)
    assert roots_of(Holding(datasets=[Holding(root=here), Holding(files=[here.parent / "conftest.py"])])) == (
        str(here.parent),
    )
    assert roots_of(Holding(a=1, b="no such path", c=None)) == ("/",)
