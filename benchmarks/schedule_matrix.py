"""Is a job as fast with other cores and caches as its matrix says? First the matrix, then real runs at ten other points.

    python benchmarks/schedule_matrix.py [--profile FILE]   the matrix by `stoker schedule profile`, then the points
    python benchmarks/schedule_matrix.py --against FILE     the points alone, against a matrix that was kept

Root and cgroup v1 are needed: cores are limited by a quota, the disk by blkio. A job reads files, spends processor time on
each, and trains; the data is in memory while its matrix is measured. A point has some CPUs, each a part of a core, and a
cache that holds a part of the data; nothing else of it is in memory. None of the points was measured for the matrix, except
by chance its count of CPUs. The rate is that of whole epochs, their starts included, the median of the third to the fifth:
a cache's keeper starts beside the first one, and takes its processor time out of the job's cores. All epochs are told.

How fast a core is itself (`processor`) is measured before and after each run: neighbours that this machine does not know of
make it slower or faster by a fifth, for minutes. A run with a core that was more than 5 % off the one of the matrix is made
again, at most three times; all are told, and the one with the nearest core counts.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cache_epochs import limited as disk_limited
from stoker.measure import files
from stoker.schedule.job import Server
from stoker.schedule.profiles import read_profiles
from stoker.schedule.quota import limited

FILES, SIZE, BATCH = 1200, 96 << 10, 8
DISK = 20_000_000
CORE, CPUS = 0.15, 8
EPOCHS = 5
TRIES = 4
OFF = 0.05
SCRIPT = """
import argparse, hashlib, os, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self, folder, forget):
        self.paths, self.forget = sorted(Path(folder).glob("*.bin")), forget
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        raw = self.paths[index].read_bytes()
        descriptor = os.open(self.paths[index], os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED if self.forget else os.POSIX_FADV_NORMAL)
        os.close(descriptor)
        digest = hashlib.pbkdf2_hmac("sha256", raw[:64], b"sample", 3000, 64)
        return torch.frombuffer(bytearray(digest), dtype=torch.uint8).float()

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--epochs", type=int, default=100000)
parser.add_argument("--forget", action="store_true")
options = parser.parse_args()
torch.set_num_threads(1)
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Files(options.folder, options.forget), BATCH, shuffle=True, num_workers=2)
for _ in range(options.epochs):
    began = time.perf_counter()
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.03)
    print(len(loader) / (time.perf_counter() - began), flush=True)
""".replace("BATCH", str(BATCH))


def paths(folder: Path) -> list[str]:
    """The files of the data."""
    return [str(path) for path in folder.glob("*.bin")]


def processor() -> float:
    """Samples that a core prepares in a second of its time."""

    def rate() -> float:
        began, count = time.process_time(), 0
        while time.process_time() - began < 0.4:
            hashlib.pbkdf2_hmac("sha256", bytes(64), b"sample", 3000, 64)
            count += 1
        return count / (time.process_time() - began)

    return statistics.median(rate() for _ in range(5))


def profile(folder: Path, script: Path, target: Path) -> None:
    """Write the job's matrix, measured with the data in memory, on a limited disk."""
    files.warm(paths(folder))
    before = processor()
    options = ["--core", str(CORE), "--cpus", str(CPUS), "-o", str(target)]
    with disk_limited(str(folder), DISK, None) as group:
        command = [sys.executable, "-m", "stoker", "schedule", "profile", *options, str(script), str(folder)]
        subprocess.run(command, check=True, preexec_fn=group.join, stdout=sys.stderr)
    speeds = before, processor()
    document = json.loads(target.read_text()) | {"processor": statistics.mean(speeds), "processors": speeds}
    target.write_text(json.dumps(document))


def real(folder: Path, script: Path, cpus: int, part: float) -> list[float]:
    """Iterations per second of each epoch with so many CPUs, and so much of the data in a cache."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        plan = Path(place, "plan.toml")
        size = round(part * FILES) * SIZE
        plan.write_text("version = 1\n" + (f'[cache]\ncapacity_bytes = {size}\ndir = "{place}"\n' if size else ""))
        files.cool(paths(folder), sync=True)
        as_leases = ["--seed", "1", "--checkpoint", str(Path(place, "saved"))]
        words = [sys.executable, "-m", "stoker", "run", "--plan", str(plan), *as_leases, "--", str(script), str(folder)]
        with disk_limited(str(folder), DISK, None) as group, limited(f"matrix-{os.getpid()}", cpus * CORE) as cores:
            assert cores is not None, "the number of cores cannot be limited here"
            command = [*words, "--epochs", str(EPOCHS), "--forget"]
            done = subprocess.run(command, capture_output=True, text=True, preexec_fn=group.join)
        assert done.returncode == 0, done.stderr
        return [float(word) for word in done.stdout.split()]


def check(kept: Path, folder: Path, script: Path, options: argparse.Namespace) -> None:
    """Measure the points, and tell how far off the matrix is."""
    matrix = read_profiles(kept, [Server("", 1, 3.0, 1.0)])["job"].matrix
    document = json.loads(kept.read_text())
    known, known_processor = next(iter(document["profiles"]["models"].values()))["measured"], document["processor"]
    grid = itertools.product(range(1, CPUS + 1), (0.0, 0.25, 0.5, 0.75, 1.0))
    others = [(cpus, part) for cpus, part in grid if part < 1 or str(cpus) not in known]
    errors = []
    for cpus, part in random.Random(options.seed).sample(others, options.points):
        assert matrix.reads is not None
        said = matrix.rate(cpus, matrix.reads.process_gb + part * matrix.reads.dataset_gb)
        runs: list[tuple[float, list[float]]] = []
        speed = processor()
        while not runs or (len(runs) < TRIES and abs(runs[-1][0] - 1) > OFF):
            rates = real(folder, script, cpus, part)
            before, speed = speed, processor()
            runs.append(((before + speed) / 2 / known_processor, rates))
        seen = statistics.median(min(runs, key=lambda run: abs(run[0] - 1))[1][2:])
        errors.append(abs(said / seen - 1))
        row = {"cpus": cpus, "cached": part, "said": round(said, 3), "seen": round(seen, 3), "ratio": round(said / seen, 3)}
        told = [{"processor": round(by, 3), "epochs": [round(one, 3) for one in rates]} for by, rates in runs]
        print(json.dumps(row | {"runs": told}), flush=True)
    found = {"median_error": round(statistics.median(errors), 4), "worst_error": round(max(errors), 4)}
    print(json.dumps(found | {"points": len(errors), "load": os.getloadavg()[0]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, metavar="FILE")
    parser.add_argument("--against", type=Path, metavar="FILE")
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder, script = Path(name, "data"), Path(name, "job.py")
        folder.mkdir()
        script.write_text(SCRIPT)
        for number in range(FILES):
            path = folder / f"{number:05d}.bin"
            path.write_bytes(os.urandom(SIZE))
            os.utime(path, (1, 1))
        os.sync()
        kept = options.against or options.profile or Path(name, "matrix.json")
        if not options.against:
            profile(folder, script, kept)
            print(json.dumps({"matrix": json.loads(kept.read_text()), "load": load}), flush=True)
        check(kept, folder, script, options)


if __name__ == "__main__":
    main()
