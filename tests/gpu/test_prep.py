"""Preparation on a real GPU: batches are those of the CPU, and lie there."""

import io
from typing import Any

import pytest
import torch
from tests.feed.test_finishing import Pictures
from torch.utils.data import DataLoader

import stoker
from stoker.device import tail

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

MEAN = tail.plain_operand(torch.tensor((0.485, 0.456, 0.406)).view(-1, 1, 1))
STD = tail.plain_operand(torch.tensor((0.229, 0.224, 0.225)).view(-1, 1, 1))


@pytest.mark.parametrize(
    "ops",
    [
        (("div", 255),),
        (("div", 255), ("sub", MEAN), ("div", STD)),
        (("div", 255.0), ("sub", MEAN), ("div", STD)),
        (("mul", 1 / 255), ("sub", MEAN), ("div", STD)),
        (("div", 127.5), ("sub", 1)),
        (("sub", 0.1), ("mul", 3.3), ("add", 7), ("div", 0.3)),
    ],
    ids=lambda ops: " ".join(name for name, _ in ops),
)
def test_all_bytes_become_the_same_numbers(ops: tail.Ops) -> None:
    content = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(2, 3, 4, 4)
    assert torch.equal(tail.finish(content, ops), tail.finish(content.cuda(), ops).cpu())


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("pin_memory", [False, True])
def test_batches_are_those_of_the_cpu(seed: int | None, pin_memory: bool) -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, device="cuda"))
    optimizer = torch.optim.SGD([parameter])
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 2, "shuffle": True}
    torch.manual_seed(3)
    expected = list(
        DataLoader(Pictures(), **options) if seed is None else stoker.DataLoader(Pictures(), seed=seed, **options)
    )
    torch.manual_seed(3)
    got = list(stoker.DataLoader(Pictures(), prep="tail", seed=seed, pin_memory=pin_memory, **options))
    assert optimizer.param_groups
    for (numbers, labels), (wanted, wanted_labels) in zip(got, expected, strict=True):
        assert numbers.is_cuda and numbers.stride() == wanted.stride()
        assert torch.equal(numbers.cpu(), wanted) and torch.equal(labels, wanted_labels)


class Files(torch.utils.data.Dataset[Any]):
    """JPEG files of a folder, in the manner of ImageFolder, with torchvision's transforms."""

    def __init__(self, kind: str) -> None:
        import numpy as np
        from PIL import Image
        from torchvision import transforms as v1
        from torchvision.transforms import v2
        from torchvision.tv_tensors import Image as PictureTensor

        self.files = []
        for number in range(48):
            rng = np.random.default_rng(number)
            coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
            place = io.BytesIO()
            options = {"progressive": True} if kind == "mixed" and number % 4 == 0 else {}
            coarse.resize((400, 300), Image.Resampling.BICUBIC).save(place, "JPEG", **options)
            self.files.append(place.getvalue())
        normal = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
        first: list[Any] = [v1.RandomResizedCrop(96), v1.RandomHorizontalFlip()]
        newer: list[Any] = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(**normal)]
        kinds = {
            "v2": v2.Compose([v2.RandomResizedCrop(96), v2.RandomHorizontalFlip(), *newer]),
            "v2, by class": v2.Compose(
                [
                    v2.RandomResizedCrop(96),
                    v2.ToImage(),
                    v2.ToDtype({PictureTensor: torch.float32, "others": None}, scale=True),
                    v2.Normalize(**normal, inplace=True),
                    v2.ToPureTensor(),
                ]
            ),
            "validation": v1.Compose([v1.Resize(128), v1.CenterCrop(96), v1.ToTensor(), v1.Normalize(**normal)]),
            "jitter": v1.Compose([*first, v1.ColorJitter(0.3, 0.3, 0.3, 0.1), v1.ToTensor(), v1.Normalize(**normal)]),
            "v2, jitter": v2.Compose(
                [v2.RandomResizedCrop(96), v2.RandomHorizontalFlip(), v2.ColorJitter(0.3, 0.3, 0.3, 0.1), *newer]
            ),
        }
        self.transform = kinds.get(kind, v1.Compose([*first, v1.ToTensor(), v1.Normalize(**normal)]))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        return self.transform(Image.open(io.BytesIO(self.files[index])).convert("RGB")), index


@pytest.mark.parametrize("kind", ["v1", "v2", "v2, by class", "validation", "mixed", "jitter", "v2, jitter"])
@pytest.mark.parametrize("seed", [None, 7])
def test_decoded_batches_are_the_cpus_by_a_hair(kind: str, seed: int | None) -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, device="cuda"))
    optimizer = torch.optim.SGD([parameter])
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 2, "shuffle": True, "seed": seed}
    torch.manual_seed(3)
    expected = list(stoker.DataLoader(Files(kind), **options))
    torch.manual_seed(3)
    loader: Any = stoker.DataLoader(Files(kind), prep="device", **options)
    got = list(loader)
    assert optimizer.param_groups
    assert len(got) == len(expected) == 6
    assert loader.stats().on_device == 48
    assert loader.stats().decoded_on_device == (36 if kind == "mixed" else 48)
    assert loader.stats().samples == 48
    for (numbers, labels), (wanted, wanted_labels) in zip(got, expected, strict=True):
        assert torch.equal(labels, wanted_labels)
        assert numbers.is_cuda and numbers.stride() == wanted.stride()
        off = (numbers.cpu() - wanted).abs() * 255 * 0.225
        assert float(off.mean()) < 0.05 and float(off.max()) < (8 if "jitter" in kind else 3)  # jitter makes more of it
    loader.close()
