"""How much of a link does training on pictures use that lie in another host's memory? Two real hosts (see `hosts`).

The second host reads everything once, and keeps it. Then the first, whose own cache holds next to nothing, trains for some
epochs. `ratio` is the rate at which it got pictures, as a part of what one TCP connection gets over the same link. It means
something only if the host could prepare more than the link brings: `prepared` is what it prepares from a cache of its own.
`carried` is what went over the link, as a part of what was needed; `processor_ms` is what each host took for a sample.
With `--size` there are files of random bytes, of which next to nothing is looked at: so the way of the bytes is the limit.
With `--photographs` pictures are those of a camera, which are decoded at a quarter of their size: so much less processor
time goes into each byte of theirs.

    sudo python benchmarks/from_peer.py [--link 1000] [--files 3000] [--workers 7] [--size 100KB] [--photographs]
"""

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
from partitioned import folder_of_files
from stoker.units import parse_bytes

PORT = 7001
_SUMMED_BYTES = 1024
_SENT_S = 2
_PLAIN = """
import socket, sys, time
listens, host, size = sys.argv[1] == "listen", sys.argv[2], int(sys.argv[3])
if listens:
    with socket.create_server((host, 7002)) as server:
        print("ready", flush=True)
        line, _ = server.accept()
        content = bytes(1 << 20)
        while size > 0:
            line.sendall(content[:size])
            size -= len(content)
else:
    line, memory, got = socket.create_connection((host, 7002)), bytearray(1 << 20), 0
    began = time.perf_counter()
    while got < size:
        got += line.recv_into(memory)
    print(got / (time.perf_counter() - began))
"""


def plain_rate(first: Any, second: Any, sent: int) -> float:
    """Bytes per second that one connection brings from the second host to the first."""
    words = [sys.executable, "-c", _PLAIN]
    sender = second.start([*words, "listen", second.address, str(sent)])
    assert sender.stdout.readline() == "ready\n"
    rate = float(first.run([*words, "dial", second.address, str(sent)]))
    sender.wait()
    return rate


class Reader:
    """A host that reads all data in each epoch."""

    def __init__(
        self, host: Any, cache: int, peers: str, workers: int, environment: dict[str, str], *, are_pictures: bool
    ) -> None:
        asked = {"world": 1, "number": 0, "cache": cache, "peers": peers, "workers": workers, "batch": 32}
        asked |= {"pictures": are_pictures, "policy": "keep-first", "data": str(host.data), "summed_bytes": _SUMMED_BYTES}
        script = str(Path(__file__).with_name("partitioned.py"))
        self._process = host.start([sys.executable, script, json.dumps(asked)], stdin=-1, env=environment)
        assert self._process.stdout.readline() == "ready\n"

    def epoch(self, number: int) -> dict[str, Any]:
        """Read everything once."""
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Print a line."""
    from hosts import Hosts

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", type=int, default=1000, help="rate of both links in Mbit/s (default: 1000)")
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", help="files of about this size that are only read, instead of pictures")
    parser.add_argument("--photographs", action="store_true", help="pictures of 2.7 MB, instead of 80 KB")
    options = parser.parse_args()
    are_pictures = options.size is None
    size = 0 if are_pictures else parse_bytes(options.size, "--size")
    files = folder_of_files(options.files, size, are_pictures=are_pictures, are_photographs=options.photographs)
    with files as data, tempfile.TemporaryDirectory() as name:
        total = sum(path.stat().st_size for path in data.rglob("*.bin"))
        secret = Path(name, "secret")
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        environment = os.environ | {"STOKER_SECRET_FILE": str(secret)}
        with Hosts(data.parent, 2) as hosts:
            for host in hosts:
                host.limit_link(options.link * 1_000_000)
                host.come_first()
            peers = ",".join(f"{host.name}:{PORT}" for host in hosts)
            link = plain_rate(hosts[0], hosts[1], options.link * 125_000 * _SENT_S)
            holder = Reader(hosts[1], 2 * total, peers, options.workers, environment, are_pictures=are_pictures)
            holder.epoch(0)
            prepared = options.files / holder.epoch(1)["seconds"]
            trainer = Reader(hosts[0], 1 << 20, peers, options.workers, environment, are_pictures=are_pictures)
            time.sleep(1)  # it learns what the other holds
            before, carried = hosts[0].bytes_read(), hosts[0].bytes_received()
            took_s = [host.processor_s() for host in hosts]
            epochs = [trainer.epoch(number) for number in range(1, options.epochs + 1)]
            storage, carried = hosts[0].bytes_read() - before, hosts[0].bytes_received() - carried
            took_s = [host.processor_s() - began for host, began in zip(hosts, took_s, strict=True)]
            trainer.close()
            holder.close()
    rates = [epoch["bytes_peer"] / epoch["seconds"] for epoch in epochs]
    harness.report(
        f"{'pictures' if are_pictures else 'files'} that another host holds, over {options.link} Mbit/s",
        ratio=statistics.median(rates) / link,
        link_bytes_per_s=link,
        samples_per_s={"over the link": statistics.median(options.files / epoch["seconds"] for epoch in epochs)},
        prepared=prepared,
        from_peer=epochs[-1]["hits_peer"] / options.files,
        storage=storage / total,
        carried=carried / total / options.epochs,
        processor_ms=[round(1000 * one / options.files / options.epochs, 3) for one in took_s],
        each=[round(rate / link, 3) for rate in rates],
    )


if __name__ == "__main__":
    main()
