"""How fast do items go from one host's store to another's?

Items of 100 KB from an LMDB store in one process, over loopback, checked, into the store of another process: 32 items per
request, requests pipelined, one connection and four. GB/s, beside what is possible here: plain sockets that only copy,
`put` of as many bytes from memory, a file in memory that is only written to, and one whose pages the kernel only finds, in
the same round. `memory` is the wire without the second store. Then the same between two network namespaces, over a link
that is limited to 1 Gbit/s (needs root).
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
from stoker.cache.store import Store
from stoker.keeper.giving import Gifts
from stoker.wire.answers import ItemsAnswer
from stoker.wire.peer import Peer
from stoker.wire.server import ItemServer

SIZE, COUNT, TOGETHER = 100_000, 2_000, 32
SECRET = b"only for this benchmark"
BUDGET = 2 * SIZE * COUNT
KEYS = [number.to_bytes(16, "big") + b"version!" for number in range(1, COUNT + 1)]
MESSAGE = SIZE * TOGETHER


def serve(host: str) -> None:
    """The other host, in a process of its own: a store that is served, and a socket that only sends."""
    memory.keep_freed()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = Store(Path(folder))
        source = random.Random(0)
        for place in range(0, COUNT, 100):
            store.put([(key, source.randbytes(SIZE)) for key in KEYS[place : place + 100]], BUDGET)
        plain = socket.create_server((host, 0))
        threading.Thread(target=send_plainly, args=(plain,), daemon=True).start()
        with ItemServer((host, 0), Gifts(store), SECRET) as server:
            print(server.address[1], plain.getsockname()[1], flush=True)
            sys.stdin.read()


def send_plainly(listening: socket.socket) -> None:
    """Answer a byte with as many messages."""
    content = memoryview(os.urandom(COUNT * SIZE))  # as much as the store has: what is sent is not in the processor's cache

    def send(sock: socket.socket) -> None:
        with sock:
            while count := sock.recv(1):
                for place in range(0, count[0] * MESSAGE, MESSAGE):
                    begin = place % (len(content) - MESSAGE)
                    sock.sendall(content[begin : begin + MESSAGE])

    while True:
        threading.Thread(target=send, args=(listening.accept()[0],), daemon=True).start()


@contextlib.contextmanager
def other_host(host: str, within: tuple[str, ...] = ()) -> Iterator[tuple[int, int, int]]:
    """The ports of the served store and of the plain socket, and the process."""
    command = [*within, sys.executable, __file__, "--serve", host]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        ports = process.stdout.readline().split()
        yield int(ports[0]), int(ports[1]), process.pid
        process.stdin.close()


def plainly(socks: list[socket.socket], messages: int) -> float:
    """GB/s of sockets that only copy."""

    def receive(sock: socket.socket) -> None:
        room = memoryview(bytearray(MESSAGE))
        sock.sendall(bytes([messages // len(socks)]))
        for _ in range(messages // len(socks)):
            assert sock.recv_into(room, 0, socket.MSG_WAITALL) == MESSAGE

    threads = [threading.Thread(target=receive, args=(sock,)) for sock in socks]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return messages * MESSAGE / (time.perf_counter() - began) / 1e9


def fetched(peer: Peer, together: int, use: Callable[[list[bytes], ItemsAnswer], None], count: int = COUNT) -> float:
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


def finish(keys: list[bytes], request: object, use: Callable[[list[bytes], ItemsAnswer], None]) -> None:
    with request.answer() as answer:  # type: ignore[attr-defined]
        assert not any(payload is None for payload in answer.payloads), "something is missing"
        use(keys, answer)


def in_memory(_: list[bytes], answer: ItemsAnswer) -> None:
    assert len(answer.payloads[0] or b"") == SIZE


class Kept:
    """A store that is filled anew each time."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.store = Store(Path(self.folder.name))

    def use(self, keys: list[bytes], answer: ItemsAnswer) -> None:
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


def written_alone(sealed: list[bytes]) -> float:
    """GB/s of writing to a file in memory: no store that others can read is faster."""
    with tempfile.TemporaryFile(dir="/dev/shm", buffering=0) as file:
        began = time.perf_counter()
        for number in range(COUNT):
            file.write(sealed[number % len(sealed)])
        return COUNT * SIZE / (time.perf_counter() - began) / 1e9


def allocated_alone() -> float:
    """GB/s of finding pages for a file in memory, before anything is written to them: no two threads can do it at once."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        began = time.perf_counter()
        os.posix_fallocate(file.fileno(), 0, COUNT * SIZE)
        return COUNT * SIZE / (time.perf_counter() - began) / 1e9


def into_used_pages(peer: Peer, kept: Kept) -> float:
    """Into a store that is full: each item takes the place of another."""

    def use(keys: list[bytes], answer: ItemsAnswer) -> None:
        items = [(key, item) for key, item in zip(keys, answer.sealed, strict=True) if item is not None]
        assert kept.store.put(items, BUDGET, keys, is_sealed=True) == len(keys)

    return fetched(peer, TOGETHER, use)


def ns_per_byte(act: Callable[[], float], others: int) -> dict[str, float]:
    """Processor time of both processes for each byte, which others on this machine disturb less than the rate."""
    best: tuple[float, float] = (float("inf"), float("inf"))
    for _ in range(5):
        began = (processor_ns(os.getpid()), processor_ns(others))
        act()
        spent = (processor_ns(os.getpid()) - began[0], processor_ns(others) - began[1])
        best = min(best, spent, key=sum)
    return {"this side": best[0] / (COUNT * SIZE), "other side": best[1] / (COUNT * SIZE)}


def processor_ns(pid: int) -> int:
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def loopback(rounds: int) -> None:
    with other_host("127.0.0.1") as (port, plain_port, pid), contextlib.ExitStack() as stack:
        address, plain = ("127.0.0.1", port), ("127.0.0.1", plain_port)
        one, four = (stack.enter_context(Peer(address, SECRET, connections=n, deadline_s=30)) for n in (1, 4))
        for peer in (one, four):
            peer.greet(60)
        socks = [stack.enter_context(socket.create_connection(plain)) for _ in range(4)]
        full = Kept()
        fetched(one, TOGETHER, full.use)
        sealed = [os.urandom(SIZE + 8) for _ in range(TOGETHER)]
        outcome = harness.alternate(
            {
                "plain sockets, one": partial(plainly, socks[:1], 64),
                "store to memory, one": partial(fetched, one, TOGETHER, in_memory),
                "store to store, one": partial(into_store, one, TOGETHER),
                "store to store, one, into used pages": partial(into_used_pages, one, full),
                "put alone": partial(put_alone, sealed),
                "a file in memory, written alone": partial(written_alone, sealed),
                "a file in memory, its pages alone": allocated_alone,
                "plain sockets, four": partial(plainly, socks, 64),
                "store to memory, four": partial(fetched, four, TOGETHER, in_memory),
                "store to store, four": partial(into_store, four, TOGETHER),
                "store to memory, one item per request": partial(fetched, one, 1, in_memory),
            },
            rounds,
        )
        spent = {
            "store to memory": ns_per_byte(partial(fetched, one, TOGETHER, in_memory), pid),
            "store to store": ns_per_byte(partial(into_store, one, TOGETHER), pid),
            "store to store, into used pages": ns_per_byte(partial(into_used_pages, one, full), pid),
            "put alone": ns_per_byte(partial(put_alone, sealed), pid),
            "a file in memory, written alone": ns_per_byte(partial(written_alone, sealed), pid),
            "a file in memory, its pages alone": ns_per_byte(allocated_alone, pid),
        }
        full.close()
    best = {name: max(values) for name, values in outcome.values.items()}
    ratio = outcome.ratio("store to memory, one", "plain sockets, one")
    harness.report("GB/s over loopback", ratio=ratio, median=outcome.medians(), best=best)
    whole = sum(spent["store to memory"].values())
    harness.report("processor time over loopback, ns per byte", ratio=whole, ns=spent)


@contextlib.contextmanager
def two_hosts(rate: str) -> Iterator[tuple[str, str]]:
    """Two network namespaces with a link of this rate between them, at 10.9.0.1 and 10.9.0.2. Needs root."""
    ours, theirs = (f"stoker-{os.getpid()}-{side}" for side in "ab")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for space in (ours, theirs):
            ip("netns", "add", space)
        ip("link", "add", "eth0", "netns", ours, "type", "veth", "peer", "name", "eth0", "netns", theirs)
        for number, space in enumerate((ours, theirs), 1):
            ip("-n", space, "address", "add", f"10.9.0.{number}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            limit = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", *limit], check=True)
        yield ours, theirs
    finally:
        for space in (ours, theirs):
            subprocess.run(["ip", "netns", "delete", space], check=False)


def over_link(rounds: int) -> None:
    """A link of 1 Gbit/s: from here on, this program runs on the other side of it."""
    with two_hosts("1gbit") as (ours, theirs):
        words = [sys.executable, "-W", "ignore", __file__, "--rounds", str(rounds), "--towards", theirs]
        subprocess.run(["ip", "netns", "exec", ours, *words], check=True)


def towards(space: str, rounds: int) -> None:
    with other_host("10.9.0.2", ("ip", "netns", "exec", space)) as (port, plain_port, _), contextlib.ExitStack() as stack:
        peer = stack.enter_context(Peer(("10.9.0.2", port), SECRET, deadline_s=30))
        peer.greet(60)
        sock = stack.enter_context(socket.create_connection(("10.9.0.2", plain_port)))
        contenders = {
            "plain": partial(plainly, [sock], 100),
            "store to store": partial(into_store, peer, TOGETHER),
            "store to memory, one item per request": partial(fetched, peer, 1, in_memory),
        }
        outcome = harness.alternate(contenders, rounds)
    share = outcome.median("store to store") / 0.125
    values = {name: rate * 1000 for name, rate in outcome.medians().items()}
    ratio = outcome.ratio("store to store", "plain")
    harness.report("MB/s over a link of 1 Gbit/s", ratio=ratio, of_the_link=share, MB_per_s=values)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender runs (default: 5)")
    parser.add_argument("--only", choices=("loopback", "link"), help="one of the two questions")
    parser.add_argument("--towards", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    memory.keep_freed()
    if options.towards:
        towards(options.towards, options.rounds)
        return
    if options.only != "link":
        loopback(options.rounds)
    if options.only != "loopback":
        over_link(options.rounds)


if __name__ == "__main__":
    main()
