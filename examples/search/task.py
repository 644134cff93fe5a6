"""What is searched for: how to train a small network on pictures that take some work to prepare.

The same for a search with Optuna and one with Ray Tune. Each trial keeps account of what it saw, and the dataset of what
was prepared; `report` compares them.
"""

import argparse
import io
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch.utils.data import Dataset

import stoker

SIZE, CROP, BATCH = 96, 48, 16
JOIN_WITHIN_S = 300.0
Loader = stoker.DataLoader[Any]


class Pictures(Dataset[Any]):
    """JPEGs of stripes that lie or stand; for training they are turned, cropped and brightened at random.

    Every preparation is counted: a line in the file `tally`.
    """

    def __init__(self, count: int, tally: Path, *, augment: bool) -> None:
        self.jpegs = [_draw(number if augment else number - 2 * count) for number in range(count)]
        self.tally = str(tally)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.jpegs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        with open(self.tally, "a") as tally:
            tally.write(f"{index}\n")
        picture: Image.Image = Image.open(io.BytesIO(self.jpegs[index]))
        left = top = (SIZE - CROP) // 2
        if self.augment:
            picture = picture.rotate(float(np.random.uniform(-30, 30)), Image.Resampling.BICUBIC)
            picture = ImageEnhance.Brightness(picture).enhance(float(np.random.uniform(0.5, 1.5)))
            left, top = np.random.randint(left - 8, left + 8, 2).tolist()
        pixels = np.asarray(picture.crop((left, top, left + CROP, top + CROP)))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), index % 2, index


def _draw(number: int) -> bytes:
    """Stripes in noise: if the number is even they lie, and if it is odd they stand."""
    rng = np.random.default_rng(number & 0xFFFFFFFF)
    stripes = np.sin(np.arange(SIZE) * rng.uniform(0.4, 0.8) + rng.uniform(0, 6))
    pixels = 128 + 50 * (stripes[None, :] if number % 2 else stripes[:, None]) + rng.normal(0, 40, (SIZE, SIZE))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB").save(file, "JPEG")
    return file.getvalue()


class Account(dict[str, Any]):
    """What a trial saw, in JSON's terms: by "train" and "check", which epochs of the group, and the group's statistics."""


def loaders(folder: Path, samples: int, group: str) -> dict[str, Loader]:
    """For training and for validation, in one group. A job joins it here."""
    train = Pictures(samples, folder / "train", augment=True)
    check = Pictures(samples // 4, folder / "check", augment=False)
    return {
        "train": stoker.DataLoader(train, BATCH, shuffle=True, num_workers=1, group=group),
        "check": stoker.DataLoader(check, BATCH, num_workers=1, group=group),
    }


def wait_for_others(loader: Loader, jobs: int) -> None:
    """Until so many jobs have joined. Who begins before does the work of the first epoch alone, and nobody else sees it."""
    deadline = time.monotonic() + JOIN_WITHIN_S
    while (group := loader.stats().group) is not None and group.members < jobs and time.monotonic() < deadline:
        time.sleep(0.05)


def train(rate: float, width: int, epochs: int, data: dict[str, Loader], tell: Callable[[float], None]) -> Account:
    """One trial. After each epoch it tells the share of the validation pictures that the network gets right."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [torch.nn.Conv2d(3, width, 5, 3), torch.nn.ReLU(), torch.nn.Conv2d(width, width, 3, 2), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.AdaptiveMaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(4 * width, 2))
    optimizer = torch.optim.Adam(network.parameters(), rate)
    account = Account(train=[], check=[])
    for _ in range(epochs):
        right = 0
        for what, loader in data.items():
            seen: list[int] = []
            epoch = -1
            for pictures, labels, numbers in loader:
                epoch = loader.state_dict()["epoch"]
                seen += numbers.tolist()
                guesses = network(pictures / 255)
                if what == "train":
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(guesses, labels).backward()
                    optimizer.step()
                else:
                    right += int((guesses.argmax(1) == labels).sum())
            if sorted(seen) != list(range(_samples(loader))):
                raise AssertionError(f"epoch {epoch} of {what} was not the whole dataset, each sample once")
            account[what].append(epoch)
        tell(right / _samples(data["check"]))
    account["groups"] = {what: asdict(group) for what in data if (group := data[what].stats().group) is not None}
    return account


def _samples(loader: Loader) -> int:
    dataset = loader.dataset
    assert isinstance(dataset, Pictures)
    return len(dataset)


def report(accounts: Sequence[Account], folder: Path, samples: int, epochs: int) -> None:
    """Compare what the trials saw with what was prepared."""
    for what, length in (("train", samples), ("check", samples // 4)):
        read = sum(len(account[what]) for account in accounts)
        distinct = {epoch for account in accounts for epoch in account[what]}
        counted = Counter(map(int, (folder / what).read_text().split()))
        prepared = max(account["groups"][what]["prepared"] for account in accounts)
        batches = -(-length // BATCH) * len(distinct)
        print(
            f"{what}: {len(accounts)} trials read {read} epochs of {length} samples; {counted.total()} samples were "
            f"prepared, in {prepared} batches, for the {len(distinct)} epochs of the group"
        )
        if read != epochs * len(accounts):
            raise SystemExit(f"{what}: the trials read {read} epochs, not {epochs} each")
        if prepared != batches or any(account["groups"][what]["repeated"] for account in accounts):
            raise SystemExit(f"{what}: {prepared} batches were prepared, and {batches} would have been enough")
        if counted != Counter({number: len(distinct) for number in range(length)}):
            raise SystemExit(f"{what}: not every sample was prepared exactly once for each epoch of the group")
    print("every batch was prepared once")


def options(description: str | None) -> argparse.Namespace:
    """The arguments of both searches."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--trials", type=int, default=4, help="how many; all of them at once")
    parser.add_argument("--epochs", type=int, default=5, help="of each trial")
    parser.add_argument("--samples", type=int, default=2000, help="pictures for training; a quarter as many to check")
    parser.add_argument("--group", default=f"search-{os.getpid()}", help="the name of the group")
    parser.add_argument("--directory", type=Path, help="an empty folder for the study; otherwise a temporary one")
    found = parser.parse_args()
    found.directory = (found.directory or Path(tempfile.mkdtemp(prefix="search-"))).absolute()
    found.directory.mkdir(parents=True, exist_ok=True)
    if any(found.directory.iterdir()):
        parser.error(f"{found.directory} is not empty: what was prepared before would count, too")
    return found
