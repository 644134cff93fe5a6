"""Files of the trainer's host, for remote workers that prepare what is read here.

Rule: a holder of the secret is given regular files below the dataset's folders, if this user can read them, they are not
too long, and have not changed since the job began. Links below the folders are followed. A file that has changed may be one
that workers write for themselves, each on its host, so it is not given.
"""

import os
import stat
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.memory import Bytes
from stoker.remote import said
from stoker.remote.said import Word
from stoker.source.files import file_version, read_range
from stoker.wire.channel import Channel
from stoker.wire.frames import Frame

if TYPE_CHECKING:
    from stoker.cache.intercept import FileReads

LONGEST_BYTES = 64 << 20


class ServedFiles:
    """What is below some folders. With `reads`, files come through the host's cache."""

    def __init__(self, roots: Sequence[str], reads: "FileReads | None" = None) -> None:
        self._roots = tuple(os.path.join(root, "") for root in roots)
        self._reads = reads
        self._began_ns = time.time_ns()

    def answer(self, channel: Channel, frame: Frame) -> bool:
        """Answer a worker that asks for a file. Returns whether it was given. Raises OSError."""
        content = self.content(os.fsdecode(frame.body))
        said.send(channel, Word.FILE, said.pack_file(content), content)
        return content is not None

    def content(self, path: str) -> Bytes | None:
        """The bytes of a file; None if it is not given."""
        if not path.startswith(self._roots) or os.path.normpath(path) != path:
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError):
            return None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > LONGEST_BYTES or is_newer(found, self._began_ns):
                return None
            if self._reads is not None and (cached := self._reads.opened(path)) is not None:
                return cached.read()  # type: ignore[no-any-return]
            content = read_range(descriptor, 0, found.st_size)
            is_same = file_version(os.fstat(descriptor)) == file_version(found) and len(content) == found.st_size
            return content if is_same else None
        except OSError:
            return None
        finally:
            os.close(descriptor)


def is_newer(found: os.stat_result, than_ns: int) -> bool:
    """Whether a file was made or changed after a moment, by the clock of its own host."""
    return max(found.st_mtime_ns, found.st_ctime_ns) > than_ns
