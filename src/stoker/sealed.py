"""In the store, and on its way to another host, a payload is followed by checksums, one for each block of it.

    payload | checksum of block 0 | checksum of block 1 | ...

A checksum covers the block, the item's key as far as all hosts agree on it, and the block's number, so that the bytes of
another item are wrong, too. Long items are read in parts: then only the blocks of that part are checked.
"""

import struct
from functools import lru_cache

from stoker.checksum import CHECKSUM_BYTES, checksum
from stoker.memory import Bytes

BLOCK_BYTES = 1 << 18
SHARED_BYTES = 32
"""Of a key: name, size and time of a file. What follows, if anything, is only true on this host (inode, time of change)."""


class ItemDamagedError(Exception):
    """The bytes of an item are not those that were put there."""


def seal(key: bytes, payload: Bytes) -> bytes:
    """The payload with its checksums, as it is put into the store."""
    view = memoryview(payload).cast("B")
    count = max(1, -(-len(view) // BLOCK_BYTES))
    sums = [checksum(_block(view, number), _name(key, number)) for number in range(count)]
    return b"".join((view, _packing(count).pack(*sums)))


def sealed_bytes(payload_bytes: int) -> int:
    """The length in the store, from the length of a payload."""
    return payload_bytes + CHECKSUM_BYTES * max(1, -(-payload_bytes // BLOCK_BYTES))


def payload_bytes(sealed_bytes: int) -> int:
    """The length of a payload, from its length in the store."""
    return sealed_bytes - CHECKSUM_BYTES * blocks(sealed_bytes)


def blocks(sealed_bytes: int) -> int:
    """The number of blocks, from the length in the store. An empty item has one block."""
    return -(-sealed_bytes // (BLOCK_BYTES + CHECKSUM_BYTES))


def unseal(key: bytes, sealed: memoryview) -> bytes:
    """A copy of the payload, checked. Raises ItemDamagedError."""
    length = payload_bytes(len(sealed))
    payload = bytes(sealed[:length])
    _check_blocks(memoryview(payload), key, sealed, length)
    return payload


def check(key: bytes, sealed: memoryview) -> memoryview:
    """The payload in place, checked. Nobody else may write to this memory. Raises ItemDamagedError."""
    length = payload_bytes(len(sealed))
    payload = sealed[: max(0, length)]
    _check_blocks(payload, key, sealed, length)
    return payload


def unseal_block(key: bytes, sealed: memoryview, number: int) -> bytes:
    """A copy of one block of the payload, checked. Raises ItemDamagedError."""
    length = payload_bytes(len(sealed))
    block = bytes(_block(sealed[:length], number))
    _check(block, key, number, sealed, length)
    return block


def check_block(key: bytes, block: Bytes, number: int, sums: Bytes) -> None:
    """Check one block by the checksums of its payload. Raises ItemDamagedError."""
    _check(block, key, number, memoryview(sums), 0)


def _block(payload: memoryview, number: int) -> memoryview:
    return payload[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]


def _check_blocks(payload: memoryview, key: bytes, sealed: memoryview, length: int) -> None:
    if length <= BLOCK_BYTES:
        _check(payload, key, 0, sealed, length)
        return
    for number in range(blocks(len(sealed))):
        _check(_block(payload, number), key, number, sealed, length)


def _check(block: Bytes, key: bytes, number: int, sealed: memoryview, length: int) -> None:
    """Check the copy, not the bytes in the store: those may change in between."""
    place = length + CHECKSUM_BYTES * number
    kept = int.from_bytes(sealed[place : place + CHECKSUM_BYTES], "little")
    if length < 0 or checksum(block, _name(key, number)) != kept:
        raise ItemDamagedError


def _name(key: bytes, number: int) -> bytes:
    shared = key[:SHARED_BYTES]
    return shared if not number else shared + number.to_bytes(4, "little")


@lru_cache(64)
def _packing(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}Q")
