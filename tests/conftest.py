"""What all tests share: none may leave a process behind, and cases that are drawn are the same each time."""

import contextlib
import gc
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

STARTUP = str(Path(__file__).parent / "startup")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [STARTUP, os.environ.get("PYTHONPATH")]))
"""Every Python that a test starts imports torch in less time: see the file in that folder."""


def pytest_report_header() -> str:
    """Which torch is tested: scripts/newest_torch.py brings another."""
    return f"torch: {version('torch')}"


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector, which many tests run, need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    before = set(_descendants(os.getpid()))
    yield
    left = _new_children(before)
    deadline = time.monotonic() + 30
    if left:
        gc.collect()  # torch raises a worker's error in a way that makes a cycle of the error and the iterator
    while left and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.1)
        left = _new_children(before)
    assert not left, f"left running: {left}"


def _descendants(pid: int) -> Iterator[int]:
    """The processes below one. The kernel is asked for children: a look at all processes of the host takes milliseconds."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for child in map(int, task.read_text().split()):
                yield child
                yield from _descendants(child)


def _new_children(before: set[int]) -> list[psutil.Process]:
    new = []
    for pid in set(_descendants(os.getpid())) - before:
        with contextlib.suppress(psutil.NoSuchProcess):
            new.append(psutil.Process(pid))
    # The forkserver and the resource tracker belong to Python and live as long as this process.
    return [child for child in new if _stays(child)]


def _stays(child: psutil.Process) -> bool:
    try:
        words = " ".join(child.cmdline())
        return child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in words and "forkserver" not in words
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def open_files() -> int:
    gc.collect()  # what other tests have left open is closed before, not meanwhile
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def scripts() -> Path:
    """Programs that tests run as processes of their own."""
    return Path(__file__).parent / "scripts"
