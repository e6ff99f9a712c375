"""Gather by machine code: rows of a table by their numbers, which are checked before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, HALF_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.operators.images import emit_copy
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.symbols.arrays import keep_sizes
from hetero_cpu.symbols.sizes import is_open, largest, least

_PARAMETERS = ("x", "x_outer", "size", "length", "indices", "count", "y", "rows", "rows_of_chunk")
"""x: tables of `size` rows of `length` elements, `x_outer` bytes apart; of each the rows at `count` indices go side by side into y."""
_CHUNK = 1 << 15


def plan_native_gather(site: Site) -> Recipe | None:
    """Returns the recipe of slices along one axis; a single constant index of Gather is a view, which `layout` makes.

    The run raises IndexError if an index is out of range. Sources: ONNX Gather-13, ONNX-ML ArrayFeatureExtractor-1.
    """
    value, name = site.node.inputs
    x, indices = site.prototypes[value], site.prototypes[name]
    is_gather = site.node.op_type == "Gather"
    if x.ndim == 0 or x.dtype == object or x.dtype.itemsize not in (HALF_BYTES, FLOAT_BYTES, 2 * FLOAT_BYTES):
        return None
    if indices.dtype != np.int64 or site.group.epilogue:
        return None
    if not x.flags.c_contiguous or not indices.flags.c_contiguous:
        return None
    if is_gather and name in site.constants and indices.size == 1:
        return None
    axis = int(site.node.attributes.get("axis", 0)) % x.ndim if is_gather else x.ndim - 1
    shape = x.shape
    outer, size, length = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    if x.dtype.itemsize == HALF_BYTES:
        if is_open(length) or length % 2:
            return None
        # Pairs of halves are moved as numbers of four bytes.
        length //= 2
    elif x.dtype.itemsize > FLOAT_BYTES:
        length *= 2
    rows = outer * indices.size
    if rows * length == 0:
        return None
    constant = site.constants.get(name)
    is_checked = constant is not None and not is_open(size) and -size <= constant.min() and constant.max() < size
    may_be_negative = not is_checked or constant is None or bool(constant.min() < 0)
    kernel = _make_gather(not is_open(length) and length == 1, may_be_negative)
    rows_of_chunk = largest(1, least(rows, largest(_CHUNK // length, -(-rows // (8 * site.workers)))))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        table, indices = reads
        numbers = (
            address_of(table), size * length * FLOAT_BYTES, size, length, address_of(indices), indices.size, address_of(writes[0]),
            rows, rows_of_chunk,
        )  # fmt: skip
        call = NativeCall(kernel, numbers, -(-rows // rows_of_chunk), (table, indices, writes[0]))
        return [call] if is_checked else [partial(_check_indices, keep_sizes(table, indices), indices, axis), call]

    return Recipe(
        (value, name), bind, kernels=(kernel,), function_reads=() if is_checked else (value if name in site.constants else name,)
    )


def _check_indices(x: Array, indices: Array, axis: int) -> None:
    size = x.shape[axis]
    if indices.min() < -size or indices.max() >= size:
        # It raises the error of the toolkit's kernel.
        np.take(np.broadcast_to(0, x.shape), indices, axis=axis)


@cache
def _make_gather(is_single: bool, may_be_negative: bool) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, _PARAMETERS)
        row_bytes, begin = p["length"] * FLOAT_BYTES, chunk * p["rows_of_chunk"]
        end = (begin + p["rows_of_chunk"]).at_most(p["rows"])
        table, first = code.variable(p["x"] + begin // p["count"] * p["x_outer"]), code.variable(begin % p["count"])
        here = code.variable(begin)
        with code.repeat() as leave_if:
            leave_if(here.get() >= end)
            x, indices, y = table.get(), p["indices"] + first.get() * 8, p["y"] + here.get() * row_bytes
            count = (p["count"] - first.get()).at_most(end - here.get())

            with code.loop(0, count) as position:
                index = code.load_number(indices + position * 8)
                if may_be_negative:
                    # Negative indices count from the end.
                    index = (index < 0).choose(index + p["size"], index)
                if is_single:
                    code.store(y + position * FLOAT_BYTES, code.load_scalar(x + index * FLOAT_BYTES))
                else:
                    emit_copy(code, y + position * row_bytes, x + index * row_bytes, row_bytes)
            table.set(x + p["x_outer"])
            first.set(code.number(0))
            here.set(here.get() + count)
        return code.finish()

    return Kernel("gather" + ("_elements" if is_single else "_rows") + "_from_end" * may_be_negative, emit)
