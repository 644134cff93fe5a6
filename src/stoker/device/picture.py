"""A stand-in for a picture, in workers: it knows its file's bytes, size and mode, and notes what is done with it.

While a worker records for the device, `PIL.Image.open` gives a `StandIn` for JPEG files that the hardware decodes. Crops,
resizes, flips and what Pillow's own `ImageEnhance` does to brightness, contrast and saturation are noted; anything else
decodes the file here, does what was noted, and goes on as a picture of Pillow's. The transforms' own code runs, and draws
from its own generators. Three functions of torchvision are known by name: two make a tensor of a picture, and get a
`Recorder`, so that no pixel is needed; one changes the hue by NumPy. `numpy.array` and all else get the pixels.
"""

import functools
import io
import math
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from PIL.JpegImagePlugin import JpegImageFile

from stoker.device import colours
from stoker.device.recipe import BRIGHTNESS, CONTRAST, HUE, SATURATION, Recipe, is_for_hardware
from stoker.device.recorder import Recorder

_really_open = Image.open


class StandIn(Image.Image):
    """A picture that is not decoded yet."""

    content: bytes
    recipe: Recipe | None
    """None once it is decoded."""
    _opened: Any = None
    """What Pillow knows of the file, if this is the file's picture itself."""

    @classmethod
    def of(cls, content: bytes, recipe: Recipe, mode: str, info: Any) -> "StandIn":
        """Stand in for what a recipe makes of a file."""
        self = cls()
        self.content, self.recipe = content, recipe
        self._mode, self._size, self.info = mode, recipe.size, info
        return self

    def _next(self, recipe: Recipe, mode: str | None = None) -> "StandIn":
        return StandIn.of(self.content, recipe, mode or self.mode, self.info.copy())

    @property
    def im(self) -> Any:
        """Pillow's pixels: who asks for them gets them."""
        self._decode()
        return self._im

    @im.setter
    def im(self, pixels: Any) -> None:
        self._im = pixels

    def _decode(self) -> None:
        recipe = self.recipe
        if recipe is None:
            return
        self._become(decoded(self.content, recipe, self.mode))

    def _become(self, real: Any) -> None:
        real.load()
        self._im, self._mode, self._size, self.recipe = real.im, real.mode, real.size, None

    def load(self) -> Any:
        """Decode it now."""
        self._decode()
        return super().load()

    def copy(self) -> Any:
        """A copy, not decoded either."""
        return super().copy() if self.recipe is None else self._next(self.recipe)

    def crop(self, box: Any = None) -> Any:
        """Note a crop."""
        if box is None:
            return self.copy()
        found = None if self.recipe is None else self.recipe.cropped(tuple(map(int, map(round, box))))  # type: ignore[arg-type]
        return super().crop(box) if found is None else self._next(found)

    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
        """Note a resize."""
        found = None
        if self.recipe is not None and box is None and reducing_gap is None:
            how = Image.Resampling.BICUBIC if resample is None else resample
            found = self.recipe.resized(tuple(size), int(how))
        return super().resize(size, resample, box, reducing_gap) if found is None else self._next(found)

    def transpose(self, method: Any) -> Any:
        """Note a flip."""
        if self.recipe is None or method != Image.Transpose.FLIP_LEFT_RIGHT:
            return super().transpose(method)
        return self._next(self.recipe.flipped())

    def convert(self, mode: Any = None, *arguments: Any, **named: Any) -> Any:
        """Note that gray is wanted in three colours, or that nothing changes."""
        is_noted = mode in (None, self.mode) or (mode, self.mode) == ("RGB", "L")
        if self.recipe is None or arguments or named or not is_noted:
            return super().convert(mode, *arguments, **named)
        return self._next(self.recipe, mode)

    def coloured(self, kind: int, by: float) -> Any:
        """Note a change of colours; None if it cannot be."""
        found = None if self.recipe is None or not math.isfinite(by) else self.recipe.coloured(kind, by)
        return None if found is None else self._next(found)

    def draft(self, mode: Any, size: Any) -> Any:
        """Decode it in a smaller size, as a file's picture can."""
        if self.recipe is None or self._opened is None:
            return None
        real: Any = _really_open(io.BytesIO(self.content))
        said = real.draft(mode, size)
        self._become(real)
        return said

    def __getattr__(self, name: str) -> Any:
        opened = self.__dict__.get("_opened")
        if opened is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(opened, name)

    def __reduce__(self) -> Any:
        return _plain, (self.mode, self.size, self.tobytes(), self.info)


def _plain(mode: str, size: tuple[int, int], content: bytes, info: Any) -> Any:
    """A picture of Pillow's."""
    real = Image.frombytes(mode, size, content)
    real.info = info
    return real


def decoded(content: bytes, recipe: Recipe, mode: str) -> Any:
    """What a recipe makes of a file, by Pillow."""
    picture: Any = _really_open(io.BytesIO(content))
    if picture.mode != mode:
        picture = picture.convert(mode)
    left, top, width, height = recipe.crop
    picture = picture.crop((left, top, left + width, top + height))
    if recipe.to is not None:
        picture = picture.resize(recipe.to, recipe.filter)
    if recipe.window is not None:
        left, top, width, height = recipe.window
        picture = picture.crop((left, top, left + width, top + height))
    if recipe.flips:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return colours.changed(picture, recipe.steps)


class Undecoded:
    """The bytes of a picture that is not decoded yet, as a recorder's content."""

    def __init__(self, picture: StandIn, *, by_pixel: bool) -> None:
        assert picture.recipe is not None
        self.file, self.recipe, self._mode = picture.content, picture.recipe, picture.mode
        width, height = picture.size
        colours = len(picture.getbands())
        self.shape: tuple[int, ...] = (colours, height, width)
        self.stride: tuple[int, ...] = (1, width * colours, colours) if by_pixel else (height * width, width, 1)

    def bytes(self) -> torch.Tensor:
        """The bytes, decoded here."""
        pixels = np.array(decoded(self.file, self.recipe, self._mode))
        return torch.from_numpy(pixels.reshape(*self.shape[1:], self.shape[0])).permute(2, 0, 1)


def _opened(fp: Any, mode: Any = "r", formats: Any = None) -> Any:
    """`PIL.Image.open`, with a stand-in for what the hardware decodes."""
    real: Any = _really_open(fp, mode, formats)
    if type(real) is not JpegImageFile or real.mode not in ("RGB", "L") or real.fp is None:
        return real
    place = real.fp.tell()
    real.fp.seek(0)
    content = real.fp.read()
    if type(content) is not bytes or not is_for_hardware(content):
        real.fp.seek(place)
        return real
    _watch_torchvision()
    width, height = real.size
    standing = StandIn.of(content, Recipe(width, height, (0, 0, width, height)), real.mode, real.info.copy())
    standing.format, standing.format_description, standing._opened = real.format, real.format_description, real
    if real._exclusive_fp:
        real.fp.close()
    return standing


def begin() -> None:
    """In a worker: from now on pictures are stood in for."""
    Image.open = _opened
    for kind, enhancer in _ENHANCERS.items():
        if _OURS not in enhancer.__dict__:
            setattr(enhancer, _OURS, kind)
            enhancer.__getattr__ = functools.partialmethod(_begun_late, enhancer.__init__)
            enhancer.__init__ = functools.partialmethod(_begin_enhancing, enhancer.__init__)
            enhancer.enhance = functools.partialmethod(_enhanced, enhancer.enhance)
    _watch_torchvision()


_OURS = "_stoker_stands_in"
_ENHANCERS: dict[int, Any] = {
    BRIGHTNESS: ImageEnhance.Brightness,
    CONTRAST: ImageEnhance.Contrast,
    SATURATION: ImageEnhance.Color,
}


def _begin_enhancing(self: Any, before: Callable[..., None], image: Any) -> None:
    if _is_undecoded(image):
        self.image = image
    else:
        before(self, image)


def _begun_late(self: Any, before: Callable[..., None], name: str) -> Any:
    """What else Pillow's class has: it needs the pixels."""
    if name.startswith("__") or "degenerate" in self.__dict__ or "image" not in self.__dict__:
        raise AttributeError(name)
    before(self, self.image)
    return getattr(self, name)


def _enhanced(self: Any, before: Callable[..., Any], factor: float) -> Any:
    found = self.image.coloured(getattr(self, _OURS), float(factor)) if type(self.image) is StandIn else None
    return before(self, factor) if found is None else found


def _watch_torchvision() -> None:
    for name, asks in _ASKS.items():
        module = sys.modules.get(name)
        if module is not None and _OURS not in module.__dict__ and all(hasattr(module, function) for function in asks):
            _watch_module(module, asks)


def _watch_module(module: Any, asks: Mapping[str, Any]) -> None:
    module.__dict__[_OURS] = ours = {}
    for name, (ask, make) in asks.items():
        function = getattr(module, name)
        if type(function) is types.FunctionType and not function.__code__.co_freevars:
            # The code, not the function: others have imported it before.
            before = types.FunctionType(function.__code__, function.__globals__, name)
            ours[name] = functools.partial(make, before)
            function.__code__ = ask.__code__


def _is_undecoded(picture: Any) -> bool:
    return type(picture) is StandIn and picture.recipe is not None


def _make_numbers(before: Callable[[Any], Any], picture: Any) -> Any:
    if not _is_undecoded(picture) or torch.get_default_dtype() is not torch.float32:
        return before(picture)
    return Recorder(Undecoded(picture, by_pixel=False), (("div", 255),))


def _make_bytes(before: Callable[[Any], Any], picture: Any) -> Any:
    return Recorder(Undecoded(picture, by_pixel=True), None) if _is_undecoded(picture) else before(picture)


def _turn_hue(before: Callable[[Any, float], Any], picture: Any, factor: float) -> Any:
    found = None
    if _is_undecoded(picture) and -0.5 <= factor <= 0.5:
        found = picture.coloured(HUE, int(factor * 255) % 256)
    return before(picture, factor) if found is None else found


def _ask_to_tensor(pic: Any) -> Any:
    return _stoker_stands_in["to_tensor"](pic)  # type: ignore[name-defined] # noqa: F821


def _ask_pil_to_tensor(pic: Any) -> Any:
    return _stoker_stands_in["pil_to_tensor"](pic)  # type: ignore[name-defined] # noqa: F821


def _ask_adjust_hue(img: Any, hue_factor: float) -> Any:
    return _stoker_stands_in["adjust_hue"](img, hue_factor)  # type: ignore[name-defined] # noqa: F821


_ASKS: dict[str, dict[str, tuple[Any, Any]]] = {
    "torchvision.transforms.functional": {
        "to_tensor": (_ask_to_tensor, _make_numbers),
        "pil_to_tensor": (_ask_pil_to_tensor, _make_bytes),
    },
    "torchvision.transforms._functional_pil": {"adjust_hue": (_ask_adjust_hue, _turn_hue)},
}
