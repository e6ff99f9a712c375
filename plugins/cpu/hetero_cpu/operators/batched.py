"""MatMul and Gemm of two computed operands, by machine code: stacks of matrices with any strides, as views of others have them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil, prod

import numpy as np

from hetero_cpu.machine.arithmetic import Activation, emit_activations
from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width, name_fields
from hetero_cpu.machine.memory import align
from hetero_cpu.machine.terms import Floats, Number
from hetero_cpu.operators.layout import turn_vectors
from hetero_cpu.operators.product import read_epilogue, read_gemm
from hetero_cpu.operators.product_kernel import PixelPointers
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import cut_products, merge_axes
from hetero_cpu.symbols.arrays import broadcast, lay_empty
from hetero_cpu.symbols.sizes import is_open, pays


def emit_panel(code: Code, source: Number, step: Number, rows: Number, columns: Number, panel: Number, vectors: int) -> None:
    """Copies `rows` rows of at most `vectors` vectors into a panel; `columns` of them are there, zeros follow.

    The elements of a row lie side by side, `step` bytes after those of the row before.
    """
    vector_bytes = code.width * FLOAT_BYTES
    masks = [code.mask_first(columns - j * code.width) for j in range(vectors)]
    with code.loop(0, rows) as row:
        for j, mask in enumerate(masks):
            elements = code.load(source + row * step, j * vector_bytes, mask=mask)
            code.store(panel + row * (vectors * vector_bytes), elements, j * vector_bytes)


def emit_turned_panel(
    code: Code,
    source: Number,
    step: Number,
    rows: Number,
    columns: Number,
    panel: Number,
    vectors: int,
    factor: Number | None = None,
) -> None:
    """Copies columns of a turned matrix, times a factor: panel[k, n] = source[n, k] for k below `rows` and n below `columns`, else 0.

    The k of each n lie side by side, `step` bytes after the k of the previous n. `factor`: the bits of a float32.
    """
    row_bytes = vectors * code.width * FLOAT_BYTES
    name = "turn" if factor is None else "turn_and_multiply"
    turn = code.find_inner(name, len(_TURN_PARAMETERS), partial(_emit_turn, has_factor=factor is not None))
    bits = code.number(0) if factor is None else factor
    for j in range(vectors):
        begin, place, there = source + step * (j * code.width), panel + j * code.width * FLOAT_BYTES, columns - j * code.width
        with code.loop(0, rows, code.width) as k:
            code.call(turn, begin + k * FLOAT_BYTES, step, rows - k, there, place + k * row_bytes, row_bytes, bits)


_TURN_PARAMETERS = ("source", "step", "rows", "columns", "target", "target_step", "factor")
"""Addresses, strides in bytes and counts, of which those beyond a vector's elements are the same; the bits of the factor."""


def _emit_turn(code: Code, *, has_factor: bool) -> None:
    """Emits a function that turns a square of as many rows and columns as a vector has elements."""
    source, step, rows, columns, target, target_step, factor = code.parameters
    width = code.width
    full, empty = code.number(width), code.number(0)
    there = rows.at_most(width)
    factors = code.spread(code.float_of(factor)) if has_factor else None
    vectors = []
    for n in range(width):
        # A column that is not there is read nowhere.
        vector = code.load(source + step * n, mask=code.mask_first((columns > n).choose(there, empty)))
        vectors.append(vector if factors is None else vector * factors)
    turned = turn_vectors(vectors)

    def store(are_some: bool) -> None:
        for position, vector in enumerate(turned):
            with code.when(there > position) if are_some else nullcontext():
                code.store(target + target_step * position, vector)

    code.emit_either(there < full, store, True, False)
    code.finish()


_UNROLLED = 4


@dataclass(frozen=True, slots=True)
class StridedTile:
    """The part of a tile that is fixed when it is compiled. A masked tile reads and writes only existing elements of its last vector."""

    pixels: int
    vectors: int
    is_turned: bool = False
    """Whether the m of each k lie side by side in x."""
    is_masked: bool = False
    start: str = ""
    """The initial value of the sums: nothing, a "number" for each m, or as many as there are in the result, in "vectors"."""
    finish: str = ""
    """The operation at the end: nothing, a "factor" for each m, or the largest result of each n is kept as "maximum"."""
    activations: tuple[Activation, ...] = ()


TILE_PARAMETERS = ("x", "x_step", "depth", "w", "w_step", "y", "y_step", "start", "start_step", "edge", "last")
"""Addresses, strides in bytes and counts. `x_step`: from m to m, or from k to k if x is turned; `start_step` and `y_step`: from m to m;
`edge`: a number for each m, or for each n, as `finish` reads it; `last`: the elements of the last vector."""


def call_strided_tile(code: Code, tile: StridedTile, **arguments: Number | int) -> None:
    """Calls a tile, which is emitted when it is first called, with its TILE_PARAMETERS by name; the default is 0."""
    function = code.find_inner(f"strided_{name_fields(tile)}", len(TILE_PARAMETERS), partial(_emit_tile, tile=tile))
    code.call(function, *(arguments.get(name, 0) for name in TILE_PARAMETERS))


def _emit_tile(code: Code, *, tile: StridedTile) -> None:
    p = dict(zip(TILE_PARAMETERS, code.parameters, strict=True))
    vector_bytes = code.width * FLOAT_BYTES
    guards = [code.mask_first(p["last"]) if tile.is_masked and j == tile.vectors - 1 else None for j in range(tile.vectors)]
    sums = []
    for m in range(tile.pixels):
        here = p["start"] + p["start_step"] * m
        if tile.start == "number":
            firsts = [code.spread(code.load_scalar(here))] * tile.vectors
        elif tile.start == "vectors":
            firsts = [code.load(here, j * vector_bytes, mask=guards[j]) for j in range(tile.vectors)]
        else:
            firsts = [code.constant(0.0)] * tile.vectors
        sums.append([code.variable(first) for first in firsts])
    weights = code.variable(p["w"])
    pixels = PixelPointers(code, p["x_step"], 1 if tile.is_turned else tile.pixels)
    pixels.begin(p["x"])

    def advance(count: int) -> None:
        here = weights.get()
        bases = pixels.read()
        for k in range(count):
            rows = [code.load(here, j * vector_bytes, mask=guards[j]) for j in range(tile.vectors)]
            here = here + p["w_step"]
            for m in range(tile.pixels):
                # Side by side if x is turned, else a stride apart.
                place, offset = (bases[0], m) if tile.is_turned else (pixels.find(bases, m), k)
                spread = code.spread(code.load_scalar(place, offset * FLOAT_BYTES))
                for j in range(tile.vectors):
                    sums[m][j].set(code.multiply_add(spread, rows[j], sums[m][j].get()))
            if tile.is_turned:
                bases = [bases[0] + p["x_step"]]
        weights.set(here)
        pixels.move(bases, 0 if tile.is_turned else count * FLOAT_BYTES)

    even = p["depth"] - p["depth"] % _UNROLLED
    with code.loop(0, even, _UNROLLED):
        advance(_UNROLLED)
    with code.loop(even, p["depth"]):
        advance(1)
    results: list[list[Floats]] = [[total.get() for total in row] for row in sums]
    for m, row in enumerate(results):
        factor = code.spread(code.load_scalar(p["edge"], m * FLOAT_BYTES)) if tile.finish == "factor" else None
        for j, total in enumerate(row):
            result = total if factor is None else total * factor
            result = emit_activations(code, tile.activations, result)
            code.store(p["y"] + p["y_step"] * m, result, j * vector_bytes, mask=guards[j])
    if tile.finish == "maximum":
        for j in range(tile.vectors):
            column = [row[j] for row in results]
            while len(column) > 1:
                pairs = [column[k].at_least(column[k + 1]) for k in range(0, len(column) - 1, 2)]
                column = pairs + column[len(pairs) * 2 :]
            edge = code.load(p["edge"], j * vector_bytes)
            code.store(p["edge"], column[0].at_least(edge), j * vector_bytes)
    code.finish()


ARRAYS = ("a", "b", "y", "added")
PARAMETERS = (
    *(f"{key}{end}" for key in ARRAYS for end in ("", "_outer", "_middle", "_inner", "_step")),
    "middle", "inner", "rows", "depth", "columns", "blocks", "units", "units_of_chunk", "scratch", "scratch_worker",
)  # fmt: skip
"""Addresses, strides in bytes and counts. Matrices stand along three axes; `_step`: from row to row, or from column to column if its
columns lie side by side. A unit is a block of columns of a matrix."""

# From how many rows on a tile is taken, its rows, and the vectors of columns that the registers hold, by the elements of a vector.
_TILES = {16: ((7, (14, 11), 2), (2, (6,), 4), (1, (1,), 8)), 8: ((4, (6,), 2), (2, (3,), 3), (1, (1,), 8))}


@dataclass(frozen=True, slots=True)
class BatchedShape:
    """The facts that are compiled in: rows of a tile, vectors of a block and of the last block, and which operands are turned."""

    rows: int
    vectors: int
    last_vectors: int
    is_masked: bool
    is_a_turned: bool
    is_b_turned: bool
    packs: bool
    """Whether blocks of b are copied together before they are read, always so if b is turned."""
    adds: bool
    activations: tuple[Activation, ...]


def choose_batched_tile(rows: int, columns: int, width: int) -> tuple[int, int, int, bool]:
    """Returns rows of a tile, vectors of a block and of the last block, and whether that has a vector that is not full."""
    fewest, counts, most = next(tile for tile in _TILES[width] if rows >= tile[0])
    # The last tile of rows overlaps its predecessor; the smallest tile serves all open numbers of rows.
    tile = fewest if is_open(rows) else min(rows, min(counts, key=lambda count: ceil(rows / count) * (count + 1)))
    if is_open(columns):
        # Any number of columns is blocks of a vector each, the last of them full or not.
        return tile, 1, 1, True
    vectors = min(most, ceil(columns / width))
    rest = columns - (ceil(columns / (vectors * width)) - 1) * vectors * width
    return tile, vectors, ceil(rest / width), columns % width != 0


def _emit(name: str, width: int, shape: BatchedShape) -> Code:
    code, p, chunk, worker = begin_kernel(name, width, PARAMETERS)
    panel = p["scratch"] + worker * p["scratch_worker"]
    with code.visit_chunk(chunk, p["units_of_chunk"], p["units"]) as unit:
        matrix, block = unit // p["blocks"], unit % p["blocks"]
        line, third = matrix // p["inner"], matrix % p["inner"]
        first, second = line // p["middle"], line % p["middle"]
        places = {
            key: p[key] + first * p[f"{key}_outer"] + second * p[f"{key}_middle"] + third * p[f"{key}_inner"] for key in ARRAYS
        }
        emit = partial(_emit_block, code, p, shape, places, block, panel)
        if shape.last_vectors == shape.vectors and not shape.is_masked:
            emit(False)
        else:
            code.emit_either(block.equals(p["blocks"] - 1), emit, True, False)
    return code.finish()


def _emit_block(
    code: Code, p: dict[str, Number], shape: BatchedShape, places: dict[str, Number], block: Number, panel: Number, is_last: bool
) -> None:
    """Emits the product of all rows with a block of columns."""
    vectors = shape.last_vectors if is_last else shape.vectors
    column = block * (shape.vectors * code.width)
    offset = column * FLOAT_BYTES
    if shape.is_b_turned or shape.packs:
        emit_copy, source = emit_panel, places["b"] + offset
        if shape.is_b_turned:
            emit_copy, source = emit_turned_panel, places["b"] + column * p["b_step"]
        emit_copy(code, source, p["b_step"], p["depth"], p["columns"] - column, panel, vectors)
        w, w_step = panel, code.number(vectors * code.width * FLOAT_BYTES)
    else:
        w, w_step = places["b"] + offset, p["b_step"]
    start = "vectors" if shape.adds else ""
    tile = StridedTile(shape.rows, vectors, shape.is_a_turned, shape.is_masked and is_last, start, activations=shape.activations)
    with code.loop(0, p["rows"], shape.rows) as first:
        m = first.at_most(p["rows"] - shape.rows)
        call_strided_tile(
            code, tile, x=places["a"] + (m * FLOAT_BYTES if shape.is_a_turned else m * p["a_step"]), x_step=p["a_step"], depth=p["depth"],
            w=w, w_step=w_step, y=places["y"] + m * p["y_step"] + offset, y_step=p["y_step"],
            start=places["added"] + m * p["added_step"] + offset, start_step=p["added_step"], last=(p["columns"] - 1) % code.width + 1,
        )  # fmt: skip


_ROWS_WORTH_PACKING = 28


def plan_native_batched_mat_mul(site: Site) -> Recipe | None:
    """Returns the recipe of a @ b for matrices and stacks of them that broadcast to each other.

    One constant matrix b is packed once, elsewhere, unless plans share it as it is. Source: ONNX MatMul-13, Gemm-13.
    """
    names = site.node.inputs[:2]
    weight = site.constant(1)
    if weight is not None and weight.ndim == 2 and not site.weights.is_shared:
        return None
    if not site.is_float32(*names) or min(len(site.shape(name)) for name in names) < 2:
        return None
    gemm = read_gemm(site)
    if gemm is None:
        return None
    shape = site.output_shape()
    a, b = site.prototypes[names[0]], _turn(site.prototypes[names[1]], gemm[1])
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    epilogue = read_epilogue(site, gemm[0], columns, channel_axis=-1)
    if epilogue is None or (epilogue.bias is not None and epilogue.added):
        return None
    turns = (_find_turn(a, rows=depth > 1), _find_turn(b, rows=columns > 1))
    adds = (epilogue.added,) if epilogue.added else ()
    bias = None if epilogue.bias is None else np.ascontiguousarray(epilogue.bias.reshape(-1), np.float32)
    if None in turns or any(columns > 1 and site.prototypes[value].strides[-1] != FLOAT_BYTES for value in adds):
        return None
    is_a_turned, is_b_turned = bool(turns[0]), bool(turns[1])
    width = find_width()
    cut = choose_batched_tile(rows, columns, width)
    # Rows of b far apart fall into the same few lines of a cache.
    packs = pays(rows, _ROWS_WORTH_PACKING // 2) if is_open(rows) else rows >= _ROWS_WORTH_PACKING
    operands = is_a_turned, is_b_turned, packs, bool(adds) or bias is not None
    batched, vectors = BatchedShape(*cut, *operands, epilogue.activations), cut[1]
    kernel = Kernel(f"batched_{name_fields(batched)}", partial(_emit, shape=batched))

    def spread(arrays: Sequence[Array], y: Array) -> list[Array]:
        """Returns a, b, the result and the addends, each as a stack of the result's shape."""
        extra = bias if bias is not None else arrays[2] if adds else y
        stacks = [broadcast(array, (*shape[:-2], *array.shape[-2:])) for array in arrays[:2]]
        return [*stacks, y, broadcast(extra, shape)]

    def walk(arrays: Sequence[Array]) -> tuple[list[int], list[tuple[int, ...]]]:
        return merge_axes([array[..., 0, 0] for array in (arrays[2], arrays[0], arrays[1], arrays[3])])

    like_y = lay_empty(shape, np.float32)
    if len(walk(spread([a, b, *(site.prototypes[value] for value in adds)], like_y))[0]) > 3:
        return None
    blocks = -(-columns // (vectors * width))
    units = blocks * prod(shape[:-2])
    panel_bytes = align(depth * vectors * width * FLOAT_BYTES) + 128 if is_b_turned or packs else 0
    units_of_chunk = cut_products(units, units * rows * depth * vectors * width, site.workers)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        arrays = spread([reads[0], _turn(reads[1], gemm[1]), *reads[2:]], writes[0])
        sizes, strides = walk(arrays)
        assert len(sizes) <= 3
        missing = 3 - len(sizes)
        _, middle, inner = (1,) * missing + tuple(sizes)
        numbers: list[int] = []
        for array, position, is_turned in zip(arrays, (1, 2, 0, 3), (is_a_turned, is_b_turned, False, False), strict=True):
            places = (*(0,) * missing, *(axis[position] for axis in strides), array.strides[-1 if is_turned else -2])
            numbers += [address_of(array), *places]
        numbers += [middle, inner, rows, depth, columns, blocks, units, units_of_chunk, address_of(scratch), panel_bytes]
        return [NativeCall(kernel, tuple(numbers), -(-units // units_of_chunk), (*reads, writes[0], scratch, bias))]

    return Recipe((*names, *adds), bind, site.workers * panel_bytes, kernels=(kernel,))


def _turn(matrix: Array, is_turned: bool) -> Array:
    return matrix.transpose() if is_turned else matrix  # an open array has no T


def _find_turn(matrix: Array, *, rows: bool) -> bool | None:
    """Says whether the columns of a matrix lie side by side rather than its rows; None if neither do. Rows of a single element do."""
    if not rows or matrix.strides[-1] == FLOAT_BYTES:
        return False
    return True if matrix.shape[-2] == 1 or matrix.strides[-2] == FLOAT_BYTES else None
