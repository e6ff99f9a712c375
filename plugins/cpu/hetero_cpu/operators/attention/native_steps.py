"""Attention by machine code: heads as an axis of their own or packed side by side, with strides as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from hetero_cpu.machine.chunks import cut_products
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.machine.native import Array, NativeCall, address_of, bits_of, native_step
from hetero_cpu.open.arrays import broadcast
from hetero_cpu.open.choices import pays
from hetero_cpu.operators.attention.kernel import CACHE_PARAMETERS, PARAMETERS, choose_attention_shape, make_attention
from hetero_cpu.operators.attention.numpy_steps import find_split, is_plain_attention, join_caches, split_heads
from hetero_cpu.planning.arena import align
from hetero_cpu.planning.recipe import Recipe, Site

_FLOAT_BYTES = 4
# Keys and values of this size would leave no room in the second cache of most processors.
_FAR_BYTES = 1 << 20


@native_step("Attention")
def plan_native_attention(site: Site) -> Recipe | None:
    """Returns the recipe of softmax(scale q k^T + mask) v, with caches or without; soft caps, lengths and shared heads are left to others.

    Source: ONNX Attention-24.
    """
    node = site.node
    split = find_split(site)
    if split is None or not is_plain_attention(site) or site.group.epilogue:
        return None
    appends = site.has_input(4)
    operands = [site.prototypes[name] for name in node.inputs[:3]]
    q, k, v = (split_heads(array, split) for array in (operands[0], *join_caches(site)))
    batch, heads, queries, size = q.shape
    keys, value_size = k.shape[2], v.shape[3]
    if k.shape != (batch, heads, keys, size) or v.shape[:3] != (batch, heads, keys) or 0 in (*q.shape, keys, value_size):
        return None
    if any(array.shape[3] > 1 and array.strides[3] != _FLOAT_BYTES for array in (q, k, v)):
        return None
    caches = [site.prototypes[name] for name in node.inputs[4:6]] if appends else []
    if appends and any(array.size == 0 or array.strides[3] != _FLOAT_BYTES for array in (*operands[1:], *caches)):
        return None
    full_shape = (batch, heads, queries, keys)
    kind = ""
    if site.has_input(3):
        mask = site.prototypes[node.inputs[3]]
        if mask.ndim < 2 or mask.shape[-1] != keys or (keys > 1 and mask.strides[-1] != _FLOAT_BYTES):
            return None
        kind = "number" if broadcast(mask, full_shape).strides[2] == 0 or queries == 1 else "vectors"
    shape = choose_attention_shape(queries, keys, value_size, kind, find_width(), needs_one_block=appends)
    if appends:
        # Where several units read a head, none could say when its keys are there.
        if not shape.is_one_block:
            return None
        is_far = pays(batch * heads * keys * (size + value_size) * _FLOAT_BYTES, _FAR_BYTES)
        shape = replace(shape, appends=True, is_far=is_far and size % find_width() == value_size % find_width() == 0)
    kernel = make_attention(shape)
    row_bytes = shape.vectors * find_width() * _FLOAT_BYTES
    scores = align(size * row_bytes)
    masks = scores + align(keys * row_bytes)
    edges = masks + (align(keys * row_bytes) if kind == "vectors" else 0)
    # A line between workers, so that none waits for what another one writes.
    near = edges + align(row_bytes)
    worker_bytes = near + (align(keys * max(size, value_size) * _FLOAT_BYTES) if shape.is_far else 0) + 128
    blocks = -(-queries // (shape.vectors * find_width()))
    units = batch * heads * blocks
    # Vectors of queries are computed whole.
    work = units * shape.vectors * find_width() * keys * (size + value_size)
    units_of_chunk = cut_products(units, work, site.workers)
    scale = float(node.attributes.get("scale", 1 / sqrt(size)))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        arrays = {key: split_heads(array, split) for key, array in zip("qkv", (reads[0], *(writes[1:] or reads[1:3])), strict=True)}
        arrays["y"] = split_heads(writes[0], split)
        if kind:
            arrays["mask"] = broadcast(reads[3], full_shape)
        numbers = {
            "heads": heads, "keys": keys, "size": size, "value_size": value_size, "scale": bits_of(scale), "blocks": blocks,
            "units": units, "units_of_chunk": units_of_chunk, "scratch": address_of(scratch), "scratch_worker": worker_bytes,
            "scores": scores, "masks": masks, "edges": edges, "near": near,
            "last_rows": queries - (blocks - 1) * shape.vectors * find_width(),
        }  # fmt: skip
        for key, array in arrays.items():
            names = (key, f"{key}_batch", f"{key}_head", f"{key}_query" if key == "mask" else f"{key}_step")
            numbers.update(zip(names, (address_of(array), *array.strides[:3]), strict=True))
        if appends:
            for key, past, fresh in zip("kv", reads[-2:], reads[1:3], strict=True):
                numbers.update(_list_rows(f"past_{key}", past) | _list_rows(f"new_{key}", fresh))
                numbers[f"past_{key}_bytes"] = past.shape[2] * past.shape[3] * _FLOAT_BYTES
        row = tuple(numbers.get(key, 0) for key in ((*PARAMETERS, *CACHE_PARAMETERS) if appends else PARAMETERS))
        return [NativeCall(kernel, row, -(-units // units_of_chunk), (*reads, *writes, scratch))]

    return Recipe(tuple(name for name in node.inputs if name), bind, site.workers * worker_bytes, kernels=(kernel,))


def _list_rows(name: str, array: Array) -> dict[str, int]:
    """Returns where the keys or values of each head lie, as one row where they do so in one piece."""
    batch, head, step, _ = array.strides
    count, row_bytes = array.shape[2], array.shape[3] * _FLOAT_BYTES
    rows, row_bytes = (1, count * row_bytes) if step == row_bytes else (count, row_bytes)
    return {
        name: address_of(array), f"{name}_batch": batch, f"{name}_head": head, f"{name}_step": step, f"{name}_rows": rows,
        f"{name}_row_bytes": row_bytes,
    }  # fmt: skip
