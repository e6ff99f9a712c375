"""Every function that kernels call on their namespace exists in CuPy and takes these arguments; needs CuPy, and no card."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hetero_core.kernels

# Functions that the plugin's namespace defines itself.
OWN = ("random.RandomState", "asarray", "nonzero")
# The keywords of CuPy's ufuncs.
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
    attribute = cupy
    for part in name.split("."):
        attribute = getattr(attribute, part, None)
        if attribute is None:
            return "does not exist"
    if isinstance(attribute, cupy.ufunc):
        return f"takes no {sorted(keywords - UFUNC_KEYWORDS)}" if keywords - UFUNC_KEYWORDS else None
    try:
        parameters = inspect.signature(attribute).parameters
    except ValueError:
        return None  # compiled, without a signature
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return f"takes no {sorted(keywords - parameters.keys())}" if keywords - parameters.keys() else None


def test_kernels_call_functions_of_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    calls = [call for call in iterate_calls() if call[1] not in OWN]
    problems = {f"{place}: {name}": problem for place, name, keywords in calls if (problem := find_problem(cupy, name, keywords))}
    assert problems == {}
    assert len({name for _, name, _ in calls}) > 60


def test_arithmetic_on_values_of_16_bits_has_loops() -> None:
    cupy = pytest.importorskip("cupy")
    binary = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
    for kind in "eE":  # float16 and bfloat16
        assert [name for name in binary if f"{kind * 2}->{kind}" not in getattr(cupy, name).types] == []
        assert [
            name for name in ("negative", "absolute", "exp", "sqrt") if f"{kind}->{kind}" not in getattr(cupy, name).types
        ] == []


def test_streams_are_made_as_cupy_has_them() -> None:
    cuda = pytest.importorskip("cupy").cuda
    assert "non_blocking" in cuda.Stream.__doc__
    assert hasattr(cuda.Stream, "synchronize")
    assert hasattr(cuda, "get_current_stream")
