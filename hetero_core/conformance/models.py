"""Models: networks on the device, whole and split, against onnx's reference evaluator, which ONNX Runtime confirms if it is installed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip, load_claimed, name_pair, require_refusal
from hetero_core.conformance.operators import draws_freely, find_mismatch, list_cases
from hetero_core.errors import UnsupportedNodesError
from hetero_core.testing.backend_cases import BackendCase
from hetero_core.testing.compare import describe_first_mismatch, max_relative_difference
from hetero_core.testing.models import SMALL_MODELS, light_inputs, light_model, small_model
from hetero_core.testing.reference_session import open_reference_session

if TYPE_CHECKING:
    import onnx

    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork

LIGHT = ("squeezenet", "shufflenet")
"""Topologies of well-known networks, with random weights: chains of convolutions, and grouped convolutions with shuffled channels."""

DYNAMIC = ("dynamic_batch", "residual")
"""The models whose batch is symbolic."""
BATCHES = (1, 5, 2)


@cache
def list_model_checks() -> tuple[Check, ...]:
    """Returns a check for each model."""
    return tuple(
        Check(f"models.{name}", "models", partial(check_model, name), shares_core=True) for name in (*SMALL_MODELS, *LIGHT)
    )


def check_model(name: str, context: CheckContext) -> None:
    """The outputs of a network are those of the oracles, with several sizes in sequence if its batch is symbolic; a partly supported
    network runs on the device and CPU."""
    network = context.core.read_network(make_model(name))
    with _load(context, network) as loaded:
        require_expected(loaded, name, context.seed)


def _load(context: CheckContext, network: Network) -> ExecutableNetwork:
    """Returns the network loaded on the device, or on it and a second device if the device takes only a part.

    Raises: Skip if the device takes no node, or no second device takes the rest; CheckFailed as `require_refusal`.
    """
    result = context.query(network)
    if not result.refused:
        return load_claimed(context.core, network, context.device)
    first = require_refusal(context.core, network, context.device, result)
    refusal = f"{len(result.refused)} of {len(network.nodes)} nodes are refused, {first}"
    if not result.supported or "hetero" not in context.facts.capabilities:
        raise Skip(refusal)
    # CPU supports the most operators.
    partner = "CPU" if "CPU" in context.core.device_names and context.facts.name != "CPU" else context.reference
    device = name_pair(context.device, partner)
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


def require_expected(loaded: ExecutableNetwork, name: str, seed: int, *, what: str = "") -> None:
    """Runs a loaded model, with several sizes in sequence if its batch is symbolic.

    Raises: CheckFailed, prefixed by `what`, unless it gives the expected outputs; errors of `find_expected`.
    """
    for batch in (None, *(BATCHES if name in DYNAMIC else ())):
        inputs, expected = find_expected(name, seed, batch)
        # Copies, since the device under test may write to its inputs.
        inputs = {key: array.copy() for key, array in inputs.items()}
        difference = describe_first_mismatch(loaded.infer(inputs), expected, rtol=AGREEMENT)
        if difference is not None:
            raise CheckFailed(": ".join(filter(None, (what, f"batch {batch}" if batch else "", difference))))


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the outputs that ONNX Runtime computes without optimizations."""
    return list(open_reference_session(model.SerializeToString()).run(None, dict(inputs)))


def run_evaluator(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the outputs that onnx's reference evaluator computes; it is wrong about LRN and many versions before opset 13."""
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, dict(inputs)))


# HETERO: a network split over the device under test and a reference device gives the outputs of the whole network. Every node is pinned,
# so that each check decides where the network is cut: a node runs on the device of its pin if that device takes it, else on the second
# device. Random choices are drawn from the seed of the run, which every failure names.

SUBSETS = 4
"""Number of random subsets of nodes that are tried on a small model."""
CUTS = 1
"""Number of random places at which a model of the backend suite is cut, besides its middle; `--seed` draws others."""


@cache
def list_hetero_checks() -> tuple[Check, ...]:
    """Returns the checks of single nodes, of random subsets, and of halves, for each model."""
    single = [_make_check(f"each_node_of_{name}", partial(check_single_nodes, name)) for name in SMALL_MODELS]
    subsets = [_make_check(f"random_parts_of_{name}", partial(check_random_parts, name, SUBSETS)) for name in SMALL_MODELS]
    large = [_make_check(f"random_parts_of_{LIGHT[0]}", partial(check_random_parts, LIGHT[0], 1))]
    halves = [_make_check(f"halves_of_{case.name}", partial(check_halves, case)) for case in list_cases() if _may_be_cut(case)]
    return (*single, *subsets, *large, *halves)


def _make_check(name: str, function: partial[None]) -> Check:
    return Check(f"hetero.{name}", "hetero", function, needs=("hetero",), shares_core=True)


def _may_be_cut(case: BackendCase) -> bool:
    """The large networks of the suite take minutes on a reference device."""
    return case.kind != "real" and (len(case.model.graph.node) > 1 or len(case.model.functions) > 0)


def load_split(context: CheckContext, network: Network, on_reference: Sequence[str]) -> tuple[ExecutableNetwork, dict[str, str]]:
    """Returns the network loaded on the reference for the nodes in `on_reference` and on the device under test for the rest, and its pins.

    A node that its device refuses is pinned to the second device. A part of a network may lack facts that the whole has, such as the rank
    of the stacked output of a Loop; a node that the device under test therefore refuses goes to the reference, too.

    Raises: Skip if both devices refuse a node, or no node remains on the device under test; UnsupportedNodesError.
    """
    tested, reference = context.device, context.reference
    by_tested, by_reference = (context.core.query_network(network, device).supported for device in (tested, reference))
    pins = {}
    for node in network.nodes:
        able = [device for device, taken in ((tested, by_tested), (reference, by_reference)) if node.name in taken]
        if not able:
            raise Skip(f"neither {tested} nor {reference} takes {node.label}")
        pins[node.name] = able[-1 if node.name in on_reference else 0]
    while True:
        try:
            return context.core.load_network(network.with_affinity(pins), name_pair(tested, reference)), pins
        except UnsupportedNodesError as error:
            moved = [node for node in error.refusals if pins[node] == tested and node in by_reference]
            if not moved:
                raise
            pins = {**pins, **dict.fromkeys(moved, reference)}
            if tested not in pins.values():
                raise Skip(f"{tested} takes no part of it: {next(iter(error.refusals[moved[0]].values()))}") from error


def check_single_nodes(name: str, context: CheckContext) -> None:
    """The outputs are right with each single node on the reference device and the remaining nodes on the device under test."""
    network = context.core.read_network(make_model(name))
    for node in network.nodes:
        _check_split(context, name, network, [node.name], f"with {node.label} on the reference")


def check_random_parts(name: str, count: int, context: CheckContext) -> None:
    """The outputs are right with random subsets of the nodes on the reference device."""
    network = context.core.read_network(make_model(name))
    draw = random.Random(f"{context.seed} {name}")
    for _ in range(count):
        chosen = [node.name for node in network.nodes if draw.random() < 0.5]
        _check_split(context, name, network, chosen, f"seed {context.seed}, with {', '.join(chosen)} on the reference")


def _check_split(context: CheckContext, name: str, network: Network, on_reference: Sequence[str], what: str) -> None:
    loaded, pins = load_split(context, network, on_reference)
    with loaded:
        placed = {node: device for device, nodes in loaded.get_metric("HETERO_SUBGRAPHS") for node in nodes}
        if placed != pins:
            moved = [f"{node} on {placed.get(node)}" for node in pins if placed.get(node) != pins[node]]
            raise CheckFailed(f"{what}: pinned nodes are elsewhere: {', '.join(moved)}")
        require_expected(loaded, name, context.seed, what=what)


def check_halves(case: BackendCase, context: CheckContext) -> None:
    """A model of ONNX's backend suite, cut at its middle and at random places, gives the outputs that the case expects."""
    network = context.core.read_network(case.model)
    if len(network.nodes) < 2:
        raise Skip("the network has one node")
    feeds = dict(zip((spec.name for spec in network.inputs), case.runs[0][0], strict=False))
    if draws_freely(network, feeds):
        raise Skip("its values are drawn")
    names = [node.name for node in network.nodes]
    draw = random.Random(f"{context.seed} {case.name}")
    for place in sorted({len(names) // 2, *(draw.randrange(1, len(names)) for _ in range(CUTS))}):
        # Now the first half on the reference, now the second.
        chosen = names[:place] if draw.random() < 0.5 else names[place:]
        loaded, _ = load_split(context, network, chosen)
        with loaded:
            mismatch = find_mismatch(case, network, loaded, flushes="DENORMALS" in context.get_metric("VALUE_DEVIATIONS"))
        if mismatch is not None:
            raise CheckFailed(f"seed {context.seed}, cut before node {place} of {len(names)}: {mismatch}")
