"""Recurrent nodes that the engine gives a transposed input which others read, too.

OpenVINO 2026.4 turns the input of LSTM, GRU and RNN to (batch, length, width), merges this Transpose with any equal one, and then, for one
direction, makes a Reshape of it and reads by other strides: whoever else reads it gets its numbers in the wrong order. That is right where
length or batch is 1.
"""

from __future__ import annotations

from hetero_core.engines.inspection import dtype_of_input, dtype_of_value, find_shape
from hetero_core.network.graph import Graph, Node
from hetero_core.transforms.transposes import compose

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_TURN = (1, 0, 2)
"""(length, batch, width) to (batch, length, width)."""
Order = tuple[int, ...]


def find_shared_turn(node: Node, graph: Graph) -> str | None:
    """Returns why the engine is wrong about what reads the input of a recurrent node of one direction, or None."""
    shape = find_shape(node, graph)
    if node.attributes.get("direction", "forward") == "bidirectional" or (shape is not None and 1 in shape[:2]):
        return None
    root, order = _find_root(node.inputs[0], graph)
    turned = compose(order, _TURN)
    if turned == (0, 1, 2):
        return None
    orders: dict[str, Order] = {root: (0, 1, 2)}
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if value in graph.names_of_outputs and orders[value] == turned:
            return _REASON.format(f"the output '{value}' is")
        for reader in (graph.nodes[index] for index in graph.index_of_consumers.get(value, ())):
            if _is_passing(reader, graph):
                orders[reader.outputs[0]] = compose(orders[value], _read_order(reader))
                waiting.append(reader.outputs[0])
                continue
            is_turned_again = reader.op_type in RECURRENT and not reader.domain and reader.inputs[0] == value
            order = compose(orders[value], _TURN) if is_turned_again else orders[value]
            if reader is not node and order == turned:
                return _REASON.format(f"'{reader.name}' ({reader.op_type}) reads")
    return None


_REASON = "OpenVINO reorders what a recurrent node of one direction reads; {} the same numbers, transposed"


def _find_root(value: str, graph: Graph) -> tuple[str, Order]:
    """Returns the value that a value is a transposition of, and the order of its axes."""
    order: Order = (0, 1, 2)
    while (node := graph.find_producer(value)) is not None and _is_passing(node, graph):
        order = compose(_read_order(node), order)
        value = node.inputs[0]
    return value, order


def _is_passing(node: Node, graph: Graph) -> bool:
    """Says whether a node gives its input of three dimensions as it is, or with its axes in another order."""
    if node.domain or len(find_shape(node, graph) or (0, 0, 0)) != 3:
        return False
    if node.op_type in ("Cast", "CastLike"):
        return dtype_of_input(node, graph) == dtype_of_value(node.outputs[0], graph)
    return node.op_type in ("Identity", "Transpose") or (node.op_type == "Dropout" and len(node.inputs) < 3)


def _read_order(node: Node) -> Order:
    return tuple(node.attributes.get("perm", (2, 1, 0))) if node.op_type == "Transpose" else (0, 1, 2)
