"""Types of the outputs of one node by onnx, which infers the node alone. Imports onnx."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import onnx
import onnx.defs
import onnx.shape_inference

from hetero_core.dtypes import onnx_of_dtype
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.hints import rebuild_graph
from hetero_core.network.inference import LARGEST_READ_CONSTANT, merge_into
from hetero_core.network.initializers import Initializer
from hetero_core.network.tensors import read_type, write_tensor, write_type
from hetero_core.network.types import TensorType, ValueSpec, ValueType
from hetero_core.network.writer import GraphWriter, opsets_of_nodes, write_model

logger = logging.getLogger(__name__)


def _write_small(name: str, initializer: Initializer, proto: onnx.TensorProto) -> None:
    """Fills `proto` with the values of a small constant; a large constant becomes an external constant without a file."""
    if initializer.nbytes <= LARGEST_READ_CONSTANT and initializer.dtype != "string":
        write_tensor(initializer.array, proto, name=name)
        return
    proto.name, proto.data_type, proto.data_location = name, onnx_of_dtype(initializer.dtype), proto.EXTERNAL
    proto.dims.extend(initializer.shape)


def ask_onnx(
    node: Node,
    types: Mapping[str, ValueType],
    constants: Mapping[str, Initializer],
    elements: Mapping[str, Any],
    objections: dict[str, str],
) -> tuple[Node, dict[str, ValueType]]:
    """Returns the node, its bodies perhaps with more types, and the types of its outputs; notes an error of onnx in `objections`."""
    known = {value: constants[value] for value in node.reads if value in constants}
    for value in node.reads:
        array = elements.get(value)
        if array is not None and array.dtype != object and value not in known:
            known[value] = Initializer.of_array(array)
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
        if node.bodies or not schema.has_type_and_shape_inference_function:
            return _ask_about_model(node, types, known)
        input_types = {value: types[value] for value in node.inputs if value in types}
        return node, infer_alone(node, input_types | {name: each.type for name, each in known.items()}, known)
    except Exception as error:  # noqa: BLE001  # compiled code of onnx raises exceptions of any type
        logger.info("onnx cannot infer the types of node %s: %s", node.label, error)
        objections[node.name] = str(error)
        return node, {}


def infer_alone(node: Node, types: Mapping[str, ValueType], constants: Mapping[str, Initializer]) -> dict[str, ValueType]:
    """Returns the types that onnx infers for a node without bodies. Raises: exceptions of onnx."""
    if node.op_type == "STFT" and "onesided" not in node.attributes:
        # onnx's inference takes it for 0 if the node does not state it; ONNX says 1.
        node = replace(node, attributes={**node.attributes, "onesided": 1})
    schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    protos, tensors = {}, {}
    for value in node.inputs:
        if not value:
            continue
        protos[value] = onnx.TypeProto()
        if value in types:
            write_type(types[value], protos[value])
        constant = constants.get(value)
        if constant is not None and constant.nbytes <= LARGEST_READ_CONSTANT and constant.dtype != "string":
            tensors[value] = onnx.TensorProto()
            write_tensor(constant.array, tensors[value], name=value)
    opsets = [onnx.helper.make_opsetid(node.domain, node.opset)]
    node_proto = onnx.NodeProto()
    GraphWriter(states_type=lambda _: True).write_node(node, node_proto, {node.domain: node.opset})
    protos = {name: proto for name, proto in protos.items() if proto.WhichOneof("value")}
    outputs = onnx.shape_inference.infer_node_outputs(schema, node_proto, protos, tensors, opset_imports=opsets)
    read = {name: read_type(proto, f"value '{name}'") for name, proto in outputs.items() if name}
    return {name: value_type for name, value_type in read.items() if value_type is not None}


def _ask_about_model(
    node: Node, types: Mapping[str, ValueType], constants: Mapping[str, Initializer]
) -> tuple[Node, dict[str, ValueType]]:
    """Returns the node, and the types that onnx infers for a model of this node alone, inside of bodies and functions, too."""
    reads = [value for value in node.reads if value not in constants]
    single = Network(
        node.name,
        tuple(ValueSpec(value, types.get(value, TensorType(None))) for value in reads),
        tuple(ValueSpec(value, TensorType(None)) for value in node.writes),
        (node,),
        dict(constants),
        opsets=opsets_of_nodes([node]),
    )
    model = write_model(single, GraphWriter(_write_small, lambda _: True))
    model.ir_version = onnx.IR_VERSION
    # A tensor without an element type may stand for a sequence, of which onnx's expansion of SequenceMap tells nothing.
    for output in model.graph.output:
        output.ClearField("type")
    inferred = onnx.shape_inference.infer_shapes(model).graph
    outputs = read_types(inferred)
    return _absorb_bodies(node, inferred.node[0]), {value: outputs[value] for value in node.writes if value in outputs}


def read_types(proto: onnx.GraphProto) -> dict[str, ValueType]:
    """Returns the types that a graph states."""
    read = {info.name: read_type(info.type, f"value '{info.name}'") for info in (*proto.value_info, *proto.input, *proto.output)}
    return {name: value_type for name, value_type in read.items() if value_type is not None}


def _absorb_bodies(node: Node, proto: onnx.NodeProto) -> Node:
    bodies = node.bodies
    if not bodies or proto.op_type != node.op_type:
        return node
    protos = {attribute.name: attribute.g for attribute in proto.attribute}
    return node.with_bodies({key: _absorb(body, protos[key]) for key, body in bodies.items()})


def _absorb(graph: Graph, proto: onnx.GraphProto) -> Graph:
    """Returns a body with the types in `proto`, which was written from it, merged into its own."""
    types = dict(graph.types)
    learnt = False
    for name, value_type in read_types(proto).items():
        learnt |= merge_into(graph, types, name, value_type)
    nodes = tuple(_absorb_bodies(node, each) for node, each in zip(graph.nodes, proto.node, strict=True))
    return rebuild_graph(graph, nodes, types if learnt else graph.types)
