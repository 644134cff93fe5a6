"""What comes over a slow link when several hosts ask one for more than it brings?

One server, a link of a limited rate before it, and hosts that read with some threads each, as keepers do. `ratio` is the
part of the link that brought what somebody still waited for; `uneven` is what the host that got least got, in parts of what
the other one got; `late` counts answers that came too late, after which reads go to storage.

    python benchmarks/slow_link.py [--link 50] [--size 128KB] [--readers 13] [--hosts 2] [--seconds 10]
"""

import argparse
import contextlib
import socket
import sys
import threading
import time
from pathlib import Path

import harness
from stoker.units import parse_bytes
from stoker.wire.peer import Peer
from stoker.wire.server import ItemServer

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.wire.kept import SECRET, Kept, name

ITEMS = 40
_PIECE_BYTES = 16 << 10
_AHEAD_S = 0.02
_BUFFER_BYTES = 64 << 10
_PAUSE_S = 0.05


class Link:
    """A link before an address: what comes back from there comes at a rate."""

    def __init__(self, behind: tuple[str, int], bytes_per_s: float) -> None:
        self._behind, self._rate = behind, bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listening.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            near, far = self._listening.accept()[0], socket.create_connection(self._behind)
            for sock in (near, far):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            threading.Thread(target=self._copy, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, is_limited: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                if is_limited:
                    self._wait(len(piece))
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _wait(self, size: int) -> None:
        with self._lock:
            at = time.monotonic()
            self._free_at = max(self._free_at, at) + size / self._rate
            ahead_s = self._free_at - at
        if ahead_s > _AHEAD_S:
            time.sleep(ahead_s - _AHEAD_S)


def read(peer: Peer, first: int, until: float, given: list[int], slowest: list[float]) -> None:
    """Be one of a host's readers."""
    number = first
    while (began := time.monotonic()) < until:
        number = number % ITEMS + 1
        with peer.get([name(number)]) as answer:
            if answer.payloads[0] is None:
                time.sleep(_PAUSE_S)  # storage would be read
            else:
                given.append(len(answer.payloads[0]))
        slowest.append(time.monotonic() - began)


def main() -> None:
    """Print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", type=int, default=50, help="rate of the link in Mbit/s (default: 50)")
    parser.add_argument("--size", default="128KB")
    parser.add_argument("--readers", type=int, default=13, help="threads of each host (default: 13)")
    parser.add_argument("--hosts", type=int, default=2, help="how many hosts ask (default: 2)")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    rate = options.link * 125_000
    given: list[list[int]] = [[] for _ in range(options.hosts)]
    slowest: list[float] = []
    with ItemServer(("127.0.0.1", 0), Kept(ITEMS, parse_bytes(options.size, "--size")), SECRET) as server:
        link = Link(server.address, rate)
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(Peer(link.address, SECRET, connections=2)) for _ in given]
            for peer in peers:
                peer.greet(60)
            began = time.monotonic()
            until = began + options.seconds
            threads = [
                threading.Thread(target=read, args=(peer, reader, until, mine, slowest))
                for peer, mine in zip(peers, given, strict=True)
                for reader in range(options.readers)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took_s = time.monotonic() - began
            late = sum(peer.stats().late for peer in peers)
    sums = [sum(mine) for mine in given]
    harness.report(
        f"{options.hosts} hosts of {options.readers} readers, {options.size}, {options.link} Mbit/s",
        ratio=sum(sums) / (took_s * rate),
        uneven=min(sums) / max(*sums, 1),
        late=late,
        slowest_s=max(slowest),
    )


if __name__ == "__main__":
    main()
