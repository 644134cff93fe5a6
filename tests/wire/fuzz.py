"""Hostile frames against a real server, in a process of its own, while the right client is served.

    python -m tests.wire.fuzz --frames 1000000 --seed 1

Each frame comes over a connection of its own, before the handshake or after it. The server must not crash or grow, give
nothing to those who did not show the secret, and answer the right client all the time.
"""

import argparse
import contextlib
import json
import random
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.wire.kept import SECRET, Kept, name, payload

from stoker.wire import frames, handshake
from stoker.wire.frames import Header, Kind
from stoker.wire.link import connect
from stoker.wire.peer import Peer
from stoker.wire.server import ItemServer

ITEMS = 50
_WAIT_S = 120.0
_RESET = struct.pack("ii", 1, 0)
_CHALLENGE_BYTES = 40

Address = tuple[str, int]


def serve() -> None:
    with ItemServer(("127.0.0.1", 0), Kept(ITEMS), SECRET) as server:
        print(server.address[1], flush=True)
        sys.stdin.read()
        print(json.dumps([server.stats().refused, server.stats().broken]), flush=True)


@dataclass
class Outcome:
    """What hostile frames and the right client got, and how much the server grew."""

    frames: int
    given_bytes: int = 0
    """What strangers got beyond the server's part of the handshake."""
    served: int = 0
    wrong: int = 0
    """What the right client should have got, and did not."""
    grown_bytes: int = 0
    threads: int = 0
    refused: int = 0
    broken: int = 0
    wall_s: float = 0.0


def attack(when: str, count: int, seed: int, hands: int = 4) -> Outcome:
    """So many hostile frames, `before` or `after` the handshake."""
    outcome, hit = Outcome(count), {"before": before, "after": after}[when]
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.wire.fuzz", "--serve"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdin is not None and process.stdout is not None
        server, address = psutil.Process(process.pid), ("127.0.0.1", int(process.stdout.readline()))
        for number in range(200):  # it has what it needs after these
            hit(address, random.Random(number))
        small = server.memory_info().rss
        with right_client(address, outcome), ThreadPoolExecutor(hands) as pool:
            shares = [range(hand, count, hands) for hand in range(hands)]
            for given in pool.map(lambda share: sum(hit(address, random.Random(f"{seed} {n}")) for n in share), shares):
                outcome.given_bytes += given
            outcome.grown_bytes, outcome.threads = server.memory_info().rss - small, server.num_threads()
        process.stdin.close()
        outcome.refused, outcome.broken = json.loads(process.stdout.readline())
    outcome.wall_s = time.monotonic() - began
    return outcome


@contextlib.contextmanager
def right_client(address: Address, outcome: Outcome) -> Iterator[None]:
    """Asks for items all the time, and looks at what comes."""
    is_over = threading.Event()

    def ask(peer: Peer) -> None:
        while not is_over.wait(0.005):
            numbers = random.sample(range(1, ITEMS + 1), 3)
            with peer.get([name(number) for number in numbers]) as answer:
                is_right = [bytes(item or b"") for item in answer.payloads] == [payload(number) for number in numbers]
            outcome.served += is_right
            outcome.wrong += not is_right

    with Peer(address, SECRET, deadline_s=_WAIT_S) as peer:
        peer.greet()
        thread = threading.Thread(target=ask, args=(peer,))
        thread.start()
        yield
        is_over.set()
        thread.join()


def before(address: Address, draw: random.Random) -> int:
    """One hostile frame from a stranger. Returns how many bytes it got beyond the challenge."""
    hello = handshake._OPENING.pack(handshake.MAGIC, handshake.VERSION, draw.randbytes(32))
    other = handshake._OPENING.pack(handshake.MAGIC, draw.randrange(1 << 16), draw.randbytes(32))
    frame = Header(draw.randrange(256), 1, draw.randrange(1 << 20), draw.randrange(1 << 20), draw.randrange(1 << 30)).pack()
    content = draw.choice(
        (
            draw.randbytes(draw.randrange(300)),
            hello[: draw.randrange(len(hello))],
            hello + draw.randbytes(draw.randrange(200)),
            hello + bytes(32) + draw.randbytes(16),
            hello + frame + draw.randbytes(draw.randrange(2000)),
            other + draw.randbytes(48),
            frame + draw.randbytes(draw.randrange(2000)),
            changed(hello + draw.randbytes(48), draw),
        )
    )
    with socket.create_connection(address, _WAIT_S) as sock:
        return max(0, len(rest_of(sock, content)) - _CHALLENGE_BYTES)


def after(address: Address, draw: random.Random) -> int:
    """One hostile frame from who knows the secret. Returns how many bytes it got if it was not even a frame."""
    channel = connect(address, SECRET, draw.randbytes(16), time.monotonic() + _WAIT_S, _WAIT_S)
    sock = channel.stream._sock  # type: ignore[attr-defined]
    sock.settimeout(_WAIT_S)
    with sock:
        kind = draw.choice((*Kind, draw.randrange(256)))
        body = draw.choice((draw.randbytes(draw.randrange(200)), a_body(draw), b""))
        count = draw.choice((0, 1, 3, draw.randrange(1 << 32)))
        header = Header(kind, draw.randrange(1 << 32), count, len(body), draw.choice((0, 0, draw.randrange(1 << 64))))
        head = channel.head(header, body)
        if draw.random() < 0.5:  # as it should not be, but with the right MAC
            rest_of(sock, head)
            return 0
        head = draw.choice((changed(head, draw), head[: draw.randrange(len(head))], draw.randbytes(100)))
        return len(rest_of(sock, head))


def a_body(draw: random.Random) -> bytes:
    keys = [name(draw.randrange(1, ITEMS)) for _ in range(3)]
    whole: bytes = draw.choice(
        (
            frames.pack_get(keys, draw.randrange(1 << 24)),
            frames.pack_which(draw.randrange(9), bytes(16), draw.randrange(1, 1 << 16)),
            frames.pack_told(frames.Told(1, keys, keys)),
        )
    )
    return changed(whole, draw)


def changed(content: bytes, draw: random.Random) -> bytes:
    """The same, but for some bytes."""
    result = bytearray(content)
    for _ in range(draw.randrange(1, 4)):
        result[draw.randrange(len(result))] ^= draw.randrange(1, 256)
    return bytes(result)


def rest_of(sock: socket.socket, content: bytes) -> bytes:
    """Send this, say no more, and hear what the other side says until it ends."""
    heard = b""
    with contextlib.suppress(ConnectionError):
        sock.sendall(content)
    with contextlib.suppress(OSError):  # it has ended already
        sock.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionError):
        while received := sock.recv(65536):
            heard += received
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # so many closed connections would use up all ports
    return heard


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--when", choices=("before", "after"), nargs="*", default=("before", "after"))
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    for when in options.when:
        print(f"seed {options.seed}, {when} the handshake", attack(when, options.frames, options.seed), flush=True)


if __name__ == "__main__":
    main()
