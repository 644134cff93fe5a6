"""A recorder is what it stands for, whatever is done with it; and what it notes gives the same bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stoker.device import tail
from stoker.device.recorder import Recorder, Recording
from stoker.device.samples import Worker

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture() -> torch.Tensor:
    """All byte values in all channels, as a decoder leaves them: colours side by side."""
    values = torch.arange(256, dtype=torch.uint8).reshape(16, 16, 1)
    return torch.cat([values, values.flip(0), values.flip(1)], 2).repeat(2, 3, 1).contiguous()


def to_tensor(pixels: torch.Tensor) -> torch.Tensor:
    planes = pixels.permute(2, 0, 1).contiguous()
    assert isinstance(planes, torch.ByteTensor)
    return planes.to(dtype=torch.get_default_dtype()).div(255)


def normalize(numbers: torch.Tensor) -> torch.Tensor:
    assert numbers.is_floating_point() and numbers.ndim == 3
    numbers = numbers.clone()
    mean = torch.as_tensor(MEAN, dtype=numbers.dtype, device=numbers.device).view(-1, 1, 1)
    std = torch.as_tensor(STD, dtype=numbers.dtype, device=numbers.device).view(-1, 1, 1)
    return numbers.sub_(mean).div_(std)


def newer(pixels: torch.Tensor) -> torch.Tensor:
    numbers = pixels.permute(2, 0, 1).to(torch.float32).mul_(1.0 / 255)
    return numbers.sub(torch.tensor(MEAN).view(-1, 1, 1)).div_(torch.tensor(STD).view(-1, 1, 1))


def by_hand(pixels: torch.Tensor) -> torch.Tensor:
    return 2 * (pixels.permute(2, 0, 1).float() / 255 - 0.5) + 1


def by_array(pixels: torch.Tensor) -> torch.Tensor:
    numbers = torch.from_numpy(pixels.numpy().copy()).float()
    numbers -= 127
    numbers /= torch.tensor(58.395)
    return numbers


NOTED: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: normalize(to_tensor(x)),
    newer,
    by_hand,
    by_array,
    to_tensor,
]


@pytest.mark.parametrize("prepare", NOTED)
def test_tails_are_noted_and_give_the_same_bits(prepare: Callable[[torch.Tensor], torch.Tensor]) -> None:
    expected = prepare(picture())
    with Recording():
        noted = prepare(picture())
    assert type(noted) is Recorder and noted.noted is not None
    assert noted.shape == expected.shape and noted.stride() == expected.stride() and noted.dtype == expected.dtype
    assert torch.equal(tail.finish(noted.notes.content.bytes(), noted.notes.ops or ()), expected)
    assert torch.equal(noted, expected)
    assert noted.noted is None and noted.made_real().stride() == expected.stride()


def erased(numbers: torch.Tensor) -> torch.Tensor:
    numbers[:, 2:5, 3:9] = 0
    return numbers


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda x: x.numpy().sum(),
    "array": lambda x: np.asarray(x).mean(),
    "slice": lambda x: x[:, 3:7],
    "erase": erased,
    "stack": lambda x: torch.stack([x, x]),
    "cat": lambda x: torch.cat((x, x), dim=0),
    "clamp_": lambda x: x.clamp_(0.1, 0.2),
    "add noise": lambda x: x + torch.linspace(0, 1, x.numel()).view_as(x),
    "add scaled": lambda x: x.add(1, alpha=2),
    "from number": lambda x: 1 - x,
    "power": lambda x: x**2,
    "half": lambda x: x.half(),
    "double": lambda x: x.to(torch.float64).sub(0.1),
    "compare": lambda x: x > 0.5,
    "where": lambda x: torch.where(x > 0.5, x, -x),
    "item": lambda x: x[0, 0, 0].item(),
    "list": lambda x: x.flatten()[:5].tolist(),
    "interpolate": lambda x: torch.nn.functional.interpolate(x[None], size=(7, 9), mode="bilinear", antialias=True),
    "channels last": lambda x: x.unsqueeze(0).contiguous(memory_format=torch.channels_last).stride(),
    "wide operand": lambda x: x.div(torch.full((2, 1, 1, 1), 3.0)),
    "large operand": lambda x: x.sub(torch.ones_like(x)),
    "double operand": lambda x: x.mul(torch.tensor([1.5], dtype=torch.float64)),
    "gradient": lambda x: x.requires_grad_().mul(2).sum().item(),
    "storage": lambda x: x.untyped_storage().nbytes(),
    "data": lambda x: x.data.mul_(2),
    "pickle": lambda x: torch.load(_saved(x)),
    "copy": lambda x: __import__("copy").deepcopy(x),
    "repr": lambda x: repr(x)[:20],
    "len": lambda x: len(x),
    "iterate": lambda x: [plane.sum() for plane in x],
    "bool": lambda x: bool(x.sum() > 0),
    "module": lambda x: torch.nn.Conv2d(3, 1, 1, bias=False).requires_grad_(False)(x[None]).shape,
}


def _saved(numbers: torch.Tensor) -> Any:
    import io

    place = io.BytesIO()
    torch.save(numbers, place)
    place.seek(0)
    return place


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("prepare", [to_tensor, newer])
def test_whatever_else_is_done_with_it_it_is_real(use: str, prepare: Callable[[torch.Tensor], torch.Tensor]) -> None:
    expected = USES[use](prepare(picture()))
    with Recording():
        within = USES[use](prepare(picture()))
        noted = prepare(picture())
    outside = USES[use](noted)
    for got in (within, outside):
        assert _plain(got) == _plain(expected)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return (value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value


def test_what_was_changed_in_place_stays_changed() -> None:
    """Before it was made real, and after: each name sees what a tensor's would."""

    def change(numbers: torch.Tensor) -> list[torch.Tensor]:
        copied, same = numbers.clone(), numbers.detach()
        numbers.sub_(0.25)
        corner = numbers[:, :2, :2]
        numbers.mul_(3.0)
        copied.add_(1)
        return [numbers, copied, same, corner]

    expected = change(to_tensor(picture()))
    with Recording():
        got = change(to_tensor(picture()))
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


def test_memory_that_is_used_again_does_not_change_it() -> None:
    buffer, mean = picture(), torch.tensor([0.5])
    with Recording():
        noted = buffer.permute(2, 0, 1).float().sub(mean)
    expected = picture().permute(2, 0, 1).float().sub(0.5)
    buffer.zero_()
    mean.zero_()
    assert torch.equal(noted, expected)


def test_small_and_other_tensors_are_left_alone() -> None:
    with Recording():
        assert type(torch.zeros(100, dtype=torch.uint8).float()) is torch.Tensor
        assert type(torch.zeros(5000, dtype=torch.int16).float()) is torch.Tensor
        assert type(torch.zeros(5000, dtype=torch.uint8).to(torch.float64)) is torch.Tensor
        assert type(torch.zeros(5000, dtype=torch.uint8).to(torch.float32, copy=True)) is torch.Tensor


def test_what_is_left_of_a_batch_that_failed_is_not_another_ones() -> None:
    worker = Worker()
    with Recording():
        worker.settle([(to_tensor(picture()), 1)] * 2)  # and then it could not be collated
        assert worker.settle((1, 2)) == (1, 2)  # type: ignore[arg-type, comparison-overlap]
    assert worker.take() is None


def test_an_operand_that_another_stream_may_still_read_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_operands", {})
    device = torch.device("meta")
    first = tail._operand("div", 1, device)
    for value in range(2, 2 * tail._MOST_OPERANDS):
        assert tail._operand("div", value, device).device == device
    assert tail._operand("div", 1, device) is first
    assert len(tail._operands) <= tail._MOST_OPERANDS
