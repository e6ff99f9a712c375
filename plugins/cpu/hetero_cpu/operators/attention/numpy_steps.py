"""Attention: products of queries and keys, softmax and products with the values, a tile of scores at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import sqrt

import numpy as np

from hetero_core.kernels.products import matmul
from hetero_cpu.open.arrays import broadcast, lay_empty
from hetero_cpu.planning.recipe import Array, Call, Choice, Recipe, Site, step
from hetero_cpu.planning.scratch import cut_scratch, measure_scratch

_ATTRIBUTES = {"is_causal", "kv_num_heads", "q_num_heads", "scale"}
# Bytes of scores at a time: they stay in the second cache from the first product to the last.
_TILE = 1 << 19
_LOWEST, _ONE = np.finfo(np.float32).min, np.float32(1)


@step("Attention")
def plan_attention(site: Site) -> Choice | None:
    """Returns the recipe of softmax(scale q k^T + mask) v; soft caps, lengths and shared heads are left to the toolkit.

    Source: ONNX Attention-24. The sum divides the products with v, which are fewer than the scores.
    """
    node = site.node
    if not is_plain_attention(site):
        return None
    has_mask = site.has_input(3)
    split = find_split(site)
    if split is None:
        return None
    q, k, v = (split_heads(array, split) for array in (site.prototypes[node.inputs[0]], *join_caches(site)))
    batch, heads, queries, size = q.shape
    keys = k.shape[2]
    if k.shape != (batch, heads, keys, size) or v.shape[:3] != (batch, heads, keys):
        return None
    mask_shape = site.shape(node.inputs[3]) if has_mask else ()
    if has_mask and (len(mask_shape) < 2 or mask_shape[-1] != keys):
        return None
    scale = np.float32(node.attributes.get("scale", 1 / sqrt(size)))
    rows = min(queries, max(1, _TILE // (keys * 4)))
    together = max(1, min(heads, _TILE // (queries * keys * 4))) if rows == queries else 1
    shapes = [(together * rows * keys,), (together * rows,)]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        q, k, v = (split_heads(array, split) for array in (reads[0], *(writes[1:] or reads[1:3])))
        y = split_heads(writes[0], split)
        mask = broadcast(reads[3], (batch, heads, queries, keys)) if has_mask else None
        scores, edges = cut_scratch(scratch, shapes)
        calls: list[Call] = []
        for present, past, fresh in zip(writes[1:], reads[-2:], reads[1:3], strict=False):
            calls += [partial(np.copyto, present[:, :, : past.shape[2]], past)]
            calls += [partial(np.copyto, present[:, :, past.shape[2] :], fresh)]
        for image in range(batch):
            for head in range(0, heads, together):
                for row in range(0, queries, rows):
                    part = (image, slice(head, min(head + together, heads)), slice(row, min(row + rows, queries)))
                    count, height = part[1].stop - head, part[2].stop - row
                    tile = scores[: count * height * keys].reshape(count, height, keys)
                    edge = edges[: count * height].reshape(count, height, 1)
                    turned = k[part[:2]].transpose(0, 2, 1)
                    calls += [partial(matmul, q[part], turned, tile)]
                    calls += _bind_softmax(tile, edge, scale, None if mask is None else mask[part])
                    calls += [partial(matmul, tile, v[part[:2]], y[part]), partial(np.divide, y[part], edge, y[part])]
        return calls

    return Recipe(tuple(name for name in node.inputs if name), bind, measure_scratch(shapes))


def _bind_softmax(tile: Array, edge: Array, scale: np.float32, mask: Array | None) -> list[Call]:
    """Returns the calls that make exp(scale * tile + mask - max) of the tile, and of `edge` what the products are divided by."""
    calls: list[Call] = [] if scale == 1 else [partial(np.multiply, tile, scale, tile)]
    if mask is not None:
        calls.append(partial(np.add, tile, mask, tile))
    calls.append(partial(np.max, tile, axis=-1, keepdims=True, out=edge))
    if mask is not None:
        # A query that may see no key has minus infinity everywhere: it gets exp(-inf - lowest) = 0, and 0 / 1.
        calls.append(partial(np.maximum, edge, _LOWEST, out=edge))
    calls += [
        partial(np.subtract, tile, edge, tile),
        partial(np.exp, tile, tile),
        partial(np.sum, tile, axis=-1, keepdims=True, out=edge),
    ]
    if mask is not None:
        # Elsewhere the largest score alone adds 1.
        calls.append(partial(np.maximum, edge, _ONE, out=edge))
    return calls


def is_plain_attention(site: Site) -> bool:
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


def join_caches(site: Site) -> tuple[Array, Array]:
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


def find_split(site: Site) -> int | None:
    """Returns the heads of packed inputs, 0 where heads are an axis, None where the step does not apply; caches go with the latter."""
    ranks = {len(site.shape(name)) for name in site.node.inputs[:3]}
    if site.has_input(4):
        return 0 if ranks == {4} else None
    heads, others = (int(site.node.attributes.get(name, 0)) for name in ("q_num_heads", "kv_num_heads"))
    if ranks == {4}:
        return 0
    return heads if ranks == {3} and heads == others and heads > 0 else None


def split_heads(array: Array, heads: int) -> Array:
    """Returns an array as (batch, heads, steps, size)."""
    if not heads:
        return array
    batch, steps, width = array.shape
    split: Array = array.reshape(batch, steps, heads, width // heads).transpose(0, 2, 1, 3)
    return split
