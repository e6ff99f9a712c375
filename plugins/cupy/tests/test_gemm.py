"""Products by cuBLAS: what it is told. In its place stands a function on the host that reads memory as cuBLAS is documented to."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hetero_cupy.cupy_gemm import find_leading, multiply_by_cublas

ELEMENTS = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
DTYPES = list(ELEMENTS.values())


class HostArray(np.ndarray[Any, Any]):
    """NumPy's array with the address where CuPy has it."""

    @property
    def data(self) -> Any:  # type: ignore[override]  # CuPy's meaning of the name
        return SimpleNamespace(ptr=self.ctypes.data)


def read_matrix(address: int, element: int, rows: int, columns: int, lead: int) -> np.ndarray[Any, Any]:
    """Returns a matrix stored by columns, `lead` elements from one to the next; the memory itself."""
    dtype = ELEMENTS[element]
    assert lead >= rows, "cuBLAS refuses a leading dimension below the number of rows"
    count = lead * (columns - 1) + rows
    flat = np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (dtype.itemsize, lead * dtype.itemsize))


class HostBlas:
    """gemmStridedBatchedEx as cuBLAS's manual describes it, and the numbers that it takes."""

    CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_GEMM_DEFAULT = 68, 77, -1

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int]] = []

    def gemmStridedBatchedEx(self, handle: Any, *told: Any) -> None:  # noqa: N802  # CuPy's name
        turn_a, turn_b, m, n, k, alpha, a, kind_a, lead_a, step_a, b, kind_b, lead_b, step_b, beta, *rest = told
        c, kind_c, lead_c, step_c, count, compute, _ = rest
        assert (read_matrix(alpha, 0, 1, 1, 1)[0, 0], read_matrix(beta, 0, 1, 1, 1)[0, 0]) == (1, 0)
        self.calls.append((count, kind_a, compute))
        size = ELEMENTS[kind_a].itemsize
        for index in range(count):
            left = read_matrix(a + index * step_a * size, kind_a, *((k, m) if turn_a else (m, k)), lead_a)
            right = read_matrix(b + index * step_b * size, kind_b, *((n, k) if turn_b else (k, n)), lead_b)
            left, right = (x.T if turn else x for x, turn in ((left, turn_a), (right, turn_b)))
            read_matrix(c + index * step_c * size, kind_c, m, n, lead_c)[...] = left.astype(np.float32) @ right.astype(np.float32)


LIBRARY = SimpleNamespace(
    empty=lambda shape, dtype: np.full(shape, np.nan, dtype).view(HostArray),
    broadcast_to=np.broadcast_to,
    ascontiguousarray=lambda x: np.ascontiguousarray(x).view(HostArray),
    cuda=SimpleNamespace(runtime=SimpleNamespace(CUDA_R_32F=0, CUDA_R_16F=2, CUDA_R_16BF=14), get_cublas_handle=lambda: "handle"),
)


def draw(shape: tuple[int, ...], dtype: Any, *, seed: int) -> Any:
    # Small whole numbers, whose sums are exact in every type.
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype).view(HostArray)


def multiply(a: Any, b: Any, *, uses_tf32: bool = False) -> tuple[Any, HostBlas]:
    blas = HostBlas()
    return multiply_by_cublas(LIBRARY, blas, a=a, b=b, uses_tf32=uses_tf32), blas


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("left", "right", "calls"),
    [
        ((2, 3), (3, 4), 1),
        ((1, 3), (3, 1), 1),
        ((5, 2, 3), (3, 4), 1),
        ((2, 5, 2, 3), (2, 5, 3, 4), 10),
        ((2, 3), (5, 3, 4), 5),
        ((5, 1, 2, 3), (1, 4, 3, 2), 20),
        ((1, 1, 2, 3), (3, 4), 1),
        ((6, 1), (1, 7), 1),
    ],
)
@pytest.mark.parametrize("turned", [(), (0,), (1,), (0, 1)], ids=str)
def test_products_are_those_of_numpy_whatever_lies_how(
    dtype: Any, left: tuple[int, ...], right: tuple[int, ...], calls: int, turned: tuple[int, ...]
) -> None:
    pair = [draw(shape, dtype, seed=seed) for seed, shape in enumerate((left, right))]
    for index in turned:
        pair[index] = np.ascontiguousarray(pair[index].swapaxes(-1, -2)).view(HostArray).swapaxes(-1, -2)
    found, blas = multiply(*pair)
    expected = np.matmul(*(np.asarray(x).astype(np.float64) for x in pair))
    assert found.dtype == dtype
    np.testing.assert_array_equal(np.asarray(found).astype(np.float64), expected)
    assert len(blas.calls) == 1
    # Rows of several matrices are rows of one, where the other side has one matrix; of a transposed one they are not.
    assert blas.calls[0][0] in {calls, int(np.prod(np.broadcast_shapes(left[:-2], right[:-2])))}
    assert turned or blas.calls[0][0] == calls


@pytest.mark.parametrize("part", [np.s_[:, 1], np.s_[:, :, ::2], np.s_[:, :, :, ::2], np.s_[::2, 0], np.s_[:, :, ::-1]], ids=str)
def test_parts_of_arrays_are_read_where_they_lie_or_copied(part: Any) -> None:
    whole = draw((4, 2, 6, 6), np.float32, seed=0)
    x = whole[part]
    z = draw((x.shape[-1], 3), np.float32, seed=1)
    np.testing.assert_array_equal(multiply(x, z)[0], np.asarray(x) @ np.asarray(z))
    np.testing.assert_array_equal(multiply(z.T, x.swapaxes(-1, -2))[0], np.asarray(z.T) @ np.asarray(x).swapaxes(-1, -2))


def test_each_call_says_how_it_computes() -> None:
    wide, small = draw((2, 2), np.float32, seed=0), draw((2, 2), np.float16, seed=0)
    assert [multiply(x, x, uses_tf32=tf32)[1].calls for x in (wide, small) for tf32 in (False, True)] == [
        [(1, 0, 68)],
        [(1, 0, 77)],
        [(1, 2, 68)],
        [(1, 2, 68)],
    ]


@pytest.mark.parametrize(("left", "right"), [((2, 0), (0, 3)), ((0, 2), (2, 3)), ((0, 2, 3), (3, 1))])
def test_products_of_nothing_are_zeros_without_a_call(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    found, blas = multiply(draw(left, np.float32, seed=0), draw(right, np.float32, seed=1))
    assert found.tolist() == np.zeros((*left[:-1], right[-1])).tolist()
    assert blas.calls == []


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((3, 4), (16, 4), (4, False)),
        ((3, 4), (40, 4), (10, False)),
        ((3, 4), (4, 12), (3, True)),
        ((3, 4), (4, 0), None),
        ((3, 4), (0, 4), None),
        ((3, 4), (-16, 4), None),
        ((1, 4), (999, 4), (4, False)),
        ((1, 1), (4, 4), (1, False)),
        ((3, 4), (32, 8), None),
    ],
)
def test_leading_dimension_of_strides(shape: Any, strides: Any, expected: Any) -> None:
    assert find_leading(shape, strides, 4) == expected
