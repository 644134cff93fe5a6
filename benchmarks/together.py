"""Do jobs that are started by plan take as long as predicted, read the data once, and take less of the devices?

    python benchmarks/together.py [--pair 1] [--three] [--grid] [--anew] [--disk 10MB] [--files 4000]
                                  [--keep FOLDER --seconds 240]

Real jobs (files from a disk that is really limited: root, cgroup v1; a device that is a timed wait), of different compute
and epochs, under `stoker together`. Everything is cold in each run. One JSON line for each pair:

    error, of_at_once ...    planned from what an earlier run has measured
    first_...                the first run of all, in which the jobs are measured while one of them does its work
    measuring                how long the other one ran to be measured, over that run's makespan
    end_error                one after the other, against its prediction
    of_best                  with `--grid`: the planned makespan over the best of ten offsets, a tenth of the makespan apart

`--three` runs three jobs, `--anew` jobs that make their loader anew for each epoch. With `--keep` what was run is kept: the
same command goes on where it was stopped, or where `--seconds` were over. It has a /dev/shm of its own: other jobs of this
user would share its reading process, which would not be held to the limit of the disk.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PAIRS = (((40, 1), (20, 1)), ((60, 1), (30, 2)), ((20, 2), (60, 1)), ((30, 2), (30, 2)))
"""Milliseconds of compute for a batch and epochs, of both jobs."""
APART = "STOKER_BENCHMARK_APART"
THREE = ((20, 1), (30, 1), (40, 1))
SCRIPT = Path(__file__).parents[1] / "tests" / "scripts" / "paired.py"


class Bench:
    """One folder of data on a slow disk, and runs of jobs over it."""

    def __init__(self, options: argparse.Namespace, place: Path, join: Any, counts: Path) -> None:
        self._options, self._data, self._join, self._counts = options, place / "data", join, counts
        self._bytes = sum(path.stat().st_size for path in self._data.iterdir())
        self._done = place / "runs.json"
        self._until = time.monotonic() + options.seconds

    def run(self, jobs: Any, *words: object) -> dict[str, Any]:
        """What became of jobs, now or when it was run before."""
        key = json.dumps([jobs, ["--anew"] * self._options.anew, list(map(str, words))])
        done: dict[str, Any] = json.loads(self._done.read_text()) if self._done.exists() else {}
        if key not in done:
            if time.monotonic() > self._until:
                raise SystemExit(f"stopped after {self._options.seconds} s: run it again to go on")
            done[key] = self._run(jobs, *words)
            self._done.write_text(json.dumps(done))
        found: dict[str, Any] = done[key]
        return found

    def _run(self, jobs: Any, *words: object) -> dict[str, Any]:
        self._make_cold()
        script = f"{SCRIPT} {self._data} --batch {self._options.batch}{' --anew' * self._options.anew}"
        lines = [f"{script} --compute {ms} --epochs {epochs}" for ms, epochs in jobs]
        out = self._data.parent / "out.json"
        cache = f"{int(1.2 * self._bytes)}B"
        command = [sys.executable, "-m", "stoker", "together", *lines, "--cache", cache, "--json", str(out)]
        before, began = self._delivered(), time.monotonic()
        done = subprocess.run([*command, *map(str, words)], preexec_fn=self._join, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{done.stderr}\n{done.stdout}")
        document: dict[str, Any] = json.loads(out.read_text())
        measured = re.search(r"measured .* in ([\d.]+) s beside", done.stderr)
        document["measuring_s"] = float(measured[1]) if measured else 0.0
        document["took_s"] = time.monotonic() - began
        document["datasets"] = (self._delivered() - before) / self._bytes
        document["load"] = os.getloadavg()[0]
        return document

    def _delivered(self) -> int:
        return sum(int(line.split()[-1]) for line in self._counts.read_text().splitlines() if " Read " in line)

    def _make_cold(self) -> None:
        from stoker.cache.shelf import Shelf

        for cache in Shelf().caches():
            if cache.name == str(self._data):
                Shelf().remove(cache)
        for path in self._data.iterdir():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def row(bench: Bench, jobs: Any, *, grid: bool) -> dict[str, Any]:
    first = bench.run(jobs, "--again")
    chosen = bench.run(jobs)
    at_once = bench.run(jobs, "--offset", 0)
    found = {
        "question": f"jobs of (ms, epochs) {' and '.join(map(str, jobs))} together",
        "order": chosen["order"],
        "offset_s": round(chosen["offset_s"], 1),
        "predicted_s": round(chosen["predicted"]["makespan_s"], 2),
        "real_s": round(chosen["real"]["makespan_s"], 2),
        "error": _error(chosen),
        "at_once_s": round(at_once["real"]["makespan_s"], 2),
        "at_once_error": _error(at_once),
        "datasets": round(chosen["datasets"], 4),
        "at_once_datasets": round(at_once["datasets"], 4),
        "of_at_once": round(chosen["real"]["makespan_s"] / at_once["real"]["makespan_s"], 4),
        "of_sequential": round(chosen["real"]["makespan_s"] / chosen["sequential_s"], 4),
        "times_of_at_once": round(sum(chosen["real"]["times_s"]) / sum(at_once["real"]["times_s"]), 4),
        "first_s": round(first["real"]["makespan_s"], 2),
        "first_error": _error(first),
        "first_of_at_once": round(first["real"]["makespan_s"] / at_once["real"]["makespan_s"], 4),
        "first_times_of_at_once": round(sum(first["real"]["times_s"]) / sum(at_once["real"]["times_s"]), 4),
        "first_datasets": round(first["datasets"], 4),
        "measuring_s": round(first["measuring_s"], 1),
        "measuring": round(first["measuring_s"] / first["real"]["makespan_s"], 3),
        "load": [round(one["load"], 1) for one in (first, chosen, at_once)],
    }
    if len(jobs) > 2 or not grid:
        return found
    sign = -1 if chosen["order"][0] == "B" else 1
    whole = chosen["predicted"]["makespan_s"]
    spans = [at_once, *(bench.run(jobs, "--offset", sign * round(part * whole / 10, 2)) for part in range(1, 10))]
    seconds = [one["real"]["makespan_s"] for one in spans]
    end = bench.run(jobs, "--offset", sign * round(chosen["predicted"]["times_s"][sign < 0], 2))
    return found | {
        "grid_s": [round(span, 2) for span in seconds],
        "grid_errors": [_error(one) for one in spans],
        "grid_datasets": [round(one["datasets"], 4) for one in spans],
        "of_best": round(chosen["real"]["makespan_s"] / min(seconds), 4),
        "first_of_best": round(first["real"]["makespan_s"] / min(seconds), 4),
        "end_error": _error(end),
    }


def _error(document: dict[str, Any]) -> float:
    real_s: float = document["real"]["makespan_s"]
    predicted_s: float = document["predicted"]["makespan_s"]
    return round(real_s / predicted_s - 1, 4)


def be_apart() -> None:
    """Go on with a /dev/shm of one's own, once."""
    if os.getuid() == 0 and APART not in os.environ:
        os.environ[APART] = "1"
        mount = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", sys.executable, *sys.argv]
        os.execvp(words[0], words)


def main() -> None:
    be_apart()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.slow_disk import slow_disk

    from stoker.units import parse_bytes

    parser = argparse.ArgumentParser()
    parser.add_argument("--disk", default="10MB", help="bytes per second (default: %(default)s)")
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pair", type=int, help="one of the four, from 1 on (default: all)")
    parser.add_argument("--three", action="store_true", help="three jobs instead of pairs")
    parser.add_argument("--anew", action="store_true", help="jobs make their loader anew for each epoch")
    parser.add_argument("--grid", action="store_true", help="each pair at ten offsets, too: six minutes for each")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep data and runs there, and use what is there")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no further run after so long")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        place = (options.keep or Path(name)).resolve()
        os.environ["XDG_CACHE_HOME"] = str(place / "kept")
        if not (data := place / "data").exists():
            data.mkdir(parents=True)
            for number in range(options.files):
                (data / f"{number:06}").write_bytes(os.urandom(48 * 1024))
            os.sync()
        with slow_disk(data, parse_bytes(options.disk, "--disk")) as join:
            if join is None:
                raise SystemExit("a slow disk needs root, and the blkio controller of cgroup v1")
            counts = Path(f"/sys/fs/cgroup/blkio/stoker-test-{os.getpid()}/blkio.throttle.io_service_bytes")
            # Libraries that nobody has used yet would be read through the same slow disk.
            subprocess.run([sys.executable, "-c", "import torch, stoker.torch, stoker.cli"], check=True)
            bench = Bench(options, place, join, counts)
            pairs = PAIRS if options.pair is None else PAIRS[options.pair - 1 : options.pair]
            for jobs in [THREE] if options.three else pairs:
                print(json.dumps(row(bench, jobs, grid=options.grid)), flush=True)


if __name__ == "__main__":
    main()
