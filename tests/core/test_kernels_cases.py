"""onnx's own backend cases on the kernels, beyond the kit: on arrays that cannot change, and in older versions of the operators."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from hetero_core.dtypes import dtype_of_numpy
from hetero_core.errors import InvalidNetworkError, UnsupportedNodesError
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import read_table
from hetero_core.network.reader import read_network
from hetero_core.testing.backend_cases import BackendCase, iterate_backend_cases

# The suite's relative tolerance is smaller than a step of these types, and the cases' values were rounded after each inner operation.
# Three steps: near a power of two, the relative size of a step is 2^-7 and 2^-10.
ROUNDING = {"bfloat16": 3 * 2.0**-8, "float16": 3 * 2.0**-11}
# Set in the session `kit`; the default session computes a case of each older version.
WHOLE = bool(os.environ.get("WHOLE_KIT"))


@pytest.fixture(scope="module")
def node_cases() -> list[BackendCase]:
    return [case for case in iterate_backend_cases(kinds=["node"]) if not case.is_random]


def describe_difference(answer: Any, expected: Any, rtol: float, atol: float) -> str | None:
    """Returns a text about the difference to `expected`, or None if NumPy's allclose accepts it."""
    if expected is None or isinstance(expected, list):
        if type(answer) is not type(expected) or (expected is not None and len(answer) != len(expected)):
            return f"expected {expected!r:.60}, got {answer!r:.60}"
        pairs = zip(answer or (), expected or (), strict=True)
        return next((text for a, b in pairs if (text := describe_difference(a, b, rtol, atol))), None)
    expected = np.asarray(expected)
    dtype = dtype_of_numpy(expected.dtype)
    if not isinstance(answer, np.ndarray) or dtype_of_numpy(answer.dtype) != dtype or answer.shape != expected.shape:
        return f"expected {dtype}{list(expected.shape)}, got {answer!r:.80}"
    if dtype == "string":
        return None if answer.tolist() == expected.tolist() else "other strings"
    wide_answer, wide = (array.astype(np.complex128 if array.dtype.kind == "c" else np.float64) for array in (answer, expected))
    equal = np.isclose(
        wide_answer,
        wide,
        rtol=max(rtol, ROUNDING.get(dtype or "", 0)),
        atol=max(atol, ROUNDING.get(dtype or "", 0)),
        equal_nan=True,
    )
    return None if equal.all() else f"{np.count_nonzero(~equal)} of {equal.size} elements differ"


class FixedArray(np.ndarray[Any, Any]):
    """An array that cannot change, as those of JAX: elements are assigned by `at`, which returns a new array."""

    def __setitem__(self, *_: Any) -> None:
        raise TypeError("this array cannot change")

    @property
    def at(self) -> Any:
        return FixedPlaces(self)


class FixedPlaces:
    """`array.at[places]`, with the methods that kernels use."""

    def __init__(self, array: Any, places: Any = ...) -> None:
        self._array, self._places = array, places

    def __getitem__(self, places: Any) -> FixedPlaces:
        return FixedPlaces(self._array, places)

    def set(self, values: Any) -> Any:
        changed = np.array(self._array)
        changed[self._places] = values
        return changed.view(FixedArray)

    def __getattr__(self, name: str) -> Any:
        function = {"add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}[name]

        def combine(values: Any) -> Any:
            changed = np.array(self._array)
            function.at(changed, self._places, values)
            return changed.view(FixedArray)

        return combine


class FixedNamespace:
    """NumPy, whose results cannot change. It has no function that the array API standard and the list of the docs do not have."""

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(np, name)
        if not callable(attribute) or isinstance(attribute, type):
            return attribute

        def call(*arguments: Any, **keywords: Any) -> Any:
            return fix(attribute(*arguments, **keywords))

        return call


def fix(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(fix(element) for element in value)
    return value.view(FixedArray) if isinstance(value, np.ndarray) else value


def test_kernels_run_on_arrays_that_cannot_change(node_cases: list[BackendCase]) -> None:
    wrong = {}
    for case in node_cases:
        program = compile_program(read_network(case.model), xp=FixedNamespace(), to_host=np.array, from_host=fix)
        try:
            for inputs, expected in case.runs:
                answer = program.run(tuple(fix(value) for value in inputs))
                for value, expected_value in zip(answer, expected, strict=True):
                    plain = np.array(value) if isinstance(value, np.ndarray) else value
                    if describe_difference(plain, expected_value, case.rtol, case.atol):
                        wrong[case.name] = "another answer"
        except Exception as error:  # noqa: BLE001  # the list names the case and the error
            wrong[case.name] = f"{type(error).__name__}: {error}"
    assert wrong == {}


# Operators with results of ONNX Runtime that differ from the standard's own cases. Our kernels follow the standard.
DISPUTED = {
    "Attention": "ONNX Runtime writes the lowest number instead of minus infinity into the debug output",
    "MaxUnpool": "ONNX Runtime counts indices in output_shape",
    "Resize": "ONNX Runtime rounds the length before it divides (align_corners)",
}


def list_older_versions(case: BackendCase, done: Collection[str]) -> Iterator[tuple[onnx.ModelProto, str]]:
    """Yields models of the case's single operator in each older version that has a kernel and allows the case's attributes.

    Each comes with its version, as in "Add-7"; versions in `done` are left out.
    """
    graph = case.model.graph
    if len(graph.node) != 1 or graph.node[0].domain or graph.node[0].op_type in DISPUTED or "training_dropout" in case.name:
        return
    op_type = graph.node[0].op_type
    current = max(entry.version for entry in case.model.opset_import if not entry.domain)
    for domain, name, version in read_table():
        if (domain, name) != ("", op_type) or not 7 <= version <= min(current, 21) or f"{op_type}-{version}" in done:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        model.ir_version = 10
        del model.opset_import[:]
        model.opset_import.append(onnx.helper.make_opsetid("", version))
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError:
            continue
        yield model, f"{op_type}-{version}"


def run_onnxruntime(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any] | None:
    """Returns ONNX Runtime's outputs, or None if it does not run the model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, {spec.name: value for spec, value in zip(session.get_inputs(), inputs, strict=False)}))
    except Exception:  # noqa: BLE001  # ONNX Runtime raises many types for missing kernels
        return None


def test_older_versions_agree_with_onnxruntime(node_cases: list[BackendCase]) -> None:
    compared: set[str] = set()
    wrong = {}
    for case in node_cases:
        for model, operator in list_older_versions(case, () if WHOLE else compared):
            try:
                program = compile_program(read_network(model))
            except (UnsupportedNodesError, InvalidNetworkError):
                # For old pooling versions, the shape inferred by onnx contradicts the declaration of the case.
                continue
            inputs = case.runs[0][0]
            expected = run_onnxruntime(model, inputs)
            # ONNX Runtime returns 8-bit floats as bytes.
            if expected is None or any(getattr(value, "dtype", None) == np.uint8 for value in expected):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                results = program.run(tuple(inputs))
            # The Fourier transforms of ONNX Runtime have errors of 1e-4.
            atol = 1e-3 if "FT-" in operator else 1e-5
            differences = [
                describe_difference(answer, expected_value, 1e-3, atol)
                for answer, expected_value in zip(results, expected, strict=True)
            ]
            compared.add(operator)
            if any(differences):
                wrong[f"{case.name} as {operator}"] = next(text for text in differences if text)
    assert wrong == {}
    # 300 versions of operators; more than 80 of them are not the newest version.
    assert len(compared) > 280
