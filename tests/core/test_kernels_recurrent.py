"""RNN, GRU and LSTM against ONNX Runtime: lengths, initial states, peepholes, and the layout that ONNX Runtime lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network
from hetero_core.testing.compare import assert_same

Arrays = dict[str, np.ndarray[Any, Any]]
STEPS, BATCH, SIZE, HIDDEN = 5, 3, 4, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def draw_inputs(op_type: str, ways: int) -> Arrays:
    random = np.random.default_rng(0)
    gates = GATES[op_type] * HIDDEN
    shapes = {"x": (STEPS, BATCH, SIZE), "w": (ways, gates, SIZE), "r": (ways, gates, HIDDEN), "b": (ways, 2 * gates)}
    states = {"h": (ways, BATCH, HIDDEN), "c": (ways, BATCH, HIDDEN), "p": (ways, 3 * HIDDEN)}
    drawn = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    drawn["lengths"] = np.array([5, 2, 4], np.int32)
    expected_value = ("h", "c", "p") if op_type == "LSTM" else ("h",)
    return drawn | {name: random.standard_normal(states[name]).astype(np.float32) for name in expected_value}


def write_model(op_type: str, inputs: Arrays, attributes: str) -> onnx.ModelProto:
    outputs = "y, yh, yc" if op_type == "LSTM" else "y, yh"
    kinds = {np.dtype(np.int32): "int32", np.dtype(np.float32): "float"}
    specs = ", ".join(f"{kinds[value.dtype]}[{','.join(map(str, value.shape))}] {name}" for name, value in inputs.items())
    node = f"{outputs} = {op_type}<hidden_size = {HIDDEN}, {attributes}>({', '.join(inputs)})"
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 14]> g ({specs}) => ({outputs}) {{ {node} }}')


def run_onnxruntime(model: onnx.ModelProto, inputs: Arrays) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def run_kernels(model: onnx.ModelProto, inputs: Arrays) -> tuple[Any, ...]:
    return compile_program(read_network(model)).run(tuple(inputs.values()))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", list(GATES))
def test_layout_1_is_layout_0_with_the_batch_first(op_type: str, direction: str) -> None:
    inputs = draw_inputs(op_type, 2 if direction == "bidirectional" else 1)
    expected = run_onnxruntime(write_model(op_type, inputs, f'direction = "{direction}"'), inputs)
    swapped = {name: np.swapaxes(value, 0, 1) if name in ("x", "h", "c") else value for name, value in inputs.items()}
    sequence, *states = run_kernels(write_model(op_type, swapped, f'direction = "{direction}", layout = 1'), swapped)
    assert_same(sequence, np.transpose(expected[0], (2, 0, 1, 3)))
    for result, expected_value in zip(states, expected[1:], strict=True):
        assert_same(result, np.swapaxes(expected_value, 0, 1))


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("LSTM", "clip = 0.5, input_forget = 1"),
        ("RNN", 'activations = ["Affine"], activation_alpha = [0.7], activation_beta = [0.3]'),
        ("RNN", 'activations = ["ScaledTanh"], activation_alpha = [0.7], activation_beta = [0.3]'),
        ("RNN", 'activations = ["ThresholdedRelu"], activation_alpha = [0.7]'),
        ("RNN", 'activations = ["Softplus"]'),
        ("RNN", 'activations = ["Softsign"]'),
        ("GRU", 'activations = ["HardSigmoid", "LeakyRelu"], activation_alpha = [0.3, 0.2], activation_beta = [0.4]'),
        ("LSTM", 'activations = ["HardSigmoid", "LeakyRelu", "Elu"], activation_alpha = [0.3, 0.2, 0.9], activation_beta = [0.4]'),
    ],
)
def test_recurrent_attributes_agree_with_onnxruntime(op_type: str, attributes: str) -> None:
    inputs = draw_inputs(op_type, 1)
    model = write_model(op_type, inputs, attributes)
    for result, expected_value in zip(run_kernels(model, inputs), run_onnxruntime(model, inputs), strict=True):
        assert_same(result, expected_value)


@pytest.mark.parametrize("op_type", list(GATES))
def test_empty_list_of_activations_means_the_defaults(op_type: str) -> None:
    inputs = draw_inputs(op_type, 2)
    given = run_kernels(write_model(op_type, inputs, 'direction = "bidirectional", activations: strings = []'), inputs)
    for result, expected in zip(
        given, run_kernels(write_model(op_type, inputs, 'direction = "bidirectional"'), inputs), strict=True
    ):
        np.testing.assert_array_equal(result, expected)
