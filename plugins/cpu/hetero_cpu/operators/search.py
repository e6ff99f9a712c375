"""TopK by machine code: a heap of the best elements of a row, which lies where their positions will be.

```text
element, position ── one int64: its order above, its position below ──> heap of k, the worst on top ── sorted ──> positions, elements
```

The order is the toolkit's: NaN is the largest element, both zeros are equal, and the lower position comes first among equals.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from hetero_cpu.machine.calls import Array, address_of
from hetero_cpu.machine.code import ELEMENTS, Code
from hetero_cpu.machine.terms import Number
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import choose_rows_of_chunk, make_unit_kernel, plan_call
from hetero_cpu.symbols.sizes import is_open

_PARAMETERS = (
    "x", "x_outer", "x_step", "x_inner", "values", "positions", "inner", "length", "count", "rows", "rows_of_chunk",
)  # fmt: skip
"""Addresses, strides of x in bytes, and sizes: `count` of the `length` elements of each row; `inner` rows lie side by side."""
_FEWEST_SORTED = 256
"""Elements from which NumPy, which sorts vectors, takes less time than a heap if they are an eighth of a row."""
_HALF = 1 << 32
_INFINITY, _LARGEST = 0x7F800000, 0x7FFFFFFF
"""The bits of an infinite float32, and the order of a NaN."""


def plan_top(site: Site) -> Recipe | None:
    """Returns the recipe of the k largest or smallest elements along an axis, in order, and their positions. Source: ONNX TopK-24."""
    node, value = site.node, site.node.inputs[0]
    x, k = site.prototypes[value], site.constant(1) if site.has_input(1) else node.attributes.get("k")
    if k is None or x.dtype.name not in ("float32", "int32") or len(node.writes) != 2:
        return None
    axis, count = normalize_axis_index(int(node.attributes.get("axis", -1)), x.ndim), int(np.reshape(k, -1)[0])
    shape = (prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]))
    if not np.may_share_memory(x.reshape(shape), x) or not 1 <= count <= shape[1]:
        return None
    if not is_open(shape[1]) and count >= _FEWEST_SORTED and count * 8 >= shape[1]:
        return None
    is_largest = bool(node.attributes.get("largest", 1))
    title = f"top_{x.dtype}{'_is_largest' * is_largest}"
    kernel = make_unit_kernel(title, _PARAMETERS, partial(_emit, dtype=x.dtype.name, is_largest=is_largest))
    rows = shape[0] * shape[2]
    rows_of_chunk = choose_rows_of_chunk(rows, shape[1], site.workers)

    def list_numbers(x: Array, values: Array, positions: Array) -> tuple[int, ...]:
        places = (address_of(x), *x.reshape(shape).strides, address_of(values), address_of(positions))
        return (*places, shape[2], shape[1], count, rows, rows_of_chunk)

    return plan_call(kernel, (value,), -(-rows // rows_of_chunk), list_numbers)


def _emit(code: Code, p: dict[str, Number], row: Number, *, dtype: str, is_largest: bool) -> None:
    sift, nbytes = code.find_inner("sift", 5, _emit_sift), ELEMENTS[dtype].nbytes
    count, step = p["count"], p["inner"] * 8
    outer, inner = row // p["inner"], row % p["inner"]
    x, first = p["x"] + outer * p["x_outer"] + inner * p["x_inner"], outer * count * p["inner"] + inner
    heap, values = p["positions"] + first * 8, p["values"] + first * nbytes

    def read(position: Number) -> Number:
        order = _find_order(code.load_short(x + position * p["x_step"]), dtype)
        return (order if is_largest else -1 - order) * _HALF + ((_HALF - 1) - position)

    with code.loop(0, count) as position:
        code.store(heap + position * step, read(position))
    with code.loop(0, count // 2) as done:
        node = count // 2 - 1 - done
        code.call(sift, heap, step, node, count, code.load_number(heap + node * step))

    def find_edge() -> Any:
        worst = (_HALF - 1) - code.load_number(heap) % _HALF
        return code.load_element(x + worst * p["x_step"], dtype)

    edge = code.variable(find_edge())
    with code.loop(count, p["length"]) as position:
        element: Any = code.load_element(x + position * p["x_step"], dtype)
        is_beyond = element <= edge.get() if is_largest else element >= edge.get()
        # A NaN is compared by its order.
        with code.when(code.number_of(is_beyond).equals(0)):
            rival = read(position)
            with code.when(rival > code.load_number(heap)):
                code.call(sift, heap, step, 0, count, rival)
                edge.set(find_edge())
    with code.loop(1, count) as done:
        # The worst of those that are left goes behind them.
        end = heap + (count - done) * step
        last = code.load_number(end)
        code.store(end, code.load_number(heap))
        code.call(sift, heap, step, 0, count - done, last)
    with code.loop(0, count) as place:
        position = (_HALF - 1) - code.load_number(heap + place * step) % _HALF
        code.store(heap + place * step, position)
        chosen = code.load_element(x + position * p["x_step"], dtype)
        code.store_element(values + place * (p["inner"] * nbytes), chosen, dtype)


def _find_order(bits: Number, dtype: str) -> Number:
    """Returns a whole number of 32 bits that is the larger the larger an element is, by its bits."""
    if dtype == "int32":
        return bits
    magnitude = (bits < 0).choose(bits + (1 << 31), bits)
    order = (bits < 0).choose(0 - magnitude, magnitude)
    return (magnitude > _INFINITY).choose(bits.constant(_LARGEST), order)


def _emit_sift(inner: Code) -> None:
    """Emits the function that puts a number at a place of a heap or below it: (heap, bytes from place to place, place, count, number)."""
    heap, step, place, count, number = inner.parameters
    hole = inner.variable(place)
    with inner.repeat() as leave_if:
        child = hole.get() * 2 + 1
        leave_if(child >= count)
        # Without a right child the left one stands for it.
        right = (child + 1).at_most(count - 1)
        low, high = inner.load_number(heap + child * step), inner.load_number(heap + right * step)
        is_right = high < low
        least = is_right.choose(high, low)
        leave_if(least >= number)
        inner.store(heap + hole.get() * step, least)
        hole.set(is_right.choose(right, child))
    inner.store(heap + hole.get() * step, number)
    inner.finish()
