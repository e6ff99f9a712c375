"""The walk of windows over images, channels last, which depthwise convolutions and poolings share.

A tile is `rows` x `pixels` outputs. Before a tile is computed, the address of each pixel of the image that it reads is written into a
table; a pixel outside of the image gets the address of a row of neutral elements instead (zeros for sums, -infinity for maxima), so
that borders cost no other code. Then all channels are gone through, a vector at a time, and each vector of the image is loaded once
for all outputs of the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from hetero_core.kernels.windows import Windows
from hetero_cpu.machine.arithmetic import Activation
from hetero_cpu.machine.calls import NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.compiler import Kernel, name_fields
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.elementwise import PLAIN_EXPRESSION, Expression, load_operand, store_product
from hetero_cpu.operators.images import find_overhang
from hetero_cpu.operators.recipe import Array, Halo
from hetero_cpu.operators.rows import cut_lines, make_unit_kernel
from hetero_cpu.symbols.sizes import is_open

PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "height", "width", "top", "left", "neutral",
    "y", "y_image", "y_row", "y_pixel", "added", "added_image", "added_row", "added_pixel",
    "weights", "bias", "row_counts", "column_counts",
    "lines", "groups", "long_groups", "tiles", "long_tiles", "lines_of_chunk", "channels", "last",
    "vectors", "vector_bytes",
)  # fmt: skip
"""Numbers of a row, in order: addresses; strides in bytes from image to image, row to row, pixel to pixel; sizes and counts.

`top` and `left`: the pads. A line is a group of output rows of an image: `groups` for an image, the first `long_groups` with
the full number of rows; `tiles` of a line, the first `long_tiles` with the full number of pixels. `channels`: of the full
vectors of a pixel; `last`: elements of the vector after them. `vectors` of channels that an expression reads, `vector_bytes` apart."""

_TILE_PARAMETERS = (
    "table", "weights", "bias", "y", "y_row", "y_pixel", "added", "added_row", "added_pixel", "row_counts", "column_counts",
    "channels", "last", "vectors", "vector_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WindowShape:
    """The geometry that is compiled in: the window, and the outputs of a tile; some tiles have `short_rows` rows or one pixel less."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    rows: int
    short_rows: int
    pixels: int
    has_short_tiles: bool
    is_masked: bool
    clips: bool

    def list_uses(self, axis: int) -> dict[int, list[tuple[int, int]]]:
        """Returns the rows (axis 0) or columns (1) that a tile reads, counted from its first, each with the (output, tap) that read it."""
        uses: dict[int, list[tuple[int, int]]] = {}
        for output, tap in np.ndindex((self.rows, self.pixels)[axis], self.kernel[axis]):
            uses.setdefault(output * self.strides[axis] + tap * self.dilations[axis], []).append((output, tap))
        return dict(sorted(uses.items()))


@dataclass(frozen=True, slots=True)
class TileCode:
    """The view of a tile that its body gets: a vector of channels at a time, `weights` and `bias` move along with them."""

    code: Code
    tile: WindowShape
    weights: Number
    bias: Number
    load: Callable[[int, int], Floats]
    """Returns the vector of the row-th and column-th position that the tile reads."""
    factors: Mapping[tuple[int, int], Floats]
    """The reciprocals of the elements that count for each output, by row and pixel; empty unless the body `counts`."""


@dataclass(frozen=True, slots=True)
class WindowBody:
    """The computation of a window: `emit` returns outputs[row][pixel]; then a tensor is added if it `adds`; then come `activations`.

    `weight_vectors`: of a vector of channels. `counts`: whether the means' factors are wanted. `kind`: that of the image. `expression`:
    of the result behind all that.
    """

    name: str
    emit: Callable[[TileCode], list[list[Floats]]]
    weight_vectors: int = 0
    adds: bool = False
    activations: tuple[Activation, ...] = ()
    counts: bool = False
    kind: str = "v"
    expression: Expression = PLAIN_EXPRESSION


def make_window_kernel(shape: WindowShape, body: WindowBody) -> Kernel:
    """Returns the kernel that goes over all windows of a batch of images."""
    title = f"windows_{body.name}_{body.kind}_{body.expression.name}_{name_fields(shape)}"
    return make_unit_kernel(title, PARAMETERS, partial(_emit, shape=shape, body=body), unit="line")


def _emit(code: Code, p: dict[str, Number], line: Number, *, shape: WindowShape, body: WindowBody) -> None:
    table = code.reserve(len(shape.list_uses(0)) * len(shape.list_uses(1)))
    image, group = line // p["groups"], line % p["groups"]
    y_row = group * shape.rows
    x_row = y_row * shape.strides[0] - p["top"]
    starts = {key: p[key] + image * p[f"{key}_image"] + y_row * p[f"{key}_row"] for key in ("y", "added")}
    x = p["x"] + image * p["x_image"] + x_row * p["x_row"]

    def walk(rows: int) -> None:
        with code.loop(0, p["tiles"]) as place:
            pixel = place * shape.pixels
            if shape.has_short_tiles:
                pixel = pixel - (place - p["long_tiles"]).at_least(0)

            def call(pixels: int) -> None:
                tile = replace(shape, rows=rows, pixels=pixels)
                emit = partial(_emit_tile, tile=tile, body=body)
                function = code.find_inner(f"tile_{rows}x{pixels}", len(_TILE_PARAMETERS), emit)
                column = pixel * shape.strides[1] - p["left"]
                _fill_table(code, tile, table, p, x_row, column, x + column * p["x_pixel"])
                arguments = {
                    **p, "table": table, "y": starts["y"] + pixel * p["y_pixel"],
                    "added": starts["added"] + pixel * p["added_pixel"],
                    "row_counts": p["row_counts"] + y_row * FLOAT_BYTES,
                    "column_counts": p["column_counts"] + pixel * FLOAT_BYTES,
                }  # fmt: skip
                code.call(function, *(arguments[key] for key in _TILE_PARAMETERS))

            if shape.has_short_tiles:
                code.emit_either(place < p["long_tiles"], call, shape.pixels, shape.pixels - 1)
            else:
                call(shape.pixels)

    if shape.short_rows:
        code.emit_either(group < p["long_groups"], walk, shape.rows, shape.short_rows)
    else:
        walk(shape.rows)


def _fill_table(
    code: Code, tile: WindowShape, table: Number, p: Mapping[str, Number], x_row: Number, x_column: Number, x: Number
) -> None:
    """Writes the address of each pixel that a tile reads; (x_row, x_column) is the first pixel, at x, perhaps outside of the image."""
    rows, columns = (list(tile.list_uses(axis)) for axis in (0, 1))

    def fill(clips: bool) -> None:
        lines = [x + p["x_row"] * position for position in rows]
        for j, column in enumerate(columns):
            right = p["x_pixel"] * column
            if clips:
                is_column = (x_column + column >= 0) & (x_column + column < p["width"])
            for i, line in enumerate(lines):
                pixel = line + right
                if clips:
                    is_inside = is_column & (x_row + rows[i] >= 0) & (x_row + rows[i] < p["height"])
                    pixel = is_inside.choose(pixel, p["neutral"])
                code.store(table, pixel, 8 * (i * len(columns) + j))

    if tile.clips:
        is_above = (x_row >= 0) & (x_column >= 0)
        is_inside = is_above & (x_row + rows[-1] < p["height"]) & (x_column + columns[-1] < p["width"])
        code.emit_either(is_inside, fill, False, True)
    else:
        fill(False)


def _emit_tile(code: Code, *, tile: WindowShape, body: WindowBody) -> None:
    p = dict(zip(_TILE_PARAMETERS, code.parameters, strict=True))
    vector_bytes = code.width * FLOAT_BYTES
    weights = code.variable(p["weights"])
    factors: dict[tuple[int, int], Floats] = {}
    if body.counts:
        # The mean of a window: its elements are its rows times its columns.
        for r, t in np.ndindex(tile.rows, tile.pixels):
            count = code.load_scalar(p["row_counts"], r * FLOAT_BYTES) * code.load_scalar(p["column_counts"], t * FLOAT_BYTES)
            factors[r, t] = code.spread(1.0 / count)

    def advance(channel: Number, mask: Mask | None) -> None:
        here, expression = weights.get(), body.expression
        begin = p["vectors"] + channel * FLOAT_BYTES
        count = sum(kind in "cs" for kind in expression.kinds)
        vectors = [code.load(begin + p["vector_bytes"] * index) for index in range(count)]
        bias = p["bias"] + channel * FLOAT_BYTES
        columns = len(tile.list_uses(1))

        def load(row: int, column: int) -> Floats:
            return load_operand(code, body.kind, code.load_number(p["table"], 8 * (row * columns + column)), channel, mask)

        results = body.emit(TileCode(code, tile, here, bias, load, factors))
        for r, line in enumerate(results):
            for t, result in enumerate(line):
                y, added = (p[key] + p[f"{key}_row"] * r + p[f"{key}_pixel"] * t for key in ("y", "added"))
                addend = added if body.adds else None
                store_product(code, expression, body.activations, vectors, result, y=y, added=addend, element=channel, mask=mask)
        weights.set(here + body.weight_vectors * vector_bytes)

    with code.loop(0, p["channels"], code.width) as channel:
        advance(channel, None)
    if tile.is_masked:
        advance(p["channels"], code.mask_first(p["last"]))
    code.finish()


# Outputs of a tile: fourteen sums and nine weights fit the registers of AVX-512; AVX2 has half as many.
_LONGEST_TILE = 7
# Of an open number of outputs: a sum of tiles of this size and of a pixel less, for any number; larger tiles are not faster.
_OPEN_TILE = 2
_MANY_REGISTERS = 16
# Windows with more elements are left to the toolkit: each element takes an instruction or two for each output of a tile.
_LARGE_WINDOW, _LARGEST_WINDOW = 49, 225


def plan_shape(windows: Windows, channels: int, width: int, *, zeros: Halo) -> WindowShape | None:
    """Returns the compiled-in part for windows over images of so many channels; None if kernels do not take them.

    `zeros`: those around the image that windows may read instead of neutral elements.
    """
    taps = prod(windows.kernel)
    if taps > _LARGEST_WINDOW:
        return None
    height, length = windows.outputs
    # Two rows of windows that lie apart read nothing together, and their code is three times as long.
    shares_rows = (windows.kernel[0] - 1) * windows.dilations[0] >= windows.strides[0]
    rows = 2 if width >= _MANY_REGISTERS and height > 1 and taps <= _LARGE_WINDOW and shares_rows else 1
    pixels, has_short_tiles = _OPEN_TILE, True
    if not is_open(length):
        tiles = -(-length // _LONGEST_TILE)
        pixels = -(-length // tiles)
        has_short_tiles = tiles * pixels != length
    clips = not zeros.covers(find_overhang(windows))
    kernel, strides, dilations = ((first, second) for first, second in (windows.kernel, windows.strides, windows.dilations))
    short_rows = rows - 1 if is_open(height) else height % rows
    return WindowShape(kernel, strides, dilations, rows, short_rows, pixels, has_short_tiles, channels % width != 0, clips)


@dataclass(frozen=True, slots=True)
class WindowCall:
    """Arrays that all calls of a recipe share. `weights`, `row_counts` and `column_counts` are read by kernels that need them."""

    kernel: Kernel
    shape: WindowShape
    windows: Windows
    width: int
    neutral: float
    workers: int
    constants: Mapping[str, Array]
    vector_bytes: int = 0

    def bind(self, x: Array, y: Array, added: Array | None = None) -> NativeCall:
        """Returns the call. All arrays: (batch, channels, height, width) with channels side by side."""
        shape, batch, channels = self.shape, x.shape[0], x.shape[1]
        height, length = self.windows.outputs
        groups, tiles = -(-height // shape.rows), -(-length // shape.pixels)
        lines = batch * groups
        vectors = -(-channels // self.width)
        lines_of_chunk = cut_lines(lines, batch * height * length * vectors * (prod(self.windows.kernel) + 4), self.workers)
        neutral = np.full(channels, self.neutral, x.dtype)
        third = y if added is None else added
        numbers = {
            **{key: address_of(array) for key, array in self.constants.items()},
            **list_strides("x", x), **list_strides("y", y), **list_strides("added", third),
            "height": x.shape[2], "width": x.shape[3], "top": self.windows.pads[0][0], "left": self.windows.pads[1][0],
            "neutral": address_of(neutral), "lines": lines, "groups": groups, "long_groups": height // shape.rows,
            "tiles": tiles, "long_tiles": length - tiles * (shape.pixels - 1), "lines_of_chunk": lines_of_chunk,
            "channels": channels // self.width * self.width, "last": channels % self.width, "vector_bytes": self.vector_bytes,
        }  # fmt: skip
        keep = (neutral, *self.constants.values(), x, y, third)
        return NativeCall(self.kernel, tuple(numbers.get(key, 0) for key in PARAMETERS), -(-lines // lines_of_chunk), keep)
