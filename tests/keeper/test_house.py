"""Which of the keeper's readers are woken for what is queued."""

import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.tries import HANG_S, until

from stoker.keeper import house, messages
from stoker.keeper.bringing import Brought
from stoker.keeper.house import House
from stoker.keeper.messages import Said
from stoker.keeper.queues import LoaderQueue

READERS = SAMPLES = 8


class _Table(list[bytes]):
    def path(self, index: int) -> bytes:
        return self[index]


class _Bringing:
    """Files that are all there, or all to be waited for."""

    def __init__(self, waited_for: threading.Barrier | None) -> None:
        self.waited_for = waited_for
        self.served: list[int] = []
        self.stager = SimpleNamespace(beat=lambda: None, taken=lambda before: None, used=0, unused=0)
        self.near = SimpleNamespace(reuse=None)
        self.latest_work = 0

    def bring(self, work: int, entry: bytes, about_to_read: Any) -> tuple[Brought, float]:
        self.served.append(threading.get_ident())
        if self.waited_for is None:
            return Brought.LEFT, 0.0
        about_to_read()
        self.waited_for.wait(HANG_S)
        return Brought.READ, 0.01


def served(bringing: _Bringing, *, is_starved: bool = False) -> list[int]:
    ours, theirs = socket.socketpair()
    found, queue = House(), LoaderQueue({"governed": False}, _Table([b"a file"] * SAMPLES), bringing)  # type: ignore[arg-type]
    with ours, theirs:
        found._queues[ours.fileno(), 0] = queue
        found._hire(READERS)
        found._throttling = SimpleNamespace(is_starved=lambda at: is_starved)  # type: ignore[assignment]
        found.govern()
        found.hear(ours, 0, Said(messages.QUEUED, 0, 0, 0, 0.0, np.arange(SAMPLES, dtype=np.uint32).tobytes()))
        if is_starved:
            time.sleep(0.2)
        else:
            until(lambda: len(bringing.served) == SAMPLES and not queue.busy)
        found._queues.clear()
        found.close()
    return bringing.served


def test_one_reader_is_enough_for_files_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "_WAITED_S", HANG_S)
    assert len(set(served(_Bringing(None)))) == 1


def test_files_that_have_to_be_waited_for_are_waited_for_together() -> None:
    assert len(set(served(_Bringing(threading.Barrier(SAMPLES))))) == SAMPLES


def test_nothing_is_read_ahead_without_processor_time_to_spare() -> None:
    assert served(_Bringing(None), is_starved=True) == []
