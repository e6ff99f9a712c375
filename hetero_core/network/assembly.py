"""GraphProto to Graph: nodes with decoded attributes, constants lifted, calls inlined, captures found, order and names checked.

A `GraphReader` reads a single model. Imports onnx only inside functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.errors import AffinityError, InvalidNetworkError
from hetero_core.limits import ReadBudget
from hetero_core.network import tensors as kinds
from hetero_core.network.affinity import AFFINITY_KEY, PLAIN_AFFINITY_KEY
from hetero_core.network.border import word_contradiction
from hetero_core.network.graph import EMPTY, Graph, Node
from hetero_core.network.hints import drop_shape
from hetero_core.network.initializers import Initializer
from hetero_core.network.scopes import (
    OPSET_DOMAIN,
    OPSET_KEY,
    ORIGINAL_NAME_KEY,
    ORIGINS_KEY,
    FunctionKey,
    NodeScope,
    check_text,
    find_schema,
    make_unique,
    name_nodes,
    names_of_values,
    normal_domain,
    read_opsets,
    since_version,
)
from hetero_core.network.splitting import NO_RAW_DATA, RawData
from hetero_core.network.tensors import kind_of_value, read_attribute, read_sparse_tensor, read_tensor, read_type
from hetero_core.network.topology import find_free_values, sort_topologically
from hetero_core.network.types import TensorType, ValueSpec, ValueType, merge_types, read_record
from hetero_core.network.weights import WeightSource

if TYPE_CHECKING:
    import onnx


def count_nodes(protos: Sequence[onnx.NodeProto]) -> int:
    """Returns how many nodes there are, with those in bodies at any depth."""
    bodies = (attribute.g.node for proto in protos for attribute in proto.attribute if attribute.type == kinds.GRAPH)
    return len(protos) + sum(map(count_nodes, bodies))


@dataclass(slots=True, eq=False)
class Draft:
    """The parts of a graph. `contradictions` are shared by the whole model; `root_opset` is its version of ONNX's own domain."""

    contradictions: list[str]
    root_opset: int
    nodes: list[Node] = field(default_factory=list)
    initializers: dict[str, Initializer] = field(default_factory=dict)
    types: dict[str, ValueType] = field(default_factory=dict)
    pins: dict[str, str] = field(default_factory=dict)
    node_names: set[str] = field(default_factory=set)

    def add_initializer(self, name: str, initializer: Initializer) -> None:
        """Adds a constant, in place of an earlier one of its name. Raises: InvalidNetworkError if it has no name, or another type."""
        check_text(name)
        if not name:
            raise InvalidNetworkError("a constant has no name; name every initializer.")
        earlier = self.initializers.get(name)
        if earlier is not None and earlier.type != initializer.type:
            # ONNX Runtime 1.32 refuses it, too.
            raise InvalidNetworkError(
                f"the constant '{name}' is there twice, as {earlier.type} and as {initializer.type}; expected one type. Remove one of "
                "them."
            )
        if earlier is not None and earlier.digest != initializer.digest:
            self.contradictions.append(
                f"the constant '{name}' is there twice with different values; the later one is used. Remove one of them."
            )
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
        opset = scope.opsets.get("", self.root_opset)
        version = since_version("Identity", "", opset)
        self.add_node(Node(name, "Identity", (source,), (target,), opset=opset, since_version=version), scope.pin)

    def copy_repeated_outputs(
        self, outputs: tuple[ValueSpec, ...], scope: NodeScope, names: Iterable[str]
    ) -> tuple[ValueSpec, ...]:
        """Returns the outputs of the graph with a value of its own for each place; `names` are those of all values of the file.

        The first place of a value keeps its name; the output at position 2 that repeats `y` is `y_2`.
        """
        used = {*names, *(spec.name for spec in outputs), *(value for node in self.nodes for value in node.outputs)}
        renamed: dict[str, ValueSpec] = {}
        for position, spec in enumerate(outputs):
            name = spec.name
            if name in renamed:
                name = make_unique(f"{name}_{position}", used)
                self.add_copy(spec.name, name, scope)
                self.types.setdefault(name, spec.type)
            renamed[name] = ValueSpec(name, spec.type)
        return tuple(renamed.values())

    def finish(self, name: str, inputs: tuple[ValueSpec, ...], outputs: tuple[ValueSpec, ...]) -> Graph:
        """Returns the graph. Raises: InvalidNetworkError for a graph with a circle, or a value that is produced twice."""
        for constant, initializer in self.initializers.items():
            declared = self.types.get(constant, initializer.type)
            if merge_types(declared, initializer.type) is None:
                if merge_types(drop_shape(declared), initializer.type) is None:
                    raise InvalidNetworkError(
                        f"constant '{constant}' is declared as {declared}, but holds {initializer.type}; correct the declaration or "
                        "remove it."
                    )
                self.contradictions.append(word_contradiction(constant, name, declared, initializer.type, "the constant itself"))
            self.types[constant] = initializer.type
        # An output that is a constant has the type of the constant, even if the file leaves sizes open.
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


def check_single_assignment(graph: Graph) -> None:
    """Refuses a value with two sources in a scope."""
    sources = [(spec.name, f"input '{spec.name}'") for spec in graph.inputs]
    sources += [(name, f"constant '{name}'") for name in graph.initializers]
    sources += [(value, f"node {node.label}") for node in graph.nodes for value in node.writes]
    source_of_value: dict[str, str] = {}
    for value, source in sources:
        if value in source_of_value:
            raise InvalidNetworkError(
                f"value '{value}' has two sources, {source_of_value[value]} and {source}; a value has one. Rename one of them."
            )
        source_of_value[value] = source


def check_everything_is_produced(graph: Graph) -> None:
    """Refuses a value that is read, by a node or as an output, and has no source."""
    for value in find_free_values(graph):
        reader = next((node for node in graph.nodes if value in node.reads), None)
        problem = f"output '{value}' is produced by nothing"
        if reader is not None:
            problem = f"node {reader.label} reads value '{value}', which nothing produces"
        raise InvalidNetworkError(f"{problem}; the model is incomplete. Connect it, or export the model again.")


_CONSTANTS: dict[str, tuple[int, Any]] = {
    "value": (kinds.TENSOR, None),
    "sparse_value": (kinds.SPARSE_TENSOR, None),
    "value_float": (kinds.FLOAT, np.float32),
    "value_floats": (kinds.FLOATS, np.float32),
    "value_int": (kinds.INT, np.int64),
    "value_ints": (kinds.INTS, np.int64),
    "value_string": (kinds.STRING, object),
    "value_strings": (kinds.STRINGS, object),
}
"""The attributes of Constant: their kinds, and the element types of lists and numbers. Source: ONNX Constant-13."""


class GraphReader:
    """Reads the graphs of a model. `contradictions` are declarations that are proved wrong, and pins that have no effect."""

    def __init__(self, model: onnx.ModelProto, weights: WeightSource, raw_data: Mapping[int, RawData], budget: ReadBudget) -> None:
        """`raw_data` maps positions of initializers of the root graph to the bytes that were split off the proto."""
        self._model = model
        self._budget = budget
        self._weights = weights
        self._raw_data = raw_data
        self._functions = {(normal_domain(each.domain), each.name, each.overload): each for each in model.functions}
        self._sizes: dict[FunctionKey, tuple[int, int]] = {}
        self.contradictions: list[str] = []
        self._ignored_pins: dict[str, str] = {}
        self._root_opset = next((entry.version for entry in model.opset_import if not normal_domain(entry.domain)), 1)
        self._value_names: set[str] = set(names_of_values(model.graph)) if model.functions else set()

    def read_root(self, opsets: Mapping[str, int]) -> tuple[Graph, Mapping[str, str]]:
        """Returns the root graph, its declared types and the pins of its nodes."""
        draft = Draft(self.contradictions, self._root_opset)
        graph = self._read_graph(self._model.graph, NodeScope(opsets), draft, self._raw_data)
        check_everything_is_produced(graph)
        if self._ignored_pins:
            pins = [f"{place} -> {device}" for place, device in self._ignored_pins.items()]
            rest = f" and {len(pins) - 3} more" if len(pins) > 3 else ""
            self.contradictions.append(
                f"the affinity of {', '.join(pins[:3])}{rest} has no effect: constants, inputs and outputs follow the nodes that read or "
                "make them. Pin these nodes, or remove the affinity."
            )
        return graph, {node.name: draft.pins[node.name] for node in graph.nodes if node.name in draft.pins}

    def _read_graph(
        self, proto: onnx.GraphProto, scope: NodeScope, draft: Draft, raw_data: Mapping[int, RawData] = NO_RAW_DATA
    ) -> Graph:
        for position, tensor in enumerate(proto.initializer):
            name = scope.value(tensor.name)
            initializer = read_tensor(tensor, self._weights, f"initializer '{name}'", raw=raw_data.get(position))
            self._note_pin(tensor, f"initializer '{name}'")
            draft.add_initializer(name, initializer)
        for sparse in proto.sparse_initializer:
            name = scope.value(sparse.values.name)
            draft.add_initializer(
                name, read_sparse_tensor(sparse, self._weights, f"sparse initializer '{name}'", budget=self._budget)
            )
        # Up to IR version 3 constants are listed as inputs, too; later files may do so to make them replaceable.
        inputs = self._read_specs(
            (spec for spec in proto.input if scope.value(spec.name) not in draft.initializers), scope, "input"
        )
        outputs = self._read_specs(proto.output, scope, "output")
        draft.add_types((*proto.value_info, *proto.input, *proto.output), scope)
        self._add_nodes(draft, proto.node, scope)
        if len({spec.name for spec in outputs}) < len(outputs):
            outputs = draft.copy_repeated_outputs(outputs, scope, names_of_values(proto))
        return draft.finish(proto.name, inputs, outputs)

    def _read_specs(self, protos: Iterable[onnx.ValueInfoProto], scope: NodeScope, kind: str) -> tuple[ValueSpec, ...]:
        specs = []
        for proto in protos:
            value_type = read_type(proto.type, f"{kind} '{proto.name}'")
            check_text(proto.name)
            if not proto.name:
                raise InvalidNetworkError(f"an {kind} has no name; name every {kind} of every graph.")
            self._note_pin(proto, f"{kind} '{proto.name}'")
            specs.append(ValueSpec(scope.value(proto.name), TensorType(None) if value_type is None else value_type))
        return tuple(specs)

    def _add_nodes(self, draft: Draft, protos: Sequence[onnx.NodeProto], scope: NodeScope) -> None:
        for proto in protos:
            check_text(proto.op_type, proto.domain, proto.name, *proto.input, *proto.output)
        names = name_nodes([(proto.name, proto.op_type) for proto in protos], scope.path, draft.node_names)
        for index, (proto, name) in enumerate(zip(protos, names, strict=True)):
            if index % 8 == 0:
                self._budget.check_time(name, steps=8)
            op_type, domain = proto.op_type, normal_domain(proto.domain)
            # A field of a message takes longer to be read than all else.
            if self._functions and (domain, op_type, proto.overload) in self._functions:
                self._inline(draft, proto, name, (domain, op_type, proto.overload), scope)
            elif op_type == "Constant" and not domain:
                self._add_constant(draft, proto, name, scope)
            else:
                self._add_node(draft, proto, name, scope)

    def _add_node(self, draft: Draft, proto: onnx.NodeProto, name: str, scope: NodeScope) -> None:
        own_name, op_type, domain = proto.name, proto.op_type, normal_domain(proto.domain)
        owner = f"node '{name}' ({op_type})"
        entries = proto.metadata_props
        metadata = {entry.key: entry.value for entry in entries} if entries else EMPTY
        noted, origins = _read_notes(metadata, owner) if metadata else (0, ())
        opset = noted or scope.opset(domain, owner)
        pin = _read_pin(metadata, owner, scope) if metadata else scope.pin
        fields = proto.attribute
        inner = scope if pin == scope.pin else replace(scope, pin=pin)
        attributes = self._read_attributes(proto, owner, inner) if fields else EMPTY
        since = since_version(op_type, domain, opset)
        if since == 1 and not domain and "consumed_inputs" in attributes and op_type != "BatchNormalization":
            # A hint of opset 1 about inputs that may be overwritten: no result depends on it. BatchNormalization-1 requires it.
            attributes = {key: value for key, value in attributes.items() if key != "consumed_inputs"}
        bodies = [value for value in attributes.values() if isinstance(value, Graph)] if fields else ()
        inputs = scope.values_named(proto.input)
        # ONNX Runtime 1.32 dies of an absent bias of LayerNormalization. Loop has to have two inputs; custom operators may count theirs.
        while inputs and not inputs[-1] and not domain and not bodies:
            inputs = inputs[:-1]
        node = Node(
            name,
            op_type,
            inputs,
            scope.values_named(proto.output),
            domain,
            opset,
            since,
            MappingProxyType(dict(attributes)) if attributes else EMPTY,
            tuple(dict.fromkeys(value for body in bodies for value in find_free_values(body))),
            origins,
            metadata.get(ORIGINAL_NAME_KEY, None if own_name == name else own_name),
        )
        check_arity(node)
        draft.add_node(node, pin)

    def _read_attributes(self, proto: onnx.NodeProto, owner: str, scope: NodeScope) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for attribute in proto.attribute:
            name = attribute.name
            check_text(name)
            if name in attributes:
                raise InvalidNetworkError(f"{owner} has the attribute '{name}' twice; remove one of them.")
            if attribute.ref_attr_name:
                if scope.attributes is None:
                    raise InvalidNetworkError(
                        f"attribute '{name}' of {owner} refers to the function attribute '{attribute.ref_attr_name}', but the node "
                        "is in no function. Give it a value."
                    )
                # If the call leaves out the attribute, each reference to it is left out, too. Source: ONNX IR, Functions.
                if attribute.ref_attr_name in scope.attributes:
                    attributes[name] = scope.attributes[attribute.ref_attr_name]
            elif attribute.type == kinds.GRAPH:
                attributes[name] = self._read_body(attribute.g, scope, owner)
            else:
                attributes[name] = read_attribute(attribute, self._weights, owner)
        return attributes

    def _read_body(self, proto: onnx.GraphProto, scope: NodeScope, owner: str) -> Graph:
        draft = Draft(self.contradictions, self._root_opset)
        self._budget.check_depth(scope.depth + 1, owner)
        graph = self._read_graph(proto, replace(scope, depth=scope.depth + 1), draft)
        for name, pin in draft.pins.items():
            if pin != scope.pin:
                raise AffinityError(
                    f"node '{name}' in a body of {owner} is pinned to {pin}; a body runs where its node runs. Pin the node itself."
                )
        return graph

    def _add_constant(self, draft: Draft, proto: onnx.NodeProto, name: str, scope: NodeScope) -> None:
        owner = f"node '{name}' (Constant)"
        if len(proto.output) != 1 or not proto.output[0] or not proto.attribute:
            raise InvalidNetworkError(
                f"{owner} has {len(proto.output)} outputs and {len(proto.attribute)} attributes; expected one output and one value. "
                "Correct the node."
            )
        self._note_pin(proto, f"Constant node '{name}'")
        # Tools leave notes in attributes of their own. ONNX Runtime, too, takes the first value and no notice of the remaining attributes.
        attribute = next((each for each in proto.attribute if each.name in _CONSTANTS), proto.attribute[0])
        kind, dtype = _CONSTANTS.get(attribute.name, (0, None))
        if not kind:
            raise InvalidNetworkError(
                f"{owner} has the attribute '{attribute.name}'; expected value, sparse_value or one of value_int(s), ... Rename it."
            )
        if kind == kinds.SPARSE_TENSOR and attribute.type in (kind, 0):  # files of 2017 state no kind
            initializer = read_sparse_tensor(attribute.sparse_tensor, self._weights, owner, budget=self._budget)
        elif kind == kinds.TENSOR and attribute.type in (kind, 0) and not attribute.ref_attr_name:
            initializer = read_tensor(attribute.t, self._weights, owner)
        else:
            elements = self._read_attributes(proto, owner, scope).get(attribute.name)
            if kind_of_value(elements) not in (kind, 0):
                raise InvalidNetworkError(
                    f"{owner} has the attribute '{attribute.name}' of another kind than its name says; correct its type, or give its value "
                    "in the call of the function."
                )
            initializer = Initializer.of_array(np.asarray(elements, dtype))
        draft.add_initializer(scope.value(proto.output[0]), initializer)

    def _note_pin(self, proto: onnx.NodeProto | onnx.TensorProto | onnx.ValueInfoProto, place: str) -> None:
        """Records a pin at a place that has no device of its own."""
        for entry in proto.metadata_props:
            if entry.key in (AFFINITY_KEY, PLAIN_AFFINITY_KEY) and entry.value.strip():
                self._ignored_pins.setdefault(place, entry.value)

    def _inline(self, draft: Draft, proto: onnx.NodeProto, name: str, key: FunctionKey, scope: NodeScope) -> None:
        function = self._functions[key]
        owner = f"node '{name}' (call of '{function.name}')"
        if key in scope.calls:
            walk = " -> ".join(f"{domain}:{op_type}" for domain, op_type, _ in (*scope.calls, key))
            raise InvalidNetworkError(
                f"{owner} is a call of a function by itself: {walk}. ONNX functions do not recurse. Use Loop, or write the calls out."
            )
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        is_wrapper = key[0] == OPSET_DOMAIN
        self._take_room(key, function, "" if is_wrapper else name, owner, scope)
        for kind, passed, expected in (("inputs", proto.input, function.input), ("outputs", proto.output, function.output)):
            if len(passed) > len(expected):
                raise InvalidNetworkError(
                    f"{owner} has {len(passed)} {kind}; its function '{function.name}' takes {len(expected)}. Correct the call."
                )
        values = dict.fromkeys(function.input, "")
        values.update(zip(function.input, map(scope.value, proto.input), strict=False))
        # An output needs a copy if the function returns an input, or the same value twice.
        copies: list[tuple[str, str]] = []
        for formal, actual in zip(function.output, map(scope.value, proto.output), strict=False):
            if actual and formal in values:
                copies.append((formal, actual))
            elif actual:
                values[formal] = actual
        inner = NodeScope(
            read_opsets(function.opset_import, f"function '{function.name}'"),
            "" if is_wrapper else f"{name}/",
            values,
            self._bind_attributes(proto, function, owner, scope),
            _read_pin(metadata, owner, scope),
            (*scope.calls, key),
            self._value_names,
            scope.depth + 1,
        )
        if is_wrapper and len(function.node) == 1:
            self._add_node(draft, function.node[0], name, inner)
            return
        draft.add_types(function.value_info, inner)
        self._add_nodes(draft, function.node, inner)
        for formal, actual in copies:
            draft.add_copy(values[formal], actual, inner)

    def _take_room(self, key: FunctionKey, function: onnx.FunctionProto, path: str, owner: str, scope: NodeScope) -> None:
        """Takes the expanded call off the budget: nodes, and the bytes of names and attributes."""
        is_repeated = key in self._sizes
        if not is_repeated:
            self._sizes[key] = function.ByteSize(), count_nodes(function.node)
        nbytes, nodes = self._sizes[key]
        self._budget.check_depth(scope.depth + 1, owner)
        if key[0] == OPSET_DOMAIN:
            return
        self._budget.take_nodes(nodes, owner)
        # A node has a name of its own and, most often, a single value. The attributes of the first call are those in the file.
        self._budget.take_memory((nbytes if is_repeated else 0) + 2 * nodes * len(path), owner)

    def _bind_attributes(self, proto: onnx.NodeProto, function: onnx.FunctionProto, owner: str, scope: NodeScope) -> dict[str, Any]:
        bound = {default.name: read_attribute(default, self._weights, owner) for default in function.attribute_proto}
        attributes = self._read_attributes(proto, owner, scope)
        unknown = sorted(set(attributes) - set(bound) - set(function.attribute))
        if unknown:
            raise InvalidNetworkError(
                f"{owner} gives the attributes {', '.join(unknown)}, which the function does not have. "
                "Remove them, or declare them in the function."
            )
        return {**bound, **attributes}


def _read_notes(metadata: Mapping[str, str], owner: str) -> tuple[int, tuple[str, ...]]:
    """Returns the opset and the origins that a packed network notes for a node; 0 and empty without a note."""
    text, listed = metadata.get(OPSET_KEY, "0"), metadata.get(ORIGINS_KEY, "[]")
    try:
        return int(text), read_record(tuple[str, ...], json.loads(listed))
    except (ValueError, TypeError) as error:
        raise InvalidNetworkError(
            f"{owner} has '{OPSET_KEY}' = '{text[:40]}' and '{ORIGINS_KEY}' = '{listed[:40]}'; expected an opset version and a list of "
            "names. Remove this metadata."
        ) from error


def _read_pin(metadata: Mapping[str, str], owner: str, scope: NodeScope) -> str | None:
    key = AFFINITY_KEY if AFFINITY_KEY in metadata else PLAIN_AFFINITY_KEY
    pin = metadata.get(key)
    if pin is None:
        return scope.pin
    if not pin.strip():
        raise AffinityError(f"{owner} has an empty '{key}'; expected a device name.")
    return pin


_UNBOUNDED = 2**31 - 1
"""The number that onnx states as the most inputs of a variadic operator."""


def check_arity(node: Node) -> None:
    """Refuses a node that its operator's schema does not allow. Raises: InvalidNetworkError."""
    if not node.since_version:
        return
    demands = find_schema(node.op_type, node.since_version, node.domain)
    for kind, values, (least, most) in (("inputs", node.inputs, demands.inputs), ("outputs", node.outputs, demands.outputs)):
        if not least <= len(values) <= most:
            expected = str(least) if least == most else f"{least} or more" if most >= _UNBOUNDED else f"{least} to {most}"
            raise InvalidNetworkError(
                f"node {node.label} has {len(values)} {kind}; its operator has {expected}. Correct the node, or export the model again."
            )
    if "" in node.inputs:
        for position, value in enumerate(node.inputs):
            # Inputs after the formal inputs belong to the last of these, which is variadic.
            if not value and demands.needed[min(position, len(demands.needed) - 1)]:
                raise InvalidNetworkError(f"node {node.label} lacks its input {position}, which its operator needs. Connect it.")
    for name, value in node.attributes.items():
        own, demanded = kind_of_value(value), demands.kinds.get(name)
        # An empty list has no kind.
        if demanded is not None and own != demanded and (own or demanded not in kinds.LISTS):
            raise InvalidNetworkError(
                f"attribute '{name}' of node {node.label} is {kinds.KIND_NAMES.get(own, 'an empty list')}; its operator takes "
                f"{kinds.KIND_NAMES.get(demanded, 'another kind')}. Correct it, or export the model again."
            )
    for name in demands.required:
        if name not in node.attributes:
            raise InvalidNetworkError(f"node {node.label} lacks the attribute '{name}', which its operator needs. Give it a value.")
