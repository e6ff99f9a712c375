"""The pass that computes windows over sequences as windows over images of height 1, against formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.transforms.lines import lift_lines

from hetero_core import Core
from hetero_core.network.reader import read_network

RNG = np.random.default_rng(3)
WEIGHTS = {
    "w": RNG.standard_normal((6, 4, 3)), "b": RNG.standard_normal(6), "t": RNG.standard_normal((6, 4, 4)), "k": RNG.standard_normal((6, 1)),
    "scale": RNG.random(4), "shift": RNG.standard_normal(4),
}  # fmt: skip
WEIGHTS = {name: array.astype(np.float32) for name, array in WEIGHTS.items()}


def make_model(body: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> lines (float[n, 4, l] x) => (float[n, c, m] y) {{ {body} }}'
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in WEIGHTS.items())
    return model


def convolve(x: Any, w: Any, *, stride: int = 1, dilation: int = 1, pads: tuple[int, int] = (0, 0)) -> Any:
    padded = np.pad(x, ((0, 0), (0, 0), pads))
    count = (padded.shape[2] - (w.shape[2] - 1) * dilation - 1) // stride + 1
    taps = [padded[:, :, tap * dilation :][:, :, : (count - 1) * stride + 1 : stride] for tap in range(w.shape[2])]
    return sum(np.einsum("ncl,oc->nol", taps[tap], w[:, :, tap]) for tap in range(w.shape[2]))


def spread(x: Any, t: Any, stride: int) -> Any:
    y = np.zeros((len(x), t.shape[1], (x.shape[2] - 1) * stride + t.shape[2]))
    for place in range(x.shape[2]):
        y[:, :, place * stride : place * stride + t.shape[2]] += np.einsum("nc,cok->nok", x[:, :, place], t)
    return y


def compute_snake(x: Any, w: Any) -> Any:
    z = convolve(x, w["w"]) + w["b"][:, None]
    return spread(z + np.sin(w["k"] * z) ** 2 / w["k"], w["t"], 1)


def compute_gated(x: Any, w: Any) -> Any:
    z = convolve(x, w["w"], dilation=2, pads=(2, 2)) + w["b"][:, None]
    return np.concatenate([np.tanh(z[:, :3]) / (1 + np.exp(-z[:, 3:])), z * w["k"]], axis=1)


BODIES = {
    "stride and pads": (
        "y = Conv <strides = [2], pads = [2, 1]> (x, w, b)",
        lambda x, w: convolve(x, w["w"], stride=2, pads=(2, 1)) + w["b"][:, None],
    ),
    "gates of slices": (
        """starts = Constant <value_ints = [0]> () middle = Constant <value_ints = [3]> () ends = Constant <value_ints = [6]> ()
        axes = Constant <value_ints = [1]> () z = Conv <dilations = [2], pads = [2, 2], kernel_shape = [3]> (x, w, b)
        left = Slice (z, starts, middle, axes) right = Slice (z, middle, ends, axes)
        u = Tanh (left) v = Sigmoid (right) g = Mul (u, v) s = Mul (z, k) y = Concat <axis = -2> (g, s)""",
        compute_gated,
    ),
    "gates of a split": (
        """z = Conv <dilations = [2], pads = [2, 2]> (x, w, b) left, right = Split <axis = 1, num_outputs = 2> (z)
        u = Tanh (left) v = Sigmoid (right) g = Mul (u, v) s = Mul (z, k) y = Concat <axis = 1> (g, s)""",
        compute_gated,
    ),
    "transposed": (
        "z = Conv (x, w) r = Relu (z) y = ConvTranspose <strides = [2], pads = [1, 0]> (r, t)",
        lambda x, w: spread(np.maximum(convolve(x, w["w"]), 0), w["t"], 2)[:, :, 1:],
    ),
    "pools": (
        "p = MaxPool <kernel_shape = [3], strides = [2]> (x) y = AveragePool <kernel_shape = [2]> (p)",
        lambda x, w: convolve(
            np.maximum.reduce([x[:, :, k:][:, :, : (x.shape[2] - 3) // 2 * 2 + 1 : 2] for k in range(3)]),
            np.eye(4)[:, :, None] * np.full(2, 0.5),
        ),
    ),
    "normalized": (
        "z = InstanceNormalization (x, scale, shift) c = Conv (z, w, b) m = GlobalAveragePool (c) y = Sub (c, m)",
        lambda x, w: (
            lambda c: c - c.mean(2, keepdims=True)
        )(
            convolve(
                (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5) * w["scale"][:, None] + w["shift"][:, None],
                w["w"],
            )
        ),
    ),
    "a snake between reshapes": (
        """starts = Constant <value_ints = [0]> () middle = Constant <value_ints = [2]> () rest = Constant <value_ints = [-1]> ()
        z = Conv (x, w, b) sizes = Shape (z) first = Slice (sizes, starts, middle) flat = Concat <axis = 0> (first, rest)
        u = Reshape (z, flat) a = Mul (k, u) s = Sin (a) p = Mul (s, s) q = Div (p, k) v = Add (u, q) r = Reshape (v, sizes)
        y = ConvTranspose (r, t)""",
        compute_snake,
    ),
    "a transpose behind": (
        "z = Conv (x, w) r = Relu (z) q = Transpose <perm = [0, 2, 1]> (r) s = Softmax <axis = -1> (q) y = Mul (s, s)",
        lambda x, w: (lambda e: (e / e.sum(2, keepdims=True)) ** 2)(
            np.exp(np.maximum(convolve(x, w["w"]), 0).transpose(0, 2, 1))
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BODIES))
def test_windows_over_sequences_equal_the_formula_for_open_sizes(name: str, kernels: str) -> None:
    body, formula = BODIES[name]
    exact_weights = {key: array.astype(np.float64) for key, array in WEIGHTS.items()}
    with Core() as core:
        loaded = core.load_network(make_model(body), "CPU", {"CPU_KERNELS": kernels})
        for shape in ((1, 4, 40), (3, 4, 17), (2, 4, 80)):
            x = RNG.standard_normal(shape).astype(np.float32)
            actual = loaded.infer({"x": x})["y"]
            expected = formula(x.astype(np.float64), exact_weights)
            np.testing.assert_allclose(actual, expected, rtol=0, atol=3e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.skipif(not find_width(), reason="no machine code is made for this processor")
def test_elements_of_a_reshaped_sequence_are_machine_code() -> None:
    with Core() as core:
        loaded = core.load_network(make_model(BODIES["a snake between reshapes"][0]), "CPU", {"CPU_KERNELS": "JIT"})
        loaded.infer({"x": np.ones((2, 4, 9), np.float32)})
        assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0


def test_gated_convolution_moves_to_images_once_and_back_once() -> None:
    network = lift_lines(read_network(make_model(BODIES["gates of a split"][0])))
    operators = [node.op_type for node in network.nodes]
    assert operators == ["Unsqueeze", "Conv", "Split", "Tanh", "Sigmoid", "Mul", "Mul", "Concat", "Squeeze"]


def test_network_of_images_alone_is_left_as_it_is() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> images (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) '
        "{ y = MaxPool <kernel_shape = [1, 1]> (x) }"
    )
    network = read_network(model)
    assert lift_lines(network) is network
