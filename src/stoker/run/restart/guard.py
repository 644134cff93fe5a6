"""While epochs are passed, no file of the user's is changed before there is a copy of it.

python tells an audit hook what it is about to open, rename or remove. Libraries that open files by themselves are asked
where they do so: torch, safetensors, h5py and OpenCV. What other programs and other libraries write is not seen.
"""

import contextlib
import importlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stoker.run.restart.journal import Journal

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_OPENERS = (
    ("torch._C", "PyTorchFileWriter", 0),
    ("torch.jit._script", "RecursiveScriptModule.save", 1),
    ("safetensors.torch", "serialize_file", 1),
    ("safetensors.numpy", "serialize_file", 1),
    ("h5py._hl.files", "make_fid", 0),
    ("cv2", "imwrite", 0),
)
"""What opens files without python: the module, the name in it, and which of its arguments is the path."""
_CACHES = ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "PYTHONPYCACHEPREFIX")


class Guard:
    """Stands between the script and its files, from now on until `put_back`."""

    def __init__(self, directory: Path) -> None:
        self._journal: Journal | None = Journal(directory)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._here = threading.local()
        home = Path.home()
        self._ignored = [str(directory), "/dev", "/proc", "/sys", str(home / ".cache"), str(home / ".triton")]
        self._ignored += [os.path.realpath(os.environ[name]) for name in _CACHES if os.environ.get(name)]
        self._replaced: list[tuple[Any, str, Any]] = []
        for module, name, position in _OPENERS:
            self._ask(module, name, position)
        sys.addaudithook(self._hear)  # it stays for ever, and does nothing once files are put back

    def _ask(self, module: str, name: str, position: int) -> None:
        """Have a function tell which file it is about to open."""
        if module not in sys.modules:
            return
        owner: Any = importlib.import_module(module)
        *outer, name = name.split(".")
        for part in outer:
            owner = getattr(owner, part, None)
        opens: Callable[..., Any] | None = getattr(owner, name, None)
        if opens is None:
            return

        def tell(*arguments: Any, **named: Any) -> Any:
            path = arguments[position] if len(arguments) > position else named.get("filename")
            if isinstance(path, (str, bytes, os.PathLike)):
                self._note(os.fsdecode(path))
            return opens(*arguments, **named)

        self._replaced.append((owner, name, opens))
        setattr(owner, name, tell)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._journal is None or os.getpid() != self._owner or hasattr(self._here, "is_noting"):
            return
        match event:
            case "open":
                path, _, flags = arguments
                if isinstance(path, (str, bytes)) and isinstance(flags, int) and flags & _WRITES:
                    self._note(os.fsdecode(path))
            case "os.remove" | "os.rmdir":
                self._note(_named(arguments[0], arguments[1]), follow=False)
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
                    self._note(os.fsdecode(arguments[0]))
            case "tempfile.mkstemp" | "tempfile.mkdtemp":
                self._ignored.append(os.path.realpath(arguments[0]))

    def _note(self, path: str, *, follow: bool = True) -> None:
        path = os.path.realpath(path) if follow else _place(path)
        if self._journal is not None and not self._is_ignored(path) and not (follow and os.path.isdir(path)):
            with self._noting():
                self._journal.note(path)

    def _note_move(self, source: str, target: str) -> None:
        source, target = _place(source), _place(target)
        if self._journal is not None and not self._is_ignored(target):
            with self._noting():
                if self._is_ignored(source):
                    self._journal.note(target)
                else:
                    self._journal.note_move(source, target)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """What the journal itself opens is not noted."""
        with self._lock:
            self._here.is_noting = True
            try:
                yield
            finally:
                del self._here.is_noting

    def _is_ignored(self, path: str) -> bool:
        is_compiled = "/__pycache__/" in path or path.startswith(os.path.join(tempfile.gettempdir(), "torchinductor_"))
        return is_compiled or any(path == root or path.startswith(root + "/") for root in self._ignored)

    def put_back(self) -> list[str]:
        """Everything as it was, and from now on the script writes as it likes; what to tell."""
        if self._journal is None:
            return []
        journal, self._journal = self._journal, None
        for owner, name, opens in self._replaced:
            setattr(owner, name, opens)
        return journal.put_back(_open_for_writing())


def _named(path: Any, folder: int) -> str:
    """A path as it was given, perhaps beneath an open folder."""
    text = os.fsdecode(path)
    return text if folder < 0 else os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)


def _place(path: str) -> str:
    """Where something lies that may be a link itself."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _open_for_writing() -> set[tuple[int, int]]:
    """The files that this process has open for writing, by device and inode."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            with open(f"/proc/self/fdinfo/{descriptor}") as file:
                flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags"))
            if flags & (os.O_WRONLY | os.O_RDWR):
                status = os.stat(f"/proc/self/fd/{descriptor}")
                found.add((status.st_dev, status.st_ino))
        except OSError:
            continue
    return found
