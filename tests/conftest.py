"""What all tests share: none may leave a process behind."""

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = _new_children(before)
    deadline = time.monotonic() + 5
    if left:
        gc.collect()  # torch raises a worker's error in a way that makes a cycle of the error and the iterator
    while left and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.1)
        left = _new_children(before)
    assert not left, f"left running: {left}"


def _new_children(before: set[int]) -> list[psutil.Process]:
    # The forkserver and the resource tracker belong to Python and live as long as this process.
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in before and _stays(child)]


def _stays(child: psutil.Process) -> bool:
    try:
        words = " ".join(child.cmdline())
        return child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in words and "forkserver" not in words
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def scripts() -> Path:
    """Programs that tests run as processes of their own."""
    return Path(__file__).parent / "scripts"
