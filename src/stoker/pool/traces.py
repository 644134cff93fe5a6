"""What a batch leaves behind in its worker without a seed: then it matters where the next one is made.

A batch that draws moves the generators. One that asks which worker it is made in depends on the answer. One that changes
the dataset changes what comes after it.
"""

from types import ModuleType
from typing import Any

from stoker.tensor.seeding import Generators
from stoker.tensor.worker_info import notice_questions

_MOST_OBJECTS = 16


class Traces:
    """Watches a worker process from now on."""

    def __init__(self, dataset: Any) -> None:
        self._states = Generators(), _Attributes(dataset)
        self._questions = notice_questions()

    def were_left(self) -> bool:
        """Whether something is not as it was kept, or was asked since the last call."""
        return any([self._questions.were_asked(), *(state.moved() for state in self._states)])

    def keep(self) -> None:
        """Let everything be as it is now."""
        for state in self._states:
            state.keep()

    def remove(self) -> None:
        """Put everything back as it was kept."""
        for state in self._states:
            state.restore()


class _Attributes:
    """The attributes of a dataset as they were at a moment, and how long those are that can grow.

    With those of objects that it consists of: a dataset within a `Subset`, or a transform.
    """

    def __init__(self, dataset: Any) -> None:
        self._all: list[dict[str, Any]] = []
        self._collect(dataset)
        self.keep()

    def _collect(self, thing: Any) -> None:
        those = getattr(thing, "__dict__", None)
        if type(those) is not dict or isinstance(thing, (type, ModuleType)) or len(self._all) == _MOST_OBJECTS:
            return
        if not any(those is known for known in self._all):
            self._all.append(those)
            for value in list(those.values()):
                for part in value if type(value) in (list, tuple) and len(value) <= _MOST_OBJECTS else (value,):
                    self._collect(part)

    def keep(self) -> None:
        """Remember them as they are now."""
        self._kept = [(those, those.copy(), _lengths(those)) for those in self._all]

    def moved(self) -> bool:
        """Whether one is another object, or has grown or shrunk."""
        for those, kept, lengths in self._kept:
            if len(kept) != len(those) or any(those.get(name, self) is not value for name, value in kept.items()):
                return True
            if lengths != _lengths(those):
                return True
        return False

    def restore(self) -> None:
        """Put them back. What has grown stays so."""
        for those, kept, _ in self._kept:
            those.clear()
            those.update(kept)


def _lengths(those: dict[str, Any]) -> list[int]:
    return [len(value) for value in those.values() if type(value) in (list, dict, set)]
