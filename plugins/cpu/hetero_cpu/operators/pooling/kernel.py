"""The kernels of pooling: maxima and means of windows, and of whole images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.windows.walk import TileCode, WindowBody, WindowShape, make_window_kernel

Combine = Callable[[Floats, Floats], Floats]

# Vectors of channels that are reduced together, so that whole cache lines side by side are read, and pixels that are summed apart.
GLOBAL_BLOCK, _PHASES = 4, 4

GLOBAL_PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "height", "width", "y", "y_image", "factor", "blocks", "units", "units_of_chunk", "vectors", "last",
)  # fmt: skip
"""Numbers of a row, in order; `factor` is the address of one. A unit is a block of channels of one image; `vectors`: full ones of a
pixel; `last`: elements after them."""


def emit_maximum(first: Floats, second: Floats) -> Floats:
    """Returns the larger of both; a NaN of either."""
    return first.is_nan().choose(first, (first > second).choose(first, second))


def make_max_pool(shape: WindowShape) -> Kernel:
    """Returns the kernel y[r, c, k] = max over i, j of x[r * stride + i * dilation - pad, c * stride + j * dilation - pad, k]."""
    body = WindowBody("max", 0, lambda at: _emit_windows(at, emit_maximum), adds=False, finish=lambda code, x: x)
    return make_window_kernel(shape, body)


def make_average_pool(shape: WindowShape) -> Kernel:
    """Returns the kernel of sums of windows, each divided by row_counts[r] * column_counts[c]."""

    def emit(at: TileCode) -> list[list[Floats]]:
        sums = _emit_windows(at, lambda first, second: first + second)
        return [[total * at.factors[r, t] for t, total in enumerate(line)] for r, line in enumerate(sums)]

    return make_window_kernel(shape, WindowBody("average", 0, emit, adds=False, finish=lambda code, x: x, counts=True))


def _emit_windows(at: TileCode, combine: Combine) -> list[list[Floats]]:
    """Returns outputs[row][pixel]: each column of a row's windows is combined once, for all windows that it is in."""
    tile = at.tile
    pixels: dict[tuple[int, int], Floats] = {}
    for x, column in enumerate(tile.list_positions(1)):
        columns: dict[int, Floats] = {}
        for y, row in enumerate(tile.list_positions(0)):
            pixel = at.load(y, x)
            for r, _ in tile.list_uses(0, row):
                columns[r] = combine(columns[r], pixel) if r in columns else pixel
        for t, _ in tile.list_uses(1, column):
            for r, value in columns.items():
                pixels[r, t] = combine(pixels[r, t], value) if (r, t) in pixels else value
    return [[pixels[r, t] for t in range(tile.pixels)] for r in range(tile.rows)]


def make_global_mean() -> Kernel:
    """Returns the kernel y[k] = factor * sum over all pixels of x[pixel, k]; the pixels of a row are summed apart, four by four."""
    emit = partial(_emit_global, neutral=0.0, combine=lambda first, second: first + second)
    return Kernel("global_mean", emit)


def make_global_max() -> Kernel:
    """Returns the kernel y[k] = max over all pixels of x[pixel, k]; `factor` is 1."""
    return Kernel("global_max", partial(_emit_global, neutral=-inf, combine=emit_maximum))


def _emit_global(name: str, width: int, neutral: float, combine: Combine) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, GLOBAL_PARAMETERS)
    vector_bytes = width * FLOAT_BYTES
    factor = code.spread(code.load_scalar(p["factor"]))
    with code.visit_chunk(chunk, p["units_of_chunk"], p["units"]) as unit:
        image, block = unit // p["blocks"], unit % p["blocks"]
        x, y = p["x"] + image * p["x_image"], p["y"] + image * p["y_image"]

        def reduce(vector: Number, count: int, mask: Mask | None = None) -> None:
            channel = vector * vector_bytes
            totals = _reduce_pixels(code, p, x + channel, count, mask, neutral, combine)
            for v, total in enumerate(totals):
                code.store(y + channel, total * factor, v * vector_bytes, mask=mask)

        begin = block * GLOBAL_BLOCK
        with code.either(begin + GLOBAL_BLOCK <= p["vectors"]) as (full, rest):
            with full:
                reduce(begin, GLOBAL_BLOCK)
            with rest:
                with code.loop(begin, p["vectors"]) as vector:
                    reduce(vector, 1)
                with code.when(p["last"] > 0):
                    reduce(p["vectors"], 1, code.mask_first(p["last"]))
    return code.finish()


def _reduce_pixels(
    code: Code, p: dict[str, Number], x: Number, count: int, mask: Mask | None, neutral: float, combine: Combine
) -> list[Floats]:
    vector_bytes = code.width * FLOAT_BYTES
    totals = [code.variable(code.constant(neutral)) for _ in range(count)]
    even = p["width"] - p["width"] % _PHASES
    with code.loop(0, p["height"]) as line:
        here = code.variable(x + line * p["x_row"])
        sums = [[code.variable(code.constant(neutral)) for _ in range(count)] for _ in range(_PHASES)]

        def advance(pixels: int) -> None:
            start = here.get()
            for phase in range(pixels):
                for v in range(count):
                    value = code.load(start + p["x_pixel"] * phase, v * vector_bytes, mask=mask)
                    sums[phase][v].set(combine(sums[phase][v].get(), value))
            here.set(start + p["x_pixel"] * pixels)

        with code.loop(0, even, _PHASES):
            advance(_PHASES)
        with code.loop(even, p["width"]):
            advance(1)
        for v, total in enumerate(totals):
            parts = [phase[v].get() for phase in sums]
            total.set(combine(total.get(), combine(combine(parts[0], parts[1]), combine(parts[2], parts[3]))))
    return [total.get() for total in totals]
