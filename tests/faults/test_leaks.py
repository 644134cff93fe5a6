"""Epoch after epoch, nothing grows."""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.datasets import Numbers

import stoker


def usage() -> dict[str, int]:
    gc.collect()
    return {
        "memory": psutil.Process().memory_info().rss,  # not what it owns alone: that depends on who else was forked from it
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
    }


def assert_no_growth(work: Callable[[], Any], epochs: int) -> None:
    for _ in range(epochs // 4):
        work()
    before = usage()
    for _ in range(epochs - epochs // 4):
        work()
    after = usage()
    assert after["descriptors"] <= before["descriptors"]
    assert after["mappings"] <= before["mappings"] + 8  # the allocator's own
    assert after["memory"] <= before["memory"] + (10 << 20)  # one batch an epoch would be 20 MB


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=["new workers", "persistent workers"])
def test_200_epochs(options: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(64, (64, 64)), batch_size=8, num_workers=2, shuffle=True, **options)
    assert_no_growth(lambda: [batch[0].sum() for batch in loader], 200)
    loader.close()


def test_100_loaders_broken_off_with_a_batch_kept() -> None:
    kept: list[Any] = [None] * 5

    def work() -> None:
        loader = stoker.DataLoader(Numbers(640, (64, 64)), batch_size=8, num_workers=1)
        for number, batch in enumerate(loader):
            kept[number % 5] = batch
            if number == 6:
                break

    assert_no_growth(work, 100)
