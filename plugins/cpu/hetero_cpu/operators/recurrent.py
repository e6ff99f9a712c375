"""LSTM, GRU and RNN: the product of all steps with the weights of the input, then a kernel that walks over the steps.

A chunk is a direction of a few rows of the batch. Each of its steps multiplies the rows' hidden states by the recurrent weights with the
tiles of `product_kernel`, and computes gates and states from the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from hetero_cpu.machine.arithmetic import Activation, emit_activations
from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.memory import cut_scratch, measure_scratch
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.product import NativeEpilogue, plan_rows
from hetero_cpu.operators.product_kernel import Tile, call_tile
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.tiling import ColumnPacking, Tiling, cut_pixels, pack_columns

_VECTORS = 4
"""Vectors of a block of recurrent weights."""
_ROWS = {16: 6, 8: 3}
"""The rows of a chunk, by the width of a vector: their sums fill the registers."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_FIELDS = (
    "sums", "sums_step", "sums_row", "sums_direction", "w", "block_bytes", "blocks", "bias", "offsets", "steps", "batch", "row_chunks",
    "hidden", "state", "state_row", "padded", "is_reverse", "y", "y_step", "y_direction", "y_row",
    "h", "h_direction", "h_row", "c", "c_direction", "c_row",
    "first_h", "first_h_direction", "first_h_row", "first_c", "first_c_direction", "first_c_row",
)  # fmt: skip
"""Addresses, 0 for an absent array; strides in bytes; counts. `padded`: bytes of a hidden state, a multiple of a vector."""


@dataclass(frozen=True, slots=True)
class GatePacking:
    """Arranges (directions, gates * hidden, depth) as a matrix with gates of whole vectors and `columns` in all, and packs it."""

    tiling: Tiling
    gates: int
    columns: int
    joins: bool
    """Whether the directions lie side by side in one matrix, or each is packed by itself."""

    def __call__(self, weight: Array) -> Array:
        """Returns the blocks of columns, in order."""
        matrices = [fill_gates(part.T, self.gates, self.columns, self.tiling.width) for part in weight]
        if self.joins:
            return ColumnPacking(self.tiling)(np.concatenate(matrices, axis=1))
        return np.concatenate([pack_columns(matrix, self.tiling) for matrix in matrices])


def fill_gates(numbers: Array, gates: int, columns: int, width: int) -> Array:
    """Returns numbers of (..., gates * hidden), each gate filled up with zeros to whole vectors, and all of them to `columns`."""
    hidden = numbers.shape[-1] // gates
    padded = -(-hidden // width) * width
    filled = np.zeros((*numbers.shape[:-1], columns), np.float32)
    for gate in range(gates):
        filled[..., gate * padded : gate * padded + hidden] = numbers[..., gate * hidden : (gate + 1) * hidden]
    return filled


def plan_recurrence(site: Site) -> Recipe | None:
    """Returns the recipe of a recurrence with constant weights, the usual activations, and sequences of one length."""
    node, width = site.node, find_width()
    kind, names = node.op_type, (*node.inputs, *("",) * 8)
    x, (w, r, b) = names[0], (site.constant(place) for place in (1, 2, 3))
    attributes = node.attributes
    if w is None or r is None or w.dtype != np.float32 or not site.is_float32(x) or 0 in site.shape(x) or site.weights.is_shared:
        return None
    if names[4] or names[7] or (names[3] and b is None) or any(attributes.get(key) for key in ("clip", "input_forget", "layout")):
        return None
    if kind == "GRU" and not attributes.get("linear_before_reset", 0):
        return None
    directions, gates, hidden = len(w), _GATES[kind], r.shape[2]
    activations = tuple(attributes.get("activations", _ACTIVATIONS[kind] * directions))
    if activations != activations[: len(_ACTIVATIONS[kind])] * directions or not set(activations) <= {"Relu", "Sigmoid", "Tanh"}:
        return None
    if node.since_version < 7 or hidden > 2048:
        return None
    steps, batch = site.shape(x)[:2]
    firsts = [(name, site.constants.get(name)) for name in names[5:7]]
    computed = [name for name, constant in firsts if name and constant is None]
    if not site.is_float32(*computed) or any(site.prototypes[name].strides[-1] != FLOAT_BYTES for name in computed):
        return None
    padded = -(-hidden // width) * width
    cut = cut_pixels(1, -(-gates * padded // (_VECTORS * width)) * _VECTORS * width, width, 1, _VECTORS)
    columns = cut.padded_outputs
    biases = np.zeros((2, directions, gates * hidden), np.float32) if b is None else b.reshape(directions, 2, -1).swapaxes(0, 1)
    of_input, of_state = (fill_gates(bias, gates, columns, width) for bias in biases)
    product = plan_rows(
        site, x, (w,), directions * columns, NativeEpilogue(of_input.reshape(-1), "", ()),
        purpose=("gates", columns), packing_of=lambda tiling: GatePacking(tiling.packing, gates, columns, joins=True),
    )  # fmt: skip
    if product is None:
        return None
    packed = site.weights.pack_lazily((r,), ("recurrence", columns), GatePacking(cut.packing, gates, columns, joins=False))
    rows = 1 if isinstance(batch, int) and batch == 1 else _ROWS[width]
    kernel = _make_kernel(kind, activations[: len(_ACTIVATIONS[kind])], rows)
    offsets, of_state = np.zeros(1, np.int64), np.ascontiguousarray(of_state)
    sums_shape, state_shape = (steps, batch, directions * columns), (directions, batch, 3 * padded + columns)
    row_chunks = -(-batch // rows)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        sums, state, *_ = cut_scratch(scratch, [sums_shape, state_shape])
        given, outputs = dict(zip(computed, reads[1:], strict=True)), dict(zip(node.writes, writes, strict=True))
        starts = [given.get(name) if constant is None else np.ascontiguousarray(constant) for name, constant in firsts]
        numbers = {
            "sums": address_of(sums), "sums_step": sums.strides[0], "sums_row": sums.strides[1], "sums_direction": columns * FLOAT_BYTES,
            "w": address_of(packed), "block_bytes": hidden * _VECTORS * width * FLOAT_BYTES, "blocks": cut.blocks,
            "bias": address_of(of_state), "offsets": address_of(offsets), "steps": steps, "batch": batch, "row_chunks": row_chunks,
            "hidden": hidden, "state": address_of(state), "state_row": state.strides[1], "padded": padded * FLOAT_BYTES,
            "is_reverse": int(attributes.get("direction", "forward") == "reverse"),
        }  # fmt: skip
        arrays = [outputs.get(name) for name in (*node.outputs, "", "")[:3]]
        for name, array in zip(("y", "h", "c", "first_h", "first_c"), (*arrays, *starts), strict=True):
            if array is not None:
                axes = ("_step", "_direction", "_row") if name == "y" else ("_direction", "_row")
                numbers |= {name: address_of(array), **{name + axis: array.strides[place] for place, axis in enumerate(axes)}}
        keep = (offsets, of_state, packed, scratch, *reads, *writes, *starts)
        call = NativeCall(kernel, tuple(numbers.get(key, 0) for key in _FIELDS), directions * row_chunks, keep)
        laid = scratch[measure_scratch([sums_shape, state_shape]) :]
        return [*product.bind(reads[0], sums, None, laid), call]

    return Recipe(
        (x, *computed), bind, measure_scratch([sums_shape, state_shape]) + product.scratch, kernels=(*product.kernels, kernel)
    )


@cache
def _make_kernel(kind: str, activations: tuple[str, ...], rows: int) -> Kernel:
    return Kernel(f"{kind.lower()}_{rows}_{'_'.join(activations)}", partial(_emit, kind=kind, activations=activations, rows=rows))


def _emit(name: str, width: int, *, kind: str, activations: tuple[str, ...], rows: int) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, _FIELDS)
    direction, first = chunk // p["row_chunks"], (chunk % p["row_chunks"]) * rows
    end = (first + rows).at_most(p["batch"])
    state, row_bytes = p["state"] + (direction * p["batch"]) * p["state_row"], p["state_row"]
    gates_place, block_columns = p["padded"] * 3, _VECTORS * width * FLOAT_BYTES
    columns_bytes = p["blocks"] * block_columns

    def copy(source: str, target: str, place: Number, *, is_start: bool) -> None:
        """Copies a state between the working memory and an array; a start is 0 without an array."""
        array = source if is_start else target
        with code.loop(first, end) as row:
            own = state + row * row_bytes + place
            other = p[array] + direction * p[f"{array}_direction"] + row * p[f"{array}_row"]

            def move(element: Number, mask: Mask | None) -> None:
                there = other + element * FLOAT_BYTES
                if is_start:
                    code.store(own + element * FLOAT_BYTES, code.load(there, mask=mask), mask=mask)
                else:
                    code.store(there, code.load(own + element * FLOAT_BYTES, mask=mask), mask=mask)

            def clear(element: Number, mask: Mask | None) -> None:
                code.store(own + element * FLOAT_BYTES, code.constant(0.0), mask=mask)

            with code.either(p[array].equals(0)) as (absent, present):
                with absent:
                    if is_start:
                        code.visit_vectors(p["hidden"], clear)
                with present:
                    code.visit_vectors(p["hidden"], move)

    zero = code.number(0)
    copy("first_h", "", zero, is_start=True)
    copy("first_c", "", p["padded"] * 2, is_start=True)
    goes_back = (direction + p["is_reverse"]) > 0
    with code.loop(0, p["steps"]) as index:
        step = goes_back.choose(p["steps"] - 1 - index, index)
        here = (index % 2) * p["padded"]
        there = p["padded"] - here

        def multiply(row: Number, count: int) -> None:
            own = state + row * row_bytes
            with code.loop(0, p["blocks"]) as block:
                call_tile(
                    code, Tile(count, _VECTORS), x=own + here, x_pixel=row_bytes, offsets=p["offsets"], taps=1, depth=p["hidden"],
                    w=p["w"] + (direction * p["blocks"] + block) * p["block_bytes"],
                    bias=p["bias"] + direction * columns_bytes + block * block_columns,
                    y=own + gates_place + block * block_columns, y_pixel=row_bytes,
                )  # fmt: skip

        def multiply_each() -> None:
            with code.loop(first, end) as row:
                multiply(row, 1)

        if rows == 1:
            multiply(first, 1)
        else:
            with code.either((end - first).equals(rows)) as (full, few):
                with full:
                    multiply(first, rows)
                with few:
                    multiply_each()
        with code.loop(first, end) as row:
            own = state + row * row_bytes
            sums = p["sums"] + step * p["sums_step"] + row * p["sums_row"] + direction * p["sums_direction"]
            y = p["y"] + step * p["y_step"] + direction * p["y_direction"] + row * p["y_row"]

            def compute(element: Number, mask: Mask | None) -> None:
                place = element * FLOAT_BYTES

                def find_gate(gate: int) -> tuple[Floats, Floats]:
                    column = p["padded"] * gate + place
                    return code.load(sums + column, mask=mask), code.load(own + gates_place + column, mask=mask)

                functions = [partial(emit_activations, code, (Activation(name),)) for name in activations]
                if kind == "LSTM":
                    to_i, to_o, to_f, to_c = (sum_ + own_sum for sum_, own_sum in map(find_gate, range(4)))
                    cell_place = own + p["padded"] * 2 + place
                    cell = functions[0](to_f) * code.load(cell_place, mask=mask) + functions[0](to_i) * functions[1](to_c)
                    code.store(cell_place, cell, mask=mask)
                    result = functions[0](to_o) * functions[2](cell)
                elif kind == "GRU":
                    update, reset = (functions[0](sum_ + own_sum) for sum_, own_sum in map(find_gate, range(2)))
                    of_input, of_state = find_gate(2)
                    proposed = functions[1](of_input + reset * of_state)
                    result = (code.constant(1.0) - update) * proposed + update * code.load(own + here + place, mask=mask)
                else:
                    of_input, of_state = find_gate(0)
                    result = functions[0](of_input + of_state)
                code.store(own + there + place, result, mask=mask)
                with code.when(p["y"] > 0):
                    code.store(y + place, result, mask=mask)

            code.visit_vectors(p["hidden"], compute)
    copy("", "h", (p["steps"] % 2) * p["padded"], is_start=False)
    copy("", "c", p["padded"] * 2, is_start=False)
    return code.finish()
