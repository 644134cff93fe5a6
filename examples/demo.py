"""Train a small CNN on JPEG files, with torch's loader and with Stoker's, and compare.

The script is the same for both; only the class of the loader differs. `make demo` runs it.
"""

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from stoker import DataLoader as StokerLoader

FOLDER = Path(".demo/pictures")
CLASSES, PER_CLASS, EPOCHS, BATCH, WORKERS = 4, 240, 2, 32, 2


def make_pictures() -> None:
    """Write JPEG files whose colours tell their class, once."""
    rng = np.random.default_rng(0)
    for number in range(CLASSES * PER_CLASS):
        path = FOLDER / str(number % CLASSES) / f"{number:05}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.normal(110, 40, (375, 500, 3))
            pixels[..., number % CLASSES % 3] += 25 + 25 * (number % CLASSES // 3)
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=90)
        progress("pictures", number + 1, CLASSES * PER_CLASS)


class Pictures(Dataset[Any]):
    """Pictures in a folder for each class, cropped at random."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = np.asarray(Image.open(self.files[index]).convert("RGB"))
        top, left = (int(torch.randint(0, size - 224, ())) for size in picture.shape[:2])
        crop = torch.from_numpy(picture[top : top + 224, left : left + 224].copy())
        return crop.permute(2, 0, 1).float() / 255, int(self.files[index].parent.name)


def train(loader_class: Any, name: str) -> dict[str, Any]:
    """Two epochs. Everything that is drawn is drawn from one seed."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.AvgPool2d(4), nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, CLASSES)
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loader = loader_class(Pictures(FOLDER), batch_size=BATCH, shuffle=True, num_workers=WORKERS)
    seen, waited, loss, began = hashlib.sha256(), 0.0, torch.zeros(()), time.perf_counter()
    for epoch in range(EPOCHS):
        iterator = iter(loader)
        for step in range(len(loader)):
            asked = time.perf_counter()
            pictures, labels = next(iterator)
            waited += time.perf_counter() - asked
            seen.update(labels.numpy().tobytes() + pictures[:, :, ::16, ::16].numpy().tobytes())
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress(name, epoch * len(loader) + step + 1, EPOCHS * len(loader))
    took = time.perf_counter() - began
    return {"seconds": took, "waited": waited, "loss": loss.item(), "seen": seen.hexdigest()[:16]}


def progress(what: str, done: int, total: int) -> None:
    """A bar on a terminal, nothing in a pipe."""
    if sys.stderr.isatty():
        bar = "#" * (30 * done // total)
        print(f"\r{what:10} [{bar:30}] {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def main() -> int:
    """Run both and print them side by side."""
    torch.set_num_threads(1)
    make_pictures()
    results = {"torch": train(TorchLoader, "torch"), "stoker": train(StokerLoader, "stoker")}
    print(f"\n{EPOCHS} epochs of {CLASSES * PER_CLASS} pictures, {WORKERS} workers\n")
    print(f"{'':22}{'torch':>18}{'stoker':>18}")
    for key, text, form in (
        ("seconds", "seconds", "18.2f"),
        ("waited", "of them waiting", "18.2f"),
        ("loss", "last loss", "18.6f"),
        ("seen", "batches seen", ">18"),
    ):
        print(f"{text:22}" + "".join(f"{results[name][key]:{form}}" for name in results))
    same = results["torch"]["seen"] == results["stoker"]["seen"] and results["torch"]["loss"] == results["stoker"]["loss"]
    faster = results["torch"]["seconds"] / results["stoker"]["seconds"]
    print(f"\n{'the same batches and the same loss' if same else 'THE BATCHES DIFFER'}; {faster:.2f}x as fast")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
