"""In every Python of a run whose folders no file system serves: functions of `os`, and `open`, know these folders.

That is enough for what is built on them: `os.walk`, `os.path`, `glob`, `pathlib`, `shutil`, PIL, NumPy, `torch.load`. Paths
elsewhere go to the functions that were there before, and so does what names no path (descriptors, `dir_fd`).
"""

import builtins
import errno
import functools
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from stoker.mount.entries import Entries
from stoker.mount.within import Within

_READING = frozenset({"r", "rt", "tr", "rb", "br"})
_WRITING = frozenset("wax+")
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGING = ("rmdir", "remove", "unlink", "truncate", "chmod", "chown", "utime", "mknod", "mkfifo", "setxattr")
_BOTH, _SECOND = ((0, "src"), (1, "dst")), ((1, "dst"),)
_FIRST = ((0, "path"),)
_LISTING = ("listdir", "scandir")

Found = tuple[Within, str]
_folders: list[Within] = []


def install(mounts: Sequence[dict[str, Any]]) -> None:
    """Let this process have these folders."""
    _folders[:] = [Within(mount) for mount in mounts]
    builtins.open = io.open = _Unbound(_opening(builtins.open), builtins.open, "io")
    ours: dict[str, Callable[..., Any]] = {
        "open": _descriptor,
        "stat": _status,
        "lstat": _status,
        "listdir": _names,
        "scandir": _entries,
        "access": _access,
        "readlink": _no_link,
        "mkdir": _made,
        "listxattr": _no_attributes,
        **dict.fromkeys(_CHANGING, _refused),
    }
    scandir = os.scandir
    for name, function in ours.items():
        _replace(name, function, _FIRST)
    for name, paths in (("rename", _BOTH), ("replace", _BOTH), ("link", _BOTH), ("symlink", _SECOND)):
        _replace(name, _refused, paths)
    for kind in vars(sys.modules.get("glob", os)).values():  # classes of Python 3.13, which keep the one they found
        kept = vars(kind).get("scandir") if isinstance(kind, type) else None
        if isinstance(kept, staticmethod) and kept.__func__ is scandir:
            kind.scandir = staticmethod(os.scandir)


def find(path: Any) -> Found | None:
    """The folder that a path lies in, and its place there; None for all others."""
    try:
        path = os.fsdecode(path)
        is_folder = path.endswith(("/", "/."))
        if not path.startswith("/") or "/." in path or "//" in path or path.endswith("/"):
            path = os.path.abspath(path)
    except (TypeError, ValueError, OSError):
        return None  # the error is for the function that was called to raise
    for within in _folders:
        place = within.place(path)
        if place is not None:
            return within, f"{place}/" if is_folder and within.number(place) is not None else place  # which is not there
    return None


class _Unbound:
    """A function that is no method where it stands in a class, and is pickled by its name: as functions in C are."""

    __name__: str

    def __init__(self, function: Callable[..., Any], before: Callable[..., Any], module: str) -> None:
        functools.update_wrapper(self, before)
        self.__module__ = module
        self._function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._function(*arguments, **named)

    def __reduce__(self) -> str:
        return self.__name__


def _replace(name: str, ours: Callable[..., Any], paths: Sequence[tuple[int, str]]) -> None:
    before = getattr(os, name)

    def call(*arguments: Any, **named: Any) -> Any:
        for number, word in paths:
            path = arguments[number] if number < len(arguments) else named.get(word)
            if path is None and name in _LISTING:
                path = "."
            if path is None or isinstance(path, int) or named.get("dir_fd") is not None:
                continue
            found = find(path)
            if found is not None:
                named.pop(word, None)
                return ours(*found, path, *arguments[number + 1 :], **named)
        return before(*arguments, **named)

    replaced = _Unbound(call, before, "os")
    for known in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if before in known:
            known.add(replaced)  # shutil looks for the function there
    setattr(os, name, replaced)


def _opening(before: Callable[..., Any]) -> Callable[..., Any]:
    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        found = None if isinstance(file, int) or opener is not None else find(file)
        text = {"encoding": encoding, "errors": errors, "newline": newline}
        is_odd = mode not in _READING or ("b" in mode and text != dict.fromkeys(text))
        if found is not None and is_odd and _WRITING & set(mode):
            raise _read_only(file)
        if found is None or is_odd:
            return before(file, mode, buffering, encoding, errors, newline, closefd, opener)
        within, place = found
        content = within.content(place, file)
        from stoker.cache.opened import CachedText, FileInMemory, copied

        if buffering == 0:
            return before(file, mode, 0, encoding, errors, newline, closefd, lambda *_: copied(content))
        binary = FileInMemory(content, file)
        return binary if "b" in mode else CachedText(binary, mode, **text)

    return opened


def _descriptor(within: Within, place: str, path: Any, flags: int, *_: Any, **__: Any) -> int:
    if flags & _WRITING_FLAGS:
        raise _read_only(path)
    if within.has(place) and within.number(place) is None:
        raise OSError(errno.ENOTSUP, "a folder that is served to Python alone has no descriptor", path)
    if flags & os.O_DIRECTORY:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    content = within.content(place, path)
    from stoker.cache.opened import copied

    return copied(content)


def _status(within: Within, place: str, path: Any, *_: Any, **__: Any) -> os.stat_result:
    return within.status(place, path)


def _names(within: Within, place: str, path: Any) -> list[Any]:
    names = within.listing(place, path)
    return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)


def _entries(within: Within, place: str, path: Any) -> Entries:
    return Entries(within, place, path)


def _access(within: Within, place: str, _path: Any, mode: int, **__: Any) -> bool:
    return within.has(place) and not mode & os.W_OK and not (mode & os.X_OK and within.number(place) is not None)


def _no_link(within: Within, place: str, path: Any, **_: Any) -> str:
    within.status(place, path)
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)


def _no_attributes(within: Within, place: str, path: Any, **_: Any) -> list[str]:
    within.status(place, path)
    return []


def _made(within: Within, place: str, path: Any, *_: Any, **__: Any) -> None:
    if within.has(place):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    raise _read_only(path)


def _refused(_within: Within, _place: str, path: Any, *_: Any, **__: Any) -> None:
    raise _read_only(path)


def _read_only(path: Any) -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS), path)
