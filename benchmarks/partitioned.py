"""What do hosts gain that give each other what their caches hold? Real hosts (see `hosts`), each with a disk of its own.

Every host reads another random share of the data in each epoch, as the ranks of a job do. `storage` is what the disks
delivered in an epoch by the kernel's count, as a part of the data in whole blocks; `local` and `peers` are what came from
the host's own cache and from the others', as parts of what it used. `seconds` is the slowest host's epoch. The last line
has the second half of the epochs together, and with `--policy reuse-distance` what a replay of the same order finds.

    sudo python benchmarks/partitioned.py [--hosts 3] [--cache 0.35] [--files 600] [--disk 20MB/s] [--link 1000] [--jpeg]
"""

import argparse
import contextlib
import hashlib
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, DistributedSampler

import stoker
from stoker.units import parse_bytes

PORT = 7001


class Folder(Dataset[Any]):
    """Files of a folder: a checksum of each, or of its first bytes, or a picture that is decoded and cropped."""

    def __init__(self, root: str, *, are_pictures: bool, summed_bytes: int | None = None) -> None:
        self.samples = [(str(path), 0) for path in sorted(Path(root).rglob("*.bin"))]
        self.are_pictures, self.summed_bytes = are_pictures, summed_bytes

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.are_pictures:
            from PIL import Image

            with open(self.samples[index][0], "rb") as file:
                picture = Image.open(file)
                picture.draft("RGB", (224, 224))  # a large one is decoded at a part of its size
                return np.asarray(picture.convert("RGB").crop((0, 0, 224, 224))), index
        with open(self.samples[index][0], "rb") as file:
            summed = memoryview(file.read())[: self.summed_bytes]
            return np.frombuffer(hashlib.blake2b(summed, digest_size=8).digest(), np.uint8).copy(), index


def checksum_of(raw: memoryview, index: int, _: Any) -> tuple[Any, int]:
    """What `Folder` gives, of bytes that `stoker.Dataset` has read."""
    return np.frombuffer(hashlib.blake2b(raw, digest_size=8).digest(), np.uint8).copy(), index


def drop_from_page_cache(path: str) -> None:
    """Let the next read come from the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def be_a_host(asked: dict[str, Any]) -> None:
    """One host's part: an epoch whenever a line comes in, and a line about it."""
    folder = Folder(asked["data"], are_pictures=asked["pictures"], summed_bytes=asked.get("summed_bytes"))
    dataset: Dataset[Any] = folder
    if asked["policy"] != "keep-first" and not asked["peers"]:  # a host for itself knows its order by a seed
        dataset = stoker.Dataset([path for path, _ in folder.samples], checksum_of)
    sampler: DistributedSampler[Any] = DistributedSampler(folder, asked["world"], asked["number"], seed=7)
    options: dict[str, Any] = {"cache": asked["cache"]} if asked["cache"] else {}
    if asked["peers"]:
        options["peers"] = asked["peers"]
    if asked["policy"] != "keep-first":
        options |= {"cache_policy": asked["policy"]} | ({} if asked["peers"] else {"seed": 1})
    loader = stoker.DataLoader(
        dataset,
        asked["batch"],
        sampler=sampler,
        num_workers=asked["workers"],
        persistent_workers=asked["workers"] > 0,
        **options,
    )
    before = loader.stats()
    for path, _ in folder.samples:
        os.stat(path)  # so that only contents are counted
    print("ready", flush=True)
    with loader:
        for line in sys.stdin:
            sampler.set_epoch(int(line))
            for path, _ in folder.samples:
                drop_from_page_cache(path)
            began, slowest, seen = time.perf_counter(), 0.0, []
            at = began
            for values, indices in loader:
                slowest = max(slowest, time.perf_counter() - at)
                seen += (
                    [[index, bytes(value).hex()] for index, value in zip(indices.tolist(), values.numpy(), strict=True)]
                    if not asked["pictures"]
                    else [[index, ""] for index in indices.tolist()]
                )
                at = time.perf_counter()
            seconds = time.perf_counter() - began
            now = loader.stats()
            counts = {
                name: getattr(now, name, 0) - getattr(before, name, 0)
                for name in ("hits", "misses", "bytes_cache", "bytes_storage", "hits_peer", "bytes_peer", "read_ahead")
            }
            before = now
            print(json.dumps({"seconds": seconds, "slowest": slowest, "seen": seen, **counts}), flush=True)


@contextlib.contextmanager
def folder_of_files(count: int, size: int, *, are_pictures: bool, are_photographs: bool = False) -> Iterator[Path]:
    """A folder with files to read, old enough to be kept."""
    chance = np.random.default_rng(5)
    pictures: list[bytes] = []
    if are_pictures:
        from workloads import jpeg, photograph

        pictures = [photograph(seed) for seed in range(16)] if are_photographs else [jpeg(seed) for seed in range(64)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "files")
        for number in range(count):
            place = folder / f"class{number % 7}"
            place.mkdir(parents=True, exist_ok=True)
            path = place / f"{number:05}.bin"
            if are_pictures:
                path.write_bytes(pictures[number % len(pictures)] + number.to_bytes(4, "big"))
            else:
                path.write_bytes(chance.bytes(int(size * (0.6 + 0.8 * chance.random()))))
            os.utime(path, (1_700_000_000, 1_700_000_000 + number))
        yield folder


class Job:
    """The same script on every host. `epoch` runs one epoch on all, and tells what came from where."""

    def __init__(
        self,
        hosts: Any,
        data: Path,
        *,
        cache: int,
        has_peers: bool,
        workers: int = 2,
        batch: int = 16,
        pictures: bool = False,
        policy: str = "keep-first",
        ranks: int = 1,
    ) -> None:
        self.ranks = ranks
        self.hosts, self.files = hosts, sorted(data.rglob("*.bin"))
        block = int(hosts[0].run(["stat", "-f", "-c", "%S", hosts[0].data]))  # a disk delivers whole blocks
        self.bytes = sum(-(-path.stat().st_size // block) * block for path in self.files)
        self.truth = (
            {}
            if pictures
            else {
                number: hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
                for number, path in enumerate(self.files)
            }
        )
        secret = Path(tempfile.gettempdir(), f"secret-{secrets.token_hex(4)}")
        descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, secrets.token_hex(32).encode())
        os.close(descriptor)
        self._secret = secret
        peers = ",".join(f"{host.name}:{PORT}" for host in hosts) if has_peers else ""
        environment = os.environ | {"STOKER_SECRET_FILE": str(secret)}
        asked = {"world": ranks * len(hosts), "cache": cache, "peers": peers, "workers": workers, "batch": batch}
        asked |= {"pictures": pictures, "policy": policy}
        self.processes = [
            host.start(
                [sys.executable, __file__, json.dumps(asked | {"number": number * ranks + rank, "data": str(host.data)})],
                stdin=-1,
                env=environment,
            )
            for number, host in enumerate(hosts)
            for rank in range(ranks)
        ]
        assert all(process.stdout.readline() == "ready\n" for process in self.processes)

    def begin(self, epoch: int, which: list[int] | None = None) -> None:
        """Let hosts begin an epoch."""
        for number in range(len(self.hosts)) if which is None else which:
            for process in self.processes[number * self.ranks : (number + 1) * self.ranks]:
                assert process.stdin is not None
                process.stdin.write(f"{epoch}\n")
                process.stdin.flush()

    def epoch(self, epoch: int) -> dict[str, Any]:
        """One epoch on all hosts. Raises AssertionError if a sample is missing, repeated or wrong."""
        before = [host.bytes_read() for host in self.hosts]
        self.begin(epoch)
        return self.end(before)

    def end(self, before: list[int]) -> dict[str, Any]:
        """Wait for the end of an epoch that was begun when the disks had delivered so much."""
        told = [json.loads(process.stdout.readline()) for process in self.processes]
        seen = [tuple(one) for host in told for one in host.pop("seen")]
        numbers = {number for number, _ in seen}
        assert numbers == set(range(len(self.files))), f"{len(self.files) - len(numbers)} samples are missing"
        assert len(seen) - len(numbers) < len(self.processes), "samples are repeated"
        assert all(self.truth[number] == value for number, value in seen if self.truth), "samples have wrong bytes"
        read = [host.bytes_read() - start for host, start in zip(self.hosts, before, strict=True)]
        uses = [host["hits"] + host["misses"] + host["hits_peer"] for host in told]
        return {
            "storage": sum(read) / self.bytes,
            "storage_by_host": [part / self.bytes for part in read],
            "local": [host["hits"] / max(1, use) for host, use in zip(told, uses, strict=True)],
            "peers": [host["hits_peer"] / max(1, use) for host, use in zip(told, uses, strict=True)],
            "seconds": max(host["seconds"] for host in told),
            "slowest": max(host["slowest"] for host in told),
        }

    def close(self) -> None:
        """End the job."""
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self.processes:
            process.wait()
        self._secret.unlink(missing_ok=True)


def settled(epochs: list[dict[str, Any]]) -> dict[str, Any]:
    """The epochs of the second half together: parts of all uses, and of the data; by host, and the largest to the mean."""
    last = epochs[len(epochs) // 2 :]
    local, peers, storage = (
        np.array([epoch[name] for epoch in last]).mean(axis=0) for name in ("local", "peers", "storage_by_host")
    )
    found = {"local": local.mean(), "peers": peers.mean(), "storage": storage.sum()}
    found |= {"most_storage_of_all": max(epoch["storage"] for epoch in epochs[1:])} if epochs[1:] else {}
    loads = {"local": local, "peers": peers, "storage": storage}
    uneven = {name: round(float(load.max() / load.mean()), 3) for name, load in loads.items() if load.mean() > 0}
    return {name: round(float(value), 4) for name, value in found.items()} | {"largest_to_mean": uneven}


def replayed(options: Any, data: Path, cache: int, has_peers: bool) -> dict[str, float]:
    """What a replay of the same order finds here, in the same epochs."""
    if options.policy == "keep-first":
        return {}
    from stoker.cache.replay import SimulatedCache, far_enough
    from stoker.cache.replay_hosts import replay_hosts
    from stoker.cache.shares import Shares
    from stoker.feed.route import distributed_ids

    sizes = [path.stat().st_size for path in sorted(data.parent.rglob("*.bin"))]
    sampler: DistributedSampler[Any] = DistributedSampler(range(len(sizes)), options.hosts * options.ranks, 0, seed=7)  # type: ignore[arg-type]
    host_of = [rank // options.ranks for rank in range(options.hosts * options.ranks)]
    shares = Shares(lambda epoch: distributed_ids(sampler, epoch), host_of)
    if not has_peers:
        ahead, hits, uses = far_enough(options.hosts), 0, 0
        alone = SimulatedCache(
            lambda epoch: shares.of_host(0, epoch), cache, options.policy, horizon=ahead, epochs=options.epochs
        )
        for epoch in range(options.epochs):
            for key in alone.begin(epoch).tolist():
                is_hit = alone.use(key, sizes[key]) is None
                if epoch >= options.epochs // 2:
                    hits, uses = hits + is_hit, uses + 1
        return {"replayed_local": round(hits / uses, 4)}
    total = replay_hosts(shares, [cache] * options.hosts, epochs=options.epochs, sizes=sizes).total(options.epochs // 2)
    return {"replayed_local": round(total.demand_hits / total.uses, 4)}


def main() -> None:
    """Print a line for each way to read."""
    import harness
    from hosts import Hosts

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument(
        "--cache", type=float, default=0.35, help="each host's cache, as a part of the data (default: 0.35)"
    )
    parser.add_argument("--files", type=int, default=600)
    parser.add_argument("--size", default="100KB")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--disk", help="rate of each host's disk, such as 20MB/s")
    parser.add_argument("--link", type=int, help="rate of each host's link in Mbit/s")
    parser.add_argument("--jpeg", action="store_true", help="pictures that are decoded, instead of checksums")
    parser.add_argument("--policy", default="keep-first", help="keep-first or reuse-distance")
    parser.add_argument("--ranks", type=int, default=1, help="processes on each host, with one cache for all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--without", action="store_true", help="first the same without peers")
    options = parser.parse_args()
    size = parse_bytes(options.size, "--size")
    with folder_of_files(options.files, size, are_pictures=options.jpeg) as data:
        total = sum(path.stat().st_size for path in data.rglob("*.bin"))
        for has_peers in [False, True] if options.without else [True]:
            with Hosts(data.parent, options.hosts) as hosts:
                for host in hosts:
                    if options.disk:
                        host.limit_disk(parse_bytes(options.disk.removesuffix("/s"), "--disk"))
                    if options.link:
                        host.limit_link(options.link * 1_000_000)
                    host.come_first()
                cache = int(total * options.cache)
                job = Job(
                    hosts,
                    data.parent,
                    cache=cache,
                    has_peers=has_peers,
                    workers=options.workers,
                    batch=options.batch,
                    pictures=options.jpeg,
                    policy=options.policy,
                    ranks=options.ranks,
                )
                try:
                    epochs = [job.epoch(number) for number in range(options.epochs)]
                finally:
                    job.close()
            name = f"{options.hosts} hosts, {options.cache:.0%} each, {'peers' if has_peers else 'no peers'}"
            for number, epoch in enumerate(epochs):
                harness.report(f"{name}, epoch {number + 1}", **epoch)
            harness.report(f"{name}, settled", **settled(epochs), **replayed(options, data, cache, has_peers))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        torch.set_num_threads(1)
        be_a_host(json.loads(sys.argv[1]))
    else:
        main()
