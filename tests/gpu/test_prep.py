"""Preparation on a real GPU: batches are those of the CPU, and lie there."""

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
