from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.tries import HANG_S

from stoker.cache.store import Store
from stoker.keeper.giving import Gifts
from stoker.memory import Bytes
from stoker.sealed import seal
from stoker.wire.peer import Peer
from stoker.wire.server import ItemServer

SECRET = b"known to both sides"
KEYS = [number.to_bytes(16, "big") + b"version" for number in (5, 3, 9, 200)]
NAMES = sorted(key[:16] for key in KEYS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    folder = tmp_path / "held"
    folder.mkdir()
    store = Store(folder)
    assert store.put([(key, key * 50_000) for key in KEYS], 1 << 30) == 4
    return store


def test_items_are_seen_as_they_lie_in_the_store(store: Store) -> None:
    seen: list[bytes | None] = []

    def use(found: Sequence[Bytes | None]) -> None:
        seen.extend(item if item is None else bytes(item) for item in found)

    Gifts(store).visit([KEYS[0], b"none", KEYS[2]], use)
    assert seen == [seal(KEYS[0], KEYS[0] * 50_000), None, seal(KEYS[2], KEYS[2] * 50_000)]


def test_names_come_in_order_and_in_pieces(store: Store) -> None:
    items = Gifts(store)
    held = items.which(0, bytes(16), 3)
    assert list(held.names) == NAMES[:3] and not held.is_last
    rest = items.which(0, held.names[-1], 3)
    assert list(rest.names) == NAMES[3:] and rest.is_last and rest.generation == held.generation
    assert not items.which(0, b"\xff" * 16, 3).names


def test_a_generation_is_known_until_the_store_changes(store: Store) -> None:
    items = Gifts(store)
    generation = items.which(0, bytes(16), 10).generation
    assert items.which(generation, bytes(16), 10).names == ()
    store.put([(KEYS[0][:16] + b"another", b"")], 1 << 30)
    held = items.which(generation, bytes(16), 10)
    assert held.generation != generation and list(held.names) == NAMES


def test_items_go_from_store_to_store_without_a_second_seal(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path)
    with (
        ItemServer(("127.0.0.1", 0), Gifts(store), SECRET) as server,
        Peer(server.address, SECRET, deadline_s=HANG_S) as peer,
    ):
        peer.greet()
        with peer.get(KEYS) as answer:
            items = [(key, item) for key, item in zip(KEYS, answer.sealed, strict=True) if item is not None]
            assert other.put(items, 1 << 30, is_sealed=True) == 4
    assert [other.get(key) for key in KEYS] == [key * 50_000 for key in KEYS]
    assert other.payload_bytes() == store.payload_bytes()


def test_sealed_items_count_by_their_payload(store: Store, tmp_path: Path) -> None:
    other, size = Store(tmp_path), len(KEYS[0]) * 50_000
    items = [(key, seal(key, key * 50_000)) for key in KEYS]
    assert other.put(items, 2 * size, is_sealed=True) == 2
    assert other.payload_bytes() == 2 * size
