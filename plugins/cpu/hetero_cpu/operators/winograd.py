"""The recipe of a 3x3 convolution with Winograd's transforms: their matrices and machine code."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import numpy as np

from hetero_core.kernels.windows import Windows
from hetero_cpu.machine.arithmetic import Activation, emit_activations
from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width, name_fields
from hetero_cpu.machine.terms import Floats, Number
from hetero_cpu.operators.images import Convolution, Staging, bind_staging
from hetero_cpu.operators.product import NativeEpilogue, join_recipe
from hetero_cpu.operators.product_kernel import Tile, call_tile
from hetero_cpu.operators.recipe import Recipe
from hetero_cpu.operators.tiling import Tiling, choose_tiling, pad_vector
from hetero_cpu.operators.weights import allocate_floats
from hetero_cpu.symbols.sizes import is_open, pays

_FEWEST_CHANNELS = 16
# Tiles that hang over the border of smaller images, and weights four times as large, cost more than the products that are saved.
_SMALLEST_SIDE, _SMALLEST_OPEN_SIDE = 10, 8
# Kernels that are transformed at a time: whole cache lines of the result, and a product so small that BLAS calls no threads for it.
_BLOCK_OUTPUTS, _BLOCK_CHANNELS = 16, 48


# Of the points that were tried these lose the fewest digits: for m = 4, 1.3 to 4.4e-6 of the largest result of a layer.
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}


@cache
def build_matrices(size: int) -> tuple[Array, Array, Array]:
    """Returns A^T (m, m+2), G (m+2, 3) and B^T (m+2, m+2) in float64 for tiles of m x m results."""
    points, window = _POINTS[size], size + 2

    def powers(count: int) -> Array:
        matrix = np.array([[point**power for power in range(count)] for point in points] + [[0.0] * count])
        matrix[-1, -1] = 1
        return matrix

    scales = [1 / np.prod([point - other for other in points if other != point]) for point in points]
    scale = np.array([*scales, 1.0])[:, None]
    back, kernel, forth = powers(size).T, powers(3), np.linalg.inv(powers(window)).T
    forth = forth / scale
    # Zero by construction, up to rounding of the inverse.
    forth[np.abs(forth) < 1e-12] = 0
    return back, kernel * scale, forth


def transform_kernels(w: Array, size: int, moved: Array) -> None:
    """Writes G g G^T of all kernels for tiles of m x m results, computed in float64 and rounded once. w: (outputs, channels, 3, 3);
    size: m; moved: float32 ((m+2)^2, channels, outputs), in any order of memory."""
    outputs, channels = w.shape[:2]
    kernel = build_matrices(size)[1]
    # Times the nine taps of a kernel it is G g G^T.
    both = np.kron(kernel, kernel)
    positions = len(both)
    for first, begin in product(range(0, outputs, _BLOCK_OUTPUTS), range(0, channels, _BLOCK_CHANNELS)):
        block = w[first : first + _BLOCK_OUTPUTS, begin : begin + _BLOCK_CHANNELS]
        taps = np.empty((9, *block.shape[:2]))
        taps[...] = block.reshape(*block.shape[:2], 9).transpose(2, 0, 1)
        transformed = np.matmul(both, taps.reshape(9, -1)).reshape(positions, *block.shape[:2])
        moved[:, begin : begin + _BLOCK_CHANNELS, first : first + _BLOCK_OUTPUTS] = transformed.transpose(0, 2, 1)


def choose_winograd(windows: Windows, *, channels: int, outputs: int, group: int, width: int) -> int:
    """Returns the side of the tiles, 4 or 2, with which a convolution is computed in vectors of `width`; 0 for the direct way."""
    is_3x3 = windows.kernel == (3, 3) and windows.strides == windows.dilations == (1, 1) and group == 1
    is_even = width > 0 and channels % width == 0 and outputs % width == 0 and min(channels, outputs) >= _FEWEST_CHANNELS
    if not is_3x3 or not is_even:
        return 0
    if any(is_open(side) for side in windows.outputs):
        return 4 if all(pays(side, _SMALLEST_OPEN_SIDE) for side in windows.outputs) else 0
    if min(windows.outputs) < _SMALLEST_SIDE:
        return 0
    return 4 if min(windows.outputs) >= 2 * _SMALLEST_SIDE else 2


PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "y", "y_image", "y_row", "y_pixel", "added", "added_image", "added_row", "added_pixel",
    "w", "bias", "zeros", "offsets", "moved", "moved_worker", "moved_position", "products", "products_worker", "products_position",
    "channels", "blocks", "blocks_of_chunk", "outputs", "tiles", "tiles_of_chunk", "down", "right", "height", "width",
    "row_tiles", "long_tiles",
)  # fmt: skip
"""Addresses and strides in bytes; `moved` holds the transformed tiles, `products` their products with a block; `tiles` of all images,
`down` x `right` of each, whose results are `height` x `width`. The lines of a matrix are cut into `row_tiles`, the first
`long_tiles` of them of `pixels` and the rest of `pixels` - 1."""


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


def make_kernel(shape: WinogradShape, part: str) -> Kernel:
    """Returns a kernel: the "whole" of ranges of tiles, in working memory of the worker; or the "input", which transforms ranges of tiles
    into memory of all, and the "output", which has ranges of blocks as chunks."""
    own = str(shape.size) if part == "input" else name_fields(shape)
    return Kernel(f"winograd_{part}_{own}", partial(_emit, shape=shape, part=part))


def _emit(name: str, width: int, shape: WinogradShape, part: str) -> Code:
    code, p, chunk, worker = begin_kernel(name, width, PARAMETERS)
    unit = "blocks" if part == "output" else "tiles"
    first = chunk * p[f"{unit}_of_chunk"]
    ranges = {key: (code.number(0), p[key]) for key in ("tiles", "blocks")}
    ranges[unit] = first, (first + p[f"{unit}_of_chunk"]).at_most(p[unit])
    moved = p["moved"]
    if part != "output":
        moved = moved + (worker * p["moved_worker"] if part == "whole" else first * p["channels"] * FLOAT_BYTES)
        _emit_forth(code, p, shape, *ranges["tiles"], moved)
    if part != "input":
        products = p["products"] + worker * p["products_worker"]
        _emit_blocks(code, p, shape, ranges["tiles"], ranges["blocks"], moved, products)
    return code.finish()


def _place(p: dict[str, Number], tile: Number, size: int) -> tuple[Number, Number, Number]:
    """Returns the image of a tile, and the row and the column of its first result."""
    of_image = p["down"] * p["right"]
    image, inside = tile // of_image, tile % of_image
    return image, (inside // p["right"]) * size, (inside % p["right"]) * size


def _emit_forth(code: Code, p: dict[str, Number], shape: WinogradShape, first: Number, last: Number, moved: Number) -> None:
    """Writes B^T d B of each tile d, the first at `moved`."""
    forth, window = build_matrices(shape.size)[2], shape.size + 2
    with code.loop(first, last) as tile:
        image, row, column = _place(p, tile, shape.size)
        x = p["x"] + image * p["x_image"] + row * p["x_row"] + column * p["x_pixel"]
        target = moved + (tile - first) * p["channels"] * FLOAT_BYTES
        with code.loop(0, p["channels"], code.width) as channel:
            columns = []
            for j in range(window):
                pixels = [code.load(x + channel * FLOAT_BYTES + p["x_row"] * i + p["x_pixel"] * j) for i in range(window)]
                columns.append(_combine(code, forth, pixels))
            for i in range(window):
                results = _combine(code, forth, [columns[j][i] for j in range(window)])
                for j in range(window):
                    code.store(target + channel * FLOAT_BYTES + p["moved_position"] * (i * window + j), results[j])


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

    def walk(block: Number, is_last: bool) -> None:
        vectors = shape.last_vectors if is_last else shape.vectors
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
                    # The next position, or the next block, is fetched ahead.
                    call_tile(
                        code, tile, x=source + row * p["channels"] * FLOAT_BYTES, x_pixel=p["channels"] * FLOAT_BYTES, offsets=p["offsets"],
                        taps=1, depth=p["channels"], w=w, ahead=w + panel + number * share, bias=p["zeros"],
                        y=target + row * (vectors * vector_bytes), y_pixel=vectors * vector_bytes, last=code.width,
                    )  # fmt: skip
        _emit_back(code, p, shape, tiles, block * block_bytes, vectors, products)

    code.visit_blocks(*blocks, p["blocks"], walk, has_other_last=shape.last_vectors != shape.vectors)


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

        def write(is_whole: bool) -> None:
            for i, j in np.ndindex(size, size):
                with nullcontext() if is_whole else code.when((row + i < p["height"]) & (column + j < p["width"])):
                    result = results[i][j] + bias  # called inside the loop
                    if shape.adds:
                        result = result + code.load(added + p["added_row"] * i + p["added_pixel"] * j)
                    code.store(y + p["y_row"] * i + p["y_pixel"] * j, emit_activations(code, shape.activations, result))

        is_inside = (row + size <= p["height"]) & (column + size <= p["width"])
        code.emit_either(is_inside, write, True, False)


def _combine(code: Code, matrix: Array, vectors: list[Floats]) -> list[Floats]:
    """Returns matrix @ vectors. Rows of opposite points share their even and their odd part."""
    results: dict[int, Floats] = {}
    signs = np.where(np.arange(matrix.shape[1]) % 2, -1.0, 1.0)
    for index, row in enumerate(matrix):
        if index in results:
            continue
        opposites = [
            (k, sign)
            for sign in (1.0, -1.0)
            for k in range(index + 1, len(matrix))
            if np.array_equal(matrix[k], sign * signs * row)
        ]
        if opposites and row[::2].any() and row[1::2].any():
            even, odd = (_sum(code, row[begin::2], vectors[begin::2]) for begin in (0, 1))
            (partner, sign), *_ = opposites
            results |= {index: even + odd, partner: even - odd if sign > 0 else odd - even}
        else:
            results[index] = _sum(code, row, vectors)
    return [results[index] for index in range(len(matrix))]


def _sum(code: Code, coefficients: Array, vectors: list[Floats]) -> Floats:
    terms = [(float(c), v) for c, v in zip(coefficients, vectors, strict=True) if c]
    (first, total), *others = sorted(terms, key=lambda term: abs(term[0]) != 1)
    if first != 1:
        total = -total if first == -1 else total * first
    for coefficient, vector in others:
        if abs(coefficient) == 1:
            total = total + vector if coefficient > 0 else total - vector
        else:
            total = code.multiply_add(vector, code.constant(coefficient), total)
    return total


# Tiles of one chunk: enough for a block of weights to be used often, few enough for their transforms to stay in the second cache.
# Of an open number of tiles there are 28 in each: on U-Nets 56 for large images are as fast, and ask for a class of their own.
_TILES_OF_CHUNK, _TILES_OF_OPEN_CHUNK = 56, 28
_LARGE_CHANNELS = 512
_INPUT_TILES = 8
_LINE = 16
"""Numbers between arrays, so that their rows do not share lines of the caches."""


def plan_winograd(convolution: Convolution, epilogue: NativeEpilogue, staging: Staging | None, size: int) -> Recipe:
    """Returns the recipe with tiles of `size` x `size` results. The image has a halo that reaches to the end of the last tile."""
    site, channels, outputs = convolution.site, convolution.channels, convolution.outputs
    height, width = convolution.windows.outputs
    down, right = -(-height // size), -(-width // size)
    tiles, positions, workers = convolution.planes[1] * down * right, (size + 2) ** 2, site.workers
    most = _TILES_OF_CHUNK * (2 if channels >= _LARGE_CHANNELS else 1)
    rows, count, is_whole = _cut_tiles(tiles, most, workers)
    tiling = choose_tiling(rows, outputs, find_width())
    block = tiling.vectors * tiling.width
    cut = (tiling.pixels, tiling.has_short_tiles, tiling.vectors, tiling.last_vectors, tiling.count_prefetches(tiling.tiles))
    shape = WinogradShape(size, *cut, bool(epilogue.added), epilogue.activations)
    purpose = ("winograd", size, tiling.vectors, tiling.width)
    weight = convolution.pack_lazily(purpose, partial(_pack, size=size, tiling=tiling.packing))
    bias = pad_vector(epilogue.bias, outputs, tiling.padded_outputs)
    zeros, offsets = pad_vector(None, 0, block), np.zeros(1, np.int64)
    moved_position, products_position = ((rows * columns + _LINE) * FLOAT_BYTES for columns in (channels, block))
    moved_bytes, products_bytes = positions * moved_position, positions * products_position
    staged_bytes = 0 if staging is None else staging.nbytes
    kernels = tuple(make_kernel(shape, part) for part in (("whole",) if is_whole else ("input", "output")))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        return convolution.bind_planes((reads[0], writes[0], *reads[1:]), partial(bind_images, scratch))

    def bind_images(scratch: Array, laid: Array, y: Array, addend: Array | None = None) -> list[NativeCall]:
        calls, x = bind_staging(staging, laid, scratch)
        top, left = (max(pads[0], 0) for pads in convolution.windows.pads)
        base = address_of(scratch) + staged_bytes if scratch.size else 0
        numbers = {
            **list_strides("x", x), "x": address_of(x) - top * x.strides[2] - left * x.strides[3],
            **list_strides("y", y), **list_strides("added", addend),
            "w": address_of(weight), "bias": address_of(bias), "zeros": address_of(zeros),
            "offsets": address_of(offsets),
            "moved": base, "moved_worker": moved_bytes, "moved_position": moved_position,
            "products": base + moved_bytes * (workers if is_whole else 1), "products_worker": products_bytes,
            "products_position": products_position, "channels": channels, "blocks": tiling.blocks, "blocks_of_chunk": 1, "outputs": outputs,
            "tiles": tiles, "tiles_of_chunk": rows if is_whole else _INPUT_TILES, "down": down, "right": right,
            "height": height, "width": width, "row_tiles": tiling.tiles, "long_tiles": tiling.long_tiles,
        }  # fmt: skip
        row = tuple(numbers.get(key, 0) for key in PARAMETERS)
        keep = (weight, bias, zeros, offsets, x, y, scratch, laid, addend)
        chunks = (count,) if is_whole else (-(-tiles // _INPUT_TILES), tiling.blocks)
        return calls + [NativeCall(kernel, row, number, keep) for kernel, number in zip(kernels, chunks, strict=True)]

    nbytes = moved_bytes * (workers if is_whole else 1) + products_bytes * workers
    return join_recipe(convolution, epilogue, staging, bind, kernels, nbytes=nbytes)


def _cut_tiles(tiles: int, most: int, workers: int) -> tuple[int, int, bool]:
    """Returns the tiles of a chunk, how many chunks there are, and whether a chunk computes all blocks of its tiles."""
    if is_open(tiles):
        return _TILES_OF_OPEN_CHUNK, -(-tiles // _TILES_OF_OPEN_CHUNK), True
    if tiles <= most or (workers > 1 and tiles < workers * most):
        return tiles, 1, False
    count = -(-tiles // most)
    count = -(-count // workers) * workers
    return -(-tiles // count), count, True


def _pack(w: Array, size: int, tiling: Tiling) -> Array:
    """Returns G g G^T of all kernels, computed in float64, as (block, position, channel, column). w: those of planes, or of images."""
    outputs, channels = w.shape[:2]
    w = w.reshape(outputs, channels, 3, 3)
    positions, columns = (size + 2) ** 2, tiling.vectors * tiling.width
    packed = allocate_floats(positions * channels * tiling.padded_outputs)
    for begin in range(0, tiling.padded_outputs, columns):
        held = min(columns, tiling.padded_outputs - begin)
        block = packed[positions * channels * begin :][: positions * channels * held].reshape(positions, channels, held)
        block_outputs = min(held, outputs - begin)
        block[:, :, block_outputs:] = 0
        transform_kernels(w[begin : begin + block_outputs], size, block[:, :, :block_outputs])
    return packed
