"""The caches of several hosts as one: what is not here is asked for, before storage is read."""

import enum
from collections.abc import Callable, Sequence

from stoker.cache import staging
from stoker.cache.cached import Cache
from stoker.cache.wanted import WantedItems
from stoker.memory import Bytes
from stoker.meter import now


class Origin(enum.IntEnum):
    """Where an item came from that another process brought."""

    STORAGE = 0
    CACHE = 1
    PEER = 2


Ask = Callable[[bytes, str], tuple[Bytes, Origin] | None]
"""Gives an item of a key and a path, if it can; without a path not from storage. It is sent to workers."""


def asked(cache: Cache, ask: Ask, key: bytes, path: str = "") -> Bytes | None:
    """An item that is not in the cache. It may have come near meanwhile."""
    nearby: Bytes | None = cache.staged(key)
    if nearby is None:
        nearby = cache.get(key)
    if nearby is not None:
        return nearby
    beside = staging.current()
    found = None if beside is not None and beside.is_late() else ask(key, path)
    if found is None:
        return None
    payload, origin = found
    count = {Origin.CACHE: cache.tally.hit, Origin.PEER: cache.tally.peer}
    count.get(origin, cache.tally.miss)(len(payload))
    return payload


def fetch(cache: Cache, ask: Ask, request: WantedItems) -> list[Bytes]:
    """All items of a request: from the cache, from who is asked, or from storage."""
    began = now()
    result: list[Bytes | None] = []
    for key in request.keys:
        found: Bytes | None = cache.get(key)
        result.append(asked(cache, ask, key) if found is None else found)
    missing = [position for position, found in enumerate(result) if found is None]
    cache.tally.spent(now() - began)
    read = iter(cache.fetch(_Rest(request, missing)) if missing else ())
    return [next(read) if found is None else found for found in result]


class _Rest:
    """Some items of a request."""

    def __init__(self, request: WantedItems, positions: list[int]) -> None:
        self._request, self._positions = request, positions
        self.keys = [request.keys[position] for position in positions]

    def _of(self, positions: list[int]) -> list[int]:
        return [self._positions[position] for position in positions]

    def sizes(self, positions: list[int]) -> Sequence[int]:
        return self._request.sizes(self._of(positions))

    def read(self, positions: list[int]) -> Sequence[Bytes]:
        return self._request.read(self._of(positions))

    def is_settled(self, position: int) -> bool:
        return self._request.is_settled(self._positions[position])

    def kept(self, positions: list[int]) -> None:
        self._request.kept(self._of(positions))
