"""TransformNetwork of TEMPLATE: one elimination, one decomposition, one fusion, as a device with kernels of its own would have.

After them each node maps to one kernel. Query and load apply the same list; every pass keeps the origins of the nodes.
"""

from __future__ import annotations

import numpy as np
import onnx.defs

from hetero_core.network.graph import Network, Node
from hetero_core.transforms.copies import eliminate_copies
from hetero_core.transforms.rewrite import Replacement, fuse_pairs, replace_nodes, run_passes

# Beyond these bounds 1/b leaves the normal range of float32, and a/b is no longer a*(1/b).
_SMALLEST, _LARGEST = 1e-30, 1e30


def transform_network(network: Network) -> Network:
    """Returns the network as the kernels of this device want it."""
    return run_passes(network, (eliminate_copies, decompose_divisions, fuse_repeated_relu))


def decompose_divisions(network: Network) -> Network:
    """Writes a / b as a * Reciprocal(b) where b is a constant of safe size; exact within one unit in the last place."""
    return replace_nodes(network, lambda node: _divide_by_multiplication(node, network))


def _divide_by_multiplication(node: Node, network: Network) -> Replacement | None:
    # Division before opset 7 broadcasts by an attribute.
    if node.op_type != "Div" or node.domain or node.since_version < 7:
        return None
    divisor = network.initializers.get(node.inputs[1])
    if divisor is None or divisor.dtype not in ("float32", "float64"):
        return None
    size = np.abs(divisor.array)
    if not ((size > _SMALLEST) & (size < _LARGEST)).all():
        return None
    inverse = f"{node.outputs[0]}/reciprocal"
    if inverse in network.types:
        return None
    return Replacement(
        (
            _make_node(f"{node.name}/reciprocal", "Reciprocal", (node.inputs[1],), (inverse,), node.opset),
            _make_node(f"{node.name}/multiply", "Mul", (node.inputs[0], inverse), node.outputs, node.opset),
        ),
        types={inverse: divisor.type},
    )


def _make_node(name: str, op_type: str, inputs: tuple[str, ...], outputs: tuple[str, ...], opset: int) -> Node:
    since_version = onnx.defs.get_schema(op_type, opset, "").since_version
    return Node(name, op_type, inputs, outputs, opset=opset, since_version=since_version)


def fuse_repeated_relu(network: Network) -> Network:
    """Makes one Relu of two in a row: the second changes nothing."""
    return fuse_pairs(network, _fuse_relu)


def _fuse_relu(first: Node, second: Node) -> Node | None:
    if not (first.op_type == second.op_type == "Relu" and first.domain == second.domain == "" and first.opset == second.opset):
        return None
    return Node(
        second.name,
        "Relu",
        first.inputs,
        second.outputs,
        opset=second.opset,
        since_version=second.since_version,
    )
