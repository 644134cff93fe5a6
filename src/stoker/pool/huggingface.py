"""Streams of Hugging Face's `datasets`, whose states need more care than others.

What such a stream was given by `load_state_dict()` holds for every later `iter()`, unless `set_epoch()` is called: a second
epoch would begin in the middle. And before its first item it tells the state of an earlier epoch, or of all shards. So it
is read through a copy for one epoch, and asked only after that has given something.
"""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset


def is_huggingfaces(dataset: Any) -> bool:
    """Whether a dataset is a stream of Hugging Face's."""
    return type(dataset).__module__.startswith("datasets.") and isinstance(dataset, IterableDataset)


def loses_its_buffer(thing: Any) -> bool:
    """Whether a stream of Hugging Face's is shuffled: what is in its buffer is not in its state, and would be lost."""
    if not type(thing).__module__.startswith("datasets."):
        return False
    found = [getattr(thing, "_ex_iterable", None)]
    for part in found:
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            return True
        within = [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())]
        found += [inner for inner in within if inner is not None]
    return False


def shared_epoch(stream: Any) -> dict[int, Any]:
    """What copies of a stream have in common with it, as a memo of `copy.deepcopy()`: the epoch that `set_epoch()` sets."""
    epoch = getattr(stream, "_epoch", None) if is_huggingfaces(stream) else None
    return {} if epoch is None else {id(epoch): epoch}


class OneEpoch(IterableDataset[Any]):
    """One epoch of a stream, from a state on if there is one. It leaves the stream as it is."""

    def __init__(self, stream: Any, state: Any = None) -> None:
        self._stream = stream
        self._state = state
        self._current: Any = None

    def __iter__(self) -> Iterator[Any]:
        current = object.__new__(type(self._stream))  # its own copy.copy() would share all attributes
        current.__dict__.update(self._stream.__dict__)
        if self._state is not None:
            current.load_state_dict(self._state)
        for item in current:
            self._current = current
            yield item

    def state_dict(self) -> Any:
        """The state after the last item. Before the first one: what it goes on from, or None."""
        return self._state if self._current is None else self._current.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on from a state at the next `iter()`."""
        self._state, self._current = state, None
