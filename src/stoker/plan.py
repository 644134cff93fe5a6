"""A Plan: what was decided for a run, as a strict document. What a script says explicitly is never overruled.

version = 1
[loader]
workers = "threads"        # or "processes"
num_workers = 8
seed = 42                  # randomness by position: see docs/seeds.md
prefetch = 4               # batches ahead for each worker
[cache]
capacity_bytes = 8000000000
policy = "keep-first"      # or "reuse-distance", "lru"
dir = "/mnt/nvme/cache"    # instead of tmpfs
[tiers]
disk = "/nvme:2TB"         # with a cache: what memory has no room for is kept in this folder, up to so much
peers = "a:7001,b:7001"    # hosts whose caches are asked before storage, this one among them; or "auto"
[share]
group = "search-7"         # prepare batches once for all jobs of this name
[ranks]
share = true               # workers of all ranks of a job on this host help each other
reading = 8                # threads of this host that read ahead for the queued batches of all ranks; 0 for none
move = true                # whether they go where they are needed most
[offload]
address = "tcp://a:7100"   # where workers on other hosts dial this one
ratio = 0.5                # the part of all batches that they make at most, instead of what is measured and decided
workers = 8                # how many Ray starts, where the address is a Ray cluster's: "ray://head:10001" or "auto"
part = "all"               # what they do: "all"; "prepare" what this host reads; or "samples" that this host collates
[prep]
where = "tail"             # bytes become numbers on the GPU; "device": pictures are decoded there; or "host"
[checkpoint]
overhead = 0.03
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from stoker.errors import ConfigError
from stoker.units import parse_place

READERS, MOST_READERS = 16, 64
"""Threads that read ahead on a host if nothing is said, and at most. They wait for storage, not for a core."""
HOST, TAIL, DEVICE = "host", "tail", "device"
PREPS = (HOST, TAIL, DEVICE)
"""Where pixels are computed: on the host; from their bytes on the device; from their files there."""
OFFLOAD_PARTS = ("all", "prepare", "samples")
_KINDS = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}
CACHE_POLICIES = ("keep-first", "reuse-distance", "lru")

SECTIONS: dict[str, dict[str, tuple[str, type]]] = {
    "loader": {
        "workers": ("workers", str),
        "num_workers": ("num_workers", int),
        "prefetch": ("prefetch_factor", int),
        "seed": ("seed", int),
    },
    "cache": {"capacity_bytes": ("cache_bytes", int), "policy": ("cache_policy", str), "dir": ("cache_dir", str)},
    "tiers": {"disk": ("cache_disk", str), "peers": ("peers", str)},
    "share": {"group": ("group", str)},
    "ranks": {"share": ("share_ranks", bool), "reading": ("readers", int), "move": ("move_readers", bool)},
    "offload": {
        "address": ("offload", str),
        "ratio": ("offload_ratio", float),
        "workers": ("offload_workers", int),
        "part": ("offload_part", str),
    },
    "prep": {"where": ("prep", str)},
    "checkpoint": {"overhead": ("overhead", float)},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided for a run. A field that is None changes nothing."""

    workers: str | None = None
    num_workers: int | None = None
    prefetch_factor: int | None = None
    cache_bytes: int | None = None
    cache_policy: str | None = None
    cache_dir: str | None = None
    cache_disk: str | None = None
    peers: str | None = None
    group: str | None = None
    seed: int | None = None
    share_ranks: bool | None = None
    readers: int | None = None
    move_readers: bool | None = None
    offload: str | None = None
    offload_ratio: float | None = None
    offload_workers: int | None = None
    offload_part: str | None = None
    prep: str | None = None
    overhead: float | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a plan.toml. An unknown key is an error that names it."""
        try:
            document = tomllib.loads(Path(path).read_text())
        except OSError as error:
            raise ConfigError(f"the plan {path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"the plan {path} is not TOML: {error}") from error
        if document.pop("version", None) != 1:
            raise ConfigError(f"the plan {path} has no `version = 1`, the only one that is known")
        values: dict[str, Any] = {}
        for section, content in document.items():
            if section not in SECTIONS or not isinstance(content, dict):
                raise ConfigError(f"the plan {path} has an unknown section [{section}]: there are {', '.join(SECTIONS)}")
            for key, value in content.items():
                if key not in SECTIONS[section]:
                    known = ", ".join(SECTIONS[section])
                    raise ConfigError(f"the plan {path} has an unknown key {key!r} in [{section}]: there are {known}")
                name, kind = SECTIONS[section][key]
                if (isinstance(value, bool) and kind is not bool) or not isinstance(
                    value, (kind, int) if kind is float else kind
                ):
                    raise ConfigError(f"the plan {path}: {key} in [{section}] must be {_KINDS[kind]}, not {value!r}")
                values[name] = value
        try:
            return cls.of_values(values)
        except ConfigError as error:
            raise ConfigError(f"the plan {path}: {error}") from None

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Self:
        """A plan of plain values, which are checked."""
        plan = cls(**values)
        if plan.workers not in (None, "processes", "threads"):
            raise ConfigError(f"workers must be 'processes' or 'threads', not {plan.workers!r}")
        if plan.num_workers is not None and plan.num_workers < 0:
            raise ConfigError("num_workers must be 0 or more")
        if plan.prefetch_factor is not None and plan.prefetch_factor < 1:
            raise ConfigError("prefetch must be 1 or more")
        if plan.cache_bytes is not None and plan.cache_bytes < 1:
            raise ConfigError("capacity_bytes must be 1 or more")
        if plan.cache_policy not in (None, *CACHE_POLICIES):
            raise ConfigError(f"the cache policy must be one of {', '.join(CACHE_POLICIES)}, not {plan.cache_policy!r}")
        if plan.cache_disk is not None:
            parse_place(plan.cache_disk, "disk in [tiers]")
        if plan.readers is not None and not 0 <= plan.readers <= MOST_READERS:
            raise ConfigError(f"reading must be from 0 to {MOST_READERS} threads")
        if plan.offload_ratio is not None and not 0 <= plan.offload_ratio <= 1:
            raise ConfigError("the ratio of what is offloaded is a number from 0 to 1")
        if plan.offload_workers is not None and plan.offload_workers < 1:
            raise ConfigError("the workers of [offload] must be 1 or more")
        if plan.offload_part not in (None, *OFFLOAD_PARTS):
            raise ConfigError(f"the part that is offloaded is one of {', '.join(OFFLOAD_PARTS)}, not {plan.offload_part!r}")
        if plan.prep not in (None, *PREPS):
            raise ConfigError(f"where pixels are computed is one of {', '.join(PREPS)}, not {plan.prep!r}")
        if plan.overhead is not None and not 0 < plan.overhead < 1:
            raise ConfigError("overhead is a fraction between 0 and 1")
        return plan

    def values(self) -> dict[str, Any]:
        """What was decided, in JSON's terms."""
        return {name: value for name, value in asdict(self).items() if value is not None}
