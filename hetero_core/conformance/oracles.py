"""Oracles: the expected outputs of a model, by onnx's reference evaluator, confirmed by ONNX Runtime if it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.check import CheckFailed
from hetero_core.testing.compare import describe_first_mismatch, max_relative_difference
from hetero_core.testing.models import SMALL_MODELS, light_inputs, light_model, small_model
from hetero_core.testing.reference_session import open_reference_session

if TYPE_CHECKING:
    import onnx

    from hetero_core.runtime.executable import ExecutableNetwork

AGREEMENT = 1e-4
"""The largest relative difference between the oracles, and between the oracles and a device."""


@cache
def make_model(name: str) -> onnx.ModelProto:
    """Returns a small or a light model by name; cached."""
    return small_model(name) if name in SMALL_MODELS else light_model(name)


@cache
def find_expected(name: str, seed: int, batch: int | None = None) -> tuple[dict[str, Any], list[Any]]:
    """Returns inputs of a model and its outputs; `batch` is the size of its symbolic first axis. Cached: neither may be written to.

    Raises: CheckFailed if the oracles do not agree.
    """
    model = make_model(name)
    inputs = light_inputs(model, seed)
    if batch is not None:
        generator = np.random.default_rng([seed, batch])
        inputs = {key: generator.standard_normal((batch, *array.shape[1:])).astype(array.dtype) for key, array in inputs.items()}
    expected = run_evaluator(model, inputs)
    if find_spec("onnxruntime") is not None:
        confirmed = run_onnxruntime(model, inputs)
        difference = max(max_relative_difference(output, other) for output, other in zip(confirmed, expected, strict=True))
        if difference > AGREEMENT:
            raise CheckFailed(f"the oracles for '{name}' do not agree: ONNX Runtime differs from the evaluator by {difference:.3g}")
    return inputs, expected


def require_expected(loaded: ExecutableNetwork, name: str, seed: int, *, batch: int | None = None, what: str = "") -> None:
    """Runs a loaded model. Raises: CheckFailed, prefixed by `what`, unless it gives the expected outputs; errors of `find_expected`."""
    inputs, expected = find_expected(name, seed, batch)
    # Copies, since the device under test may write to its inputs.
    inputs = {key: array.copy() for key, array in inputs.items()}
    difference = describe_first_mismatch(loaded.infer(inputs), expected, rtol=AGREEMENT)
    if difference is not None:
        raise CheckFailed(f"{what}: {difference}" if what else difference)


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the outputs that ONNX Runtime computes without optimizations."""
    return list(open_reference_session(model.SerializeToString()).run(None, dict(inputs)))


def run_evaluator(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the outputs that onnx's reference evaluator computes; it is wrong about LRN and many versions before opset 13."""
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, dict(inputs)))
