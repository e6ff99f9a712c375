"""Shrinks a graph to its smallest part that still fails in the same way, and writes it as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.graphs.trial import Failure, Trial, Way
from hetero_core.debugging.divergence import expose_values
from hetero_core.debugging.reduction import reduce_network
from hetero_core.errors import HeteroError
from hetero_core.kernels.program import compile_program
from hetero_core.network.writer import network_to_proto

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.network.graph import Network

MOST_NUMBERS = 16
"""Constants of more elements are written as inputs."""


def shrink(core: Core, trial: Trial, failure: Failure) -> tuple[Network, Failure]:
    """Returns the smallest part that fails when run the same way, with its failure.

    Values that cross from the rest of the graph into the part become inputs, with the values that the toolkit computed.
    """
    recorded = [record_values(trial.network, feed) for feed in trial.feeds]
    failures = {id(trial.network): failure}

    def fails(part: Network) -> bool:
        if part is trial.network:
            return True
        part_failure = find_failure(core, part, recorded, failure.way)
        if part_failure is not None and _kind(part_failure.text) == _kind(failure.text):
            failures[id(part)] = part_failure
            parts.append(part)
            return True
        return False

    parts: list[Network] = []
    smallest = _drop_outputs(reduce_network(trial.network, fails), fails)
    if smallest is not trial.network:
        # Nodes that only served the dropped outputs can be removed now.
        smallest = reduce_network(smallest, fails)
    return smallest, failures[id(smallest)]


def _drop_outputs(network: Network, fails: Callable[[Network], bool]) -> Network:
    """Returns the network without those outputs that the failure does not need."""
    for spec in network.outputs:
        rest = tuple(output for output in network.outputs if output.name != spec.name)
        smaller = replace(network, outputs=rest)
        if rest and fails(smaller):
            network = smaller
    return network


def find_failure(core: Core, part: Network, recorded: Sequence[Mapping[str, Any]], way: Way) -> Failure | None:
    """Returns the failure of a part that is run in this way; None if it passes or cannot be run."""
    if any(spec.name not in values for values in recorded for spec in part.inputs):
        return None
    try:
        trial = Trial(part, recorded)
        if trial.find_dispute() is not None:
            return None
    except HeteroError:
        return None
    return trial.find_failure(core, [way])


def record_values(network: Network, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every inner value of a run by the toolkit, and the inputs."""
    exposed = expose_values(network)
    outputs = compile_program(exposed).run(tuple(feed[spec.name] for spec in exposed.inputs))
    values = {spec.name: value for spec, value in zip(exposed.outputs, outputs, strict=True) if isinstance(value, np.ndarray)}
    return {**values, **feed}


def _kind(text: str) -> str:
    """Returns the kind of a failure without place and size: a wrong number, or the class of an error."""
    head = text.split(":", 1)[0]
    return head if head.isidentifier() else "wrong"


def write_text(network: Network) -> str:
    """Returns a network as ONNX text, without its larger constants, which are replaced by inputs."""
    import onnx  # heavy

    model = network_to_proto(network)
    for constant in [constant for constant in model.graph.initializer if math.prod(constant.dims) > MOST_NUMBERS]:
        model.graph.initializer.remove(constant)
        model.graph.input.append(onnx.helper.make_tensor_value_info(constant.name, constant.data_type, constant.dims))
    return str(onnx.printer.to_text(model))
