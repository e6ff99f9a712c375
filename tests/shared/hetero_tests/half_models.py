"""Models of another float type: the same nodes with float16, bfloat16 or float32 in the place of all three."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_POSITIONS = {"Resize": (1, 2), "Upsample": (1,)}
"""Inputs that are float32 in a model of any type, by operator."""


def set_float_type(model: onnx.ModelProto, dtype: int) -> onnx.ModelProto:
    """Returns a copy of a model with FLOAT, FLOAT16 and BFLOAT16 replaced by one of them; numbers are rounded."""
    import onnx  # only builders need it
    from onnx import TensorProto, numpy_helper

    floats = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    fixed = {node.input[index] for node in graph.node for index in _POSITIONS.get(node.op_type, ()) if index < len(node.input)}
    for tensor in _list_tensors(graph):
        if tensor.data_type in floats and tensor.name not in fixed:
            array = numpy_helper.to_array(tensor).astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in floats:
            value.type.tensor_type.elem_type = dtype
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i in floats:
                attribute.i = dtype
    return changed


def _list_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))
