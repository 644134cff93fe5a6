"""What is on disk: any damage is noticed, and after a crash at any moment the newest durable checkpoint is found."""

import builtins
import contextlib
import errno
import io
import itertools
import json
import os
import random
import shutil
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.checkpoint import restoring
from stoker.checkpoint.disk import Disk
from stoker.checkpoint.files import Damaged, Directory
from stoker.checkpoint.persist import Persister
from stoker.checkpoint.ranks import OneProcess
from stoker.checkpoint.snapshot import state_of
from stoker.cli import main
from stoker.errors import CheckpointError

LENGTHS = [1000, 64, 0, 5]


def content(step: int) -> memoryview:
    return memoryview(random.Random(step).randbytes(2048))


def save(directory: Directory, step: int, **options: Any) -> str:
    return directory.save(step, {"step": step}, content(step), LENGTHS, **options)


def newest_whole(directory: Directory) -> int | None:
    for name in directory.names():
        try:
            manifest, pieces = directory.load(name)
        except Damaged:
            continue
        assert manifest.document == {"step": manifest.step}
        assert bytes(pieces[0][:1000]) == bytes(content(manifest.step)[:1000])
        return manifest.step
    return None


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    save(directory, 3)
    save(directory, 12)
    assert newest_whole(directory) == 12
    assert oct(next(tmp_path.glob("*.data")).stat().st_mode)[-3:] == "600"


def test_a_step_that_is_saved_again_after_the_clock_was_put_back(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    old = save(directory, 3)
    tomorrow = time.time_ns() + 86_400_000_000_000
    os.utime(tmp_path / f"{old}.json", ns=(tomorrow, tomorrow))
    new = save(directory, 3)
    newer = save(directory, 3)
    assert directory.names() == [newer, new, old]


def test_any_one_bit_flipped_is_noticed(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    save(directory, 1)
    name = save(directory, 2)
    for path in (tmp_path / f"{name}.data", tmp_path / f"{name}.json"):
        whole = path.read_bytes()
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            with pytest.raises(Damaged):
                directory.load(name)
        assert newest_whole(directory) == 1
        path.write_bytes(whole)
    assert newest_whole(directory) == 2


def test_any_truncation_and_any_missing_file_is_noticed(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    save(directory, 1)
    name = save(directory, 2)
    for path in (tmp_path / f"{name}.data", tmp_path / f"{name}.json"):
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(Damaged):
                directory.load(name)
        path.write_bytes(whole + b"\0")
        with pytest.raises(Damaged):
            directory.load(name)
        path.unlink()
        assert newest_whole(directory) == 1
        path.write_bytes(whole)


def test_pruning_keeps_the_newest_whole_and_those_to_be_kept_and_leaves_damaged_ones_alone(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    names = {step: save(directory, step, kept=step == 2) for step in range(1, 7)}
    (tmp_path / f"{names[4]}.json").write_bytes(b"x")
    directory.prune(2, 6)
    assert [int(name.split("-")[0]) for name in directory.names()] == [6, 5, 4, 2]
    directory.prune(1, 5)
    assert [int(name.split("-")[0]) for name in directory.names()] == [6, 5, 4, 2]


def test_sweeping_removes_only_what_was_cut_short(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    name = save(directory, 1)
    others = ["notes.txt", "0000000002-00000000.json", "model.data", "x.partial"]
    for entry in [
        *others,
        "0000000003-00000000.data.partial",
        "0000000003-11111111.data",
        "0000000003-22222222.json.partial",
    ]:
        (tmp_path / entry).write_bytes(b"")
    directory.sweep()
    assert sorted(os.listdir(tmp_path)) == sorted([*others, f"{name}.data", f"{name}.json"])


class Recorder(Disk):
    """Does nothing but write down what was to be done, in steps as small as the kernel's."""

    def __init__(self, real: Disk) -> None:
        self.real = real
        self.done: list[tuple[Any, ...]] = []

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        whole = [bytes(part) for part in parts]
        self.done.append(("create", path.name))
        self.done += [
            ("write", path.name, half) for part in whole for half in (part[: len(part) // 2], part[len(part) // 2 :])
        ]
        self.done.append(("fsync", path.name))
        self.real.write(path, whole)

    def rename(self, path: Path, target: Path) -> None:
        self.done.append(("rename", path.name, target.name))
        self.real.rename(path, target)

    def unlink(self, path: Path) -> None:
        self.done.append(("unlink", path.name))
        self.real.unlink(path)

    def settle(self, directory: Path) -> None:
        self.done.append(("settle",))
        self.real.settle(directory)


class Crashed:
    """What may be on the device when everything stops: names and contents, each as of some moment that is allowed."""

    def __init__(self) -> None:
        self.files: dict[int, bytes] = {}
        self.synced: dict[int, bytes] = {}
        self.names: dict[str, int] = {}
        self.durable_names: dict[str, int] = {}
        self.pending: list[tuple[Any, ...]] = []

    def apply(self, done: Iterable[tuple[Any, ...]]) -> None:
        for action, *arguments in done:
            if action == "create":
                number = len(self.files)
                self.files[number], self.synced[number] = b"", b""
                self.names[arguments[0]] = number
                self.pending.append(("link", arguments[0], number))
            elif action == "write":
                self.files[self.names[arguments[0]]] += arguments[1]
            elif action == "fsync":
                number = self.names[arguments[0]]
                self.synced[number] = self.files[number]
            elif action == "rename":
                number = self.names.pop(arguments[0])
                self.names[arguments[1]] = number
                self.pending += [("unlink", arguments[0]), ("link", arguments[1], number)]
            elif action == "unlink" and arguments[0] in self.names:
                del self.names[arguments[0]]
                self.pending.append(("unlink", arguments[0]))
            elif action == "settle":
                self.durable_names = dict(self.names)
                self.pending = []

    def outcomes(self, rng: random.Random) -> Iterable[dict[str, bytes]]:
        """Nothing more than was promised; everything that was done; and some of what lies between."""
        for number in range(6):
            names = dict(self.durable_names)
            if number == 1:
                names = dict(self.names)
            elif number > 1:
                for action, name, *file in self.pending:  # each name by itself may have reached the device, or not
                    if rng.random() < 0.5:
                        names.pop(name, None)
                        names |= {name: file[0]} if action == "link" else {}
            contents = {}
            for name, file in names.items():
                whole, safe = self.files[file], self.synced[file]
                contents[name] = whole if number == 1 or whole == safe else whole[: rng.randint(len(safe), len(whole))]
            yield contents


@pytest.mark.parametrize("keep", [1, 2])
def test_after_a_crash_at_any_moment_the_newest_durable_one_is_found(tmp_path: Path, keep: int) -> None:
    real = tmp_path / "real"
    real.mkdir()
    recorder = Recorder(Disk())
    directory = Directory(real, recorder)
    durable_after: list[tuple[int, int]] = []
    for step in (10, 20, 30, 40):
        save(directory, step)
        durable_after.append((len(recorder.done), step))
        directory.prune(keep, step)
    rng = random.Random(keep)
    place = tmp_path / "crashed"
    for length in range(len(recorder.done) + 1):
        crashed = Crashed()
        crashed.apply(recorder.done[:length])
        durable = max((step for count, step in durable_after if count <= length), default=None)
        for contents in crashed.outcomes(rng):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for name, text in contents.items():
                (place / name).write_bytes(text)
            found = newest_whole(Directory(place))
            begun = {None, *itertools.chain(*([step] for _, step in durable_after))}
            assert found in begun
            if durable is not None:
                assert found is not None and found >= durable, (length, durable, found)


class Failing(Disk):
    """Fails at one of its calls, half-way through if it is a write."""

    def __init__(self, at: int, error: int) -> None:
        self.left = at
        self.error = error

    def _fail(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise OSError(self.error, os.strerror(self.error))

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        if self.left == 0:
            path.write_bytes(b"half")
        self._fail()
        super().write(path, parts)

    def rename(self, path: Path, target: Path) -> None:
        self._fail()
        super().rename(path, target)

    def settle(self, path: Path) -> None:
        self._fail()
        super().settle(path)

    def unlink(self, path: Path) -> None:
        self._fail()
        super().unlink(path)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT], ids=errno.errorcode.get)
def test_an_error_at_any_call_of_a_save_leaves_what_was_there(tmp_path: Path, error: int) -> None:
    save(Directory(tmp_path), 1)
    for at in itertools.count():
        disk = Failing(at, error)
        directory = Directory(tmp_path, disk)
        try:
            save(directory, 2)
            directory.prune(1, 2)
        except OSError as raised_error:
            assert raised_error.errno == error
        if disk.left >= 0:
            break  # there are not so many calls
        assert newest_whole(Directory(tmp_path)) in (1, 2)
        Directory(tmp_path).sweep()
        assert not list(tmp_path.glob("*.partial"))
        if newest_whole(Directory(tmp_path)) == 2:
            for path in tmp_path.glob("0000000002*"):
                path.unlink()
            if newest_whole(Directory(tmp_path)) is None:
                save(Directory(tmp_path), 1)
    assert at > 6
    assert newest_whole(Directory(tmp_path)) == 2


CALLS = ["open", "write", "fsync", "close", "rename", "unlink", "listdir", "stat", "fstat", "utime", "posix_fadvise"]


class FailingCalls:
    """Lets one of the calls to the system fail, in whichever process: on the way of a save, of reading back, of pruning."""

    def __init__(self, at: int, error: int, patch: pytest.MonkeyPatch) -> None:
        self.left, self.error = at, error
        for name in CALLS:
            patch.setattr(os, name, partial(self._call, getattr(os, name), name))
        patch.setattr(io, "open", partial(self._call, io.open, "open"))
        patch.setattr(builtins, "open", partial(self._call, builtins.open, "open"))

    def _call(self, real: Any, name: str, *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left == -1:
            if name == "close":
                real(*arguments)  # as the kernel does it
            raise OSError(self.error, os.strerror(self.error))
        return real(*arguments, **named)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_an_error_of_any_system_call_of_a_save_loses_nothing(error: int) -> None:
    place = Path(tempfile.mkdtemp(dir="/dev/shm"))  # a disk would take long for so many saves
    memory = os.memfd_create("snapshot")
    os.write(memory, content(2))
    asked = {"save": 2, "bytes": 1088 + 64, "lengths": LENGTHS, "document": {"step": 2}, "kept": False}
    asked |= {"prune": None, "spared": []}
    for at in itertools.count():
        shutil.rmtree(place)
        place.mkdir()
        save(Directory(place), 1)
        with pytest.MonkeyPatch.context() as patch:
            calls = FailingCalls(at, error, patch)
            reply = Persister(Directory(place), memory, 1).carry_out(asked)
        assert newest_whole(Directory(place)) == 2 if "saved" in reply else newest_whole(Directory(place)) in (1, 2)
        again = Persister(Directory(place), memory, 1).carry_out({**asked, "save": 3, "document": {"step": 3}})
        assert "saved" in again, again
        assert len(list(place.iterdir())) == 2  # nothing is left of what had failed
        if calls.left >= 0:
            break  # there are not so many calls
    assert at > 30
    os.close(memory)
    shutil.rmtree(place)


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    import zlib

    directory = Directory(tmp_path)
    name = save(directory, 1)
    body = (tmp_path / f"{name}.json").read_bytes().partition(b"\n")[0].replace(b'"version":1', b'"version":2')
    (tmp_path / f"{name}.json").write_bytes(b"%b\ncrc32 %08x\n" % (body, zlib.crc32(body)))
    with pytest.raises(CheckpointError, match="newer stoker") as caught:
        directory.load(name)
    assert not isinstance(caught.value, Damaged)


WHOLE: dict[str, Any] = {
    "stateful": {"model": {"dict": [["w", {"leaf": {"kind": "tensor", "dtype": "float32", "shape": [4], "piece": 0}}]]}},
    "extra": {"dict": [["generators", []], ["policy", {"dict": []}]]},
}
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text(max_size=3), st.just([]), st.just({}),
    st.just([10**12, 10**12]), st.just("float64"), st.just({"leaf": {}}), st.just({"tuple": 5}), st.just({"bytes": "~"}),
)  # fmt: skip


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a document."""
    found = [above]
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += places(part, (*above, key))
    return found


def forge(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Another document, with something else in one place."""
    if not place:
        return value
    body = dict(body) if isinstance(body, dict) else list(body)
    body[place[0]] = forge(body[place[0]], place[1:], value)
    return body


def raised(act: Any) -> None:
    with contextlib.suppress(CheckpointError):
        act()


@settings(max_examples=80)
@given(st.data())
def test_forged_manifests_are_one_error(data: st.DataObject) -> None:
    """Whose checksums are right, so that only their contents can tell."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Directory(folder)
        name = directory.save(3, WHOLE, memoryview(bytes(64)), [16])
        path = Path(folder) / f"{name}.json"
        body = json.loads(path.read_bytes().partition(b"\n")[0])
        for _ in range(data.draw(st.integers(1, 3))):
            body = forge(body, data.draw(st.sampled_from(places(body))), data.draw(ODD))
        text = json.dumps(body).encode()
        path.write_bytes(b"%b\ncrc32 %08x\n" % (text, zlib.crc32(text)))
        raised(lambda: directory.verify(name))

        def load() -> None:
            manifest, contents = directory.load(name)
            state_of(manifest.document, contents)

        raised(load)
        model = torch.nn.Linear(2, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            raised(lambda: restoring.newest_whole(directory, OneProcess(), []).load_into({"model": model}))  # type: ignore[union-attr]
        assert main(["checkpoint", "ls", folder]) == 0
        assert main(["checkpoint", "verify", folder]) in (0, 1)
        (Path(folder) / "out").mkdir()
        assert main(["checkpoint", "export", folder, f"{folder}/out/x.pt"]) in (0, 1)


def test_deep_and_endless_manifests(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    name = save(directory, 1)
    path = tmp_path / f"{name}.json"
    text = b'{"version":1,"step":1,"kept":false,"pieces":[],"document":' + b"[" * 100_000
    path.write_bytes(b"%b\ncrc32 %08x\n" % (text, zlib.crc32(text)))
    with pytest.raises(Damaged, match="makes no sense"):
        directory.manifest(name)
    os.truncate(path, 1 << 43)
    with pytest.raises(Damaged, match=r"8,796,093,022,208 bytes"):
        directory.manifest(name)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Damaged):
        directory.manifest(name)


def test_more_than_memory_is_not_asked_for(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    name = directory.save(3, WHOLE, memoryview(bytes(64)), [16])
    path = tmp_path / f"{name}.json"
    body = json.loads(path.read_bytes().partition(b"\n")[0])
    body["pieces"] = [[0, 1 << 43, 0]]
    text = json.dumps(body).encode()
    path.write_bytes(b"%b\ncrc32 %08x\n" % (text, zlib.crc32(text)))
    os.truncate(tmp_path / f"{name}.data", 1 << 43)
    with pytest.raises(CheckpointError, match="free some memory"):
        directory.load(name)
