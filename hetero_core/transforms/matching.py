"""Patterns: trees of operators, found in a network from their last node backwards, and replaced by equivalent nodes.

A pattern counts only if no node outside of it reads the values within, so that no node is computed twice. Numbers are float32
constants of a single element. The operands of `Add` and `Mul` may stand in either order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import Dimension, TensorType
from hetero_core.transforms.rewrite import Replacement, replace_nodes

_COMMUTATIVE = frozenset({"Add", "Mul"})
_RELATIVE_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class AnyValue:
    """Matches any value; if a pattern has the name twice, both places must hold the same value."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A float32 constant of any shape."""

    name: str


@dataclass(frozen=True, slots=True)
class ConstantNumber:
    """A constant of this number; if it is None, any number matches and is stored under the name."""

    number: float | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """A node of ONNX's own domain with these inputs.

    Without `accepts` it has no attributes and no further inputs; otherwise that function decides about both.
    """

    op_type: str
    inputs: tuple[Pattern, ...]
    accepts: Accepts | None = None


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any of several patterns; the first that leads to a match counts."""

    patterns: tuple[Pattern, ...]


Accepts = Callable[[Network, Node], bool]
Pattern = AnyValue | Constant | ConstantNumber | Op | OneOf


@dataclass(frozen=True, slots=True)
class Found:
    """A match of a pattern: values and numbers by name, and the nodes."""

    values: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()


Build = Callable[[Network, Found, Node], Node | Replacement | None]
"""Makes the replacement of a match that ends in a node; its last node makes the outputs of that node. None refuses the match."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern of a node, and the function that builds its replacement."""

    pattern: Op | OneOf
    build: Build


def one_of(*patterns: Pattern) -> OneOf:
    """Returns the pattern that is any of these."""
    return OneOf(patterns)


def op(op_type: str, *inputs: Pattern) -> Op:
    """Returns the pattern of a node without attributes."""
    return Op(op_type, inputs)


def multiply_three(a: Pattern, b: Pattern, c: Pattern) -> OneOf:
    """Returns the pattern of a product of three factors, whichever two are multiplied first."""
    return one_of(*(op("Mul", op("Mul", first, second), third) for first, second, third in ((a, b, c), (a, c, b), (b, c, a))))


def has_perm(*perms: tuple[int, ...]) -> Accepts:
    """Returns the test for a Transpose by any of these orders of axes."""
    return lambda network, node: tuple(node.attributes.get("perm", ())) in perms


def fuse_patterns(network: Network, rules: Sequence[Rule]) -> Network:
    """Returns the network with each match replaced; the new nodes get the origins of all nodes of the match; a single sweep."""
    rules_of_operator: dict[str, list[tuple[Op, Build]]] = {}
    for rule in rules:
        for root in _list_roots(rule.pattern):
            if _list_operators(root) <= network.op_types:
                rules_of_operator.setdefault(root.op_type, []).append((root, rule.build))
    replacements: dict[int, Replacement] = {}
    for node in network.nodes:
        for root, build in rules_of_operator.get(node.op_type, ()) if len(node.writes) == 1 else ():
            found = _apply_rule(network, root, build, node, replacements)
            if found is not None:
                match, replacement = found
                replacements |= {id(matched_node): Replacement(()) for matched_node in match.nodes} | {id(node): replacement}
                break
    return replace_nodes(network, lambda node: replacements.get(id(node))) if replacements else network


def _list_operators(pattern: Pattern) -> frozenset[str]:
    """Returns the operators that every match of a pattern has."""
    if isinstance(pattern, Op):
        return frozenset({pattern.op_type}).union(*map(_list_operators, pattern.inputs))
    if isinstance(pattern, OneOf):
        return frozenset.intersection(*map(_list_operators, pattern.patterns))
    return frozenset()


def _list_roots(pattern: Pattern) -> list[Op]:
    """Returns the alternatives of a pattern."""
    if isinstance(pattern, OneOf):
        return [root for choice in pattern.patterns for root in _list_roots(choice)]
    assert isinstance(pattern, Op)
    return [pattern]


def _apply_rule(
    network: Network, root: Op, build: Build, node: Node, replaced: Collection[int]
) -> tuple[Found, Replacement] | None:
    for match in _match(network, root, node.writes[0], Found()):
        if any(id(matched_node) in replaced for matched_node in match.nodes) or not _is_closed(network, match, node):
            continue
        built = build(network, match, node)
        if built is None:
            continue
        new = Replacement((built,)) if isinstance(built, Node) else built
        # A value may fill two parts of a pattern, scaled in only a part: no new node may read what a removed node made.
        going = {value for matched_node in match.nodes for value in matched_node.writes}
        fresh = {value for added in new.nodes for value in added.writes}
        if not going.isdisjoint(value for added in new.nodes for value in added.inputs if value not in fresh):
            continue
        ordered = sorted(match.nodes, key=lambda matched_node: network.index_of_producer[matched_node.writes[0]])
        origins = tuple(dict.fromkeys(origin for matched_node in ordered for origin in matched_node.origins))
        return match, replace(new, origins=origins)
    return None


def _is_closed(network: Network, match: Found, last: Node) -> bool:
    """Says whether only matched nodes read the matched nodes' outputs, except for the last node's output."""
    ids_of_nodes = {id(node) for node in match.nodes}
    for node in match.nodes:
        if node is last:
            continue
        (value,) = node.writes
        readers = network.index_of_consumers.get(value, ())
        if value in network.names_of_outputs or any(id(network.nodes[index]) not in ids_of_nodes for index in readers):
            return False
    return True


def _match(network: Network, pattern: Pattern, value: str, match: Found) -> Iterator[Found]:
    if isinstance(pattern, OneOf):
        for choice in pattern.patterns:
            yield from _match(network, choice, value, match)
    elif isinstance(pattern, AnyValue | Constant):
        constant = network.initializers.get(value)
        is_fit = isinstance(pattern, AnyValue) or (constant is not None and constant.dtype == "float32")
        if is_fit and match.values.get(pattern.name, value) == value:
            yield Found({**match.values, pattern.name: value}, match.numbers, match.nodes)
    elif isinstance(pattern, ConstantNumber):
        number = read_number(network, value)
        if number is not None and (pattern.number is None or isclose(number, pattern.number, rel_tol=_RELATIVE_TOLERANCE)):
            yield Found(match.values, {**match.numbers, pattern.name: number}, match.nodes) if pattern.name else match
    else:
        yield from _match_op(network, pattern, value, match)


def _match_op(network: Network, pattern: Op, value: str, match: Found) -> Iterator[Found]:
    node = network.find_producer(value)
    if node is None or node.op_type != pattern.op_type or node.domain or node.writes != (value,):
        return
    count = len(pattern.inputs)
    if len(node.inputs) < count or not all(node.inputs[:count]):
        return
    if pattern.accepts is None and (len(node.inputs) > count or node.attributes):
        return
    if pattern.accepts is not None and not pattern.accepts(network, node):
        return
    extended_match = match
    if all(known is not node for known in match.nodes):
        extended_match = Found(match.values, match.numbers, (*match.nodes, node))
    yield from _match_inputs(network, pattern.inputs, node.inputs, extended_match)
    if pattern.op_type in _COMMUTATIVE and count == 2 and pattern.inputs[0] != pattern.inputs[1]:
        yield from _match_inputs(network, pattern.inputs, node.inputs[::-1], extended_match)


def _match_inputs(network: Network, patterns: tuple[Pattern, ...], values: Sequence[str], match: Found) -> Iterator[Found]:
    if not patterns:
        yield match
        return
    for first in _match(network, patterns[0], values[0], match):
        yield from _match_inputs(network, patterns[1:], values[1:], first)


def read_number(network: Network, value: str) -> float | None:
    """Returns the element of a float32 constant of size 1, None for other values."""
    constant = network.initializers.get(value)
    if constant is None or constant.dtype != "float32" or constant.array.size != 1:
        return None
    return float(constant.array.reshape(-1)[0])


def read_shape(network: Network, value: str) -> tuple[Dimension, ...] | None:
    """Returns the shape of a float32 tensor, None if its rank is not known or it is no float32 tensor."""
    value_type = network.type_of(value)
    return value_type.shape if isinstance(value_type, TensorType) and value_type.dtype == "float32" else None


def read_integers(network: Network, value: str) -> tuple[int, ...] | None:
    """Returns the elements of an integer constant, None for other values."""
    constant = network.initializers.get(value)
    if constant is None or constant.dtype not in ("int32", "int64"):
        return None
    return tuple(int(number) for number in constant.array.reshape(-1))


def read_axes(network: Network, node: Node) -> tuple[int, ...] | None:
    """Returns the axes of a reduction, Squeeze or Unsqueeze: an attribute, or a constant second input; None if no axes are given."""
    if "axes" in node.attributes:
        return tuple(node.attributes["axes"])
    return read_integers(network, node.inputs[1]) if len(node.inputs) > 1 else None
