"""A graph that is being read: nodes, constants and types that its scope, inlined calls included, adds to it, checked as they come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.declarations import Contradiction, Contradictory
from hetero_core.network.graph import Graph, Node
from hetero_core.network.hints import drop_shape
from hetero_core.network.initializers import Initializer
from hetero_core.network.merging import merge_types
from hetero_core.network.opsets import since_version
from hetero_core.network.repeated_names import compare_constants, name_repeated_outputs
from hetero_core.network.scopes import NodeScope, make_unique
from hetero_core.network.soundness import check_single_assignment, check_text
from hetero_core.network.topology import sort_topologically
from hetero_core.network.type_protos import read_type
from hetero_core.network.types import ValueSpec, ValueType

if TYPE_CHECKING:
    import onnx


@dataclass(slots=True, eq=False)
class Draft:
    """The parts of one graph. `contradictions` are those of the whole model; `root_opset` is its version of ONNX's own domain."""

    contradictions: list[Contradictory]
    root_opset: int
    nodes: list[Node] = field(default_factory=list)
    initializers: dict[str, Initializer] = field(default_factory=dict)
    types: dict[str, ValueType] = field(default_factory=dict)
    pins: dict[str, str] = field(default_factory=dict)
    node_names: set[str] = field(default_factory=set)

    def add_initializer(self, name: str, initializer: Initializer) -> None:
        """Adds a constant, in place of an earlier one of its name. Raises: InvalidNetworkError for one of no name or another type."""
        check_text(name)
        if not name:
            raise InvalidNetworkError("a constant has no name; name every initializer.")
        if name in self.initializers:
            self.contradictions += compare_constants(name, self.initializers[name], initializer)
        self.initializers[name] = initializer

    def add_types(self, protos: Iterable[onnx.ValueInfoProto], scope: NodeScope) -> None:
        """Adds the types that a file declares."""
        for proto in protos:
            value_type = read_type(proto.type, f"value '{proto.name}'")
            if value_type is not None:
                self.types[scope.value(proto.name)] = value_type

    def add_node(self, node: Node, pin: str | None) -> None:
        """Adds a node, with the device that it is pinned to."""
        self.nodes.append(node)
        if pin is not None:
            self.pins[node.name] = pin

    def add_copy(self, source: str, target: str, scope: NodeScope) -> None:
        """Adds an Identity that gives a value a second name."""
        name = make_unique(f"{scope.path}Identity_{len(self.nodes)}", self.node_names)
        self.node_names.add(name)
        opset = scope.opsets.get("", self.root_opset)
        version = since_version("Identity", "", opset)
        self.add_node(Node(name, "Identity", (source,), (target,), opset=opset, since_version=version), scope.pin)

    def copy_repeated_outputs(
        self, outputs: tuple[ValueSpec, ...], scope: NodeScope, names: Iterable[str]
    ) -> tuple[ValueSpec, ...]:
        """Returns the outputs of the graph with a value of its own for each place; `names` are those of all values of the file."""
        renamed, copies = name_repeated_outputs(outputs, {*names, *(value for node in self.nodes for value in node.outputs)})
        for source, target in copies:
            self.add_copy(source, target, scope)
        self.types.update({spec.name: spec.type for spec in renamed if spec.name not in self.types})
        return renamed

    def finish(self, name: str, inputs: tuple[ValueSpec, ...], outputs: tuple[ValueSpec, ...]) -> Graph:
        """Returns the graph. Raises: InvalidNetworkError for a graph with a circle, or a value that is produced twice."""
        for constant, initializer in self.initializers.items():
            self._add_constant_type(constant, initializer, graph=name)
        # An output that is a constant has its type, whatever the file leaves open.
        outputs = tuple(ValueSpec(spec.name, self.types[spec.name]) if spec.name in self.initializers else spec for spec in outputs)
        present = {spec.name for spec in (*inputs, *outputs)}.union(self.initializers, *(node.outputs for node in self.nodes))
        check_text(name)
        graph = Graph(
            name,
            inputs,
            outputs,
            sort_topologically(self.nodes),
            MappingProxyType(self.initializers),
            # Files may keep types of values that an optimizer removed.
            MappingProxyType({value: value_type for value, value_type in self.types.items() if value in present}),
        )
        check_single_assignment(graph)
        return graph

    def _add_constant_type(self, name: str, initializer: Initializer, *, graph: str) -> None:
        declared = self.types.get(name)
        if declared is not None and merge_types(declared, initializer.type) is None:
            if merge_types(drop_shape(declared), initializer.type) is None:
                raise InvalidNetworkError(
                    f"constant '{name}' is declared as {declared}, but holds {initializer.type}; correct the declaration or remove it."
                )
            self.contradictions.append(Contradiction(name, graph, declared, initializer.type, "the constant itself"))
        self.types[name] = initializer.type
