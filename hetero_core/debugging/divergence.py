"""Compares two devices on the same network: its outputs, then all values in order of execution, to find the first wrong value.

If all inner values are made outputs, a network is compiled differently: nothing is fused across an output, and no
memory of an inner value is reused. So the outputs of the unmodified network are compared first. If their difference disappears once
inner values are outputs, the cause is the device's plan for running the nodes together, not a single node. NumPy is imported on the
first comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetero_core.network.graph import Network, Node
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.network.types import TensorType, ValueSpec, has_known_element
from hetero_core.testing.compare import describe_mismatch, max_absolute_difference, max_relative_difference

RunNetwork = Callable[[Network, Mapping[str, Any]], Mapping[str, Any]]
"""Returns the outputs of a network by name, for inputs by name."""


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """The difference of a value between two devices. The numbers are None if shapes or kinds differ; `mismatch` describes a difference
    that is too large, else it is None.
    """

    value: str
    node: str
    operator: str
    max_absolute_difference: float | None
    max_relative_difference: float | None
    mismatch: str | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The result of comparing two devices: the differences of all `values` in order of execution, and the `first` that is too large.

    `outputs` are the outputs of the unmodified network, each from its first wrong run, else from the run with the largest difference.
    `alone` compares the outputs of the node that makes `first`, run by itself on both devices with the reference's inputs: if they agree,
    the node only amplifies smaller differences of its inputs.
    """

    values: tuple[ValueDifference, ...]
    first: ValueDifference | None
    alone: tuple[ValueDifference, ...]
    outputs: tuple[ValueDifference, ...]

    @property
    def wrong_outputs(self) -> tuple[ValueDifference, ...]:
        """The outputs of the unmodified network that differ by too much."""
        return tuple(each for each in self.outputs if each.mismatch is not None)

    @property
    def agrees(self) -> bool:
        """True if no value differs by too much, in the unmodified network and with its inner values as outputs."""
        return self.first is None and not self.wrong_outputs

    @property
    def is_of_plan(self) -> bool:
        """True if outputs differ, but all values agree once inner values are outputs: the plan is the cause, not a node."""
        return self.first is None and bool(self.wrong_outputs)


def expose_values(network: Network) -> Network:
    """Returns the network with every inner value of a known type as an output, after its own outputs."""
    shown = network.names_of_outputs
    inner = [
        ValueSpec(value, value_type)
        for node in network.nodes
        for value in node.writes
        if value not in shown and (value_type := network.type_of(value)) is not None and has_known_element(value_type)
    ]
    return replace(network, outputs=(*network.outputs, *inner))


def find_divergence(
    network: Network,
    inputs: Mapping[str, Any],
    *,
    reference: RunNetwork,
    other: RunNetwork,
    rtol: float | None = None,
    runs: int = 1,
) -> Divergence:
    """Returns the differences of the outputs and of every value between `reference` and `other`, for the same inputs.

    `other` runs the unmodified network `runs` times. `rtol` None takes the tolerance of each element type. Outputs of random operators
    differ in any two runs.
    """
    unmodified = compare_unmodified(network, inputs, reference=reference, other=other, rtol=rtol, runs=runs)
    exposed = expose_values(network)
    expected, actual = reference(exposed, inputs), other(exposed, inputs)
    written = ((node, value) for node in network.nodes for value in node.writes if value in expected)
    values = [_compare(value, node, actual[value], expected[value], rtol) for node, value in written]
    first = next((each for each in values if each.mismatch is not None), None)
    alone = () if first is None else _compare_alone(network, first.node, {**expected, **inputs}, reference, other, rtol)
    return replace(unmodified, values=tuple(values), first=first, alone=alone)


def compare_unmodified(
    network: Network, inputs: Mapping[str, Any], *, reference: RunNetwork, other: RunNetwork, rtol: float | None, runs: int
) -> Divergence:
    """Returns the differences of the outputs alone, as `find_divergence` does."""
    expected = reference(network, inputs)
    worst: dict[str, ValueDifference] = {}
    for _ in range(runs):
        actual = other(network, inputs)
        for value in network.names_of_outputs:
            difference = _compare(value, network.find_producer(value), actual[value], expected[value], rtol)
            if value not in worst or _is_worse(difference, worst[value]):
                worst[value] = difference
    return Divergence((), None, (), tuple(worst.values()))


def _is_worse(difference: ValueDifference, before: ValueDifference) -> bool:
    if (difference.mismatch is None) != (before.mismatch is None):
        return before.mismatch is None
    return before.mismatch is None and (difference.max_relative_difference or 0.0) > (before.max_relative_difference or 0.0)


def _compare_alone(
    network: Network, name: str, values: Mapping[str, Any], reference: RunNetwork, other: RunNetwork, rtol: float | None
) -> tuple[ValueDifference, ...]:
    part = cut_subnetwork(network, [name])
    if any(spec.name not in values for spec in part.inputs):
        return ()  # inner values of unknown type were not recorded
    # Open shapes are replaced by the shapes of this run, for devices that compile only static shapes.
    part = replace(part, inputs=tuple(ValueSpec(spec.name, _close_shape(spec, values[spec.name])) for spec in part.inputs))
    inputs = {spec.name: values[spec.name] for spec in part.inputs}
    expected, actual = reference(part, inputs), other(part, inputs)
    return tuple(_compare(value, network.node(name), actual[value], expected[value], rtol) for value in expected)


def _close_shape(spec: ValueSpec, value: Any) -> Any:
    is_tensor = isinstance(spec.type, TensorType) and hasattr(value, "shape")
    return TensorType(spec.dtype, tuple(value.shape)) if is_tensor else spec.type


def _compare(value: str, node: Node | None, actual: Any, expected: Any, rtol: float | None) -> ValueDifference:
    name, operator = ("", "") if node is None else (node.name, node.operator)
    return ValueDifference(value, name, operator, **measure_difference(value, actual, expected, rtol))


def measure_difference(name: str, actual: Any, expected: Any, rtol: float | None) -> dict[str, Any]:
    """Returns the numbers and the mismatch of a ValueDifference by their names."""
    is_measured = hasattr(actual, "shape") and hasattr(expected, "shape") and actual.shape == expected.shape
    return {
        "max_absolute_difference": max_absolute_difference(actual, expected) if is_measured else None,
        "max_relative_difference": max_relative_difference(actual, expected) if is_measured else None,
        "mismatch": describe_mismatch(actual, expected, rtol=rtol, name=name),
    }
