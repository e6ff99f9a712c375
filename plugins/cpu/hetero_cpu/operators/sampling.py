"""Bilinear GridSample of images by machine code, with zeros or the border's elements outside.

```text
point of the grid ── place ──> addresses of its four pixels, and their weights ── over the channels ──> an output
```

A pixel outside that reads as zero has the address of zeros, so that a weight that is NaN still counts. Channels that lie side by side
are vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, name_fields
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import choose_rows_of_chunk
from hetero_cpu.symbols.arrays import lay_table

_PARAMETERS = (
    "x", "x_image", "x_channel", "x_row", "x_pixel", "channels", "height", "width", "grid", "grid_image", "grid_row",
    "grid_point", "grid_axis", "zeros", "y", "y_image", "y_channel", "y_row", "y_pixel", "rows", "pixels", "lines", "lines_of_chunk",
)  # fmt: skip
"""Addresses, sizes, and strides in bytes; `rows` of an image of y, `lines`: rows of all images."""


@dataclass(frozen=True, slots=True)
class _Sampling:
    """The facts that are compiled in: the attributes, and whether channels are vectors."""

    has_zeros: bool
    aligns_corners: bool
    has_vectors: bool


def plan_grid_sample(site: Site) -> Recipe | None:
    """Returns the recipe of images sampled at the positions of a grid. Source: ONNX GridSample-22."""
    values = source, name = tuple(site.node.inputs)
    attributes, x, grid = site.node.attributes, site.prototypes[source], site.prototypes[name]
    padding = attributes.get("padding_mode", "zeros")
    if attributes.get("mode", "linear") not in ("bilinear", "linear") or padding not in ("zeros", "border") or site.group.epilogue:
        return None
    if not site.is_float32(*values) or x.ndim != 4 or grid.shape[0] != x.shape[0] or 0 in (*x.shape, *grid.shape):
        return None
    is_last = site.is_channels_last(source)
    sampling = _Sampling(padding == "zeros", bool(attributes.get("align_corners", 0)), is_last)
    kernel = Kernel(f"grid_sample_{name_fields(sampling)}", partial(_emit, sampling=sampling))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        (x, grid), (y,) = reads, writes
        batch, channels, rows, pixels = y.shape
        lines, lines_of_chunk = batch * rows, choose_rows_of_chunk(batch * rows, pixels * channels, site.workers)
        zeros = lay_table(_make_zeros, (channels,))
        numbers = (
            address_of(x), *x.strides, channels, *x.shape[2:], address_of(grid), *grid.strides, address_of(zeros),
            address_of(y), *y.strides, rows, pixels, lines, lines_of_chunk,
        )  # fmt: skip
        return [NativeCall(kernel, numbers, -(-lines // lines_of_chunk), (x, grid, zeros, y))]

    return Recipe(values, bind, is_channels_last=is_last, kernels=(kernel,))


def _make_zeros(count: int) -> Array:
    return np.zeros(count, np.float32)


@dataclass(frozen=True, slots=True)
class _Tap:
    """A pixel that a point reads: the address of its first channel, the stride to the next one, and its weight."""

    address: Number
    step: Number
    weight: Floats


def _emit(name: str, width: int, *, sampling: _Sampling) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, _PARAMETERS)
    with code.visit_chunk(chunk, p["lines_of_chunk"], p["lines"]) as line:
        image, row = line // p["rows"], line % p["rows"]
        x, y = p["x"] + image * p["x_image"], p["y"] + image * p["y_image"] + row * p["y_row"]
        grid = p["grid"] + image * p["grid_image"] + row * p["grid_row"]
        with code.loop(0, p["pixels"]) as point:
            taps = _find_taps(code, p, x, grid + point * p["grid_point"], sampling)
            _emit_point(code, p, taps, y + point * p["y_pixel"], has_vectors=sampling.has_vectors)
    return code.finish()


def _find_taps(code: Code, p: dict[str, Number], x: Number, point: Number, sampling: _Sampling) -> list[_Tap]:
    """Returns the pixels of a point, row by row."""
    axes = []
    for coordinate, size in ((point + p["grid_axis"], p["height"]), (point, p["width"])):
        length, place = code.float_from(size), code.load_scalar(coordinate) + 1.0
        place = place * 0.5 * (length - 1.0) if sampling.aligns_corners else (place * length - 1.0) * 0.5
        if not sampling.has_zeros:
            place = place.at_least(-3.0).at_most(length + 2.0)
        below = code.call_intrinsic("floor", place)
        # Whole numbers that need no more than two pixels outside; a NaN is outside.
        near = (below > -2.0).choose(below, below.constant(-2.0)).at_most(length)
        index, fraction = code.convert_element(near, "int64"), place - below
        assert isinstance(index, Number)
        axes.append([(index + offset, size, weight) for offset, weight in ((0, 1.0 - fraction), (1, fraction))])
    taps = []
    for (row, height, down), (column, width, right) in product(*axes):
        address = x + row.at_least(0).at_most(height - 1) * p["x_row"] + column.at_least(0).at_most(width - 1) * p["x_pixel"]
        step = p["x_channel"]
        if sampling.has_zeros:
            is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            address, step = is_inside.choose(address, p["zeros"]), is_inside.choose(step, code.number(0))
        taps.append(_Tap(address, step, down * right))
    return taps


def _emit_point(code: Code, p: dict[str, Number], taps: Sequence[_Tap], y: Number, *, has_vectors: bool) -> None:
    """Writes the channels of a point."""
    if has_vectors:
        weights = [code.spread(tap.weight) for tap in taps]

        def add(channel: Number, mask: Mask | None) -> None:
            pixels = [code.load(tap.address + channel * FLOAT_BYTES, mask=mask) for tap in taps]
            code.store(y + channel * FLOAT_BYTES, _weigh(code, pixels, weights), mask=mask)

        code.visit_vectors(p["channels"], add)
    else:
        with code.loop(0, p["channels"]) as channel:
            pixels = [code.load_scalar(tap.address + channel * tap.step) for tap in taps]
            code.store(y + channel * p["y_channel"], _weigh(code, pixels, [tap.weight for tap in taps]))


def _weigh(code: Code, pixels: Sequence[Floats], weights: Sequence[Floats]) -> Floats:
    """Returns the weighted sum of the pixels of a point."""
    total = pixels[0] * weights[0]
    for pixel, weight in zip(pixels[1:], weights[1:], strict=True):
        total = code.multiply_add(pixel, weight, total)
    return total
