"""Brightness, contrast, saturation and hue of pictures, changed on the device as Pillow changes them: byte for byte.

Each step is done by itself and ends in bytes, as Pillow's do. Three of them mix a picture with another one: a black one,
one of its mean gray, its own gray. For hue Pillow's own conversions are looked up, of all 2^24 colours: then there is
nothing to round.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance

from stoker.device.recipe import BRIGHTNESS, CONTRAST, HUE, SATURATION, Step

_AT_ONCE = 64
"""So many pictures are changed together: numbers take four times the memory of bytes, and there are several of them."""
_GRAY = 19595, 38470, 7471
_HALF, _SHIFT = 32768, 16


def changed(picture: Any, steps: tuple[Step, ...]) -> Any:
    """A picture of Pillow's after some steps, by Pillow."""
    kinds: dict[int, Any] = {
        BRIGHTNESS: ImageEnhance.Brightness,
        CONTRAST: ImageEnhance.Contrast,
        SATURATION: ImageEnhance.Color,
    }
    for kind, by in steps:
        picture = _turned(picture, int(by)) if kind == HUE else kinds[kind](picture).enhance(by)
    return picture


def _turned(picture: Any, by: int) -> Any:
    if picture.mode == "L":
        return picture
    hue, saturation, value = picture.convert("HSV").split()
    hue = hue.point([(number + by) % 256 for number in range(256)])
    return Image.merge("HSV", (hue, saturation, value)).convert(picture.mode)


def change(pictures: torch.Tensor, kinds: Any, by: Any) -> None:
    """Change bytes of pictures x colours x rows x columns. `kinds` and `by` have a row for each picture, of its steps."""
    for step in range(kinds.shape[1]):
        for kind, act in _ACTS.items():
            numbers = np.flatnonzero(kinds[:, step] == kind)
            for some in np.array_split(numbers, -(-len(numbers) // _AT_ONCE)) if len(numbers) else ():
                which = torch.from_numpy(some).to(pictures.device)
                values = torch.from_numpy(by[some, step].astype(np.float32)).to(pictures.device)
                pictures[which] = act(pictures[which], values.view(-1, 1, 1, 1))


def _mixed(first: torch.Tensor, second: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Bytes on the line from the first through the second. Each operation by itself: fused ones would round otherwise."""
    first = first.to(torch.float32)
    return second.to(torch.float32).sub_(first).mul_(by).add_(first).clamp_(0, 255).to(torch.uint8)


def _gray(pictures: torch.Tensor) -> torch.Tensor:
    if pictures.shape[1] == 1:
        return pictures
    colours = pictures.to(torch.int32).unbind(1)
    total = torch.full_like(colours[0], _HALF)
    for colour, weight in zip(colours, _GRAY, strict=True):
        total += colour * weight
    return (total >> _SHIFT).unsqueeze(1)


def _brighter(pictures: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return _mixed(torch.zeros_like(pictures), pictures, by)


def _with_contrast(pictures: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    total = _gray(pictures).sum((1, 2, 3), dtype=torch.int64)
    count = torch.tensor(pictures.shape[2] * pictures.shape[3], dtype=torch.float64, device=pictures.device)
    mean = (total.to(torch.float64) / count + 0.5).to(torch.int64)
    return _mixed(mean.view(-1, 1, 1, 1).expand_as(pictures), pictures, by)


def _saturated(pictures: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return _mixed(_gray(pictures).expand_as(pictures), pictures, by)


def _of_other_hue(pictures: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    if pictures.shape[1] == 1:
        return pictures
    there, back = _conversions(pictures.device)
    found = _looked_up(there, pictures)
    found[:, 0] += by.view(-1, 1, 1).to(torch.uint8)
    return _looked_up(back, found)


_ACTS: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    BRIGHTNESS: _brighter,
    CONTRAST: _with_contrast,
    SATURATION: _saturated,
    HUE: _of_other_hue,
}


@functools.cache
def _conversions(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Hue, saturation and value of each colour, and back, as Pillow converts them: rows of three bytes."""
    numbers = np.arange(1 << 24, dtype=np.uint32)
    every = np.stack([(numbers >> shift).astype(np.uint8) for shift in (16, 8, 0)], 1).reshape(4096, 4096, 3)
    found = []
    for before, after in (("RGB", "HSV"), ("HSV", "RGB")):
        whole = Image.frombuffer(before, (4096, 4096), every.tobytes(), "raw", before, 0, 1)
        found.append(torch.from_numpy(np.array(whole.convert(after)).reshape(-1, 3)).to(device))
    return found[0], found[1]


def _looked_up(table: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
    first, second, third = pictures.to(torch.int32).unbind(1)
    numbers = (first << 16) + (second << 8) + third
    rows = table.index_select(0, numbers.view(-1))
    return rows.view(*numbers.shape, 3).permute(0, 3, 1, 2).contiguous()
