"""Graph to GraphProto: nodes, bodies, attributes, types and constants; nodes of another opset wrapped into functions.

One `GraphWriter` writes one model. What it does with constants and which types it states are given to it. Imports onnx only inside
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hetero_core.errors import InvalidNetworkError
from hetero_core.network import attributes as kinds
from hetero_core.network.affinity import AFFINITY_KEY
from hetero_core.network.border import BORDER_KEY, NO_BORDER, border_to_json
from hetero_core.network.graph import EMPTY, Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.notes import OPSET_KEY, no_notes
from hetero_core.network.opsets import since_version
from hetero_core.network.scopes import OPSET_DOMAIN
from hetero_core.network.tensors import write_tensor, write_type
from hetero_core.network.types import ValueSpec, ValueType

if TYPE_CHECKING:
    import onnx


class WeightWriter(Protocol):
    """A function by which a `GraphWriter` stores a constant."""

    def write(self, name: str, initializer: Initializer, proto: onnx.TensorProto) -> None:
        """Fills `proto` with the constant or with a reference to it."""


class InlineWeights:
    """Constants stored in the model."""

    def write(self, name: str, initializer: Initializer, proto: onnx.TensorProto) -> None:
        """Copies the constant into `proto`."""
        write_tensor(initializer.array, proto, name=name)


class GraphWriter:
    """Writes the graphs of one model. `functions` are the wrappers that the nodes written so far need."""

    def __init__(
        self, weights: WeightWriter, states_type: Callable[[ValueType], bool], *, notes_of_node: Callable[[Node], Mapping[str, str]]
    ) -> None:
        import onnx  # heavy

        self._onnx = onnx
        self._weights = weights
        self._states_type = states_type
        self._notes_of_node = notes_of_node
        self._since: dict[tuple[str, str, int], int] = {}
        self.functions: list[onnx.FunctionProto] = []

    def write_graph(
        self, graph: Graph, proto: onnx.GraphProto, opsets: Mapping[str, int], *, affinity: Mapping[str, str] = EMPTY
    ) -> None:
        """Fills `proto`. `opsets` are those that the nodes in it have where nothing else is said."""
        proto.name = graph.name or "graph"
        self._write_specs(graph.inputs, proto.input)
        self._write_specs(graph.outputs, proto.output)
        border = {spec.name for spec in (*graph.inputs, *graph.outputs)}
        for name, initializer in graph.initializers.items():
            self._weights.write(name, initializer, proto.initializer.add())
        for name, value_type in graph.types.items():
            if name not in border and name not in graph.initializers and self._states_type(value_type):
                info = proto.value_info.add()
                info.name = name
                write_type(value_type, info.type)
        for node in graph.nodes:
            self._write_node_or_wrapper(node, proto.node.add(), opsets, affinity.get(node.name))

    def write_defaults(self, defaults: Mapping[str, Initializer], proto: onnx.GraphProto) -> None:
        """Adds the values of inputs that may be left out, as initializers of the inputs' names. Source: ONNX IR 4."""
        for name, constant in defaults.items():
            self._weights.write(name, constant, proto.initializer.add())

    def _write_specs(self, specs: tuple[ValueSpec, ...], protos: Any) -> None:
        for spec in specs:
            proto = protos.add()
            proto.name = spec.name
            if self._states_type(spec.type):
                write_type(spec.type, proto.type)

    def _write_node_or_wrapper(self, node: Node, proto: onnx.NodeProto, opsets: Mapping[str, int], pin: str | None) -> None:
        if self.has_opset(node, opsets):
            self.write_node(node, proto, opsets)
            if node.opset != opsets[node.domain]:
                self._note_opset(node, proto)
        else:
            self._write_wrapper(node, proto)
        if pin is not None:
            proto.metadata_props.add(key=AFFINITY_KEY, value=pin)

    def has_opset(self, node: Node, opsets: Mapping[str, int]) -> bool:
        """Says whether the operator means the same under `opsets` as under the node's own opset."""
        version = opsets[node.domain]
        if version == node.opset:
            return True
        key = (node.op_type, node.domain, version)
        if key not in self._since:
            self._since[key] = since_version(*key)
        return node.since_version != 0 and self._since[key] == node.since_version

    def _note_opset(self, node: Node, proto: onnx.NodeProto) -> None:
        if self._notes_of_node is not no_notes:
            proto.metadata_props.add(key=OPSET_KEY, value=str(node.opset))

    def _write_wrapper(self, node: Node, proto: onnx.NodeProto) -> None:
        """Writes a call of a function that holds just this node and imports its opset: a model has one opset per domain."""
        opsets = {OPSET_DOMAIN: 1, **opsets_of_nodes([node])}
        function = self._onnx.FunctionProto(
            domain=OPSET_DOMAIN, name=f"{node.op_type}_{len(self.functions)}", input=node.reads, output=node.writes
        )
        self.functions.append(function)
        for domain, version in opsets.items():
            function.opset_import.add(domain=domain, version=version)
        self.write_node(node, function.node.add(), opsets)
        proto.name, proto.op_type, proto.domain = node.name, function.name, OPSET_DOMAIN
        proto.input.extend(node.reads)
        proto.output.extend(node.writes)

    def write_node(self, node: Node, proto: onnx.NodeProto, opsets: Mapping[str, int]) -> None:
        """Fills `proto` with the node and its bodies."""
        proto.name, proto.op_type = node.name, node.op_type
        if node.domain:
            proto.domain = node.domain
        proto.input.extend(node.inputs)
        proto.output.extend(node.outputs)
        for name, value in node.attributes.items():
            self._write_attribute(node, name, value, proto.attribute.add(), opsets)
        for key, text in self._notes_of_node(node).items():
            proto.metadata_props.add(key=key, value=text)

    def _write_attribute(self, node: Node, name: str, value: Any, proto: onnx.AttributeProto, opsets: Mapping[str, int]) -> None:
        proto.name = name
        if isinstance(value, Graph):
            proto.type = kinds.GRAPH
            self.write_graph(value, proto.g, opsets)
        elif not kinds.write_attribute(value, proto):
            proto.type = self._type_of_empty_list(node, name) if value == () else _refuse_attribute(node, name, value)

    def _type_of_empty_list(self, node: Node, name: str) -> int:
        """Returns the kind of list that the operator's schema gives an attribute; INTS where it gives none."""
        if node.since_version:
            declared = self._onnx.defs.get_schema(node.op_type, node.opset, node.domain).attributes.get(name)
            # Of a kind that is no list an empty one would come back as a number.
            if declared is not None and declared.type.value in kinds.LISTS:
                return int(declared.type.value)
        return kinds.INTS


def _refuse_attribute(node: Node, name: str, value: Any) -> int:
    raise InvalidNetworkError(
        f"attribute '{name}' of node {node.label} holds {type(value).__name__}; expected int, float, str, bytes, an array, a type, "
        "a Graph, or a tuple of one of them. Convert it."
    )


def opsets_of_nodes(nodes: Iterator[Node] | list[Node] | tuple[Node, ...]) -> dict[str, int]:
    """Returns domain -> opset of the nodes and of those in their bodies; the first one counts where they differ."""
    opsets: dict[str, int] = {}
    for node in nodes:
        opsets.setdefault(node.domain, node.opset)
        for body in node.bodies.values():
            for domain, version in opsets_of_nodes(body.nodes).items():
                opsets.setdefault(domain, version)
    return opsets


def write_model(network: Network, writer: GraphWriter) -> onnx.ModelProto:
    """Returns the model of a network as `writer` writes it.

    The IR version is that of the network, raised to what its opsets, its wrappers and its metadata need.
    """
    import onnx  # heavy

    model = onnx.ModelProto(producer_name="hetero")
    opsets = {**opsets_of_nodes(network.nodes), **network.opsets}
    writer.write_graph(network, model.graph, opsets, affinity=network.affinity)
    model.functions.extend(writer.functions)
    if writer.functions:
        opsets[OPSET_DOMAIN] = 1
    for domain, version in opsets.items():
        model.opset_import.add(domain=domain, version=version)
    writer.write_defaults(network.border.defaults, model.graph)
    described = border_to_json(network.border)
    for key, text in (network.metadata if described == NO_BORDER else {**network.metadata, BORDER_KEY: described}).items():
        model.metadata_props.add(key=key, value=text)
    standard = [entry for entry in model.opset_import if entry.domain in _VERSIONED_DOMAINS]
    needed = int(onnx.helper.find_min_ir_version_for(standard, ignore_unknown=True))
    # Node metadata came with IR version 10, functions with 8, constants that are no inputs with 4.
    extras = 10 if network.affinity else 8 if writer.functions else 4
    model.ir_version = max(network.ir_version, needed, extras)
    return model


_VERSIONED_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
