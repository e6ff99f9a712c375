"""Every function that kernels call on their namespace exists in CuPy and takes these arguments; needs CuPy, and no card."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hetero_core.kernels

# The namespace of the plugin answers for these itself.
OWN = ("random.RandomState", "asarray", "nonzero")
# What CuPy's ufuncs take apart from arrays.
UFUNC_KEYWORDS = {"out", "dtype", "casting"}


def iterate_calls() -> Iterator[tuple[str, str, set[str]]]:
    """Yields the place, the name behind `xp.`, and the keywords of each call."""
    for path in sorted(Path(hetero_core.kernels.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name.startswith("xp.") and all(part.isidentifier() for part in name.split(".")):
                yield f"{path.name}, line {node.lineno}", name[3:], {word.arg for word in node.keywords if word.arg is not None}


def find_problem(cupy: Any, name: str, keywords: set[str]) -> str | None:
    found = cupy
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return "does not exist"
    if isinstance(found, cupy.ufunc):
        return f"takes no {sorted(keywords - UFUNC_KEYWORDS)}" if keywords - UFUNC_KEYWORDS else None
    try:
        parameters = inspect.signature(found).parameters
    except ValueError:
        return None  # compiled, and silent about its arguments
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return f"takes no {sorted(keywords - parameters.keys())}" if keywords - parameters.keys() else None


def test_kernels_call_what_there_is() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    import cupy

    calls = [call for call in iterate_calls() if call[1] not in OWN]
    problems = {f"{place}: {name}": problem for place, name, keywords in calls if (problem := find_problem(cupy, name, keywords))}
    assert problems == {}
    assert len({name for _, name, _ in calls}) > 60


def find_cublas() -> Any:
    """Returns CuPy's module for cuBLAS, None where either is missing."""
    if importlib.util.find_spec("cupy") is None:
        return None
    try:
        from cupy_backends.cuda.libs import cublas
    except ImportError:
        return None
    return cublas


def test_cublas_takes_what_it_is_told() -> None:
    cublas = find_cublas()
    if cublas is None:
        pytest.skip("CuPy or cuBLAS is not installed")
    told = "handle transa transb m n k alpha A Atype lda strideA B Btype ldb strideB beta C Ctype ldc strideC batchCount computeType algo"
    signature = cublas.gemmStridedBatchedEx.__doc__.partition("(")[2].partition(")")[0]
    assert [parameter.split()[-1] for parameter in signature.split(",")] == told.split()
    assert cublas.CUBLAS_COMPUTE_32F != cublas.CUBLAS_COMPUTE_32F_FAST_TF32
    assert (cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T, cublas.CUBLAS_GEMM_DEFAULT) == (0, 1, -1)


def test_arithmetic_on_values_of_16_bits_has_loops() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    import cupy

    binary = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
    for kind in "eE":  # float16 and bfloat16
        assert [name for name in binary if f"{kind * 2}->{kind}" not in getattr(cupy, name).types] == []
        assert [
            name for name in ("negative", "absolute", "exp", "sqrt") if f"{kind}->{kind}" not in getattr(cupy, name).types
        ] == []


def test_streams_events_and_copies_are_called_as_they_are() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    import cupy

    cuda = cupy.cuda
    signature = cuda.runtime.memcpyAsync.__doc__.partition("(")[2].partition(")")[0]
    assert [parameter.split()[-1] for parameter in signature.split(",")] == ["dst", "src", "size", "kind", "stream"]
    assert (cuda.runtime.memcpyHostToDevice, cuda.runtime.memcpyDeviceToHost) == (1, 2)
    assert "disable_timing" in cuda.Event.__doc__
    assert "non_blocking" in cuda.Stream.__doc__
    assert isinstance(cuda.Stream.null.ptr, int)
    for owner, names in (
        (cuda.Stream, ("wait_event", "synchronize", "begin_capture", "end_capture")),
        (cuda.Event, ("record", "synchronize")),
        (cuda, ("alloc_pinned_memory", "using_allocator", "get_current_stream", "UnownedMemory", "MemoryPointer")),
    ):
        assert [name for name in names if not hasattr(owner, name)] == []
