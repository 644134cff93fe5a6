"""A Profile: what was measured of a training script, as one strict document (`profile.json`, version 1).

Rates and speeds are samples per second, stalls are fractions of an epoch's time, confidence is the relative half-width of
a 95 % interval. A rate of 0 was not measured. An unknown key, a key of the wrong type and a number that is negative or
not finite are errors that say where. What is not in the smallest version-1 document has a default.
"""

import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self, get_type_hints

from stoker.errors import ConfigError
from stoker.notebook import card

PROFILE_VERSION = 1
LIMITS = ("gpu", "prep", "fetch")
DEVICE_PARTS = ("tail", "device")
"""Of preparing, that a device may do: what turns bytes into numbers, or decoding and all that comes after it."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast each stage is when it is alone: all that the cost model knows of a job, or of one of its ranks."""

    gpu: float
    """The training loop with batches that are on the device already."""
    prep: float
    """Preparing of samples that are in the cache, their reading included, by `workers` workers, with the loop at rest."""
    storage: float
    """Reading from storage, cold and in random order, without preparing, by `workers` readers."""
    cache: float
    """Reading from the cache, in the way a worker does, by `workers` readers."""
    prep_by_workers: Mapping[int, float] = field(default_factory=dict)
    prep_by_threads: Mapping[int, float] = field(default_factory=dict)
    """The same with threads for workers, if that was tried."""
    storage_by_readers: Mapping[int, float] = field(default_factory=dict)
    """Tells a store that waits (more readers, more samples) from one that is used up."""
    storage_rested: float = 0.0
    """Reading by one reader that waits between reads, which do not count: stores with a quota save it up. 0 is unknown."""
    workers: int = 0
    """How many `prep`, `storage` and `cache` are for; 0 is a loader that does everything in the training loop."""
    cores: float = 0.0
    """How many the measurements had; 0 is unknown."""
    batch: int = 0
    """Samples in a batch; the times of small ones differ more. 0 is unknown, and many."""
    prep_busy: float = 1.0
    """The part of the time of preparing that a core is busy; the rest of it is waiting."""
    loop_cores: float = 0.0
    """Cores that the training loop takes from the workers at its full rate."""
    handover: float = 0.0
    """Taking finished batches from the loader to the device, with nothing else in the loop; 0 costs nothing."""
    spread: float = 0.3
    """Standard deviation of a sample's time of reading and preparing, relative to the mean."""
    peer: float = field(default=0.0, metadata={"is_left_out": True})
    """Reading from another host's cache, without preparing, by `workers` readers; 0 is unknown, and not written."""

    def __post_init__(self) -> None:
        _check_numbers(self, "rates")
        for name in ("prep_by_workers", "prep_by_threads", "storage_by_readers"):
            points = getattr(self, name)
            if any(count < 0 for count in points):
                raise ConfigError(f"rates.{name} has a negative number of workers")
            object.__setattr__(self, name, dict(sorted(points.items())))
        if not 0 <= self.prep_busy <= 1:
            raise ConfigError(f"rates.prep_busy is a fraction from 0 to 1, not {self.prep_busy}")


@dataclass(frozen=True, slots=True)
class Host:
    """Where it was measured."""

    cores: float
    memory_bytes: int
    device: str
    room_bytes: int = 0
    """What a cache could take of it; 0 is unknown."""
    others: float = 0.0
    """Cores that other processes and other guests of the same machine took while it was measured."""
    name: str = field(default="", metadata={"is_left_out": True})
    """What it calls itself; empty is unknown."""


@dataclass(frozen=True, slots=True)
class DatasetSize:
    """What is read in an epoch. `bytes` is an estimate from a part of it where they are not known."""

    samples: int
    bytes: int
    bytes_known: bool

    @property
    def sample_bytes(self) -> float:
        """The mean; 0 is unknown."""
        return self.bytes / self.samples if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class Speed:
    """The script's own loop: with batches on the device, with data in the cache, and from storage."""

    synthetic: float
    cached: float
    cold: float


@dataclass(frozen=True, slots=True)
class OnDevice:
    """How fast a job is if the device does a part of preparing."""

    where: str
    """tail, or device."""
    prep: float
    """Preparing of samples that are in the cache, by as many workers as before and the device, with the loop at rest."""
    loop: float
    """The training loop with what workers had prepared before, and the device's part beside it."""
    cached: float
    """The script's own loop, with data in the cache."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """The parts of an epoch's time that the loop waits for preparing and for reading."""

    prep: float
    fetch: float


@dataclass(frozen=True, slots=True)
class Confidence:
    """Relative half-widths of 95 % intervals."""

    gpu: float = 0.0
    prep: float = 0.0
    storage: float = 0.0
    cache: float = 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """One change, what it is predicted to give, and how it is made."""

    change: str
    rate: float
    gain: float
    """How many times as fast as now, less one."""
    apply: str = ""
    """An option of `stoker run` or an argument of the loader; empty where neither can do it."""
    ask: str = ""
    """Options of `stoker whatif` that ask for the same."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The whole document."""

    stoker: str
    host: Host
    dataset: DatasetSize
    batch_size: int
    workers: int
    rates: Rates
    speed: Speed
    stalls: Stalls
    limit: str
    confidence: Confidence = Confidence()
    advice: tuple[Advice, ...] = ()
    version: int = PROFILE_VERSION
    workers_kind: str = "processes"
    prefetch: int = 2
    world: int = 1
    """Ranks on this host. Rates are those of the slowest, measured while all do the same."""
    cached: float = 0.0
    """The fraction of the dataset that was in the cache when `cold` and the stalls were measured."""
    script: str = ""
    notes: tuple[str, ...] = ()
    """What could not be measured, and why; sentences."""
    fixed: tuple[str, ...] = ()
    """Arguments that the script gives its loader itself: no plan changes these."""
    on_device: tuple[OnDevice, ...] = field(default=(), metadata={"is_left_out": True})
    """What was measured with a part of preparing done by the device; nothing where that was not tried, or cannot be."""
    taken: str = field(default="", metadata={"is_left_out": True})
    """When the measuring ended, as "2026-11-18 21:50" by the clock of its host; empty is unknown."""

    def __post_init__(self) -> None:
        if self.version != PROFILE_VERSION:
            raise ConfigError(f"version must be {PROFILE_VERSION}, the only one that is known, not {self.version!r}")
        if self.limit not in LIMITS:
            raise ConfigError(f"limit must be one of {', '.join(LIMITS)}, not {self.limit!r}")
        if self.workers_kind not in ("processes", "threads"):
            raise ConfigError(f"workers_kind must be 'processes' or 'threads', not {self.workers_kind!r}")
        on_device = [(one, f"on_device[{number}]") for number, one in enumerate(self.on_device)]
        for part, name in (
            (self.host, "host"), (self.dataset, "dataset"), (self.speed, "speed"), (self.stalls, "stalls"),
            (self.confidence, "confidence"), (self, ""), *on_device,
        ):  # fmt: skip
            _check_numbers(part, name)
        fractions = {"stalls.prep": self.stalls.prep, "stalls.fetch": self.stalls.fetch, "cached": self.cached}
        for name, value in fractions.items():
            if value > 1:
                raise ConfigError(f"{name} is a fraction from 0 to 1, not {value}")
        for one, name in on_device:
            if one.where not in DEVICE_PARTS or not (one.prep and one.loop and one.cached):
                raise ConfigError(f"{name} must be for {' or '.join(DEVICE_PARTS)}, with rates above 0")
        if len({one.where for one in self.on_device}) < len(self.on_device):
            raise ConfigError("on_device has the same part twice")
        for name, count in (("batch_size", self.batch_size), ("prefetch", self.prefetch), ("world", self.world)):
            if count < 1:
                raise ConfigError(f"{name} must be 1 or more, not {count}")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a profile.json."""
        try:
            document = json.loads(Path(path).read_text())
        except OSError as error:
            raise ConfigError(f"the profile {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"the profile {path} is not JSON: {error}") from error
        try:
            return cls.of_document(document)
        except ConfigError as error:
            raise ConfigError(f"the profile {path}: {error}") from error

    @classmethod
    def of_document(cls, document: object) -> Self:
        """A profile of JSON's values, which are checked."""
        if not isinstance(document, dict):
            raise ConfigError("it is not a JSON object")
        if document.get("version") != PROFILE_VERSION:
            raise ConfigError(
                f"version must be {PROFILE_VERSION}, the only one that is known, not {document.get('version')!r}"
            )
        rates, host = document.get("rates"), document.get("host")
        if isinstance(rates, dict) and isinstance(host, dict):  # a short document says these once
            cores = _per_rank(host.get("cores"), document.get("world", 1))
            said = {"workers": document.get("workers", 0), "batch": document.get("batch_size", 0), "cores": cores}
            document = {**document, "rates": said | rates}
        profile: Self = _read(cls, document, "")
        return profile

    def document(self) -> dict[str, Any]:
        """All of it in JSON's terms."""
        document: dict[str, Any] = _written(self)
        return document

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        waits = min(1.0, self.stalls.prep), min(1.0, self.stalls.fetch)
        parts = {"computing": max(0.0, 1 - sum(waits)), "waiting for preparing": waits[0], "waiting for reading": waits[1]}
        speed = self.speed.cold or self.speed.cached
        rows = {
            "speed": f"{speed:,.0f} samples/s" if speed else "not measured",
            "the loop alone could take": f"{self.rates.gpu:,.0f} samples/s",
            "workers": f"{self.workers} {self.workers_kind}" if self.workers else "none",
            "measured on": f"{self.host.cores:g} cores, {self.host.device}",
        }
        rows |= {one.change: f"about {one.rate:,.0f} samples/s" for one in self.advice}
        return card(f"Where the time goes: {self.script}" if self.script else "Where the time goes", rows, parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a profile.json: whole or not at all."""
        write_text(path, json.dumps(self.document(), indent=2) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file, or replace it, whole or not at all. Links are followed; what is no plain file is written to."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w") as place:
                place.write(text)
            return
        target = Path(os.path.realpath(path))
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _per_rank(cores: object, world: object) -> object:
    numbers = isinstance(cores, int | float) and isinstance(world, int) and world > 0
    return cores / world if numbers else cores  # type: ignore[operator]


def _check_numbers(part: Any, where: str) -> None:
    """Refuse numbers that are negative or not finite, and bools."""
    for item in fields(part):
        value = getattr(part, item.name)
        name = f"{where}.{item.name}" if where else item.name
        values = {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
        for key, number in values.items():
            if isinstance(number, int | float) and not (math.isfinite(number) and number >= 0):
                raise ConfigError(f"{key} must be a number that is finite and not negative, not {number}")


def _read(kind: Any, value: object, where: str) -> Any:
    """A JSON value as the type that a field asks for."""
    if is_dataclass(kind):
        return _read_object(kind, value, where)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if kind in (int, str, bool) and type(value) is kind:
        return value
    if kind == Mapping[int, float] and isinstance(value, dict):
        if any(not count.isdecimal() for count in value):
            raise ConfigError(f"{where} has a key that is not a number of workers: {', '.join(map(repr, value))}")
        return {int(count): _read(float, rate, f"{where}.{count}") for count, rate in value.items()}
    if getattr(kind, "__origin__", None) is tuple and isinstance(value, list):
        return tuple(_read(kind.__args__[0], part, f"{where}[{number}]") for number, part in enumerate(value))
    word = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}.get(kind, "a list or an object")
    raise ConfigError(f"{where} must be {word}, not {value!r}")


def _read_object(kind: Any, value: object, where: str) -> Any:
    place = where or "the document"
    if not isinstance(value, dict):
        raise ConfigError(f"{place} must be an object, not {value!r}")
    hints, known = get_type_hints(kind), {item.name: item for item in fields(kind)}
    for key in value:
        if key not in known:
            raise ConfigError(f"{place} has an unknown key {key!r}: there are {', '.join(known)}")
    needed = [item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING]
    missing = [name for name in needed if name not in value]
    if missing:
        raise ConfigError(f"{place} lacks {', '.join(missing)}")
    return kind(**{key: _read(hints[key], part, f"{where}.{key}" if where else key) for key, part in value.items()})


def _written(value: Any) -> Any:
    if is_dataclass(value):
        told = [item for item in fields(value) if not item.metadata.get("is_left_out") or getattr(value, item.name)]
        return {item.name: _written(getattr(value, item.name)) for item in told}
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    if isinstance(value, tuple):
        return [_written(part) for part in value]
    return value
