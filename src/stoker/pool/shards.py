"""A stream of Hugging Face's that goes on with another number of workers than its state was saved with.

Worker w of n reads shards w, w + n, w + 2 n, .. and its state is one place in that list. Such a list can be divided by k:
its parts are those of workers w, w + n, .. of k n, and the place is one place in each. So what is left of the epoch is
dealt anew, as parts that a worker reads one after the other. What has no plain place (a batched `map()`, a buffer) stays
whole: one of the new workers reads it as its old worker would have.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from torch.utils.data import IterableDataset

from stoker.internals.names import WorkerInfo
from stoker.pool.huggingface import OneEpoch, is_huggingfaces, loses_its_buffer
from stoker.pool.start import StreamStart
from stoker.pool.webdatasets import counted
from stoker.tensor.worker_info import answered

Values = dict[str, Any]
Part = Values
"""`worker` of `workers` (0: there were none) had it, from `state` on; `items` are to be passed by first."""

_PARTS = "parts of a stream"
_END = object()
_PLACE = {"shard_idx", "shard_example_idx", "type"}
_TABLES = "RebatchedArrowExamplesIterable"
_SEE_ONE_ITEM_AT_A_TIME = {_TABLES, "MappedExamplesIterable", "FilteredExamplesIterable"}


def dealt(owners: Sequence[Values], had: int, workers: int, *, batch: int, shards: int) -> list[Values]:
    """What is left of a stream, for each of so many workers, out of what each of its workers had seen."""
    parts = [part for number, owner in enumerate(owners) for part in _parts(owner, number, had, batch)]
    if all(_place(part) is not None for part in parts):
        parts = _divided(parts, max(workers, 1), shards)
    piles: list[list[Part]] = [[] for _ in range(max(workers, 1))]
    for part in parts:
        piles[part["worker"] % len(piles)].append(part)
    return [{"batches": 0, "since": 0, "ended": False, "dataset": {_PARTS: pile}} for pile in piles]


def _parts(owner: Values, number: int, had: int, batch: int) -> list[Part]:
    """What a worker had left."""
    state = owner.get("dataset")
    if owner["ended"]:
        return []
    if state is None or not _are_parts(state):
        if owner["batches"] == owner["since"]:
            state = None  # of the epoch before
        return [{"worker": number, "workers": had, "state": state, "items": owner["since"] * batch}]
    parts: list[Part] = copy.deepcopy(state[_PARTS])
    if parts:
        parts[0]["items"] += owner["since"] * batch
    return parts


def _place(part: Part) -> Values | None:
    """The place in the list of shards that a part's state is; None if it is more than that."""
    if part["state"] is None or part["items"]:
        return None
    found = outermost = part["state"]["examples_iterable"]
    while isinstance(found, dict) and "examples_iterable" in found:
        if found.get("type") not in _SEE_ONE_ITEM_AT_A_TIME:
            return None
        inner = found["examples_iterable"]
        if found.get("previous_state") is not None and not (found is outermost and _is_row_in_table(found)):
            return None
        found = inner
    return found if _is_place(found) else None


def _is_place(state: Any) -> bool:
    return isinstance(state, dict) and state.keys() == _PLACE


def _is_row_in_table(state: Values) -> bool:
    """Whether a state says which table of a shard is read, and how many of its rows were given.

    After a restart it says what comes before the table alone: then the shard that the table is of is not known.
    """
    before, after = state["previous_state"], state["examples_iterable"]
    return state["type"] == _TABLES and _is_place(before) and _is_place(after) and _row(before) < _row(after)


def _row(place: Values) -> tuple[int, int]:
    return place["shard_idx"], place["shard_example_idx"]


def _divided(parts: list[Part], workers: int, shards: int) -> list[Part]:
    """The same, in parts that are dealt evenly to the workers. If there are more parts than shards, each is one shard."""
    of = math.lcm(workers, *(max(part["workers"], 1) for part in parts))
    found = []
    for part in parts:
        had = max(part["workers"], 1)
        for k in range(of // had):
            own = {"worker": part["worker"] + k * had, "workers": min(of, shards), "items": 0}
            if own["worker"] < shards:
                found.append({**own, "state": _advanced(part, k, of // had)})
    return found


def _advanced(part: Part, k: int, parts: int) -> Values:
    """The state of one of so many parts of a list of shards."""
    new = copy.deepcopy(part)
    place = _place(new)
    assert place is not None
    shard = place["shard_idx"]
    is_half_read = shard % parts == k
    place["shard_idx"] = -((k - shard) // parts)
    if not is_half_read:
        place["shard_example_idx"] = 0
    state: Values = new["state"]
    outermost = state["examples_iterable"]
    if (before := outermost.get("previous_state")) is not None:  # where the table begins whose rows were given
        begins = before["shard_example_idx"] if before["shard_idx"] == shard else 0
        outermost["previous_state"] = {**place, "shard_example_idx": begins} if is_half_read else None
        outermost["num_chunks_since_previous_state"] *= is_half_read
    return state


def _are_parts(state: Any) -> bool:
    return isinstance(state, dict) and state.keys() == {_PARTS}


def for_one_epoch(dataset: Any, start: StreamStart) -> tuple[Any, StreamStart]:
    """What a worker reads in an epoch, and what is left to set back: some libraries' streams are read through another."""
    if not is_huggingfaces(dataset):
        return counted(dataset) or dataset, start
    rest = replace(start, dataset=None)
    if not start.is_fresh and _are_parts(start.dataset):
        return StreamInParts(dataset, start.dataset[_PARTS]), rest
    if loses_its_buffer(dataset):
        return dataset, rest
    return OneEpoch(dataset, None if start.is_anew else start.dataset), rest


class StreamInParts(IterableDataset[Any]):
    """Reads parts of a stream, one after the other, each as the worker that had it. It is read once."""

    def __init__(self, stream: Any, parts: list[Part]) -> None:
        self._stream = stream
        self._parts = parts
        self._current: OneEpoch | None = None
        self._given = 0

    def __iter__(self) -> Iterator[Any]:
        while self._parts:
            part = self._parts[0]
            self._current, self._given = OneEpoch(self._stream, part["state"]), 0
            items = iter(self._current)
            info = WorkerInfo(id=part["worker"], num_workers=part["workers"], seed=0, dataset=self._stream)
            with answered(info if part["workers"] else None):  # it is asked when the first item is
                first = next(items, _END)
            for item in () if first is _END else islice(chain([first], items), part["items"], None):
                self._given += 1
                yield item
            self._current = None
            self._parts = self._parts[1:]

    def state_dict(self) -> Values:
        """What is left."""
        if self._current is None or not self._given:
            return {_PARTS: self._parts}
        part = dict(self._parts[0])
        if loses_its_buffer(self._stream):
            part["items"] += self._given
        else:
            part |= {"state": self._current.state_dict(), "items": 0}
        return {_PARTS: [part, *self._parts[1:]]}

    def load_state_dict(self, state: Values) -> None:
        """Go on from what was left."""
        self._parts, self._current = state[_PARTS], None
