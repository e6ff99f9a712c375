"""Attention by machine code: heads as an axis of their own or packed side by side, with strides as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, sqrt

import numpy as np

from hetero_cpu.machine.arithmetic import emit_exponential_of_negative
from hetero_cpu.machine.calls import Array, NativeCall, address_of, bits_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width, name_fields
from hetero_cpu.machine.memory import align
from hetero_cpu.machine.terms import Number
from hetero_cpu.operators.batched import StridedTile, call_strided_tile, emit_turned_panel
from hetero_cpu.operators.images import emit_copy
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import cut_products
from hetero_cpu.symbols.arrays import broadcast, lay_empty
from hetero_cpu.symbols.sizes import is_open, pays

PARAMETERS = (
    "q", "q_batch", "q_head", "q_step", "k", "k_batch", "k_head", "k_step", "v", "v_batch", "v_head", "v_step",
    "y", "y_batch", "y_head", "y_step", "mask", "mask_batch", "mask_head", "mask_step", "heads", "keys", "size", "value_size", "scale",
    "blocks", "units", "units_of_chunk", "scratch", "scratch_worker", "scores", "masks", "edges", "last_rows",
)  # fmt: skip
"""Addresses, strides in bytes and counts; `scale`: its bits; `size` of a query, `value_size` of a value; a unit is a block of
queries of one head; `scores`, `masks` and `edges` begin there in the working memory of a worker."""
_ROW_ENDS = ("", "_batch", "_head", "_step", "_rows", "_row_bytes")
CACHE_PARAMETERS = (
    *(f"{source}_{key}{end}" for key in "kv" for source in ("past", "new") for end in _ROW_ENDS), "past_k_bytes", "past_v_bytes",
)  # fmt: skip
"""Further fields if a head's keys and values are first joined from past and new ones, as rows; a single piece is a row.

`past_k_bytes` and `past_v_bytes` are those of a head. If the past keys lie in their places already, they have no rows to be copied.
"""

_LOWEST = float(np.finfo(np.float32).min)
# Keys of a tile beside one or two vectors of queries, by the elements of a vector.
_KEYS = {(16, 1): (14,), (16, 2): (14, 11), (8, 1): (8,), (8, 2): (6,)}


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The numbers compiled in: vectors of queries in a block, queries of the last block (0: a number of the call), and the keys of a tile.

    `mask`: empty, a "number" for each key, or "vectors" for each query and key.
    """

    vectors: int
    is_one_block: bool
    last_rows: int
    keys: int
    value_vectors: int
    """The vectors of a whole value; the last of them is masked where `is_masked`."""
    is_masked: bool
    mask: str
    appends: bool = False
    """Whether keys and values are copied together from the past ones and the new ones, by the unit that reads them."""
    may_be_few: bool = False
    """Whether a call may have fewer keys than a tile: these are computed singly."""


def choose_attention_shape(
    queries: int, keys: int, value_size: int, mask: str, width: int, *, needs_one_block: bool = False
) -> AttentionShape:
    """Returns the shape for numbers of queries and keys.

    Whether an open number of queries is a single block is asked only if needed: otherwise the same kernel serves any number.
    """
    vectors = 2 if pays(queries, width + 1) else 1
    rows = vectors * width
    # The last tile of keys overlaps its predecessor.
    counts = _KEYS[width, vectors]
    # The same kernel takes any open number of keys.
    tile = counts[0] if is_open(keys) else min(keys, min(counts, key=lambda count: ceil(keys / count) * (count + 1)))
    blocks = -(-queries // rows)
    last_rows = 0 if is_open(queries) else queries - (blocks - 1) * rows
    is_one_block = (needs_one_block or not is_open(queries)) and bool(queries <= rows)
    values, may_be_few = (ceil(value_size / width), value_size % width != 0), is_open(keys) and tile > 1
    return AttentionShape(vectors, is_one_block, last_rows, tile, *values, mask, may_be_few=may_be_few)


def _emit(name: str, width: int, shape: AttentionShape) -> Code:
    code, p, chunk, worker = begin_kernel(name, width, (*PARAMETERS, *CACHE_PARAMETERS) if shape.appends else PARAMETERS)
    emitter = _Emitter(code, p, shape, p["scratch"] + worker * p["scratch_worker"])
    with code.visit_chunk(chunk, p["units_of_chunk"], p["units"]) as unit:
        line, block = unit // p["blocks"], unit % p["blocks"]
        batch, head = line // p["heads"], line % p["heads"]
        query = block * (shape.vectors * width)
        arrays = ("q", "k", "v", "y", "mask", *(("past_k", "new_k", "past_v", "new_v") if shape.appends else ()))
        places = {key: p[key] + batch * p[f"{key}_batch"] + head * p[f"{key}_head"] for key in arrays}
        places |= {key: places[key] + query * p[f"{key}_step"] for key in ("q", "y", "mask")}
        full_rows = shape.vectors * width
        if shape.is_one_block:
            emitter.emit_block(places, shape.last_rows or p["last_rows"])
        elif shape.last_rows:
            is_last = block.equals(p["blocks"] - 1)
            code.emit_either(is_last, lambda rows: emitter.emit_block(places, rows), shape.last_rows, full_rows)
        else:
            # The same code for all blocks: an open number of queries comes with a compilation that is waited for.
            last_or_full = block.equals(p["blocks"] - 1).choose(p["last_rows"], code.number(full_rows))
            emitter.emit_block(places, last_or_full)
    return code.finish()


class _Emitter:
    """The values that the blocks of one kernel share."""

    def __init__(self, code: Code, numbers: dict[str, Number], shape: AttentionShape, scratch: Number) -> None:
        self._code, self._p, self._shape, self._panel = code, numbers, shape, scratch
        self._scores, self._masks, self._edges = (scratch + numbers[key] for key in ("scores", "masks", "edges"))

    def emit_block(self, places: dict[str, Number], rows: Number | int) -> None:
        """Emits attention of `rows` queries, at places of the head."""
        vectors = -(-rows // self._code.width) if isinstance(rows, int) else self._shape.vectors
        if self._shape.appends:
            self._emit_append(places, "k")
        self._emit_scores(places, rows, vectors)
        self._emit_softmax(vectors)
        if self._shape.appends:
            self._emit_append(places, "v")
        self._emit_values(places, rows, vectors)

    def _emit_append(self, places: dict[str, Number], key: str) -> None:
        """Writes all keys or values of the head."""
        code, p, target = self._code, self._p, places[key]
        for source in (f"past_{key}", f"new_{key}"):
            row_bytes = p[f"{source}_row_bytes"]
            with code.loop(0, p[f"{source}_rows"]) as row:
                emit_copy(code, target + row * row_bytes, places[source] + row * p[f"{source}_step"], row_bytes)
            if source.startswith("past"):
                target = target + p[f"{source}_bytes"]

    def _emit_scores(self, places: dict[str, Number], rows: Number | int, vectors: int) -> None:
        """Writes scale * k q^T + mask turned, and the largest of each query."""
        code, p, shape = self._code, self._p, self._shape
        row_bytes = vectors * code.width * FLOAT_BYTES
        columns = code.number(rows)
        emit_turned_panel(code, places["q"], p["q_step"], p["size"], columns, self._panel, vectors, p["scale"])
        if shape.mask == "vectors":
            emit_turned_panel(code, places["mask"], p["mask_step"], p["keys"], columns, self._masks, vectors)
        for j in range(vectors):
            # Not minus infinity, which scores have if the mask hides every key: their weights become 0 instead of NaN.
            code.store(self._edges, code.constant(_LOWEST), j * code.width * FLOAT_BYTES)

        def walk(count: int) -> None:
            tile = StridedTile(count, vectors, start=shape.mask, finish="maximum")
            with code.loop(0, p["keys"], count) as first:
                key = first.at_most(p["keys"] - count)
                masks, mask_step = (places["mask"], FLOAT_BYTES) if shape.mask == "number" else (self._masks, row_bytes)
                call_strided_tile(
                    code, tile, x=places["k"] + key * p["k_step"], x_step=p["k_step"], depth=p["size"], w=self._panel, w_step=row_bytes,
                    y=self._scores + key * row_bytes, y_step=row_bytes, start=masks + key * mask_step, start_step=mask_step,
                    edge=self._edges,
                )  # fmt: skip

        if shape.may_be_few:
            code.emit_either(p["keys"] < shape.keys, walk, 1, shape.keys)
        else:
            walk(shape.keys)

    def _emit_softmax(self, vectors: int) -> None:
        """Turns scores into e**(score - largest), and the largest into 1 / sum."""
        code, keys = self._code, self._p["keys"]
        vector_bytes = code.width * FLOAT_BYTES
        edges = [code.load(self._edges, j * vector_bytes) for j in range(vectors)]
        totals = [code.variable(code.constant(0.0)) for _ in range(vectors)]
        with code.loop(0, keys) as key:
            place = self._scores + key * (vectors * vector_bytes)
            for j, (edge, total) in enumerate(zip(edges, totals, strict=True)):
                exponentials = emit_exponential_of_negative(code, code.load(place, j * vector_bytes) - edge)
                code.store(place, exponentials, j * vector_bytes)
                total.set(total.get() + exponentials)
        for j, total in enumerate(totals):
            # The largest score alone adds 1, if there is any.
            code.store(self._edges, 1.0 / total.get().at_least(1.0), j * vector_bytes)

    def _emit_values(self, places: dict[str, Number], rows: Number | int, vectors: int) -> None:
        """Writes the sums of values."""
        code, p, shape = self._code, self._p, self._shape
        vector_bytes = code.width * FLOAT_BYTES
        most, together = _choose_value_tile(
            rows if isinstance(rows, int) else vectors * code.width, shape.value_vectors, code.width
        )
        full, rest = divmod(shape.value_vectors, together)
        if shape.is_masked and not rest:
            full, rest = full - 1, together

        def call(m: Number, pixels: int, offset: Number, count: int, *, is_masked: bool) -> None:
            tile = StridedTile(pixels, count, is_turned=True, is_masked=is_masked, finish="factor")
            call_strided_tile(
                code, tile, x=self._scores + m * FLOAT_BYTES, x_step=vectors * vector_bytes, depth=p["keys"], w=places["v"] + offset,
                w_step=p["v_step"], y=places["y"] + m * p["y_step"] + offset, y_step=p["y_step"], edge=self._edges + m * FLOAT_BYTES,
                last=p["value_size"] % code.width,
            )  # fmt: skip

        def walk_tiles(rows: Number, pixels: int, offset: Number, count: int, *, is_masked: bool) -> None:
            # The last tile overlaps its predecessor.
            with code.loop(0, rows, pixels) as m:
                call(m.at_most(rows - pixels), pixels, offset, count, is_masked=is_masked)

        def walk_many(rows: Number, offset: Number, count: int, *, is_masked: bool) -> None:
            whole = vectors * code.width
            size = -(-whole // -(-whole // most))
            walk_size = partial(walk_tiles, rows, offset=offset, count=count, is_masked=is_masked)
            if size == most or shape.is_one_block:
                walk_size(most)
            else:
                # Most blocks are whole: their tiles overlap least.
                code.emit_either(rows.equals(whole), walk_size, size, most)

        def walk(offset: Number, count: int, *, is_masked: bool) -> None:
            if not isinstance(rows, int):
                with code.either(rows < most) as (few, many):
                    with few, code.loop(0, rows) as m:
                        call(m, 1, offset, count, is_masked=is_masked)
                    with many:
                        walk_many(rows, offset, count, is_masked=is_masked)
                return
            tiles = -(-rows // most)
            size = -(-rows // tiles)
            long = rows - tiles * (size - 1)
            for begin, number, pixels in ((0, long, size), (long * size, tiles - long, size - 1)):
                with code.loop(begin, begin + number * pixels, max(1, pixels)) as m:
                    if number:
                        call(m, pixels, offset, count, is_masked=is_masked)

        with code.loop(0, full) as block:
            walk(block * (together * vector_bytes), together, is_masked=False)
        if rest:
            walk(code.number(full * together * vector_bytes), rest, is_masked=shape.is_masked)


def _choose_value_tile(rows: int, vectors: int, width: int) -> tuple[int, int]:
    """Returns the most queries of a tile and the vectors of values that its registers hold."""
    candidates = ((14, 2), (6, 4), (3, 7), (1, 8)) if width == 16 else ((6, 2), (3, 3), (1, 8))

    def count_cycles(tile: tuple[int, int]) -> float:
        """Returns the cycles for one key: two products or two loads in each, and each sum waits for its predecessor."""
        tiles, together = -(-rows // tile[0]), tile[1]
        size = -(-rows // tiles)
        return -(-vectors // together) * tiles * max(size * together / 2, (size + together) / 2, 4.0)

    return min(((most, min(together, vectors)) for most, together in candidates), key=count_cycles)


def find_cache_numbers(kernel: str) -> tuple[dict[str, int], ...]:
    """Returns the positions of the numbers of keys and values in a call, if the kernel of this name appends to them; else nothing.

    `past` and `whole` are the addresses of the past rows and of all rows, with `_batch` and `_head`; `past_rows` are copied; a head has
    `past_bytes`.
    """
    if not kernel.startswith("attention_") or "_appends" not in kernel:
        return ()
    place = {name: position for position, name in enumerate((*PARAMETERS, *CACHE_PARAMETERS))}
    ends = ("", "_batch", "_head")
    return tuple(
        {f"past{end}": place[f"past_{key}{end}"] for end in (*ends, "_rows", "_bytes")}
        | {f"whole{end}": place[f"{key}{end}"] for end in ends}
        for key in "kv"
    )


_ATTRIBUTES = {"is_causal", "kv_num_heads", "q_num_heads", "scale"}


def plan_native_attention(site: Site) -> Recipe | None:
    """Returns the recipe of softmax(scale q k^T + mask) v, with caches or without; soft caps, lengths and shared heads are left to others.

    Source: ONNX Attention-24.
    """
    node = site.node
    split, appends = _find_split(site), site.has_input(4)
    has_caches = [bool(name) for name in (*node.inputs[4:6], *node.outputs[1:3])]
    if split is None or not set(node.attributes) <= _ATTRIBUTES or node.attributes.get("is_causal", 0):
        return None
    # Both caches, or neither; no lengths.
    if any(has_caches) != (has_caches == [True] * 4) or any((*node.inputs[6:], *node.outputs[3:])):
        return None
    if not site.is_float32(*filter(None, node.inputs)):
        return None
    operands = [site.prototypes[name] for name in node.inputs[:3]]
    caches = [site.prototypes[name] for name in node.inputs[4:6]] if appends else []
    joined = [_join(past.shape, fresh.shape) for past, fresh in zip(caches, operands[1:], strict=False)]
    q, k, v = (_split_heads(array, split) for array in (operands[0], *(joined or operands[1:])))
    batch, heads, queries, size = q.shape
    keys, value_size = k.shape[2], v.shape[3]
    if k.shape != (batch, heads, keys, size) or v.shape[:3] != (batch, heads, keys):
        return None
    if any(array.shape[3] > 1 and array.strides[3] != FLOAT_BYTES for array in (q, k, v)):
        return None
    if any(array.strides[3] != FLOAT_BYTES for array in (*operands[1:], *caches) if appends):
        return None
    full_shape = (batch, heads, queries, keys)
    kind = ""
    if site.has_input(3):
        mask = site.prototypes[node.inputs[3]]
        if mask.ndim < 2 or mask.shape[-1] != keys or (keys > 1 and mask.strides[-1] != FLOAT_BYTES):
            return None
        kind = "number" if broadcast(mask, full_shape).strides[2] == 0 or queries == 1 else "vectors"
    shape = choose_attention_shape(queries, keys, value_size, kind, find_width(), needs_one_block=appends)
    if appends:
        # If several units read a head, no unit could say when its keys are there.
        if not shape.is_one_block:
            return None
        shape = replace(shape, appends=True)
    kernel = Kernel(f"attention_{name_fields(shape)}", partial(_emit, shape=shape))
    rows = shape.vectors * find_width()
    row_bytes = rows * FLOAT_BYTES
    scores = align(size * row_bytes)
    masks = scores + align(keys * row_bytes)
    edges = masks + (align(keys * row_bytes) if kind == "vectors" else 0)
    # A line between workers, so that no worker waits for the writes of its neighbour.
    worker_bytes = edges + align(row_bytes) + 128
    blocks = -(-queries // rows)
    units = batch * heads * blocks
    # Vectors of queries are computed whole.
    units_of_chunk = cut_products(units, units * rows * keys * (size + value_size), site.workers)
    scale = float(node.attributes.get("scale", 1 / sqrt(size)))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        operands = (reads[0], *(writes[1:] or reads[1:3]), writes[0])
        arrays = {key: _split_heads(array, split) for key, array in zip("qkvy", operands, strict=True)}
        if kind:
            arrays["mask"] = broadcast(reads[3], full_shape)
        numbers = {
            "heads": heads, "keys": keys, "size": size, "value_size": value_size, "scale": bits_of(scale), "blocks": blocks,
            "units": units, "units_of_chunk": units_of_chunk, "scratch": address_of(scratch), "scratch_worker": worker_bytes,
            "scores": scores, "masks": masks, "edges": edges, "last_rows": queries - (blocks - 1) * rows,
        }  # fmt: skip
        for key, array in arrays.items():
            numbers.update(zip((f"{key}{end}" for end in _ROW_ENDS), (address_of(array), *array.strides[:3]), strict=False))
        if appends:
            for key, past, fresh in zip("kv", reads[-2:], reads[1:3], strict=True):
                numbers.update(_list_rows(f"past_{key}", past) | _list_rows(f"new_{key}", fresh))
                numbers[f"past_{key}_bytes"] = past.shape[2] * past.shape[3] * FLOAT_BYTES
        row = tuple(numbers.get(key, 0) for key in ((*PARAMETERS, *CACHE_PARAMETERS) if appends else PARAMETERS))
        return [NativeCall(kernel, row, -(-units // units_of_chunk), (*reads, *writes, scratch))]

    return Recipe(tuple(name for name in node.inputs if name), bind, site.workers * worker_bytes, kernels=(kernel,))


def _list_rows(name: str, array: Array) -> dict[str, int]:
    """Returns the rows of the keys or values of each head, a single row if they are contiguous."""
    batch, head, step, _ = array.strides
    count, row_bytes = array.shape[2], array.shape[3] * FLOAT_BYTES
    rows, row_bytes = (1, count * row_bytes) if step == row_bytes else (count, row_bytes)
    numbers = (address_of(array), batch, head, step, rows, row_bytes)
    return {f"{name}{end}": number for end, number in zip(_ROW_ENDS, numbers, strict=True)}


def _join(past: tuple[int, ...], fresh: tuple[int, ...]) -> Array:
    """Returns an array that is laid out as all keys or values. Raises: ValueError."""
    if len(past) != len(fresh) or past[:2] != fresh[:2] or past[3:] != fresh[3:]:
        raise ValueError(f"a cache of {past} does not go with {fresh}")
    joined: Array = lay_empty((*past[:2], past[2] + fresh[2], *past[3:]), np.float32)
    return joined


def _find_split(site: Site) -> int | None:
    """Returns the heads of packed inputs, 0 if heads are an axis, None if the step does not apply; caches go with the latter."""
    ranks = {len(site.shape(name)) for name in site.node.inputs[:3]}
    if site.has_input(4):
        return 0 if ranks == {4} else None
    heads, others = (int(site.node.attributes.get(name, 0)) for name in ("q_num_heads", "kv_num_heads"))
    if ranks == {4}:
        return 0
    return heads if ranks == {3} and heads == others and heads > 0 else None


def _split_heads(array: Array, heads: int) -> Array:
    """Returns an array as (batch, heads, steps, size)."""
    if not heads:
        return array
    batch, steps, width = array.shape
    split: Array = array.reshape(batch, steps, heads, width // heads).transpose(0, 2, 1, 3)
    return split
