"""Reading and writing at indices by machine code: Gather, GatherElements, GatherND, ScatterElements and ScatterND.

```text
table ── outer, inner: walked ── index of each axis: read ──> place <── row of `length` words ──> t-th row of the flat side
```

Indices are checked before. Writes come in their order, as in NumPy, so they are a single chunk: of equal indices the last one wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, HALF_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Mask, Number
from hetero_cpu.operators.images import emit_copy
from hetero_cpu.operators.layout import plan_copy
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import choose_rows_of_chunk
from hetero_cpu.symbols.arrays import keep_sizes, lay_empty
from hetero_cpu.symbols.sizes import is_open

_PARAMETERS = (
    "table", "flat", "indices", "count", "inner", "outer_bytes", "inner_bytes", "length", "lines", "lines_of_chunk",
)  # fmt: skip
"""Those of a `_Walk`; a line is the `inner` rows of one of `count` places. For each axis with an index follow its size and its stride."""


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
    is_shared: bool = False
    """Whether all outer parts of the table have the same indices."""
    from_end: bool = True
    """Whether indices may be negative: these count from the end."""

    def make_kernel(self, reduction: str = "") -> Kernel:
        """Returns the kernel of reads, or of writes with a reduction."""
        word = int(self.length) * FLOAT_BYTES if not is_open(self.length) and self.length <= 2 else 0
        has_inner = is_open(self.inner) or self.inner > 1
        flags = "_shared" * self.is_shared + "_inner" * has_inner + "_from_end" * self.from_end
        title = f"indexed_{len(self.axes)}_{word}_{reduction}{flags}"
        return Kernel(title, partial(_emit, walk=self, reduction=reduction, word=word, has_inner=has_inner))

    def call(self, kernel: Kernel, table: Array, flat: Array, indices: Array, workers: int) -> NativeCall:
        """Returns the call of a kernel over the rows of `flat`, in one chunk for a single worker."""
        lines = self.outer * self.count
        size = choose_rows_of_chunk(lines, self.length * self.inner, workers) if workers > 1 else lines
        sizes = (self.count, self.inner, self.outer_bytes, self.inner_bytes, self.length, lines, size)
        numbers = (*map(address_of, (table, flat, indices)), *sizes, *(number for axis in self.axes for number in axis))
        return NativeCall(kernel, numbers, -(-lines // size), (table, flat, indices))

    def list_checks(self, site: Site, table: Array, indices: Array) -> list[Any]:
        """Returns the check of indices that are computed, or of a table of any size."""
        is_known = site.node.inputs[1] in site.constants and not any(is_open(size) for size, _ in self.axes)
        return [] if is_known else [partial(_require, keep_sizes(table, indices), indices, self.first, len(self.axes))]


def plan_indexed_read(site: Site) -> Recipe | None:
    """Returns the recipe of the elements or slices at indices; a single constant index of Gather is a view, which `layout` makes.

    The run raises IndexError if an index is out of range. Sources: ONNX Gather-13, GatherElements-13, GatherND-13, ONNX-ML
    ArrayFeatureExtractor-1.
    """
    value, name = site.node.inputs
    walk = _find_walk(site, site.prototypes[value], site.prototypes[name])
    if walk is None or (site.node.op_type == "Gather" and name in site.constants and walk.count == 1):
        return None
    kernel = walk.make_kernel()

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        return [*walk.list_checks(site, *reads), walk.call(kernel, reads[0], writes[0], reads[1], site.workers)]

    checked = () if not walk.list_checks(site, *map(site.prototypes.__getitem__, site.node.inputs)) else (value, name)
    return Recipe((value, name), bind, kernels=(kernel,), function_reads=checked[:1] if name in site.constants else checked[1:])


def plan_indexed_write(site: Site) -> Recipe | None:
    """Returns the recipe of a copy of a table with rows written, or added, at indices. Sources: ONNX ScatterElements-18, ScatterND-18."""
    value, name, rows = site.node.inputs
    x, indices, updates = map(site.prototypes.__getitem__, site.node.inputs)
    reduction, is_computed = site.node.attributes.get("reduction", "none"), name not in site.constants
    y = lay_empty(x.shape, x.dtype)
    walk = _find_walk(site, y, indices)
    if walk is None or reduction not in ("none", "add") or updates.dtype != x.dtype:
        return None
    words = walk.outer * walk.count * walk.inner * walk.length
    if (reduction == "add" and x.dtype != np.float32) or updates.size * x.itemsize != words * FLOAT_BYTES:
        return None
    copy = plan_copy(y, x, workers=site.workers)
    staging = None if updates.flags.c_contiguous else plan_copy(lay_empty(updates.shape, x.dtype), updates, workers=site.workers)
    if copy is None or (staging is None and not updates.flags.c_contiguous) or (not is_computed and any(map(is_open, x.shape))):
        return None
    kernel = walk.make_kernel(reduction)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        calls, flat = [copy.bind(writes[0], reads[0])], reads[2]
        if staging is not None:
            flat = scratch[: updates.nbytes].view(x.dtype).reshape(updates.shape)
            calls.append(staging.bind(flat, reads[2]))
        return [*walk.list_checks(site, writes[0], reads[1]), *calls, walk.call(kernel, writes[0], flat, reads[1], workers=1)]

    kernels = tuple(dict.fromkeys((copy.kernel, *(() if staging is None else (staging.kernel,)), kernel)))
    scratch_bytes = 0 if staging is None else updates.nbytes
    return Recipe((value, name, rows), bind, scratch_bytes, kernels=kernels, function_reads=(name,) * is_computed)


def _find_walk(site: Site, table: Array, indices: Array) -> _Walk | None:
    """Returns the walk over a table; None for elements that are no words, and for constant indices that are not in the table."""
    operator, attributes, shape, itemsize = site.node.op_type, site.node.attributes, table.shape, table.dtype.itemsize
    if indices.dtype != np.int64 or not indices.flags.c_contiguous or table.dtype == object or table.ndim == 0:
        return None
    if itemsize not in (HALF_BYTES, FLOAT_BYTES, 2 * FLOAT_BYTES) or (operator.endswith("Elements") and itemsize < FLOAT_BYTES):
        return None
    axis = int(attributes.get("axis", 0)) % table.ndim if operator != "ArrayFeatureExtractor" else table.ndim - 1
    if operator.endswith("Elements") or operator == "Scatter":
        if len(indices.shape) != table.ndim or indices.shape[:axis] + indices.shape[axis + 1 :] != shape[:axis] + shape[axis + 1 :]:
            return None
        cube = table.reshape((prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])))
        if not np.may_share_memory(cube, table):
            return None
        outer_bytes, axis_bytes, inner_bytes = cube.strides
        sizes, words = (cube.shape[0], indices.shape[axis], cube.shape[2]), itemsize // FLOAT_BYTES
        walk = _Walk(*sizes, outer_bytes, inner_bytes, words, ((shape[axis], axis_bytes),), axis)
    else:
        is_nd = operator.endswith("ND")
        first, depth = (int(attributes.get("batch_dims", 0)), indices.shape[-1]) if is_nd else (axis, 1)
        if is_open(depth) or not table.flags.c_contiguous or first + depth > table.ndim:
            return None
        if is_nd and shape[:first] != indices.shape[:first]:
            return None
        size = prod(shape[first + depth :])
        # Pairs of halves are moved as numbers of four bytes.
        if itemsize == HALF_BYTES and (is_open(size) or size % 2):
            return None
        length = size // 2 if itemsize == HALF_BYTES else size * (itemsize // FLOAT_BYTES)
        count = prod(indices.shape[first:-1]) if is_nd else indices.size
        axes = tuple((shape[own], prod(shape[own + 1 :]) * itemsize) for own in range(first, first + depth))
        outer_bytes = prod(shape[first:]) * itemsize
        walk = _Walk(prod(shape[:first]), count, 1, outer_bytes, 0, length, axes, first, is_shared=not is_nd)
    constant = site.constants.get(site.node.inputs[1])
    if constant is not None and not any(is_open(size) for size, _ in walk.axes):
        try:
            _require(table, constant, walk.first, len(walk.axes))
        except IndexError:
            return None
    return replace(walk, from_end=constant is None or bool(constant.min() < 0))


def _require(table: Array, indices: Array, first: int, depth: int) -> None:
    """Raises: IndexError."""
    for position, size in enumerate(table.shape[first : first + depth]):
        own = indices if depth == 1 else indices[..., position]
        if own.min() < -size or own.max() >= size:
            # It raises the error of the toolkit's kernel.
            axis = first + position
            np.take(np.broadcast_to(0, (1,) * axis + (size,)), own, axis=axis)


def _emit(name: str, width: int, *, walk: _Walk, reduction: str, word: int, has_inner: bool) -> Code:
    """Emits rows of `word` bytes, or of any length if it is 0, read or, with a reduction, written."""
    depth, is_shared = len(walk.axes), walk.is_shared
    axes, adds = [f"{key}_{axis}" for axis in range(depth) for key in ("size", "bytes")], reduction == "add"
    code, p, chunk, _ = begin_kernel(name, width, (*_PARAMETERS, *axes))
    begin, row_bytes = chunk * p["lines_of_chunk"], code.number(word) if word else p["length"] * FLOAT_BYTES
    end = (begin + p["lines_of_chunk"]).at_most(p["lines"])

    def move(place: Number, flat: Number, indices: Number) -> None:
        for axis in range(depth):
            index = code.load_number(indices, axis * 8)
            index = (index < 0).choose(index + p[f"size_{axis}"], index) if walk.from_end else index
            place = place + index * (row_bytes if is_shared else p[f"bytes_{axis}"])
        target, source = (place, flat) if reduction else (flat, place)
        if word > FLOAT_BYTES and not adds:
            code.store(target, code.load_number(source))
        elif word == FLOAT_BYTES:
            element = code.load_scalar(source)
            code.store(target, code.load_scalar(target) + element if adds else element)
        elif adds:

            def add(element: Number, mask: Mask | None) -> None:
                offset = element * FLOAT_BYTES
                total = code.load(target + offset, mask=mask) + code.load(source + offset, mask=mask)
                code.store(target + offset, total, mask=mask)

            code.visit_vectors(p["length"], add)
        else:
            emit_copy(code, target, source, row_bytes)

    # A division for each outer part would take longer than a few elements.
    table, first = code.variable(p["table"] + begin // p["count"] * p["outer_bytes"]), code.variable(begin % p["count"])
    here = code.variable(begin)
    with code.repeat() as leave_if:
        leave_if(here.get() >= end)
        part, line, of_index = table.get(), here.get(), first.get()
        row = line * p["inner"] if has_inner else line
        flat, indices = p["flat"] + row * row_bytes, p["indices"] + (of_index if is_shared else row) * (8 * depth)
        count = (p["count"] - of_index).at_most(end - line)
        with code.loop(0, count) as position:
            if has_inner:
                own = position * p["inner"]
                flat_line, indices_line = flat + own * row_bytes, indices + own * (8 * depth)
                place = code.variable(part)
                with code.loop(0, p["inner"]) as inner:
                    address = place.get()
                    move(address, flat_line + inner * row_bytes, indices_line + inner * (8 * depth))
                    # Hidden, as LLVM would multiply by the stride in each step.
                    place.set(code.hide(address + p["inner_bytes"]))
            else:
                move(part, flat + position * row_bytes, indices + position * (8 * depth))
        table.set(part + p["outer_bytes"])
        first.set(code.number(0))
        here.set(line + count)
    return code.finish()
