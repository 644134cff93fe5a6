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

    def __init__(
        self,
        *held: Store,
        hear: Callable[[bytes, Told], None] | None = None,
        given: Callable[[list[bytes]], None] | None = None,
    ) -> None:
        self._hear, self._given = hear, given
        self._lock = threading.Lock()
        self._stores: dict[Path, tuple[Store, int]] = {store.folder: (store, 1) for store in held}
        self._ruled: set[Path] = set()
        """Where somebody decides what others are told of."""

    def add(self, folder: Path, *, is_ruled: bool = False) -> None:
        """Give what is in a cache, from now on. Raises OSError."""
        with self._lock:
            if is_ruled:
                self._ruled.add(folder)
            known = self._stores.get(folder)
            self._stores[folder] = (known[0], known[1] + 1) if known else (stores.acquire(folder), 1)

    def remove(self, folder: Path) -> None:
        """Give it no more, unless another loader wants it to be given."""
        with self._lock:
            store, uses = self._stores.pop(folder)
            if uses > 1:
                self._stores[folder] = store, uses - 1
            else:
                self._ruled.discard(folder)
                stores.release(store)
                stores.close_unused()

    def _all(self, *, with_ruled: bool = True) -> list[Store]:
        with self._lock:
            return [store for folder, (store, _) in self._stores.items() if with_ruled or folder not in self._ruled]

    def visit(self, keys: Sequence[bytes], use: Use) -> None:
        """See `wire.items`."""
        held: list[bytes] = []

        def use_and_note(found: Sequence[Bytes | None]) -> None:
            use(found)
            held.extend(key[:KEY_BYTES] for key, item in zip(keys, found, strict=True) if item is not None)

        _visit(self._all(), keys, [None] * len(keys), use if self._given is None else use_and_note)
        if held and self._given is not None:
            self._given(held)

    def which(self, known: int, after: bytes, limit: int) -> Held:
        """See `wire.items`."""
        stores_held = self._all()
        generation = _generation(stores_held)
        if known == generation:
            return Held(generation, (), is_last=True)
        names = _names_after(stores_held, after, limit)
        return Held(generation, names, is_last=len(names) < limit)

    def told(self, who: bytes, told: Told) -> None:
        """See `wire.items`."""
        if self._hear is not None:
            self._hear(who, told)

    def generation(self) -> int:
        """A number that changes with what is held, where nobody decides on it."""
        return _generation(self._all(with_ruled=False))

    def names(self) -> list[bytes]:
        """All names that are held, where nobody decides on it."""
        found: list[bytes] = []
        after, piece = bytes(KEY_BYTES), 1 << 16
        looked_at = self._all(with_ruled=False)
        while True:
            names = _names_after(looked_at, after, piece)
            found += names
            if len(names) < piece:
                return found
            after = names[-1]


def _generation(held: list[Store]) -> int:
    total = 1
    for store in held:
        with contextlib.suppress(OSError):
            total += store.names(_END, 0)[0] + 1
    return total


def _names_after(held: list[Store], after: bytes, limit: int) -> list[bytes]:
    found: list[bytes] = []
    for store in held:
        with contextlib.suppress(OSError):
            found += store.names(after, limit)[1]
    return sorted(set(found))[:limit]


def _visit(ahead: list[Store], keys: Sequence[bytes], found: list[Bytes | None], use: Use) -> None:
    """Visit stores one within the other: what the first has stays there until the last was asked."""
    if not ahead:
        use(found)
        return

    def go_on(here: Sequence[Bytes | None]) -> None:
        both = [other if mine is None else mine for mine, other in zip(found, here, strict=True)]
        _visit(ahead[1:], keys, both, use)

    ahead[0].visit(keys, go_on)
