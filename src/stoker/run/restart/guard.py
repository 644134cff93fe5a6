"""While a restarted script is on its way, no file of the user's is lost.

From the start, files that the script begins anew or removes are kept. It does so before its loops, as at its first start,
and the results of the run before would be lost. While epochs are passed, everything that the script writes comes from a
model that was hardly trained. So every file is kept before it is changed, and new files are removed in the end.

python tells an audit hook which file it is about to open, rename or remove. Functions of torch, safetensors, h5py and
OpenCV that open files by themselves are wrapped. Files that other libraries or other processes write are not seen.
"""

import contextlib
import functools
import gc
import io
import os
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stoker.internals.writers import WRITERS
from stoker.run.inject import after_import
from stoker.run.restart.journal import File, Journal
from stoker.run.restart.words import refuse

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_OPENERS = (
    *WRITERS,
    ("safetensors.torch", "serialize_file", 1),
    ("safetensors.numpy", "serialize_file", 1),
    ("h5py._hl.files", "make_fid", 0),
    ("cv2", "imwrite", 0),
)
"""What opens files without python: the module, the name in it, and which of its arguments is the path."""
_CLOCK_NS = 20_000_000
"""Times of files are those of the kernel's last tick."""
_CACHES = ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "PYTHONPYCACHEPREFIX")


class Guard:
    """Watches the script's files, from now on until `put_back`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal: Journal | None = None
        self._began_ns = time.time_ns() - _CLOCK_NS
        self._is_on = True
        self._is_passing = False
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._here = threading.local()
        home = Path.home()
        self._ignored = [str(directory), "/dev", "/proc", "/sys", str(home / ".cache"), str(home / ".triton")]
        self._ignored += [os.path.realpath(os.environ[name]) for name in _CACHES if os.environ.get(name)]
        self._compiled = os.path.join(tempfile.gettempdir(), "torchinductor_")  # asked for here, for it opens files itself
        self._replaced: list[tuple[Any, str, Any]] = []
        for module, name, position in _OPENERS:
            after_import(module, functools.partial(self._ask, name=name, position=position))
        sys.addaudithook(self._hear)  # it stays for ever, and does nothing once files are put back

    def begin_passing(self) -> None:
        """From now on keep every file before the script changes it: epochs are passed."""
        if self._is_passing:
            return
        self._is_passing = True
        for descriptors in open_for_writing().values():
            descriptor = descriptors[0]
            length, place = os.fstat(descriptor).st_size, os.lseek(descriptor, 0, os.SEEK_CUR)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if place == length and not self._is_ignored(path):  # a log: what comes next is added to it
                _flush(descriptors)
                with self._noting() as journal:
                    journal.note_length(path, os.fstat(descriptor).st_size)

    def _ask(self, library: Any, name: str, position: int) -> None:
        """Wrap a library's function that opens files, so that it tells which."""
        *outer, name = name.split(".")
        for part in outer:
            library = getattr(library, part, None)
        opens = getattr(library, name, None)
        if opens is not None:
            self._replaced.append((library, name, opens))
            setattr(library, name, self._telling(opens, position))

    def _telling(self, opens: Callable[..., Any], position: int) -> Callable[..., Any]:
        def tell(*arguments: Any, **named: Any) -> Any:
            path = arguments[position] if len(arguments) > position else named.get("filename")
            mode = arguments[1] if opens.__name__ == "make_fid" else "w"  # h5py's, which also opens for reading
            if self._is_on and mode != "r" and isinstance(path, (str, bytes, os.PathLike)):
                self._note(os.fsdecode(path), loses=mode == "w", empties=mode == "w")
            return opens(*arguments, **named)

        return tell

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on or os.getpid() != self._owner or hasattr(self._here, "is_noting"):
            return
        match event:
            case "open":
                path, _, flags = arguments
                if isinstance(path, (str, bytes, os.PathLike)) and isinstance(flags, int) and flags & _WRITES:
                    empties = bool(flags & os.O_TRUNC)
                    self._note(os.fsdecode(path), loses=empties, empties=empties)
            case "os.remove" | "os.rmdir":
                self._note(_named(arguments[0], arguments[1]), loses=True, follow=False)
            case "os.mkdir":
                self._note(_named(arguments[0], arguments[2]), follow=False)
            case "os.rename":
                self._note_move(_named(arguments[0], arguments[2]), _named(arguments[1], arguments[3]))
            case "os.link":
                self._note(_named(arguments[1], arguments[3]), follow=False)
            case "os.symlink":
                self._note(_named(arguments[1], arguments[2]), follow=False)
            case "os.truncate" | "sqlite3.connect":
                if isinstance(arguments[0], (str, bytes)) and arguments[0] != ":memory:":
                    self._note(os.fsdecode(arguments[0]), loses=event == "os.truncate")
            case "tempfile.mkstemp" | "tempfile.mkdtemp":
                self._ignored.append(os.path.realpath(arguments[0]))

    def _note(self, path: str, *, loses: bool = False, empties: bool = False, follow: bool = True) -> None:
        path = os.path.realpath(path) if follow else _place(path)
        if not self._is_passing and not (loses and os.path.lexists(path)):
            return
        if not self._is_ignored(path) and not (follow and os.path.isdir(path)):
            with self._noting() as journal:
                journal.note(path, empties=empties)

    def _note_move(self, source: str, target: str) -> None:
        source, target = _place(source), _place(target)
        if not self._is_passing and (not os.path.lexists(target) or self._is_from_before(source)):
            return  # a log that is rotated at the start, as at every start, is where the script wants it
        if not self._is_ignored(target):
            with self._noting() as journal:
                if self._is_passing and not self._is_ignored(source):
                    journal.note_move(source, target)
                else:
                    journal.note(target)

    def _is_from_before(self, path: str) -> bool:
        """Whether a file was last changed before this start."""
        try:
            return os.lstat(path).st_ctime_ns < self._began_ns
        except OSError:
            return False

    @contextlib.contextmanager
    def _noting(self) -> Iterator[Journal]:
        """Within this, files that the journal itself opens are not noted."""
        with self._lock:
            self._here.is_noting = True
            try:
                self._journal = self._journal or Journal(self._directory)
                yield self._journal
            except OSError as error:
                refuse(f"a file is about to be changed, and no copy of it can be kept in {self._directory}: {error}")
            finally:
                del self._here.is_noting

    def _is_ignored(self, path: str) -> bool:
        is_compiled = "/__pycache__/" in path or path.startswith(self._compiled)
        return is_compiled or any(path == root or path.startswith(root + "/") for root in self._ignored)

    def put_back(self) -> list[str]:
        """Put all files back, and stop watching. Returns what to tell."""
        self._is_on = False
        for owner, name, opens in self._replaced:
            setattr(owner, name, opens)
        if self._journal is None:
            return []
        in_use = open_for_writing()
        _flush([descriptor for descriptors in in_use.values() for descriptor in descriptors])
        return self._journal.put_back(in_use)


def _named(path: Any, folder: int) -> str:
    """A path as it was given, perhaps beneath an open folder."""
    text = os.fsdecode(path)
    return text if folder < 0 else os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)


def _place(path: str) -> str:
    """Where something lies that may be a link itself."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def open_for_writing() -> dict[File, list[int]]:
    """The files that this process has open for writing, with their descriptors."""
    found: dict[File, list[int]] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            text = Path(f"/proc/self/fdinfo/{name}").read_text()
            flags = next(int(line.split()[1], 8) for line in text.splitlines() if line.startswith("flags"))
            status = os.fstat(int(name))
        except OSError:
            continue
        if flags & (os.O_WRONLY | os.O_RDWR) and stat.S_ISREG(status.st_mode) and status.st_nlink:
            found.setdefault((status.st_dev, status.st_ino), []).append(int(name))
    return found


def _flush(descriptors: list[int]) -> None:
    """Have the script's file objects write what they hold."""
    for found in gc.get_objects():
        if issubclass(type(found), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):  # proxies are not asked
            with contextlib.suppress(OSError, ValueError):
                if not found.closed and found.fileno() in descriptors:
                    found.flush()
