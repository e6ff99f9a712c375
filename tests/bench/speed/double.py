"""What a model answers in float64: its weights and inputs widened, and run by the kernels toolkit, one kernel for each node.

Neither the CPU device's steps nor another engine has a part in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def compute_expected(model: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the outputs by position, in float64. Changes the model in place: it is a float64 one afterwards.

    Raises: UnsupportedNodesError naming each node that has no float64 kernel, NetworkReadError where ONNX allows none.
    """
    import numpy as np

    from hetero_core.kernels.program import compile_program
    from hetero_core.network.reader import read_network

    widen_model(model)
    network = read_network(model)
    widened = (inputs[value.name] for value in network.inputs)
    arrays = tuple(array.astype(np.float64) if array.dtype == np.float32 else array for array in widened)
    outputs = list(compile_program(network).run(arrays))
    narrow = [value.name for value, array in zip(network.outputs, outputs, strict=True) if array.dtype == np.float32]
    if narrow:
        raise TypeError(f"the float64 run of '{network.name}' came back to float32 at output '{narrow[0]}'")
    return outputs


def widen_model(model: Any) -> None:
    """Makes every float32 of a model a float64, in place: initializers, values, tensors of attributes, targets of Cast."""
    _widen_graph(model.graph)


def _widen_graph(graph: Any) -> None:
    import onnx

    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for initializer in graph.initializer:
        _widen_tensor(initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _widen_graph(attribute.g)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.DOUBLE


def _widen_tensor(tensor: Any) -> None:
    import numpy as np
    import onnx

    if tensor.data_type == onnx.TensorProto.FLOAT:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
