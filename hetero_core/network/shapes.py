"""Types by onnx, of networks that `plain_types` does not know: its inference, and the rules and authors of custom operators, merged.

Rules: onnx sees a skeleton without large weights and, at first, without the declared types, so that a wrong declaration is found;
nodes of another opset than the model's are inferred by their own. Nothing that is known is ever lost.
"""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hetero_core.errors import ExtensionError, InvalidNetworkError
from hetero_core.limits import ReadBudget
from hetero_core.network.border import EMPTY_BORDER
from hetero_core.network.contrib_types import infer_contrib, knows_contrib
from hetero_core.network.encoding import GraphWriter, opsets_of_nodes, write_model
from hetero_core.network.graph import Graph, Network, Node, iterate_graphs, iterate_nodes
from hetero_core.network.growth import find_growth
from hetero_core.network.hints import word_source
from hetero_core.network.inferable_windows import write_inferable_windows
from hetero_core.network.inference import CustomTypes, rebuild_graph
from hetero_core.network.initializers import Initializer
from hetero_core.network.known_values import compute_known_value
from hetero_core.network.merging import merge_types, unite_types
from hetero_core.network.notes import no_notes
from hetero_core.network.opsets import since_version
from hetero_core.network.ranks import infer_ranks
from hetero_core.network.signatures import infer_by_signature
from hetero_core.network.soundness import check_ranks
from hetero_core.network.tensors import write_tensor
from hetero_core.network.type_protos import read_type
from hetero_core.network.types import TensorType, ValueSpec, ValueType, has_known_element

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger(__name__)

LARGEST_READ_CONSTANT = 1024
"""Bytes up to which onnx sees a constant's values: shapes, axes and the like are small."""
_MOST_ROUNDS = 8


def infer_with_onnx(network: Network, infer_custom_types: CustomTypes | None, budget: ReadBudget | None) -> Network:
    """Returns the network with all types that onnx, the rules of ONNX Runtime's operators and the author of custom ones tell.

    Raises: as `inference.infer_types`.
    """
    inference = _Inference(infer_custom_types, {**opsets_of_nodes(network.nodes), **network.opsets}, budget=budget)
    # What follows from types alone, of which then follows that shapes may be followed.
    network = inference.run_onnx(network, lambda _: False, follows_shapes=False)
    if _holds_shapes(network):
        network = inference.run_onnx(network, lambda _: False)
    if inference.declared_more:
        network = inference.run_onnx(network, lambda _: True)
    for _ in range(_MOST_ROUNDS):
        if not inference.needs_sweep(network):
            break
        inference.learnt = False
        network = inference.sweep(network, {}, {})
        if not inference.learnt:
            break
        network = inference.run_onnx(network, lambda _: True)
    return network


def _holds_shapes(network: Network) -> bool:
    """Says whether some type is open, and some node makes a shape that may tell it."""
    graphs = list(iterate_graphs(network))
    return any(node.op_type in ("Shape", "Size") for graph in graphs for node in graph.nodes) and any(
        _leaves_open(node, graph.types) for graph in graphs for node in graph.nodes
    )


class SkeletonWeights:
    """Constants as shape inference needs them: values of small ones, of others only type and shape."""

    def write(self, name: str, initializer: Initializer, proto: onnx.TensorProto) -> None:
        """Fills `proto`; a large constant becomes an external one without a file."""
        from hetero_core.dtypes import onnx_of_dtype

        if initializer.nbytes <= LARGEST_READ_CONSTANT and initializer.dtype != "string":
            write_tensor(initializer.array, proto, name=name)
            return
        proto.name, proto.data_type, proto.data_location = name, onnx_of_dtype(initializer.dtype), proto.EXTERNAL
        proto.dims.extend(initializer.shape)


@dataclass(slots=True, eq=False)
class _Inference:
    """One inference over one network: what is asked, and whether the last step learnt something."""

    custom_types: CustomTypes | None
    opsets: Mapping[str, int]
    learnt: bool = False
    declared_more: bool = False
    failed: bool = False
    budget: ReadBudget | None = None
    fresh: set[str] = field(default_factory=set)
    since: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def run_onnx(self, network: Network, states_type: Callable[[ValueType], bool], *, follows_shapes: bool = True) -> Network:
        """Returns the network with what onnx infers for the whole graph; inputs always state their types.

        With `follows_shapes` it also computes shapes of shapes, where none of these can grow without bound.
        """
        import onnx.shape_inference  # heavy

        for graph in iterate_graphs(network):
            check_ranks(graph)
        growth = find_growth(network)
        if growth.of_ranks or any(_is_old_if(node) or _counts_from_behind(node) for node in iterate_nodes(network)):
            logger.info(
                "network '%s' is inferred node by node: the types in it may grow without bound, or are onnx's mistake", network.name
            )
            self.failed = True
            return network
        writer = GraphWriter(SkeletonWeights(), states_type, notes_of_node=no_notes)
        # The default of an input is not its value.
        model = write_model(replace(network, border=EMPTY_BORDER), writer)
        for spec, info in zip(network.inputs, model.graph.input, strict=True):
            _state_type(spec, info)
        model.ir_version = onnx.IR_VERSION
        write_inferable_windows(model.graph)
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=follows_shapes and not growth.of_shapes)
        except Exception as error:  # noqa: BLE001  # compiled code of onnx, whose exceptions are of any type
            # One node that onnx cannot cope with must not hide the types of all others: they are then asked for one by one.
            logger.info("shape inference of network '%s' failed, nodes are inferred one by one: %s", network.name, error)
            self.failed = True
            return network
        result = self.absorb(network, inferred.graph)
        assert isinstance(result, Network)
        return result

    def absorb(self, graph: Graph, proto: onnx.GraphProto) -> Graph:
        """Returns the graph with the types in `proto`, which was written from it, merged into its own."""
        types = dict(graph.types)
        new_types: dict[str, ValueType] = {}
        for info in (*proto.value_info, *proto.input, *proto.output):
            inferred = read_type(info.type, f"value '{info.name}'")
            if inferred is not None:
                new_types[info.name] = inferred
        learnt = False
        for name, inferred in new_types.items():
            learnt |= self._merge(graph, types, name, inferred)
        self._compare(graph, types, new_types)
        nodes = self._absorb_bodies(graph, proto)
        self.learnt |= learnt
        return rebuild_graph(graph, nodes, types if learnt else graph.types)

    def _merge(self, graph: Graph, types: dict[str, ValueType], name: str, inferred: ValueType) -> bool:
        """Merges one type into `types`; says whether something new came with it."""
        known = types.get(name)
        merged = inferred if known is None else merge_types(known, inferred)
        if merged is None:
            raise InvalidNetworkError(
                f"value '{name}' of '{graph.name}' is declared as {known}, but {word_source(graph, name)} gives {inferred}; "
                "correct the declaration or remove it."
            )
        types[name] = merged
        return merged != known

    def _compare(self, graph: Graph, types: Mapping[str, ValueType], inferred: Mapping[str, ValueType]) -> None:
        """Notes whether the declarations say more than onnx inferred, of a value that something else depends on."""
        if not self.declared_more:
            consumers, is_body = graph.index_of_consumers, not isinstance(graph, Network)
            self.declared_more = any(
                inferred.get(name) != known and (is_body or name in consumers) and name not in graph.initializers
                for name, known in types.items()
            )

    def _absorb_bodies(self, graph: Graph, proto: onnx.GraphProto) -> tuple[Node, ...]:
        nodes = list(graph.nodes)
        for index, (node, node_proto) in enumerate(zip(graph.nodes, proto.node, strict=True)):
            bodies = node.bodies
            if bodies and node_proto.op_type == node.op_type:
                protos = {attribute.name: attribute.g for attribute in node_proto.attribute}
                nodes[index] = node.with_bodies({key: self.absorb(body, protos[key]) for key, body in bodies.items()})
        return tuple(nodes)

    def needs_sweep(self, network: Network) -> bool:
        """Says whether a node has to be looked at by itself: one of another opset, a custom one, one not wholly typed, or all."""
        return self.failed or any(
            self._is_foreign(node)
            or (self.custom_types is not None and node.since_version == 0)
            or ((node.since_version != 0 or knows_contrib(node)) and _leaves_open(node, graph.types))
            for graph in iterate_graphs(network)
            for node in graph.nodes
        )

    def _is_foreign(self, node: Node) -> bool:
        """Says whether the operator would mean another one under the model's opset."""
        opset = self.opsets[node.domain]
        if opset == node.opset or node.since_version == 0:
            return False
        key = (node.op_type, node.domain, opset)
        if key not in self.since:
            self.since[key] = since_version(*key)
        return self.since[key] != node.since_version

    def sweep(self, graph: Graph, outer: Mapping[str, ValueType], constants: Mapping[str, Initializer]) -> Any:
        """Returns the graph with what can be learnt node by node, in order; `outer` and `constants` are those around it."""
        types = dict(graph.types)
        scope = ChainMap(types, dict(outer))
        known: dict[str, Initializer] = {}
        around = ChainMap(known, dict(graph.initializers), dict(constants))
        nodes: list[Node] = []
        learnt = False
        for node in graph.nodes:
            if self.budget is not None:
                self.budget.check_time(f"node {node.label}", steps=16)
            bodies = node.bodies
            if bodies:
                node = node.with_bodies({key: self.sweep(body, scope, around) for key, body in bodies.items()})
            node, types_of_node = self._infer_node(node, scope, around, known)
            nodes.append(node)
            known.update(compute_known_value(node, scope, around))
            types_of_node.update((name, known[name].type) for name in node.writes if name in known)
            for name, inferred in types_of_node.items():
                if self._merge(graph, types, name, inferred):
                    learnt = True
                    self.fresh.add(name)
        self.learnt |= learnt
        return rebuild_graph(graph, tuple(nodes), types if learnt else graph.types)

    def _infer_node(
        self,
        node: Node,
        scope: Mapping[str, ValueType],
        constants: Mapping[str, Initializer],
        known: Mapping[str, Initializer],
    ) -> tuple[Node, dict[str, ValueType]]:
        """Returns the node, its bodies perhaps with more types, and the types of its outputs that could be learnt now.

        `known` are those of the constants that onnx does not see as such.
        """
        if node.since_version == 0:
            typed = [constants[value].type if value in constants else scope.get(value) for value in node.inputs]
            return node, self._ask_author(node, scope) or infer_contrib(node, typed)
        if _is_old_if(node):
            return node, _unite_branches(node)
        if not node.bodies and all(_is_complete(scope.get(value)) for value in node.writes):
            return node, {}
        inferred: dict[str, ValueType] = {}
        if (
            self.failed
            or self._is_foreign(node)
            or not self.fresh.isdisjoint(node.reads)
            or not known.keys().isdisjoint(node.reads)
            or any(_has_only_element(scope.get(value)) for value in node.writes)
        ):
            node, inferred = self._infer_alone(node, scope, constants)
        inputs = [constants[value].type if value in constants else scope.get(value) for value in node.inputs]
        for value, ranked in infer_ranks(node, inputs).items():
            # Of two that disagree onnx is believed.
            inferred[value] = merge_types(inferred.get(value, ranked), ranked) or inferred[value]
        if not all(has_known_element(inferred.get(value, scope.get(value))) for value in node.writes):
            for value, signed in infer_by_signature(node, inputs).items():
                inferred[value] = merge_types(inferred.get(value, signed), signed) or signed
        return node, inferred

    def _ask_author(self, node: Node, scope: Mapping[str, ValueType]) -> dict[str, ValueType]:
        if self.custom_types is None:
            return {}
        answer = self.custom_types(node, tuple(scope.get(value) for value in node.inputs))
        if answer is None:
            return {}
        if len(answer) > len(node.outputs):
            raise ExtensionError(
                f"infer_types of the operator of node {node.label} gave {len(answer)} types; the node has {len(node.outputs)} "
                "outputs. Return one type for each output."
            )
        return {value: answer[index] for index, value in enumerate(node.outputs[: len(answer)]) if value}

    def _infer_alone(
        self, node: Node, scope: Mapping[str, ValueType], constants: Mapping[str, Initializer]
    ) -> tuple[Node, dict[str, ValueType]]:
        """Infers one node as a model of its own, by its own opset."""
        reads = [value for value in node.reads if value not in constants]
        asked = replace(node, opset=11, since_version=11) if _counts_from_behind(node) else node
        single = Network(
            node.name,
            tuple(ValueSpec(value, scope.get(value, TensorType(None))) for value in reads),
            tuple(ValueSpec(value, TensorType(None)) for value in node.writes),
            (asked,),
            {value: constants[value] for value in node.reads if value in constants},
            opsets=opsets_of_nodes([asked]),
        )
        alone = _Inference(None, single.opsets)
        result = alone.run_onnx(single, lambda _: True)
        return (node if asked is not node else result.nodes[0]), {
            value: result.types[value] for value in node.writes if value in result.types
        }


def _is_old_if(node: Node) -> bool:
    """Says whether onnx takes the branches' types for two descriptions of one type: as of opset 10, `If` returns one or the other."""
    return node.op_type == "If" and not node.domain and 0 < node.since_version < 11


def _counts_from_behind(node: Node) -> bool:
    """Says whether onnx ignores axes: version 1 of `Squeeze` and `Unsqueeze` has no negative ones, which engines take all the same."""
    if node.op_type not in ("Squeeze", "Unsqueeze") or node.since_version != 1 or node.domain:
        return False
    return any(axis < 0 for axis in node.attributes.get("axes", ()))


def _unite_branches(node: Node) -> dict[str, ValueType]:
    """Returns the types of the outputs of an `If`, as far as both branches state them."""
    branches = [[body.types.get(spec.name, spec.type) for spec in body.outputs] for body in node.bodies.values()]
    if len(branches) != 2:
        return {}
    united = (unite_types(first, second) for first, second in zip(*branches, strict=False))
    return {name: value_type for name, value_type in zip(node.outputs, united, strict=False) if name}


def _is_complete(value_type: ValueType | None) -> bool:
    """Says whether a type leaves nothing to learn."""
    return isinstance(value_type, TensorType) and value_type.dtype is not None and not _has_open_size(value_type)


def _has_only_element(value_type: ValueType | None) -> bool:
    """Says whether nothing but the element type of a tensor is known, as of a value that the model declares and onnx cannot follow."""
    return isinstance(value_type, TensorType) and value_type.dtype is not None and value_type.shape is None


def _leaves_open(node: Node, types: Mapping[str, ValueType]) -> bool:
    """Says whether the element type, the rank or a size of some output is unknown."""
    output_types = [types.get(value) for value in node.writes]
    return any(not has_known_element(each) or (isinstance(each, TensorType) and _has_open_size(each)) for each in output_types)


def _has_open_size(value_type: TensorType) -> bool:
    """Says whether the rank or some size is unknown; a named size is known by its name."""
    return value_type.shape is None or None in value_type.shape


def _state_type(spec: ValueSpec, info: onnx.ValueInfoProto) -> None:
    from hetero_core.network.type_protos import write_spec

    if not info.HasField("type"):
        write_spec(spec, info)
