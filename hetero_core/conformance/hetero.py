"""HETERO: a network split over the device under test and a reference device gives the outputs of the whole network.

Every node is pinned, so that each check decides where the network is cut: a node runs on the device of its pin if that device takes it,
else on the second device. Random choices are drawn from the seed of the run, which every failure names.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip
from hetero_core.conformance.models import BATCHES, DYNAMIC, make_model, require_expected
from hetero_core.conformance.operators import draws_freely, find_mismatch, list_cases
from hetero_core.errors import UnsupportedNodesError
from hetero_core.network.graph import Network
from hetero_core.testing.backend_cases import BackendCase
from hetero_core.testing.models import SMALL_MODELS

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork

SUBSETS = 4
"""Number of random subsets of nodes that are tried on a small model."""
LIGHT = "squeezenet"
CUTS = 1
"""Number of random places at which a model of the backend suite is cut, besides its middle; `--seed` draws others."""


@cache
def list_hetero_checks() -> tuple[Check, ...]:
    """Returns the checks of single nodes, of random subsets, and of halves, for each model."""
    single = [_make_check(f"each_node_of_{name}", partial(check_single_nodes, name)) for name in SMALL_MODELS]
    subsets = [_make_check(f"random_parts_of_{name}", partial(check_random_parts, name, SUBSETS)) for name in SMALL_MODELS]
    large = [_make_check(f"random_parts_of_{LIGHT}", partial(check_random_parts, LIGHT, 1))]
    batches = [_make_check(f"any_batch_of_{name}", partial(check_batches, name)) for name in DYNAMIC]
    halves = [_make_check(f"halves_of_{case.name}", partial(check_halves, case)) for case in list_cases() if _may_be_cut(case)]
    return (*single, *subsets, *large, *batches, *halves)


def _make_check(name: str, function: partial[None]) -> Check:
    return Check(f"hetero.{name}", "hetero", function, needs=("hetero",), shares_core=True)


def _may_be_cut(case: BackendCase) -> bool:
    """The large networks of the suite take minutes on a reference device."""
    return case.kind != "real" and (len(case.model.graph.node) > 1 or len(case.model.functions) > 0)


def name_pair(context: CheckContext) -> tuple[str, str, str]:
    """Returns the device string of a split over both devices, the device under test and the reference, as pins name them."""
    tested = f"({context.device})" if ":" in context.device else context.device
    return f"HETERO:{tested},{context.reference}", context.device, context.reference


def assign_nodes(context: CheckContext, network: Network, on_reference: Sequence[str]) -> dict[str, str]:
    """Returns a device for every node: the reference for the nodes in `on_reference`, the device under test for the rest. A node that its
    device refuses is assigned to the second device.

    Raises: Skip if both devices refuse a node.
    """
    _, tested, reference = name_pair(context)
    supported_of_device = {device: context.core.query_network(network, device).supported for device in (tested, reference)}
    reference_nodes = set(on_reference)
    pins = {}
    for node in network.nodes:
        order = (reference, tested) if node.name in reference_nodes else (tested, reference)
        able = [device for device in order if node.name in supported_of_device[device]]
        if not able:
            raise Skip(f"neither {tested} nor {reference} takes {node.label}")
        pins[node.name] = able[0]
    return pins


def load_split(context: CheckContext, network: Network, pins: Mapping[str, str]) -> tuple[ExecutableNetwork, Mapping[str, str]]:
    """Returns the network loaded on both devices, and the pins that it was loaded with.

    A part of a network may lack facts that the whole has, such as the rank of the stacked output of a Loop. A node that the device under
    test therefore refuses goes to the reference. Raises: Skip if no node remains; UnsupportedNodesError.
    """
    pair, tested, reference = name_pair(context)
    by_reference = context.core.query_network(network, reference).supported
    while True:
        try:
            return context.core.load_network(network.with_affinity(dict(pins)), pair), pins
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
        _check_split(context, name, network, assign_nodes(context, network, [node.name]), f"with {node.label} on the reference")


def check_random_parts(name: str, count: int, context: CheckContext) -> None:
    """The outputs are right with random subsets of the nodes on the reference device."""
    network = context.core.read_network(make_model(name))
    draw = random.Random(f"{context.seed} {name}")
    for _ in range(count):
        chosen = [node.name for node in network.nodes if draw.random() < 0.5]
        what = f"seed {context.seed}, with {', '.join(chosen)} on the reference"
        _check_split(context, name, network, assign_nodes(context, network, chosen), what)


def check_batches(name: str, context: CheckContext) -> None:
    """A network split at random runs with several sizes of a symbolic batch."""
    network = context.core.read_network(make_model(name))
    draw = random.Random(f"{context.seed} {name} batches")
    chosen = [node.name for node in network.nodes if draw.random() < 0.5]
    loaded, _ = load_split(context, network, assign_nodes(context, network, chosen))
    with loaded:
        for batch in BATCHES:
            what = f"seed {context.seed}, batch {batch}, with {', '.join(chosen)} on the reference"
            require_expected(loaded, name, context.seed, batch=batch, what=what)


def _check_split(context: CheckContext, name: str, network: Network, pins: Mapping[str, str], what: str) -> None:
    loaded, pins = load_split(context, network, pins)
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
        loaded, _ = load_split(context, network, assign_nodes(context, network, chosen))
        with loaded:
            mismatch = find_mismatch(case, network, loaded, flushes="DENORMALS" in context.get_metric("VALUE_DEVIATIONS"))
        if mismatch is not None:
            raise CheckFailed(f"seed {context.seed}, cut before node {place} of {len(names)}: {mismatch}")
