"""Groups: a node with its epilogue, computed by a single step.

A product (Conv, MatMul, Gemm) takes along the additions and the activation that are the only readers of its result, and a product of
bytes the whole expression behind it. A group takes the place of its last node, so everything that it reads is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType

ANCHORS = frozenset({"Conv", "MatMul", "Gemm"})
PRODUCTS = ANCHORS | {"ConvTranspose"}
"""The products that may be those of bytes."""
ADDITIONS = frozenset({"Add", "Sum"})
ACTIVATIONS = frozenset({"Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Swish", "Tanh"})


@dataclass(frozen=True, slots=True)
class Extra:
    """A node of an epilogue: y = node(y), or y + value."""

    node: Node
    value: str = ""


@dataclass(frozen=True)
class Group:
    """A node, its epilogue, and the value that comes out; other outputs only a node without an epilogue has.

    The last `chained` nodes of the epilogue are an expression, as a chain behind a product has it.
    """

    node: Node
    epilogue: tuple[Extra, ...] = ()
    chained: int = 0

    @property
    def product(self) -> Group:
        """The group without the expression."""
        return Group(self.node, self.epilogue[: -self.chained]) if self.chained else self

    def split(self) -> tuple[Group, ...]:
        """Returns smaller groups that compute the same: the product and its expression, or all nodes."""
        if not self.chained:
            return tuple([Group(node) for node in self.members])
        first, *others = self.epilogue[-self.chained :]
        return self.product, Group(first.node, tuple(others))

    @cached_property
    def members(self) -> tuple[Node, ...]:
        """The nodes, in order."""
        return (self.node, *[extra.node for extra in self.epilogue])

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The values that the group computes; "" stands for an absent output."""
        return self.members[-1].outputs[:1] if self.epilogue else self.node.outputs

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The values that come in."""
        if not self.epilogue:
            return self.node.reads
        inner = {value for member in self.members for value in member.writes}
        return tuple(dict.fromkeys([value for member in self.members for value in member.reads if value not in inner]))

    def count_readers(self, value: str) -> int:
        """Returns how many nodes of the group read a value of `reads`."""
        return sum([value in node.reads for node in self.members]) if self.epilogue else 1

    def name_profile(self) -> Node:
        """Returns a node that stands for the group in a profile: its name joins those of the nodes of the model."""
        if not self.epilogue and self.node.origins == (self.node.name,):
            return self.node
        origins = tuple(dict.fromkeys([origin for node in self.members for origin in node.origins]))
        return self.node if origins == (self.node.name,) else replace(self.node, name="+".join(origins), origins=origins)


def form_groups(graph: Graph, types: Mapping[str, TensorType], constants: Mapping[str, object]) -> tuple[Group, ...]:
    """Returns the nodes of a graph as groups, in an order in which they can run."""
    groups: list[Group | None] = []
    index_of_value: dict[str, int] = {}
    for node in graph.nodes:
        joined = _join(node, groups, index_of_value, graph, types, constants)
        if joined.node.op_type in ANCHORS and not joined.node.domain:
            index_of_value.update(dict.fromkeys(filter(None, joined.outputs), len(groups)))
        groups.append(joined)
    return tuple(group for group in groups if group is not None)


def _join(
    node: Node,
    groups: list[Group | None],
    index_of_value: Mapping[str, int],
    graph: Graph,
    types: Mapping[str, TensorType],
    constants: Mapping[str, object],
) -> Group:
    products = {(index_of_value[value], value) for value in node.inputs if value in index_of_value}
    # Of a sum of two products the later product takes the addition: the first is computed by then.
    for position, value in sorted(products, reverse=True):
        group = groups[position]
        if group is None or value in graph.names_of_outputs or len(graph.index_of_consumers.get(value, ())) != 1:
            continue
        extra = _read_extra(node, value, types, constants, group)
        if extra is not None:
            groups[position] = None
            return Group(group.node, (*group.epilogue, extra))
    return Group(node)


def _read_extra(
    node: Node, value: str, types: Mapping[str, TensorType], constants: Mapping[str, object], group: Group
) -> Extra | None:
    if (
        node.domain
        or len(node.writes) != 1
        or value not in types
        or any(extra.node.op_type in ACTIVATIONS for extra in group.epilogue)
    ):
        return None
    if node.op_type in ACTIVATIONS and node.inputs[0] == value:
        return Extra(node) if all(not name or name in constants for name in node.inputs[1:]) else None
    if node.op_type in ADDITIONS and len(node.inputs) == 2 and node.since_version >= 6 and node.inputs[0] != node.inputs[1]:
        other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
        # The result must have the shape of the product: the other side broadcasts, or is equal.
        if other in types and node.outputs[0] in types and types[node.outputs[0]] == types[value]:
            return Extra(node, other)
    return None
