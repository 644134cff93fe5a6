"""How fast do items go from one host's store to another's?

Items of 100 KB from an LMDB store in one process, over loopback, checked, into the store of another process: 32 items per
request, requests pipelined, one connection and four. GB/s, beside what is possible here: plain sockets that only copy, and
`put` of as many bytes from memory, in the same round. `memory` is the wire without the second store.
"""

import argparse
import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import harness
from stoker import memory
from stoker.cache.served import StoreItems
from stoker.cache.store import Store
from stoker.wire.answers import Answer
from stoker.wire.peer import Peer
from stoker.wire.server import Server

SIZE, COUNT, TOGETHER = 100_000, 2_000, 32
SECRET = b"only for this benchmark"
BUDGET = 2 * SIZE * COUNT
KEYS = [number.to_bytes(16, "big") + b"version!" for number in range(1, COUNT + 1)]
MESSAGE = SIZE * TOGETHER


def serve(host: str, plain_bytes: int) -> None:
    """The other host, in a process of its own: a store that is served, and a socket that only sends."""
    memory.keep_freed()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = Store(Path(folder))
        source = random.Random(0)
        for place in range(0, COUNT, 100):
            store.put([(key, source.randbytes(SIZE)) for key in KEYS[place : place + 100]], BUDGET)
        plain = socket.create_server((host, 0))
        threading.Thread(target=send_plainly, args=(plain, plain_bytes), daemon=True).start()
        with Server((host, 0), StoreItems(store), SECRET) as server:
            print(server.address[1], plain.getsockname()[1], flush=True)
            sys.stdin.read()


def send_plainly(listening: socket.socket, size: int) -> None:
    content = memoryview(os.urandom(MESSAGE))

    def send(sock: socket.socket) -> None:
        with sock:
            for _ in range(size // MESSAGE):
                sock.sendall(content)

    while True:
        threading.Thread(target=send, args=(listening.accept()[0],), daemon=True).start()


@contextlib.contextmanager
def other_host(host: str, plain_bytes: int, within: tuple[str, ...] = ()) -> Iterator[tuple[int, int]]:
    command = [*within, sys.executable, __file__, "--serve", host, str(plain_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        ports = process.stdout.readline().split()
        yield int(ports[0]), int(ports[1])
        process.stdin.close()


def plainly(address: tuple[str, int], connections: int, plain_bytes: int) -> float:
    """GB/s of sockets that only copy."""

    def receive() -> None:
        room = memoryview(bytearray(MESSAGE))
        with socket.create_connection(address) as sock:
            while sock.recv_into(room, 0, socket.MSG_WAITALL):
                pass

    threads = [threading.Thread(target=receive) for _ in range(connections)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return connections * (plain_bytes // MESSAGE) * MESSAGE / (time.perf_counter() - began) / 1e9


def fetched(peer: Peer, together: int, use: Callable[[list[bytes], Answer], None], count: int = COUNT) -> float:
    """GB/s of items that come over the wire and are used, as many under way as the peer allows."""
    waiting = []
    began = time.perf_counter()
    for place in range(0, count, together):
        keys = KEYS[place : min(place + together, count)]
        waiting.append((keys, peer.ask(keys)))
        if len(waiting) == 4 * peer.connections:
            finish(*waiting.pop(0), use)
    for keys, request in waiting:
        finish(keys, request, use)
    return count * SIZE / (time.perf_counter() - began) / 1e9


def finish(keys: list[bytes], request: object, use: Callable[[list[bytes], Answer], None]) -> None:
    with request.answer() as answer:  # type: ignore[attr-defined]
        assert not any(payload is None for payload in answer.payloads), "something is missing"
        use(keys, answer)


def in_memory(_: list[bytes], answer: Answer) -> None:
    assert len(answer.payloads[0] or b"") == SIZE


class Kept:
    """A store that is filled anew each time."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.store = Store(Path(self.folder.name))

    def use(self, keys: list[bytes], answer: Answer) -> None:
        items = [(key, item) for key, item in zip(keys, answer.sealed, strict=True) if item is not None]
        assert self.store.put(items, BUDGET, is_sealed=True) == len(keys)

    def close(self) -> None:
        self.store.close()
        self.folder.cleanup()


def into_store(peer: Peer, together: int, count: int = COUNT) -> float:
    kept = Kept()
    rate = fetched(peer, together, kept.use, count)
    assert kept.store.stats().items == count
    kept.close()
    return rate


def put_alone(sealed: list[bytes]) -> float:
    kept = Kept()
    began = time.perf_counter()
    for place in range(0, COUNT, TOGETHER):
        keys = KEYS[place : place + TOGETHER]
        kept.store.put([(key, sealed[n]) for n, key in enumerate(keys)], BUDGET, is_sealed=True)
    rate = COUNT * SIZE / (time.perf_counter() - began) / 1e9
    kept.close()
    return rate


def loopback(rounds: int) -> None:
    plain_bytes = COUNT * SIZE
    with other_host("127.0.0.1", plain_bytes) as (port, plain_port), contextlib.ExitStack() as stack:
        address, plain = ("127.0.0.1", port), ("127.0.0.1", plain_port)
        one, four = (stack.enter_context(Peer(address, SECRET, connections=n, deadline_s=30)) for n in (1, 4))
        for peer in (one, four):
            peer.greet(60)
        sealed = [os.urandom(SIZE + 8) for _ in range(TOGETHER)]
        outcome = harness.alternate(
            {
                "plain sockets, one": partial(plainly, plain, 1, plain_bytes),
                "store to memory, one": partial(fetched, one, TOGETHER, in_memory),
                "store to store, one": partial(into_store, one, TOGETHER),
                "put alone": partial(put_alone, sealed),
                "plain sockets, four": partial(plainly, plain, 4, plain_bytes // 4),
                "store to memory, four": partial(fetched, four, TOGETHER, in_memory),
                "store to store, four": partial(into_store, four, TOGETHER),
                "store to memory, one item per request": partial(fetched, one, 1, in_memory),
            },
            rounds,
        )
    best = {name: max(values) for name, values in outcome.values.items()}
    for word in ("one", "four"):
        ratio = outcome.ratio(f"store to memory, {word}", f"plain sockets, {word}")
        harness.report(f"GB/s over loopback, connections: {word}", ratio=ratio, median=outcome.medians(), best=best)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender runs (default: 5)")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], int(options.serve[1]))
        return
    memory.keep_freed()
    loopback(options.rounds)


if __name__ == "__main__":
    main()
