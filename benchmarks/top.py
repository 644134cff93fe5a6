"""What do `stoker top` and `stoker metrics` cost the training that they look at, and what do they cost themselves?"""

import contextlib
import fcntl
import os
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from torch.utils.data import Dataset

import harness
import stoker
from stoker.feed.progress import Progress
from stoker.live.folder import publish
from stoker.live.record import Facts
from stoker.meter import Meter, now

BLOCK_S = 0.5
SEGMENT = 500
IDLE_S = 10.0


class Pictures(Dataset[torch.Tensor]):
    """Samples that cost about as much as a small picture."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(3, 64, 64).mul_(index).sigmoid_()


class Nothing(Dataset[int]):
    """Samples that cost nothing."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> int:
        return index


def training() -> Iterator[int]:
    """A small training without an end; the samples of each step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with stoker.DataLoader(Pictures(), batch_size=16, num_workers=1) as loader:
        for batch in loader:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
            yield len(batch)


def watched_ratios(pairs: int) -> tuple[list[float], list[float], float]:
    """How fast a training is while it is looked at, against the moments before or after in which nobody does.

    The lookers are stopped and continued, so that both happen in the same processes within a second; each time they are
    continued, they look at once. Then the same of the training's time on a core for each sample, which other load of the
    machine hardly changes, and the share of a core that the lookers take.
    """
    steps = training()
    for _ in range(50):
        next(steps)
    own = psutil.Process()
    ratios, costs = [], []
    with top_and_metrics() as lookers:
        trained = [own, *(child for child in own.children() if child not in lookers)]
        used_s, looked_s = _cpu_s(lookers), 0.0
        for number in range(pairs):
            rates, cost = {}, {}
            for is_on in (True, False) if number % 2 else (False, True):
                for looker in lookers:
                    looker.resume() if is_on else looker.suspend()
                began, before_s, count = time.perf_counter(), _cpu_s(trained), 0
                while time.perf_counter() - began < BLOCK_S:
                    count += next(steps)
                rates[is_on] = count / (time.perf_counter() - began)
                cost[is_on] = (_cpu_s(trained) - before_s) / count
                looked_s += BLOCK_S * is_on
            ratios.append(rates[True] / rates[False])
            costs.append(cost[True] / cost[False])
        for looker in lookers:
            looker.resume()
        used_s = _cpu_s(lookers) - used_s
    steps.close()  # type: ignore[attr-defined]
    return ratios, costs, used_s / looked_s


def _cpu_s(processes: list[psutil.Process]) -> float:
    return float(sum(times.user + times.system for times in (process.cpu_times() for process in processes)))


@contextlib.contextmanager
def top() -> Iterator[psutil.Process]:
    """`stoker top` on a terminal that somebody reads."""
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-m", "stoker", "top"], stdin=slave, stdout=slave, env=environment)
    os.close(slave)
    has_drawn = threading.Event()

    def read() -> None:
        with contextlib.suppress(OSError):  # it has ended
            while os.read(master, 65536):
                has_drawn.set()

    reader = threading.Thread(target=read)
    reader.start()
    has_drawn.wait()
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()
        reader.join()
        os.close(master)


@contextlib.contextmanager
def top_and_metrics() -> Iterator[list[psutil.Process]]:
    with tempfile.TemporaryDirectory() as folder, top() as first:
        path = Path(folder) / "stoker.prom"
        words = [sys.executable, "-m", "stoker", "metrics", "--textfile", str(path), "--every", "1"]
        process = subprocess.Popen(words)
        while not path.exists():
            time.sleep(0.01)
        try:
            yield [first, psutil.Process(process.pid)]
        finally:
            process.terminate()
            process.wait()


def seconds_per_batch(segments: int) -> dict[str, list[float]]:
    """What a batch of one number costs, published and not, in turn on one iterator."""
    times: dict[str, list[float]] = {"published": [], "unpublished": []}
    with stoker.DataLoader(Nothing()) as loader:
        iterator = iter(loader)
        next(iterator)
        record = iterator._record  # type: ignore[attr-defined]
        for _ in range(segments):
            for name, found in times.items():
                iterator._record = record if name == "published" else None  # type: ignore[attr-defined]
                began = time.perf_counter()
                for _ in range(SEGMENT):
                    next(iterator)
                found.append((time.perf_counter() - began) / SEGMENT)
    return times


def publishing_seconds() -> float:
    """What publishing does for one batch."""
    record = publish(Facts(os.getpid(), 0, 0, None, 0, now(), "processes", "benchmark", "none"))
    assert record is not None
    meter, progress, times = Meter(), Progress(), 100_000
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(times):
            record.times[0] = 1.0
            record.tell(meter, progress, 1.0)
        best = min(best, (time.perf_counter() - began) / times)
    record.close()
    return best


def idle_share() -> float:
    """The share of a core that `stoker top` takes, with three loaders to show."""
    loaders = [stoker.DataLoader(Nothing()) for _ in range(3)]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    with top() as process:
        time.sleep(1.0)
        before, began = _cpu_s([process]), time.perf_counter()
        time.sleep(IDLE_S)
        share = (_cpu_s([process]) - before) / (time.perf_counter() - began)
    for loader in loaders:
        loader.close()
    return share


def main() -> None:
    count = harness.rounds()
    ratios, costs, share = watched_ratios(24 * count)
    harness.report(
        "training while `stoker top` and `stoker metrics` look on, against alone",
        ratio=statistics.median(ratios),
        quartiles=dict(zip(("25 %", "75 %"), statistics.quantiles(ratios, n=4)[::2], strict=True)),
        cpu_ratio=statistics.median(costs),
        core_share_of_both=share,
    )
    times = seconds_per_batch(40 * count)
    published, unpublished = (statistics.median(times[name]) for name in ("published", "unpublished"))
    harness.report(
        "a batch of one number, published for `stoker top`, against not",
        ratio=unpublished / published,
        microseconds={"published": 1e6 * published, "unpublished": 1e6 * unpublished},
        publishing_microseconds=1e6 * publishing_seconds(),
    )
    share = idle_share()
    harness.report("an idle `stoker top`, of the 1 % of a core that it may take", ratio=0.01 / share, core_share=share)


if __name__ == "__main__":
    main()
