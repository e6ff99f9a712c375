"""Kernels of Winograd's convolutions, channels last: tiles are transformed, multiplied as small matrices, and transformed back.

Transformed tiles lie as (position, tile, channel), products as (position, tile, channel of one block). Either a chunk is a range of tiles
and does all of it in working memory of its own, or, where there are few tiles, one call transforms all of them and a chunk of a second
one is a range of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from hetero_cpu.machine.arithmetic import Activation, emit_activations
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.native import Array
from hetero_cpu.machine.terms import Floats, Number
from hetero_cpu.operators.product.tile import Tile, call_tile
from hetero_cpu.operators.winograd.transforms import build_matrices

PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "y", "y_image", "y_row", "y_pixel", "added", "added_image", "added_row", "added_pixel",
    "w", "bias", "zeros", "offsets", "moved", "moved_worker", "moved_position", "products", "products_worker", "products_position",
    "channels", "blocks", "blocks_of_chunk", "outputs", "tiles", "tiles_of_chunk", "down", "right", "height", "width",
    "row_tiles", "long_tiles",
)  # fmt: skip
"""Addresses and strides in bytes; `moved` holds the transformed tiles, `products` their products with a block; `tiles` of all images,
`down` x `right` of each, whose results are `height` x `width`. The lines of a matrix are cut into `row_tiles`, of which the first
`long_tiles` have the full number of `pixels` and the others one less."""


@dataclass(frozen=True, slots=True)
class WinogradShape:
    """Compiled-in sizes: tiles of `size` x `size` results; of matrices, which are cut as a product's lines are; vectors of a block."""

    size: int
    pixels: int
    has_short_tiles: bool
    vectors: int
    last_vectors: int
    prefetches: int
    adds: bool
    activations: tuple[Activation, ...]

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        numbers = "_".join(str(int(getattr(self, field.name))) for field in fields(self)[:-2])
        return numbers + "a" * self.adds + "".join(f"_{activation.name}" for activation in self.activations)


def make_whole(shape: WinogradShape) -> Kernel:
    """Returns the kernel whose chunks are ranges of tiles, in working memory of the worker."""
    return Kernel(f"winograd_whole_{shape.name}", partial(_emit_whole, shape=shape))


def make_input(size: int) -> Kernel:
    """Returns the kernel that transforms ranges of tiles into memory of all."""
    return Kernel(f"winograd_input_{size}", partial(_emit_input, size=size))


def make_output(shape: WinogradShape) -> Kernel:
    """Returns the kernel whose chunks are ranges of blocks, for all tiles."""
    return Kernel(f"winograd_output_{shape.name}", partial(_emit_output, shape=shape))


def _emit_whole(name: str, width: int, shape: WinogradShape) -> Code:
    code, p, chunk, worker = begin_kernel(name, width, PARAMETERS)
    first = chunk * p["tiles_of_chunk"]
    last = (first + p["tiles_of_chunk"]).at_most(p["tiles"])
    moved = p["moved"] + worker * p["moved_worker"]
    products = p["products"] + worker * p["products_worker"]
    _emit_forth(code, p, shape.size, first, last, moved)
    _emit_blocks(code, p, shape, (first, last), (code.number(0), p["blocks"]), moved, products)
    return code.finish()


def _emit_input(name: str, width: int, size: int) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, PARAMETERS)
    first = chunk * p["tiles_of_chunk"]
    last = (first + p["tiles_of_chunk"]).at_most(p["tiles"])
    _emit_forth(code, p, size, first, last, p["moved"] + first * p["channels"] * FLOAT_BYTES)
    return code.finish()


def _emit_output(name: str, width: int, shape: WinogradShape) -> Code:
    code, p, chunk, worker = begin_kernel(name, width, PARAMETERS)
    first = chunk * p["blocks_of_chunk"]
    last = (first + p["blocks_of_chunk"]).at_most(p["blocks"])
    products = p["products"] + worker * p["products_worker"]
    _emit_blocks(code, p, shape, (code.number(0), p["tiles"]), (first, last), p["moved"], products)
    return code.finish()


def _place(p: dict[str, Number], tile: Number, size: int) -> tuple[Number, Number, Number]:
    """Returns the image of a tile, and the row and the column of its first result."""
    of_image = p["down"] * p["right"]
    image, inside = tile // of_image, tile % of_image
    return image, (inside // p["right"]) * size, (inside % p["right"]) * size


def _emit_forth(code: Code, p: dict[str, Number], size: int, first: Number, last: Number, moved: Number) -> None:
    """Writes B^T d B of each tile d, the first one at `moved`."""
    forth, window = build_matrices(size)[2], size + 2
    pixel_bytes = p["channels"] * FLOAT_BYTES
    with code.loop(first, last) as tile:
        image, row, column = _place(p, tile, size)
        x = p["x"] + image * p["x_image"] + row * p["x_row"] + column * p["x_pixel"]
        target = moved + (tile - first) * pixel_bytes
        with code.loop(0, pixel_bytes, code.width * FLOAT_BYTES) as channel:
            columns = []
            for j in range(window):
                pixels = [code.load(x + channel + p["x_row"] * i + p["x_pixel"] * j) for i in range(window)]
                columns.append(_combine(code, forth, pixels))
            for i in range(window):
                results = _combine(code, forth, [columns[j][i] for j in range(window)])
                for j in range(window):
                    code.store(target + channel + p["moved_position"] * (i * window + j), results[j])


def _emit_blocks(
    code: Code,
    p: dict[str, Number],
    shape: WinogradShape,
    tiles: tuple[Number, Number],
    blocks: tuple[Number, Number],
    moved: Number,
    products: Number,
) -> None:
    positions = (shape.size + 2) ** 2
    vector_bytes = code.width * FLOAT_BYTES
    block_bytes = shape.vectors * vector_bytes

    def walk(block: Number, vectors: int) -> None:
        panel = p["channels"] * (vectors * vector_bytes)
        share = panel // p["row_tiles"]
        with code.loop(0, positions) as position:
            w = p["w"] + block * positions * p["channels"] * block_bytes + position * panel
            source, target = moved + position * p["moved_position"], products + position * p["products_position"]
            for is_short in (False, True)[: 1 + shape.has_short_tiles]:
                tile = Tile(shape.pixels - is_short, vectors, shape.prefetches)
                first, end = (p["long_tiles"], p["row_tiles"]) if is_short else (code.number(0), p["long_tiles"])
                with code.loop(first, end) as number:
                    row = number * tile.pixels + (p["long_tiles"] if is_short else 0)
                    call_tile(
                        code,
                        tile,
                        x=source + row * p["channels"] * FLOAT_BYTES,
                        x_pixel=p["channels"] * FLOAT_BYTES,
                        offsets=p["offsets"],
                        taps=1,
                        depth=p["channels"],
                        w=w,
                        # What follows is the next position, or the next block.
                        ahead=w + panel + number * share,
                        bias=p["zeros"],
                        y=target + row * (vectors * vector_bytes),
                        y_pixel=vectors * vector_bytes,
                        last=code.width,
                    )
        _emit_back(code, p, shape, tiles, block * block_bytes, vectors, products)

    if shape.last_vectors == shape.vectors:
        with code.loop(*blocks) as block:
            walk(block, shape.vectors)
        return
    full = blocks[1].at_most(p["blocks"] - 1)
    with code.loop(blocks[0], full) as block:
        walk(block, shape.vectors)
    with code.loop(full.at_least(blocks[0]), blocks[1]) as block:
        walk(block, shape.last_vectors)


def _emit_back(
    code: Code,
    p: dict[str, Number],
    shape: WinogradShape,
    tiles: tuple[Number, Number],
    channel: Number,
    vectors: int,
    products: Number,
) -> None:
    """Writes activation(A^T m A + bias + added) of each tile m of products into its pixels, as far as they are there."""
    size, window = shape.size, shape.size + 2
    back = build_matrices(size)[0]
    first, last = tiles
    vector_bytes = code.width * FLOAT_BYTES
    with code.loop(first, last) as tile, code.loop(0, vectors * vector_bytes, vector_bytes) as vector:
        image, row, column = _place(p, tile, size)
        place = channel + vector
        m = products + (tile - first) * (vectors * vector_bytes) + vector
        y = p["y"] + image * p["y_image"] + row * p["y_row"] + column * p["y_pixel"] + place
        added = p["added"] + image * p["added_image"] + row * p["added_row"] + column * p["added_pixel"] + place
        bias = code.load(p["bias"] + place)
        columns = []
        for j in range(window):
            line = [code.load(m + p["products_position"] * (i * window + j)) for i in range(window)]
            columns.append(_combine(code, back, line))
        results = [_combine(code, back, [columns[j][i] for j in range(window)]) for i in range(size)]

        def write(i: int, j: int) -> None:
            result = results[i][j] + bias  # called inside the loop
            if shape.adds:
                result = result + code.load(added + p["added_row"] * i + p["added_pixel"] * j)
            code.store(y + p["y_row"] * i + p["y_pixel"] * j, emit_activations(code, shape.activations, result))

        is_inside = (row + size <= p["height"]) & (column + size <= p["width"])
        with code.either(is_inside) as (whole, part):
            with whole:
                for i, j in np.ndindex(size, size):
                    write(i, j)
            with part:
                for i, j in np.ndindex(size, size):
                    with code.when((row + i < p["height"]) & (column + j < p["width"])):
                        write(i, j)


def _combine(code: Code, matrix: Array, vectors: list[Floats]) -> list[Floats]:
    """Returns matrix @ vectors. Rows of opposite points share their even and their odd part."""
    results: list[Floats | None] = [None] * len(matrix)
    for index, row in enumerate(matrix):
        if results[index] is not None:
            continue
        signs = np.array([1.0 if k % 2 == 0 else -1.0 for k in range(len(row))])
        for sign in (1.0, -1.0):
            partner = next((k for k in range(index + 1, len(matrix)) if np.array_equal(matrix[k], sign * signs * row)), None)
            if partner is not None and results[partner] is None and np.any(row[::2]) and np.any(row[1::2]):
                even = _sum(code, row[::2], vectors[::2])
                odd = _sum(code, row[1::2], vectors[1::2])
                results[index] = even + odd
                results[partner] = even - odd if sign > 0 else odd - even
                break
        if results[index] is None:
            results[index] = _sum(code, row, vectors)
    return [result for result in results if result is not None]


def _sum(code: Code, coefficients: Array, vectors: list[Floats]) -> Floats:
    terms = [(float(c), v) for c, v in zip(coefficients, vectors, strict=True) if c]
    terms.sort(key=lambda term: abs(term[0]) != 1)
    total: Floats | None = None
    for coefficient, vector in terms:
        if total is None:
            total = vector if coefficient == 1 else (-vector if coefficient == -1 else vector * coefficient)
        elif coefficient == 1:
            total = total + vector
        elif coefficient == -1:
            total = total - vector
        else:
            total = code.multiply_add(vector, code.constant(coefficient), total)
    assert total is not None
    return total
