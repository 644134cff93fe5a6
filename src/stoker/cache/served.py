"""A store's items for other hosts, as the wire's server asks for them. Nothing is copied or checked here."""

from collections.abc import Callable, Sequence

from stoker.cache.store import Store
from stoker.wire.frames import Held, Told
from stoker.wire.items import Use


class StoreItems:
    """The items of a store. `on_told` is called with the name of a process and what it says to hold."""

    def __init__(self, store: Store, on_told: Callable[[bytes, Told], None] | None = None) -> None:
        self._store = store
        self._on_told = on_told

    def visit(self, keys: Sequence[bytes], use: Use) -> None:
        """Call `use` with what lies under keys, in one transaction."""
        self._store.visit(keys, use)

    def which(self, known: int, after: bytes, limit: int) -> Held:
        """Names in the store. A generation is a transaction of it: every change makes another."""
        generation, names = self._store.names(after, limit)
        if generation == known:
            return Held(generation, (), True)
        return Held(generation, names, len(names) < limit)

    def told(self, who: bytes, told: Told) -> None:
        """Hand on what another host says."""
        if self._on_told is not None:
            self._on_told(who, told)
