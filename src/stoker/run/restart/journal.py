"""Files as they were before a script changed them, and the way back. It holds over a crash at any moment.

    passing/PID-STARTED/journal      a JSON line for each file, in the order of the first changes
    passing/PID-STARTED/0, 1, ..     copies

    copy the file, fsync  ->  write the line, fsync  ->  the change may go on
    put everything back, the last change first, fsync  ->  remove the journal, now it is over  ->  remove copies

Putting back can be repeated. As long as there is a journal, it was not finished.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.checkpoint.disk import Disk
from stoker.host import locks, process

_FOLDER = "passing"
_JOURNAL = "journal"

File = tuple[int, int]
"""A device and an inode."""
_NONE: File = (0, 0)


class Journal:
    """Notes what is about to be changed. Paths are absolute."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / _FOLDER / "{}-{}".format(*process.own())
        self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        os.chmod(self.folder.parent, 0o700)
        self._noted: set[str] = set()
        self._copies = 0
        self._journal = os.open(self.folder / _JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for path in (self.folder, self.folder.parent, directory):
            Disk().settle(path)

    def note(self, path: str, *, empties: bool = False) -> None:
        """A file, a link or an empty folder is about to be written to, made or removed; a file may be emptied first."""
        if path in self._noted:
            return
        if os.path.islink(path):
            entry: dict[str, Any] = {"was": "link", "to": os.readlink(path)}
        elif os.path.isdir(path):
            entry = {"was": "folder"}
        elif os.path.isfile(path):
            entry = {"was": "file", "emptied": empties, **self._copy(path)}
        elif os.path.lexists(path):
            return  # a device or a socket
        else:
            entry = {"was": "absent"}
        self._write({"path": path, **entry})
        self._noted.add(path)

    def note_length(self, path: str, length: int) -> None:
        """An open file is about to grow. Only its length is noted."""
        self._write({"path": path, "was": "shorter", "length": length})

    def note_move(self, source: str, target: str) -> None:
        """Something is about to get another name."""
        if os.path.isdir(source) and not os.path.islink(source):
            if not os.path.isdir(target):
                self._write({"path": source, "was": "moved", "to": target})
                self._noted.clear()  # other things have these names now
            return
        self.note(source)
        self.note(target)

    def _copy(self, path: str) -> dict[str, Any]:
        name = str(self._copies)
        self._copies += 1
        status = os.stat(path)
        shutil.copyfile(path, self.folder / name)
        os.chmod(self.folder / name, 0o600)
        _sync(self.folder / name)
        Disk().settle(self.folder)
        return {"copy": name, "mode": status.st_mode & 0o7777, "times": [status.st_atime_ns, status.st_mtime_ns]}

    def _write(self, entry: dict[str, Any]) -> None:
        left = memoryview(json.dumps(entry).encode() + b"\n")
        while left:  # a disk that is nearly full takes a part of it, and then refuses
            left = left[os.write(self._journal, left) :]
        os.fsync(self._journal)

    def put_back(self, in_use: Mapping[File, Sequence[int]]) -> list[str]:
        """Undo everything. Returns what to tell. Files that are open, by descriptors, go on from their old content."""
        words = _put_back(self.folder, in_use)
        os.close(self._journal)
        return words


def recover(directory: Path) -> tuple[int, list[str]]:
    """Put back the files of processes that are gone. Returns how many files, and what to tell."""
    files, words = 0, []
    with contextlib.ExitStack() as alone:  # several ranks may be started at once
        with contextlib.suppress(FileNotFoundError):
            alone.enter_context(locks.alone(directory / _FOLDER, os.O_RDONLY | os.O_DIRECTORY))
        for folder in sorted((directory / _FOLDER).glob("*-*")):
            pid, _, started = folder.name.partition("-")
            if not process.is_alive(int(pid), int(started)):
                files += len(list(_entries(folder)))
                words += _put_back(folder, {})
    with contextlib.suppress(OSError):
        (directory / _FOLDER).rmdir()
    return files, words


def _put_back(folder: Path, in_use: Mapping[File, Sequence[int]]) -> list[str]:
    words = []
    for entry in reversed(list(_entries(folder))):
        try:
            _undo(entry, folder, in_use)
        except OSError as error:
            words.append(f"{entry['path']} could not be put back ({error.strerror}): its copy is in {folder}")
        except (KeyError, TypeError, ValueError):
            words.append(f"a line of {folder / _JOURNAL} makes no sense: copies of files are in {folder}")
    if not words:
        (folder / _JOURNAL).unlink(missing_ok=True)
        Disk().settle(folder)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()
    return words


def _entries(folder: Path) -> Iterator[dict[str, Any]]:
    try:
        text = (folder / _JOURNAL).read_bytes()
    except FileNotFoundError:
        return
    for line in text.split(b"\n")[:-1]:  # a line that was cut off is of a change that did not go on
        try:
            yield json.loads(line)
        except ValueError:
            yield {}


def _undo(entry: dict[str, Any], folder: Path, in_use: Mapping[File, Sequence[int]]) -> None:
    path, was = Path(entry["path"]), entry["was"]
    if was == "moved":
        if os.path.isdir(entry["to"]) and not path.exists():
            os.rename(entry["to"], path)
    elif was == "folder":
        path.mkdir(parents=True, exist_ok=True)
    elif was == "shorter":
        _shorten(path, entry["length"], in_use.get(_identity(path) or _NONE, ()))
    elif descriptors := in_use.get(_identity(path) or _NONE):
        if was == "file" and entry["emptied"]:  # else it is as the script wants it
            _go_on_after((folder / entry["copy"]).read_bytes(), descriptors)
    elif was == "file":
        _restore(path, folder / entry["copy"], entry)
    else:
        _clear(path)
        if was == "link":
            path.symlink_to(entry["to"])
    with contextlib.suppress(OSError):
        Disk().settle(path.parent)


def _restore(path: Path, copy: Path, entry: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        try:
            shutil.copyfile(copy, partial)
        except OSError:  # there may be room when what is there now has gone: the copy is safe
            partial.unlink(missing_ok=True)
            _clear(path)
            shutil.copyfile(copy, partial)
        os.chmod(partial, entry["mode"])
        os.utime(partial, ns=tuple(entry["times"]))
        _sync(partial)
        if path.is_dir() and not path.is_symlink():
            _clear(path)
        os.rename(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _go_on_after(content: bytes, descriptors: Sequence[int]) -> None:
    """An open file that the script had begun anew has its old content again. What the script writes next comes after it."""
    written = 0
    while written < len(content):
        written += os.pwrite(descriptors[0], content[written:], written)
    os.ftruncate(descriptors[0], len(content))
    os.fsync(descriptors[0])
    for descriptor in descriptors:
        os.lseek(descriptor, 0, os.SEEK_END)


def _shorten(path: Path, length: int, descriptors: Sequence[int]) -> None:
    if path.is_file() and path.stat().st_size > length:
        os.truncate(path, length)
        for descriptor in descriptors:
            os.lseek(descriptor, 0, os.SEEK_END)


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):  # what else is in it was not ours to remove
            path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _identity(path: Path) -> File | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
