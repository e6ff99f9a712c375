"""A pass that joins products of one value with several constant matrices, as the projections of attention, into one product and a Split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hetero_core.network.graph import Initializer, Network, Node
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType, ValueType
from hetero_core.transforms.constants import drop_unread

_MATMUL_OPSET, _ADD_OPSET, _SPLIT_OPSET = 13, 14, 18


@dataclass(frozen=True, slots=True)
class _Projection:
    """x @ weight, or that and a bias: its nodes, what it makes and its constants."""

    nodes: tuple[Node, ...]
    output: str
    weight: str
    bias: str | None


def join_projections(network: Network) -> Network:
    """Returns the network with all MatMuls of one value with constant float32 matrices as one; those with a bias apart from those without.

    The joined product stands where the first one stood; a Split makes the values under their old names.
    """
    groups: dict[tuple[str, int, bool], list[_Projection]] = {}
    for node in network.nodes:
        found = _read_projection(network, node)
        if found is not None:
            rows = network.initializers[found.weight].shape[0]
            groups.setdefault((node.inputs[0], rows, found.bias is not None), []).append(found)
    joined = [(key[0], parts) for key, parts in groups.items() if len(parts) > 1]
    if not joined:
        return network
    joiner = _Joiner(network)
    placed = {id(parts[0].nodes[0]): joiner.join(source, parts) for source, parts in joined}
    gone = {id(node) for _, parts in joined for part in parts for node in part.nodes}
    nodes: list[Node] = []
    for node in network.nodes:
        nodes += placed.get(id(node), () if id(node) in gone else (node,))
    return drop_unread(
        replace(
            network,
            nodes=tuple(nodes),
            types=MappingProxyType(joiner.types),
            initializers=MappingProxyType(joiner.constants),
        )
    )


def _read_projection(network: Network, node: Node) -> _Projection | None:
    if node.op_type != "MatMul" or node.domain or len(node.inputs) != 2 or node.inputs[0] in network.initializers:
        return None
    weight, source = network.initializers.get(node.inputs[1]), network.type_of(node.inputs[0])
    if weight is None or weight.dtype != "float32" or len(weight.shape) != 2 or 0 in weight.shape:
        return None
    if not isinstance(source, TensorType) or source.shape is None or len(source.shape) < 2:
        return None
    output = node.outputs[0]
    readers = [network.nodes[index] for index in network.index_of_consumers.get(output, ())]
    if len(readers) == 1 and output not in network.names_of_outputs:
        bias = _read_bias(network, readers[0], output, weight.shape[1])
        if bias is not None:
            return _Projection((node, readers[0]), readers[0].outputs[0], node.inputs[1], bias)
    return _Projection((node,), output, node.inputs[1], None)


def _read_bias(network: Network, node: Node, value: str, size: int) -> str | None:
    if node.op_type != "Add" or node.domain or node.since_version < 7 or len(node.inputs) != 2:
        return None
    name = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
    constant = network.initializers.get(name)
    return name if constant is not None and constant.dtype == "float32" and constant.shape == (size,) else None


class _Joiner:
    """What the joined products add to a network."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._names = FreshNames(network)
        self.types: dict[str, ValueType] = dict(network.types)
        self.constants: dict[str, Initializer] = dict(network.initializers)

    def join(self, source: str, parts: Sequence[_Projection]) -> tuple[Node, ...]:
        """Returns the nodes that stand for several projections."""
        import numpy as np  # late: only a network with such products needs it

        base = parts[0].nodes[0]
        origins = tuple(dict.fromkeys(origin for part in parts for node in part.nodes for origin in node.origins))
        arrays = [self.constants[part.weight].array for part in parts]
        weight = self._hold(f"{base.inputs[1]}/joined", np.concatenate(arrays, axis=1))
        found = self._network.type_of(source)
        assert isinstance(found, TensorType)
        assert found.shape is not None
        made = TensorType("float32", (*found.shape[:-1], sum(array.shape[1] for array in arrays)))
        value = self._name(f"{base.outputs[0]}/joined", made)
        nodes = [self._make(base.name, "MatMul", (source, weight), (value,), _MATMUL_OPSET)]
        if parts[0].bias is not None:
            biases = [self.constants[part.bias].array for part in parts if part.bias is not None]
            bias = self._hold(f"{parts[0].bias}/joined", np.concatenate(biases))
            added = self._name(f"{parts[0].output}/joined", made)
            nodes.append(self._make(self._names.node(f"{base.name}/bias"), "Add", (value, bias), (added,), _ADD_OPSET))
            value = added
        sizes = self._hold(f"{base.outputs[0]}/sizes", np.asarray([array.shape[1] for array in arrays], np.int64))
        outputs = tuple(part.output for part in parts)
        split = self._make(self._names.node(f"{base.name}/split"), "Split", (value, sizes), outputs, _SPLIT_OPSET)
        nodes.append(replace(split, attributes={"axis": len(made.shape or ()) - 1}))
        return tuple(replace(node, origins=origins) for node in nodes)

    def _make(self, name: str, op_type: str, inputs: tuple[str, ...], outputs: tuple[str, ...], opset: int) -> Node:
        return Node(name, op_type, inputs, outputs, "", opset, opset)

    def _hold(self, wanted: str, array: Any) -> str:
        name = self._names.value(wanted)
        self.constants[name] = made = Initializer.of_array(array)
        self.types[name] = made.type
        return name

    def _name(self, wanted: str, value_type: TensorType) -> str:
        name = self._names.value(wanted)
        self.types[name] = value_type
        return name
