"""Does reading ahead for queued batches hide a slow disk behind preparing, and cost nothing where it cannot help?

    python benchmarks/readers.py [--disk 20MB] [--latency 20] [--files 800] [--workers 2] [--cache 1.2] [--turns 3]

Pictures in JPEG, decoded by PIL and cropped, from a disk that is really limited (root, cgroup v1) or from a folder where
every read takes milliseconds (--latency; root, /dev/fuse). Everything is cold in each turn, with and without readers. One
JSON line: pictures per second of the cold epoch for both, of storage alone and of preparing alone; `of_limit` is the rate
over the smaller of these two. `--cache 0.2` is a cache for a fifth of the data: the rest is staged, or with `--pages`
read into the kernel's page cache instead. `--computed` is a dataset that lists no files, and makes two paths of every
index: what it opens is recorded in the first epoch, so give it `--epochs 2`. `cpu_s` is the processor time of the keeper
and of the job beside it over all epochs, and of the job without readers.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

import stoker
from stoker.keeper.view import keepers
from stoker.units import parse_bytes
from workloads import jpeg


class Pictures(Dataset[Any]):
    """As torchvision's ImageFolder: `samples` has the paths."""

    def __init__(self, folder: str) -> None:
        self.samples = [(os.path.join(folder, name), 0) for name in sorted(os.listdir(folder))]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        with open(self.samples[index][0], "rb") as file:
            picture = Image.open(file).convert("RGB")
        return np.asarray(picture.crop((0, 0, 224, 224))), index


class Computed(Pictures):
    """Lists nothing: a sample is a picture and another one, whose names follow from the index."""

    def __init__(self, folder: str) -> None:
        self.folder, self.count = folder, len(os.listdir(folder)) // 2

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        crops = []
        for number in (2 * index, 2 * index + 1):
            with open(f"{self.folder}/{number:06}.jpg", "rb") as file:
                crops.append(np.asarray(Image.open(file).convert("RGB").crop((0, 0, 224, 224))))
        return np.concatenate(crops), index


def make(folder: Path, count: int) -> None:
    contents = [jpeg(seed) for seed in range(16)]
    for number in range(count):
        path = folder / f"{number:06}.jpg"
        path.write_bytes(contents[number % 16] + bytes([number % 251]) * (number % 7))
        os.utime(path, (1e9, 1e9))
    os.sync()


def make_cold(folder: str) -> int:
    size = 0
    for entry in os.scandir(folder):
        descriptor = os.open(entry.path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        size += os.fstat(descriptor).st_size
        os.close(descriptor)
    return size


def child(options: Any) -> None:
    """One cold epoch, then a warm one if the cache holds all."""
    torch.set_num_threads(1)
    dataset: Any = (Computed if options.computed else Pictures)(options.data)
    size = make_cold(options.data)
    loader = stoker.DataLoader(
        dataset, options.batch, shuffle=True, num_workers=options.workers, cache=int(options.cache * size) + (1 << 20)
    )
    rates = []
    for _ in range(options.epochs):
        make_cold(options.data)
        began, seen = time.monotonic(), 0
        for batch, _ in loader:
            seen += len(batch)
            if options.compute:
                time.sleep(options.compute)
        rates.append(seen / (time.monotonic() - began))
        assert seen == len(dataset)
    stats = loader.stats()
    found = {"rates": rates, "read_ahead": stats.read_ahead, "misses": stats.misses, "hits": stats.hits}
    found["keeper_cpu_s"] = sum(map(cpu_s, [keeper.pid for keeper in keepers()]))
    loader.close()
    own, workers = os.times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    found["other_cpu_s"] = own.user + own.system + workers.ru_utime + workers.ru_stime
    print(json.dumps(found))


def cpu_s(pid: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def storage_rate(data: str, join: Any, readers: int) -> float:
    """Files per second from storage alone."""
    code = (
        "import sys, os, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "paths = [e.path for e in os.scandir(sys.argv[1])]\nbegan = time.monotonic()\n"
        "with ThreadPoolExecutor(int(sys.argv[2])) as pool:\n"
        "    list(pool.map(lambda path: len(open(path, 'rb').read()), paths))\n"
        "print(len(paths) / (time.monotonic() - began))"
    )
    make_cold(data)
    out = subprocess.run([sys.executable, "-c", code, data, str(readers)], preexec_fn=join, stdout=-1, check=True)
    return float(out.stdout)


def run(options: Any, data: str, join: Any, **environment: str) -> dict[str, Any]:
    words = [sys.executable, __file__, "--data", data]
    for name in ("batch", "workers", "cache", "epochs", "compute"):
        words += [f"--{name}", str(getattr(options, name))]
    words += ["--computed"] * options.computed
    out = subprocess.run(words, preexec_fn=join, stdout=-1, check=True, env={**os.environ, **environment})
    found: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    subprocess.run([sys.executable, "-m", "stoker", "cache", "clear"], stdout=-1, check=True)
    return found


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.latent_folder import latent_folder
    from tests.slow_disk import slow_disk

    parser = argparse.ArgumentParser()
    parser.add_argument("--disk", help="bytes per second of the disk, as 20MB; default: as it is")
    parser.add_argument("--latency", type=float, default=0.0, help="milliseconds of every read")
    parser.add_argument("--files", type=int, default=800)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cache", type=float, default=1.2, help="room in the cache, as part of the data")
    parser.add_argument("--computed", action="store_true", help="a dataset that lists no files")
    parser.add_argument("--pages", action="store_true", help="no staging: the page cache instead")
    parser.add_argument("--compute", type=float, default=0.0, help="seconds of training for a batch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.data:
        child(options)
        return
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        make(folder, options.files)
        disk = slow_disk(folder, parse_bytes(options.disk, "disk")) if options.disk else nullcontext(None)
        latent = latent_folder(folder, options.latency / 1e3) if options.latency else nullcontext(None)
        with disk as join, latent as mounted:
            if (options.disk and join is None) or (options.latency and mounted is None):
                raise SystemExit("needs root, and the blkio controller of cgroup v1 or /dev/fuse")
            data = str(folder if mounted is None else mounted.path)
            found: dict[str, list[dict[str, Any]]] = {"readers": [], "none": []}
            pages = {"STOKER_STAGING": "0"} if options.pages else {}
            for _ in range(options.turns):
                found["readers"].append(run(options, data, join, STOKER_READERS=str(options.readers), **pages))
                found["none"].append(run(options, data, join, STOKER_READERS="0"))
            rates = {name: statistics.median(one["rates"][-1] for one in each) for name, each in found.items()}
            stored = storage_rate(data, join, options.readers)
        warm = argparse.Namespace(**{**vars(options), "epochs": 2, "cache": 1.2, "compute": 0.0})
        prepared = run(warm, str(folder), None, STOKER_READERS="0")["rates"][-1]
    limit = min(stored, prepared, options.batch / options.compute if options.compute else float("inf"))
    ahead = [round(one["read_ahead"] / max(1, one["misses"]), 2) for one in found["readers"]]
    result = {
        **{f"{name}_per_s": round(rate, 1) for name, rate in rates.items()},
        "storage_per_s": round(stored, 1),
        "preparing_per_s": round(prepared, 1),
        "ratio": round(
            statistics.median(
                a["rates"][-1] / b["rates"][-1] for a, b in zip(found["readers"], found["none"], strict=True)
            ),
            3,
        ),
        "of_limit": {name: round(rate / limit, 3) for name, rate in rates.items()},
        "ahead": ahead,
        "cpu_s": {
            "keeper": round(statistics.median(one["keeper_cpu_s"] for one in found["readers"]), 2),
            "beside it": round(statistics.median(one["other_cpu_s"] for one in found["readers"]), 2),
            "without": round(statistics.median(one["other_cpu_s"] for one in found["none"]), 2),
        },
        "options": {name: value for name, value in vars(options).items() if name != "data"},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
