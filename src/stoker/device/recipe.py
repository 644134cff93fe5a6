"""What is done to a picture, from its file to its bytes: a crop, a resize, a window of the result, a flip, other colours.

    file --decode--> pixels --crop--> --resize with a filter--> --window--> --flip--> --steps of colour--> bytes

Whatever a script does with crops, resizes and flips becomes these, as long as there is one resize, and colours change after
crops and resizes. A flip may come at any time: it changes no colour. Everything here is pure.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

BILINEAR, BICUBIC = 2, 3
"""Pillow's numbers of the filters that the device knows."""

SMALLEST_SIDE, LARGEST_SIDE = 64, 16384
_BASELINE = 0xC0
_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_SAMPLINGS = frozenset({(0x11,), (0x22,), (0x21,), (0x11, 0x11, 0x11), (0x21, 0x11, 0x11), (0x22, 0x11, 0x11)})
_END = b"\xff\xd9"
_LOOKED_AT_END = 64

BRIGHTNESS, CONTRAST, SATURATION, HUE = 1, 2, 3, 4
"""What a step of colour changes: three by a factor, hue by a number of 256ths of a circle."""
MOST_STEPS = 4
Step = tuple[int, float]

DRAWN = ("offset", "length", "is_pixels", "width", "height", "left", "top", "crop_width", "crop_height", "to_width",
         "to_height", "filter", "window_left", "window_top", "flips")  # fmt: skip
COLUMNS = (*DRAWN, *(f"{part}_{step}" for step in range(MOST_STEPS) for part in ("step", "by")))
"""A row of the table that travels with a batch's files: where a picture's bytes lie, and what is done with it."""
_NO_STEPS = (0,) * (2 * MOST_STEPS)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What was done to a picture so far."""

    width: int
    height: int
    """Of the file's picture."""
    crop: tuple[int, int, int, int]
    """Left, top, width and height in the file's picture."""
    to: tuple[int, int] | None = None
    """The width and height that the crop was resized to."""
    filter: int = BILINEAR
    window: tuple[int, int, int, int] | None = None
    """Left, top, width and height in what was resized."""
    flips: bool = False
    steps: tuple[Step, ...] = ()
    """Of colour, one after the other."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the result."""
        last = self.window or self.crop
        return last[2], last[3]

    def cropped(self, box: tuple[int, int, int, int]) -> "Recipe | None":
        """The picture between left, top, right and bottom; None if a part of that lies outside."""
        left, top, right, bottom = box
        width, height = self.size
        if (left, top, right, bottom) == (0, 0, width, height):
            return self
        if self.steps or not (0 <= left < right <= width and 0 <= top < bottom <= height):
            return None
        if self.flips:
            left, right = width - right, width - left
        before = self.window or self.crop
        inner = before[0] + left, before[1] + top, right - left, bottom - top
        return replace(self, crop=inner) if self.window is None else replace(self, window=inner)

    def resized(self, size: tuple[int, int], how: int) -> "Recipe | None":
        """The picture in another size; None if the device does not know the filter, or it was resized before."""
        if size == self.size:
            return self
        if self.steps or self.to is not None or how not in (BILINEAR, BICUBIC) or min(size) < 1:
            return None
        return replace(self, to=size, filter=how, window=(0, 0, *size))

    def flipped(self) -> "Recipe":
        """The picture with left and right exchanged."""
        return replace(self, flips=not self.flips)

    def coloured(self, kind: int, by: float) -> "Recipe | None":
        """The picture after one more step of colour; None if there are too many."""
        return None if len(self.steps) == MOST_STEPS else replace(self, steps=(*self.steps, (kind, by)))

    def row(self, offset: int, length: int) -> tuple[int, ...]:
        """This recipe as a row of the table, for a file that lies there."""
        window = self.window or (0, 0, 0, 0)
        to = self.to or self.crop[2:]
        steps = tuple(part for kind, by in self.steps for part in (kind, _bits_of(by)))
        drawn = (offset, length, 0, self.width, self.height, *self.crop, *to, self.filter, *window[:2], int(self.flips))
        return *drawn, *steps, *_NO_STEPS[len(steps) :]


def row_of_pixels(offset: int, width: int, height: int, colours: int) -> tuple[int, ...]:
    """A row of the table for a picture whose pixels lie there already, with so many colours side by side."""
    whole = width, height, 0, 0, width, height, width, height
    return offset, width * height * colours, colours, *whole, BILINEAR, 0, 0, 0, *_NO_STEPS


def steps_in(row: Sequence[int]) -> tuple[Step, ...]:
    """The steps of colour of a table's row."""
    told = row[len(DRAWN) :]
    return tuple((kind, _number_of(bits)) for kind, bits in zip(told[::2], told[1::2], strict=True) if kind)


def _bits_of(by: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", by))[0])


def _number_of(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def is_for_hardware(content: bytes) -> bool:
    """Whether the hardware decodes a JPEG file as Pillow does: baseline, 4:4:4, 4:2:2, 4:2:0 or gray, and not cut off."""
    if content[:2] != b"\xff\xd8" or content.rfind(_END, -_LOOKED_AT_END) < 0:
        return False
    at, length, transforms = 2, len(content), True
    while at + 10 < length and content[at] == 0xFF:
        kind = content[at + 1]
        if kind in _ALONE or kind == 0xFF:
            at += 1 if kind == 0xFF else 2
            continue
        size = int.from_bytes(content[at + 2 : at + 4], "big")
        if kind == 0xEE and content[at + 4 : at + 9] == b"Adobe":  # 0: the three colours are red, green and blue
            transforms = content[at + 15] == 1
        elif 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            return kind == _BASELINE and _is_known(content[at : at + 2 + size], transforms=transforms)
        elif kind == 0xDA:
            return False
        at += 2 + size
    return False


def _is_known(frame: bytes, *, transforms: bool) -> bool:
    height, width, parts = int.from_bytes(frame[5:7], "big"), int.from_bytes(frame[7:9], "big"), frame[9]
    ids, samplings = bytes(frame[10 : 10 + 3 * parts : 3]), tuple(frame[11 : 11 + 3 * parts : 3])
    return (
        frame[4] == 8
        and min(width, height) >= SMALLEST_SIDE
        and max(width, height) <= LARGEST_SIDE
        and samplings in _SAMPLINGS
        and (parts == 1 or (transforms and ids != b"RGB"))
    )
