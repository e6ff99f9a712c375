"""Attention on a card: which nodes of a network one kernel computes, and how it is launched.

`take_attention` gives such nodes the plugin's domain. Where a card compiles nothing, the formula stands in for the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, narrow, widen
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_core.records import record
from hetero_core.transforms.rewrite import Replacement, replace_nodes
from hetero_cupy.attention_text import LARGEST_HEAD, AttentionForm, choose_tile, write_attention
from hetero_cupy.conversions import STORAGE
from hetero_cupy.kernel_texts import THREADS
from hetero_cupy.operators import DOMAIN
from hetero_cupy.runtime import Card, Launch
from hetero_cupy.value_types import find_shaped_type, name_dtype

_MOST_BLOCKS = 1 << 16
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "left_window_size": (-1,),
    "right_window_size": (-1,),
    "softcap": (0.0,),
    "softmax_precision": (1,),
}
"""Attributes -> the values with which they change nothing."""
_TAKEN = frozenset({"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale"})


def take_attention(network: Network) -> Network:
    """Returns the network with the Attention nodes in the plugin's domain that the kernel computes.

    These have one output, no caches, no soft cap, no windows and no lengths; heads of a known size; a mask as long as the keys.
    """

    def find(node: Node) -> Replacement | None:
        if node.domain or node.op_type != "Attention" or not _is_formula(node):
            return None
        types = [find_shaped_type(network, name) for name in node.inputs[:4] if name]
        if any(operand_type is None for operand_type in types):
            return None
        q, k, v, *masks = (operand_type for operand_type in types if operand_type is not None)
        if not q.dtype == k.dtype == v.dtype or q.dtype not in STORAGE:
            return None
        if find_sizes(node, q, k, v) is None or (masks and not _is_mask(masks[0], k)):
            return None
        attributes = {name: value for name, value in node.attributes.items() if name in _TAKEN - {"qk_matmul_output_mode"}}
        return Replacement((replace(node, domain=DOMAIN, attributes=attributes),))

    return replace_nodes(network, find)


def _is_formula(node: Node) -> bool:
    if len(node.inputs) < 3 or not all(node.inputs[:3]) or any(node.inputs[4:]) or any(node.outputs[1:]):
        return False
    return all(name in _TAKEN or value in _PLAIN.get(name, ()) for name, value in node.attributes.items())


def find_sizes(node: Node, q: TensorType, k: TensorType, v: TensorType) -> tuple[int, int] | None:
    """Returns the elements of a head of q and k, and of v; None where they are unknown or too many, or heads do not fit."""
    shapes = [operand.shape or () for operand in (q, k, v)]
    is_packed = len(shapes[0]) == 3
    if {len(shape) for shape in shapes} not in ({3}, {4}):
        return None
    few = node.attributes.get("kv_num_heads")
    heads = _list_sizes((node.attributes.get("q_num_heads"), few, few) if is_packed else tuple(shape[1] for shape in shapes))
    widths = _list_sizes(tuple(shape[-1] for shape in shapes))
    if heads is None or widths is None or heads[0] % heads[1] or heads[1] != heads[2]:
        return None
    if is_packed and any(width % count for width, count in zip(widths, heads, strict=True)):
        return None
    sizes = [width // count if is_packed else width for width, count in zip(widths, heads, strict=True)]
    return (sizes[0], sizes[2]) if sizes[0] == sizes[1] and max(sizes) <= LARGEST_HEAD else None


def _list_sizes(dimensions: tuple[Any, ...]) -> list[int] | None:
    """Returns the dimensions where each of them is a number above 0."""
    sizes = [size for size in dimensions if isinstance(size, int) and size > 0]
    return sizes if len(sizes) == len(dimensions) else None


def _is_mask(mask: TensorType, k: TensorType) -> bool:
    shape, keys = mask.shape or (), (k.shape or ())[-2]
    return mask.dtype in (*STORAGE, "bool") and 2 <= len(shape) <= 4 and keys is not None and shape[-1] == keys


@record(frozen=True, slots=True)
class _Heads:
    """An array as (batch, heads, steps, elements): its sizes, and the elements from one to the next along each axis."""

    array: Array
    sizes: tuple[int, int, int, int]
    steps: tuple[int, int, int, int]


class AttentionOperator:
    """Runs Attention on a card; compiles each form once."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._compiled: dict[AttentionForm, Launch | None] = {}

    def function(
        self,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None = None,
        *,
        is_causal: int = 0,
        kv_num_heads: int | None = None,
        q_num_heads: int | None = None,
        scale: float | None = None,
    ) -> Array:
        """Returns softmax(scale q k^T + mask) v. Arrays are read where they lie, whatever their strides. Source: ONNX Attention-24."""
        few = split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
        many = split_heads(q, q_num_heads)
        (batch, heads, queries, size), keys, value_size = many.sizes, few[0].sizes[2], few[1].sizes[3]
        if few[0].sizes != (batch, few[0].sizes[1], keys, size) or few[1].sizes[:3] != few[0].sizes[:3]:
            raise ValueError(f"q has the shape {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}: these do not fit")
        factor = np.float32(1 / sqrt(size) if scale is None else scale)
        shape = (batch, queries, heads * value_size) if q.ndim == 3 else (batch, heads, queries, value_size)
        form = AttentionForm(name_dtype(q), size, value_size, "" if mask is None else name_dtype(mask), bool(is_causal))
        launch = self._compile(form)
        if launch is None:
            return self._compute(many, few, mask, factor=factor, is_causal=form.is_causal, dtype=q.dtype).reshape(shape)
        y = self._card.xp.empty(shape, dtype=q.dtype)
        if not y.size:
            return y
        y_heads = split_heads(y, q_num_heads)
        band, _, _ = choose_tile(form)
        arrays = [many, *few, y_heads]
        if mask is not None:
            arrays.append(_spread(mask, (batch, heads, queries, keys)))
        groups = batch * heads
        numbers = [np.int64(groups), *map(np.int32, (heads, heads // few[0].sizes[1], queries, keys)), factor]
        steps = [np.int64(step) for operand in arrays for step in operand.steps]
        blocks = min(groups * -(-queries // band), _MOST_BLOCKS)
        launch(blocks, THREADS, (*(operand.array for operand in arrays), *numbers, *steps))
        return y

    def _compile(self, form: AttentionForm) -> Launch | None:
        if form not in self._compiled:
            text = write_attention(form)
            self._compiled[form] = self._card.compile_kernel(text.name, text.source)
        return self._compiled[form]

    def _compute(
        self, q: _Heads, few: tuple[_Heads, _Heads], mask: Array | None, *, factor: np.float32, is_causal: bool, dtype: Any
    ) -> Array:
        """Returns the formula's value, (batch, heads, queries, elements) or with heads and queries swapped as q has them."""
        xp = self._card.xp
        wide = [widen(_order(xp, operand)) for operand in (q, *few)]
        repeats = q.sizes[1] // few[0].sizes[1]
        k, v = (operand if repeats == 1 else xp.repeat(operand, repeats, axis=1) for operand in wide[1:])
        scores = xp.matmul(wide[0], xp.swapaxes(k, 2, 3)) * factor
        never = xp.full((), -np.inf, dtype=np.float32)
        if mask is not None:
            scores = xp.where(mask, scores, never) if mask.dtype.kind == "b" else scores + widen(mask)
        if is_causal:
            ones = xp.ones((q.sizes[2], k.shape[2]), dtype=bool)
            scores = xp.where(xp.tril(ones), scores, never)
        peak = xp.max(scores, axis=-1, keepdims=True)
        is_blind = peak == -np.inf
        shares = xp.exp(scores - xp.where(is_blind, xp.zeros((), dtype=np.float32), peak))
        total = xp.where(is_blind, xp.ones((), dtype=np.float32), xp.sum(shares, axis=-1, keepdims=True))
        y = narrow(xp.matmul(shares, v) / total, dtype)
        return y if q.array.ndim == 4 else xp.swapaxes(y, 1, 2)


def split_heads(x: Array, heads: int | None) -> _Heads:
    """Returns an array of (batch, heads, steps, elements), or of (batch, steps, heads * elements), as the former."""
    size = x.dtype.itemsize
    if x.ndim == 4:
        return _Heads(x, tuple(x.shape), tuple(step // size for step in x.strides))
    assert heads is not None
    (batch, count, width), (along_batch, along_rows, along) = x.shape, (step // size for step in x.strides)
    each = width // heads
    return _Heads(x, (batch, heads, count, each), (along_batch, each * along, along_rows, along))


def _order(xp: Any, projection: _Heads) -> Array:
    batch, heads, count, each = projection.sizes
    return (
        projection.array if projection.array.ndim == 4 else xp.swapaxes(projection.array.reshape(batch, count, heads, each), 1, 2)
    )


def _spread(mask: Array, sizes: tuple[int, int, int, int]) -> _Heads:
    """Returns a mask with steps of 0 along the axes over which it is spread. Raises: ValueError where it does not fit."""
    missing = 4 - mask.ndim
    if any(own not in (1, target) for own, target in zip(mask.shape, sizes[missing:], strict=True)) or mask.shape[-1] != sizes[-1]:
        raise ValueError(f"the mask has the shape {list(mask.shape)}, the scores {list(sizes)}: it cannot be spread over them")
    steps = [0] * missing + [
        0 if size == 1 else step // mask.dtype.itemsize for size, step in zip(mask.shape, mask.strides, strict=True)
    ]
    return _Heads(mask, sizes, tuple(steps))
