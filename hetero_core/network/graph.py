"""Network, Graph, Node and Initializer: frozen; a pass or a cut returns a new Network that shares nodes and weights.

Rules: nodes stand in topological order; node names are unique in the root graph; each value has one producer; a value named ""
is an absent optional input or an unused output. Imports neither onnx nor an array library at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import numpy as np

from hetero_core.errors import InvalidNetworkError, refuse_pickling, suggest
from hetero_core.network.affinity import resolve_pins
from hetero_core.network.arrays import digest_array
from hetero_core.network.border import EMPTY_BORDER, NO_DECLARATIONS, Border, Declarations, InputInfo, OutputInfo, describe_values
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import ValueSpec, ValueType

EMPTY: Mapping[str, Any] = MappingProxyType({})


def _empty() -> Mapping[str, Any]:
    return EMPTY


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Node:
    """A node of the graph: an operation with its inputs, outputs and attributes.

    `opset` is the version of its domain that its graph or function imports, `since_version` the operator's own version in it (0
    if onnx has no schema for it). `attributes` holds int, float, str (bytes if it is not UTF-8), arrays, ValueTypes, Graphs
    and tuples of these. `captures` are the outer values that its bodies read. `origins` are the names of the model's nodes that it
    replaces; unless a pass created it, this is its own name. Nodes are compared by identity.

    Three fields are computed from the rest. `reads`: all values that the node needs, present inputs first, then captures, each
    once, in order. `writes`: the outputs that have a name. `bodies`: the graph attributes (of If, Loop, Scan, ...) by attribute name.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    opset: int = 1
    since_version: int = 0
    attributes: Mapping[str, Any] = field(default_factory=_empty)
    captures: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    original_name: str | None = None
    reads: tuple[str, ...] = field(init=False)
    writes: tuple[str, ...] = field(init=False)
    bodies: Mapping[str, Graph] = field(init=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not self.origins:
            put(self, "origins", (self.name,))
        inputs, outputs = self.inputs, self.outputs
        is_plain = not self.captures and len(inputs) == 1 and inputs[0]
        put(self, "reads", inputs if is_plain else tuple(dict.fromkeys(filter(None, (*inputs, *self.captures)))))
        put(self, "writes", tuple(filter(None, outputs)) if "" in outputs else outputs)
        bodies = {key: value for key, value in self.attributes.items() if isinstance(value, Graph)} if self.attributes else None
        put(self, "bodies", MappingProxyType(bodies) if bodies else EMPTY)

    def __repr__(self) -> str:
        return f"Node({self.label})"

    def with_bodies(self, bodies: Mapping[str, Graph]) -> Node:
        """Returns the node with these bodies, by attribute; the node itself if it has the same bodies."""
        if all(self.attributes[key] is body for key, body in bodies.items()):
            return self
        return replace(self, attributes=MappingProxyType({**self.attributes, **bodies}))

    @property
    def operator(self) -> str:
        """The operator with its domain and version, as messages write it: "Conv-22", "com.acme:Twist-1"."""
        domain = f"{self.domain}:" if self.domain else ""
        return f"{domain}{self.op_type}-{self.since_version or self.opset}"

    @property
    def label(self) -> str:
        """The node as messages write it: "'conv1' (Conv-22)"."""
        return f"'{self.name}' ({self.operator})"


@dataclass(frozen=True, eq=False)
class Graph:
    """A scope of nodes: the body of a control-flow node, or the root of a network.

    `types` maps values of this scope (inputs, outputs, constants and inner values) to their types as far as they are known.
    """

    name: str
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    nodes: tuple[Node, ...]
    initializers: Mapping[str, Initializer] = field(default_factory=_empty)
    types: Mapping[str, ValueType] = field(default_factory=_empty)

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.name}', {len(self.nodes)} nodes)"

    @cached_property
    def op_types(self) -> frozenset[str]:
        """The operators of its nodes, of any domain; those in bodies are not among them."""
        return frozenset([node.op_type for node in self.nodes])

    @cached_property
    def index_of_producer(self) -> Mapping[str, int]:
        """Value -> position of the node that makes it; inputs and constants are not in it."""
        return {value: index for index, node in enumerate(self.nodes) for value in node.writes}

    def find_producer(self, value: str) -> Node | None:
        """Returns the node that makes a value; None for inputs, constants and values of other graphs."""
        index = self.index_of_producer.get(value)
        return None if index is None else self.nodes[index]

    @cached_property
    def index_of_consumers(self) -> Mapping[str, tuple[int, ...]]:
        """Value -> positions of the nodes that read it, as input or capture, ascending."""
        consumers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for value in node.reads:
                consumers.setdefault(value, []).append(index)
        return {value: tuple(indices) for value, indices in consumers.items()}

    @cached_property
    def index_of_input(self) -> Mapping[str, int]:
        """Input -> position."""
        return {spec.name: index for index, spec in enumerate(self.inputs)}

    @cached_property
    def index_of_initializer(self) -> Mapping[str, int]:
        """Constant -> position."""
        return {name: index for index, name in enumerate(self.initializers)}

    @cached_property
    def names_of_outputs(self) -> frozenset[str]:
        """The values that the graph returns."""
        return frozenset(spec.name for spec in self.outputs)

    def type_of(self, value: str) -> ValueType | None:
        """Returns the type of a value as far as it is known; None if nothing is known."""
        return self.types.get(value)


@dataclass(frozen=True, eq=False, repr=False)
class Network(Graph):
    """A whole model: the root graph with its opsets, its metadata and its affinity.

    `affinity` maps the names of pinned nodes to their devices; it is stored in the ONNX file. `border` describes inputs and outputs beyond
    their types (layouts, states, defaults); the parts of a split network have none. `declarations` has the shapes that the file declares
    and inference does not confirm.
    """

    opsets: Mapping[str, int] = field(default_factory=_empty)
    ir_version: int = 10
    metadata: Mapping[str, str] = field(default_factory=_empty)
    affinity: Mapping[str, str] = field(default_factory=_empty)
    border: Border = EMPTY_BORDER
    declarations: Declarations = NO_DECLARATIONS

    def __reduce__(self) -> NoReturn:
        refuse_pickling(
            f"network '{self.name}'", "pass the path or the bytes of its model, and read it there with Core().read_network"
        )

    @cached_property
    def index_of_node(self) -> Mapping[str, int]:
        """Node name -> position."""
        return {node.name: index for index, node in enumerate(self.nodes)}

    def node(self, name: str) -> Node:
        """Returns the node of this unique name. Raises: InvalidNetworkError."""
        index = self.index_of_node.get(name)
        if index is None:
            raise InvalidNetworkError(
                f"network '{self.name}' has no node '{name}'{suggest(name, self.index_of_node) or ';'} see the names in network.nodes"
            )
        return self.nodes[index]

    def with_affinity(self, pins: Mapping[str, str]) -> Network:
        """Returns this network with more nodes pinned to devices.

        A key is a node's name, a glob, "re:" and a regular expression, or "op:" and an operator type; in this order of precedence.
        A new pin of a node replaces its earlier pin.

        Raises: AffinityError for a pattern that matches nothing and for two patterns of the same rank that disagree on a node.
        """
        resolved = resolve_pins([(node.name, node.op_type) for node in self.nodes], pins)
        return replace(self, affinity=MappingProxyType({**self.affinity, **resolved}))

    @cached_property
    def input_info(self) -> Mapping[str, InputInfo]:
        """Input -> name, precision, layout and shape."""
        return describe_values(InputInfo, self.inputs, self.border)

    @cached_property
    def output_info(self) -> Mapping[str, OutputInfo]:
        """Output -> name, precision, layout and shape."""
        return describe_values(OutputInfo, self.outputs, self.border)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex over everything that shapes the result: nodes in order, values, types, opsets, attributes, the contents of all
        constants. Names of nodes count, too. Cost: reads every constant once and keeps its digest, so that parts are cheap afterwards.
        """
        from hashlib import sha256  # OpenSSL, which most loads do without

        ties, defaults = self.border.states, self.border.defaults.items()
        border = (
            [(state.output, state.input, state.initial.digest) for state in ties],
            [(name, constant.digest) for name, constant in defaults],
            sorted(self.border.bounds.items()),
        )
        described = repr(("hetero network 2", _describe_graph(self), border if self.border.shapes_runs else ()))
        return sha256(described.encode("utf-8", "surrogatepass")).hexdigest()


GraphLike = TypeVar("GraphLike", bound=Graph)


def iterate_graphs(graph: Graph) -> Iterator[Graph]:
    """Yields the graph and every body nested in it, from the outside in."""
    yield graph
    for node in graph.nodes:
        for body in node.bodies.values():
            yield from iterate_graphs(body)


def iterate_nodes(graph: Graph) -> Iterator[Node]:
    """Yields the nodes of the graph and of every body nested in it, from the outside in."""
    for inner in iterate_graphs(graph):
        yield from inner.nodes


def _describe_graph(graph: Graph) -> tuple[object, ...]:
    types = {spec.name: spec.type for spec in (*graph.inputs, *graph.outputs)} | dict(graph.types)
    return (
        *([spec.name for spec in specs] for specs in (graph.inputs, graph.outputs)),
        sorted((name, str(value_type)) for name, value_type in types.items()),
        sorted((name, constant.digest) for name, constant in graph.initializers.items()),
        # The operator names the version that counts: another opset with the same operator is the same.
        [
            (
                node.name,
                node.operator,
                node.inputs,
                node.outputs,
                [(key, _describe_value(node.attributes[key])) for key in sorted(node.attributes)],
            )
            for node in graph.nodes
        ],
    )


def _describe_value(value: Any) -> object:
    if isinstance(value, Graph):
        return _describe_graph(value)
    if isinstance(value, tuple):
        return tuple(map(_describe_value, value))
    if isinstance(value, np.ndarray):
        return "array", digest_array(value)
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        with np.errstate(over="ignore"):  # ONNX stores 32 bits; a larger number becomes an infinity
            return float(np.float32(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (str, bytes)):
        return value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return "type", str(value)
