"""What does a loop over JPEG files lose when their bytes come from the cache, and not from a list in memory?

Everything is in the cache before the clock runs. The same loader, decode and random crop for all: a `stoker.Dataset` over
files against one over a list, and a dataset that opens paths with PIL and knows nothing of a cache against one that opens
what is in its list. `ratio` is the speed with the cache against the speed with the list. `by_turns` is the same ratio
in one process that does a few of each in turn, by processor time, which other processes of the machine disturb less.
"""

import io
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data
from PIL import Image

import harness
import stoker
from workloads import jpeg

PICTURES, BANK = 3072, 128
WORKERS, BATCH = 2, 64
TOGETHER = 32


class Listed:
    """A source whose samples are in a list."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def sizes(self, ids: Sequence[int]) -> list[int]:
        return [len(self.files[number]) for number in ids]

    def read(self, ids: Sequence[int]) -> list[bytes]:
        return [self.files[number] for number in ids]


def prepare(raw: memoryview, index: int, rng: np.random.Generator) -> tuple[Any, int]:
    """As `workloads.Jpegs` does it, with the generator that a `stoker.Dataset` gives."""
    picture = Image.open(io.BytesIO(raw)).convert("RGB")
    left, top = (int(rng.integers(0, side - 224)) for side in picture.size)
    return np.asarray(picture.crop((left, top, left + 224, top + 224))), index % 10


def opened(file: Any, index: int) -> tuple[Any, int]:
    picture = Image.open(file).convert("RGB")
    left, top = random.randint(0, picture.width - 224), random.randint(0, picture.height - 224)
    return np.asarray(picture.crop((left, top, left + 224, top + 224))), index % 10


class Pictures(torch.utils.data.Dataset[Any]):
    """Files by path, in the ImageFolder manner."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return opened(self.paths[index], index)


class ListedPictures(torch.utils.data.Dataset[Any]):
    """The same, from a list."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return opened(io.BytesIO(self.files[index]), index)


def cached(dataset: Any, cache_dir: str, options: dict[str, Any]) -> Any:
    """A loader whose cache holds everything already."""
    loader: Any = stoker.DataLoader(dataset, **options, cache="1GB", cache_dir=cache_dir)
    for _ in loader:
        pass
    before = loader.stats()
    for _ in loader:
        pass
    after = loader.stats()
    assert after.hits - before.hits == PICTURES and after.misses == before.misses, "not everything is in the cache"
    return loader


def by_turns(with_cache: Any, with_list: Any) -> float:
    """The same in this process, 32 pictures in turn, by processor time: whatever disturbs, disturbs both."""
    spent = [0.0, 0.0]
    order = random.sample(range(PICTURES), PICTURES)
    for start in range(0, PICTURES, TOGETHER):
        ids = order[start : start + TOGETHER]
        for side, (loader, active) in enumerate(((with_cache, with_cache.caching.active()), (with_list, nullcontext()))):
            dataset = loader.dataset
            with active:
                began = time.thread_time()
                if hasattr(dataset, "__getitems__"):
                    dataset.__getitems__(ids)
                else:
                    for number in ids:
                        dataset[number]
                spent[side] += time.thread_time() - began
    return spent[1] / spent[0]


def main() -> None:
    rounds = harness.rounds()
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": WORKERS}
    bank = [jpeg(seed) for seed in range(BANK)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as cache_dir:
        for number in range(PICTURES):
            path = Path(folder, f"{number:05}.jpg")
            path.write_bytes(bank[number % BANK])
            os.utime(path, (0, 0))  # as files are that nobody writes to any more
        files = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
        pairs = {
            "stoker.Dataset over files": (
                cached(stoker.Dataset(folder, prepare), f"{cache_dir}/ours", options),
                stoker.DataLoader(stoker.Dataset(Listed(files), prepare), **options),
            ),
            "a dataset as it is, with PIL": (
                cached(Pictures(folder), f"{cache_dir}/theirs", options),
                stoker.DataLoader(ListedPictures(files), **options),
            ),
        }
        for question, (with_cache, with_list) in pairs.items():
            contenders = {
                "cache": partial(harness.epoch_rate, with_cache),
                "list": partial(harness.epoch_rate, with_list),
            }
            outcome = harness.alternate(contenders, rounds)
            harness.report(
                f"JPEG pictures per second, all in the cache: {question}",
                ratio=outcome.ratio("cache", "list"),
                pictures=outcome.medians(),
                by_turns=statistics.median(by_turns(with_cache, with_list) for _ in range(rounds)),
            )
            with_cache.close()


if __name__ == "__main__":
    main()
