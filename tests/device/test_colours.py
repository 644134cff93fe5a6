"""Colours are changed as Pillow changes them, by whatever does the arithmetic."""

import numpy as np
import pytest
import torch
from PIL import Image

from stoker.device.colours import change, changed
from stoker.device.recipe import BRIGHTNESS, CONTRAST, HUE, SATURATION

SIDE = 48


def pictures(count: int, mode: str) -> list[Image.Image]:
    rng = np.random.default_rng(7)
    found = []
    for number in range(count):
        pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        if number % 3 == 0:  # gray, black and white are special to hue
            pixels[:] = pixels[:, :, :1]
            pixels[:8], pixels[8:16] = 0, 255
        if number % 3 == 1:
            pixels = (pixels // 8 + 20 * number % 200).astype(np.uint8)
        found.append(Image.fromarray(pixels).convert(mode))
    return found


def both(given: list[Image.Image], steps: list[tuple[tuple[int, float], ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    def numbers(some: list[Image.Image]) -> torch.Tensor:
        return torch.stack([torch.from_numpy(np.array(one).reshape(SIDE, SIDE, -1)).permute(2, 0, 1) for one in some])

    longest = max(map(len, steps))
    padded = [(*one, *[(0, 0.0)] * (longest - len(one))) for one in steps]
    got = numbers(given).contiguous()
    change(
        got, np.array([[kind for kind, _ in one] for one in padded]), np.array([[by for _, by in one] for one in padded])
    )
    return got, numbers([changed(one, some) for one, some in zip(given, steps, strict=True)])


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", [BRIGHTNESS, CONTRAST, SATURATION])
def test_any_factor(kind: int, mode: str) -> None:
    rng = np.random.default_rng(kind)
    factors = [0.0, 1.0, 0.5, 2.0, 1 / 3, 1.9999999, 0.9999999, *rng.uniform(0, 3, 120).tolist()]
    got, expected = both(pictures(len(factors), mode), [((kind, factor),) for factor in factors])
    assert torch.equal(got, expected)


def test_any_hue() -> None:
    got, expected = both(pictures(256, "RGB"), [((HUE, by),) for by in range(256)])
    assert torch.equal(got, expected)
    got, expected = both(pictures(3, "L"), [((HUE, 77),)] * 3)
    assert torch.equal(got, expected)


def test_several_in_any_order_beside_pictures_that_stay() -> None:
    rng = np.random.default_rng(1)
    steps: list[tuple[tuple[int, float], ...]] = []
    for number in range(90):
        order = rng.permutation([BRIGHTNESS, CONTRAST, SATURATION, HUE])[: number % 5]
        steps.append(
            tuple((int(kind), float(rng.integers(256) if kind == HUE else rng.uniform(0.6, 1.4))) for kind in order)
        )
    got, expected = both(pictures(90, "RGB"), steps)
    assert torch.equal(got, expected)
