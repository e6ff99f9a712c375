"""Passes that make one operator of what exporters write out: LayerNormalization, Gelu.

A pattern is found from its last node backwards. It counts only where nothing outside of it reads the values within, so that no
node is computed twice. The result is an ONNX operator of the version that introduced it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isclose, sqrt

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType

_LAYER_NORMALIZATION = 17
_GELU = 20


@dataclass(slots=True)
class Match:
    """A walk backwards through a network; `nodes` are those that it took."""

    network: Network
    nodes: list[Node] = field(default_factory=list)

    def take(self, value: str, *op_types: str) -> Node | None:
        """Returns the node that makes a value when it is one of these operators of ONNX's own domain."""
        index = self.network.index_of_producer.get(value)
        node = None if index is None else self.network.nodes[index]
        if node is None or node.op_type not in op_types or node.domain or len(node.writes) != 1:
            return None
        if node not in self.nodes:
            self.nodes.append(node)
        return node

    def take_with_number(self, value: str, op_type: str, number: float, *, is_ordered: bool = False) -> str | None:
        """Returns the other input of a node that has a constant of this one number as an input, the second one where the order counts."""
        node = self.take(value, op_type)
        if node is None or len(node.inputs) != 2:
            return None
        for name, other in [tuple(node.inputs)] if is_ordered else [tuple(node.inputs), tuple(node.inputs[::-1])]:
            found = self.read_number(other)
            if found is not None and isclose(found, number, rel_tol=1e-5):
                return name
        return None

    def read_number(self, value: str) -> float | None:
        """Returns the one element of a float32 constant, None for anything else."""
        constant = self.network.initializers.get(value)
        if constant is None or constant.dtype != "float32" or constant.array.size != 1:
            return None
        return float(constant.array.reshape(-1)[0])

    def is_closed(self, last: Node) -> bool:
        """Says whether nothing but the matched nodes reads what they make, apart from the last one's output."""
        taken = {id(node) for node in self.nodes}
        for node in self.nodes:
            if node is last:
                continue
            readers = [
                self.network.nodes[index] for value in node.writes for index in self.network.index_of_consumers.get(value, ())
            ]
            is_output = not self.network.names_of_outputs.isdisjoint(node.writes)
            if is_output or any(id(reader) not in taken for reader in readers):
                return False
        return True


Find = Callable[[Node, Match], Node | None]
"""Returns the node that stands for a pattern which ends in a node; its outputs are those of that node."""


def fuse_patterns(network: Network, find: Find) -> Network:
    """Returns the network with each match replaced by one node, which gets the origins of all; one sweep."""
    gone: set[int] = set()
    fused: dict[int, Node] = {}
    for node in network.nodes:
        match = Match(network)
        match.take(node.outputs[0] if node.outputs else "", node.op_type)
        found = find(node, match)
        if found is None or not match.is_closed(node) or any(id(taken) in gone for taken in match.nodes):
            continue
        ordered = sorted(match.nodes, key=lambda taken: network.index_of_producer[taken.writes[0]])
        fused[id(node)] = replace(found, origins=tuple(dict.fromkeys(origin for taken in ordered for origin in taken.origins)))
        gone.update(id(taken) for taken in match.nodes)
    if not fused:
        return network
    nodes = (fused.get(id(node), node) for node in network.nodes if id(node) in fused or id(node) not in gone)
    return replace(network, nodes=tuple(nodes))


def fuse_layer_normalization(network: Network) -> Network:
    """Returns the network with (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias over the last axis as one node."""
    return fuse_patterns(network, _find_layer_normalization)


def _find_layer_normalization(node: Node, match: Match) -> Node | None:
    if node.op_type != "Add" or node.domain or len(node.inputs) != 2:
        return None
    for bias, scaled in (node.inputs, node.inputs[::-1]):
        multiply = match.take(scaled, "Mul") if bias in match.network.initializers else None
        if multiply is None or len(multiply.inputs) != 2:
            continue
        for scale, normalized in (multiply.inputs, multiply.inputs[::-1]):
            found = _find_normalized(normalized, match) if scale in match.network.initializers else None
            if found is not None and _is_last_axis(match.network, found[0], (scale, bias)):
                inputs = (found[0], scale, bias)
                attributes = {"axis": -1, "epsilon": found[1]}
                return Node(
                    node.name,
                    "LayerNormalization",
                    inputs,
                    node.outputs,
                    "",
                    _LAYER_NORMALIZATION,
                    _LAYER_NORMALIZATION,
                    attributes,
                )
    return None


def _find_normalized(value: str, match: Match) -> tuple[str, float] | None:
    """Returns x and epsilon."""
    divide = match.take(value, "Div")
    centered = match.take(divide.inputs[0], "Sub") if divide is not None else None
    root = match.take(divide.inputs[1], "Sqrt") if divide is not None else None
    if centered is None or root is None or divide is None:
        return None
    mean = _take_mean(centered.inputs[1], match)
    shifted = match.take(root.inputs[0], "Add")
    if mean is None or mean != centered.inputs[0] or shifted is None:
        return None
    for variance, constant in (shifted.inputs, shifted.inputs[::-1]):
        epsilon = match.read_number(constant)
        squared = None if epsilon is None else _take_mean(variance, match)
        if squared is None or epsilon is None:
            continue
        power = match.take_with_number(squared, "Pow", 2.0, is_ordered=True)
        product = match.take(squared, "Mul") if power is None else None
        if power == divide.inputs[0] or (product is not None and product.inputs == (divide.inputs[0],) * 2):
            return centered.inputs[0], epsilon
    return None


def _take_mean(value: str, match: Match) -> str | None:
    """Returns what a ReduceMean over the last axis averages."""
    node = match.take(value, "ReduceMean")
    if node is None or not node.attributes.get("keepdims", 1) or node.attributes.get("noop_with_empty_axes", 0):
        return None
    axes = node.attributes.get("axes")
    if axes is None and len(node.inputs) > 1 and node.inputs[1] in match.network.initializers:
        axes = tuple(int(axis) for axis in match.network.initializers[node.inputs[1]].array.reshape(-1))
    source = match.network.type_of(node.inputs[0])
    rank = len(source.shape) if isinstance(source, TensorType) and source.shape is not None else 0
    return node.inputs[0] if axes is not None and tuple(axes) in ((-1,), (rank - 1,)) else None


def _is_last_axis(network: Network, source: str, parameters: tuple[str, str]) -> bool:
    """Says whether scale and bias have one float32 number for each element of the last axis."""
    found = network.type_of(source)
    if not isinstance(found, TensorType) or found.dtype != "float32" or not found.shape:
        return False
    return all(
        network.initializers[name].dtype == "float32" and network.initializers[name].shape == found.shape[-1:]
        for name in parameters
    )


def fuse_gelu(network: Network) -> Network:
    """Returns the network with x * (1 + erf(x / sqrt 2)) / 2 as one node, whatever the order of its factors."""
    return fuse_patterns(network, _find_gelu)


def _find_gelu(node: Node, match: Match) -> Node | None:
    if node.op_type != "Mul" or node.domain or len(node.inputs) != 2:
        return None
    return _find_half_last(node, match) or _find_half_first(node, match)


def _find_half_last(node: Node, match: Match) -> Node | None:
    """(x * (1 + erf)) * 0.5."""
    product = match.take_with_number(node.outputs[0], "Mul", 0.5)
    multiply = None if product is None else match.take(product, "Mul")
    if multiply is None:
        return None
    return _find_erf(node, multiply.inputs, match)


def _find_half_first(node: Node, match: Match) -> Node | None:
    """(x * 0.5) * (1 + erf)."""
    for left, right in (node.inputs, node.inputs[::-1]):
        probe = Match(match.network, list(match.nodes))
        source = probe.take_with_number(left, "Mul", 0.5)
        found = None if source is None else _find_erf(node, (source, right), probe)
        if found is not None:
            match.nodes[:] = probe.nodes
            return found
    return None


def _find_erf(node: Node, factors: tuple[str, ...], match: Match) -> Node | None:
    for source, shifted in (factors, factors[::-1]):
        probe = Match(match.network, list(match.nodes))
        inner = probe.take_with_number(shifted, "Add", 1.0)
        erf = None if inner is None else probe.take(inner, "Erf")
        if erf is None:
            continue
        divided = probe.take_with_number(erf.inputs[0], "Div", sqrt(2), is_ordered=True)
        scaled = probe.take_with_number(erf.inputs[0], "Mul", sqrt(0.5)) if divided is None else divided
        if scaled == source:
            match.nodes[:] = probe.nodes
            return Node(node.name, "Gelu", (source,), node.outputs, "", _GELU, _GELU)
    return None
