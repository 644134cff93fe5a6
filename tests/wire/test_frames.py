from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.wire import frames
from stoker.wire.frames import Frame, FrameError, Header, Held, Kind, Status, Told

KEYS = st.lists(st.binary(min_size=1, max_size=frames.KEY_LIMIT), min_size=1, max_size=40)
NAMES = st.lists(st.binary(min_size=16, max_size=16), max_size=40)
NUMBERS = st.integers(0, 2**64 - 1)


def frame(kind: Kind, count: int, body: bytes, payload_bytes: int = 0) -> Frame:
    header = frames.unpack_header(Header(kind, 7, count, len(body), payload_bytes).pack())
    return Frame(header, body)


@given(KEYS, st.integers(0, frames.PAYLOAD_LIMIT))
def test_a_request_for_items_arrives(keys: list[bytes], limit_bytes: int) -> None:
    assert frames.unpack_get(frame(Kind.GET, len(keys), frames.pack_get(keys, limit_bytes))) == (keys, limit_bytes)


@given(st.lists(st.tuples(st.sampled_from(Status), st.integers(0, 1000)), min_size=1, max_size=50))
def test_an_answer_arrives(items: list[tuple[Status, int]]) -> None:
    statuses, sizes = [status for status, _ in items], [size for _, size in items]
    total = sum(size for status, size in items if status == Status.GIVEN)
    answer = frame(Kind.ITEMS, len(items), frames.pack_items(statuses, sizes), total)
    assert frames.unpack_items(answer, len(items), total) == (tuple(statuses), tuple(sizes))
    for count, limit_bytes in ((len(items) + 1, total), (len(items), total - 1)):
        with pytest.raises(FrameError):
            frames.unpack_items(answer, count, limit_bytes)


@given(NUMBERS, NAMES, st.booleans())
def test_names_arrive(generation: int, names: list[bytes], is_last: bool) -> None:
    names = sorted(set(names) - {bytes(16)})
    held = Held(generation, names, is_last or not names)
    piece = frame(Kind.HELD, len(names), frames.pack_held(held))
    assert frames.unpack_held(piece, bytes(16), 50) == held
    if names:
        with pytest.raises(FrameError):
            frames.unpack_held(piece, names[0], 50)
        with pytest.raises(FrameError):
            frames.unpack_held(piece, bytes(16), len(names) - 1)


@given(NUMBERS, NAMES, NAMES)
def test_what_is_told_arrives(generation: int, held: list[bytes], gone: list[bytes]) -> None:
    told = Told(generation, held, gone)
    assert frames.unpack_told(frame(Kind.TOLD, len(held) + len(gone), frames.pack_told(told))) == told


@given(NUMBERS, st.binary(min_size=16, max_size=16), st.integers(1, frames.NAMES_AT_ONCE))
def test_a_request_for_names_arrives(known: int, after: bytes, limit: int) -> None:
    assert frames.unpack_which(frame(Kind.WHICH, 0, frames.pack_which(known, after, limit))) == (known, after, limit)


@given(st.binary(min_size=frames.HEADER_BYTES, max_size=frames.HEADER_BYTES), st.booleans())
def test_any_header_is_right_or_refused(content: bytes, is_ours: bool) -> None:
    if is_ours:
        content = frames.MAGIC + bytes([frames.VERSION]) + content[5:6] + bytes(2) + content[8:]
    try:
        header = frames.unpack_header(content)
    except FrameError:
        return
    assert header.pack() == content
    assert header.body_bytes <= frames.BODY_LIMIT and header.payload_bytes <= frames.PAYLOAD_LIMIT


@given(st.binary(max_size=300), st.integers(0, 20), st.integers(0, 100))
def test_any_body_is_right_or_refused(body: bytes, count: int, payload_bytes: int) -> None:
    """What is read from any bytes makes the same bytes again: nothing is ignored."""
    readers: list[tuple[Kind, Callable[[Frame], Any], Callable[[Any], bytes]]] = [
        (Kind.GET, frames.unpack_get, lambda found: frames.pack_get(*found)),
        (Kind.ITEMS, lambda found: frames.unpack_items(found, count, 100), lambda found: frames.pack_items(*found)),
        (Kind.WHICH, frames.unpack_which, lambda found: frames.pack_which(*found)),
        (Kind.HELD, lambda found: frames.unpack_held(found, bytes(16), 20), frames.pack_held),
        (Kind.TOLD, frames.unpack_told, frames.pack_told),
    ]
    for kind, read, write in readers:
        try:
            found = read(frame(kind, count, body, payload_bytes))
        except FrameError:
            continue
        assert write(found) == body


def test_too_many_keys_are_not_asked_for() -> None:
    with pytest.raises(ValueError, match="512 keys"):
        frames.pack_get([b"k"] * 513, 1)
    with pytest.raises(ValueError, match="255 bytes"):
        frames.pack_get([b"k" * 256], 1)
