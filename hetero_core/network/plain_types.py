"""Types of networks whose operators are common and whose sizes are known, inferred here, node after node, without onnx.

onnx's inference takes the network as a message and gives it back as one, some 20 us per node and a library to load; most networks need
none of it. Rules: what is inferred here is what onnx infers, and complete; a network with one node that has no rule here, one size that
is open, or one declaration that says more, is left to onnx as a whole, and so are all errors. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping

from hetero_core.network.graph import Network, Node
from hetero_core.network.merging import merge_types
from hetero_core.network.plain_rules import LARGEST_SIZE, NO_RULE, PLAIN_RULES, SECOND_OUTPUTS, Constants, Inputs, Shape
from hetero_core.network.types import LARGEST_RANK, TensorType, ValueType


def infer_plainly(network: Network) -> dict[str, ValueType] | None:
    """Returns the types of all values of a network, or None for a network that onnx has to be asked about.

    Cost: linear, some 2 us per node.
    """
    constants = network.initializers
    types: dict[str, ValueType] = {spec.name: spec.type for spec in network.inputs}
    types.update((name, constant.type) for name, constant in constants.items())
    for node in network.nodes:
        inferred = infer_plain_node(node, types, constants)
        if inferred is None:
            return None
        types.update(inferred)
    return types if all(says_no_more(known, types.get(name)) for name, known in network.types.items()) else None


def infer_plain_node(node: Node, types: Mapping[str, ValueType], constants: Constants) -> dict[str, ValueType] | None:
    """Returns the types of the outputs of a node whose inputs have these types; None where onnx has to be asked."""
    since, rule = PLAIN_RULES.get(node.op_type, NO_RULE)
    second = SECOND_OUTPUTS.get((node.op_type, len(node.outputs)))
    if node.domain or node.since_version < since or not node.outputs or not node.outputs[0]:
        return None
    if second is None and len(node.outputs) != 1:
        return None
    inputs: Inputs = []
    for value in node.inputs:
        value_type = types.get(value)
        if not isinstance(value_type, TensorType) or value_type.dtype is None or value_type.shape is None:
            return None
        inputs.append(value_type)
    inferred = rule(node, inputs, constants)
    if inferred is None or not _is_complete(inferred.shape) or (second is not None and node.since_version < second[0]):
        return None
    if inputs and inferred.shape == inputs[0].shape and inferred.dtype == inputs[0].dtype:
        # Values that share a type are compared by it at once.
        inferred = inputs[0]
    if second is None or not node.outputs[1]:
        return {node.outputs[0]: inferred}
    return {node.outputs[0]: inferred, node.outputs[1]: TensorType(second[1], inferred.shape)}


def _is_complete(shape: Shape | None) -> bool:
    if shape is None or len(shape) > LARGEST_RANK:
        return False
    return all(isinstance(size, str) or (size is not None and 0 <= size < LARGEST_SIZE) for size in shape)


def says_no_more(declared: ValueType, inferred: ValueType | None) -> bool:
    """Says whether a declaration agrees with an inferred type and adds nothing to it."""
    return inferred is not None and (declared is inferred or merge_types(declared, inferred) == inferred)
