"""A digest of all that a dataset is made of: if two processes get the same, either can prepare samples for the other.

Everything is looked at, arrays to the last byte, so the digest takes as long as pickling the dataset. Functions count by
their code and by what they refer to, classes of the user's own by their functions and attributes. So the digest shows a
variable of the script that differs between ranks, if the dataset uses it, and an environment variable that its code names.
Of installed packages only names count: all ranks have the same.

A generator that a dataset keeps, or that its script keeps for it, has another state in every process. Then no process can
prepare samples for another. The same holds for code that asks for its rank.
"""

import dis
import functools
import hashlib
import io
import os
import pickle
import random
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from stoker import checksum
from stoker.errors import ConfigError

_LONG = 1 << 20
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator, torch.Generator)
_STANDARD = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
_INSTALLED = "site-packages", "dist-packages"
_OF_EVERY_CLASS = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__static_attributes__", "__annotations__", "__slotnames__"}
)

_RANK_QUESTIONS = frozenset({"get_rank", "get_node_local_rank"})
_RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID"})


class NoDigestError(ConfigError):
    """The dataset holds something that other processes may not have alike. The message says what."""


def digest_of(*things: Any) -> str:
    """The digest of some objects together. Raises NoDigestError."""
    try:
        return _digest(things, set())
    except NoDigestError:
        raise
    except Exception as error:  # the user's objects may raise anything
        raise NoDigestError(f"the dataset cannot be compared with that of other ranks: {error}") from error


def _digest(thing: Any, met: set[int], named: dict[str, str | None] | None = None) -> str:
    stream = _Hashed()
    _Pickler(stream, met, named).dump(thing)
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
    def __init__(self, stream: _Hashed, met: set[int], named: dict[str, str | None] | None = None) -> None:
        def add(buffer: pickle.PickleBuffer) -> None:
            stream.write(buffer.raw())

        super().__init__(stream, 5, buffer_callback=add)
        self._met = met
        """Functions and classes that were looked at: they refer to each other in circles."""
        self._named = {} if named is None else named
        """Environment variables that were met."""

    def persistent_id(self, thing: Any) -> Any:
        """Sets count without their order, which is another one in every process."""
        if type(thing) is set or type(thing) is frozenset:
            return type(thing).__name__, sorted(_digest(one, {*self._met}) for one in thing)
        return None

    def reducer_override(self, thing: Any) -> Any:
        """How an object counts, where that is not as pickle writes it."""
        if isinstance(thing, _GENERATORS):
            raise NoDigestError(f"the dataset keeps a generator of its own ({type(thing).__name__})")
        if isinstance(thing, types.FunctionType):
            return tuple, (self._function(thing),)
        if isinstance(thing, type) and _is_users(thing):
            return tuple, (self._class(thing),)
        if isinstance(thing, types.ModuleType):
            return str, (thing.__name__,)
        if isinstance(thing, np.memmap) and thing.filename is not None and thing.mode != "c":
            return tuple, (_mapped(thing),)
        if isinstance(thing, torch.Tensor) and type(thing) is torch.Tensor and thing.layout is torch.strided:
            return tuple, (
                (
                    str(thing.dtype),
                    tuple(thing.shape),
                    thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy(),
                ),
            )
        return NotImplemented

    def _function(self, thing: types.FunctionType) -> tuple[Any, ...]:
        name = _module(thing), thing.__qualname__
        if not self._is_new(thing):
            return name
        cells = [cell.cell_contents for cell in thing.__closure__ or () if cell is not None and _is_full(cell)]
        known = thing.__globals__ if _is_users(thing) else {}
        used = [(used, self._in_brief(known[used])) for used in sorted(set(_globals(thing.__code__))) if used in known]
        surroundings = _surroundings(thing) if known else []
        self._named.update(surroundings)
        return *name, _code(thing.__code__), thing.__defaults__, thing.__kwdefaults__, cells, used, surroundings

    def _class(self, thing: type) -> tuple[Any, ...]:
        name = _module(thing), thing.__qualname__
        if not self._is_new(thing):
            return name
        parts = [(key, self._in_brief(value)) for key, value in sorted(vars(thing).items()) if key not in _OF_EVERY_CLASS]
        return *name, thing.__bases__, parts

    def _is_new(self, thing: Any) -> bool:
        is_new = id(thing) not in self._met
        self._met.add(id(thing))
        return is_new

    def _in_brief(self, thing: Any) -> str:
        """The digest of something that code refers to. What cannot be pickled, such as a lock, counts by its type."""
        if isinstance(thing, property):
            thing = thing.fget, thing.fset
        elif isinstance(thing, (staticmethod, classmethod)):
            thing = thing.__func__
        try:
            return _digest(thing, self._met, self._named)
        except NoDigestError:
            raise
        except Exception:  # the user's objects may raise anything
            return type(thing).__qualname__


def _module(thing: Any) -> str:
    """Where something is defined. In a worker that was spawned the script has another name."""
    return "__main__" if thing.__module__ == "__mp_main__" else str(thing.__module__)


def _is_users(thing: Any) -> bool:
    return is_users_module(str(thing.__module__))


@functools.cache
def is_users_module(name: str) -> bool:
    """Whether a module is the user's own: the script, or one that is not installed."""
    if name in ("__main__", "__mp_main__"):
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or file.startswith(_STANDARD) or any(folder in file for folder in _INSTALLED):
        return False
    return name.partition(".")[0] != "stoker"


def _globals(code: types.CodeType) -> Iterator[str]:
    """The names of all variables of its module that code looks at."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant)


def _surroundings(function: types.FunctionType) -> list[tuple[str, str | None]]:
    """The environment variables that a function names, with their values. Raises NoDigestError if it asks for its rank.

    What a dataset asks when it is made is in its attributes, and no helper asks it again.
    """
    if function.__name__ == "__init__":
        return []
    names, words = _names_and_words(function.__code__)
    asked = names & _RANK_QUESTIONS
    read = {word for word in words if word.isidentifier()} if names & {"environ", "getenv"} else set()
    asked |= read & _RANK_VARIABLES
    if asked:
        raise NoDigestError(f"the code of the dataset asks for its rank ({', '.join(sorted(asked))})")
    return [(word, os.environ.get(word)) for word in sorted(read)]


def variables_of(*things: Any) -> dict[str, str | None]:
    """The environment variables that the code of some objects names, with their values. Raises NoDigestError."""
    named: dict[str, str | None] = {}
    _Pickler(_Hashed(), set(), named).dump(things)
    return named


def _names_and_words(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The attributes and variables that code refers to, and its texts."""
    names, words = {*code.co_names}, set[str]()
    for inner in code.co_consts:
        words |= {one for one in (inner if isinstance(inner, tuple) else (inner,)) if isinstance(one, str)}
        if isinstance(inner, types.CodeType):
            more_names, more_words = _names_and_words(inner)
            names |= more_names
            words |= more_words
    return names, words


def _mapped(array: "np.memmap[Any, Any]") -> tuple[Any, ...]:
    """Which part of which file an array shows. The file, which may be huge, is not read for this."""
    found = os.stat(array.filename)  # type: ignore[arg-type]
    start = np.frombuffer(array._mmap, np.uint8).__array_interface__["data"][0]  # type: ignore[attr-defined]
    place = array.offset, array.__array_interface__["data"][0] - start, array.shape, array.dtype.str, array.strides
    return os.fspath(array.filename), found.st_size, found.st_mtime_ns, *place  # type: ignore[arg-type]


def checksum_of(content: Any) -> bytes:
    """A short text for many bytes: by the fast library where it is installed."""
    try:
        checksum.load()
    except ImportError:
        return hashlib.blake2b(content, digest_size=16).digest()
    return b"".join(
        checksum.checksum(content, name).to_bytes(checksum.CHECKSUM_BYTES, "little") for name in (b"ranks", b"alike")
    )


def _is_full(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _code(code: types.CodeType) -> tuple[Any, ...]:
    constants = tuple(
        _code(constant) if isinstance(constant, types.CodeType) else _text(constant) for constant in code.co_consts
    )
    return code.co_code, code.co_names, constants


def _text(constant: Any) -> str:
    return repr(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)
