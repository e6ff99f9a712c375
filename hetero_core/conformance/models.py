"""Models: whole networks on the device against the oracles: onnx's reference evaluator, confirmed by ONNX Runtime if it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip, find_broken_refusal, load_claimed
from hetero_core.devices.names import parse_device_name
from hetero_core.testing.compare import describe_first_mismatch, max_relative_difference
from hetero_core.testing.models import SMALL_MODELS, light_inputs, light_model, small_model
from hetero_core.testing.reference_session import open_reference_session

if TYPE_CHECKING:
    import onnx

    from hetero_core.contract import QueryResult
    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork

LIGHT = ("squeezenet", "shufflenet")
"""Topologies of well-known networks, with random weights: chains of convolutions, and grouped convolutions with shuffled channels."""

DYNAMIC = ("dynamic_batch", "residual")
"""The models whose batch is symbolic."""
BATCHES = (1, 5, 2)


@cache
def list_model_checks() -> tuple[Check, ...]:
    """Returns a check for each model, and a second check for each model with a symbolic batch."""
    whole = [Check(f"models.{name}", "models", partial(check_model, name), shares_core=True) for name in (*SMALL_MODELS, *LIGHT)]
    batches = [
        Check(f"models.{name}_takes_any_batch", "models", partial(check_batches, name), shares_core=True) for name in DYNAMIC
    ]
    return (*whole, *batches)


def check_model(name: str, context: CheckContext) -> None:
    """The outputs of a network are those of the oracles; a partly supported network runs on the device and CPU."""
    network = context.core.read_network(make_model(name))
    result = context.query(network)
    if result.refused:
        problem = find_broken_refusal(context.core, network, context.device, result)
        if problem is not None:
            raise CheckFailed(problem)
    with _load(context, network, result) as loaded:
        require_expected(loaded, name, context.seed)


def check_batches(name: str, context: CheckContext) -> None:
    """A loaded network with a symbolic batch runs with several sizes in sequence."""
    network = context.core.read_network(make_model(name))
    with _load(context, network, context.query(network)) as loaded:
        for batch in BATCHES:
            require_expected(loaded, name, context.seed, batch=batch, what=f"batch {batch}")


def _load(context: CheckContext, network: Network, result: QueryResult) -> ExecutableNetwork:
    """Returns the network loaded on the device, or on it and a second device if the device takes only a part.

    Raises: Skip if the device takes no node, or no second device takes the rest.
    """
    if not result.refused:
        return load_claimed(context.core, network, context.device)
    first = next(iter(result.refused))
    refusal = (
        f"{len(result.refused)} of {len(network.nodes)} nodes are refused, {network.node(first).label}: {result.refused[first]}"
    )
    if not result.supported or "hetero" not in context.facts.capabilities:
        raise Skip(refusal)
    # CPU supports the most operators.
    partner = "CPU" if "CPU" in context.core.device_names and context.facts.name != "CPU" else context.reference
    tested = parse_device_name(context.device)
    device = f"HETERO:{f'({tested})' if tested.arguments else tested},{partner}"
    if context.core.query_network(network, device).refused:
        raise Skip(f"{refusal}; {partner} does not take the rest either")
    return context.core.load_network(network, device)


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
