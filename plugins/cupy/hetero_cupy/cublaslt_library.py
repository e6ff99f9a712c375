"""cuBLASLt by ctypes, as little of it as products with an epilogue need; CuPy has no binding for it. Has not run on a card.

Numbers and the one structure are those of cublasLt.h 12.9, which a test compares with the header where that is installed; they are part
of the library's ABI, the same in 13. Descriptors are made by the library itself, so that their layouts need not be known here.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from hetero_core.records import record

OP_N, OP_T = 0, 1
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
KINDS = {"float32": 0, "float16": 2, "bfloat16": 14}
"""Element type -> cudaDataType."""
EPILOGUE_DEFAULT, EPILOGUE_RELU, EPILOGUE_BIAS, EPILOGUE_GELU = 1, 2, 4, 32
DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS_POINTER = 3, 4, 7, 8
PREF_MAX_WORKSPACE_BYTES = 1
PREF_MIN_ALIGNMENTS = (5, 6, 7, 8)
"""Preferences for the least alignment of A, B, C and D."""
WORKSPACE_BYTES = 32 << 20
"""The largest workspace that an algorithm may ask for: that of cuBLAS itself on cards from 9.0 on."""


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what it needs."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspaceSize", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("wavesCount", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@record(frozen=True, slots=True)
class MatrixLayout:
    """A matrix stored by columns, `lead` elements from one to the next; `alignment` of its address in bytes, 256 at most."""

    rows: int
    columns: int
    lead: int
    alignment: int


@record(frozen=True, slots=True)
class ProductForm:
    """D = epilogue(op(A) op(B) + bias): everything but the addresses of A, B and D. `bias`: an address, or 0."""

    dtype: str
    compute: int
    turns_a: bool
    turns_b: bool
    epilogue: int
    bias: int
    a: MatrixLayout
    b: MatrixLayout
    d: MatrixLayout


@record(frozen=True, slots=True)
class ProductPlan:
    """Descriptors of the library, and the algorithm that it chose."""

    description: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    choice: HeuristicResult

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the algorithm's working memory."""
        return int(self.choice.workspaceSize)


class CublasLt:
    """The library, with a handle for the card that is the thread's own when it is first used. Safe for threads."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle: ctypes.c_void_p | None = None
        self._lock = threading.Lock()
        self._scalars = (ctypes.c_float * 2)(1.0, 0.0)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} of cuBLASLt returned status {status}")

    def _open(self) -> ctypes.c_void_p:
        with self._lock:
            if self._handle is None:
                handle = ctypes.c_void_p()
                self._call("cublasLtCreate", ctypes.byref(handle))
                self._handle = handle
            return self._handle

    def describe(self, form: ProductForm) -> tuple[ctypes.c_void_p, tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]]:
        """Returns the descriptors of a product: of the operation, and of A, B and D. They live as long as the process."""
        description = ctypes.c_void_p()
        kind = KINDS[form.dtype]
        self._call("cublasLtMatmulDescCreate", ctypes.byref(description), form.compute, KINDS["float32"])
        for attribute, value in (
            (DESC_TRANSA, ctypes.c_int32(OP_T if form.turns_a else OP_N)),
            (DESC_TRANSB, ctypes.c_int32(OP_T if form.turns_b else OP_N)),
            (DESC_EPILOGUE, ctypes.c_uint32(form.epilogue)),
            *(((DESC_BIAS_POINTER, ctypes.c_uint64(form.bias)),) if form.bias else ()),
        ):
            self._call("cublasLtMatmulDescSetAttribute", description, attribute, ctypes.byref(value), _size_of(value))
        a, b, d = (self._describe_matrix(kind, layout) for layout in (form.a, form.b, form.d))
        return description, (a, b, d)

    def _describe_matrix(self, kind: int, layout: MatrixLayout) -> ctypes.c_void_p:
        description = ctypes.c_void_p()
        sizes = ctypes.c_uint64(layout.rows), ctypes.c_uint64(layout.columns), ctypes.c_int64(layout.lead)
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(description), kind, *sizes)
        return description

    def prefer(self, form: ProductForm) -> ctypes.c_void_p:
        """Returns what an algorithm may need: so much memory, and no better aligned matrices than there are."""
        preference = ctypes.c_void_p()
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        workspace = ctypes.c_uint64(WORKSPACE_BYTES)
        alignments = (form.a.alignment, form.b.alignment, form.d.alignment, form.d.alignment)
        values = [(PREF_MAX_WORKSPACE_BYTES, workspace)]
        values += [(name, ctypes.c_uint32(size)) for name, size in zip(PREF_MIN_ALIGNMENTS, alignments, strict=True)]  # type: ignore[misc]  # both are numbers of C
        for attribute, value in values:
            self._call("cublasLtMatmulPreferenceSetAttribute", preference, attribute, ctypes.byref(value), _size_of(value))
        return preference

    def plan(self, form: ProductForm) -> ProductPlan | None:
        """Returns the plan that the library thinks fastest, None where it has none for such a product."""
        handle = self._open()
        description, (a, b, d) = self.describe(form)
        preference, choice, count = self.prefer(form), HeuristicResult(), ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            handle, description, a, b, d, d, preference, 1, ctypes.byref(choice), ctypes.byref(count)
        )
        self._call("cublasLtMatmulPreferenceDestroy", preference)
        return ProductPlan(description, (a, b, d), choice) if not status and count.value and not choice.state else None

    def run(self, plan: ProductPlan, *, a: int, b: int, d: int, workspace: int, stream: int) -> None:
        """Sends a product to a stream. All but the plan are addresses."""
        alpha, beta = ctypes.addressof(self._scalars), ctypes.addressof(self._scalars) + 4
        layout_a, layout_b, layout_d = plan.layouts
        self._call(
            "cublasLtMatmul",
            *(self._open(), plan.description, _place(alpha), _place(a), layout_a, _place(b), layout_b),
            *(_place(beta), _place(d), layout_d, _place(d), layout_d, ctypes.byref(plan.choice)),
            *(_place(workspace), ctypes.c_size_t(plan.workspace_bytes), _place(stream)),
        )


def _place(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def _size_of(value: Any) -> ctypes.c_size_t:
    return ctypes.c_size_t(ctypes.sizeof(value))


def load_cublaslt(major: int, *, load: Callable[[str], Any] = ctypes.CDLL) -> CublasLt | None:
    """Returns the library for a version of CUDA, None where there is none. CuPy has loaded it with cuBLAS, which is built on it."""
    for name in (f"libcublasLt.so.{major}", _find_wheel(major)):
        if name is None:
            continue
        try:
            return CublasLt(load(name))
        except OSError:
            continue
    return None


def _find_wheel(major: int) -> str | None:
    """Returns the path of the library in NVIDIA's wheels."""
    from importlib.util import find_spec
    from pathlib import Path

    module_spec = find_spec("nvidia")
    folders = [] if module_spec is None else list(module_spec.submodule_search_locations or ())
    paths = [path for folder in folders for path in sorted(Path(folder).glob(f"**/libcublasLt.so.{major}"))]
    return str(paths[0]) if paths else None
