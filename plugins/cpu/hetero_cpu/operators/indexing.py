"""ScatterElements and ScatterND by machine code: a copy of a table, then rows written or added at indices, which are checked before.

Writes come in the order of the indices, as in NumPy, so they are a single chunk: of equal indices the last one wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.operators.images import emit_copy
from hetero_cpu.operators.layout import plan_copy
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.symbols.arrays import lay_empty
from hetero_cpu.symbols.sizes import is_open

_PARAMETERS = ("table", "rows", "indices", "outer", "count", "inner", "outer_bytes", "inner_bytes", "length")
"""The indices are walked over along three axes, of which the first and the last are the table's, too; `length` words of a row."""


def plan_scatter(site: Site) -> Recipe | None:
    """Returns the recipe of a copy of a table with rows written, or added, at indices. Sources: ONNX ScatterElements-18, ScatterND-18."""
    attributes, (value, name, rows) = site.node.attributes, site.node.inputs
    x, indices, updates = (site.prototypes[each] for each in site.node.inputs)
    reduction, shape, words = attributes.get("reduction", "none"), x.shape, x.itemsize // FLOAT_BYTES
    if indices.dtype != np.int64 or not indices.flags.c_contiguous or site.group.epilogue or x.dtype == object:
        return None
    if x.itemsize not in (FLOAT_BYTES, 2 * FLOAT_BYTES) or 0 in (*shape, *indices.shape) or updates.dtype != x.dtype:
        return None
    if reduction not in ("none", "add") or (reduction == "add" and x.dtype != np.float32):
        return None
    if site.node.op_type == "ScatterND":
        first, depth = 0, indices.shape[-1]
        if is_open(depth) or depth > x.ndim:
            return None
        walk = (1, prod(indices.shape[:-1]), 1, 0, 0, prod(shape[depth:]) * words)
    else:
        first, depth = int(attributes.get("axis", 0)) % x.ndim, 1
        outer, inner = prod(shape[:first]), prod(shape[first + 1 :])
        if indices.ndim != x.ndim or indices.shape[:first] + indices.shape[first + 1 :] != shape[:first] + shape[first + 1 :]:
            return None
        walk = (outer, indices.shape[first], inner, prod(shape[first:]) * x.itemsize, x.itemsize, words)
    length = walk[-1]
    if updates.size * words != prod(walk[:3]) * length:
        return None
    axes = [number for axis in range(first, first + depth) for number in (shape[axis], prod(shape[axis + 1 :]) * x.itemsize)]
    constant = site.constants.get(name)
    if constant is not None:
        if any(map(is_open, shape)):
            return None
        _require(x, constant, first, depth)
    copy = plan_copy(lay_empty(shape, x.dtype), x, workers=site.workers)
    staging = None if updates.flags.c_contiguous else plan_copy(lay_empty(updates.shape, x.dtype), updates, workers=site.workers)
    if copy is None or (staging is None and not updates.flags.c_contiguous):
        return None
    word = int(length) * FLOAT_BYTES if not is_open(length) and length <= 2 else 0
    kernel = _make_scatter(depth, reduction == "add", word)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        (y,), (_, indices, flat) = writes, reads
        calls: list[Any] = [] if constant is not None else [partial(_require, y, indices, first, depth)]
        calls.append(copy.bind(y, reads[0]))
        if staging is not None:
            flat = scratch[: updates.nbytes].view(x.dtype).reshape(updates.shape)
            calls.append(staging.bind(flat, reads[2]))
        numbers = (address_of(y), address_of(flat), address_of(indices), *walk, *axes)
        return [*calls, NativeCall(kernel, numbers, 1, (y, flat, indices))]

    kernels = tuple(dict.fromkeys((copy.kernel, *(() if staging is None else (staging.kernel,)), kernel)))
    scratch_bytes = 0 if staging is None else updates.nbytes
    return Recipe((value, name, rows), bind, scratch_bytes, kernels=kernels, calls_functions=constant is None)


def _require(table: Array, indices: Array, first: int, depth: int) -> None:
    """Raises: IndexError. It gets the table, as its sizes may be those of other runs."""
    for position, size in enumerate(table.shape[first : first + depth]):
        own = indices if depth == 1 else indices[..., position]
        if own.min() < -size or own.max() >= size:
            # It raises the error of the toolkit's kernel.
            np.take(np.broadcast_to(0, (size,)), own)


@cache
def _make_scatter(depth: int, adds: bool, word: int) -> Kernel:
    """Returns the kernel for tables with an index of `depth` axes; `word`: the bytes of rows of one word, otherwise 0."""

    def emit(name: str, width: int) -> Code:
        axes = [f"{key}_{axis}" for axis in range(depth) for key in ("size", "bytes")]
        code, p, _, _ = begin_kernel(name, width, (*_PARAMETERS, *axes))
        with code.loop(0, p["outer"]) as outer, code.loop(0, p["count"]) as middle, code.loop(0, p["inner"]) as inner:
            row = (outer * p["count"] + middle) * p["inner"] + inner
            target, source = (
                p["table"] + outer * p["outer_bytes"] + inner * p["inner_bytes"],
                p["rows"] + row * (p["length"] * FLOAT_BYTES),
            )
            for axis in range(depth):
                index = code.load_number(p["indices"] + (row * depth + axis) * 8)
                # Negative indices count from the end.
                target = target + (index < 0).choose(index + p[f"size_{axis}"], index) * p[f"bytes_{axis}"]
            if word > FLOAT_BYTES and not adds:
                code.store_number(target, code.load_number(source))
            elif word == FLOAT_BYTES:
                element = code.load_scalar(source)
                code.store(target, code.load_scalar(target) + element if adds else element)
            elif adds:

                def add(element: Any, mask: Any) -> None:
                    offset = element * FLOAT_BYTES
                    total = code.load(target + offset, mask=mask) + code.load(source + offset, mask=mask)  # called inside the loop
                    code.store(target + offset, total, mask=mask)  # called inside the loop

                code.visit_vectors(p["length"], add)
            else:
                emit_copy(code, target, source, p["length"] * FLOAT_BYTES)
        return code.finish()

    return Kernel(f"scatter_{depth}_{word}" + "_adds" * adds, emit)
