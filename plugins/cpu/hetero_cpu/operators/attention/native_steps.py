"""Attention by machine code: heads as an axis of their own or packed side by side, with strides as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from hetero_cpu.machine.chunks import cut_products
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.machine.native import Array, NativeCall, address_of, bits_of, native_step
from hetero_cpu.open.arrays import broadcast, lay_empty
from hetero_cpu.open.choices import pays
from hetero_cpu.operators.attention.kernel import CACHE_PARAMETERS, PARAMETERS, choose_attention_shape, make_attention
from hetero_cpu.planning.arena import align
from hetero_cpu.planning.recipe import Recipe, Site

_ATTRIBUTES = {"is_causal", "kv_num_heads", "q_num_heads", "scale"}
_FLOAT_BYTES = 4
# Keys and values of this size would leave no room in the second cache of most processors.
_FAR_BYTES = 1 << 20


@native_step("Attention")
def plan_native_attention(site: Site) -> Recipe | None:
    """Returns the recipe of softmax(scale q k^T + mask) v, with caches or without; soft caps, lengths and shared heads are left to others.

    Source: ONNX Attention-24.
    """
    node = site.node
    split = _find_split(site)
    if split is None or not _is_plain_attention(site) or site.group.epilogue:
        return None
    appends = site.has_input(4)
    operands = [site.prototypes[name] for name in node.inputs[:3]]
    q, k, v = (_split_heads(array, split) for array in (operands[0], *_join_caches(site)))
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
        arrays = {
            key: _split_heads(array, split) for key, array in zip("qkv", (reads[0], *(writes[1:] or reads[1:3])), strict=True)
        }
        arrays["y"] = _split_heads(writes[0], split)
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


def _is_plain_attention(site: Site) -> bool:
    """Says whether a node is the formula alone: float32, without soft caps, lengths and a causal mask; with both caches or none."""
    node = site.node
    has_caches = [bool(name) for name in (*node.inputs[4:6], *node.outputs[1:3])]
    return (
        set(node.attributes) <= _ATTRIBUTES
        and not node.attributes.get("is_causal", 0)
        and (has_caches == [True] * 4 or not any(has_caches))
        and not any((*node.inputs[6:], *node.outputs[3:]))
        and site.is_float32(*(name for name in node.inputs if name))
    )


def _join_caches(site: Site) -> tuple[Array, Array]:
    """Returns arrays that lie as all keys and values do: the given ones, or where there are caches both in one. Raises: ValueError."""
    names = site.node.inputs
    fresh_arrays = site.prototypes[names[1]], site.prototypes[names[2]]
    if not site.has_input(4):
        return fresh_arrays
    k, v = (_join_shapes(site.shape(past), fresh.shape) for past, fresh in zip(names[4:6], fresh_arrays, strict=True))
    return lay_empty(k, np.float32), lay_empty(v, np.float32)


def _join_shapes(past: tuple[int, ...], fresh: tuple[int, ...]) -> tuple[int, ...]:
    if len(past) != len(fresh) or past[:2] != fresh[:2] or past[3:] != fresh[3:]:
        raise ValueError(f"a cache of {past} does not go with {fresh}")
    return (*past[:2], past[2] + fresh[2], *past[3:])


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
