"""Where in its loops a script is when it asks for a batch: the loops around that moment, and how far each of them is.

A loop over a `range` is known by a number, so a restarted script can begin it there. A `while` is known by the counters
that it depends on. A loop over something else cannot be entered in the middle; at its first value it need not be.
"""

import ast
import inspect
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from stoker.run.restart.source import CodePlace, WrittenLoop, loops_around, place_of

_OURS = str(Path(__file__).parents[2])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_COUNTERS_OF_LOADERS = ("iteration", "_num_iter_calls")
"""Attributes in which loaders of Accelerate and Fabric count their epochs."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the script that is running, and where in it."""

    module: str
    code: str
    """Its qualified name."""
    place: CodePlace

    def is_same(self, other: "Call", *, anywhere: bool = False) -> bool:
        """Whether it is the same function, and the same place in it."""
        is_function = (self.module, self.code) == (other.module, other.code)
        return is_function and (anywhere or same_place(self.place, other.place))


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop, and how far it is."""

    kind: str
    """range, while, first (at its first value), or other"""
    module: str
    code: str
    place: CodePlace
    depth: int
    """How many of the script's functions are around its own."""
    call: CodePlace | None = None
    """Where `range` is called for it."""
    variable: str = ""
    value: int | None = None
    """The number that it is at."""
    is_inner: bool = False
    """Whether it is in a generator, which stands around a loader."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A whole number that decides how long a script goes on, or which epoch a loader takes it to be."""

    module: str
    code: str
    expression: str
    value: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Functions and loops around a moment, the outermost first, and counters that have changed since the script began."""

    calls: tuple[Call, ...] = ()
    loops: tuple[Loop, ...] = ()
    counters: tuple[Counter, ...] = ()
    unknown: str = ""
    """Why one of the loops cannot be entered where it is; empty if all can."""

    def values(self) -> dict[str, Any]:
        """In plain values."""
        return asdict(self)

    @classmethod
    def of_values(cls, values: dict[str, Any]) -> "Surroundings":
        """Undo `values`."""

        def made(kind: type, named: dict[str, Any]) -> Any:
            return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in named.items()})

        kinds: tuple[tuple[str, type], ...] = (("calls", Call), ("loops", Loop), ("counters", Counter))
        parts = {name: tuple(made(kind, named) for named in values[name]) for name, kind in kinds}
        return cls(**parts, unknown=values["unknown"])

    @property
    def ranges(self) -> tuple[Loop, ...]:
        """The loops that have a number."""
        return tuple(loop for loop in self.loops if loop.kind == "range")

    def less(self, ahead: int, given: int) -> "Surroundings":
        """These surroundings, with loops that count given batches set back by the batches that were read ahead."""
        counts = [loop.is_inner and loop.value == given for loop in self.loops]
        loops = (
            replace(loop, value=given - ahead) if is_count else loop
            for loop, is_count in zip(self.loops, counts, strict=True)
        )
        return replace(self, loops=tuple(loops))

    def leads_to(self, other: "Surroundings") -> bool:
        """Whether these are the same functions and loops, however far they are, or the outer ones of them."""
        if len(self.calls) > len(other.calls) or len(self.loops) > len(other.loops):
            return False
        last = len(self.calls) - 1
        calls = (
            ours.is_same(theirs, anywhere=depth == last)
            for depth, (ours, theirs) in enumerate(zip(self.calls, other.calls, strict=False))
        )
        loops = (
            (ours.kind, ours.depth) == (theirs.kind, theirs.depth) and same_place(ours.place, theirs.place)
            for ours, theirs in zip(self.loops, other.loops, strict=False)
        )
        return all(calls) and all(loops)


def same_place(one: CodePlace, other: CodePlace) -> bool:
    """Whether two places are the same. Columns are compared if both have one."""
    return one[0] == other[0] and (None in (one[1], other[1]) or one[1] == other[1])


def module_of(frame: FrameType) -> str:
    """The name of the module that a frame's code belongs to."""
    return str(frame.f_globals.get("__name__", ""))


def innermost(frame: FrameType | None) -> tuple[CodeType, int] | None:
    """The innermost function of the script, and where in it."""
    found = [part for part in frames_of_script(frame) if not _is_library(part) and not part.f_code.co_flags & _GENERATOR]
    return (found[-1].f_code, found[-1].f_lasti) if found else None


def is_one_loop(begun: tuple[CodeType, int] | None, asked: tuple[CodeType, int] | None) -> bool:
    """Whether the same loops surround the place that begins an epoch and the place that asks for a batch."""
    if begun is None or asked is None or begun[0] is not asked[0]:
        return False
    return loops_around(*begun) == loops_around(*asked)


def frames_of_script(frame: FrameType | None) -> list[FrameType]:
    """A frame and those that have called it, the outermost first, without ours."""
    found = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OURS):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


def calls_of(frames: list[FrameType]) -> list[Call]:
    """The script's functions among some frames. Generators are not: they stand around loaders, and are made anew."""
    return [
        Call(module_of(frame), frame.f_code.co_qualname, place_of(frame.f_code, frame.f_lasti))
        for frame in frames
        if not _is_library(frame) and not frame.f_code.co_flags & _GENERATOR
    ]


def _is_library(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return path.startswith((*_LIBRARIES, "<")) or "site-packages" in path


class Surveyor:
    """Looks at the frames of a script."""

    def __init__(self) -> None:
        self._at_first: dict[tuple[str, str, str], int] = {}
        """What counters were when they were first seen."""

    def survey(self, frame: FrameType | None, *, at_end: bool = False) -> Surroundings:
        """The loops around a frame and all that have called it; at the end of an epoch without those within the epoch."""
        frames = frames_of_script(frame)
        if at_end:
            frames = [part for part in frames if not part.f_code.co_flags & _GENERATOR]
        loops: list[Loop] = []
        unknown = ""
        depth = 0
        for part in frames:
            written = loops_around(part.f_code, part.f_lasti)
            if written is None and not _is_library(part):
                unknown = f"the source of {part.f_code.co_filename} cannot be read"
            for loop in _loops_of(part, written or (), depth):
                loops.append(loop)
                if loop.kind == "other":
                    line, name = loop.place[0] + part.f_code.co_firstlineno, Path(part.f_code.co_filename).name
                    unknown = f"the loop in line {line} of {name} cannot be entered in the middle"
            depth += not _is_library(part) and not part.f_code.co_flags & _GENERATOR
        counters = (counter for part in frames for counter in self._counters_of(part))
        return Surroundings(tuple(calls_of(frames)), tuple(loops), tuple(counters), unknown)

    def _counters_of(self, frame: FrameType) -> Iterator[Counter]:
        """Numbers that have changed since they were first seen."""
        written = loops_around(frame.f_code, frame.f_lasti) or ()
        found = {text: evaluate(part, frame) for loop in written for text, part in loop.counters.items()}
        owner = getattr(frame.f_locals.get("self"), "__dict__", {}) if frame.f_code.co_name == "__iter__" else {}
        found |= {f"self.{name}": owner[name] for name in _COUNTERS_OF_LOADERS if name in owner}
        module, code = module_of(frame), frame.f_code.co_qualname
        for text, value in found.items():
            if type(value) is int and self._at_first.setdefault((module, code, text), value) != value:
                yield Counter(module, code, text, value)


def _loops_of(frame: FrameType, written: tuple[WrittenLoop, ...], depth: int) -> Iterator[Loop]:
    code = frame.f_code
    begins_anew = _is_library(frame) or bool(code.co_flags & _GENERATOR)
    for loop in written:
        kind, value = _state_of(loop, frame)
        if kind == "range" or not begins_anew:  # a `while True` in a generator around a loader needs no entering
            numbered = (loop.call, loop.variable or "", value) if kind == "range" else (None, "", None)
            is_inner = bool(code.co_flags & _GENERATOR)
            yield Loop(kind, module_of(frame), code.co_qualname, loop.place, depth, *numbered, is_inner)


def _state_of(loop: WrittenLoop, frame: FrameType) -> tuple[str, int | None]:
    """The kind of a loop, and its number."""
    if isinstance(loop.node, ast.While):
        return "while", None
    value = frame.f_locals.get(loop.variable) if loop.variable else None
    if loop.call is not None and type(value) is int:
        return "range", value
    given = evaluate(loop.node.iter, frame)
    first = next(iter(given), None) if type(given) in (list, tuple, dict, str) else None
    if type(value) in (str, int, float, bool) and type(value) is type(first) and value == first:
        return "first", None
    return "other", None


def evaluate(expression: ast.expr, frame: FrameType) -> Any:
    """The value of a name, an attribute or a literal, without running anything; None if it is something else."""
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    if isinstance(expression, ast.Attribute):
        return getattr(evaluate(expression.value, frame), "__dict__", {}).get(expression.attr)
    try:
        return ast.literal_eval(expression)
    except (ValueError, SyntaxError, TypeError):
        return None
