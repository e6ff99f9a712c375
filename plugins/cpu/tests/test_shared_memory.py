"""Values that share memory: a value with later readers is never overwritten, and readers follow a value moved into a concatenation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from hetero_core import Core

Arrays = Mapping[str, Any]
RUNS = 3


def infer(kernels: str, text: str, weights: Arrays | None = None, **shapes: tuple[int, ...]) -> list[tuple[Arrays, Arrays]]:
    """Returns the inputs, in float64, and the outputs of several runs of the same request with new inputs each time."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items())
    runs = []
    with Core() as core:
        request = core.load_network(model, "CPU", {"CPU_KERNELS": kernels, "INFERENCE_NUM_THREADS": 2}).create_infer_request()
        for seed in range(RUNS):
            inputs = {name: draw_array(seed, *shape) for name, shape in shapes.items()}
            outputs = {name: np.array(array) for name, array in request.infer(inputs).items()}
            runs.append(({name: array.astype(np.float64) for name, array in inputs.items()}, outputs))
    return runs


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def assert_close(result: Any, exact: Any) -> None:
    np.testing.assert_allclose(result, exact, rtol=0, atol=1e-5 * max(1.0, np.abs(exact).max()))


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


@pytest.mark.parametrize(
    ("body", "formula"),
    [
        ("s = Sigmoid(x)  m = Mul(x, s)  y = Concat<axis=1>(z, m)", lambda x, z: np.concatenate([z, x / (1 + np.exp(-x))], axis=1)),
        ("m = Relu(x)  y = Concat<axis=1>(z, m)", lambda x, z: np.concatenate([z, relu(x)], axis=1)),
        ("m = Concat<axis=1>(z, x)  y = Relu(m)", lambda x, z: relu(np.concatenate([z, x], axis=1))),
        ("y = Concat<axis=1>(x, z)", lambda x, z: np.concatenate([x, z], axis=1)),
    ],
)
@pytest.mark.parametrize("channels", [64, 512])
def test_inputs_that_move_into_an_output_are_right(kernels: str, body: str, formula: Any, channels: int) -> None:
    text = f"g (float[1,{channels},7,7] x, float[1,256,7,7] z) => (float[1,{channels + 256},7,7] y) {{ {body} }}"
    for inputs, outputs in infer(kernels, text, x=(1, channels, 7, 7), z=(1, 256, 7, 7)):
        assert_close(outputs["y"], formula(**inputs))


def convolve(x: Any, w: Any) -> Any:
    """Returns the convolution in float64 with pads that keep the size."""
    down, right = w.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (down // 2,) * 2, (right // 2,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (down, right), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w.astype(np.float64))


def average(x: Any) -> Any:
    """Returns the means of 2x2 windows side by side."""
    batch, channels, height, width = x.shape
    return x.reshape(batch, channels, height // 2, 2, width // 2, 2).mean(axis=(3, 5))


@pytest.mark.parametrize("kernel", [(3, 3), (1, 3), (5, 5), (1, 1)])
@pytest.mark.parametrize("is_read_first", [True, False])
@pytest.mark.parametrize("channels", [12, 64])
def test_convolution_of_a_piece_of_a_concatenation_is_right(
    kernels: str, kernel: tuple[int, int], is_read_first: bool, channels: int
) -> None:
    """Pixels of a piece of a concatenation have a larger stride than pixels of a separate value."""
    down, right = kernel
    pads = f"pads=[{down // 2},{right // 2},{down // 2},{right // 2}]"
    steps = [f"c = Conv<{pads}>(a, w)", "t = Concat<axis=1>(a, b)"]
    text = f"""g (float[2,{channels},12,20] x, float[2,16,12,20] z) => (float[n,k,h,l] c, float[n,k,h,l] d) {{
        a = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)
        b = AveragePool<kernel_shape=[2,2], strides=[2,2]>(z)
        {" ".join(steps if is_read_first else reversed(steps))}
        d = Conv<{pads}>(t, v)
    }}"""
    weights = {"w": draw_array(1, 8, channels, *kernel), "v": draw_array(2, 8, channels + 16, *kernel)}
    for inputs, outputs in infer(kernels, text, weights, x=(2, channels, 12, 20), z=(2, 16, 12, 20)):
        a, b = average(inputs["x"]), average(inputs["z"])
        assert_close(outputs["c"], convolve(a, weights["w"]))
        assert_close(outputs["d"], convolve(np.concatenate([a, b], axis=1), weights["v"]))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_pieces_along_each_axis_are_right(kernels: str, axis: int, batch: int) -> None:
    text = f"""g (float[{batch},16,12,20] x) => (float[n,k,h,l] y, float[n,k,h,l] c) {{
        p = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)
        a = Conv(p, w)
        b = Relu(a)
        c = Conv(b, w)
        y = Concat<axis={axis}>(b, a, c)
    }}"""
    weights = {"w": draw_array(1, 16, 16, 1, 1)}
    for inputs, outputs in infer(kernels, text, weights, x=(batch, 16, 12, 20)):
        a = convolve(average(inputs["x"]), weights["w"])
        c = convolve(relu(a), weights["w"])
        assert_close(outputs["c"], c)
        assert_close(outputs["y"], np.concatenate([relu(a), a, c], axis=axis))


OPERANDS = ("aaa", "aba", "abb", "aab", "abab", "baab", "acb", "bca", "abc", "cab", "dae", "ade", "ead")


@pytest.mark.parametrize(
    ("operator", "operands"),
    [*product(["Sum"], OPERANDS), *product(["Max", "Min", "Mean"], ["aba", "abc", "ead"])],
)
@pytest.mark.parametrize("front", ["Neg", "Identity"])
def test_operands_that_are_read_again_are_not_written_over(kernels: str, operator: str, operands: str, front: str) -> None:
    """c and d are views of a, and e is a view of d: all of them share memory."""
    text = f"""g (float[6,6] x, float[6,6] z) => (float[6,6] y)
        <int64[2] shape = {{6, 6}}, int64[1] begin = {{0}}, int64[1] end = {{6}}, int64[3] cube = {{6, 3, 2}}> {{
        a = {front}(x)
        b = {front}(z)
        c = Transpose(a)
        r = Reshape(a, cube)
        d = Reshape(r, shape)
        e = Slice(d, begin, end)
        y = {operator}({", ".join(operands)})
    }}"""
    functions = {"Sum": np.sum, "Max": np.max, "Min": np.min, "Mean": np.mean}
    for inputs, outputs in infer(kernels, text, x=(6, 6), z=(6, 6)):
        sign = -1 if front == "Neg" else 1
        a, b = sign * inputs["x"], sign * inputs["z"]
        known = {"a": a, "b": b, "c": a.T, "d": a, "e": a}
        assert_close(outputs["y"], functions[operator](np.stack([known[name] for name in operands]), axis=0))


@pytest.mark.parametrize(
    ("body", "formula"),
    [
        ("t = Transpose(a)  y = Add(a, t)", lambda a: a + a.T),
        ("t = Transpose(a)  y = Mul(t, a)", lambda a: a * a.T),
        ("t = Transpose(a)  m = MatMul(t, w)  y = Add(m, a)", lambda a: a.T + a),
        ("m = MatMul(a, w)  y = Add(m, a)", lambda a: a + a),
        ("t = Transpose(a)  m = MatMul(a, w)  y = Add(m, t)", lambda a: a + a.T),
        ("t = Transpose(a)  m = MatMul(a, t)  y = Add(m, a)", lambda a: a @ a.T + a),
        ("r = Gather<axis=0>(a, one)  y = Add(a, r)", lambda a: a + a[3:4]),
        ("r = Gather<axis=1>(a, one)  y = Sub(a, r)", lambda a: a - a[:, 3:4]),
        ("r = Gather<axis=0>(a, one)  s = Sigmoid(r)  q = Mul(a, s)  y = Add(q, r)", lambda a: a / (1 + np.exp(-a[3:4])) + a[3:4]),
        ("f = Gather<axis=0>(a, scalar)  y = LayerNormalization(a, f)", lambda a: normalize(a) * a[3]),
        ("f = Gather<axis=0>(a, scalar)  y = LayerNormalization(a, f, f)", lambda a: normalize(a) * a[3] + a[3]),
    ],
)
def test_operands_that_are_views_of_each_other_are_right(kernels: str, body: str, formula: Any) -> None:
    text = f"""g (float[40,40] x) => (float[40,40] y) <int64[1] one = {{3}}, int64 scalar = {{3}}> {{ a = Neg(x) {body} }}"""
    for inputs, outputs in infer(kernels, text, {"w": np.eye(40, dtype=np.float32)}, x=(40, 40)):
        assert_close(outputs["y"], formula(-inputs["x"]))


def normalize(a: Any) -> Any:
    return (a - a.mean(axis=1, keepdims=True)) / np.sqrt(a.var(axis=1, keepdims=True) + 1e-5)


def test_value_in_a_sequence_is_not_overwritten(kernels: str) -> None:
    text = """g (float[40,40] x) => (float[40,40] y, float[40,40] z) <int64 first = {0}> {
        a = Neg(x)
        s = SequenceConstruct(a)
        y = Relu(a)
        z = SequenceAt(s, first)
    }"""
    for inputs, outputs in infer(kernels, text, x=(40, 40)):
        assert_close(outputs["y"], relu(-inputs["x"]))
        assert_close(outputs["z"], -inputs["x"])
