"""Brings a restarted script back to where a checkpoint was taken, without running what it has done already.

The loops over a `range` that were around that moment begin at the number they had: until then, the modules that hold them
see a `range` of ours, which recognises the place it is called from. Counters that a `while` depends on are set on arrival.
`enumerate` over the batches of an epoch that goes on counts from where the epoch is. Afterwards everything is python's own.
"""

import ast
import builtins
import ctypes
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from stoker.run.restart.loops import (
    Counter,
    Loop,
    Surroundings,
    calls_of,
    evaluate,
    frames_of_script,
    module_of,
    same_place,
)
from stoker.run.restart.source import place_of
from stoker.run.restart.words import refuse

_PROGRESS_BARS = ("tqdm.std", "tqdm.auto", "tqdm.autonotebook", "tqdm.notebook", "tqdm.asyncio")
"""Modules whose `trange` calls `range`."""


class Returning:
    """Brings a script to a place in its loops."""

    def __init__(self, goal: Surroundings, *, past: bool, may_advance: bool = True) -> None:
        self._goal = goal
        self._past = past
        """Whether the innermost loop is done with the number it has."""
        self._left = list(goal.ranges) if may_advance else []
        """Loops that the script has not come to."""
        self._may_advance = may_advance
        self.has_advanced = self._has_arrived = False
        self._changed: dict[str, list[str]] = {}
        """Names that are ours now, by module."""
        self._counting: Counting | None = None

    def put_names(self) -> None:
        """Have the modules that matter see a `range` and an `enumerate` of ours, as far as they have been imported."""
        goal = self._goal
        names = {call.module: ["enumerate"] for call in goal.calls}
        for loop in self._left:
            names.setdefault(loop.module, []).append("range")
        if self._left:
            names |= {name: ["range"] for name in _PROGRESS_BARS}
        ours = {"range": self._range(), "enumerate": self._enumerate()}
        for module, wanted in names.items():
            if module in sys.modules and module not in self._changed:
                values = vars(sys.modules[module])
                self._changed[module] = [name for name in dict.fromkeys(wanted) if name not in values]
                values.update({name: ours[name] for name in self._changed[module]})

    def take_names(self) -> None:
        """Have all modules see python's own again."""
        for module, names in self._changed.items():
            for name in names:
                vars(sys.modules[module]).pop(name, None)
        self._changed.clear()

    def is_there(self, here: Surroundings) -> bool:
        """Whether the script, which asks for a batch, has come to the place."""
        if not self._may_advance:
            return False
        begun = len(self._goal.ranges) - len(self._left)
        if self._goal.ranges and not self._left:
            return True
        return len(here.ranges) <= begun and here.leads_to(self._goal)  # all that it is in have begun where they were

    def arrive(self, frame: FrameType | None, batches: int) -> None:
        """The script is there, and the epoch goes on after so many batches."""
        if not self._left:
            self.take_names()  # else it has yet to come to a loop, and reads its first batch before that
        self._has_arrived = True
        if self._counting is not None:
            self._counting.shift = batches
        if self._may_advance:
            for part in frames_of_script(frame):
                for counter in self._goal.counters:
                    if (module_of(part), part.f_code.co_qualname) == (counter.module, counter.code):
                        set_counter(part, counter)

    def _range(self) -> type:
        advance = self._advance

        class Range(type):
            """Replaces `range` in a module: it makes python's ranges, and `isinstance` with it works as with `range`."""

            def __call__(cls, *bounds: Any) -> Any:
                return advance(builtins.range(*bounds), sys._getframe(1))

            def __instancecheck__(cls, value: Any) -> bool:
                return isinstance(value, builtins.range)

        return Range("range", (), {"__doc__": builtins.range.__doc__})

    def _advance(self, numbers: range, frame: FrameType) -> range:
        if self._left and frame.f_code.co_name == "trange" and frame.f_back is not None:
            frame = frame.f_back
        if not self._left or not self._is_at(self._left[0], frame):
            return numbers
        loop = self._left.pop(0)
        assert loop.value is not None
        start = numbers.index(loop.value) if loop.value in numbers else len(numbers)
        rest = numbers[start + (self._past and not self._left) :]
        if not rest:
            word = "after" if self._past else "at"
            refuse(
                f"the checkpoint is {word} number {loop.value} of the loop in line {frame.f_lineno} of "
                f"{frame.f_code.co_filename}, which now ends before: give the script more to do, or use another directory"
            )
        self.has_advanced = True
        if self._has_arrived and not self._left:
            self.take_names()
        return rest

    def _is_at(self, loop: Loop, frame: FrameType) -> bool:
        if (module_of(frame), frame.f_code.co_qualname) != (loop.module, loop.code) or loop.call is None:
            return False
        if not same_place(place_of(frame.f_code, frame.f_lasti), loop.call):
            return False
        around = calls_of(frames_of_script(frame))[: loop.depth]
        return len(around) == loop.depth and all(map(lambda ours, theirs: ours.is_same(theirs), around, self._goal.calls))

    def _enumerate(self) -> type:
        def enter(counting: "Counting | None") -> "Counting | None":
            before, self._counting = self._counting, counting
            return before

        return type("enumerate", (Counting,), {"enter": staticmethod(enter)})


class Counting(enumerate[Any]):
    """An `enumerate` that is told, when the script has arrived, how many batches of the epoch there were before."""

    shift = 0
    enter: Callable[["Counting | None"], "Counting | None"]

    def __next__(self) -> tuple[int, Any]:
        before = self.enter(self)  # the innermost that is asked when the script arrives is the one over batches
        try:
            number, value = super().__next__()
        finally:
            self.enter(before)
        return number + self.shift, value


def set_counter(frame: FrameType, counter: Counter) -> None:
    """Give a variable or an attribute that a frame sees its value."""
    expression = ast.parse(counter.expression, mode="eval").body
    if isinstance(expression, ast.Attribute):
        owner = evaluate(expression.value, frame)
        if owner is not None:
            setattr(owner, expression.attr, counter.value)
    elif counter.expression in frame.f_locals and frame.f_locals is not frame.f_globals:
        frame.f_locals[counter.expression] = counter.value
        if sys.version_info < (3, 13):  # then f_locals is a copy
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    else:
        frame.f_globals[counter.expression] = counter.value
