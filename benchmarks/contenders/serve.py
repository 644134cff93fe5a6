"""One contender in its own environment: told on standard input what to do, it answers with lines of JSON.

`write` once, then any number of `epoch`, `check`, `memory` and `resume`. Between two orders it waits, and takes no core.
"""

import contextlib
import importlib
import json
import os
import resource
import sys
import time
import warnings
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from contenders.payloads import WORKLOADS, Workload

OWN_FORMAT = ("webdataset", "litdata", "streaming", "datasets")
"""Those that read what their own writer wrote; the others read plain files."""


def epoch(loader: Any, workload: Workload) -> dict[str, float]:
    """One epoch: seconds to the first batch, the rate in its second half, and what a sample costs the cores."""
    busy, began = _busy_s(), time.perf_counter()
    moments = [time.perf_counter() for _ in loader]
    ended = time.perf_counter()
    start, stop = len(moments) // 2, len(moments) - 1 - len(moments) // 8  # what was prepared ahead at first is used up
    rate = (stop - start) * workload.batch / (moments[stop] - moments[start])
    loader.close()
    count = len(moments) * workload.batch
    spent = 1e6 * (_busy_s() - busy) / count
    return {"rate": rate, "first_batch_s": moments[0] - began, "epoch_rate": count / (ended - began), "core_us": spent}


def _busy_s() -> float:
    """The processor time of this process and of its children that have ended."""
    ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in ours)


def check(loader: Any, workload: Workload) -> dict[str, Any]:
    """Whether every sample came once, and a sum over their bytes, in any order."""
    numbers, total = [], 0
    for samples, those in loader:
        numbers += torch.as_tensor(those).flatten().tolist()
        if not workload.is_random:
            total += sum(zlib.crc32(torch.as_tensor(one).contiguous().numpy().tobytes()) for one in samples)
    loader.close()
    return {"all_once": sorted(numbers) == list(range(workload.count)), "sum": total}


def _own_bytes() -> int:
    """What all processes of this contender hold, without pages of files; pages that they share count in part."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/smaps_rollup") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line and "[" not in line)
            total += sum(int(lines[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem"))
    return total


def memory(loader: Any, workload: Workload, before: int) -> dict[str, float]:
    """The most at any of some moments in an epoch, beyond what the process took with all that it imports."""
    count, most = workload.count // workload.batch, 0
    for number, _ in enumerate(loader):
        if number % (count // 6) == count // 12:
            most = max(most, _own_bytes())
    loader.close()
    return {"memory_mb": (most - before) / 1e6}


def resume(make: Any, workload: Workload) -> dict[str, Any]:
    """Leave an epoch in its middle, and go on in a new loader: its first batch, and whether each sample came once."""
    first = make()
    if not hasattr(first, "state"):
        return {"resume_s": None}
    numbers: list[int] = []
    batches = iter(first)
    for _ in range(workload.count // workload.batch // 2):
        numbers += torch.as_tensor(next(batches)[1]).flatten().tolist()
    state = first.state()
    first.close()
    del batches, first
    began = time.perf_counter()
    second = make()
    second.resume(state)
    took = None
    for _, those in second:
        took = took or time.perf_counter() - began
        numbers += torch.as_tensor(those).flatten().tolist()
    second.close()
    return {"resume_s": took, "exact": sorted(numbers) == list(range(workload.count))}


def evict(folder: Path) -> None:
    """Have the kernel forget the contents of all files of a folder."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main(name: str, workload_name: str, count: str, folder: str) -> None:
    """Serve until the end of standard input."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a contender prints is no answer
    workload = replace(WORKLOADS[workload_name], count=int(count))
    own = Path(folder) / (name if name in OWN_FORMAT else "plain")
    module = importlib.import_module(f"contenders.on_{name if name not in ('stoker', 'torch', 'torchdata') else 'torch'}")
    torch.zeros(8).sum()
    before = _own_bytes()

    def make() -> Any:
        return module.Loader(name, workload, own)

    loader: Any = None
    for order in sys.stdin:
        what = order.strip()
        if what == "write":
            answer: dict[str, Any] = {}
            if name in OWN_FORMAT and not (own / ".done").exists():
                own.mkdir(parents=True, exist_ok=True)
                module.write(workload, own, Path(folder) / "plain")
                (own / ".done").touch()
        elif what == "resume":
            loader = None
            answer = resume(make, workload)
        else:
            loader = make() if loader is None else loader
            if what == "cold":
                evict(own)
            answer = (
                memory(loader, workload, before)
                if what == "memory"
                else check(loader, workload)
                if what == "check"
                else epoch(loader, workload)
            )
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
