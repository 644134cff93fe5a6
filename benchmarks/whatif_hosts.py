"""Does `stoker whatif --hosts` tell the truth? What it predicts from a profile of one host, and real hosts with slow links.

`stoker analyze` measures a training script on one host, with its limited disk and cores. From that profile `whatif`
predicts an epoch on all hosts, for each rate of their links. Then all hosts run (`partitioned`): epochs from the third on
count, when everything is where it stays. `ratio` is the real time to the predicted one; `smallest` is the real time to what
the slower of link and disk allows.

    sudo python benchmarks/whatif_hosts.py [--hosts 2] [--cache 0.55] [--links 50,100] [--disk 20MB/s]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import harness
from hosts import Host, Hosts
from partitioned import Folder, Job, folder_of_files
from stoker.units import parse_bytes

BATCH, WORKERS = 16, 2
PAYLOAD = 1448 / 1514
"""The part of a link's bits that TCP brings: the rest are headers."""


def train(folder: str) -> None:
    """The script that is analyzed: it reads what the hosts will read, and trains next to nothing."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    loader = torch.utils.data.DataLoader(
        Folder(folder, are_pictures=False), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    for _ in range(1000):
        for values, _ in loader:
            optimizer.zero_grad()
            model(values.float()).sum().backward()
            optimizer.step()


def analyze(host: Host, place: Path) -> Path:
    """The profile of the script on a host."""
    profile = place / "profile.json"
    words: list[str | Path] = ["-m", "stoker", "analyze", "--json", profile, __file__, "train", host.data]
    host.run([sys.executable, *words], env=os.environ | {"OMP_NUM_THREADS": "1"})
    return profile


def predict(profile: Path, *words: str) -> dict[str, Any]:
    """What `whatif` says of some hosts."""
    command: list[str | Path] = [sys.executable, "-m", "stoker", "whatif", profile, *words, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)["hosts"][0]
    return found


def main() -> None:
    """Print a line for each rate of the links."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument(
        "--cache", type=float, default=0.55, help="each host's cache, as a part of the data (default: 0.55)"
    )
    parser.add_argument("--files", type=int, default=1200)
    parser.add_argument("--size", default="128KB")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--disk", default="20MB/s", help="rate of each host's disk (default: 20MB/s)")
    parser.add_argument("--links", default="50,100", help="rates of the hosts' links in Mbit/s (default: 50,100)")
    parser.add_argument("--cores", type=float, default=0.6, help="cores of each host (default: 0.6)")
    options = parser.parse_args()
    with (
        folder_of_files(options.files, parse_bytes(options.size, "--size"), are_pictures=False) as data,
        tempfile.TemporaryDirectory() as place,
    ):
        total = sum(path.stat().st_size for path in data.rglob("*.bin"))
        disk = parse_bytes(options.disk.removesuffix("/s"), "--disk")
        profile: Path | None = None
        for link in map(int, options.links.split(",")):
            with Hosts(data.parent, options.hosts) as hosts:
                for host in hosts:
                    host.limit_disk(disk)
                    host.limit_cores(options.cores)
                    host.limit_link(link * 1_000_000)
                profile = profile or analyze(hosts[0], Path(place))
                brings = PAYLOAD * link * 125_000
                network = f"{int(brings)}B/s"
                words = ["--hosts", str(options.hosts), "--cache", str(options.cache), "--network", network]
                predicted = predict(profile, *words)
                job = Job(
                    hosts, data.parent, cache=int(total * options.cache), has_peers=True, workers=WORKERS, batch=BATCH
                )
                try:
                    epochs = [job.epoch(number) for number in range(options.epochs)][2:]
                finally:
                    job.close()
            times = [epoch["seconds"] for epoch in epochs]
            real, parts = statistics.median(times), predicted["tiers"]
            share = total / options.hosts
            smallest = max(parts["peer"] * share / brings, parts["storage"] * share / disk)
            harness.report(
                f"{options.hosts} hosts, {options.cache:.0%} each, disks of {options.disk}, links of {link} Mbit/s",
                ratio=real / predicted["epoch_s"],
                predicted_s=predicted["epoch_s"],
                real_s=real,
                smallest=real / smallest,
                spread=[min(times), max(times)],
                tiers=parts,
                local=statistics.mean(part for epoch in epochs for part in epoch["local"]),
                peers=statistics.mean(part for epoch in epochs for part in epoch["peers"]),
                storage=statistics.mean(epoch["storage"] for epoch in epochs),
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
    else:
        main()
