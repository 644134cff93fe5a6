"""File objects whose bytes are in a cache. To readers they look like what `open` returns."""

import io
import os
from typing import Any

from stoker.cache.cached import Cache
from stoker.memory import Bytes, nameless_file
from stoker.meter import Tally
from stoker.sealed import BLOCK_BYTES


class CachedFile(io.BytesIO):
    """A file object over all bytes of a file."""

    mode = "rb"

    def __init__(self, payload: Bytes, name: Any, path: str, tally: Tally) -> None:
        super().__init__(payload)
        self.name = name
        self._real: LateDescriptor = _RealFile(path, tally)

    def fileno(self) -> int:
        """Open the file itself, at the same offset, and return its descriptor."""
        return self._real.at(self.tell())

    def peek(self, size: int = 0) -> bytes:
        """The next bytes, without moving on."""
        at = self.tell()
        return bytes(self.getbuffer()[at : at + max(size, io.DEFAULT_BUFFER_SIZE)])

    def writable(self) -> bool:
        """It was opened for reading."""
        return False

    def write(self, *_: Any) -> int:
        """It was opened for reading."""
        raise io.UnsupportedOperation("write")

    writelines = truncate = write  # type: ignore[assignment]

    def close(self) -> None:
        """Close the file itself, too, if its descriptor was asked for."""
        self._real.close()
        super().close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot pickle '_io.BufferedReader' object")


class CachedText(io.TextIOWrapper):
    """A CachedFile opened as text."""

    mode = "r"

    def __init__(self, whole: Any, mode: str, **options: Any) -> None:
        super().__init__(whole, **options)
        self.mode = mode


class LongFile(io.BufferedIOBase):
    """A long file in the cache. Only the blocks that are read are copied. Blocks that left the cache come from the file."""

    mode = "rb"

    def __init__(self, cache: Cache, key: bytes, size: int, name: Any, path: str) -> None:
        self._cache, self._key, self._size = cache, key, size
        self._at = 0
        self._last: tuple[int, bytes | None] = (-1, None)
        self.name = name
        self._real = _RealFile(path, cache.tally)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read so many bytes, or all that are left."""
        found = self.peek(self._size if size is None or size < 0 else size)
        self._at += len(found)
        return found

    read1 = read

    def peek(self, size: int = io.DEFAULT_BUFFER_SIZE) -> bytes:
        """The next bytes, without moving on."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        stop = min(self._size, self._at + size)
        pieces = []
        for number in range(self._at // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            first = number * BLOCK_BYTES
            begin, end = max(self._at, first) - first, min(stop - first, BLOCK_BYTES)
            block = self._block(number)
            if block is None:
                pieces.append(os.pread(self._real.at(first + begin), max(0, end - begin), first + begin))
            else:
                pieces.append(block if end - begin == len(block) else block[begin:end])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _block(self, number: int) -> bytes | None:
        """A block. The last one is kept, so that it is not checked again for every few bytes."""
        if number != self._last[0]:
            self._last = number, self._cache.get_block(self._key, number)
        return self._last[1]

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to an offset, never to one before the first byte."""
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._at

    def readable(self) -> bool:
        """It was opened for reading, and may be read in any order."""
        return True

    seekable = readable

    def fileno(self) -> int:
        """Open the file itself, at the same offset, and return its descriptor."""
        return self._real.at(self._at)

    def close(self) -> None:
        """Close the file itself, too, if its descriptor was asked for."""
        self._real.close()
        super().close()


class LateDescriptor:
    """A descriptor for readers that need one, made when it is first asked for."""

    _descriptor = -1

    def _make(self) -> int:
        raise NotImplementedError

    def at(self, place: int) -> int:
        """The descriptor, at a place of the file."""
        if self._descriptor < 0:
            self._descriptor = self._make()
        os.lseek(self._descriptor, place, os.SEEK_SET)
        return self._descriptor

    def close(self) -> None:
        """Close it, if it was made."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _RealFile(LateDescriptor):
    """The file itself, which is read from storage."""

    def __init__(self, path: str, tally: Tally) -> None:
        self._path, self._tally = path, tally

    def _make(self) -> int:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._tally.miss(os.fstat(descriptor).st_size, is_looked_for=False)
        return descriptor


class FileInMemory(CachedFile):
    """All bytes of a file that has no place of its own here. Code that needs a descriptor gets one of memory."""

    def __init__(self, content: Bytes, name: Any) -> None:
        io.BytesIO.__init__(self, content)
        self.name = name
        self._real = _Copy(content)


class _Copy(LateDescriptor):
    """A file's bytes in memory without a name."""

    def __init__(self, content: Bytes) -> None:
        self._content = content

    def _make(self) -> int:
        return copied(self._content)


def copied(content: Bytes) -> int:
    """A descriptor of memory that holds these bytes, at its beginning."""
    descriptor = nameless_file()
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
