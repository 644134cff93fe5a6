"""How far a loader has come, and how it goes on from there.

A state is made of plain values and does not grow with the dataset. It counts the batches that the training loop has seen,
not those prepared ahead. It holds what the epoch depends on (a sampler's generator, say) as it was at the epoch's start.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from stoker.errors import ConfigError
from stoker.order import Ids

_SAMPLERS = 8
"""So many samplers within samplers are looked at: a user's might go on for ever."""


class Batch(NamedTuple):
    """Samples that are prepared together: their positions are first, first + step, ..."""

    first: int
    step: int
    ids: Sequence[Any] | Ids


class Route(Protocol):
    """What an epoch of a loader depends on."""

    has_own_generator: bool
    """Whether samplers draw from a generator that only they use."""

    def describe(self) -> dict[str, Any]:
        """What must be the same when a state is loaded; plain values."""

    def state(self) -> dict[str, Any]:
        """What else the epoch depends on (generators, the sampler's epoch); plain values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Set the samplers back to a `state`."""


class KnownRoute(Route, Protocol):
    """A route that is known beforehand."""

    world: int
    is_plain: bool
    """Whether indices are plain numbers, all of them."""

    @property
    def own(self) -> Callable[[int], Ids] | None:
        """The indices that this process takes in the current or a later epoch, if they are known."""

    def batches(self, epoch: int, consumed: int) -> Iterator[Batch]:
        """The batches of an epoch that remain after all processes together have consumed so many of its samples."""

    def at(self, epoch: int) -> Sequence[Batch]:
        """All batches of an epoch, for looking up any of them. A sampler's own epoch is not used."""


def samplers_of(loader: Any) -> Iterator[Any]:
    """All samplers of a loader, including samplers inside samplers (Accelerate's shards, say)."""
    found = [loader.sampler, loader.batch_sampler]
    for sampler in found:
        if sampler is not None and len(found) <= _SAMPLERS:
            yield sampler
            within = (getattr(sampler, name, None) for name in ("sampler", "batch_sampler"))
            found += [inner for inner in within if inner is not None and not any(inner is known for known in found)]


def counting_sampler(loader: Any) -> Any:
    """The sampler that has `set_epoch`, or None."""
    return next((s for s in samplers_of(loader) if hasattr(s, "set_epoch") and hasattr(s, "epoch")), None)


def own_generator(loader: Any) -> torch.Generator | None:
    """The samplers' own generator, or the loader's; None if they draw from torch's default."""
    sources = [*samplers_of(loader), loader]
    return next((g for source in sources if (g := getattr(source, "generator", None)) is not None), None)


def generator_text(generator: torch.Generator) -> str:
    """A generator's state as text."""
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def set_generator(generator: torch.Generator, text: str) -> None:
    """Set a generator to a state that `generator_text` gave."""
    generator.set_state(torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8))


class Progress:
    """How far a loader has come. Plain values, so that a loader with its progress can be pickled and copied."""

    def __init__(self) -> None:
        self.epoch = -1  # of the latest iter()
        self.samples = 0  # of all processes, seen by the training loop in this epoch
        self.batches = 0  # of this process, likewise
        self.ended = True
        self.at_start: dict[str, Any] = {}
        self._next_epoch: int | None = None
        self._resume: dict[str, Any] | None = None
        self.others: dict[str, Any] | None = None
        """States of others that the epoch goes on from."""
        self.goes_on = False
        """Whether the latest iter() went on with an epoch that had begun."""

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iter() is."""
        self._next_epoch = int(epoch) if hasattr(epoch, "__index__") else epoch  # a number of NumPy's is none for JSON

    @property
    def resumes(self) -> bool:
        """Whether the next iter() goes on with an epoch that was interrupted."""
        return self._resume is not None and self._resume["_num_yielded"] > 0

    @property
    def is_loaded(self) -> bool:
        """Whether the next iter() goes on from a state that was loaded."""
        return self._resume is not None

    def begin(self, route: Route) -> tuple[int, int]:
        """Begin an epoch, or go on with an interrupted one. Returns its number, and how many samples of it are consumed."""
        resume, self._resume = self._resume, None
        self.ended, self.goes_on, self.others = False, False, None
        if resume is not None:
            self.others = resume.get("streams")
            samplers = resume["samplers"]
            self.goes_on = bool(resume.get("begun", resume["_num_yielded"]))
            if self.goes_on:
                route.restore(samplers)
            elif "generator" in samplers:
                # Between epochs only these are restored: the loop may have set an epoch, or a seed, for the next one.
                names = ("generator", "keeps_seed") if route.has_own_generator else ("keeps_seed",)
                route.restore({name: samplers[name] for name in names if name in samplers})
            self.epoch, self.samples, self.batches = resume["epoch"], resume["samples"], resume["_num_yielded"]
        else:
            self.epoch = self.epoch + 1 if self._next_epoch is None else self._next_epoch
            self.samples = self.batches = 0
        self._next_epoch = None
        self.at_start = route.state()
        return self.epoch, self.samples

    def saw(self, samples: int) -> None:
        """Count a batch that the training loop got."""
        self.samples += samples
        self.batches += 1

    def end(self) -> None:
        """Note that the epoch is over."""
        self.ended = True

    def state(self, route: Route, seed: int | None) -> dict[str, Any]:
        """All that is needed to go on from here, in JSON's terms."""
        if self._resume is not None:
            return dict(self._resume)
        fresh = self.ended
        following = self.epoch + 1 if self._next_epoch is None else self._next_epoch
        return {
            "version": 1,
            "order": {"seed": seed, **route.describe()},
            "epoch": following if fresh else self.epoch,
            "samples": 0 if fresh else self.samples,
            "samplers": route.state() if fresh else self.at_start,
            "begun": not fresh,
            "batches": 0 if fresh else self.batches,
            "_num_yielded": 0 if fresh else self.batches,
            "_sampler_iter_yielded": 0 if fresh else self.batches,
        }

    def load(self, state: dict[str, Any], route: Route, seed: int | None) -> None:
        """Go on from a state at the next iter()."""
        check_state(state, {"seed": seed, **route.describe()})
        self._resume = resume = dict(state)
        # Accelerate's dispatcher subtracts batches that it has read ahead. It does so in torchdata's fields.
        counted, seen = resume.get("batches", resume["_num_yielded"]), resume["_num_yielded"]
        if 0 <= seen < counted:
            resume["samples"] = resume["samples"] // counted * seen
            resume["batches"] = seen
        if resume.get("streams", {}).get("of", seen) != seen:
            del resume["streams"]  # states of others belong to another batch: these are passed by count


def check_kind(state: Any) -> None:
    """Refuse what is no state of any loader."""
    if not isinstance(state, dict):
        raise ConfigError(f"this is not the state of a loader, which is a dict: {state!r:.100}")


def check_state(state: Any, order: dict[str, Any]) -> None:
    """Refuse a state that does not belong to this loader, and say what differs."""
    check_kind(state)
    if "version" not in state or "order" not in state:
        raise ConfigError("this is not the state of a stoker.DataLoader: it has no version and no order")
    if state["version"] != 1:
        raise ConfigError(f"the loader's state has version {state['version']!r}; this is stoker for version 1")
    if missing := [name for name in ("epoch", "samples", "samplers", "_num_yielded") if name not in state]:
        raise ConfigError(f"the loader's state is damaged: it has no {missing[0]!r}")
    theirs = state["order"]
    different = [
        f"{name} is {theirs.get(name)!r} in the state and {order.get(name)!r} in this loader"
        for name in sorted({*theirs, *order})
        if theirs.get(name) != order.get(name)
    ]
    if different:
        raise ConfigError("the state belongs to another loader: " + "; ".join(different))


def is_batched(loader: Any) -> bool:
    """Whether the loader puts samples together to batches. If not, the dataset does, or there are no batches."""
    return loader.batch_sampler is not None


def index_sampler(loader: Any) -> Any:
    """The sampler that gives the indices of each batch, or of each sample where there are no batches."""
    return loader.batch_sampler if is_batched(loader) else loader.sampler


class TorchRoute:
    """What the samplers of a loader without a seed depend on: torch's generators, as they were when the epoch began."""

    def __init__(self, loader: Any, *, keeps_seed: bool = False) -> None:
        self._loader = loader
        own = own_generator(loader)
        self.has_own_generator = own is not None
        self.generator: torch.Generator = torch.default_generator if own is None else own
        self.seeds_by_default = getattr(loader, "generator", None) is None
        """Whether torch draws the seed of an epoch's workers from its default generator."""
        self.keeps_seed = keeps_seed
        """Whether workers stay from the epoch before, so that no seed is drawn for them."""

    def describe(self) -> dict[str, Any]:
        """What must be the same when a state is loaded."""
        loader = self._loader
        sized = hasattr(loader.dataset, "__len__")
        return {
            "kind": "torch",
            "sampler": type(index_sampler(loader)).__name__,
            "samples": len(loader.dataset) if sized else None,
            "batch": loader.batch_size,
            "drop_last": loader.drop_last,
        }

    def state(self) -> dict[str, Any]:
        """The generator, and the epoch of a sampler that has one."""
        state: dict[str, Any] = {"generator": generator_text(self.generator)}
        if self.has_own_generator and self.seeds_by_default:
            state["default"] = generator_text(torch.default_generator)
        if self.keeps_seed:
            state["keeps_seed"] = True
        if (counting := counting_sampler(self._loader)) is not None:
            state["sampler_epoch"] = counting.epoch
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Set the generator and the sampler's epoch back to a `state`."""
        self.keeps_seed = bool(state.get("keeps_seed"))
        if "generator" in state:
            set_generator(self.generator, state["generator"])
        if "default" in state:
            set_generator(torch.default_generator, state["default"])
        if "sampler_epoch" in state and (counting := counting_sampler(self._loader)) is not None:
            counting.set_epoch(state["sampler_epoch"])
