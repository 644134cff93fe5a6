"""A small net is as good with pictures of the device as with the CPU's, and not with those of another resize.

Half of the pictures have fine stripes. A resize that looks at all pixels, as Pillow's does, takes them away; another makes
coarse patterns of them, which tell the classes apart in training. In validation the CPU prepares, and they are not there.
"""

import io
import statistics
from typing import Any

import pytest
import torch

import stoker

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SIDE, SMALL = 256, 32
PICTURES, EPOCHS, SEEDS = 512, 8, 8
MARGIN = 0.05
"""Of the cross-entropy in validation, which is about 0.4."""
T_90 = 1.895
"""Student's t for 7 degrees of freedom: both ends of an interval of 90 %."""


def striped(number: int) -> bytes:
    """A picture of class `number % 2`. Its coarse stripes say so, but for 15 of 100, and fine ones, which are no help."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(number)
    kind = number % 2
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    fine = kind * 60 * np.sin(x * (2 * np.pi / 4.3) + rng.uniform(0, 6))
    across = x if (rng.random() < 0.85) == bool(kind) else y
    coarse = 7 * np.sin(across * (2 * np.pi / 64) + rng.uniform(0, 6))
    clouds = Image.fromarray(rng.normal(0, 14, (16, 16)).astype(np.float32)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    light = np.clip(128 + fine + coarse + np.asarray(clouds), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(light).convert("RGB").save(file, "JPEG", quality=92)
    return file.getvalue()


class Striped(torch.utils.data.Dataset[Any]):
    def __init__(self, files: list[bytes], way: str) -> None:
        from torchvision import transforms

        normal = transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        crop = {"size": SMALL, "scale": (0.5, 1.0)}
        flip = transforms.RandomHorizontalFlip()
        parts = {
            "train": [transforms.RandomResizedCrop(**crop), flip, transforms.ToTensor(), normal],
            "planted": [transforms.ToTensor(), transforms.RandomResizedCrop(**crop, antialias=False), flip, normal],
            "validate": [transforms.Resize(SMALL), transforms.ToTensor(), normal],
        }
        self.files, self.transform = files, transforms.Compose(parts[way])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        return self.transform(Image.open(io.BytesIO(self.files[index])).convert("RGB")), index % 2


def net() -> torch.nn.Module:
    parts: list[torch.nn.Module] = [torch.nn.Conv2d(3, 16, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    parts += [torch.nn.Conv2d(16, 32, 5, padding=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    return torch.nn.Sequential(*parts, torch.nn.Linear(32, 2)).cuda()


def loss_of(files: list[bytes], validation: Any, seed: int, way: str, prep: str) -> float:
    """The cross-entropy in validation of a net that was trained so."""
    torch.manual_seed(seed)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_workers": 4, "persistent_workers": True}
    with stoker.DataLoader(Striped(files, way), seed=seed, prep=prep, **options) as loader:
        for _ in range(EPOCHS):
            for pictures, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(pictures.cuda()), labels.cuda())
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        assert loader.stats().decoded_on_device == (EPOCHS * PICTURES if prep == "device" else 0)
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(validation[0]), validation[1]))


def is_equivalent(differences: list[float]) -> bool:
    """Whether the mean difference lies within the margin, surely: both of two one-sided tests at 5 % say so."""
    half = T_90 * statistics.stdev(differences) / len(differences) ** 0.5
    mean = statistics.fmean(differences)
    print(f"difference of losses {mean:+.4f}, interval of 90 % {mean - half:+.4f} to {mean + half:+.4f}")
    return bool(mean - half > -MARGIN and mean + half < MARGIN)


def test_a_net_that_is_trained_with_the_devices_pictures_is_as_good() -> None:
    files = [striped(number) for number in range(2 * PICTURES)]
    held_out = Striped(files[PICTURES:], "validate")
    validation = [part.cuda() for part in next(iter(stoker.DataLoader(held_out, batch_size=PICTURES)))]
    files = files[:PICTURES]
    found = {
        name: [loss_of(files, validation, seed, *way) for seed in range(SEEDS)]
        for name, way in {"host": ("train", "host"), "device": ("train", "device"), "planted": ("planted", "host")}.items()
    }
    print({name: round(statistics.fmean(values), 4) for name, values in found.items()})
    assert statistics.fmean(found["host"]) < 0.6, "it has learned nothing"
    assert is_equivalent([there - here for there, here in zip(found["device"], found["host"], strict=True)])
    assert not is_equivalent([there - here for there, here in zip(found["planted"], found["host"], strict=True)])
