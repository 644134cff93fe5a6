"""Crop, resize, window and flip of a whole batch on the device, as Pillow does them: its filters, its rounding, its order.

Pillow resizes along rows first, rounds to bytes, and then along columns. Its weights are numbers with 22 bits after the
point, made with double precision. `_weights` makes them, `_along_rows` and `_along_columns` apply them, each in one launch
for a batch.
"""

from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK, _VALUES = 128, 256


@triton.jit
def _weight(x, is_cubic):
    x = tl.abs(x)
    outer = tl.where(x < 2.0, (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5, 0.0)
    cubic = tl.where(x < 1.0, (1.5 * x - 2.5) * x * x + 1.0, outer)
    return tl.where(is_cubic, cubic, tl.where(x < 1.0, 1.0 - x, 0.0))


@triton.jit(do_not_specialize=["taps", "places"])
def _weights(table, starts, counts, weights, taps, axis: tl.constexpr, places, BLOCK: tl.constexpr):  # noqa: N803
    # One program: a part of the places along one axis of one picture.
    picture = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = table + picture * 16
    inside = tl.load(row + 7 + axis)
    to = tl.load(row + 9 + axis)
    is_cubic = tl.load(row + 11) == 3
    window = tl.load(row + 12 + axis)
    is_asked = place < places
    scale = inside.to(tl.float64) / to.to(tl.float64)
    wide = tl.maximum(scale, 1.0)
    support = tl.where(is_cubic, 2.0, 1.0) * wide
    center = ((place + window).to(tl.float64) + 0.5) * scale
    first = tl.maximum((center - support + 0.5).to(tl.int64), 0)
    last = tl.minimum((center + support + 0.5).to(tl.int64), inside)
    count = last - first
    total = tl.zeros([BLOCK], tl.float64)
    for tap in range(taps):
        weight = _weight(((tap + first).to(tl.float64) - center + 0.5) * (1.0 / wide), is_cubic)
        total += tl.where(tap < count, weight, 0.0)
    at = picture * places + place
    tl.store(starts + at, first.to(tl.int32), mask=is_asked)
    tl.store(counts + at, count.to(tl.int32), mask=is_asked)
    for tap in range(taps):
        weight = _weight(((tap + first).to(tl.float64) - center + 0.5) * (1.0 / wide), is_cubic)
        weight = tl.where(tap < count, weight, 0.0) / tl.where(total == 0.0, 1.0, total) * 4194304.0
        rounded = (weight + tl.where(weight < 0.0, -0.5, 0.5)).to(tl.int32)
        tl.store(weights + at * taps + tap, rounded, mask=is_asked)


@triton.jit(do_not_specialize=["taps", "columns"])
def _along_rows(
    pixels,
    table,
    starts,
    counts,
    weights,
    taps,
    between,
    columns,
    colours: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
):
    # One program: a row of one picture's crop. The result has all rows of the crop, and the places that are asked for.
    picture = tl.program_id(0)
    y = tl.program_id(1)
    row = table + picture * 16
    if y < tl.load(row + 8):
        width = tl.load(row + 3)
        step = tl.where(tl.load(row + 2) == 1, 1, 3).to(tl.int32)
        line = pixels + tl.load(row) + ((tl.load(row + 6) + y) * width + tl.load(row + 5)) * step
        target = between + tl.load(row + 15) + y * columns * colours
        for begin in range(0, columns * colours, BLOCK):
            value = begin + tl.arange(0, BLOCK)
            is_asked = value < columns * colours
            at = picture * columns + value // colours
            first = tl.load(starts + at, mask=is_asked, other=0)
            count = tl.load(counts + at, mask=is_asked, other=0)
            from_there = line + first * step + value % colours
            total = tl.full([BLOCK], 2097152, tl.int32)
            for tap in range(tl.max(count, 0)):
                is_there = is_asked & (tap < count)
                one = tl.load(from_there + tap * step, mask=is_there, other=0)
                total += one.to(tl.int32) * tl.load(weights + at * taps + tap, mask=is_there, other=0)
            tl.store(target + value, tl.minimum(tl.maximum(total >> 22, 0), 255).to(tl.uint8), mask=is_asked)


@triton.jit(do_not_specialize=["taps", "columns", "rows"])
def _along_columns(
    between,
    table,
    starts,
    counts,
    weights,
    taps,
    out,
    columns,
    rows,
    colours: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
):
    # One program: a row of one picture's result, whose colours then lie one after the other.
    picture = tl.program_id(0)
    y = tl.program_id(1)
    row = table + picture * 16
    flips = tl.load(row + 14)
    at = picture * rows + y
    first = tl.load(starts + at)
    count = tl.load(counts + at)
    source = between + tl.load(row + 15) + first * columns * colours
    target = out + (picture.to(tl.int64) * colours * rows + y) * columns
    for begin in range(0, columns * colours, BLOCK):
        value = begin + tl.arange(0, BLOCK)
        is_asked = value < columns * colours
        total = tl.full([BLOCK], 2097152, tl.int32)
        for tap in range(count):
            one = tl.load(source + tap * columns * colours + value, mask=is_asked, other=0)
            total += one.to(tl.int32) * tl.load(weights + at * taps + tap)
        x = value // colours
        place = (value % colours) * rows * columns + tl.where(flips == 1, columns - 1 - x, x)
        tl.store(target + place, tl.minimum(tl.maximum(total >> 22, 0), 255).to(tl.uint8), mask=is_asked)


def draw(pixels: torch.Tensor, table: torch.Tensor, facts: Any, out: torch.Tensor) -> None:
    """Draw a batch. A table's row is as in `recipe`, but its last column says where a picture's rows lie in between."""
    pictures, colours, rows, columns = out.shape
    sides = []
    for axis, places in ((0, columns), (1, rows)):
        taps = facts.taps[axis]
        starts, counts = torch.empty((2, pictures, places), dtype=torch.int32, device=out.device)
        weights = torch.empty((pictures, places, taps), dtype=torch.int32, device=out.device)
        grid = pictures, triton.cdiv(places, _BLOCK)
        _weights[grid](table, starts, counts, weights, taps, axis, places, BLOCK=_BLOCK)
        sides.append((starts, counts, weights, taps))
    between = torch.empty(facts.between_bytes, dtype=torch.uint8, device=out.device)
    grid = pictures, facts.highest
    _along_rows[grid](pixels, table, *sides[0], between, columns, colours=colours, BLOCK=_VALUES)
    _along_columns[(pictures, rows)](between, table, *sides[1], out, columns, rows, colours=colours, BLOCK=_VALUES)
