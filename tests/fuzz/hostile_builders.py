"""What hostile models are made of: chains, functions, loops, sparse constants, and the list of makers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper

FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
LOCAL = "local"
OPSETS = (("", 21), (LOCAL, 1), ("ai.onnx.ml", 3))
Maker = Callable[[], bytes]


MAKERS: list[Maker] = []


def hostile(maker: Maker) -> Maker:
    """Adds a maker to the list."""
    MAKERS.append(maker)
    return maker


def make_model(
    nodes: list[onnx.NodeProto],
    output: str,
    inputs: list[onnx.ValueInfoProto] | None = None,
    *,
    constants: dict[str, Any] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """Returns a model with one output; without `inputs` it has the input `x` of one float."""
    initializers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    listed = [make_input("x", FLOAT, 1)] if inputs is None else inputs
    graph = helper.make_graph(nodes, "hostile", listed, [helper.make_empty_tensor_value_info(output)], initializers)
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=10)


def make_input(name: str, element: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, list(shape))


def make_chain(op_type: str, length: int, reads: int = 1, **attributes: Any) -> list[onnx.NodeProto]:
    """Returns nodes from the value v0 to the value v<length>, each of which reads its predecessor `reads` times."""
    return [helper.make_node(op_type, [f"v{i}"] * reads, [f"v{i + 1}"], **attributes) for i in range(length)]


def make_function(name: str, nodes: list[onnx.NodeProto], source: str, result: str) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS]
    return helper.make_function(LOCAL, name, [source], [result], nodes, opsets)


def add_to_input(nodes: list[onnx.NodeProto], value: str, constants: dict[str, Any]) -> bytes:
    """Returns a model that adds a value made of constants alone to its input."""
    return pack(make_model([*nodes, helper.make_node("Add", ["x", value], ["y"])], "y", constants=constants))


def pack(model: onnx.ModelProto) -> bytes:
    content: bytes = model.SerializeToString()
    return content


def make_sparse(name: str, size: int) -> onnx.SparseTensorProto:
    values = helper.make_tensor(name, FLOAT, [1], [1.0])
    return helper.make_sparse_tensor(values, helper.make_tensor(f"{name} index", INT64, [1], [5]), [size])


def make_loop(trips: int, body: list[onnx.NodeProto], start: str, result: str, *, scanned: str = "") -> onnx.NodeProto:
    """Returns a Loop whose body turns the value s into the value t."""
    outputs = ["d", "t", *([scanned] if scanned else [])]
    inputs = [make_input("i", INT64), make_input("c", BOOL), helper.make_tensor_value_info("s", FLOAT, None)]
    nodes = [helper.make_node("Identity", ["c"], ["d"]), *body]
    graph = helper.make_graph(nodes, "b", inputs, [helper.make_empty_tensor_value_info(name) for name in outputs])
    return helper.make_node("Loop", ["trips", "", start], [result, *([f"{result} all"] if scanned else [])], body=graph)
