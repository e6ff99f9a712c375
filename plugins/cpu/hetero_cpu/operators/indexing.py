"""Reading and writing at indices by machine code: Gather, GatherElements, GatherND, ScatterElements and ScatterND.

```text
table ── outer, inner: walked ── index of each axis: read ──> place <── row of `length` words ──> t-th row of the flat side
```

Indices are checked before. Writes come in their order, as in NumPy, so they are a single chunk: of equal indices the last one wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, HALF_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.operators.images import emit_copy
from hetero_cpu.operators.layout import plan_copy
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import choose_rows_of_chunk
from hetero_cpu.symbols.arrays import keep_sizes, lay_empty
from hetero_cpu.symbols.sizes import is_open

_PARAMETERS = ("table", "flat", "indices", "outer", "count", "inner", "outer_bytes", "inner_bytes", "length")


@dataclass(frozen=True, slots=True)
class _Walk:
    """Sizes of the walk over the indices, and the strides of the table along it, in bytes; size and stride of each axis with an index."""

    outer: int
    count: int
    inner: int
    outer_bytes: int
    inner_bytes: int
    length: int
    axes: tuple[tuple[int, int], ...]
    first: int
    """The first axis of the table that has an index."""

    def make_kernel(self, reduction: str = "") -> Kernel:
        """Returns the kernel of reads, or of writes with a reduction."""
        word = int(self.length) * FLOAT_BYTES if not is_open(self.length) and self.length <= 2 else 0
        title = f"indexed_{len(self.axes)}_{word}_{reduction}"
        return Kernel(title, partial(_emit, depth=len(self.axes), reduction=reduction, word=word))

    def call(self, kernel: Kernel, table: Array, flat: Array, indices: Array) -> NativeCall:
        """Returns the call of a kernel over the rows of `flat`."""
        sizes = (self.outer, self.count, self.inner, self.outer_bytes, self.inner_bytes, self.length)
        numbers = (*map(address_of, (table, flat, indices)), *sizes, *(number for axis in self.axes for number in axis))
        return NativeCall(kernel, numbers, 1, (table, flat, indices))

    def check(self, site: Site, table: Array, indices: Array) -> list[Any]:
        """Returns the check of computed indices. It gets the table, as its sizes may be those of other runs."""
        if site.node.inputs[1] in site.constants:
            return []
        return [partial(_require, keep_sizes(table, indices), indices, self.first, len(self.axes))]


def plan_indexed_read(site: Site) -> Recipe | None:
    """Returns the recipe of the elements or slices at indices. Sources: ONNX GatherElements-13, GatherND-13."""
    value, name = site.node.inputs
    table, indices = site.prototypes[value], site.prototypes[name]
    walk = _find_walk(site, table, indices)
    if walk is None:
        return None
    kernel = walk.make_kernel()

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        return [*walk.check(site, *reads), walk.call(kernel, reads[0], writes[0], reads[1])]

    return Recipe((value, name), bind, kernels=(kernel,), function_reads=() if name in site.constants else (name,))


def plan_indexed_write(site: Site) -> Recipe | None:
    """Returns the recipe of a copy of a table with rows written, or added, at indices. Sources: ONNX ScatterElements-18, ScatterND-18."""
    value, name, rows = site.node.inputs
    x, indices, updates = map(site.prototypes.__getitem__, site.node.inputs)
    reduction = site.node.attributes.get("reduction", "none")
    y = lay_empty(x.shape, x.dtype)
    walk = _find_walk(site, y, indices)
    if walk is None or reduction not in ("none", "add") or updates.dtype != x.dtype:
        return None
    words = walk.outer * walk.count * walk.inner * walk.length
    if (reduction == "add" and x.dtype != np.float32) or updates.size * x.itemsize != words * FLOAT_BYTES:
        return None
    copy = plan_copy(y, x, workers=site.workers)
    staging = None if updates.flags.c_contiguous else plan_copy(lay_empty(updates.shape, x.dtype), updates, workers=site.workers)
    if copy is None or (staging is None and not updates.flags.c_contiguous):
        return None
    kernel = walk.make_kernel(reduction)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        calls, flat = [copy.bind(writes[0], reads[0])], reads[2]
        if staging is not None:
            flat = scratch[: updates.nbytes].view(x.dtype).reshape(updates.shape)
            calls.append(staging.bind(flat, reads[2]))
        return [*walk.check(site, writes[0], reads[1]), *calls, walk.call(kernel, writes[0], flat, reads[1])]

    kernels = tuple(dict.fromkeys((copy.kernel, *(() if staging is None else (staging.kernel,)), kernel)))
    scratch_bytes = 0 if staging is None else updates.nbytes
    return Recipe(
        (value, name, rows), bind, scratch_bytes, kernels=kernels, function_reads=() if name in site.constants else (name,)
    )


def _find_walk(site: Site, table: Array, indices: Array) -> _Walk | None:
    """Returns the walk over a table; None for elements that are no words, and for constant indices that are not in the table."""
    name, is_slices = site.node.inputs[1], site.node.op_type.endswith("ND")
    shape, words = table.shape, table.itemsize // FLOAT_BYTES
    if indices.dtype != np.int64 or not indices.flags.c_contiguous or table.dtype == object:
        return None
    if table.itemsize not in (FLOAT_BYTES, 2 * FLOAT_BYTES):
        return None
    if is_slices:
        batch, depth = int(site.node.attributes.get("batch_dims", 0)), indices.shape[-1]
        if is_open(depth) or not table.flags.c_contiguous or batch + depth > table.ndim or shape[:batch] != indices.shape[:batch]:
            return None
        outer, length = prod(shape[:batch]), prod(shape[batch + depth :]) * words
        axes = tuple((shape[axis], prod(shape[axis + 1 :]) * table.itemsize) for axis in range(batch, batch + depth))
        walk = _Walk(outer, prod(indices.shape[batch:-1]), 1, prod(shape[batch:]) * table.itemsize, 0, length, axes, batch)
    else:
        axis = int(site.node.attributes.get("axis", 0)) % table.ndim
        if len(indices.shape) != table.ndim or indices.shape[:axis] + indices.shape[axis + 1 :] != shape[:axis] + shape[axis + 1 :]:
            return None
        cube = table.reshape((prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])))
        if not np.may_share_memory(cube, table):
            return None
        steps = cube.strides
        walk = _Walk(cube.shape[0], indices.shape[axis], cube.shape[2], steps[0], steps[2], words, ((shape[axis], steps[1]),), axis)
    constant = site.constants.get(name)
    if constant is not None:
        if any(map(is_open, shape)):
            return None
        try:
            _require(table, constant, walk.first, len(walk.axes))
        except IndexError:
            return None
    return walk


def _require(table: Array, indices: Array, first: int, depth: int) -> None:
    """Raises: IndexError."""
    for position, size in enumerate(table.shape[first : first + depth]):
        own = indices if depth == 1 else indices[..., position]
        if own.min() < -size or own.max() >= size:
            # It raises the error of the toolkit's kernel.
            axis = first + position
            np.take(np.broadcast_to(0, (1,) * axis + (size,)), own, axis=axis)


def _emit(name: str, width: int, *, depth: int, reduction: str, word: int) -> Code:
    """Emits rows of `word` bytes, or of any length if it is 0, read or, with a reduction, written at `depth` indices each."""
    axes, adds = [f"{key}_{axis}" for axis in range(depth) for key in ("size", "bytes")], reduction == "add"
    code, p, _, _ = begin_kernel(name, width, (*_PARAMETERS, *axes))
    with code.loop(0, p["outer"]) as outer, code.loop(0, p["count"]) as middle, code.loop(0, p["inner"]) as inner:
        row = (outer * p["count"] + middle) * p["inner"] + inner
        place, flat = (
            p["table"] + outer * p["outer_bytes"] + inner * p["inner_bytes"],
            p["flat"] + row * (p["length"] * FLOAT_BYTES),
        )
        for axis in range(depth):
            index = code.load_number(p["indices"] + (row * depth + axis) * 8)
            # Negative indices count from the end.
            place = place + (index < 0).choose(index + p[f"size_{axis}"], index) * p[f"bytes_{axis}"]
        target, source = (place, flat) if reduction else (flat, place)
        if word > FLOAT_BYTES and not adds:
            code.store(target, code.load_number(source))
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


_GATHER_PARAMETERS = ("x", "x_outer", "size", "length", "indices", "count", "y", "rows", "rows_of_chunk")
"""x: tables of `size` rows of `length` elements, `x_outer` bytes apart; of each the rows at `count` indices go side by side into y."""


def plan_native_gather(site: Site) -> Recipe | None:
    """Returns the recipe of slices along one axis; a single constant index of Gather is a view, which `layout` makes.

    The run raises IndexError if an index is out of range. Sources: ONNX Gather-13, ONNX-ML ArrayFeatureExtractor-1.
    """
    value, name = site.node.inputs
    x, indices = site.prototypes[value], site.prototypes[name]
    is_gather, constant = site.node.op_type == "Gather", site.constants.get(name)
    if x.ndim == 0 or x.dtype == object or x.dtype.itemsize not in (HALF_BYTES, FLOAT_BYTES, 2 * FLOAT_BYTES):
        return None
    if indices.dtype != np.int64 or not x.flags.c_contiguous or not indices.flags.c_contiguous:
        return None
    if is_gather and constant is not None and indices.size == 1:
        return None
    axis = int(site.node.attributes.get("axis", 0)) % x.ndim if is_gather else x.ndim - 1
    outer, size, length = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    # Pairs of halves are moved as numbers of four bytes.
    if x.dtype.itemsize == HALF_BYTES and (is_open(length) or length % 2):
        return None
    length = length // 2 if x.dtype.itemsize == HALF_BYTES else length * (x.dtype.itemsize // FLOAT_BYTES)
    rows = outer * indices.size
    is_checked = constant is not None and not is_open(size) and -size <= constant.min() and constant.max() < size
    may_be_negative = not is_checked or constant is None or bool(constant.min() < 0)
    kernel = _make_gather(not is_open(length) and length == 1, may_be_negative)
    rows_of_chunk = choose_rows_of_chunk(rows, length, site.workers)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        table, indices = reads
        numbers = (
            address_of(table), size * length * FLOAT_BYTES, size, length, address_of(indices), indices.size, address_of(writes[0]),
            rows, rows_of_chunk,
        )  # fmt: skip
        call = NativeCall(kernel, numbers, -(-rows // rows_of_chunk), (table, indices, writes[0]))
        return [call] if is_checked else [partial(_check_indices, keep_sizes(table, indices), indices, axis), call]

    return Recipe(
        (value, name), bind, kernels=(kernel,), function_reads=() if is_checked else (name if constant is None else value,)
    )


def _check_indices(x: Array, indices: Array, axis: int) -> None:
    size = x.shape[axis]
    if indices.min() < -size or indices.max() >= size:
        # It raises the error of the toolkit's kernel.
        np.take(np.broadcast_to(0, x.shape), indices, axis=axis)


@cache
def _make_gather(is_single: bool, may_be_negative: bool) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, _GATHER_PARAMETERS)
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
