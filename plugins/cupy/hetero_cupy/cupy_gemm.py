"""Products by cuBLAS on CuPy's arrays: one call for a batch, sums in float32, the result rounded once. Has not run on a card.

CuPy's own `matmul` decides by settings of the whole process how it computes, and has no bfloat16; here each call says it. cuBLAS has
columns where NumPy has rows, so that b stands before a.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_numpy

_ELEMENTS = {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF"}
# Read by cuBLAS while it is called; its handles read such numbers from the host.
_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)


def multiply_by_cublas(cupy: Any, cublas: Any, *, a: Any, b: Any, uses_tf32: bool) -> Any:
    """Returns a @ b, the axes before the last two broadcast; `cublas` is CuPy's module of that name.

    a, b: of one type, float32, float16 or bfloat16, of rank 2 and more.
    """
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    y = cupy.empty((*batch, rows, columns), dtype=a.dtype)
    if not y.size or not depth:
        y.fill(0)
        return y
    count = prod(batch)
    if b.ndim == 2 and a.flags.c_contiguous:
        # One product of more rows is faster than many of few.
        rows, count = rows * count, 1
        left, left_lead, left_step, is_left_turned = a, depth, 0, False
    else:
        left, left_lead, left_step, is_left_turned = _lay_batch(cupy, a, batch)
    right, right_lead, right_step, is_right_turned = _lay_batch(cupy, b, batch)
    dtype = str(dtype_of_numpy(a.dtype))
    element = getattr(cupy.cuda.runtime, _ELEMENTS[dtype])
    compute = cublas.CUBLAS_COMPUTE_32F_FAST_TF32 if uses_tf32 and dtype == "float32" else cublas.CUBLAS_COMPUTE_32F
    cublas.gemmStridedBatchedEx(
        cupy.cuda.get_cublas_handle(),
        *(cublas.CUBLAS_OP_T if is_turned else cublas.CUBLAS_OP_N for is_turned in (is_right_turned, is_left_turned)),
        *(columns, rows, depth, _ONE.ctypes.data),
        *(right.data.ptr, element, right_lead, right_step),
        *(left.data.ptr, element, left_lead, left_step, _ZERO.ctypes.data),
        *(y.data.ptr, element, columns, rows * columns, count, compute, cublas.CUBLAS_GEMM_DEFAULT),
    )
    return y


def _lay_batch(cupy: Any, x: Any, batch: tuple[int, ...]) -> tuple[Any, int, int, bool]:
    """Returns the array, its leading dimension, the elements from one matrix of the batch to the next, and whether it is transposed.

    Copies where cuBLAS cannot read the strides.
    """
    if prod(x.shape[:-2]) == 1:
        x, step = x.reshape(x.shape[-2:]), 0
    else:
        x = x if x.shape[:-2] == batch else cupy.broadcast_to(x, (*batch, *x.shape[-2:]))
        x = x if x.ndim == 3 and x.strides[0] > 0 else cupy.ascontiguousarray(x).reshape(-1, *x.shape[-2:])
        step = x.strides[0] // x.itemsize
    lead = find_leading(x.shape[-2:], x.strides[-2:], x.itemsize)
    if lead is None:
        x = cupy.ascontiguousarray(x)
        step = 0 if x.ndim == 2 else x.shape[-2] * x.shape[-1]
        lead = x.shape[-1], False
    return x, lead[0], step, lead[1]


def find_leading(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, bool] | None:
    """Returns the leading dimension of a matrix, and whether it is stored by columns; None if its strides fit no GEMM layout."""
    (rows, columns), (down, right) = shape, (stride // itemsize for stride in strides)
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return max(down if rows > 1 else columns, 1), False
    if (down == 1 or rows == 1) and (right >= rows or columns == 1):
        return max(right if columns > 1 else rows, 1), True
    return None
