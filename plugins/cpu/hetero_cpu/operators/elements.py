"""Operators over small arrays of plain types by machine code, one element after another: comparisons, choices, casts, whole numbers,
and the positions of extremes. Models of ai.onnx.ml end in such nodes.

Whole numbers and truth values are computed as int64, and cut to their type when they are stored. Half precision is cast from and to
float32, rounded to nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from math import prod
from operator import add
from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import ELEMENTS, HALF_BYTES, HALVES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats, Number
from hetero_cpu.operators.recipe import Recipe, Site, order_axes
from hetero_cpu.operators.rows import RowWalk, call_rows, choose_rows_of_chunk, cut_rows, find_kinds
from hetero_cpu.symbols.arrays import broadcast_shapes, lay_empty
from hetero_cpu.symbols.sizes import is_open, least

Element = Number | Floats
_WHOLE = ("int32", "int64")
_LONGEST_ROW = 64
"""Elements of a row up to which its extremes are computed here: NumPy compares vectors."""
_LANES = 4
"""Elements that are computed together: rows are often as short as a model has features."""


_FUNCTIONS: Mapping[str, tuple[tuple[str, ...], Callable[..., Element]]] = {
    "Abs": (("float64",), lambda code, a: code.call_intrinsic("fabs", a)),
    "Add": ((*_WHOLE, "float64"), lambda code, a, b: a + b),
    "And": (("bool",), lambda code, a, b: a.at_most(b)),
    "Div": (("float64",), lambda code, a, b: a / b),
    "Equal": (tuple(ELEMENTS), lambda code, a, b: code.number_of(a.equals(b))),
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
    "Sqrt": (("float64",), lambda code, a: code.call_intrinsic("sqrt", a)),
    "Sub": ((*_WHOLE, "float64"), lambda code, a, b: a - b),
    "Sum": (("float64",), lambda code, *terms: reduce(add, terms)),
    "Where": (tuple(ELEMENTS), lambda code, condition, a, b: condition.equals(0).choose(b, a)),
    "Xor": (("bool",), lambda code, a, b: 1 - code.number_of(a.equals(b))),
}
"""Operator -> the types of its last input, and its function of elements."""


def plan_elements(site: Site) -> Recipe | None:
    """Returns the recipe of an operator on elements of plain types, broadcast. Sources: ONNX Cast-13, Equal-13, Where-16, Add-14, ..."""
    operator, values = site.node.op_type, site.node.inputs
    names = [site.prototypes[value].dtype.name if value in site.prototypes else "" for value in values]
    target = _find_target(site)
    if operator == "Cast" and "float32" in (names[0], target) and (names[0] in HALVES or target in HALVES):
        return _plan_walk(site, f"cast_{names[0]}_{target}", lambda code, x: x)
    types, function = _FUNCTIONS.get(operator, (tuple(ELEMENTS), lambda code, x: code.convert_element(x, target)))
    if names[-1] not in types or not {*names, target} <= ELEMENTS.keys():
        return None
    return _plan_walk(site, f"{operator.lower()}_{'_'.join(names)}_{target}", function)


def _find_target(site: Site) -> str:
    return np.dtype(numpy_dtype(site.types[site.group.outputs[0]].dtype or "")).name


def plan_moved_elements(site: Site) -> Recipe | None:
    """Returns the recipe of a copy of elements of any plain type to other places. Sources: ONNX Expand-13, Transpose-25."""
    value = site.node.inputs[0]
    x = site.prototypes[value]
    name, perm = x.dtype.name, site.node.attributes.get("perm") or tuple(reversed(range(x.ndim)))
    if name not in ELEMENTS or (site.node.op_type == "Transpose" and sorted(perm) != list(range(x.ndim))):
        return None
    turn = (lambda array: array.transpose(perm)) if site.node.op_type == "Transpose" else None
    return _plan_walk(site, f"move_{name}", lambda code, element: element, turn=turn)


def _plan_walk(
    site: Site,
    name: str,
    function: Callable[..., Element],
    *,
    turn: Callable[[Array], Array] | None = None,
) -> Recipe | None:
    """Returns the recipe of a function of elements.

    The result of a single operand has its order in memory, unless it is turned before. The shape that an Expand reads is no operand.
    """
    values, target, shape = tuple(site.node.inputs), _find_target(site), site.output_shape()
    values = values[:1] if site.node.op_type == "Expand" else values
    arrays = [site.prototypes[value] if turn is None else turn(site.prototypes[value]) for value in values]
    if site.group.epilogue:
        return None
    if len(shape) > 32 or 0 in shape or broadcast_shapes(*(array.shape for array in arrays), shape) != shape:
        return None
    is_last = len(values) == 1 and turn is None and site.is_channels_last(values[0]) and site.shape(values[0]) == shape
    prototype = lay_empty(shape, np.dtype(numpy_dtype(target)), order_axes(len(shape), is_channels_last=is_last))
    kinds = find_kinds(arrays, prototype)
    if kinds is None or cut_rows(prototype, arrays) is None:
        return None
    types = [array.dtype.name for array in arrays]
    is_half = not {*types, target}.isdisjoint(HALVES)
    sizes = {dtype: HALF_BYTES if dtype in HALVES else ELEMENTS[dtype][1] for dtype in (*types, target)}

    def emit(name: str, width: int) -> Code:
        code = Code(name, 3, width)
        walk = RowWalk(code, len(arrays) + 1)
        moving = [0, *(index + 1 for index, kind in enumerate(kinds) if kind != "s")]
        with walk.visit(moving) as (addresses, length):

            def compute(element: Number, lanes: int) -> None:
                elements = []
                for index, (kind, dtype) in enumerate(zip(kinds, types, strict=True)):
                    begin = walk.address(index + 1) if kind == "s" else addresses[index + 1]  # called inside the walk
                    place = begin + element * sizes[dtype] if kind == "v" else begin
                    term = code.load_element(place, dtype, lanes if kind == "v" else 1)
                    elements.append(term if kind == "v" else code.repeat_element(term, lanes))
                y = addresses[0] + element * sizes[target]  # called inside the walk
                code.store_element(y, function(code, *elements), target)

            together = width if is_half else _LANES
            full = length - length % together
            with code.loop(0, full, together) as element:
                compute(element, together)
            with code.loop(full, length) as element:
                compute(element, 1)
        return code.finish()

    kernel = Kernel(f"elements_{name}_{''.join(map(str, kinds))}", emit)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        operands = reads if turn is None else [turn(array) for array in reads]
        rows = cut_rows(writes[0], operands)
        assert rows is not None
        return [call_rows(kernel, rows, [writes[0], *operands], workers=site.workers)]

    return Recipe(values, bind, is_channels_last=is_last, kernels=(kernel,))


_COLUMNS = 512
"""Columns of a unit."""


def plan_extremes(site: Site) -> Recipe | None:
    """Returns the recipe of the positions of extremes along an axis; the first NaN is the extreme, as in NumPy.

    Sources: ONNX ArgMax-13, ArgMin-13.
    """
    node, value = site.node, site.node.inputs[0]
    x, axis = site.prototypes[value], int(node.attributes.get("axis", 0))
    name, is_last = x.dtype.name, bool(node.attributes.get("select_last_index", 0))
    if name not in ELEMENTS or name == "bool" or 0 in x.shape or site.group.epilogue or not -x.ndim <= axis < x.ndim:
        return None
    axis %= x.ndim
    if site.is_channels_last(value) and axis == 1:
        x, axis = x.transpose(order_axes(x.ndim, is_channels_last=True)), x.ndim - 1
    if not x.flags.c_contiguous:
        return None
    outer, length, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    if axis == x.ndim - 1 and (is_open(length) or length > _LONGEST_ROW):
        return None
    kernel, blocks = _make_extremes(node.op_type, name, is_last), -(-inner // _COLUMNS)
    units = outer * blocks
    units_of_chunk = choose_rows_of_chunk(units, length * least(inner, _COLUMNS), site.workers)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        numbers = (address_of(reads[0]), length, address_of(writes[0]), inner, blocks, units, units_of_chunk)
        return [NativeCall(kernel, numbers, -(-units // units_of_chunk), (reads[0], writes[0]))]

    return Recipe((value,), bind, kernels=(kernel,))


@cache
def _make_extremes(operator: str, dtype: str, is_last: bool) -> Kernel:
    """Returns the kernel of rows of `inner` elements that are compared with each other: a unit is a block of their columns."""
    nbytes = ELEMENTS[dtype][1]

    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, ("x", "length", "y", "inner", "blocks", "units", "units_of_chunk"))
        step = p["inner"] * nbytes
        with code.visit_chunk(chunk, p["units_of_chunk"], p["units"]) as unit:
            outer, first = unit // p["blocks"], unit % p["blocks"] * _COLUMNS
            x, y = p["x"] + outer * p["length"] * step, p["y"] + outer * p["inner"] * 8
            end = (first + _COLUMNS).at_most(p["inner"])
            full = end - (end - first) % width
            for begin, limit, lanes in ((first, full, width), (full, end, 1)):
                with code.loop(begin, limit, lanes) as column:
                    extreme = _find_extreme(
                        code, x + column * nbytes, p["length"], dtype, operator, is_last, step=step, lanes=lanes
                    )
                    code.store_element(y + column * 8, extreme, "int64")
        return code.finish()

    return Kernel(f"extremes_{operator.lower()}_{dtype}" + "_last" * is_last, emit)


def _find_extreme(
    code: Code,
    line: Number,
    length: Number,
    dtype: str,
    operator: str,
    is_last: bool,
    *,
    step: Number,
    lanes: int,
) -> Number:
    """Returns the position of the first or last extreme of elements `step` bytes apart; of neighbours a vector."""

    def repeat(number: Number) -> Any:
        return code.repeat_element(number, lanes)

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
