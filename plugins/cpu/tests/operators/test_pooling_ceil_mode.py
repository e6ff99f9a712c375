"""Poolings with ceil_mode: sizes and values equal ONNX Runtime's, even if onnx's inference disagrees."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx.helper as oh
import onnxruntime
import pytest

from hetero_core import Core

ATTRIBUTES = [
    {"kernel_shape": [kernel], "strides": [stride], "pads": [begin, end], "ceil_mode": 1}
    for kernel, stride, begin, end in product((1, 2, 3), (1, 2, 3), (0, 1), (0, 1, 2))
    if begin < kernel and end < kernel
]


@pytest.mark.parametrize("opset", [12, 19, 22])
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
def test_poolings_with_ceil_mode_equal_onnx_runtime(kernels: str, operator: str, opset: int) -> None:
    """A single network holds all cases: each node reads the same input and declares the size that ONNX Runtime gives."""
    opset = max(opset, 18) if operator == "LpPool" else opset
    for size in (4, 7):
        nodes = [oh.make_node(operator, ["x"], [f"y{k}"], **attributes) for k, attributes in enumerate(ATTRIBUTES)]
        shape = [1, 8, size]
        graph = oh.make_graph(
            nodes,
            "g",
            [oh.make_tensor_value_info("x", 1, shape)],
            [oh.make_tensor_value_info(f"y{k}", 1, None) for k in range(len(nodes))],
        )
        model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8)
        x = np.random.default_rng(size).standard_normal(shape).astype(np.float32)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, {"x": x})
        for value, array in zip(model.graph.output, expected, strict=True):
            value.CopyFrom(oh.make_tensor_value_info(value.name, 1, array.shape))
        with Core() as core:
            outputs = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": x})
        for k, array in enumerate(expected):
            np.testing.assert_allclose(outputs[f"y{k}"], array, rtol=1e-5, atol=1e-6, err_msg=str(ATTRIBUTES[k]))


def test_images_pooled_with_ceil_mode_equal_onnx_runtime(kernels: str) -> None:
    attributes = {"kernel_shape": [2, 3], "strides": [2, 3], "pads": [0, 1, 1, 2], "ceil_mode": 1}
    for operator, opset in product(("MaxPool", "AveragePool"), (12, 22)):
        graph = oh.make_graph(
            [oh.make_node("Relu", ["x"], ["a"]), oh.make_node(operator, ["a"], ["y"], **attributes)],
            "g",
            [oh.make_tensor_value_info("x", 1, [2, 16, 4, 7])],
            [oh.make_tensor_value_info("y", 1, None)],
        )
        model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8)
        x = np.random.default_rng(1).standard_normal((2, 16, 4, 7)).astype(np.float32)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, {"x": x})
        with Core() as core:
            network = core.load_network(model, "CPU", {"CPU_KERNELS": kernels})
            assert network.get_metric("CPU_FOREIGN_STEPS") == 0
            np.testing.assert_allclose(network.infer({"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
