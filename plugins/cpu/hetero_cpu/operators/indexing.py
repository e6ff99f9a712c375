"""Reading and writing at indices by machine code: GatherElements, GatherND, ScatterElements and ScatterND. Indices are checked before.

```text
table ── outer, inner: walked ── index of each axis: read ──> place <── row of `length` words ──> t-th row of the flat side
```

Writes come in the order of the indices, as in NumPy, so they are a single chunk: of equal indices the last one wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, name_fields
from hetero_cpu.operators.images import emit_copy
from hetero_cpu.operators.layout import plan_copy
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.symbols.arrays import keep_sizes, lay_empty
from hetero_cpu.symbols.sizes import is_open

_PARAMETERS = ("table", "flat", "indices", "outer", "count", "inner", "outer_bytes", "inner_bytes", "length")


@dataclass(frozen=True, slots=True)
class _Access:
    """The facts that are compiled in: the axes that have an index, whether rows are written or added, and the bytes of rows of one word."""

    depth: int
    writes: bool = False
    adds: bool = False
    word: int = 0


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


def plan_indexed_read(site: Site) -> Recipe | None:
    """Returns the recipe of the elements or slices at indices. Sources: ONNX GatherElements-13, GatherND-13."""
    value, name = site.node.inputs
    table, indices = site.prototypes[value], site.prototypes[name]
    walk = _find_walk(site, table, indices)
    if walk is None:
        return None
    kernel = _make_kernel(_Access(len(walk.axes), word=_find_word(walk)))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        return [*_check(site, walk, *reads), _call(kernel, walk, reads[0], writes[0], reads[1])]

    return Recipe((value, name), bind, kernels=(kernel,), function_reads=() if name in site.constants else (name,))


def plan_indexed_write(site: Site) -> Recipe | None:
    """Returns the recipe of a copy of a table with rows written, or added, at indices. Sources: ONNX ScatterElements-18, ScatterND-18."""
    value, name, rows = site.node.inputs
    x, indices, updates = (site.prototypes[each] for each in site.node.inputs)
    reduction = site.node.attributes.get("reduction", "none")
    y = lay_empty(x.shape, x.dtype)
    walk = _find_walk(site, y, indices)
    if walk is None or reduction not in ("none", "add") or updates.dtype != x.dtype:
        return None
    if (reduction == "add" and x.dtype != np.float32) or updates.size * x.itemsize != _count_rows(walk) * walk.length * FLOAT_BYTES:
        return None
    copy = plan_copy(y, x, workers=site.workers)
    staging = None if updates.flags.c_contiguous else plan_copy(lay_empty(updates.shape, x.dtype), updates, workers=site.workers)
    if copy is None or (staging is None and not updates.flags.c_contiguous):
        return None
    access = _Access(len(walk.axes), True, reduction == "add", _find_word(walk))
    kernel = _make_kernel(access)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        calls, flat = [copy.bind(writes[0], reads[0])], reads[2]
        if staging is not None:
            flat = scratch[: updates.nbytes].view(x.dtype).reshape(updates.shape)
            calls.append(staging.bind(flat, reads[2]))
        return [*_check(site, walk, writes[0], reads[1]), *calls, _call(kernel, walk, writes[0], flat, reads[1])]

    kernels = (copy.kernel, *(() if staging is None else (staging.kernel,)), kernel)
    return Recipe(
        (value, name, rows),
        bind,
        0 if staging is None else updates.nbytes,
        kernels=tuple(dict.fromkeys(kernels)),
        function_reads=() if name in site.constants else (name,),
    )


def _find_word(walk: _Walk) -> int:
    return int(walk.length) * FLOAT_BYTES if not is_open(walk.length) and walk.length <= 2 else 0


def _count_rows(walk: _Walk) -> int:
    return walk.outer * walk.count * walk.inner


def _find_walk(site: Site, table: Array, indices: Array) -> _Walk | None:
    """Returns the walk over a table; None for elements that are no words, and for constant indices that are not in the table."""
    name, is_slices = site.node.inputs[1], site.node.op_type.endswith("ND")
    shape, words = table.shape, table.itemsize // FLOAT_BYTES
    if indices.dtype != np.int64 or not indices.flags.c_contiguous or site.group.epilogue or table.dtype == object:
        return None
    if table.itemsize not in (FLOAT_BYTES, 2 * FLOAT_BYTES) or 0 in (*shape, *indices.shape):
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


def _check(site: Site, walk: _Walk, table: Array, indices: Array) -> list[Any]:
    """Returns the check of computed indices. It gets the table, as its sizes may be those of other runs."""
    return (
        []
        if site.node.inputs[1] in site.constants
        else [partial(_require, keep_sizes(table, indices), indices, walk.first, len(walk.axes))]
    )


def _require(table: Array, indices: Array, first: int, depth: int) -> None:
    """Raises: IndexError."""
    for position, size in enumerate(table.shape[first : first + depth]):
        own = indices if depth == 1 else indices[..., position]
        if own.min() < -size or own.max() >= size:
            # It raises the error of the toolkit's kernel.
            np.take(np.broadcast_to(0, (size,)), own)


def _call(kernel: Kernel, walk: _Walk, table: Array, flat: Array, indices: Array) -> NativeCall:
    sizes = (walk.outer, walk.count, walk.inner, walk.outer_bytes, walk.inner_bytes, walk.length)
    numbers = (address_of(table), address_of(flat), address_of(indices), *sizes, *(number for axis in walk.axes for number in axis))
    return NativeCall(kernel, numbers, 1, (table, flat, indices))


def _make_kernel(access: _Access) -> Kernel:
    return Kernel(f"indexed_{name_fields(access)}", partial(_emit, access=access))


def _emit(name: str, width: int, *, access: _Access) -> Code:
    axes = [f"{key}_{axis}" for axis in range(access.depth) for key in ("size", "bytes")]
    code, p, _, _ = begin_kernel(name, width, (*_PARAMETERS, *axes))
    with code.loop(0, p["outer"]) as outer, code.loop(0, p["count"]) as middle, code.loop(0, p["inner"]) as inner:
        row = (outer * p["count"] + middle) * p["inner"] + inner
        place, flat = (
            p["table"] + outer * p["outer_bytes"] + inner * p["inner_bytes"],
            p["flat"] + row * (p["length"] * FLOAT_BYTES),
        )
        for axis in range(access.depth):
            index = code.load_number(p["indices"] + (row * access.depth + axis) * 8)
            # Negative indices count from the end.
            place = place + (index < 0).choose(index + p[f"size_{axis}"], index) * p[f"bytes_{axis}"]
        target, source = (place, flat) if access.writes else (flat, place)
        if access.word > FLOAT_BYTES and not access.adds:
            code.store_number(target, code.load_number(source))
        elif access.word == FLOAT_BYTES:
            word = code.load_scalar(source)
            code.store(target, code.load_scalar(target) + word if access.adds else word)
        elif access.adds:

            def add(element: Any, mask: Any) -> None:
                offset = element * FLOAT_BYTES
                total = code.load(target + offset, mask=mask) + code.load(source + offset, mask=mask)  # called inside the loop
                code.store(target + offset, total, mask=mask)  # called inside the loop

            code.visit_vectors(p["length"], add)
        else:
            emit_copy(code, target, source, p["length"] * FLOAT_BYTES)
    return code.finish()
