"""The datasets that benchmarks load."""

import io
import random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class SmallSamples(Dataset[Any]):
    """3 KB images in memory, with a label."""

    def __init__(self, count: int = 200_000) -> None:
        self.images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.images[index], index % 10


class Volumes(Dataset[Any]):
    """8 MB volumes of floats, from a few that are in memory."""

    def __init__(self, count: int = 256, bank: int = 16) -> None:
        self.count = count
        self.bank = torch.rand(bank, 128, 128, 128, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.bank[index % len(self.bank)], index


def jpeg(seed: int, width: int = 500, height: int = 375, quality: int = 90, grain_of: int = 10) -> bytes:
    """A picture with the detail of a photograph: smooth shapes and some grain."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    grain = rng.normal(0, grain_of, (height, width, 1))
    pixels = np.clip(np.asarray(coarse, np.float32) + grain, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def photograph(seed: int) -> bytes:
    """A picture as a camera leaves it: 3 million pixels, 2.7 MB."""
    return jpeg(seed, 2000, 1500, quality=98, grain_of=20)


class Jpegs(Dataset[Any]):
    """JPEG pictures of 500 x 375, decoded and cropped at random to 224 x 224."""

    def __init__(self, count: int = 3072, bank: int = 128) -> None:
        self.count = count
        self.files = [jpeg(seed) for seed in range(bank)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        left, top = random.randint(0, picture.width - 224), random.randint(0, picture.height - 224)
        return np.asarray(picture.crop((left, top, left + 224, top + 224))), index % 10


class FloatJpegs(Jpegs):
    """The same as most training scripts want them: channels first, floats between 0 and 1."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        pixels, label = super().__getitem__(index)
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div_(255), label


WORKLOADS: dict[str, tuple[Any, int]] = {
    "small samples": (SmallSamples, 256),
    "volumes": (Volumes, 4),
    "jpeg": (Jpegs, 64),
    "jpeg as floats": (FloatJpegs, 64),
}
"""Dataset and batch size of each."""
