"""In a remote worker: files that the dataset opens, as they are on the trainer's host.

`open` is replaced as for a cache (`cache/intercept`), and asks over the connection of the work that is being made: its
other end waits for this work alone. What the trainer's host does not give is opened on this host: files outside the
dataset's folders, those that were written here since this worker began, and what a library opens in C.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from stoker.cache.intercept import activate, is_never
from stoker.cache.opened import FileInMemory
from stoker.remote import said
from stoker.remote.files import is_newer
from stoker.remote.said import Word
from stoker.wire.channel import Channel
from stoker.wire.frames import FrameError


class FarReads:
    """Asks the trainer's host for files below its dataset's folders, while a work says so."""

    cache = None

    def __init__(self, roots: Sequence[str], folder: str, began_ns: int) -> None:
        """`folder` is the trainer's current folder, which need not exist here."""
        self._roots = tuple(os.path.join(root, "") for root in roots)
        self._folder, self._began_in = folder, os.getcwd()
        self._began_ns = began_ns
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._channel: Channel | None = None

    @contextlib.contextmanager
    def over(self, channel: Channel) -> Iterator[None]:
        """Ask over this connection, in all threads of this process, within the context."""
        self._channel = channel
        activate(self)
        try:
            yield
        finally:
            activate(None)
            with self._lock:  # another thread of the dataset may be asking
                self._channel = None

    def opened(self, name: Any) -> Any:
        """A file of the trainer's host, open for reading in binary; None if it should be opened on this host."""
        if isinstance(name, int) or os.getpid() != self._pid:  # a child's bytes would get among ours
            return None
        try:
            path = self._path(os.fsdecode(name))
            if not path.startswith(self._roots) or is_never(path) or self._is_of_this_host(path):
                return None
        except (OSError, ValueError, TypeError):
            return None  # the error is for `open` to raise
        with self._lock:
            content = None if self._channel is None else _asked(self._channel, path)
        return None if content is None else FileInMemory(content, name)

    def _path(self, name: str) -> str:
        if os.pardir in name.split(os.sep):
            return ""  # `link/..` is the parent of the link's target, not of the link
        folder = os.getcwd()
        return os.path.normpath(os.path.join(self._folder if folder == self._began_in else folder, name))

    def _is_of_this_host(self, path: str) -> bool:
        try:
            return is_newer(os.stat(path), self._began_ns)
        except OSError:
            return False


def _asked(channel: Channel, path: str) -> bytes | None:
    """The file's bytes. If the connection fails, what is made meanwhile reaches nobody."""
    try:
        said.send(channel, Word.OPEN, os.fsencode(path))
        frame = said.receive(channel, Word.FILE)
        if frame is None:
            raise ConnectionResetError("the trainer's host has gone")
        content = bytearray(frame.header.payload_bytes)
        channel.fill(memoryview(content))
        return bytes(content) if said.is_given(frame, content) else None
    except (OSError, FrameError):
        channel.stream.end()
        return None
