"""Do ranks that share their workers gain, where one of them has dearer samples, and lose nothing where all are alike?

    python benchmarks/ranks.py [--ranks 2] [--workers 1] [--dear 4] [--compute 0.03] [--steps 100] [--turns 3]
    python benchmarks/ranks.py --kind small --batch 256 --steps 2000                    # nothing to gain, nothing to lose
    python benchmarks/ranks.py --kind jpeg --ranks 4 --workers 4,4,3,3 --dear 3 --batch 64 --device cuda

Ranks meet after every step, as at an all-reduce. One JSON line: steps per second with `ranks="shared"` over those with a
loader each, in turns; and for both the part of iterations that were imbalanced: the slowest rank's wait for data and own
compute was longer than the fastest's by more than a tenth of the training time. `cpu_ratio` is the processor time of all
processes with `ranks="shared"` over that with a loader each: it tells more than the speed if others use the machine.
"""

import argparse
import io
import json
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from torch.utils.data import Dataset, DistributedSampler

import stoker
from workloads import jpeg


class Spun(Dataset[Any]):
    """Samples that keep a core busy for a time; those of rank 0 for longer (DistributedSampler without shuffling)."""

    def __init__(self, length: int, ranks: int, cost_s: float, dear: float) -> None:
        self.length, self.ranks, self.cost_s, self.dear = length, ranks, cost_s, dear

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        cost = self.cost_s * (self.dear if index % self.ranks == 0 else 1.0)
        until = time.thread_time() + cost
        while time.thread_time() < until:
            pass
        return torch.full((64,), float(index))


class Pictures(Dataset[Any]):
    """JPEG pictures that are decoded and cropped; those of rank 0 have more pixels."""

    def __init__(self, length: int, ranks: int, dear: float) -> None:
        self.length, self.ranks = length, ranks
        scale = dear**0.5
        self.files = [[jpeg(seed, int(500 * by), int(375 * by)) for seed in range(32)] for by in (scale, 1.0)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        content = self.files[index % self.ranks != 0][index // self.ranks % 32]
        picture = Image.open(io.BytesIO(content)).convert("RGB")
        return np.asarray(picture.crop((0, 0, 224, 224)))


class Small(Dataset[Any]):
    """Samples of 3 KB that cost next to nothing."""

    def __init__(self, length: int) -> None:
        self.rows = np.arange(length, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return np.full(768, self.rows[index], np.float32)


def rank(options: Any, number: int, mode: str, meet: Any, results: Any, done: Any) -> None:
    torch.set_num_threads(1)
    length = options.steps * options.batch * options.ranks
    if options.kind == "small":
        dataset: Any = Small(length)
    elif options.kind == "jpeg":
        dataset = Pictures(length, options.ranks, options.dear)
    else:
        dataset = Spun(length, options.ranks, options.cost / options.batch, options.dear)
    sampler: Any = DistributedSampler(dataset, options.ranks, number, shuffle=False)
    workers = [int(count) for count in options.workers.split(",")]
    on_gpu = options.device == "cuda"
    arguments: dict[str, Any] = {"num_workers": workers[number % len(workers)], "persistent_workers": True}
    arguments |= {"seed": 1, "ranks": None if mode == "own" else mode, "pin_memory": on_gpu}
    loader = stoker.DataLoader(dataset, options.batch, sampler=sampler, **arguments)
    weights = torch.randn(64, 3, 7, 7, device=options.device) if on_gpu else None
    waits, seen = [], []
    for epoch in range(2):  # the first starts everything
        meet.wait()
        began = time.perf_counter()
        asked = began
        for batch in loader:
            waits.append(time.perf_counter() - asked)
            if options.kind == "work":
                seen.append(batch[:, 0])
            if weights is not None:
                there = batch.to(options.device, non_blocking=True)
                torch.nn.functional.conv2d(there.permute(0, 3, 1, 2).float(), weights, stride=2)
                seen.append(there.sum(dtype=torch.int64).reshape(1).cpu().double())
            if options.compute:
                time.sleep(options.compute)
            if options.kind != "small":
                meet.wait()
            asked = time.perf_counter()
        meet.wait()
        took = time.perf_counter() - began
        if epoch == 0:
            waits.clear()
            cpu = _cpu_s()
    cpu = _cpu_s() - cpu
    sums = float(torch.cat(seen).sum()) if seen else 0.0
    results.put((number, took, waits, loader.stats().helped, sums, cpu))
    done.wait()
    loader.close()


def _cpu_s() -> float:
    """The processor time of this process and its workers until now."""
    own = psutil.Process()
    runs = [Path(f"/proc/{one.pid}/schedstat").read_text().split()[0] for one in (own, *own.children())]
    return sum(map(int, runs)) / 1e9


def measure(options: Any, mode: str) -> dict[str, Any]:
    os.environ["MASTER_PORT"] = str(os.getpid())
    processes: Any = multiprocessing.get_context("spawn" if options.device == "cuda" else "fork")
    meet, results, done = processes.Barrier(options.ranks), processes.Queue(), processes.Event()
    ranks = [processes.Process(target=rank, args=(options, n, mode, meet, results, done)) for n in range(options.ranks)]
    for one in ranks:
        one.start()
    found = sorted(results.get(timeout=300) for _ in ranks)
    memory = sum(child.memory_full_info().pss for child in psutil.Process().children(recursive=True))
    done.set()
    for one in ranks:
        one.join()
    took = max(one[1] for one in found)
    steps = len(found[0][2])
    spread = [max(w) - min(w) for w in zip(*(one[2] for one in found), strict=True)]
    late = sum(one > 0.1 * took / steps for one in spread) / steps
    return {
        "steps_per_s": steps / took,
        "imbalanced": late,
        "memory": memory,
        "cpu": sum(one[5] for one in found),
        "helped": [one[3] for one in found],
        "sums": [one[4] for one in found],
    }


def _median(runs: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(one[name] for one in runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workers", default="1", help="of each rank: one number for all, or a list")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--cost", type=float, default=0.01, help="seconds to prepare a batch")
    parser.add_argument("--dear", type=float, default=4.0, help="how many times as much a batch of rank 0 costs")
    parser.add_argument("--compute", type=float, default=0.0, help="seconds of each step that need no core")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--turns", "--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=("work", "small", "jpeg"), default="work")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"own": [], "shared": []}
    for _ in range(options.turns):
        for mode in found:
            found[mode].append(measure(options, mode))
    medians = {mode: _median(each, "steps_per_s") for mode, each in found.items()}
    print(
        json.dumps(
            {
                "question": "ranks",
                "ratio": round(medians["shared"] / medians["own"], 3),
                **{f"steps_per_s_{mode}": round(value, 1) for mode, value in medians.items()},
                **{f"imbalanced_{m}": round(_median(e, "imbalanced"), 3) for m, e in found.items()},
                "memory_ratio": round(_median(found["shared"], "memory") / _median(found["own"], "memory"), 3),
                "cpu_ratio": round(_median(found["shared"], "cpu") / _median(found["own"], "cpu"), 3),
                "helped": found["shared"][-1]["helped"],
                "equal": found["own"][-1]["sums"] == found["shared"][-1]["sums"],
            }
        )
    )


if __name__ == "__main__":
    main()
