"""NaN, infinities, zeros and float32 limits in every activation, by each kind of kernel; expected values from ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.testing.reference_session import open_reference_session

NUMBERS = [
    np.nan,
    np.inf,
    0.0,
    0.2,
    0.5,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
    6.0,
    20.0,
    88.0,
    88.8,
    104.0,
    1e4,
    1e19,
    1e30,
    3e38,
    1e-30,
    1e-40,
]
X = np.array([sign * number for number in NUMBERS for sign in (1, -1)], np.float32)
CONSTANTS = "float low = {-0.5}, float high = {1}, float[1] slope = {0.25}, float two = {2}, float three = {3}, float less = {-1}"


@pytest.mark.parametrize(
    "body",
    [
        *(
            f"y = {name}(x)"
            for name in (
                "Abs", "Ceil", "Celu", "Celu<alpha=2.0>", "Elu", "Elu<alpha=2.0>", "Erf", "Exp", "Floor", "Gelu",
                'Gelu<approximate="tanh">', "HardSigmoid", "HardSigmoid<alpha=-0.5>", "HardSwish", "LeakyRelu",
                "LeakyRelu<alpha=0.0>", "LeakyRelu<alpha=1.5>",
                "LeakyRelu<alpha=inf>", "LeakyRelu<alpha=-0.5>", "Log", "Mish", "Neg", "Reciprocal",
                "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu",
                "ThresholdedRelu<alpha=0.5>", "ThresholdedRelu<alpha=-1.0>",
            )
        ),
        "y = Clip(x, low, high)",
        "y = PRelu(x, slope)",
        "y = Pow(x, two)",
        "y = Pow(x, three)",
        "y = Pow(x, less)",
        "s = Sigmoid(x)  y = Mul(x, s)",
        *(f"r = Reciprocal(x)  y = {name}(x, r)" for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")),
        *(f"n = Neg(x)  e = Exp(x)  y = {name}(n, x, e)" for name in ("Max", "Min", "Sum", "Mean")),
    ],
)  # fmt: skip
def test_special_numbers_equal_onnx_runtime(kernels: str, body: str) -> None:
    assert_as_onnx_runtime(kernels, body, opset=22)


def test_elu_of_infinite_alpha_keeps_positive_values(kernels: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> g (float[n] x) => (float[n] y) { y = Elu<alpha=inf>(x) }'
    )
    with Core() as core:
        y = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": X})["y"]
    np.testing.assert_array_equal(y[X > 0], X[X > 0])
    assert np.isneginf(y[X < 0]).all()


@pytest.mark.parametrize("bounds", ["min = -0.5", "max = 1.0", "min = -0.5, max = 1.0"])
def test_bounds_that_are_attributes_have_finite_defaults(kernels: str, bounds: str) -> None:
    """Source: ONNX Clip-6."""
    assert_as_onnx_runtime(kernels, f"y = Clip<{bounds}>(x)", opset=6)


_MOST = (2 - 2.0**-23) * 2.0**127
"""The largest float32."""


@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        ("y = Clip(x)", -_MOST, _MOST),
        ("y = Clip(x, low)", -0.5, _MOST),
        ("y = Clip(x, , high)", -_MOST, 1),
        ("n = Neg(x)  m = Neg(n)  y = Clip(m, low)", -0.5, _MOST),
        ("i = Identity(x)  a = Add(i, i)  h = Mul(a, half)  y = Clip(h, , high)", -_MOST, 1),
    ],
)
@pytest.mark.parametrize("size", [42, 20_000, 100_000])
def test_absent_bounds_are_the_limits_of_float32(kernels: str, body: str, low: float, high: float, size: int) -> None:
    """Source: ONNX Clip-13, numeric_limits::lowest() and max()."""
    x = np.resize(X[np.abs(X) < 1e38], size)
    x[:3] = np.inf, -np.inf, np.nan
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 22]> g (float[n] x) => (float[n] y) <{CONSTANTS}, float half = {{0.5}}> {{ {body} }}'
    )
    with Core() as core:
        y = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": x})["y"]
    np.testing.assert_array_equal(y, np.minimum(np.maximum(x.astype(np.float64), low), high))


def test_absent_bound_behind_a_product_is_the_limit_of_float32(kernels: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> g (float[5,2] x) => (float[5,1] y) '
        f"<{CONSTANTS}, float[2,1] w = {{1, 0.5}}> {{ p = MatMul(x, w)  y = Clip(p, low) }}"
    )
    x = np.array([[np.inf, 1], [-np.inf, 1], [np.nan, 0], [1, 4], [-3, 1]], np.float32)
    with Core() as core:
        y = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": x})["y"]
    np.testing.assert_array_equal(y, np.array([[_MOST], [-0.5], [np.nan], [3], [-0.5]]))


def assert_as_onnx_runtime(kernels: str, body: str, *, opset: int) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}]> g (float[n] x) => (float[n] y) <{CONSTANTS}> {{ {body} }}'
    )
    with Core() as core:
        result = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": X})["y"]
    assert_alike(result, run_onnx_runtime(model))


def run_onnx_runtime(model: onnx.ModelProto) -> Any:
    return open_reference_session(model.SerializeToString()).run(None, {"x": X})[0]


def assert_alike(result: Any, expected: Any) -> None:
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite])
    np.testing.assert_allclose(result[finite], expected[finite], rtol=2e-5, atol=2e-6)
