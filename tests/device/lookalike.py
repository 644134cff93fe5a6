"""Two functions as torchvision has them, and transforms around them: torchvision itself needs CUDA's libraries here."""

import random
from typing import Any

import numpy as np
import torch
from PIL import Image

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pil_to_tensor(pic: Any) -> torch.Tensor:
    pixels = torch.as_tensor(np.array(pic, copy=True))
    return pixels.view(pic.size[1], pic.size[0], len(pic.getbands())).permute((2, 0, 1))


def to_tensor(pic: Any) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(pic, np.uint8, copy=True))
    planes = pixels.view(pic.size[1], pic.size[0], len(pic.getbands())).permute((2, 0, 1)).contiguous()
    return planes.to(dtype=torch.get_default_dtype()).div(255)


def normalized(numbers: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.as_tensor(values[: len(numbers)]).view(-1, 1, 1) for values in (MEAN, STD))
    return numbers.clone().sub_(mean).div_(std)


def random_crop(picture: Any, side: int = 64) -> Any:
    """A crop of random place and size, resized, and flipped half of the time."""
    width, height = picture.size
    wide, high = random.randint(40, width), random.randint(40, height)
    left, top = random.randint(0, width - wide), random.randint(0, height - high)
    picture = picture.crop((left, top, left + wide, top + high)).resize((side, side), Image.Resampling.BILINEAR)
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(()) < 0.5 else picture


def middle(picture: Any, side: int = 64) -> Any:
    """The shorter side resized, and the middle of that."""
    width, height = picture.size
    short = min(width, height)
    picture = picture.resize((width * 80 // short, height * 80 // short), Image.Resampling.BICUBIC)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))
