"""How fast do objects come from a store, beside plain obstore with 64 reads in flight?

Objects of 100 KB from nginx over loopback (`apt-get install nginx-light`), all of them in random order in each round.
`plain` awaits obstore's own calls, 64 at once, and drops what it gets; `threads` calls them from 64 threads. `worker` is a
source in a process like a loader's worker, which talks to the store itself: batches of 32, the next ones expected. `beside`
is the same in a process that may fork, and therefore asks a process beside it.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import harness
from stoker import open_source

BATCH, AHEAD, IN_FLIGHT = 32, 4, 64
CONFIG = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 512; }}
http {{ access_log off; sendfile on; keepalive_requests 10000000; root {folder}/objects;
{places}
server {{ listen 127.0.0.1:{port}; }} }}
"""


@contextlib.contextmanager
def serving(count: int, size: int) -> Iterator[str]:
    """nginx with so many objects, and a list of them."""
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if nginx is None:
        raise SystemExit("nginx is not installed: apt-get install nginx-light")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as text, socket.create_server(("127.0.0.1", 0)) as free:
        folder, port = Path(text), free.getsockname()[1]
        os.chmod(folder, 0o755)
        (folder / "objects").mkdir()
        numbers = random.Random(0)
        for number in range(count):
            (folder / "objects" / f"{number:06}").write_bytes(numbers.randbytes(size))
        (folder / "objects" / "index.txt").write_text("".join(f"{number:06}\t{size}\n" for number in range(count)))
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        (folder / "config").write_text(CONFIG.format(folder=folder, places=places, port=port))
        free.close()
        with subprocess.Popen([nginx, "-c", str(folder / "config")], stderr=subprocess.DEVNULL) as server:
            try:
                while True:
                    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                        break
                yield f"http://127.0.0.1:{port}/"
            finally:
                server.terminate()


def plain(address: str, count: int, seed: int) -> float:
    """Objects per second with obstore alone."""
    import obstore
    from obstore.store import HTTPStore

    store = HTTPStore.from_url(address, client_options={"allow_http": True})
    order = iter(order_of(count, seed))

    async def one_after_the_other() -> None:
        for number in order:
            await (await obstore.get_async(store, f"{number:06}")).bytes_async()

    async def all_of_them() -> None:
        await asyncio.gather(*(one_after_the_other() for _ in range(IN_FLIGHT)))

    began = time.perf_counter()
    asyncio.run(all_of_them())
    return count / (time.perf_counter() - began)


def threads(address: str, count: int, seed: int) -> float:
    """Objects per second with obstore alone, called by as many threads."""
    import obstore
    from obstore.store import HTTPStore

    store = HTTPStore.from_url(address, client_options={"allow_http": True})
    began = time.perf_counter()
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        keys = (f"{number:06}" for number in order_of(count, seed))
        read = sum(pool.map(lambda key: len(obstore.get(store, key).bytes()), keys))
    assert read
    return count / (time.perf_counter() - began)


def ours(source: Any, count: int, seed: int) -> float:
    """Objects per second as batches, the next ones expected."""
    order = order_of(count, seed)
    batches = [order[start : start + BATCH] for start in range(0, count, BATCH)]
    began = time.perf_counter()
    read = 0
    for place, batch in enumerate(batches):
        for later in batches[place + 1 : place + 1 + AHEAD] if place == 0 else batches[place + AHEAD : place + AHEAD + 1]:
            source.expect(later)
        read += sum(map(len, source.read(batch)))
    assert read == sum(source.sizes(order))
    return count / (time.perf_counter() - began)


def order_of(count: int, seed: int) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def work(address: str, count: int, line: Connection) -> None:
    """A process that measures what it is told, in turn."""
    source = open_source(address)
    while (asked := line.recv()) is not None:
        what, seed = asked
        alone = {"plain": plain, "threads": threads}.get(what)
        line.send(ours(source, count, seed) if alone is None else alone(address, count, seed))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--size", type=int, default=100_000)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with serving(options.objects, options.size) as address, contextlib.ExitStack() as ends:
        lines = {}
        for name, is_worker in (("plain", True), ("threads", True), ("worker", True), ("beside", False)):
            here, there = spawn.Pipe()
            process = spawn.Process(target=work, args=(address, options.objects, there), daemon=is_worker)
            process.start()
            ends.callback(process.join)
            ends.callback(here.send, None)
            lines[name] = here
        seeds = iter(range(1_000_000))

        def measured(name: str) -> float:
            lines[name].send((name, next(seeds)))
            return float(lines[name].recv())

        outcome = harness.alternate({name: partial(measured, name) for name in lines}, options.rounds)
    harness.report(
        "How fast do objects come from a store, beside plain obstore with 64 reads in flight?",
        objects_per_s={name: round(value) for name, value in outcome.medians().items()},
        worker_beside_threads=round(outcome.ratio("worker", "threads"), 3),
        worker_beside_plain=round(outcome.ratio("worker", "plain"), 3),
        beside_beside_plain=round(outcome.ratio("beside", "plain"), 3),
        rounds=options.rounds,
    )


if __name__ == "__main__":
    main()
