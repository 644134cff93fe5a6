"""Payloads with their checksums: any length, any damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import checksum
from stoker.sealed import BLOCK_BYTES, ItemDamagedError, check, payload_bytes, seal, unseal, unseal_block

checksum.load()
KEY = b"k" * 32
LENGTHS = [n * BLOCK_BYTES + d for n in range(3) for d in (-9, -8, -1, 0, 1, 8, 9) if n * BLOCK_BYTES + d >= 0]


@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_comes_back(length: int) -> None:
    payload = bytes(range(251)) * (length // 251 + 1)
    sealed = memoryview(seal(KEY, payload[:length]))
    assert payload_bytes(len(sealed)) == length
    assert unseal(KEY, sealed) == payload[:length]
    assert check(KEY, sealed) == payload[:length]
    for number in range(max(1, -(-length // BLOCK_BYTES))):
        piece = payload[:length][number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
        assert unseal_block(KEY, sealed, number) == piece


@given(st.binary(max_size=200), st.data())
def test_any_damage_is_found(payload: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal(KEY, payload))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    short = data.draw(st.integers(0, len(payload) + 7))
    for read in (unseal, check):
        with pytest.raises(ItemDamagedError):
            read(KEY, memoryview(sealed))
        with pytest.raises(ItemDamagedError):
            read(KEY, memoryview(seal(KEY, payload))[:short])
        with pytest.raises(ItemDamagedError):
            read(b"another" + KEY[7:], memoryview(seal(KEY, payload)))


def test_a_part_is_wrong_only_where_it_is() -> None:
    sealed = bytearray(seal(KEY, bytes(3 * BLOCK_BYTES)))
    sealed[BLOCK_BYTES + 5] = 1
    assert unseal_block(KEY, memoryview(sealed), 0) == bytes(BLOCK_BYTES)
    with pytest.raises(ItemDamagedError):
        unseal_block(KEY, memoryview(sealed), 1)
    assert unseal_block(KEY, memoryview(sealed), 2) == bytes(BLOCK_BYTES)
