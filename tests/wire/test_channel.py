from collections.abc import Iterator

import pytest
from tests.wire.kept import pair

from stoker.wire.channel import Channel
from stoker.wire.frames import FrameError, Header, Kind

PING = Header(Kind.PING, 1, 0, 4, 0)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = pair()
    yield one, other
    one.stream.close()
    other.stream.close()


def test_frames_arrive_in_both_directions(ends: tuple[Channel, Channel]) -> None:
    for one, other in (ends, ends[::-1]):
        for body in (b"body", b"next"):
            one.stream.send(one.head(PING, body))
            frame = other.receive()
            assert frame is not None and (frame.header, frame.body) == (PING, body)
    ends[0].stream.close()
    assert ends[1].receive() is None


@pytest.mark.parametrize("place", [0, 4, 5, 6, 8, 12, 16, 20, 28, 31, 32, 47])
def test_no_byte_can_be_changed(ends: tuple[Channel, Channel], place: int) -> None:
    head = bytearray(ends[0].head(PING, b"body"))
    head[place] ^= 1
    ends[0].stream.send(head)
    ends[0].stream.close()
    with pytest.raises((FrameError, ConnectionError)):
        ends[1].receive()


def test_no_frame_can_be_repeated(ends: tuple[Channel, Channel]) -> None:
    head = ends[0].head(PING, b"body")
    ends[0].stream.send(head * 2)
    assert ends[1].receive() is not None
    with pytest.raises(FrameError):
        ends[1].receive()


def test_no_frame_can_be_left_out(ends: tuple[Channel, Channel]) -> None:
    ends[0].head(PING, b"lost")
    ends[0].stream.send(ends[0].head(PING, b"body"))
    with pytest.raises(FrameError):
        ends[1].receive()


def test_no_frame_can_be_sent_back(ends: tuple[Channel, Channel]) -> None:
    ends[1].stream.send(ends[0].head(PING, b"body"))
    with pytest.raises(FrameError):
        ends[0].receive()


def test_half_a_frame_is_an_error(ends: tuple[Channel, Channel]) -> None:
    ends[0].stream.send(ends[0].head(PING, b"body")[:-1])
    ends[0].stream.close()
    with pytest.raises(ConnectionError):
        ends[1].receive()
