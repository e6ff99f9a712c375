"""The walk of windows over images, channels last: what a depthwise convolution and a pooling share.

A tile is `rows` x `pixels` outputs. Before a tile is computed, the address of each pixel of the image that it reads is written into a
table; a pixel outside of the image gets the address of a row of neutral elements instead (zeros for sums, -infinity for maxima), so
that borders cost no other code. Then all channels are gone through, a vector at a time, and each vector of the image is loaded once
for all outputs of the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats, Mask, Number

PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "height", "width", "top", "left", "neutral",
    "y", "y_image", "y_row", "y_pixel", "added", "added_image", "added_row", "added_pixel",
    "weights", "bias", "row_counts", "column_counts",
    "lines", "groups", "long_groups", "tiles", "long_tiles", "lines_of_chunk", "channel_bytes", "last",
)  # fmt: skip
"""Numbers of a row, in order: addresses; strides in bytes from image to image, row to row, pixel to pixel; sizes and counts.

`top` and `left`: the pads. A line is a group of output rows of one image: `groups` for an image, of which the first `long_groups` have
the full number of rows; `tiles` of a line, of which the first `long_tiles` have the full number of pixels. `channel_bytes`: of the full
vectors of a pixel; `last`: elements of the vector after them."""

_TILE_PARAMETERS = (
    "table", "weights", "bias", "y", "y_row", "y_pixel", "added", "added_row", "added_pixel", "row_counts", "column_counts",
    "channel_bytes", "last",
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

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        numbers = (*self.kernel, *self.strides, *self.dilations, self.rows, self.short_rows, self.pixels)
        flags = f"{'s' * self.has_short_tiles}{'m' * self.is_masked}{'c' * self.clips}"
        return f"{'_'.join(map(str, numbers))}{flags}"


@dataclass(frozen=True, slots=True)
class WindowTile:
    """The outputs of one call, and what they read: positions (row, column) of the image, counted from the tile's first."""

    shape: WindowShape
    rows: int
    pixels: int

    def list_positions(self, axis: int) -> tuple[int, ...]:
        """Returns the rows (axis 0) or columns (1) that the tile reads, in order."""
        count = (self.rows, self.pixels)[axis]
        stride, dilation = self.shape.strides[axis], self.shape.dilations[axis]
        positions = {output * stride + tap * dilation for output in range(count) for tap in range(self.shape.kernel[axis])}
        return tuple(sorted(positions))

    def list_uses(self, axis: int, position: int) -> tuple[tuple[int, int], ...]:
        """Returns the pairs of (output, tap) that read a row or a column."""
        count = (self.rows, self.pixels)[axis]
        stride, dilation = self.shape.strides[axis], self.shape.dilations[axis]
        return tuple(
            (output, tap)
            for output in range(count)
            for tap in range(self.shape.kernel[axis])
            if output * stride + tap * dilation == position
        )


@dataclass(frozen=True, slots=True)
class TileCode:
    """The view of a tile that its body gets: a vector of channels at a time, `weights` and `bias` move along with them."""

    code: Code
    tile: WindowTile
    weights: Number
    bias: Number
    table: Number
    channel: Number
    mask: Mask | None
    factors: Mapping[tuple[int, int], Floats]
    """The reciprocals of the elements that count for each output, by row and pixel; none unless the body `counts`."""

    def load(self, row: int, column: int) -> Floats:
        """Returns the vector of the row-th and column-th position that the tile reads."""
        columns = len(self.tile.list_positions(1))
        pixel = self.code.load_number(self.table, 8 * (row * columns + column))
        return self.code.load(pixel + self.channel, mask=self.mask)


@dataclass(frozen=True, slots=True)
class WindowBody:
    """The computation of a window: `emit` returns outputs[row][pixel]; then a tensor is added where it `adds`; then comes `finish`.

    `weight_vectors`: of one vector of channels. `counts`: whether the means' factors are wanted.
    """

    name: str
    weight_vectors: int
    emit: Callable[[TileCode], list[list[Floats]]]
    adds: bool
    finish: Callable[[Code, Floats], Floats]
    counts: bool = False


def make_window_kernel(shape: WindowShape, body: WindowBody) -> Kernel:
    """Returns the kernel that goes over all windows of a batch of images."""
    return Kernel(f"windows_{body.name}_{shape.name}", lambda name, width: _emit(name, width, shape, body))


def _emit(name: str, width: int, shape: WindowShape, body: WindowBody) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, PARAMETERS)
    largest = WindowTile(shape, shape.rows, shape.pixels)
    table = code.reserve(len(largest.list_positions(0)) * len(largest.list_positions(1)))
    with code.visit_chunk(chunk, p["lines_of_chunk"], p["lines"]) as line:
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
                    tile = WindowTile(shape, rows, pixels)
                    emit = partial(_emit_tile, tile=tile, body=body)
                    function = code.find_inner(f"{name}_{rows}x{pixels}", len(_TILE_PARAMETERS), emit)
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
    return code.finish()


def _fill_table(
    code: Code, tile: WindowTile, table: Number, p: Mapping[str, Number], x_row: Number, x_column: Number, x: Number
) -> None:
    """Writes the address of each pixel that a tile reads; (x_row, x_column) is the first one, at x, perhaps outside of the image."""
    rows, columns = tile.list_positions(0), tile.list_positions(1)

    def fill(*, clips: bool) -> None:
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
                code.store_number(table, pixel, 8 * (i * len(columns) + j))

    if not tile.shape.clips:
        fill(clips=False)
        return
    is_above = (x_row >= 0) & (x_column >= 0)
    is_inside = is_above & (x_row + rows[-1] < p["height"]) & (x_column + columns[-1] < p["width"])
    code.emit_either(is_inside, lambda clips: fill(clips=clips), False, True)


def _emit_tile(code: Code, *, tile: WindowTile, body: WindowBody) -> None:
    p = dict(zip(_TILE_PARAMETERS, code.parameters, strict=True))
    vector_bytes = code.width * FLOAT_BYTES
    weights = code.variable(p["weights"])
    factors: dict[tuple[int, int], Floats] = {}
    if body.counts:
        # The mean of a window: its elements are its rows times its columns.
        for r in range(tile.rows):
            for t in range(tile.pixels):
                count = code.load_scalar(p["row_counts"], r * FLOAT_BYTES) * code.load_scalar(p["column_counts"], t * FLOAT_BYTES)
                factors[r, t] = code.spread(1.0 / count)

    def advance(channel: Number, mask: Mask | None) -> None:
        here = weights.get()
        results = body.emit(TileCode(code, tile, here, p["bias"] + channel, p["table"], channel, mask, factors))
        for r, line in enumerate(results):
            for t, result in enumerate(line):
                if body.adds:
                    place = p["added"] + p["added_row"] * r + p["added_pixel"] * t + channel
                    result = result + code.load(place, mask=mask)
                place = p["y"] + p["y_row"] * r + p["y_pixel"] * t + channel
                code.store(place, body.finish(code, result), mask=mask)
        weights.set(here + body.weight_vectors * vector_bytes)

    with code.loop(0, p["channel_bytes"], vector_bytes) as channel:
        advance(channel, None)
    if tile.shape.is_masked:
        advance(p["channel_bytes"], code.mask_first(p["last"]))
    code.finish()
