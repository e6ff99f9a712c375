"""The known errors of an engine as a table of rows: operators, a condition, and the reason for refusing a node.

A row describes nodes that the engine accepts but then computes wrongly, fails to run, or crashes on. Nodes that an engine refuses by
itself need no row. Conditions are called with a node and its graph, also for nodes within bodies.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from hetero_core.engines.inspection import dtype_of_input, find_constant, find_shape, has_input
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
    """A fault of an engine.

    `operators` are names such as "Div" and "com.microsoft.QAttention"; "*" stands for every operator. `reason` describes the fault in
    words; "{node.op_type}" in it stands for the operator. `versions` are the engine's versions with the fault. `source` is the report
    ("onnxruntime#6004"), ONNX's own case, or "drawn" for a generated model. `probe` says whether this processor or installation has the
    fault; it is called only for nodes that meet the condition, and should remember its answer. `kind` is a note for readers of the row.
    """

    name: str
    operators: tuple[str, ...]
    reason: str
    versions: str
    source: str
    condition: Condition = always
    probe: Callable[[], bool] | None = None
    kind: str = "wrong"


def state_error(
    name: str,
    operators: str,
    condition: Condition,
    reason: str,
    source: str = "drawn",
    *,
    versions: str,
    probe: Callable[[], bool] | None = None,
) -> KnownError:
    """Returns a row of a table; `operators` are names separated by blanks."""
    return KnownError(name, tuple(operators.split()), reason, versions, source, condition, probe)


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


def find_error(node: Node, graph: Graph, check: Check) -> str | None:
    """Returns the reason that a check gives for a node, or for the first node in its bodies, which the text names; else None."""
    error = check(node, graph)
    if error is not None:
        return error
    for body in node.bodies.values():
        around = surround(body, graph)
        for inner in body.nodes:
            error = find_error(inner, around, check)
            if error is not None:
                return f"its body holds '{inner.name}' ({inner.op_type}): {error}"
    return None


def surround(body: Graph, outer: Graph) -> Graph:
    """Returns a body with the types and constants of the graphs around it."""
    return replace(
        body,
        types=ChainMap(dict(body.types), cast("dict[str, ValueType]", outer.types)),
        initializers=ChainMap(dict(body.initializers), cast("dict[str, Initializer]", outer.initializers)),
    )


def refuse(reason: str) -> Check:
    """Returns a check that refuses every node."""
    return lambda node, graph: reason


def refuse_unless(attribute: str, usual: object, reason: str) -> Check:
    """Returns a check that refuses a node if its attribute differs from the usual value."""
    return lambda node, graph: reason if node.attributes.get(attribute, usual) != usual else None


def differs(attribute: str, usual: object) -> Condition:
    """Returns the condition that an attribute differs from its usual value."""
    return lambda node, graph: node.attributes.get(attribute, usual) != usual


def reads(position: int) -> Condition:
    """Returns the condition that a node has its input at this position."""
    return lambda node, graph: has_input(node, position)


def computes_input(*positions: int) -> Condition:
    """Returns the condition that some of these inputs come with the run."""
    return lambda node, graph: any(has_input(node, index) and node.inputs[index] not in graph.initializers for index in positions)


def has_dtype(*dtypes: str | None) -> Condition:
    """Returns the condition that the element type of the first input is among `dtypes`; None stands for an unknown type."""
    return lambda node, graph: dtype_of_input(node, graph) in dtypes


def may_be_empty(index: int = 0, axes: slice = slice(None)) -> Condition:
    """Returns the condition that an input may have no elements: some of its first sizes are 0 or not known."""
    return is_open(index, axes, least=1)


def is_open(index: int = 0, axes: slice = slice(None), *, least: int = 0) -> Condition:
    """Returns the condition that some of the first sizes of an input is not known, or less than `least`."""

    def condition(node: Node, graph: Graph) -> bool:
        shape = find_shape(node, graph, index)
        return shape is None or not all(isinstance(size, int) and size >= least for size in shape[axes])

    return condition


def may_hold(index: int, is_wrong: Callable[[Any], Any]) -> Condition:
    """Returns the condition that an input is there and may have an element that `is_wrong` marks: it has, or is no constant."""

    def condition(node: Node, graph: Graph) -> bool:
        constant = find_constant(node.inputs[index], graph) if has_input(node, index) else None
        return has_input(node, index) and (constant is None or bool(is_wrong(constant).any()))

    return condition


def both(first: Condition, second: Condition) -> Condition:
    """Returns the condition that two conditions hold."""
    return lambda node, graph: first(node, graph) and second(node, graph)


def follows(*op_types: str) -> Condition:
    """Returns the condition that a node of one of these operators makes the first input."""
    return lambda node, graph: getattr(graph.find_producer(node.inputs[0]), "op_type", None) in op_types


def flattens_axes(node: Node, graph: Graph) -> bool:
    """Says whether axes behind the axis of a Softmax have several elements, so that versions before 13 flatten several axes."""
    shape, axis = find_shape(node, graph), node.attributes.get("axis", 1)
    return not (shape and all(size == 1 for size in shape[axis % len(shape) + 1 :]))


def rounds_aligned_size(node: Node, graph: Graph) -> bool:
    """Says whether a Resize aligns corners and has scales that may give an axis a fractional size, which engines round first."""
    if node.attributes.get("coordinate_transformation_mode") != "align_corners" or not has_input(node, 2):
        return False
    scales, shape = graph.initializers.get(node.inputs[2]), find_shape(node, graph)
    if scales is None:
        return True
    sizes = shape if shape is not None and len(shape) == scales.array.size else (None,) * scales.array.size
    factors = map(float, scales.array)
    return not all(
        factor.is_integer() or (isinstance(size, int) and (size * factor).is_integer())
        for size, factor in zip(sizes, factors, strict=True)
    )


def may_have_empty_axes(node: Node, graph: Graph) -> bool:
    """Says whether the axes of a Squeeze may be an empty list: ONNX then removes no axis, but engines remove all of size 1."""
    if not has_input(node, 1):
        return len(node.attributes.get("axes", (0,))) == 0
    shape = find_shape(node, graph, 1)
    return shape is None or (len(shape) == 1 and (not isinstance(shape[0], int) or shape[0] == 0))


EMPTY_AXES = "the engine takes an empty list of axes for all axes of size 1, and here the list may be empty"
"""The reason of a row for Squeeze."""
