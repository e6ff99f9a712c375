"""The known errors of an engine as a table of rows: operators, a condition, and the reason for refusing a node.

A row describes nodes that the engine accepts but then computes wrongly, fails to run, or crashes on. Nodes that an engine refuses by
itself need no row. Conditions are called with a node and its graph, also for nodes within bodies.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import cast

from hetero_core.engines.inspection import find_shape, has_input
from hetero_core.network.graph import Graph, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import ValueType

Check = Callable[[Node, Graph], str | None]
"""Returns the engine's fault with a node, in words, or None."""
Condition = Callable[[Node, Graph], bool]
"""Says whether the engine may be wrong about a node: True as well if types, sizes or constants that decide it are not known."""


def always(node: Node, graph: Graph) -> bool:
    """The condition of a row that refuses every node of its operators."""
    return True


@dataclass(frozen=True)
class KnownError:
    """One fault of an engine.

    `operators` are names such as "Div" and "com.microsoft.QAttention"; "*" stands for every operator. `reason` describes the fault in
    words; "{node.op_type}" in it stands for the operator. `versions` are the engine's versions with the fault. `source` is the report
    ("onnxruntime#6004"), ONNX's own case, or "drawn" for a generated model. `probe` says whether this processor or installation has the
    fault; it is called only for nodes that meet the condition, and should remember its answer.
    """

    name: str
    operators: tuple[str, ...]
    reason: str
    versions: str
    source: str
    condition: Condition = always
    probe: Callable[[], bool] | None = None


def tabulate(rows: Iterable[KnownError]) -> Check:
    """Returns a check that gives the reason of the first row that a node meets."""
    rows_of_operator: dict[str, list[KnownError]] = {}
    for row in rows:
        for operator in row.operators:
            rows_of_operator.setdefault(operator, []).append(row)
    everywhere = rows_of_operator.pop("*", [])

    def check(node: Node, graph: Graph) -> str | None:
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for row in (*rows_of_operator.get(operator, ()), *everywhere):
            if row.condition(node, graph) and (row.probe is None or row.probe()):
                reason: str = row.reason.replace("{node.op_type}", node.op_type)
                return reason
        return None

    return check


def find_error(node: Node, graph: Graph, check: Check, *, check_in_body: Check | None = None) -> str | None:
    """Returns the reason that a check gives for a node, or for the first node in its bodies, which the text names; else None.

    `check_in_body` replaces `check` for nodes in bodies. A body is shown with the types and constants that it captures.
    """
    error = check(node, graph)
    if error is not None:
        return error
    check_inner = check if check_in_body is None else check_in_body
    for inner, body in _iterate_bodies(node, graph):
        error = check_inner(inner, body)
        if error is not None:
            return f"its body holds '{inner.name}' ({inner.op_type}): {error}"
    return None


def _iterate_bodies(node: Node, graph: Graph) -> Iterator[tuple[Node, Graph]]:
    """Yields the nodes in a node's bodies, each with its graph, to which types and constants of the graphs around it are added."""
    for body in node.bodies.values():
        around = replace(
            body,
            types=ChainMap(dict(body.types), cast("dict[str, ValueType]", graph.types)),
            initializers=ChainMap(dict(body.initializers), cast("dict[str, Initializer]", graph.initializers)),
        )
        for inner in body.nodes:
            yield inner, around
            yield from _iterate_bodies(inner, around)


def refuse(reason: str) -> Check:
    """Returns a check that refuses every node."""
    return lambda node, graph: reason


def refuse_unless(attribute: str, usual: object, reason: str) -> Check:
    """Returns a check that refuses a node if its attribute differs from the usual value."""
    return lambda node, graph: reason if node.attributes.get(attribute, usual) != usual else None


def may_have_empty_axes(node: Node, graph: Graph) -> bool:
    """Says whether the axes of a Squeeze may be an empty list: ONNX then removes no axis, but engines remove all of size 1."""
    if not has_input(node, 1):
        return len(node.attributes.get("axes", (0,))) == 0
    shape = find_shape(node, graph, 1)
    return shape is None or (len(shape) == 1 and (not isinstance(shape[0], int) or shape[0] == 0))


def refuse_empty_axes(node: Node, graph: Graph) -> str | None:
    """Refuses a Squeeze whose list of axes may be empty."""
    reason = "the engine takes an empty list of axes for all axes of size 1, and here the list may be empty"
    return reason if may_have_empty_axes(node, graph) else None
