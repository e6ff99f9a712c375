"""LSTM, GRU and RNN: the product of all steps with the weights of the input, then a kernel that walks over the steps.

A chunk is a direction of a few rows of the batch. Each of its steps multiplies the rows' hidden states by the recurrent weights with the
tiles of `product_kernel`, and computes gates and states from the sums.

DynamicQuantizeLSTM multiplies codes: a chunk is a direction of all rows, which share the range of their codes. It quantizes and multiplies
the input itself, then the hidden states of each step. Codes are bytes if the processor multiplies bytes, else whole float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero_cpu.machine.arithmetic import Activation, emit_activations
from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_byte_products, find_width
from hetero_cpu.machine.memory import cut_scratch, measure_scratch
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.images import emit_copy
from hetero_cpu.operators.narrow_product import NarrowPacking
from hetero_cpu.operators.product import NativeEpilogue, plan_rows
from hetero_cpu.operators.product_kernel import Tile, call_tile
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.tiling import Tiling, cut_pixels, pack_columns
from hetero_cpu.symbols.sizes import is_open

_VECTORS = 4
"""Vectors of a block of recurrent weights."""
_ROWS = {16: 6, 8: 3}
"""The rows of a chunk, by the width of a vector: their sums fill the registers."""
_GATES = {"DynamicQuantizeLSTM": 4, "LSTM": 4, "GRU": 3, "RNN": 1}
_LSTM_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")
_ACTIVATIONS = {"DynamicQuantizeLSTM": _LSTM_ACTIVATIONS, "LSTM": _LSTM_ACTIVATIONS, "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_RESETTING = "GRU_of_reset_states"
"""The kind of a GRU that multiplies the reset states, not the states: linear_before_reset=0."""
_LARGEST_SUM = 1 << 24
"""The bound of sums of whole numbers that float32 holds exactly."""
_CODES = 255
_FIELDS = (
    "sums", "sums_step", "sums_row", "sums_direction", "w", "block_bytes", "blocks", "bias", "offsets", "steps", "batch", "row_chunks",
    "hidden", "state", "state_row", "padded", "is_reverse", "y", "y_step", "y_direction", "y_row",
    "h", "h_direction", "h_row", "c", "c_direction", "c_row",
    "first_h", "first_h_direction", "first_h_row", "first_c", "first_c_direction", "first_c_row", "depth",
)  # fmt: skip
"""Addresses, 0 for an absent array; strides in bytes; counts. `padded`: bytes of a hidden state, a multiple of a vector; `depth` of its
product."""
_CODE_FIELDS = (
    "x", "x_step", "x_row", "x_size", "codes", "codes_direction", "codes_row", "x_w", "x_block_bytes", "x_depth",
    "x_scales", "h_scales", "gate_bias",
)  # fmt: skip
"""Further fields of codes: the input, its codes, and the scales and biases of all columns."""


FindGate = Callable[[int], tuple[Floats, Floats]]
"""Returns the sums of a gate that come from the input and from the states."""


def _pack(
    weight: Array,
    zeros: Array | None = None,
    *,
    tiling: Tiling,
    gates: int,
    columns: int,
    joins: bool = False,
    are_bytes: bool = False,
) -> Array:
    """Returns (directions, gates * hidden, depth) as matrices with gates of whole vectors and `columns` in all, in blocks of columns.

    With zero points the weights are codes (directions, depth, gates * hidden). `joins`: whether the directions lie side by side in one
    matrix, or each is packed by itself.
    """
    parts = weight.swapaxes(1, 2) if zeros is None else _center_codes(weight, zeros)
    matrices = [_fill_gates(part, gates, columns, tiling.width) for part in parts]
    if joins:
        return pack_columns(np.concatenate(matrices, axis=1), tiling)
    pack = NarrowPacking(tiling, 1, FLOAT_BYTES, "int8") if are_bytes else partial(pack_columns, tiling=tiling)
    return np.concatenate(list(map(pack, matrices)))


def _center_codes(codes: Array, zeros: Array) -> Array:
    """Returns codes (directions, depth, columns) less the zero points of each direction or of its columns, as float32."""
    return codes.astype(np.float32) - zeros.reshape(len(codes), 1, -1)


def _fill_gates(numbers: Array, gates: int, columns: int, width: int) -> Array:
    """Returns numbers of (..., gates * hidden), each gate filled up with zeros to whole vectors, and all of them to `columns`."""
    hidden = numbers.shape[-1] // gates
    padded = -(-hidden // width) * width
    filled = np.zeros((*numbers.shape[:-1], columns), np.float32)
    for gate in range(gates):
        filled[..., gate * padded : gate * padded + hidden] = numbers[..., gate * hidden : (gate + 1) * hidden]
    return filled


def plan_recurrence(site: Site) -> Recipe | None:
    """Returns the recipe of a recurrence with constant weights, the usual activations, and sequences of one length.

    Sources: ONNX LSTM-22, GRU-22, RNN-22; com.microsoft DynamicQuantizeLSTM-1.
    """
    node, width = site.node, find_width()
    kind, names = node.op_type, (*node.inputs, *("",) * 8)
    x, (w, r, b) = names[0], (site.constant(place) for place in (1, 2, 3))
    attributes, has_codes = node.attributes, kind == "DynamicQuantizeLSTM"
    if w is None or r is None or not site.is_float32(x) or 0 in site.shape(x) or site.weights.is_shared:
        return None
    if names[4] or names[7] or (names[3] and b is None) or any(attributes.get(key) for key in ("clip", "input_forget", "layout")):
        return None
    directions, gates, hidden = len(w), _GATES[kind], r.shape[1 if has_codes else 2]
    activations = tuple(attributes.get("activations", _ACTIVATIONS[kind] * directions))
    if activations != activations[: len(_ACTIVATIONS[kind])] * directions or not set(activations) <= {"Relu", "Sigmoid", "Tanh"}:
        return None
    codes = _read_codes(site) if has_codes else None
    if (codes is None if has_codes else w.dtype != np.float32 or node.since_version < 7) or hidden > 2048:
        return None
    steps, batch, features = site.shape(x)
    firsts = [(name, site.constants.get(name)) for name in names[5:7]]
    computed = [name for name, constant in firsts if name and constant is None]
    if not site.is_float32(*computed) or any(site.prototypes[name].strides[-1] != FLOAT_BYTES for name in computed):
        return None
    padded = -(-hidden // width) * width
    cut = cut_pixels(1, -(-gates * padded // (_VECTORS * width)) * _VECTORS * width, width, 1, _VECTORS)
    columns = cut.padded_outputs
    biases = np.zeros((2, directions, gates * hidden), np.float32) if b is None else b.reshape(directions, 2, -1).swapaxes(0, 1)
    fill = partial(_fill_gates, gates=gates, columns=columns, width=width)
    of_input, of_state = map(fill, biases)
    product: Recipe | None = None
    sources: list[tuple[Array, ...]] = [(r,)]
    scales: list[Array] = []
    products, depths = "", (features, hidden)
    if codes is None:
        product = plan_rows(
            site, x, (w,), directions * columns, NativeEpilogue(of_input.reshape(-1), "", ()),
            purpose=("gates", columns),
            packing_of=lambda tiling: partial(_pack, tiling=tiling.packing, gates=gates, columns=columns, joins=True),
        )  # fmt: skip
        if product is None:
            return None
    else:
        if site.prototypes[x].strides[-1] != FLOAT_BYTES or is_open(features):
            return None
        (of_w, of_r), scales, products = codes
        of_input, of_state, scales = fill(biases[0] + biases[1]), np.zeros_like(of_state), list(map(fill, scales))
        sources = [(w, of_w), (r, of_r)]
        depths = (-(-features // FLOAT_BYTES), -(-hidden // FLOAT_BYTES)) if products else depths
    packing = partial(_pack, tiling=cut.packing, gates=gates, columns=columns, are_bytes=bool(products))
    packed = [site.weights.pack_lazily(source, ("recurrence", columns, products), packing) for source in sources]
    rows = 1 if isinstance(batch, int) and batch == 1 else _ROWS[width]
    own = activations[: len(_ACTIVATIONS[kind])]
    form = _RESETTING if kind == "GRU" and not attributes.get("linear_before_reset", 0) else kind
    title = f"{form.lower()}_{rows}_{'_'.join(own)}{products}"
    kernel = Kernel(title, partial(_emit, kind=form, activations=own, rows=rows, products=products))
    offsets, of_state = np.zeros(1, np.int64), np.ascontiguousarray(of_state)
    shapes: list[tuple[int, ...]] = [(steps, batch, directions * columns), (directions, batch, (3 + has_codes) * padded + columns)]
    if has_codes:
        shapes.append((directions, steps, batch, depths[0]))
    row_chunks = 1 if has_codes else -(-batch // rows)
    block_bytes = [(depth + bool(products)) * _VECTORS * width * FLOAT_BYTES for depth in depths]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        sums, state, *staged = cut_scratch(scratch, shapes)
        given, outputs = dict(zip(computed, reads[1:], strict=True)), dict(zip(node.writes, writes, strict=True))
        starts = [given.get(name) if constant is None else np.ascontiguousarray(constant) for name, constant in firsts]
        numbers = {
            "sums": address_of(sums), "sums_step": sums.strides[0], "sums_row": sums.strides[1], "sums_direction": columns * FLOAT_BYTES,
            "w": address_of(packed[-1]), "block_bytes": block_bytes[1], "blocks": cut.blocks, "depth": depths[1],
            "bias": address_of(of_state), "offsets": address_of(offsets), "steps": steps, "batch": batch, "row_chunks": row_chunks,
            "hidden": hidden, "state": address_of(state), "state_row": state.strides[1], "padded": padded * FLOAT_BYTES,
            "is_reverse": int(attributes.get("direction", "forward") == "reverse"),
        }  # fmt: skip
        arrays = [outputs.get(name) for name in (*node.outputs, "", "")[:3]]
        for name, array in zip(("y", "h", "c", "first_h", "first_c"), (*arrays, *starts), strict=True):
            if array is not None:
                axes = ("_step", "_direction", "_row") if name == "y" else ("_direction", "_row")
                numbers |= {name: address_of(array), **{name + axis: array.strides[place] for place, axis in enumerate(axes)}}
        for own in staged:
            numbers |= {
                "x": address_of(reads[0]), "x_step": reads[0].strides[0], "x_row": reads[0].strides[1], "x_size": features,
                "codes": address_of(own), "codes_direction": own.strides[0], "codes_row": own.strides[2],
                "x_w": address_of(packed[0]), "x_block_bytes": block_bytes[0], "x_depth": depths[0],
                "x_scales": address_of(scales[0]), "h_scales": address_of(scales[1]), "gate_bias": address_of(of_input),
            }  # fmt: skip
        keep = (offsets, of_input, of_state, *packed, scratch, *scales, *reads, *writes, *starts)
        fields = (*_FIELDS, *_CODE_FIELDS * has_codes)
        call = NativeCall(kernel, tuple(numbers.get(key, 0) for key in fields), directions * row_chunks, keep)
        before = [] if product is None else product.bind(reads[:1], [sums], scratch[measure_scratch(shapes) :])
        return [*before, call]

    others = (0, ()) if product is None else (product.scratch, product.kernels)
    return Recipe((x, *computed), bind, measure_scratch(shapes) + others[0], kernels=(*others[1], kernel))


def _read_codes(site: Site) -> tuple[list[Array], list[Array], str] | None:
    """Returns the zero points and the scales of the weights of a DynamicQuantizeLSTM, and the products of bytes that they can be made of.

    None if float32 might not hold a sum of codes.
    """
    constants = [array for array in map(site.constant, (1, 2, 8, 10, 9, 11)) if array is not None]
    if len(constants) < 6:
        return None
    weights, scales, zeros = constants[:2], constants[2:4], constants[4:]
    centred = list(map(_center_codes, weights, zeros))
    if max(int(np.abs(numbers).sum(1).max()) for numbers in centred) * _CODES >= _LARGEST_SUM:
        return None
    are_bytes = all(numbers.min() >= -128 and numbers.max() <= 127 for numbers in centred)
    directions, columns = len(weights[1]), weights[1].shape[2]
    wide = [np.broadcast_to(scale.reshape(directions, -1), (directions, columns)) for scale in scales]
    return zeros, wide, "vnni" if are_bytes and find_byte_products() in ("vnni", "amx") else ""


def _emit(name: str, width: int, *, kind: str, activations: tuple[str, ...], rows: int, products: str) -> Code:
    has_codes = kind == "DynamicQuantizeLSTM"
    code, p, chunk, _ = begin_kernel(name, width, (*_FIELDS, *_CODE_FIELDS * has_codes))
    direction, first = chunk // p["row_chunks"], (chunk % p["row_chunks"]) * rows
    end = p["batch"] if has_codes else (first + rows).at_most(p["batch"])
    state, row_bytes = p["state"] + (direction * p["batch"]) * p["state_row"], p["state_row"]
    gates_place, block_columns = p["padded"] * 3, _VECTORS * width * FLOAT_BYTES
    columns_bytes = p["blocks"] * block_columns

    def copy(array: str, place: Number, *, is_start: bool) -> None:
        """Copies a state between the working memory and an array; a start is 0 without an array."""
        with code.loop(first, end) as row:
            own = state + row * row_bytes + place
            other = p[array] + direction * p[f"{array}_direction"] + row * p[f"{array}_row"]

            with code.either(p[array].equals(0)) as (absent, present):
                with absent:
                    if is_start:
                        zeros = code.constant(0.0)
                        code.visit_vectors(p["hidden"], lambda i, mask: code.store(own + i * FLOAT_BYTES, zeros, mask=mask))
                with present:
                    emit_copy(code, *((own, other) if is_start else (other, own)), p["hidden"] * FLOAT_BYTES)

    zero = code.number(0)
    copy("first_h", zero, is_start=True)
    copy("first_c", p["padded"] * 2, is_start=True)
    goes_back = (direction + p["is_reverse"]) > 0
    shift = code.reserve(1) if products else code.number(0)
    quantize = partial(_emit_codes, code, shift, bool(products))

    def multiply(count: int, x: Number, x_pixel: Number, y: Number, y_pixel: Number, of: str = "", begin: Number = zero) -> None:
        """Multiplies rows by the weights of a direction, those of the states or `of` the input, from the block `begin` on."""
        weights = p[f"{of}w"] + direction * p["blocks"] * p[f"{of}block_bytes"]
        with code.loop(begin, p["blocks"]) as block:
            call_tile(
                code, Tile(count, _VECTORS, products=products), x=x, x_pixel=x_pixel, offsets=p["offsets"], taps=1, depth=p[f"{of}depth"],
                w=weights + block * p[f"{of}block_bytes"], bias=p["bias"] + direction * columns_bytes + block * block_columns,
                y=y + block * block_columns, y_pixel=y_pixel, **({"shift": shift} if products else {}),
            )  # fmt: skip

    def visit_rows(begin: Number, end: Number, most: int, emit: Callable[[Number, int], None]) -> None:
        """Emits `emit(first row, count)` for `most` rows at a time, and for each of fewer rows that are left."""
        with code.loop(begin, end, most) as row, code.either(row + most <= end) as (full, few):
            with full:
                emit(row, most)
            with few, code.loop(row, end) as other:
                emit(other, 1)

    if has_codes:
        codes, sums = p["codes"] + direction * p["codes_direction"], p["sums"] + direction * p["sums_direction"]

        def find_input(row: Number) -> tuple[Number, Number]:
            return p["x"] + row // p["batch"] * p["x_step"] + row % p["batch"] * p["x_row"], codes + row * p["codes_row"]

        def multiply_inputs(row: Number, count: int) -> None:
            multiply(count, codes + row * p["codes_row"], p["codes_row"], sums + row * p["sums_row"], p["sums_row"], "x_")

        x_scale = quantize(p["steps"] * p["batch"], p["x_size"], find_input)
        visit_rows(zero, p["steps"] * p["batch"], _ROWS[width], multiply_inputs)
    with code.loop(0, p["steps"]) as index:
        step = goes_back.choose(p["steps"] - 1 - index, index)
        here = (index % 2) * p["padded"]
        there = p["padded"] - here
        source = state + (gates_place + columns_bytes if has_codes else here)
        if has_codes:
            h_scale = quantize(end, p["hidden"], lambda row: (state + here + row * row_bytes, source + row * row_bytes))

        def multiply_states(source: Number, begin: Number, row: Number, count: int) -> None:
            place = state + gates_place + row * row_bytes
            multiply(count, source + row * row_bytes, row_bytes, place, row_bytes, begin=begin)

        def visit_elements(
            compute: Callable[[FindGate, Number, Number, Number, Mask | None], None],
        ) -> None:
            """Emits `compute` with what reads the sums of a gate, a row, its states, and the place of some of their elements."""
            with code.loop(first, end) as row:
                own = state + row * row_bytes
                sums = p["sums"] + step * p["sums_step"] + row * p["sums_row"] + direction * p["sums_direction"]

                def visit(element: Number, mask: Mask | None) -> None:
                    place = element * FLOAT_BYTES

                    def find_gate(gate: int) -> tuple[Floats, Floats]:
                        column = p["padded"] * gate + place
                        parts = code.load(sums + column, mask=mask), code.load(own + gates_place + column, mask=mask)
                        if not has_codes:
                            return parts
                        place_of_column = direction * columns_bytes + column
                        of_x, of_h = (code.load(p[name] + place_of_column, mask=mask) for name in ("x_scales", "h_scales"))
                        bias = code.load(p["gate_bias"] + place_of_column, mask=mask)
                        return parts[0] * (x_scale * of_x) + bias, parts[1] * (h_scale * of_h)

                    compute(find_gate, row, own, place, mask)

                code.visit_vectors(p["hidden"], visit)

        functions = [partial(emit_activations, code, (Activation(name),)) for name in activations]

        def reset(find_gate: FindGate, _: Number, own: Number, place: Number, mask: Mask | None) -> None:
            """Stores the update gate in the place of the next state, and the reset state in the place of an LSTM's cell."""
            update, by = (functions[0](sum_ + own_sum) for sum_, own_sum in map(find_gate, range(2)))
            code.store(own + there + place, update, mask=mask)
            code.store(own + p["padded"] * 2 + place, by * code.load(own + here + place, mask=mask), mask=mask)

        def compute(find_gate: FindGate, row: Number, own: Number, place: Number, mask: Mask | None) -> None:
            if kind.endswith("LSTM"):
                to_i, to_o, to_f, to_c = (sum_ + own_sum for sum_, own_sum in map(find_gate, range(4)))
                cell_place = own + p["padded"] * 2 + place
                cell = functions[0](to_f) * code.load(cell_place, mask=mask) + functions[0](to_i) * functions[1](to_c)
                code.store(cell_place, cell, mask=mask)
                result = functions[0](to_o) * functions[2](cell)
            elif kind.startswith("GRU"):
                of_input, of_state = find_gate(2)
                if kind == _RESETTING:
                    update = code.load(own + there + place, mask=mask)
                else:
                    update, by = (functions[0](sum_ + own_sum) for sum_, own_sum in map(find_gate, range(2)))
                    of_state = by * of_state
                proposed = functions[1](of_input + of_state)
                result = (code.constant(1.0) - update) * proposed + update * code.load(own + here + place, mask=mask)
            else:
                of_input, of_state = find_gate(0)
                result = functions[0](of_input + of_state)
            code.store(own + there + place, result, mask=mask)
            with code.when(p["y"] > 0):
                y = p["y"] + step * p["y_step"] + direction * p["y_direction"] + row * p["y_row"]
                code.store(y + place, result, mask=mask)

        visit_rows(first, end, rows, partial(multiply_states, source, zero))
        if kind == _RESETTING:
            visit_elements(reset)
            # The first two gates are known.
            begin = p["padded"] * 2 // block_columns
            visit_rows(first, end, rows, partial(multiply_states, state + p["padded"] * 2, begin))
        visit_elements(compute)
    copy("h", (p["steps"] % 2) * p["padded"], is_start=False)
    copy("c", p["padded"] * 2, is_start=False)
    return code.finish()


def _emit_codes(
    code: Code, shift: Number, are_bytes: bool, count: Number, length: Number, find: Callable[[Number], tuple[Number, Number]]
) -> Floats:
    """Emits the quantization of `count` rows, of which `find` returns source and target; returns the scale, and writes the zero point.

    Codes are bytes, or else whole float32 less the zero point. Source: ONNX DynamicQuantizeLinear-11; the scale of zeros is 1.
    """
    nothing = code.constant(0.0)
    low, high, nan = (code.variable(nothing) for _ in range(3))
    with code.loop(0, count) as row:
        source, _ = find(row)

        def widen(element: Number, mask: Mask | None) -> None:
            x = code.load(source + element * FLOAT_BYTES, mask=mask)
            low.set(x.at_most(low.get()))
            high.set(x.at_least(high.get()))
            nan.set(nan.get() + x.is_nan().choose(x, nothing))

        code.visit_vectors(length, widen)
    lowest = low.get().fold(lambda left, right: left.at_most(right))
    span = high.get().fold(lambda left, right: left.at_least(right)) - lowest
    scale = span.equals(0.0).choose(code.constant(1.0, 1), span / float(_CODES)) + nan.get().fold(lambda left, right: left + right)
    zero = code.call_intrinsic("rint", (0.0 - lowest / scale).at_least(0.0).at_most(float(_CODES)))
    if are_bytes:
        code.store(shift, zero)
    wide_scale: Floats = code.spread(scale)
    wide_zero = code.spread(zero)
    with code.loop(0, count) as row:
        source, target = find(row)

        def quantize(element: Number, mask: Mask | None) -> None:
            x = code.load(source + element * FLOAT_BYTES, mask=mask)
            number = code.call_intrinsic("rint", x / wide_scale) + wide_zero
            number = nothing.at_least(number).at_most(float(_CODES))  # NaN becomes 0
            if are_bytes:
                code.store_whole(target + element, number, "bytes", mask=mask)
            else:
                code.store(target + element * FLOAT_BYTES, number - wide_zero, mask=mask)

        code.visit_vectors(length, quantize)
    return wide_scale
