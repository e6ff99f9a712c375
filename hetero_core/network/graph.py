"""Network, Graph, Node and Initializer: frozen; a pass or a cut returns a new Network that shares nodes and weights.

Rules: nodes stand in topological order; node names are unique in the root graph; each value has one producer; a value named ""
is an absent optional input or an unused output. Imports neither onnx nor an array library at run time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from hetero_core.errors import InvalidNetworkError, refuse_pickling, suggest
from hetero_core.network.affinity import resolve_pins
from hetero_core.network.arrays import digest_array
from hetero_core.network.border import EMPTY_BORDER, Border, InputInfo, OutputInfo, describe_inputs, describe_outputs
from hetero_core.network.declarations import NO_DECLARATIONS, Declarations
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import ValueSpec, ValueType

if TYPE_CHECKING:
    from hashlib import _Hash

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
        return describe_inputs(self.inputs, self.border)

    @cached_property
    def output_info(self) -> Mapping[str, OutputInfo]:
        """Output -> name, precision, layout and shape."""
        return describe_outputs(self.outputs, self.border)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex over everything that shapes the result: graph, attributes, types, weights. Names of nodes count, too."""
        return fingerprint_network(self)


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


_FLOAT32_END = 3.4028235677973366e38
"""Half a step above the largest float32."""
_FORMAT = b"hetero network 1\n"


def fingerprint_network(network: Network) -> str:
    """Returns the SHA-256, in hex, over nodes in order, values, types, opsets, attributes and the contents of all constants.

    Cost: reads every constant once and keeps its digest, so that parts of the network are cheap after the whole.
    """
    from hashlib import sha256  # OpenSSL, which most loads do without

    digest = sha256(_FORMAT)
    _feed_graph(digest, network)
    if network.border.shapes_runs:
        _feed_border(digest, network.border)
    return digest.hexdigest()


def _feed_border(digest: _Hash, border: Border) -> None:
    for state in border.states:
        _feed_texts(digest, "state", (state.output, state.input))
        _feed(digest, "d", state.initial.digest)
    for name, constant in border.defaults.items():
        _feed_texts(digest, "default", [name])
        _feed(digest, "d", constant.digest)
    _feed_texts(digest, "bounds", (f"{name}={border.bounds[name]}" for name in sorted(border.bounds)))


def _feed(digest: _Hash, kind: str, content: bytes) -> None:
    """Feeds an item; its kind and length go first, so that no two sequences of items give the same bytes."""
    digest.update(f"{kind}{len(content)}:".encode())
    digest.update(content)


def _feed_texts(digest: _Hash, kind: str, texts: Iterable[str]) -> None:
    items = list(texts)
    _feed(digest, kind, str(len(items)).encode())
    for text in items:
        _feed(digest, "t", text.encode("utf-8", "surrogatepass"))


def _feed_graph(digest: _Hash, graph: Graph) -> None:
    _feed_texts(digest, "inputs", (spec.name for spec in graph.inputs))
    _feed_texts(digest, "outputs", (spec.name for spec in graph.outputs))
    types = {spec.name: spec.type for spec in (*graph.inputs, *graph.outputs)} | dict(graph.types)
    _feed_texts(digest, "types", (f"{value}={types[value]}" for value in sorted(types)))
    for value in sorted(graph.initializers):
        _feed_texts(digest, "constant", [value])
        _feed(digest, "d", graph.initializers[value].digest)
    _feed(digest, "nodes", str(len(graph.nodes)).encode())
    for node in graph.nodes:
        _feed_node(digest, node)


def _feed_node(digest: _Hash, node: Node) -> None:
    # The operator names the version that counts: another opset with the same operator is the same.
    _feed_texts(digest, "node", (node.name, node.operator))
    _feed_texts(digest, "reads", node.inputs)
    _feed_texts(digest, "writes", node.outputs)
    for key in sorted(node.attributes):
        _feed_texts(digest, "attribute", [key])
        _feed_value(digest, node.attributes[key])


def _feed_value(digest: _Hash, value: Any) -> None:
    if isinstance(value, Graph):
        _feed(digest, "graph", b"")
        _feed_graph(digest, value)
    elif isinstance(value, tuple):
        _feed(digest, "list", str(len(value)).encode())
        for each in value:
            _feed_value(digest, each)
    elif isinstance(value, (str, bytes)):
        _feed(digest, "text", value if isinstance(value, bytes) else value.encode("utf-8"))
    elif isinstance(value, float):
        # ONNX stores 32 bits; a larger number becomes an infinity.
        _feed(digest, "float", struct.pack("<f", value if not abs(value) >= _FLOAT32_END else math.copysign(math.inf, value)))
    elif isinstance(value, int):
        _feed(digest, "int", str(int(value)).encode())
    elif isinstance(value, np.ndarray):
        _feed(digest, "array", digest_array(value))
    elif isinstance(value, np.generic):
        _feed_value(digest, value.item())
    else:
        _feed(digest, "type", str(value).encode())
