"""Tables of operators that an engine computes wrongly, or fails to run: each maps an operator to a check that returns why a node is
refused, or None.

Nodes that an engine refuses by itself need no entry. A check is asked about a node and the graph around it, also for nodes within bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hetero_core.engines.inspection import find_shape, has_input
from hetero_core.network.graph import Graph, Node, iterate_graphs

Check = Callable[[Node, Graph], str | None]
"""Returns what the engine gets wrong about a node, in words, or None."""


def find_error(node: Node, graph: Graph, check: Check, *, check_in_body: Check | None = None) -> str | None:
    """Returns the reason that a check gives for a node, or for the first node in its bodies, which the text names; None if all are right.

    `check_in_body` is asked in place of `check` about nodes in bodies. A body does not know the types of what it captures: a node
    that is refused there is asked about once more with those of `graph`.
    """
    error = check(node, graph)
    if error is not None:
        return error
    check_inner = check if check_in_body is None else check_in_body
    for outer in node.bodies.values():
        for body in iterate_graphs(outer):
            for inner in body.nodes:
                error = check_inner(inner, body)
                if error is not None:
                    error = check_inner(inner, replace(body, types={**graph.types, **body.types}))
                if error is not None:
                    return f"its body holds '{inner.name}' ({inner.op_type}): {error}"
    return None


def refuse(reason: str) -> Check:
    """Returns a check that refuses every node."""
    return lambda node, graph: reason


def refuse_unless(attribute: str, usual: object, reason: str) -> Check:
    """Returns a check that refuses a node whose attribute has another value than the usual one."""
    return lambda node, graph: reason if node.attributes.get(attribute, usual) != usual else None


def refuse_empty_axes(node: Node, graph: Graph) -> str | None:
    """Refuses a Squeeze whose list of axes may be empty: the standard removes no axis, ONNX Runtime and OpenVINO all axes of size 1."""
    if has_input(node, 1):
        shape = find_shape(node, graph, 1)
        may_be_empty = shape is None or (len(shape) == 1 and (not isinstance(shape[0], int) or shape[0] == 0))
    else:
        may_be_empty = len(node.attributes.get("axes", (0,))) == 0
    return "the engine takes an empty list of axes for all axes of size 1, and here the list may be empty" if may_be_empty else None
