"""GridSample of images by machine code: bilinear and nearest, with zeros or the border's elements outside.

```text
point of the grid ── place ──> addresses of its 1 or 4 pixels, and their weights ── over the channels ──> an output
```

A pixel outside that reads as zero has the address of zeros, so that a weight that is NaN still counts. Channels that lie side by side
are vectors; if the result has its points side by side, a block of points is computed and turned in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.compiler import name_fields
from hetero_cpu.machine.memory import cut_scratch, measure_scratch
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.images import has_channel_vectors
from hetero_cpu.operators.layout import plan_copy, turn_vectors
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import choose_rows_of_chunk, make_unit_kernel
from hetero_cpu.symbols.arrays import lay_empty, lay_table
from hetero_cpu.symbols.sizes import is_open, is_same

_PARAMETERS = (
    "x", "x_image", "x_channel", "x_row", "x_pixel", "channels", "height", "width", "grid", "grid_image", "grid_row",
    "grid_point", "grid_axis", "zeros",
    "y", "y_image", "y_channel", "y_row", "y_pixel", "rows", "pixels", "blocks", "units", "units_of_chunk",
)  # fmt: skip
"""Addresses, sizes, and strides in bytes. A unit is a block of the `pixels` of a row of y; `rows` of an image of y."""
_POINTS = 64
"""Points of a block: a multiple of the elements of a vector."""
_FEWEST_CHANNELS = 8
"""Channels from which on they are brought side by side."""
_MODES = {"bilinear": False, "linear": False, "nearest": True}


@dataclass(frozen=True, slots=True)
class _Sampling:
    """The facts that are compiled in: the attributes, the grid's type, and whether x has vectors of channels, and y of points."""

    is_nearest: bool
    has_zeros: bool
    aligns_corners: bool
    is_double: bool
    has_vectors: bool
    is_turned: bool


def plan_grid_sample(site: Site) -> Recipe | None:
    """Returns the recipe of images sampled at the positions of a grid. Source: ONNX GridSample-22."""
    values = source, name = tuple(site.node.inputs)
    attributes, x, grid = site.node.attributes, site.prototypes[source], site.prototypes[name]
    mode, padding = _MODES.get(attributes.get("mode", "linear")), attributes.get("padding_mode", "zeros")
    if mode is None or padding not in ("zeros", "border") or not site.is_float32(source):
        return None
    if grid.dtype.name not in ("float32", "float64") or x.ndim != 4 or grid.ndim != 4:
        return None
    if grid.shape[-1] != 2 or grid.shape[0] != x.shape[0]:
        return None
    is_last, is_single = site.is_channels_last(source), not is_open(x.shape[1]) and x.shape[1] < _FEWEST_CHANNELS
    may_have_vectors = not is_single or (is_last and x.shape[1] > 1)
    # An image is read in place, or as a copy (batch, height, width, channels).
    laid = x.transpose(0, 2, 3, 1)
    is_copied = may_have_vectors and not has_channel_vectors(x)
    copy = plan_copy(lay_empty(laid.shape, np.float32), laid, workers=site.workers) if is_copied else None
    has_vectors = may_have_vectors and (copy is not None or not is_copied)
    aligns_corners, is_double = bool(attributes.get("align_corners", 0)), grid.dtype == np.float64
    sampling = _Sampling(mode, padding == "zeros", aligns_corners, is_double, has_vectors, has_vectors and not is_last)
    kernel = make_unit_kernel(f"grid_sample_{name_fields(sampling)}", _PARAMETERS, partial(_emit, sampling=sampling), unit="unit")

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        (x, grid), y, copies = reads, writes[0], []
        if copy is not None:
            (image,) = cut_scratch(scratch, [laid.shape])
            copies, x = [copy.bind(image, x.transpose(0, 2, 3, 1))], image.transpose(0, 3, 1, 2)
        batch, channels, rows, pixels = y.shape
        if not is_last and is_same(grid.strides[1], pixels * grid.strides[2]):
            # The rows of an image are a single one.
            rows, pixels = 1, rows * pixels
        blocks = -(-pixels // _POINTS)
        units, units_of_chunk = batch * rows * blocks, choose_rows_of_chunk(batch * rows * blocks, _POINTS * channels, site.workers)
        zeros = lay_table(partial(np.zeros, dtype=np.float32), (channels,))
        numbers = (
            address_of(x), *x.strides, channels, *x.shape[2:], address_of(grid), *grid.strides, address_of(zeros),
            address_of(y), *y.strides, rows, pixels, blocks, units, units_of_chunk,
        )  # fmt: skip
        return [*copies, NativeCall(kernel, numbers, -(-units // units_of_chunk), (x, grid, zeros, y))]

    kernels, shapes = ((kernel,), []) if copy is None else ((copy.kernel, kernel), [laid.shape])
    return Recipe(values, bind, measure_scratch(shapes), is_channels_last=is_last, kernels=kernels)


_Tap = tuple[Number, Number, Floats]
"""A pixel that a point reads: the address of its first channel, the stride to the next one, and its weight."""


def _emit(code: Code, p: dict[str, Number], unit: Number, *, sampling: _Sampling) -> None:
    width = code.width
    table = code.reserve(width * _TABLE_NUMBERS) if sampling.is_turned else code.number(0)
    line, block = unit // p["blocks"], unit % p["blocks"]
    image, row = line // p["rows"], line % p["rows"]
    x, y = p["x"] + image * p["x_image"], p["y"] + image * p["y_image"] + row * p["y_row"]
    grid, first = p["grid"] + image * p["grid_image"] + row * p["grid_row"], block * _POINTS
    end = (first + _POINTS).at_most(p["pixels"])
    if sampling.is_turned:
        with code.loop(first, end, width) as begin:
            count = (end - begin).at_most(width)
            with code.loop(0, width) as point:
                # Beyond the last point stands the last point again.
                taps = _find_taps(code, p, x, grid + (begin + point.at_most(count - 1)) * p["grid_point"], sampling)
                for position, (address, _, weight) in enumerate(taps):
                    place = table + point * (8 * _TABLE_NUMBERS) + 16 * position
                    code.store(place, address)
                    code.store(place, weight, 8)
            _emit_turned(code, p, table, y + begin * FLOAT_BYTES, count, len(taps))
    else:
        with code.loop(first, end) as point:
            taps = _find_taps(code, p, x, grid + point * p["grid_point"], sampling)
            _emit_point(code, p, taps, y + point * p["y_pixel"], has_vectors=sampling.has_vectors)


_TABLE_NUMBERS = 8
"""Numbers of a point in the table of a block: addresses and weights in turns."""


def _find_taps(code: Code, p: dict[str, Number], x: Number, point: Number, sampling: _Sampling) -> list[_Tap]:
    """Returns the pixels of a point, row by row."""
    axes, kind = [], "float64" if sampling.is_double else "float32"
    for coordinate, size in ((point + p["grid_axis"], p["height"]), (point, p["width"])):
        length: Any = code.convert_element(size, kind)
        place: Any = code.load_element(coordinate, kind) + 1.0
        place = place * 0.5 * (length - 1.0) if sampling.aligns_corners else (place * length - 1.0) * 0.5
        if not sampling.has_zeros:
            place = place.at_least(-3.0).at_most(length + 2.0)
        below = code.call_intrinsic("rint" if sampling.is_nearest else "floor", place)
        # Whole numbers that need no more than two pixels outside; a NaN is outside.
        near = (below > -2.0).choose(below, below.constant(-2.0)).at_most(length)
        index, fraction = code.convert_element(near, "int64"), place - below
        assert isinstance(index, Number)
        neighbours = ((0, fraction.constant(1.0)),) if sampling.is_nearest else ((0, 1.0 - fraction), (1, fraction))
        axes.append([(index + offset, size, weight) for offset, weight in neighbours])
    taps = []
    for (row, height, down), (column, width, right) in product(*axes):
        address = x + row.at_least(0).at_most(height - 1) * p["x_row"] + column.at_least(0).at_most(width - 1) * p["x_pixel"]
        step = p["x_channel"]
        if sampling.has_zeros:
            is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            address, step = is_inside.choose(address, p["zeros"]), is_inside.choose(step, code.number(0))
        weight = down * right
        taps.append((address, step, code.narrow(weight) if sampling.is_double else weight))
    return taps


def _emit_point(code: Code, p: dict[str, Number], taps: Sequence[_Tap], y: Number, *, has_vectors: bool) -> None:
    """Writes the channels of a point."""
    if has_vectors:
        weights = [code.spread(weight) for _, _, weight in taps]

        def add(channel: Number, mask: Mask | None) -> None:
            pixels = [code.load(address + channel * FLOAT_BYTES, mask=mask) for address, _, _ in taps]
            code.store(y + channel * FLOAT_BYTES, _weigh(code, pixels, weights), mask=mask)

        code.visit_vectors(p["channels"], add)
    else:
        with code.loop(0, p["channels"]) as channel:
            pixels = [code.load_scalar(address + channel * step) for address, step, _ in taps]
            code.store(y + channel * p["y_channel"], _weigh(code, pixels, [weight for _, _, weight in taps]))


def _emit_turned(code: Code, p: dict[str, Number], table: Number, y: Number, count: Number, taps: int) -> None:
    """Writes the channels of a block of `count` points, whose pixels are in the table."""

    def add(channel: Number, mask: Mask | None) -> None:
        vectors = []
        for point in range(code.width):
            entries = [8 * _TABLE_NUMBERS * point + 16 * tap for tap in range(taps)]
            pixels = [code.load(code.load_number(table, entry) + channel * FLOAT_BYTES, mask=mask) for entry in entries]
            vectors.append(_weigh(code, pixels, [code.spread(code.load_scalar(table, entry + 8)) for entry in entries]))
        for position, vector in enumerate(turn_vectors(vectors)):
            row = channel + position
            points = count if mask is None else (row < p["channels"]).choose(count, code.number(0))
            code.store(y + row * p["y_channel"], vector, mask=code.mask_first(points))

    code.visit_vectors(p["channels"], add)


def _weigh(code: Code, pixels: Sequence[Floats], weights: Sequence[Floats]) -> Floats:
    """Returns the weighted sum of the pixels of a point; a single pixel as it is."""
    if len(pixels) == 1:
        return pixels[0]
    total = pixels[0] * weights[0]
    for pixel, weight in zip(pixels[1:], weights[1:], strict=True):
        total = code.multiply_add(pixel, weight, total)
    return total
