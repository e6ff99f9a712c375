"""GatherPacked: rows of a table in the block formats of GGUF files, restored where they are read. It runs on the host.

A format is known by its number in ggml. Blocks of 32 elements have a float16 scale and codes; those of 256 scale their scales, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import INDEX, UINT8, microsoft_kernel

# The sixteen values of IQ4_NL, times 127 by the scale. Source: ggml, ggml-common.h, kvalues_iq4nl.
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _half(blocks: Any, at: int) -> Any:
    """Returns the float16 at a place of each block, as float32 with a last axis of 1."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(codes: Any) -> Any:
    """Returns the low halves of 16 bytes, then the high halves."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _restore_q4_0(blocks: Any) -> Any:
    return _half(blocks, 0) * (_nibbles(blocks[..., 2:]).astype(np.float32) - 8)


def _restore_q5_0(blocks: Any) -> Any:
    high = np.ascontiguousarray(blocks[..., 2:6]).view(np.uint32)
    bits = (high >> np.arange(32, dtype=np.uint32) & 1).astype(np.uint8)
    return _half(blocks, 0) * ((_nibbles(blocks[..., 6:]) | bits << 4).astype(np.float32) - 16)


def _restore_q8_0(blocks: Any) -> Any:
    return _half(blocks, 0) * blocks[..., 2:].view(np.int8).astype(np.float32)


def _restore_iq4_nl(blocks: Any) -> Any:
    return _half(blocks, 0) * np.asarray(_IQ4_NL, np.float32)[_nibbles(blocks[..., 2:])]


def _restore_q5_k(blocks: Any) -> Any:
    """Eight groups of 32, each with a scale and a least value of 6 bits."""
    packed, high, codes = blocks[..., 4:16], blocks[..., 16:48], blocks[..., 48:]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1).astype(np.float32)
    least = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1).astype(np.float32)
    halves = codes.reshape((*codes.shape[:-1], 4, 1, 32))
    values = np.concatenate([halves & 15, halves >> 4], axis=-2).reshape((*codes.shape[:-1], 8, 32))
    bits = high[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    steps = (values + (bits << 4)).astype(np.float32)
    restored = (_half(blocks, 0) * scales)[..., None] * steps - (_half(blocks, 2) * least)[..., None]
    return restored.reshape((*blocks.shape[:-1], 256))


def _restore_q6_k(blocks: Any) -> Any:
    """Sixteen groups of 16, each with a scale of 8 bits; a code has 4 low and 2 high bits, which stand apart."""
    low = blocks[..., :128].reshape((*blocks.shape[:-1], 2, 2, 32))
    high = blocks[..., 128:192].reshape((*blocks.shape[:-1], 2, 1, 32))
    scales = blocks[..., 192:208].view(np.int8).astype(np.float32)
    codes = np.concatenate([low & 15, low >> 4], axis=-2)
    shifts = np.asarray([0, 2, 4, 6], np.uint8)[:, None]
    steps = (codes | (high >> shifts & 3) << 4).astype(np.float32) - 32
    groups = steps.reshape((*blocks.shape[:-1], 16, 16))
    return ((_half(blocks, 208) * scales)[..., None] * groups).reshape((*blocks.shape[:-1], 256))


# Number in ggml -> elements and bytes of a block, and what restores it.
_FORMATS: Mapping[int, tuple[int, int, Callable[[Any], Any]]] = {
    0: (1, 4, lambda blocks: blocks.view(np.float32)),
    1: (1, 2, lambda blocks: blocks.view(np.float16).astype(np.float32)),
    2: (32, 18, _restore_q4_0),
    6: (32, 22, _restore_q5_0),
    8: (32, 34, _restore_q8_0),
    13: (256, 176, _restore_q5_k),
    14: (256, 210, _restore_q6_k),
    20: (32, 18, _restore_iq4_nl),
    30: (1, 2, lambda blocks: blocks.view(ml_dtypes.bfloat16).astype(np.float32)),
}


@microsoft_kernel(
    "GatherPacked", dtypes=(UINT8, INDEX), choices={"packed_type": tuple(_FORMATS), "output_dtype": (1, 10, 16)}, runs_on_host=True
)
def gather_packed(
    xp: Namespace,
    x: Array,
    indices: Array,
    *,
    K: int,  # noqa: N803 - the operator's name
    output_dtype: int = 16,
    packed_type: int,
) -> Array:
    """Returns the rows that the indices name, restored; an index outside names row 0.

    Source: ONNX Runtime, com.microsoft.GatherPacked-1.
    """
    size, count, restore = _FORMATS[packed_type]
    if K % size or x.shape[1] != K // size * count:
        raise ValueError(f"rows of {K} elements in format {packed_type} take {K // size * count} bytes; the table has {x.shape[1]}")
    places = np.where((indices < 0) | (indices >= x.shape[0]), 0, indices)
    blocks = np.ascontiguousarray(x[places]).reshape((*indices.shape, K // size, count))
    values = restore(blocks).reshape((*indices.shape, K))
    return np.asarray(values.astype(numpy_dtype(dtype_of_onnx(output_dtype) or "bfloat16")))
