"""Files as samples: which they are, what is read, and what is said when they cannot be."""

import errno
import os
import pickle
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stoker.errors import ConfigError, SampleNotFound, SourceError
from stoker.source import files as module
from stoker.source import reading
from stoker.source.files import Files, drop_from_page_cache, file_key, file_version
from stoker.source.reading import Foresighted, Named, Releasing
from stoker.testing import SourceContract

CONTENTS = [os.urandom(size) for size in (0, 1, 511, 4096, 4097, 300_000, 1_200_000)]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RETRY_AFTER_S", (0, 0, 0))


def put(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return [folder / name for name in names]


def relative(files: Files, folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in files.paths]


class TestFiles(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Files:
        for number, content in enumerate(CONTENTS):
            (tmp_path / f"{number}.bin").write_bytes(content)
        return Files(tmp_path)

    @pytest.fixture
    def expected(self) -> list[bytes]:
        return CONTENTS

    def test_offers_all_there_is(self, source: Files) -> None:
        assert isinstance(source, Named)
        assert isinstance(source, Foresighted)
        assert isinstance(source, Releasing)


class TestManyFiles(SourceContract):
    """More than are opened together."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Files:
        return Files(put(tmp_path, *(f"{number:03}" for number in range(70))))

    @pytest.fixture
    def expected(self) -> list[bytes]:
        return [f"{number:03}".encode() for number in range(70)]


# -- which files


def test_classes_and_order_are_those_of_image_folder(tmp_path: Path) -> None:
    put(
        tmp_path,
        "b/2.x",
        "b/10.x",
        "a/z.x",
        "a/n/1.x",
        "a/n-1/2.x",
        "a/n/m/3.x",
        "B/1.x",
        "beside.txt",
        "a/.hidden",
        ".no/1",
    )
    (tmp_path / "empty").mkdir()
    files = Files(tmp_path)
    assert files.classes == ["B", "a", "b", "empty"]
    assert relative(files, tmp_path) == ["B/1.x", "a/z.x", "a/n/1.x", "a/n-1/2.x", "a/n/m/3.x", "b/10.x", "b/2.x"]
    assert files.labels is not None and files.labels.dtype == np.int64
    assert files.labels.tolist() == [0, 1, 1, 1, 1, 2, 2]
    walked = [
        os.path.relpath(os.path.join(root, name), tmp_path)
        for label in ("B", "a", "b")
        for root, _, names in sorted(os.walk(tmp_path / label, followlinks=True))
        for name in sorted(names)
        if not name.startswith(".")
    ]
    assert relative(files, tmp_path) == walked
    assert files.name == str(tmp_path)


def test_folder_of_files_alone_has_no_labels(tmp_path: Path) -> None:
    put(tmp_path, "b", "a", ".hidden")
    files = Files(tmp_path)
    assert relative(files, tmp_path) == ["a", "b"]
    assert files.labels is None and files.classes is None


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    put(tmp_path, "data/a/1", "data/b/2", "other/3")
    (tmp_path / "data/a/up").symlink_to(tmp_path / "data")
    (tmp_path / "data/b/itself").symlink_to(tmp_path / "data/b")
    (tmp_path / "data/c").symlink_to(tmp_path / "other")
    assert relative(Files(tmp_path / "data"), tmp_path / "data") == ["a/1", "b/2", "c/3"]


def test_only_regular_files_are_samples_and_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    put(tmp_path, "a")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    files = Files(tmp_path)
    assert relative(files, tmp_path) == ["a", "link"]
    with pytest.raises(SampleNotFound, match=f"{tmp_path}/link"):
        files.read([0, 1])


def test_glob_and_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "x/b.jpg", "x/a.jpg", "x/c.png", "y/d.jpg", "x/e.jpg/f")
    files = Files(f"{tmp_path}/x/*.jpg")
    assert relative(files, tmp_path) == ["x/a.jpg", "x/b.jpg"]
    assert files.name == f"{tmp_path}/x"
    assert relative(Files(f"{tmp_path}/**/*.jpg"), tmp_path) == ["x/a.jpg", "x/b.jpg", "y/d.jpg"]
    monkeypatch.chdir(tmp_path)
    files = Files(["y/d.jpg", Path("x/b.jpg"), "y/d.jpg"])
    assert relative(files, tmp_path) == ["y/d.jpg", "x/b.jpg", "y/d.jpg"]
    assert files.name == str(tmp_path)
    assert files.read([2]) == [b"y/d.jpg"]
    assert Files("x/c.png").name == f"{tmp_path}/x"


def test_paths_are_a_sequence(tmp_path: Path) -> None:
    paths = [str(path) for path in put(tmp_path, "a", "b/c", "d")]
    files = Files(paths)
    assert len(files.paths) == 3
    assert files.paths[-1] == paths[2]
    assert files.paths[1:] == paths[1:]
    assert list(files.paths) == paths
    with pytest.raises(IndexError):
        files.paths[3]


def test_names_of_any_bytes(tmp_path: Path) -> None:
    name = b"caf\xe9 \n\xff.bin"
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
        file.write(b"content")
    files = Files(tmp_path)
    assert os.fsencode(files.paths[0]).endswith(name)
    assert files.read([0]) == [b"content"]
    assert files.key(0) == file_key(files.paths[0])


def test_a_hundred_thousand_paths_are_small_when_pickled(tmp_path: Path) -> None:
    first = put(tmp_path, "n01440764_0.JPEG")[0]
    files = Files([first, *(tmp_path / f"n01440764_{number}.JPEG" for number in range(100_000))])
    assert len(pickle.dumps(files)) < 35 * len(files)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("missing", "no such file or folder"),
        ("empty", "no files in the folder .*empty"),
        ("loose", r"no files in the folder .*loose .*the 1 beside"),
        ("empty/*.jpg", r"no files match '.*empty/\*\.jpg'.*nothing"),
        ("loose/*r", r"only 1 folders"),
        ([], "empty"),
        (["missing", "loose/a"], "missing .the first of 2 paths.: there is no such file"),
        (["empty"], "is a folder"),
    ],
)
def test_nothing_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str | list[str], said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "loose/folder").mkdir(parents=True)
    (tmp_path / "loose/a").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        Files(where)


# -- reading


def test_version_changes_with_the_file_and_key_does_not(tmp_path: Path) -> None:
    put(tmp_path, "a", "b")
    files = Files(tmp_path)
    key, version, other = files.key(0), files.version(0), files.version(1)
    assert key == file_key(f"{tmp_path}/a") and len(key) == 16
    assert version == file_version(os.stat(tmp_path / "a"))
    found = (tmp_path / "a").stat()
    assert struct.unpack("<qqQq", version) == (1, found.st_mtime_ns, found.st_ino, found.st_ctime_ns)
    (tmp_path / "a").write_bytes(b"longer")
    assert files.version(0) != version
    assert files.key(0) == key
    assert files.version(1) == other
    assert files.sizes([0]) == [6]
    assert files.read([0]) == [b"longer"]
    version = files.version(0)
    os.utime(tmp_path / "a", ns=(0, 1))
    assert files.version(0) != version


@pytest.mark.parametrize("ids", [[1], [0, 1, 2]])
def test_file_that_went_away_or_became_a_folder_is_named(tmp_path: Path, ids: list[int]) -> None:
    put(tmp_path, "a", "b", "c")
    files = Files(tmp_path)
    (tmp_path / "b").unlink()
    files.expect(ids)
    files.release(ids)
    for act in (files.read, files.sizes):
        with pytest.raises(SampleNotFound, match=f"{tmp_path}/b cannot be read: No such file"):
            act(ids)
    (tmp_path / "b").mkdir()
    with pytest.raises(SampleNotFound, match=f"{tmp_path}/b cannot be read: Is a directory"):
        files.read(ids)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_file_that_is_not_ours_to_read_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.chmod(put(Path(folder), "a")[0], 0)
        files = Files(folder)
        said = in_child(lambda: files.read([0]), as_user=65534)
    assert said == f"SampleNotFound: {folder}/a cannot be read: Permission denied"


def in_child(act: Callable[[], object], as_user: int) -> str:
    """What was raised, in a process of another user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(as_user)
            act()
            said = "nothing"
        except OSError as error:
            said = f"{type(error).__name__}: {error.strerror}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


class Flaky:
    """`os.pread` that fails so many times first, or gives no more than so many bytes at once."""

    def __init__(self, fails: int = 0, most: int = sys.maxsize) -> None:
        self.fails, self.most, self.real = fails, most, os.pread

    def __call__(self, descriptor: int, length: int, offset: int) -> bytes:
        if self.fails:
            self.fails -= 1
            raise OSError(errno.EIO, "Input/output error")
        return self.real(descriptor, min(length, self.most), offset)


@pytest.mark.parametrize("ids", [[0], [0, 1]])
def test_faults_that_pass_are_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[int], open_files: int
) -> None:
    put(tmp_path, "a", "b")
    files = Files(tmp_path)
    monkeypatch.setattr(module.os, "pread", Flaky(fails=3))
    assert files.read(ids) == [b"a", b"b"][: len(ids)]
    monkeypatch.setattr(module.os, "pread", Flaky(fails=99))
    with pytest.raises(SourceError, match=f"{tmp_path}/a cannot be read after 4 tries: Input/output error"):
        files.read(ids)
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_short_reads_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(CONTENTS[3])
    monkeypatch.setattr(module.os, "pread", Flaky(most=1000))
    assert Files(tmp_path).read([0]) == [CONTENTS[3]]


@pytest.mark.parametrize(("now", "read"), [(b"gr", b"gr"), (b"grown beyond", b"grown")])
def test_file_that_shrinks_or_grows_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bytes, read: bytes
) -> None:
    (tmp_path / "a").write_bytes(b"grown")
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        (tmp_path / "a").write_bytes(now)
        return status

    monkeypatch.setattr(module.os, "fstat", fstat)
    assert Files(tmp_path).read([0]) == [read]


def test_advice_is_bounded_and_never_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, *(f"{number:03}" for number in range(300)))
    with open(tmp_path / "000", "wb") as file:
        file.truncate(100 << 20)
    advised: list[tuple[int, int]] = []
    monkeypatch.setattr(module.os, "posix_fadvise", lambda _, offset, length, __: advised.append((offset, length)))
    files = Files(tmp_path)
    files.expect(range(1, 300))
    assert len(advised) == 256
    advised.clear()
    files.expect([0, 1])
    assert sum(length for _, length in advised) == 64 << 20
    assert max(length for _, length in advised) <= 128 << 10

    def refuse(*_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(module.os, "posix_fadvise", refuse)
    files.expect([1, 2])
    files.release([1, 2])
    assert files.read([1, 2]) == [b"001", b"002"]
    shutil.rmtree(tmp_path)
    files.expect([1])


def test_release_empties_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENTS[-1])
    files = Files(tmp_path)
    with open(tmp_path / "a", "rb") as file:
        os.fsync(file.fileno())
        files.read([0])
        if not resident(file.fileno()):
            pytest.skip("this file system keeps no copy, or does not tell")
        files.release([0])
        if resident(file.fileno()):
            pytest.skip("this file system is memory")
        files.read([0])
        drop_from_page_cache(file.fileno())
        assert not resident(file.fileno())


def resident(descriptor: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError:
        return False
