"""Samplers with a state of their own. They live in the training process, and run ahead of what its loop has seen."""

import copy
import inspect
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler, sampler

from stoker.feed.hooks import HOOKS
from stoker.feed.progress import index_sampler
from stoker.pool.stateful import begin_anew, is_stateful, load

_WITHOUT_STATE = (
    sampler.SequentialSampler,
    sampler.RandomSampler,
    sampler.SubsetRandomSampler,
    sampler.WeightedRandomSampler,
    BatchSampler,
    DistributedSampler,
    list,
    tuple,
    range,
)
_END: Any = object()


def _gives_own_iterators(thing: Any) -> bool:
    """Whether a sampler's iterators might have a state: they are no generators, nor torch's or python's."""
    iterate = getattr(type(thing), "__iter__", None)
    return type(thing) not in _WITHOUT_STATE and iterate is not None and not inspect.isgeneratorfunction(iterate)


class Sampled:
    """The samplers of a loader, one of which may have a state; or the iterator of one."""

    def __init__(self, outer: Any, inner: Any) -> None:
        self._outer = outer
        self._inner = inner
        """The sampler that is asked: the outer one, or that within torch's BatchSampler."""
        self._iterator: Any = None
        self._has_given = self._has_ended = False
        self._before: Any = None
        self._at_start: dict[str, Any] | None = None

    @classmethod
    def of(cls, loader: Any) -> "Sampled | None":
        """None where nothing can have a state: then samplers are passed by count."""
        outer = index_sampler(loader)
        inner = outer.sampler if type(outer) is BatchSampler and not is_stateful(outer) else outer
        may_have_state = is_stateful(inner) or (_gives_own_iterators(inner) and HOOKS.wrap is None)
        return cls(outer, inner) if may_have_state else None

    def note_state(self) -> None:
        """Ask for the state before torch asks for an iterator: a sampler may draw its order as it is asked for one."""
        self._before = copy.deepcopy(self._inner.state_dict()) if is_stateful(self._inner) else None

    def begin(self, part: dict[str, Any] | None, *, is_fresh: bool, begun: Iterator[Any]) -> Iterator[Any]:
        """The indices of an epoch, from where a state of the samplers was taken; else from the iterator that torch has."""
        part = part or {}
        self._has_ended, self._has_given = part.get("ended", False), False
        is_anew = is_fresh or not part or part.get("anew", False)
        if "sampler" in part:
            (begin_anew if is_anew or self._has_ended else load)(self._inner, part["sampler"])
        self._at_start = self._before_its_first(part, is_anew=is_anew)
        if self._has_ended:
            self._iterator = iter(())
        elif part or self._outer is not self._inner:
            self._iterator = iter(self._inner)
        else:
            self._iterator = begun  # a second one might be another order
        if "iterator" in part and not is_anew and not self._has_ended:
            load(self._iterator, part["iterator"])
        indices = self._until_its_end(self._iterator)
        if self._outer is self._inner:
            return indices
        return iter(BatchSampler(indices, self._outer.batch_size, self._outer.drop_last))

    def _before_its_first(self, part: dict[str, Any], *, is_anew: bool) -> dict[str, Any] | None:
        if not is_anew:
            return part  # what was given holds: some samplers go on from it only when they are asked
        if not is_stateful(self._inner):
            return None
        return {"sampler": copy.deepcopy(part.get("sampler", self._before)), "anew": True}

    def _until_its_end(self, indices: Iterator[Any]) -> Iterator[Any]:
        while (index := next(indices, _END)) is not _END:  # `for` would call iter(), by which some begin anew
            self._has_given = True
            yield index
        self._has_ended = True

    def state(self) -> dict[str, Any] | None:
        """The state after the last indices that were drawn; None if there is none after all."""
        return self._state() if self._has_given else self._at_start

    @property
    def has_state(self) -> bool:
        """Whether the samplers of this epoch have a state."""
        return self._state() is not None

    def _state(self) -> dict[str, Any] | None:
        part: dict[str, Any] = {}
        if is_stateful(self._inner):
            part["sampler"] = copy.deepcopy(self._inner.state_dict())
        if self._iterator is not self._inner and is_stateful(self._iterator):
            part["iterator"] = copy.deepcopy(self._iterator.state_dict())
        if part and self._has_ended:
            part["ended"] = True  # the last batch was not full, and the sampler has gone on to its next epoch
        return part or None

    def state_between_epochs(self) -> dict[str, Any] | None:
        """The state from which the next epoch begins."""
        return {"sampler": self._inner.state_dict()} if is_stateful(self._inner) else None
