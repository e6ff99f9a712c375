"""The kernel of products of two computed matrices, one or many: y = activation(a b + added), with strides as they come."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil

from hetero_cpu.machine.arithmetic import Activation
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Number
from hetero_cpu.open.sizes import is_open
from hetero_cpu.operators.batched.panels import emit_panel, emit_turned_panel
from hetero_cpu.operators.batched.strided_tile import StridedTile, call_strided_tile

ARRAYS = ("a", "b", "y", "added")
PARAMETERS = (
    *(f"{key}{end}" for key in ARRAYS for end in ("", "_outer", "_middle", "_inner", "_step")),
    "middle", "inner", "rows", "depth", "columns", "blocks", "units", "units_of_chunk", "scratch", "scratch_worker",
)  # fmt: skip
"""Addresses, strides in bytes and counts. Matrices stand along three axes; `_step`: from row to row, or from column to column of one whose
columns lie side by side. A unit is a block of columns of one matrix."""

# From how many rows on a tile is taken, its rows, and the vectors of columns that the registers hold, by the elements of a vector.
_TILES = {16: ((7, (14, 11), 2), (2, (6,), 4), (1, (1,), 8)), 8: ((4, (6,), 2), (2, (3,), 3), (1, (1,), 8))}


@dataclass(frozen=True, slots=True)
class BatchedShape:
    """The facts that are compiled in: rows of a tile, vectors of a block and of the last one, and which operands are turned."""

    rows: int
    vectors: int
    last_vectors: int
    is_masked: bool
    is_a_turned: bool
    is_b_turned: bool
    packs: bool
    """Whether blocks of b are copied together before they are read, as turned ones always are."""
    adds: bool
    activations: tuple[Activation, ...]

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        flags = "m" * self.is_masked + "t" * self.is_a_turned + "u" * self.is_b_turned + "p" * self.packs + "a" * self.adds
        return f"{self.rows}x{self.vectors}_{self.last_vectors}{flags}" + "".join(f"_{item.name}" for item in self.activations)


def choose_batched_tile(rows: int, columns: int, width: int) -> tuple[int, int, int, bool]:
    """Returns rows of a tile, vectors of a block and of the last one, and whether that has a vector that is not full."""
    fewest, counts, most = next(tile for tile in _TILES[width] if rows >= tile[0])
    # The last tile of rows overlaps the one before it; of an open number of rows the smallest one serves the class.
    tile = fewest if is_open(rows) else min(rows, min(counts, key=lambda count: ceil(rows / count) * (count + 1)))
    if is_open(columns):
        # Any number of columns is blocks of one vector, of which the last one may be full or not.
        return tile, 1, 1, True
    vectors = min(most, ceil(columns / width))
    rest = columns - (ceil(columns / (vectors * width)) - 1) * vectors * width
    return tile, vectors, ceil(rest / width), columns % width != 0


def make_batched(shape: BatchedShape) -> Kernel:
    """Returns the kernel of a shape."""
    return Kernel(f"batched_{shape.name}", lambda name, width: _emit(name, width, shape))


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
    code: Code,
    p: dict[str, Number],
    shape: BatchedShape,
    places: dict[str, Number],
    block: Number,
    panel: Number,
    is_last: bool,
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
    tile = StridedTile(
        shape.rows,
        vectors,
        is_turned=shape.is_a_turned,
        is_masked=shape.is_masked and is_last,
        start="vectors" if shape.adds else "",
        activations=shape.activations,
    )
    with code.loop(0, p["rows"], shape.rows) as first:
        m = first.at_most(p["rows"] - shape.rows)
        call_strided_tile(
            code,
            tile,
            x=places["a"] + (m * FLOAT_BYTES if shape.is_a_turned else m * p["a_step"]),
            x_step=p["a_step"],
            depth=p["depth"],
            w=w,
            w_step=w_step,
            y=places["y"] + m * p["y_step"] + offset,
            y_step=p["y_step"],
            start=places["added"] + m * p["added_step"] + offset,
            start_step=p["added_step"],
            last=(p["columns"] - 1) % code.width + 1,
        )
