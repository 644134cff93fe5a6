"""How do finished batches come from another host: by Ray's object store, by Ray's client, or by our wire?

Batches of 10 MB that are made already, from one process on another host (see `hosts`), two under way at a time, in MB/s.
All take turns. `wire` is what a remote worker and the relay do: a header with its code, a checksum on both sides, and
the bytes received in shared memory. `ray` is `ray.get` of what an actor returns, as a view of the store's memory. `client`
is the same on a host that is no node of the cluster. `call_us` is a call of Ray that returns nothing.

    sudo python benchmarks/ray_store.py [--rounds 5] [--megabytes 10]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

PORT, SECRET = 7200, b"only for this benchmark"
UNDER_WAY, WARM, BATCHES = 2, 4, 40


def measured(took_s: float, size: int) -> float:
    """MB/s of all batches."""
    return BATCHES * size / took_s / 1e6


def send(host: str, size: int) -> None:
    """The other host's side of the wire: a batch for each work, on two connections."""
    from stoker.checksum import load
    from stoker.remote import said
    from stoker.remote.said import Word
    from stoker.wire.link import connect

    load()

    def serve() -> None:
        batch = np.random.default_rng(0).integers(0, 255, size, np.uint8)
        channel = connect((host, PORT), SECRET, os.urandom(16), time.monotonic() + 60, 60.0)
        channel.stream.deadline = None
        while said.receive(channel, Word.WORK) is not None:
            said.send(channel, Word.MADE, said.pack_made((), batch.data, is_pickled=False), batch.data)

    threads = [threading.Thread(target=serve) for _ in range(UNDER_WAY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def receive(host: str, size: int) -> None:
    """The training host's side of the wire. Prints MB/s."""
    from stoker.remote import said
    from stoker.remote.said import Word
    from stoker.slots.area import Area
    from stoker.slots.outbox import Outbox
    from stoker.wire.channel import Channel
    from stoker.wire.reception import Reception

    begun, ended = threading.Barrier(UNDER_WAY + 1), threading.Barrier(UNDER_WAY + 1)

    def converse(channel: Channel) -> None:
        outbox = Outbox(Area(1, 1), 0)
        assert outbox.claim()
        room = memoryview(outbox.room(size)[1])[:size]  # type: ignore[arg-type]
        channel.stream.deadline = None

        def take() -> None:
            said.send(channel, Word.WORK)
            frame = said.receive(channel, Word.MADE)
            assert frame is not None
            channel.fill(room)
            assert said.is_whole(room, said.unpack_made(frame)[0], is_pickled=False)

        for _ in range(WARM):
            take()
        begun.wait()
        for _ in range(BATCHES // UNDER_WAY):
            take()
        ended.wait()

    with Reception((host, PORT), converse, SECRET):
        print("ready", flush=True)
        begun.wait()
        began = time.perf_counter()
        ended.wait()
        print(json.dumps({"MB_per_s": measured(time.perf_counter() - began, size)}), flush=True)


def get(address: str, size: int) -> None:
    """Get batches from an actor on the other host. Prints MB/s."""
    import ray

    class Maker:
        def __init__(self) -> None:
            self.made = np.random.default_rng(0).integers(0, 255, size, np.uint8)

        def batch(self) -> Any:
            return self.made

        def nothing(self) -> None:
            return None

    ray.init(address=address, log_to_driver=False, logging_level=40)
    maker: Any = ray.remote(Maker).options(resources={"there": 1}).remote()

    def take(count: int) -> None:
        under_way = [maker.batch.remote() for _ in range(UNDER_WAY)]
        for number in range(count):
            assert len(ray.get(under_way.pop(0))) == size
            if number + UNDER_WAY < count:
                under_way.append(maker.batch.remote())

    take(WARM * UNDER_WAY)
    began = time.perf_counter()
    take(BATCHES)
    rate = measured(time.perf_counter() - began, size)
    began = time.perf_counter()
    for _ in range(100):
        ray.get(maker.nothing.remote())
    print(json.dumps({"MB_per_s": rate, "call_us": (time.perf_counter() - began) * 1e4}), flush=True)


def main() -> None:
    """Print a line about all three."""
    import harness
    from hosts import Hosts

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=10)
    options = parser.parse_args()
    size = options.megabytes * 1_000_000
    here = Path(__file__).resolve().parent
    environment = os.environ | {"PYTHONPATH": f"{here}:{here.parent / 'src'}", "RAY_USAGE_STATS_ENABLED": "0"}
    start = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start"]
    start += ["--object-store-memory", "400000000", "--num-cpus", "1"]
    calls: dict[str, list[float]] = {"ray": [], "client": []}
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place,
        tempfile.TemporaryDirectory() as data,
        Hosts(Path(data), 3) as hosts,
    ):
        head, there, apart = hosts
        quiet: dict[str, Any] = {"env": environment, "stderr": subprocess.DEVNULL}
        words = ["--head", "--port", "6399", "--include-dashboard=false", "--temp-dir", place]
        head.run([*start, *words, "--node-ip-address", head.address], **quiet)
        words = ["--address", f"{head.address}:6399", "--resources", '{"there": 1}']
        there.run([*start, *words, "--node-ip-address", there.address], **quiet)

        def by_wire() -> float:
            receiving = head.start([sys.executable, __file__, "receive", head.address, str(size)], env=environment)
            assert receiving.stdout is not None and receiving.stdout.readline()
            sending = there.start([sys.executable, __file__, "send", head.address, str(size)], env=environment)
            found = json.loads(receiving.stdout.readline())
            receiving.wait()
            sending.wait()
            return float(found["MB_per_s"])

        def by_ray(name: str, host: Any, address: str) -> float:
            found = json.loads(host.run([sys.executable, __file__, "get", address, str(size)], **quiet))
            calls[name].append(found["call_us"])
            return float(found["MB_per_s"])

        contenders: dict[str, Callable[[], float]] = {
            "wire": by_wire,
            "ray": partial(by_ray, "ray", head, f"{head.address}:6399"),
            "client": partial(by_ray, "client", apart, f"ray://{head.address}:10001"),
        }
        outcome = harness.alternate(contenders, options.rounds)
    harness.report(
        f"finished batches of {options.megabytes} MB from another host",
        ratio=outcome.ratio("wire", "ray"),
        MB_per_s=outcome.medians(),
        call_us={name: statistics.median(some) for name, some in calls.items()},
    )


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in ("send", "receive", "get"):
        {"send": send, "receive": receive, "get": get}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    else:
        main()
