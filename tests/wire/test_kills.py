"""A peer is killed at random moments, some of them while it is stopped, and started again. Reads go on."""

import os
import random
import signal
import statistics
import threading
import time

import pytest
from tests.tries import HANG_S, in_some_try, until
from tests.wire.kept import SECRET, ServerProcess, name, payload

from stoker.wire.peer import Peer

PAYLOADS = {number: payload(number, 100_000) for number in range(1, 51)}


class Reads:
    """Asks a peer all the time, in a thread, and looks at what comes."""

    def __init__(self, peer: Peer) -> None:
        self.given = self.wrong = 0
        self.slowest_s = 0.0
        self._peer = peer
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        draw = random.Random(1)
        while not self._is_over.wait(0.001):
            numbers = draw.sample(range(1, 51), 8)
            began = time.monotonic()
            with self._peer.get([name(number) for number in numbers]) as answer:
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                for number, item in zip(numbers, answer.payloads, strict=True):
                    self.given += item is not None
                    self.wrong += item is not None and bytes(item) != PAYLOADS[number]

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


def kill(times: int, seed: int) -> None:
    draw, back_s = random.Random(seed), []
    with ServerProcess() as process, Peer(process.address, SECRET, connections=2) as peer:
        peer.greet(HANG_S)
        reads = Reads(peer)
        try:
            for number in range(times):
                time.sleep(draw.random() * 0.1)
                if number % 3 == 2:
                    os.kill(process.pid, signal.SIGSTOP)
                    time.sleep(draw.random() * 0.5)
                process.start_again()
                before, began = reads.given, time.monotonic()
                until(lambda before=before: reads.given > before)  # type: ignore[misc]
                back_s.append(time.monotonic() - began)
        finally:
            reads.close()
        print(
            f"slowest read {reads.slowest_s:.2f} s; used again after {statistics.median(back_s):.2f} to {max(back_s):.2f} s"
        )
        assert reads.wrong == 0 and peer.stats().damaged == 0
        assert reads.slowest_s < 2


def test_a_peer_that_is_killed_again_and_again_is_used_again() -> None:
    in_some_try(lambda: kill(5, seed=1))


@pytest.mark.soak
def test_fifty_kills() -> None:
    in_some_try(lambda: kill(50, seed=2))
