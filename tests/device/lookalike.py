"""Three functions as torchvision has them, and transforms around them: torchvision itself needs CUDA's libraries here."""

import random
import sys
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pil_to_tensor(pic: Any) -> torch.Tensor:
    pixels = torch.as_tensor(np.array(pic, copy=True))
    return pixels.view(pic.size[1], pic.size[0], len(pic.getbands())).permute((2, 0, 1))


def to_tensor(pic: Any) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(pic, np.uint8, copy=True))
    planes = pixels.view(pic.size[1], pic.size[0], len(pic.getbands())).permute((2, 0, 1)).contiguous()
    return planes.to(dtype=torch.get_default_dtype()).div(255)


def adjust_hue(img: Any, hue_factor: float) -> Any:
    if not (-0.5 <= hue_factor <= 0.5):
        raise ValueError(f"hue_factor ({hue_factor}) is not in [-0.5, 0.5].")
    if img.mode in {"L", "1", "I", "F"}:
        return img
    hue, saturation, value = img.convert("HSV").split()
    turned = np.array(hue, dtype=np.uint8)
    turned += np.array(hue_factor * 255).astype(np.int32).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert(img.mode)


def jittered(picture: Any) -> Any:
    """Brightness, contrast, saturation and hue of random strength in random order."""
    functional: Any = sys.modules["torchvision.transforms._functional_pil"]
    enhancers = ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color
    for kind in torch.randperm(4).tolist():
        by = float(torch.empty(1).uniform_(-0.4, 0.4))
        picture = functional.adjust_hue(picture, by) if kind == 3 else enhancers[kind](picture).enhance(1 + by)
    return picture


def installed(monkeypatch: Any) -> None:
    """Have the functions where torchvision has them, each with code of its own."""
    for name, functions in {"functional": (to_tensor, pil_to_tensor), "_functional_pil": (adjust_hue,)}.items():
        module = type(sys)(f"torchvision.transforms.{name}")
        for function in functions:
            own = type(function)(function.__code__, module.__dict__, function.__name__)
            module.__dict__.update({"np": np, "torch": torch, "Image": Image, "Any": Any, function.__name__: own})
        monkeypatch.setitem(sys.modules, module.__name__, module)


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
