"""Parameters that do not fit the channels: the run fails with the node's name, in either kind of plan."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from hetero_core import Core
from hetero_core.errors import HeteroError, InferenceError


@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
@pytest.mark.parametrize("sizes", [(5, 5, 5, 5), (4, 4, 4, 3), (3, 4, 4, 4)])
def test_unfit_batch_normalization_parameters_fail_in_the_run(sizes: tuple[int, ...], kernels: str) -> None:
    if kernels == "JIT":
        pytest.importorskip("llvmlite", reason="needs machine code: pip install 'hetero-cpu[jit]'")
    graph = helper.make_graph(
        [
            helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"], name="norm"),
            helper.make_node("Relu", ["n"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 6, 6])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in zip("sbmv", sizes, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": kernels})
        with pytest.raises(InferenceError, match="'norm'"):
            network.infer({"x": np.ones((1, 4, 6, 6), np.float32)})


@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
@pytest.mark.parametrize("shape", ["3,2,1,1", "3,n,1,1"])
def test_order_of_too_few_axes_is_an_error_that_names_the_node(shape: str, kernels: str) -> None:
    if kernels == "JIT":
        pytest.importorskip("llvmlite", reason="needs machine code: pip install 'hetero-cpu[jit]'")
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[{shape}] x) => (y) {{ [turn] y = Transpose <perm = [1, 0]> (x) }}'
    with Core() as core, pytest.raises(HeteroError, match="'turn'"):
        core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": kernels}).infer(
            {"x": np.ones((3, 2, 1, 1), np.float32)}
        )


@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
def test_a_quantized_bias_of_another_length_fails_in_the_run(kernels: str) -> None:
    if kernels == "JIT":
        pytest.importorskip("llvmlite", reason="needs machine code: pip install 'hetero-cpu[jit]'")
    text = """<ir_version: 10, opset_import: ["": 21]> g (uint8[1,2,4] x) => (y)
        <float s = {0.5}, uint8 z = {3}, int8 n = {0}, int8[2,2,1] w = {1, 2, 3, 4}, int32[3] b = {5, 6, 7}>
        { [conv] y = QLinearConv(x, s, z, w, s, n, s, z, b) }"""
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": kernels})
        with pytest.raises(InferenceError, match=r"a bias of shape \(3,\) for 2 channels: expected \(2,\).*'conv'"):
            network.infer({"x": np.ones((1, 2, 4), np.uint8)})
