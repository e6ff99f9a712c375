"""Operators of opset 1, as written by Caffe2 and CNTK: each form with a defined result runs, further forms are refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import pytest

from hetero_core import Core
from hetero_core.errors import UnsupportedNodesError
from hetero_core.kernels.registry import read_table
from hetero_core.network.reader import read_network
from hetero_core.network.types import TensorType

X = np.random.default_rng(5).standard_normal((2, 3, 4, 5)).astype(np.float32)
CHANNELS = {
    name: np.array(values, np.float32)
    for name, values in (("s", (1, 2, 0.5)), ("b", (0, 1, -1)), ("m", (0.5, 0, 1)), ("v", (1, 4, 2)))
}
# Operators that cannot have a kernel: Gradient differentiates a graph. Deprecated versions are no longer operators.
WITHOUT_KERNEL = {"Gradient"}


def make_model(op_type: str, inputs: dict[str, Any], outputs: list[str], *, opset: int = 1, **attributes: Any) -> onnx.ModelProto:
    node = onnx.helper.make_node(op_type, list(inputs), outputs, **attributes)
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    results = [onnx.helper.make_empty_tensor_value_info(name) for name in outputs[:1]]
    for result in results:
        result.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph([node], "g", infos, results)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=3)


def run(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """Returns the first output of each device."""
    results = []
    with Core() as core:
        for device, config in (("TEMPLATE", {}), ("CPU", {"CPU_KERNELS": "NUMPY"}), ("CPU", {"CPU_KERNELS": "JIT"})):
            network = core.load_network(model, device, config)
            results.append(next(iter(network.infer(inputs).values())))
    return results


def check(expected: Any, op_type: str, inputs: dict[str, Any], outputs: list[str] | None = None, **attributes: Any) -> None:
    for y in run(make_model(op_type, inputs, outputs or ["y"], **attributes), inputs):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_every_version_with_a_defined_result_has_a_kernel() -> None:
    table = read_table()
    missing = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if (schema.domain, schema.name, schema.since_version) not in table and not schema.deprecated and schema.name != "Constant"
    }
    assert missing == WITHOUT_KERNEL


def test_hint_of_consumed_inputs_is_dropped_when_a_model_is_read() -> None:
    names = [
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and schema.since_version == 1 and "consumed_inputs" in schema.attributes
    ]
    assert len(names) == 29
    for name in names:
        schema = onnx.defs.get_schema(name, 1)
        inputs = {f"x{index}": X for index in range(max(schema.min_input, 1))}
        model = make_model(name, inputs, ["y"], consumed_inputs=[0] * len(inputs))
        (node,) = read_network(model).nodes
        assert ("consumed_inputs" in node.attributes) == (name == "BatchNormalization"), name


@pytest.mark.parametrize("opset", [1, 4])
def test_relu_with_consumed_inputs(opset: int) -> None:
    check(np.maximum(X, 0), "Relu", {"x": X}, consumed_inputs=[0], opset=opset)
    check(X + X, "Add", {"x": X, "z": X}, consumed_inputs=[0, 0], opset=opset)
    check(np.clip(X, -0.5, 1), "Clip", {"x": X}, consumed_inputs=[0], min=-0.5, max=1.0, opset=opset)


def test_hint_is_refused_if_the_operator_lacks_the_attribute() -> None:
    with Core() as core, pytest.raises(UnsupportedNodesError, match="attribute 'consumed_inputs' of Relu-6 is not implemented"):
        core.load_network(make_model("Relu", {"x": X}, ["y"], consumed_inputs=[0], opset=6), "CPU")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("FLOAT", "float32"),
        ("DOUBLE", "float64"),
        ("FLOAT16", "float16"),
        ("INT32", "int32"),
        ("INT64", "int64"),
        ("BOOL", "bool"),
        ("UINT8", "uint8"),
    ],
)
def test_cast_names_the_type(name: str, dtype: str) -> None:
    x = np.array([[0, 1.75, 200.5, 3]], np.float32)
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["c"], to=name),
        onnx.helper.make_node("Identity", ["c"], ["y"]),
    ]
    output = onnx.helper.make_tensor_value_info("y", onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
    graph = onnx.helper.make_graph(nodes, "g", [onnx.helper.make_tensor_value_info("x", 1, x.shape)], [output])
    for y in run(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 1)], ir_version=3), {"x": x}):
        assert y.dtype == dtype
        assert y.tolist() == x.astype(dtype).tolist()


def test_values_behind_cast_and_split_have_element_types() -> None:
    model = make_model("Cast", {"x": X}, ["c"], to="INT32")
    model.graph.node.append(onnx.helper.make_node("Cast", ["c"], ["d"], to="DOUBLE"))
    model.graph.node.append(onnx.helper.make_node("Split", ["d"], ["e", "y"], axis=0))
    model.graph.output[0].name = "y"
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    network = read_network(model)
    types = [network.type_of(value) for value in "cdey"]
    assert [isinstance(each, TensorType) and each.dtype for each in types] == ["int32", "float64", "float64", "float64"]


def test_cast_to_a_name_of_no_type_is_refused() -> None:
    for name in ("float32", "FLOATS", "BFLOAT16"):
        model = make_model("Cast", {"x": X}, ["y"], to=name)
        model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
        with (
            Core() as core,
            pytest.raises(UnsupportedNodesError, match=f"attribute 'to' of Cast-1 is '{name}'; implemented: BOOL, "),
        ):
            core.load_network(model, "CPU")


@pytest.mark.parametrize("axis", [1, -1, None])
def test_split_by_the_attribute(axis: int | None) -> None:
    x = X[0, 0]
    axes = {} if axis is None else {"axis": axis}
    length = x.shape[axis or 0]
    check(np.split(x, [1], axis or 0)[0], "Split", {"x": x}, ["y", "z"], split=[1, length - 1], **axes)


def test_split_by_both_is_refused() -> None:
    model = make_model("Split", {"x": X, "l": np.array([2, 3], np.float32)}, ["y", "z"], axis=3, split=[2, 3])
    with (
        Core() as core,
        pytest.raises(UnsupportedNodesError, match="Split-1 has lengths both as the attribute split and as an input"),
    ):
        core.load_network(model, "CPU")


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("outputs", [["y"], ["y", "mask"]])
def test_dropout_in_test_mode_returns_its_input(outputs: list[str], opset: int) -> None:
    check(X, "Dropout", {"x": X}, outputs, is_test=1, ratio=0.75, opset=opset)


@pytest.mark.parametrize(("op_type", "more"), [("Dropout", {}), ("BatchNormalization", {"consumed_inputs": [0] * 5})])
def test_training_is_refused(op_type: str, more: dict[str, Any]) -> None:
    inputs = {"x": X, **(CHANNELS if op_type == "BatchNormalization" else {})}
    with Core() as core:
        with pytest.raises(UnsupportedNodesError, match=f"attribute 'is_test' of {op_type}-1 is 0; implemented: 1"):
            core.load_network(make_model(op_type, inputs, ["y"], is_test=0, **more), "CPU")
        with pytest.raises(UnsupportedNodesError, match=f"attribute 'is_test' of {op_type}-1 is missing"):
            core.load_network(make_model(op_type, inputs, ["y"], **more), "CPU")


@pytest.mark.parametrize("spatial", [0, 1])
@pytest.mark.parametrize("opset", [1, 6])
def test_batch_normalization_takes_the_statistics(opset: int, spatial: int) -> None:
    hint = {"consumed_inputs": [0, 0, 0, 1, 1]} if opset == 1 else {}
    scale, bias, mean, variance = (values.astype(np.float64).reshape(3, 1, 1) for values in CHANNELS.values())
    expected = (X - mean) / np.sqrt(variance + 1e-3) * scale + bias
    check(expected, "BatchNormalization", {"x": X, **CHANNELS}, is_test=1, epsilon=1e-3, spatial=spatial, opset=opset, **hint)


@pytest.mark.parametrize("direction", ["forward", "reverse", "foward", None])
def test_gru_resets_before_the_product(direction: str | None) -> None:
    rng = np.random.default_rng(7)
    x, w, r, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 2, 4), (1, 15, 4), (1, 15, 5), (1, 30)))
    state = np.zeros((2, 5))
    wide_w, wide_r, wide_b = (array[0].astype(np.float64) for array in (w, r, b))
    (wz, wr, wh), (rz, rr, rh), biases = np.split(wide_w, 3), np.split(wide_r, 3), np.split(wide_b, 6)
    for step in x.astype(np.float64)[:: -1 if direction == "reverse" else 1]:
        z = 1 / (1 + np.exp(-(step @ wz.T + state @ rz.T + biases[0] + biases[3])))
        reset = 1 / (1 + np.exp(-(step @ wr.T + state @ rr.T + biases[1] + biases[4])))
        candidate = np.tanh(step @ wh.T + (reset * state) @ rh.T + biases[5] + biases[2])
        state = (1 - z) * candidate + z * state
    directions = {} if direction is None else {"direction": direction}
    model = make_model("GRU", {"x": x, "w": w, "r": r, "b": b}, ["", "y"], hidden_size=5, **directions)
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", 1, None))
    for y in run(model, {"x": x, "w": w, "r": r, "b": b}):
        np.testing.assert_allclose(y[0], state, rtol=1e-5, atol=1e-6)
