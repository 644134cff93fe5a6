"""A digest of all that a dataset is made of: if two processes get the same, either can prepare samples for the other.

Everything is looked at, arrays to the last byte. So the digest takes as long as pickling the dataset. Functions count by
their code and by what they refer to. Generators that a dataset keeps for itself have a state of their own in every process,
so with them no process can stand in for another.
"""

import hashlib
import io
import pickle
import random
import types
from typing import Any

import numpy as np
import torch

from stoker import checksum
from stoker.errors import ConfigError

_LONG = 1 << 20
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)


class NoDigestError(ConfigError):
    """The dataset holds something that other processes may not have alike. The message says what."""


def digest_of(*things: Any) -> str:
    """The digest of some objects together. Raises NoDigestError."""
    stream = _Hashed()
    pickler = _Pickler(stream, 5, buffer_callback=lambda buffer: stream.write(buffer.raw()))
    try:
        pickler.dump(things)
    except NoDigestError:
        raise
    except Exception as error:  # the user's objects may raise anything
        raise NoDigestError(f"the dataset cannot be compared with that of other ranks: {error}") from error
    return stream.digest.hexdigest()


class _Hashed(io.RawIOBase):
    """A file that only remembers the digest of what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.digest = hashlib.blake2b(digest_size=16)

    def write(self, content: Any) -> int:
        """Add to the digest."""
        length = memoryview(content).nbytes
        self.digest.update(checksum_of(content) if length > _LONG else content)
        return length


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        """How an object counts, where that is not as pickle writes it."""
        if isinstance(thing, _GENERATORS):
            raise NoDigestError(f"the dataset keeps a generator of its own ({type(thing).__name__})")
        if isinstance(thing, types.FunctionType):
            cells = [cell.cell_contents for cell in thing.__closure__ or () if cell is not None and _is_full(cell)]
            parts = (thing.__module__, thing.__qualname__, _code(thing.__code__), thing.__defaults__, thing.__kwdefaults__)
            return tuple, ((*parts, cells),)
        if isinstance(thing, types.ModuleType):
            return str, (thing.__name__,)
        if isinstance(thing, torch.Tensor) and type(thing) is torch.Tensor and thing.layout is torch.strided:
            return tuple, (
                (
                    str(thing.dtype),
                    tuple(thing.shape),
                    thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy(),
                ),
            )
        return NotImplemented


def checksum_of(content: Any) -> bytes:
    """A short text for many bytes: by the fast library where it is installed."""
    try:
        checksum.load()
    except ImportError:
        return hashlib.blake2b(content, digest_size=16).digest()
    return b"".join(checksum.checksum(content, name).to_bytes(checksum.SIZE, "little") for name in (b"ranks", b"alike"))


def _is_full(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _code(code: types.CodeType) -> tuple[Any, ...]:
    constants = tuple(_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, code.co_names, constants
