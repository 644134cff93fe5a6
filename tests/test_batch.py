"""Batches described, packed and made again."""

import ctypes
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.batch import NoLayout, build, lay_out, pack, unpack
from stoker.memory import ByteArray


class Slot:
    """Room in an array."""

    def __init__(self) -> None:
        self.bytes: ByteArray = np.zeros(1 << 20, np.uint8)
        self.used = 0

    def room(self, length: int) -> tuple[int, ByteArray]:
        start, self.used = self.used, self.used + length
        return start, self.bytes[start : self.used]

    def find(self, address: int) -> int | None:
        offset = address - self.bytes.__array_interface__["data"][0]
        return offset if 0 <= offset < len(self.bytes) else None


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.recursive(
    plain | st.integers(0, 9).map(lambda n: {n}),  # a set stands for a leaf
    lambda part: st.lists(part) | st.lists(part).map(tuple) | st.dictionaries(st.text(), part),
    max_leaves=12,
)


@given(trees)
def test_a_layout_describes_any_tree(tree: Any) -> None:
    def leaf(value: Any) -> tuple[int, ...]:
        return (next(iter(value)), 5)

    assert build(lay_out(tree, leaf), lambda number, code: {number}) == tree


@pytest.mark.parametrize("value", [[1] * 100, {1: 2}, {"a": {3: 4}}])
def test_what_is_long_or_odd_has_no_layout(value: Any) -> None:
    with pytest.raises(NoLayout):
        lay_out(value, lambda part: (0, 0))


@pytest.mark.parametrize("count", [0, 1, 3, 500])
def test_arrays_stay_out_of_the_stream(count: int) -> None:
    slot = Slot()
    batch = {"arrays": [np.arange(n, dtype=np.int16) for n in range(count)], "text": "x" * count}
    stream, pieces = pack(batch, {}, slot)
    again = unpack(stream, pieces, slot.bytes)
    assert again["text"] == batch["text"]
    for left, right in zip(again["arrays"], batch["arrays"], strict=True):
        assert left.dtype == right.dtype
        assert left.tolist() == right.tolist()
        assert left.flags.writeable
    if count == 3:
        slot.bytes[: slot.used] = 0
        assert again["arrays"][2].tolist() == [0, 0]


def test_what_lies_in_the_slot_already_is_not_copied() -> None:
    slot = Slot()
    offset, room = slot.room(100)
    room[:] = 3
    content = (ctypes.c_ubyte * 100).from_buffer(room)
    _, pieces = pack([Pointer(content)], {}, slot)
    assert pieces == ((offset, 100),)
    assert slot.used == 100


class Pointer:
    """What a reducer points to."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (pickle.PickleBuffer(self.content),)


def test_arrays_over_the_slot_are_copied_and_can_be_written() -> None:
    slot = Slot()
    _, room = slot.room(100)
    frozen = np.frombuffer(b"abc", np.uint8)
    stream, pieces = pack([room, room[:50], frozen], {}, slot)
    first, second, third = unpack(stream, pieces, slot.bytes)
    first[:] = 1
    assert not second.any()
    third[0] = 0
