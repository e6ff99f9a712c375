"""Oracles: the expected outputs of a model, on which two independent sources agree.

The sources are onnx's reference evaluator, ONNX Runtime if installed, and for the small models a formula in float64. The
evaluator computes LRN wrongly, so it is left out for models with LRN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.check import CheckFailed, Skip
from hetero_core.testing.compare import describe_first_mismatch, max_relative_difference
from hetero_core.testing.formulas import FORMULAS
from hetero_core.testing.models import light_inputs, light_model, small_model
from hetero_core.testing.reference_session import open_reference_session

if TYPE_CHECKING:
    import onnx

    from hetero_core.runtime.executable import ExecutableNetwork

AGREEMENT = 1e-4
"""The largest relative difference between two oracles, and between the oracles and a device."""


@cache
def make_model(name: str) -> onnx.ModelProto:
    """Returns a small or a light model by name; cached."""
    return small_model(name) if name in FORMULAS else light_model(name)


def find_expected(name: str, seed: int, batch: int | None = None) -> tuple[dict[str, Any], list[Any]]:
    """Returns inputs of a model and the outputs that two oracles agree on; `batch` is the size of its symbolic first axis.

    Raises: Skip if only one oracle is available; CheckFailed if no two oracles agree.
    """
    inputs, expected = _ask_oracles(name, seed, batch)
    # Copies, since the device under test may write to its inputs.
    return {key: array.copy() for key, array in inputs.items()}, expected


@cache
def _ask_oracles(name: str, seed: int, batch: int | None) -> tuple[dict[str, Any], list[Any]]:
    model = make_model(name)
    inputs = light_inputs(model, seed)
    if batch is not None:
        generator = np.random.default_rng([seed, batch])
        inputs = {key: generator.standard_normal((batch, *array.shape[1:])).astype(array.dtype) for key, array in inputs.items()}
    answers = {oracle: compute(inputs) for oracle, compute in _list_oracles(name, model).items()}
    if len(answers) < 2:
        raise Skip(f"there is one oracle for '{name}' only ({', '.join(answers)}); install onnxruntime for a second one")
    chosen, *others = answers.items()
    differences = [f"{other}: {_measure(answer, chosen[1]):.3g}" for other, answer in others]
    if not any(_measure(answer, chosen[1]) <= AGREEMENT for _, answer in others):
        raise CheckFailed(f"the oracles for '{name}' do not agree; relative to {chosen[0]}, {', '.join(differences)}")
    return inputs, chosen[1]


def require_expected(loaded: ExecutableNetwork, name: str, seed: int, *, batch: int | None = None, what: str = "") -> None:
    """Runs a loaded model. Raises: CheckFailed, prefixed by `what`, unless it gives the expected outputs; errors of `find_expected`."""
    inputs, expected = find_expected(name, seed, batch)
    difference = describe_first_mismatch(loaded.infer(inputs), expected, rtol=AGREEMENT)
    if difference is not None:
        raise CheckFailed(f"{what}: {difference}" if what else difference)


def _measure(outputs: list[Any], expected: list[Any]) -> float:
    return max(max_relative_difference(output, other) for output, other in zip(outputs, expected, strict=True))


def _list_oracles(name: str, model: onnx.ModelProto) -> dict[str, Callable[[dict[str, Any]], list[Any]]]:
    """Returns the oracles of the model by name; the outputs of the first are the expected ones."""
    oracles: dict[str, Callable[[dict[str, Any]], list[Any]]] = {}
    if name in FORMULAS:
        oracles["a formula in float64"] = lambda inputs: _apply_formula(name, model, inputs)
    if find_spec("onnxruntime") is not None:
        oracles["ONNX Runtime"] = lambda inputs: run_onnxruntime(model, inputs)
    if not any(node.op_type == "LRN" for node in model.graph.node):
        oracles["onnx's reference evaluator"] = lambda inputs: run_evaluator(model, inputs)
    return oracles


def _apply_formula(name: str, model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    import onnx

    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | inputs
    wide = {key: array.astype(np.float64) if array.dtype.kind == "f" else array for key, array in arrays.items()}
    return [np.asarray(value, np.float32) for value in FORMULAS[name](wide)]


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the outputs that ONNX Runtime computes without optimizations."""
    return list(open_reference_session(model.SerializeToString()).run(None, dict(inputs)))


def run_evaluator(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the outputs that onnx's reference evaluator computes; it is wrong about LRN and many versions before opset 13."""
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, dict(inputs)))
