"""What a source is: sample numbers to bytes. Storage, a cache and a peer are the same protocol.

`Source` is all that is asked of one that a user writes. The rest is offered by sources that can tell more: what a sample
is called in a cache that others share (`Named`), also others on other hosts (`Shared`), that samples will be wanted soon
(`Foresighted`), and that the kernel's copy of them is not wanted any more (`Releasing`).
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from stoker.errors import SampleNotFound, SourceError
from stoker.memory import Bytes

T = TypeVar("T")

RETRY_AFTER_S = (0.05, 0.2, 0.8)
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


class Source(Protocol):
    """Numbered samples, as bytes."""

    def __len__(self) -> int: ...

    def sizes(self, ids: Sequence[int]) -> Sequence[int]:
        """How many bytes each has; cheap."""

    def read(self, ids: Sequence[int]) -> Sequence[Bytes]:
        """The bytes of each, in the order asked for. Several are read at once where that is faster."""


@runtime_checkable
class Named(Protocol):
    """A source whose samples have names that hold for every process of the host, and versions."""

    name: str
    """What all samples belong to: a folder, or shards. A cache is shared by all who say the same."""

    def key(self, number: int) -> bytes:
        """What a sample is called within the name: the same file has the same key, however it was found."""

    def version(self, number: int) -> bytes:
        """Differs as soon as the sample's bytes may differ. Looks anew, for it may have changed since."""


@runtime_checkable
class Shared(Named, Protocol):
    """A source whose samples have names that hold on several hosts. Of its versions the first 16 bytes hold there."""

    def shared_key(self, number: int, roots: tuple[str, ...]) -> bytes:
        """What a sample is called on all hosts, in 16 bytes. `roots` are the folders that may lie elsewhere on others."""


@runtime_checkable
class Foresighted(Protocol):
    """A source that can begin to read before it is asked for the bytes."""

    def expect(self, ids: Sequence[int]) -> None:
        """Begin to read samples that will be asked for soon."""


@runtime_checkable
class Releasing(Protocol):
    """A source whose bytes the kernel keeps a copy of, which can be given back."""

    def release(self, ids: Sequence[int]) -> None:
        """Drop the kernel's copy of samples: a cache has one, or nobody will ask for them."""


def checked(ids: Sequence[int], samples: int) -> Sequence[int]:
    """The same numbers; an IndexError if no sample has one of them. Negative ones are not counted from the end."""
    for number in ids:
        if not 0 <= number < samples:
            raise IndexError(f"there is no sample {number} among {samples:,}")
    return ids


def retried(read: Callable[[], T], what: str) -> T:
    """Read; again after a while if that fails in a way that may pass, and at last an error that names what was read."""
    for pause in (*RETRY_AFTER_S, None):
        try:
            return read()
        except _FINAL as error:
            raise SampleNotFound(error.errno, f"{what} cannot be read: {error.strerror}") from error
        except OSError as error:
            if pause is None:
                tries = len(RETRY_AFTER_S) + 1
                raise SourceError(error.errno, f"{what} cannot be read after {tries} tries: {error.strerror}") from error
            time.sleep(pause)
    raise AssertionError
