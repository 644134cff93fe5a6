"""Worker threads against worker processes: samples that are decoded in C, and samples that are prepared in Python.

The second is for a Python without the interpreter lock; `gil` says whether there was one.
"""

import io
import sys
from functools import partial
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

import harness
import stoker
from throughput import busy_rate
from workloads import Jpegs

WORKERS = 2


class RngJpegs(Jpegs):
    """Pictures cropped by the generator that they are given, and by nothing that threads share."""

    def __getsample__(self, index: int, rng: np.random.Generator) -> tuple[Any, int]:
        """The sample, cropped where `rng` says."""
        picture = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        left, top = int(rng.integers(picture.width - 224)), int(rng.integers(picture.height - 224))
        return np.asarray(picture.crop((left, top, left + 224, top + 224))), index % 10


class PythonSamples(Dataset[Any]):
    """Text that is split, counted and hashed in Python."""

    def __init__(self, count: int = 4096) -> None:
        rng = np.random.default_rng(0)
        self.texts = [" ".join(map(str, rng.integers(0, 500, 400))) for _ in range(64)]
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getsample__(self, index: int, rng: np.random.Generator) -> tuple[Any, int]:
        """Counts of words in 256 places, less one word that `rng` chooses."""
        words = self.texts[index % len(self.texts)].split()
        words.pop(int(rng.integers(len(words))))
        counts = [0] * 256
        for word in words:
            place = 0
            for character in word:
                place = (31 * place + ord(character)) % 256
            counts[place] += 1
        return np.array(counts, np.float32), index


def compare(name: str, dataset: Any, count: int) -> None:
    options: dict[str, Any] = {"dataset": dataset, "batch_size": 64, "seed": 1}
    kinds: dict[str, Any] = {
        kind: stoker.DataLoader(**options, num_workers=WORKERS, workers=kind) for kind in ("processes", "threads")
    }
    whole: dict[str, list[float]] = {kind: [] for kind in kinds}
    rates = harness.alternate({kind: partial(busy_rate, loader, whole[kind]) for kind, loader in kinds.items()}, count)
    digests = {harness.digest(stoker.DataLoader(**options, num_workers=WORKERS, workers=kind)) for kind in kinds}
    harness.report(
        f"threads against processes, {name}",
        ratio=rates.ratio("threads", "processes"),
        epoch_ratio=harness.Outcome(whole).ratio("threads", "processes"),
        samples_per_s=rates.medians(),
        same=len(digests) == 1,
        gil=getattr(sys, "_is_gil_enabled", lambda: True)(),
    )


def main() -> None:
    count = harness.rounds()
    compare("jpeg", RngJpegs(2048), count)
    compare("prepared in Python", PythonSamples(), count)


if __name__ == "__main__":
    main()
