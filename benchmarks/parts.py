"""Which part of the preparation should another host do? Two real hosts (see `hosts`), and three settings.

    disk   pictures in files, and the other host's disk delivers 2 MB/s           files should be read here
    link   recordings that are padded to ten times their length, 20 Mbit/s        samples should be collated here
    none   long files, 50 Mbit/s, a collate_fn that computes, more cores there    all should be done there

In each the training host alone comes first, then each part with a worker on the other host, then a loader that is told
neither the part nor how much. `chosen` is the part that it does, and `of_best` its rate against the best of the others.

    sudo python benchmarks/parts.py [--setting disk] [--part samples] [--part live] [--seconds 8] [--rounds 1]
"""

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

PORT = 7100
LIVE = "live"
PARTS = ("all", "prepare", "samples", LIVE)
HERE = 0.25
THERE = {"disk": (0.5, 1), "link": (0.5, 1), "none": (1.0, 2)}
"""Cores, and worker processes."""
DISK_BYTES = 2_000_000
LINKS = {"disk": 1000, "link": 20, "none": 50}
"""Mbit/s."""
FILES = 1500
BATCH = 16
_PADDED = 15_000
_DECIDES_S = 25
"""Seconds more, in which a loader measures and decides."""


class Pictures(Dataset[Any]):
    """JPEG pictures in files, decoded and cropped."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return FILES * 100

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(f"{self.folder}/{index % FILES}") as picture:
            pixels = np.asarray(picture.convert("RGB").crop((0, 0, 64, 64)), np.float32)
        return torch.from_numpy(pixels)


class Recordings(Dataset[Any]):
    """Short recordings in files, filtered."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return FILES * 100

    def __getitem__(self, index: int) -> Any:
        with open(f"{self.folder}/{index % FILES}", "rb") as file:
            wave = np.frombuffer(file.read(), np.int16).astype(np.float32)
        for _ in range(60):
            wave = np.fft.irfft(np.fft.rfft(wave) * np.float32(0.99), len(wave)).astype(np.float32)
        return torch.from_numpy(wave[: 750 + index * 7919 % 1500].copy())


def stacked(samples: list[torch.Tensor]) -> torch.Tensor:
    """As long as the samples."""
    return torch.stack(samples)


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    """To the longest that a model takes, ten times the usual one."""
    whole = torch.zeros(len(samples), _PADDED)
    for row, sample in zip(whole, samples, strict=True):
        row[: len(sample)] = sample
    return whole


def mixed(samples: list[torch.Tensor]) -> torch.Tensor:
    """Pictures mixed with each other, smoothed and normalised."""
    batch = torch.stack(samples)
    batch = 0.7 * batch + 0.3 * batch.flip(0)
    for _ in range(40):
        batch = torch.fft.irfft2(torch.fft.rfft2(batch, dim=(1, 2)) * 0.98, dim=(1, 2))
    return (batch - batch.mean((1, 2), keepdim=True)) / (batch.std((1, 2), keepdim=True) + 1e-3)


SETTINGS: dict[str, tuple[Any, Any]] = {
    "disk": (Pictures, stacked),
    "link": (Recordings, padded),
    "none": (Pictures, mixed),
}


def write_files(setting: str, folder: Path) -> None:
    """The files of a setting."""
    import workloads

    size = {"disk": (500, 375), "none": (1000, 750)}.get(setting)
    draws = np.random.default_rng(0)
    bank = [workloads.jpeg(seed, *size) if size else draws.bytes(4500) for seed in range(16)]
    for number in range(FILES):
        (folder / str(number)).write_bytes(bank[number % len(bank)])


def be_a_trainer(asked: dict[str, Any]) -> None:
    """Train for a while, and print how many samples a second came from each host."""
    import stoker

    torch.set_num_threads(1)
    kind, collate_fn = SETTINGS[asked["setting"]]
    plan = stoker.Plan() if asked["part"] == LIVE else stoker.Plan(offload_ratio=1.0, offload_part=asked["part"] or None)
    offload = f"tcp://{asked['address']}:{PORT}" if asked["part"] else None
    loader = stoker.DataLoader(
        kind(asked["folder"]),
        BATCH,
        shuffle=True,
        num_workers=1,
        prefetch_factor=4,
        seed=asked["seed"],
        collate_fn=collate_fn,
        offload=offload,
        plan=plan,
    )
    began = remote_before = samples = 0.0
    start = time.perf_counter()
    for batch in loader:
        at = time.perf_counter()
        if not began and (at - start > asked["settle"] or (at - start > 3 and not offload)):
            if offload and not loader.stats().remote and at - start < 60:
                continue  # until the other has come
            began, samples, remote_before = at, 0, loader.stats().remote
            continue
        samples += len(batch)
        if began and at - began > asked["seconds"]:
            break
    there = (loader.stats().remote - remote_before) / (at - began)
    part = loader.stats().remote_part if loader.stats().remote_ratio else None
    print(json.dumps({"here": samples / (at - began) - there, "there": there, "part": part}), flush=True)
    loader.close()


def forget_files(host: Any) -> None:
    """Take the data out of a host's page cache."""
    code = (
        "import os, sys\n"
        "for entry in os.scandir(sys.argv[1]):\n"
        "    with open(entry) as file:\n"
        "        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)\n"
    )
    host.run([sys.executable, "-c", code, host.data])


def measure(setting: str, parts: list[str], options: Any) -> dict[str, Any]:
    """What each part reaches in a setting."""
    from hosts import with_secret

    found: dict[str, list[dict[str, Any]]] = {part: [] for part in ("", *parts)}
    with with_secret(2, partial(write_files, setting)) as (hosts, environment):
        first, second = hosts
        for host, cores in ((first, HERE), (second, THERE[setting][0])):
            host.limit_cores(cores)
            host.limit_link(LINKS[setting] * 1_000_000)
        if setting == "disk":
            second.limit_disk(DISK_BYTES)
        asked = {"setting": setting, "address": first.address, "folder": str(first.data)}
        asked |= {"seconds": options.seconds, "settle": options.settle}
        for seed in range(options.rounds):
            for part, rates in found.items():
                forget_files(second)
                words = [sys.executable, "-m", "stoker", "worker", f"tcp://{first.address}:{PORT}"]
                words += ["-n", str(THERE[setting][1])]
                workers = second.start(words, env=environment) if part else None
                one = asked | {"part": part, "seed": seed}
                one["settle"] = options.settle + (_DECIDES_S if part == LIVE else 0)
                rates.append(json.loads(first.run([sys.executable, __file__, json.dumps(one)], env=environment)))
                print(json.dumps({"part": part} | rates[-1]), file=sys.stderr, flush=True)
                if workers is not None:
                    second.stop(workers)
    sums = {
        part or "alone": statistics.median(one["here"] + one["there"] for one in rates) for part, rates in found.items()
    }
    others = sorted((sums[part] for part in parts if part != LIVE), reverse=True)
    best = max((part for part in sums if part != LIVE), key=lambda part: sums[part])
    report: dict[str, Any] = {"setting": setting, "samples_per_s": sums, "best": best}
    report["there"] = {part: statistics.median(one["there"] for one in rates) for part, rates in found.items() if part}
    report["against_the_next"] = others[0] / others[1] if len(others) > 1 else None
    if LIVE in found and others:
        report["chosen"], report["of_best"] = [one["part"] for one in found[LIVE]], sums[LIVE] / others[0]
    return report


def main() -> None:
    """Print a line about each setting."""
    import harness

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=SETTINGS, action="append", help="only this one (default: all)")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one (default: all)")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--settle", type=float, default=6, help="seconds before anything counts (default: 6)")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    for setting in options.setting or SETTINGS:
        found = measure(setting, options.part or list(PARTS), options)
        harness.report(f"parts of the preparation: {setting}", ratio=found.pop("against_the_next"), **found)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        be_a_trainer(json.loads(sys.argv[1]))
    else:
        main()
