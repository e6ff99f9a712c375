"""Products with an epilogue by cuBLASLt on CuPy's arrays: bias, ReLU and GELU in the kernel of the product. Has not run on a card.

cuBLASLt has columns where NumPy has rows, so that b stands before a, and a bias along our last axis is one along its rows.
"""

from __future__ import annotations

from math import prod
from typing import Any

from hetero_core.dtypes import dtype_of_numpy
from hetero_cupy.cublaslt_library import (
    COMPUTE_32F,
    COMPUTE_32F_FAST_TF32,
    EPILOGUE_BIAS,
    EPILOGUE_DEFAULT,
    EPILOGUE_GELU,
    EPILOGUE_RELU,
    MatrixLayout,
    ProductForm,
)
from hetero_cupy.cupy_gemm import find_leading

_EPILOGUES = {"": 0, "Relu": EPILOGUE_RELU, "Gelu": EPILOGUE_GELU}


class LtProducts:
    """The plans that were made so far, one for each form. Safe for threads: two may make the same plan, either is right."""

    def __init__(self, cupy: Any, library: Any) -> None:
        self._cupy = cupy
        self._library = library
        self._plans: dict[ProductForm, Any] = {}

    def multiply(self, a: Any, b: Any, bias: Any, *, activation: str, uses_tf32: bool) -> Any:
        """Returns activation(a @ b + bias), None where the library has no plan for it.

        a: (..., depth); b: (depth, columns); bias: (columns,) or None; all of one type, float32 or of 16 bits. `activation`: "", "Relu" or
        "Gelu", which is the form with tanh.
        """
        rows, (depth, columns) = prod(a.shape[:-1]), b.shape
        if not rows or not columns or not depth or (bias is not None and not bias.flags.c_contiguous):
            return None
        left = a if a.ndim == 2 else self._cupy.ascontiguousarray(a).reshape(rows, depth)
        lead, left = self._lay_out(left)
        right_lead, right = self._lay_out(b)
        y = self._cupy.empty((*a.shape[:-1], columns), dtype=a.dtype)
        dtype = str(dtype_of_numpy(a.dtype))
        form = ProductForm(
            dtype,
            COMPUTE_32F_FAST_TF32 if uses_tf32 and dtype == "float32" else COMPUTE_32F,
            right_lead[1],
            lead[1],
            (_EPILOGUES[activation] | (0 if bias is None else EPILOGUE_BIAS)) or EPILOGUE_DEFAULT,
            0 if bias is None else int(bias.data.ptr),
            _describe(right, right_lead, columns, depth),
            _describe(left, lead, depth, rows),
            MatrixLayout(columns, rows, columns, _align(int(y.data.ptr))),
        )
        if form not in self._plans:
            self._plans[form] = self._library.plan(form)
        plan = self._plans[form]
        if plan is None:
            return None
        workspace = self._cupy.empty(plan.workspace_bytes, dtype="uint8") if plan.workspace_bytes else None
        self._library.run(
            plan,
            a=int(right.data.ptr),
            b=int(left.data.ptr),
            d=int(y.data.ptr),
            workspace=0 if workspace is None else int(workspace.data.ptr),
            stream=int(self._cupy.cuda.get_current_stream().ptr),
        )
        return y

    def _lay_out(self, x: Any) -> tuple[tuple[int, bool], Any]:
        """Returns the leading dimension of a matrix, whether it is stored by columns, and the matrix, copied where it is neither."""
        lead = find_leading(x.shape, x.strides, x.itemsize)
        if lead is not None:
            return lead, x
        return (x.shape[1], False), self._cupy.ascontiguousarray(x)


def _describe(x: Any, lead: tuple[int, bool], rows: int, columns: int) -> MatrixLayout:
    """Returns the layout of a matrix as the library sees it; op() turns one that NumPy stores by columns."""
    sizes = (columns, rows) if lead[1] else (rows, columns)
    return MatrixLayout(*sizes, lead[0], _align(int(x.data.ptr)))


def _align(address: int) -> int:
    return min(address & -address, 256) if address else 256
