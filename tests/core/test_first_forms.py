"""Operators in the first version of ONNX, as written by Caffe2 and CNTK; expected values follow the formulas of the standard."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from hetero_core import Core

X = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
PARAMETERS = {name: np.abs(np.random.default_rng(seed).standard_normal(4)).astype(np.float32) for seed, name in enumerate("sbmv")}
COLUMNS = {name: values.reshape(4, 1).astype(np.float64) for name, values in PARAMETERS.items()}
W = np.random.default_rng(5).standard_normal((1, 9, 6)).astype(np.float32)
R = np.random.default_rng(6).standard_normal((1, 9, 3)).astype(np.float32)


def make_model(nodes: list[onnx.NodeProto], **constants: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(X.shape))],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=3)


def run(device: str, nodes: list[onnx.NodeProto], **constants: Any) -> np.ndarray[Any, Any]:
    with Core() as core:
        return core.load_network(make_model(nodes, **constants), device).infer({"x": X})["y"]


def compute_gru() -> np.ndarray[Any, Any]:
    state, outputs = np.zeros((4, 3)), []
    w, r = W[0].astype(np.float64), R[0].astype(np.float64)
    for step in X.astype(np.float64):
        update, reset = (1 / (1 + np.exp(-(step @ w[i : i + 3].T + state @ r[i : i + 3].T))) for i in (0, 3))
        candidate = np.tanh(step @ w[6:].T + (reset * state) @ r[6:].T)
        state = (1 - update) * candidate + update * state
        outputs.append(state)
    return np.stack(outputs)[:, None]


def pool_lp(p: float) -> np.ndarray[Any, Any]:
    windows = np.abs(np.stack([X[..., 0::2], X[..., 1::2]], -1).astype(np.float64))
    return (windows**p).sum(-1) ** (1 / p)


WIDE = X.astype(np.float64)
MEAN, VARIANCE = WIDE.mean(-1, keepdims=True), WIDE.var(-1, keepdims=True)
NORMAL = (WIDE - COLUMNS["m"]) / np.sqrt(COLUMNS["v"] + 1e-5) * COLUMNS["s"] + COLUMNS["b"]
CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], np.ndarray[Any, Any]]] = {
    "Relu": ([helper.make_node("Relu", ["x"], ["y"], consumed_inputs=[1])], {}, np.maximum(WIDE, 0)),
    "Add": (
        [helper.make_node("Add", ["x", "s"], ["y"], consumed_inputs=[1, 0], broadcast=1, axis=1)],
        {"s": PARAMETERS["s"]},
        WIDE + COLUMNS["s"],
    ),
    "Cast": (
        [helper.make_node("Cast", ["x"], ["i"], to="INT32"), helper.make_node("Cast", ["i"], ["y"], to="DOUBLE")],
        {},
        np.trunc(WIDE),
    ),
    "Split-attribute": ([helper.make_node("Split", ["x"], ["z", "y"], axis=1, split=[1, 3])], {}, WIDE[:, 1:]),
    "Split-input": ([helper.make_node("Split", ["x", "n"], ["z", "y"], axis=2)], {"n": np.float32([2, 4])}, WIDE[:, :, 2:]),
    "Split-equal": ([helper.make_node("Split", ["x"], ["z", "y"], axis=1)], {}, WIDE[:, 2:]),
    "Dropout": ([helper.make_node("Dropout", ["x"], ["y"], is_test=1, consumed_inputs=[1])], {}, WIDE),
    "Dropout-mask": ([helper.make_node("Dropout", ["x"], ["y", "mask"], is_test=1)], {}, WIDE),
    "LpPool": ([helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[2], strides=[2])], {}, pool_lp(2)),
    "LpPool-fraction": ([helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[2], strides=[2], p=1.5)], {}, pool_lp(1.5)),
    "BatchNormalization": (
        [helper.make_node("BatchNormalization", ["x", *"sbmv"], ["y"], is_test=1, consumed_inputs=[0, 0, 0, 1, 1])],
        PARAMETERS,
        NORMAL,
    ),
    "InstanceNormalization": (
        [helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"], consumed_inputs=[0])],
        {name: PARAMETERS[name] for name in "sb"},
        (WIDE - MEAN) / np.sqrt(VARIANCE + 1e-5) * COLUMNS["s"] + COLUMNS["b"],
    ),
    "GRU": (
        [helper.make_node("GRU", ["x", "w", "r"], ["y", "h"], hidden_size=3, output_sequence=1)],
        {"w": W, "r": R},
        compute_gru(),
    ),
}


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:TEMPLATE,CPU"])
@pytest.mark.parametrize("name", CASES)
def test_first_form_is_the_formula(name: str, device: str) -> None:
    if name == "Split-input" and device.startswith("HETERO"):
        pytest.skip("onnx infers no types for the outputs of Split-1, so HETERO cannot declare them")
    nodes, constants, expected = CASES[name]
    outputs = run(device, nodes, **constants)
    assert outputs.dtype == (np.float64 if name == "Cast" else np.float32)
    np.testing.assert_allclose(outputs, expected, rtol=2e-5, atol=2e-6)


def test_training_dropout_is_refused() -> None:
    with Core() as core:
        network = core.read_network(make_model([helper.make_node("Dropout", ["x"], ["y"], is_test=0)]))
        assert "'is_test' of Dropout-1 is 0; implemented: 1" in core.query_network(network, "CPU").refused["Dropout_0"]


def test_every_version_of_every_operator_has_a_kernel() -> None:
    from hetero_core.kernels.registry import read_table

    versions = {(record.domain, record.op_type, since) for record in read_table().values() for since in record.since}
    # Exceptions: constants are read as initializers, gradients are no inference, and deprecated operators no longer exist.
    missing = {
        (schema.domain, schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain in ("", "ai.onnx.ml") and not schema.deprecated and schema.name != "Constant"
    } - versions
    assert missing == set()
