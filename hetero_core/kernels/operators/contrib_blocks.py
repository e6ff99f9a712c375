"""Weights that are quantized in blocks of a few bits: MatMulNBits, MatMulBnb4, MatMulFpQ4 and GatherBlockQuantized.

The weights are restored to float32 and multiplied in float32, whatever accuracy the node allows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, integers_of, is_small_integer, narrow, normalize_axis, widen
from hetero_core.kernels.products import multiply
from hetero_core.kernels.registry import FLOAT8, FLOAT32, HALF, INDEX, INT64, UINT8, microsoft_kernel

_ACCURACIES = (0, 1, 2, 3, 4)


def unpack_bits(xp: Namespace, x: Array, bits: int) -> Array:
    """Returns numbers of so many bits, the low ones of a byte first, along the last axis."""
    if bits == 8:
        return x
    count = 8 // bits
    shifts = (xp.arange(count) * bits).astype(np.uint8)
    return (x[..., None] >> shifts & np.uint8(2**bits - 1)).reshape((*x.shape[:-1], x.shape[-1] * count))


def restore_blocks(
    xp: Namespace, codes: Array, scales: Array, zero_points: Array | None, bits: int, columns: int, groups: Array | None = None
) -> Array:
    """Returns (rows, columns) of float32 from codes (rows, blocks, size), with a scale and a zero point for each block.

    scales: as many as rows and blocks; zero_points: packed like the codes along the blocks, or one float for each block.
    `groups` names the block of each column, where it is not the one that the column lies in.
    """
    rows, blocks, size = codes.shape
    factors = widen(scales).reshape((rows, blocks))
    if zero_points is None:
        zeros: Array = xp.full((rows, blocks), float(2 ** (bits - 1)), dtype=np.float32)
    elif zero_points.dtype == np.uint8:
        zeros = unpack_bits(xp, zero_points.reshape((rows, -1)), bits)[:, :blocks].astype(np.float32)
    else:
        zeros = widen(zero_points).reshape((rows, blocks))
    flat = codes.reshape((rows, blocks * size))[:, :columns].astype(np.float32)
    places = xp.arange(columns) // size if groups is None else groups[:columns].astype(np.int64)
    return (flat - xp.take(zeros, places, axis=1)) * xp.take(factors, places, axis=1)


@microsoft_kernel(
    "MatMulNBits",
    dtypes=(HALF, UINT8, HALF, UINT8 | HALF, frozenset({"int32"}), HALF),
    choices={"bits": (2, 4, 8), "accuracy_level": _ACCURACIES, "weight_prepacked": (0,)},
    unread={"accuracy_level": 0, "weight_prepacked": 0},
)
def mat_mul_n_bits(
    xp: Namespace,
    a: Array,
    b: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,  # noqa: N803 - the operator's name
    N: int,  # noqa: N803 - the operator's name
    bits: int = 4,
    block_size: int,
) -> Array:
    """Returns a @ w^T + bias with w (N, K) restored from blocks of block_size along K; an empty b is a product of zeros.

    Source: ONNX Runtime, com.microsoft.MatMulNBits-1.
    """
    blocks = -(-K // block_size)
    if b.size == 0:
        y = xp.zeros((*a.shape[:-1], N), dtype=np.float32)
    else:
        codes = unpack_bits(xp, b.reshape((N, blocks, -1)), bits)
        weights = restore_blocks(xp, codes, scales, zero_points, bits, K, g_idx)
        y = multiply(xp, widen(a), weights.T)
    return narrow(y if bias is None else y + widen(bias), a.dtype)


# The sixteen values of each code, the largest magnitude of a block being 1. Source: Dettmers et al. 2023, QLoRA.
_FP4 = (0.0, 5.208333333e-03, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_CODEBOOKS = ((*_FP4, *(-value for value in _FP4)), _NF4)


@microsoft_kernel(
    "MatMulBnb4",
    halves=(0,),
    dtypes=(FLOAT32, UINT8, FLOAT32),
    choices={"quant_type": (0, 1), "transB": (0, 1), "training_mode": (0,)},
)
def mat_mul_bnb4(
    xp: Namespace,
    a: Array,
    b: Array,
    absmax: Array,
    *,
    K: int,  # noqa: N803 - the operator's name
    N: int,  # noqa: N803 - the operator's name
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,  # noqa: N803 - the operator's name
) -> Array:
    """Returns a @ w^T (or a @ w) with w (N, K) from codes of 4 bits, the high ones of a byte first, and each block's magnitude.

    Source: ONNX Runtime, com.microsoft.MatMulBnb4-1.
    """
    flat = b.reshape(-1)
    codes = xp.stack([flat >> np.uint8(4), flat & np.uint8(15)], axis=1).reshape(-1)[: N * K]
    book = xp.asarray(_CODEBOOKS[quant_type], dtype=np.float32)
    values = xp.take(book, codes.astype(np.int64)) * xp.take(absmax.reshape(-1), xp.arange(N * K) // block_size)
    weights = values.reshape((N, K))
    return multiply(xp, a, weights.T if transB else weights)


# Type of a blob -> elements of a block, and whether it holds a zero point.
_BLOBS = {0: (32, False), 1: (32, True), 2: (64, False)}


@microsoft_kernel("MatMulFpQ4", dtypes=(FLOAT32, UINT8, INT64), host=(1, 2), choices={"blk_quant_type": tuple(_BLOBS)})
def mat_mul_fp_q4(xp: Namespace, a: Array, b: Array, b_shape: Array, *, blk_quant_type: int = 1) -> Array:
    """Returns a @ w with w (K, N) from a blob: for each column, blocks of a scale, perhaps a zero point, and 4-bit codes.

    In each 16 bytes the low halves are the first 16 elements, the high halves the next.
    Source: ONNX Runtime, com.microsoft.MatMulFpQ4-1.
    """
    depth, columns = integers_of(b_shape)
    size, has_zero = _BLOBS[blk_quant_type]
    blocks = np.asarray(b).reshape((columns, -(-depth // size), -1))
    scales = np.ascontiguousarray(blocks[..., :4]).view(np.float32)
    zeros: Any = blocks[..., 4:5].astype(np.float32) if has_zero else np.float32(8)
    packed = blocks[..., 5 if has_zero else 4 :].reshape((*blocks.shape[:2], -1, 16))
    codes = np.concatenate([packed & 15, packed >> 4], axis=-1).reshape((*blocks.shape[:2], size))
    weights = ((codes.astype(np.float32) - zeros) * scales).reshape((columns, -1))[:, :depth]
    return multiply(xp, a, xp.asarray(weights).T)


_TABLES = frozenset({"uint8", "int4", "uint4", "float4e2m1"}) | FLOAT8


@microsoft_kernel("GatherBlockQuantized", dtypes=(_TABLES, INDEX, HALF, _TABLES), choices={"bits": (2, 4, 8)})
def gather_block_quantized(
    xp: Namespace,
    x: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    """Returns the slices of a table that the indices name, restored from blocks; zeros for an index outside.

    Bytes hold codes of `bits` along the last axis, the low ones first. Source: ONNX Runtime, com.microsoft.GatherBlockQuantized-1.
    """
    axis, place = normalize_axis(gather_axis, x.ndim), normalize_axis(quantize_axis, x.ndim)
    is_packed = x.dtype == np.uint8
    codes = unpack_bits(xp, x, bits) if is_packed else x.astype(np.int8) if is_small_integer(x.dtype) else x
    values = codes.astype(np.float32)
    size = block_size or values.shape[place]
    factors = _spread_blocks(xp, widen(scales), size, values.shape, place)
    if zero_points is not None:
        zeros = zero_points.astype(np.int8) if is_small_integer(zero_points.dtype) else zero_points
        unpacked = unpack_bits(xp, zeros, bits)[..., : scales.shape[-1]] if is_packed else zeros
        values = values - _spread_blocks(xp, unpacked.astype(np.float32), size, values.shape, place)
    elif is_packed:
        values = values - np.float32(2 ** (bits - 1))
    count = values.shape[axis]
    wide = indices.astype(np.int64)
    inside = (wide >= -count) & (wide < count)
    y = xp.take(values * factors, xp.where(inside, wide, 0), axis=axis)
    shape = (*(1,) * axis, *indices.shape, *(1,) * (values.ndim - axis - 1))
    return narrow(xp.where(inside.reshape(shape), y, np.float32(0)), scales.dtype)


def _spread_blocks(xp: Namespace, x: Array, size: int, shape: tuple[int, ...], axis: int) -> Array:
    """Returns one number for each element of a block."""
    return xp.repeat(x, size, axis=axis)[(*(slice(None),) * axis, slice(0, shape[axis]))]
