"""What this host gives to others: the items of its caches, as they lie in their stores."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from stoker.cache import stores
from stoker.cache.store import Store
from stoker.cache.walking import KEY_BYTES
from stoker.memory import Bytes
from stoker.wire.frames import Held, Told
from stoker.wire.items import Use

_END = b"\xff" * KEY_BYTES


class Gifts:
    """The items of some stores, for the server. What others tell is handed on."""

    def __init__(self, *held: Store, hear: Callable[[bytes, Told], None] | None = None) -> None:
        self._hear = hear
        self._lock = threading.Lock()
        self._stores: dict[Path, tuple[Store, int]] = {store.folder: (store, 1) for store in held}

    def add(self, folder: Path) -> None:
        """Give what is in a cache, from now on. Raises OSError."""
        with self._lock:
            known = self._stores.get(folder)
            self._stores[folder] = (known[0], known[1] + 1) if known else (stores.acquire(folder), 1)

    def remove(self, folder: Path) -> None:
        """Give it no more, unless another loader wants it to be given."""
        with self._lock:
            store, uses = self._stores.pop(folder)
            if uses > 1:
                self._stores[folder] = store, uses - 1
            else:
                stores.release(store)
                stores.close_unused()

    def _all(self) -> list[Store]:
        with self._lock:
            return [store for store, _ in self._stores.values()]

    def visit(self, keys: Sequence[bytes], use: Use) -> None:
        """See `wire.items`."""
        _visit(self._all(), keys, [None] * len(keys), use)

    def which(self, known: int, after: bytes, limit: int) -> Held:
        """See `wire.items`."""
        generation = self.generation()
        if known == generation:
            return Held(generation, (), is_last=True)
        found: list[bytes] = []
        for store in self._all():
            with contextlib.suppress(OSError):
                found += store.names(after, limit)[1]
        names = sorted(set(found))[:limit]
        return Held(generation, names, is_last=len(names) < limit)

    def told(self, who: bytes, told: Told) -> None:
        """See `wire.items`."""
        if self._hear is not None:
            self._hear(who, told)

    def generation(self) -> int:
        """A number that changes with what is held."""
        total = 1
        for store in self._all():
            with contextlib.suppress(OSError):
                total += store.names(_END, 0)[0] + 1
        return total

    def names(self) -> list[bytes]:
        """All names that are held."""
        found: list[bytes] = []
        after, piece = bytes(KEY_BYTES), 1 << 16
        while True:
            held = self.which(0, after, piece)
            found += held.names
            if held.is_last:
                return found
            after = held.names[-1]


def _visit(ahead: list[Store], keys: Sequence[bytes], found: list[Bytes | None], use: Use) -> None:
    """Visit stores one within the other: what the first has stays there until the last was asked."""
    if not ahead:
        use(found)
        return

    def go_on(here: Sequence[Bytes | None]) -> None:
        both = [other if mine is None else mine for mine, other in zip(found, here, strict=True)]
        _visit(ahead[1:], keys, both, use)

    ahead[0].visit(keys, go_on)
