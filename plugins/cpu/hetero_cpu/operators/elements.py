"""Operators over small arrays of plain types by machine code, one element after another: comparisons, choices, casts, whole numbers,
tables of keys, and the extremes and sums of rows. Models of ai.onnx.ml end in such nodes.

Whole numbers and truth values are computed as int64, and cut to their type when they are stored. Half precision is cast from and to
float32, rounded to nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from operator import add
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from hetero_core.dtypes import numpy_dtype
from hetero_cpu.machine.arithmetic import emit_double_exponential
from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import ELEMENTS, HALVES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats, Number
from hetero_cpu.operators.recipe import Recipe, Site, order_axes
from hetero_cpu.operators.rows import (
    ROWS_OF_CHUNK,
    RowWalk,
    call_rows,
    choose_rows_of_chunk,
    cut_rows,
    find_kinds,
    make_unit_kernel,
    plan_call,
)
from hetero_cpu.symbols.arrays import broadcast_shapes, lay_empty
from hetero_cpu.symbols.sizes import is_open

Element = Number | Floats
_WHOLE = ("int32", "int64")
_LONGEST_ROW = 64
"""Elements of a row up to which its sum and extremes are computed here."""
_MOST_CLASSES = 8
"""Elements of a row up to which a Softmax of float32 is computed here."""
_LANES = 4
"""Elements that are computed together: rows are often as short as a model has features."""


_FUNCTIONS: Mapping[str, tuple[tuple[str, ...], Callable[..., Element]]] = {
    "Abs": (("float64",), lambda code, a: code.call_intrinsic("fabs", a)),
    "Add": ((*_WHOLE, "float64"), lambda code, a, b: a + b),
    "And": (("bool",), lambda code, a, b: a.at_most(b)),
    "Div": (("float64",), lambda code, a, b: a / b),
    "Equal": (tuple(ELEMENTS), lambda code, a, b: code.number_of(a.equals(b))),
    "Exp": (("float64",), lambda code, a: emit_double_exponential(code, a)),
    "Greater": (tuple(ELEMENTS), lambda code, a, b: code.number_of(a > b)),
    "GreaterOrEqual": (tuple(ELEMENTS), lambda code, a, b: code.number_of(a >= b)),
    "IsNaN": (("float32", "float64"), lambda code, a: code.number_of(a.is_nan())),
    "Less": (tuple(ELEMENTS), lambda code, a, b: code.number_of(a < b)),
    "LessOrEqual": (tuple(ELEMENTS), lambda code, a, b: code.number_of(a <= b)),
    "Mul": ((*_WHOLE, "float64"), lambda code, a, b: a * b),
    "Neg": ((*_WHOLE, "float64"), lambda code, a: -a if isinstance(a, Floats) else 0 - a),
    "Not": (("bool",), lambda code, a: 1 - a),
    "Or": (("bool",), lambda code, a, b: a.at_least(b)),
    "Reciprocal": (("float64",), lambda code, a: 1.0 / a),
    "Relu": (("float64",), lambda code, a: a.at_least(0.0)),
    "Sigmoid": (("float64",), lambda code, a: 1.0 / (1.0 + emit_double_exponential(code, -a))),
    "Sqrt": (("float64",), lambda code, a: code.call_intrinsic("sqrt", a)),
    "Sub": ((*_WHOLE, "float64"), lambda code, a, b: a - b),
    "Sum": (("float64",), lambda code, *terms: reduce(add, terms)),
    "Where": (tuple(ELEMENTS), lambda code, condition, a, b: condition.equals(0).choose(b, a)),
    "Xor": (("bool",), lambda code, a, b: 1 - code.number_of(a.equals(b))),
}
"""Operator -> the types of its last input, and its function of elements."""


def plan_elements(site: Site) -> Recipe | None:
    """Returns the recipe of an operator on elements of plain types, broadcast. Sources: ONNX Cast-13, Equal-13, Where-16, Add-14, ..."""
    operator, names = site.node.op_type, [site.prototypes[value].dtype.name if value else "" for value in site.node.inputs]
    target = _find_target(site)
    if operator == "Cast" and "float32" in (names[0], target) and (names[0] in HALVES or target in HALVES):
        return _plan_walk(site, f"cast_{names[0]}_{target}", lambda code, x: x)
    types, function = _FUNCTIONS.get(operator, (tuple(ELEMENTS), lambda code, x: code.convert_element(x, target)))
    if names[-1] not in types or not {*names, target} <= ELEMENTS.keys():
        return None
    return _plan_walk(site, f"{operator.lower()}_{'_'.join(names)}_{target}", function)


def plan_lookup(site: Site) -> Recipe | None:
    """Returns the recipe of a LabelEncoder from numbers to numbers, by bisection of its sorted keys. Source: ONNX-ML LabelEncoder-4."""
    lookup, x = site.prepare_model(), site.prototypes[site.node.inputs[0]]
    kind = "float64" if x.dtype.kind == "f" else "int64"
    if lookup.dtype.name not in ELEMENTS or x.dtype.name not in ELEMENTS or not lookup.value_of_key:
        return None
    keys = np.array(list(lookup.value_of_key))
    if keys.dtype.kind != ("f" if kind == "float64" else "i") or np.isnan(keys).any():
        return None
    order = np.argsort(keys)
    # A number beyond all keys is compared with the last key.
    keys = np.append(keys[order], keys.max()).astype(kind)
    values = np.append(np.array(list(lookup.value_of_key.values()), lookup.dtype)[order], np.array(lookup.default, lookup.dtype))

    def find(code: Code, x: Any, keys: Number, values: Number, count: Number) -> Element:
        key, low, high = code.convert_element(x, kind), code.variable(code.number(0)), code.variable(count)
        with code.repeat() as leave_if:
            leave_if(low.get() >= high.get())
            middle = (low.get() + high.get()) // 2
            is_before: Any = code.load_element(keys + middle * 8, kind) < key  # type: ignore[operator]  # of one kind
            low.set(is_before.choose(middle + 1, low.get()))
            high.set(is_before.choose(high.get(), middle))
        place = low.get()
        is_key: Any = code.load_element(keys + place * 8, kind).equals(key)  # type: ignore[arg-type]  # as above
        return code.load_element(values + is_key.choose(place, count) * values_bytes, values_type)

    values_type, values_bytes = lookup.dtype.name, lookup.dtype.itemsize
    return _plan_walk(site, f"lookup_{x.dtype.name}_{values_type}", find, keys, values, count=len(values) - 1)


def _find_target(site: Site) -> str:
    return np.dtype(numpy_dtype(site.types[site.group.outputs[0]].dtype or "")).name


def plan_moved_elements(site: Site) -> Recipe | None:
    """Returns the recipe of a copy of elements of any plain type to other places. Sources: ONNX Expand-13, Transpose-25."""
    x = site.prototypes[site.node.inputs[0]]
    name, perm = x.dtype.name, site.node.attributes.get("perm") or tuple(reversed(range(x.ndim)))
    if name not in ELEMENTS or (site.node.op_type == "Transpose" and sorted(perm) != list(range(x.ndim))):
        return None
    turn = (lambda array: array.transpose(perm)) if site.node.op_type == "Transpose" else None
    return _plan_walk(site, f"move_{name}", lambda code, element: element, turn=turn)


def _plan_walk(
    site: Site,
    name: str,
    function: Callable[..., Element],
    *tables: Array,
    count: int = 0,
    turn: Callable[[Array], Array] | None = None,
) -> Recipe | None:
    """Returns the recipe of a function of elements; it also gets the addresses of tables and their count, if there are any.

    The result of a single operand has its order in memory, unless it is turned before. The shape that an Expand reads is no operand.
    """
    values, target, shape = tuple(site.node.inputs), _find_target(site), site.output_shape()
    values = values[:1] if site.node.op_type == "Expand" else values
    arrays = [site.prototypes[value] if turn is None else turn(site.prototypes[value]) for value in values]
    if site.group.epilogue or 0 in shape or len(shape) > 32 or broadcast_shapes(*(array.shape for array in arrays), shape) != shape:
        return None
    is_last = len(values) == 1 and turn is None and site.is_channels_last(values[0]) and site.shape(values[0]) == shape
    prototype = lay_empty(shape, np.dtype(numpy_dtype(target)), order_axes(len(shape), is_channels_last=is_last))
    kinds = find_kinds(arrays, prototype)
    if kinds is None or cut_rows(prototype, arrays) is None:
        return None
    types = [array.dtype.name for array in arrays]
    is_half = not {*types, target}.isdisjoint(HALVES)
    sizes = {dtype: (ELEMENTS | HALVES)[dtype].nbytes for dtype in (*types, target)}

    def emit(name: str, width: int) -> Code:
        code = Code(name, 3, width)
        walk = RowWalk(code, len(arrays) + 1, len(tables) + 1 if tables else 0)
        moving = [0, *(index + 1 for index, kind in enumerate(kinds) if kind != "s")]
        with walk.visit(moving) as (addresses, length):

            def compute(element: Number, lanes: int) -> None:
                elements = []
                for index, (kind, dtype) in enumerate(zip(kinds, types, strict=True)):
                    begin = walk.addresses[index + 1] if kind == "s" else addresses[index + 1]  # called inside the walk
                    place = begin + element * sizes[dtype] if kind == "v" else begin
                    term = code.load_element(place, dtype, lanes if kind == "v" else 1)
                    elements.append(term if kind == "v" else code.spread(term, lanes))
                y = addresses[0] + element * sizes[target]  # called inside the walk
                code.store_element(y, function(code, *elements, *walk.own), target)

            together = width if is_half else _LANES
            full = code.number(0) if tables else length - length % together
            if not tables:
                with code.loop(0, full, together) as element:
                    compute(element, together)
            with code.loop(full, length) as element:
                compute(element, 1)
        return code.finish()

    kernel = Kernel(f"elements_{name}_{''.join(map(str, kinds))}", emit)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        operands = reads if turn is None else [turn(array) for array in reads]
        own = [*map(address_of, tables), count] if tables else []
        call = call_rows(kernel, cut_rows(writes[0], operands), [writes[0], *operands], own, workers=site.workers)
        return [replace(call, keep=(*call.keep, *tables))]

    return Recipe(values, bind, is_channels_last=is_last, kernels=(kernel,))


def plan_rows(site: Site) -> Recipe | None:
    """Returns the recipe of extremes along an axis, and of short sums and short Softmaxes along the last axis.

    The first NaN is the extreme, as in NumPy; sums are rounded once. Sources: ONNX ArgMax-13, ArgMin-13, ReduceSum-13,
    ReduceSumSquare-18, Softmax-13.
    """
    node, value = site.node, site.node.inputs[0]
    operator, x = node.op_type, site.prototypes[value]
    if operator.startswith("Reduce"):
        axes = site.constant(1) if site.has_input(1) else node.attributes.get("axes")
    else:
        axes = node.attributes.get("axis", 0 if operator.startswith("Arg") else -1 if node.since_version >= 13 else 1)
    name, is_last = x.dtype.name, bool(node.attributes.get("select_last_index", 0))
    if axes is None or np.size(axes) != 1 or name not in ELEMENTS or name == "bool":
        return None
    axis = normalize_axis_index(int(np.reshape(axes, -1)[0]), x.ndim)
    if operator.startswith("Arg") and site.is_channels_last(value) and axis == 1:
        x, axis = x.transpose(order_axes(x.ndim, is_channels_last=True)), x.ndim - 1
    has_columns, outer, length, inner = axis < x.ndim - 1, prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    if not x.flags.c_contiguous or (not operator.startswith("Arg") and (has_columns or name in _WHOLE)):
        return None
    # Longer rows of float32 have vectors.
    longest = _MOST_CLASSES if operator == "Softmax" and name == "float32" else _LONGEST_ROW
    if not has_columns and (is_open(length) or length > longest):
        return None
    kernel, blocks = (_make_columns if has_columns else _make_rows)(operator, name, is_last), -(-inner // _COLUMNS)
    sizes, chunks = ((inner, blocks), outer * blocks) if has_columns else ((outer,), -(-outer // ROWS_OF_CHUNK))
    return plan_call(kernel, (value,), chunks, lambda x, y: (address_of(x), length, address_of(y), *sizes))


def _make_rows(operator: str, dtype: str, is_last: bool) -> Kernel:
    nbytes = ELEMENTS[dtype].nbytes

    def emit(code: Code, p: dict[str, Number], row: Number) -> None:
        line = p["x"] + row * (p["length"] * nbytes)

        def load(column: Number | int, array: Number = line) -> Any:
            return code.convert_element(code.load_element(array + column * nbytes, dtype), "float64")

        def store(place: Number, result: Element) -> None:
            code.store_element(p["y"] + place * nbytes, code.convert_element(result, dtype), dtype)

        if operator.startswith("Arg"):
            code.store(p["y"] + row * 8, _find_extreme(code, line, p["length"], dtype, operator, is_last, step=nbytes))
        elif operator.startswith("ReduceSum"):
            total = code.variable(load(0).constant(0.0))
            with code.loop(0, p["length"]) as column:
                x = load(column)
                total.set(total.get() + (x if operator == "ReduceSum" else x * x))
            store(row, total.get())
        else:
            parts = row * p["length"]
            # A NaN is ignored here; the sum becomes NaN.
            peak = code.variable(load(0))
            with code.loop(1, p["length"]) as column:
                peak.set(load(column).at_least(peak.get()))
            edge, total = peak.get(), code.variable(load(0).constant(0.0))
            with code.loop(0, p["length"]) as column:
                part = emit_double_exponential(code, load(column) - edge)
                total.set(total.get() + part)
                store(parts + column, part)
            whole = total.get()
            with code.loop(0, p["length"]) as column:
                store(parts + column, load(parts + column, p["y"]) / whole)

    title = f"rows_{operator.lower()}_{dtype}" + "_last" * is_last
    return make_unit_kernel(title, ("x", "length", "y", "rows"), emit, size=ROWS_OF_CHUNK)


_COLUMNS = 512
"""Columns of a chunk."""


def _make_columns(operator: str, dtype: str, is_last: bool) -> Kernel:
    """Returns the kernel of extremes along an axis that is not the last: vectors of rows that lie side by side."""
    nbytes = ELEMENTS[dtype].nbytes

    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, ("x", "length", "y", "inner", "blocks"))
        outer, first = chunk // p["blocks"], chunk % p["blocks"] * _COLUMNS
        x, y, step = p["x"] + outer * p["length"] * p["inner"] * nbytes, p["y"] + outer * p["inner"] * 8, p["inner"] * nbytes
        end = (first + _COLUMNS).at_most(p["inner"])
        full = end - (end - first) % width
        for begin, limit, lanes in ((first, full, width), (full, end, 1)):
            with code.loop(begin, limit, lanes) as column:
                extreme = _find_extreme(code, x + column * nbytes, p["length"], dtype, operator, is_last, step=step, lanes=lanes)
                code.store_element(y + column * 8, extreme, "int64")
        return code.finish()

    return Kernel(f"columns_{operator.lower()}_{dtype}" + "_last" * is_last, emit)


_RUNS = 4
"""Rows whose sums run beside each other, since each sum waits for the one before."""


def plan_running_sum(site: Site) -> Recipe | None:
    """Returns the recipe of running sums along an axis, added in order. Source: ONNX CumSum-14."""
    node, value = site.node, site.node.inputs[0]
    x, constant = site.prototypes[value], site.constant(1)
    name = x.dtype.name
    if constant is None or name not in ("int32", "int64", "float32", "float64") or not x.flags.c_contiguous:
        return None
    axis = normalize_axis_index(int(np.reshape(constant, -1)[0]), x.ndim)
    outer, length, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    has_rows = not is_open(inner) and inner == 1
    kernel = _make_running_sum(name, has_rows, bool(node.attributes.get("exclusive", 0)), bool(node.attributes.get("reverse", 0)))
    size = choose_rows_of_chunk(outer, length, site.workers) if has_rows else -(-inner // _COLUMNS)
    count, chunks = (outer, -(-outer // size)) if has_rows else (inner, outer * size)
    return plan_call(kernel, (value,), chunks, lambda x, y: (address_of(x), length, address_of(y), count, size))


def _make_running_sum(dtype: str, has_rows: bool, is_exclusive: bool, is_reverse: bool) -> Kernel:
    """Returns the kernel of sums along the last axis, several rows at once, or along another axis, a vector of columns at once."""
    nbytes = ELEMENTS[dtype].nbytes

    def run(code: Code, first: Number, p: Mapping[str, Number], lanes: int, step: Number, rows: int) -> None:
        """Emits the sums of `rows` rows behind each other, from the byte `first` on; elements of a row are `step` bytes apart."""
        offsets = [first + p["length"] * (row * nbytes) for row in range(rows)]
        # Only -0.0 added to any number is that number.
        start = code.load_element(p["x"] + first, dtype, lanes).constant(0.0 if is_exclusive else -0.0)
        totals = [code.variable(start) for _ in offsets]
        with code.loop(0, p["length"]) as count:
            place = (p["length"] - 1 - count if is_reverse else count) * step
            for offset, total in zip(offsets, totals, strict=True):
                before = total.get()
                total.set(before + code.load_element(p["x"] + offset + place, dtype, lanes))
                code.store_element(p["y"] + offset + place, before if is_exclusive else total.get(), dtype)

    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, ("x", "length", "y", "count", "size"))
        rows, lanes = (_RUNS, 1) if has_rows else (1, width)
        if has_rows:
            first, step, base, unit_bytes = chunk * p["size"], code.number(nbytes), code.number(0), p["length"] * nbytes
            end = (first + p["size"]).at_most(p["count"])
        else:
            first, step, unit_bytes = chunk % p["size"] * _COLUMNS, p["count"] * nbytes, code.number(nbytes)
            end, base = (first + _COLUMNS).at_most(p["count"]), chunk // p["size"] * p["length"] * step
        full = end - (end - first) % (rows * lanes)
        with code.loop(first, full, rows * lanes) as unit:
            run(code, base + unit * unit_bytes, p, lanes, step, rows)
        with code.loop(full, end) as unit:
            run(code, base + unit * unit_bytes, p, 1, step, 1)
        return code.finish()

    return Kernel(f"running_{dtype}" + "_rows" * has_rows + "_exclusive" * is_exclusive + "_reverse" * is_reverse, emit)


def _find_extreme(
    code: Code, line: Number, length: Number, dtype: str, operator: str, is_last: bool, *, step: Number | int, lanes: int = 1
) -> Number:
    """Returns the position of the first or last extreme of elements `step` bytes apart; of neighbours a vector."""

    def repeat(number: Number) -> Any:
        return code.spread(number, lanes)

    best, position = code.variable(code.load_element(line, dtype, lanes)), code.variable(repeat(code.number(0)))
    with code.loop(1, length) as place:
        x: Any = code.load_element(line + place * step, dtype, lanes)
        before, found = best.get(), position.get()
        left, right = (x, before) if operator == "ArgMax" else (before, x)
        is_ahead = code.number_of(left >= right if is_last else left > right)
        if isinstance(x, Floats):
            none, one = repeat(code.number(0)), repeat(code.number(1))
            is_ahead = x.is_nan().choose(one if is_last else before.is_nan().choose(none, one), is_ahead)
        chosen = is_ahead.equals(1)
        best.set(chosen.choose(x, before))
        position.set(chosen.choose(repeat(place), found))
    number: Number = position.get()
    return number
