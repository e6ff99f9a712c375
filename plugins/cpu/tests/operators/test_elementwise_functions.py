"""Functions of a single vector against float64, over all exponents of float32 and densely where they bend."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hetero_cpu.machine.arithmetic import EMITTERS, Activation, emit_activations
from hetero_cpu.machine.calls import NativeCall, address_of
from hetero_cpu.machine.code import Code
from hetero_cpu.machine.compiler import Kernel

from ..trial import WIDTHS, run_calls

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")
Array = np.ndarray[Any, Any]
SPECIAL = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1, -1, 3.4e38, -3.4e38, 89, -104.5, 0.5, 2.5, -2.5], np.float32
)


def draw_everywhere() -> Array:
    """Returns finite numbers of every exponent, and many between -100 and 100."""
    bits = np.arange(0, 1 << 32, 40009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    rng = np.random.default_rng(5)
    near = rng.standard_normal(1 << 17) * rng.choice([0.01, 0.3, 1, 5, 30], 1 << 17)
    numbers = np.concatenate([bits[np.isfinite(bits)], near.astype(np.float32)])
    return numbers[: numbers.size // 16 * 16].copy()


def apply_kernel(activation: Activation, x: Array, width: int) -> Array:
    def emit(name: str, width: int) -> Code:
        code = Code(name, 3, width)
        row, _, _ = code.parameters
        source, target, count = (code.load_number(row, 8 * position) for position in range(3))
        with code.loop(0, count, width) as i:
            code.store(target + i * 4, emit_activations(code, (activation,), code.load(source + i * 4)))
        code.finish()
        return code

    y = np.empty_like(x)
    kernel = Kernel(f"test_{activation.name}", emit)
    run_calls([NativeCall(kernel, (address_of(x), address_of(y), x.size), 1)], width)
    return y


def erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


def expit(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def scale_elu(alpha: float, gamma: float = 1.0) -> Callable[[Array], Array]:
    return lambda x: gamma * np.where(x < 0, alpha * np.expm1(x), x)


FORMULAS: list[tuple[Activation, Callable[[Array], Array], float]] = [
    (Activation("Exp"), np.exp, 1.0),
    (Activation("Log"), np.log, 1.0),
    (Activation("Tanh"), np.tanh, 5.0),
    (Activation("Sin"), np.sin, 1.5),
    (Activation("Cos"), np.cos, 1.5),
    (Activation("Erf"), erf, 6.0),
    (Activation("Sigmoid"), expit, 2.0),
    (Activation("Swish", (1.0,)), lambda x: x * expit(x), 2.5),
    (Activation("Swish", (-0.5,)), lambda x: x * expit(-0.5 * x), 2.5),
    (Activation("Softplus"), softplus, 2.0),
    (Activation("Mish"), lambda x: x * np.tanh(softplus(x)), 5.0),
    (Activation("Elu", (1.0,)), scale_elu(1.0), 1.5),
    (Activation("Selu", (1.5, 1.25)), scale_elu(1.5, 1.25), 2.0),
    (Activation("Celu", (0.5,)), lambda x: np.where(x < 0, 0.5 * np.expm1(x / 0.5), x), 1.5),
    (Activation("Sqrt"), np.sqrt, 0.5),
    (Activation("Reciprocal"), lambda x: 1 / x, 0.5),
    (Activation("Softsign"), lambda x: x / (1 + np.abs(x)), 1.5),
    (Activation("Power", (2.0,)), lambda x: x**2, 0.5),
    (Activation("Power", (3.0,)), lambda x: x**3, 1.5),
    (Activation("Power", (4.0,)), lambda x: x**4, 2.0),
    (Activation("Power", (-1.0,)), lambda x: 1 / x, 0.5),
    (Activation("Abs"), np.abs, 0),
    (Activation("Neg"), np.negative, 0),
    (Activation("Floor"), np.floor, 0),
    (Activation("Ceil"), np.ceil, 0),
    (Activation("Round"), np.rint, 0),
    (Activation("Sign"), np.sign, 0),
    (Activation("Relu"), lambda x: np.maximum(x, 0), 0),
    (Activation("Clip", (-1.0, 6.0)), lambda x: np.clip(x, -1, 6), 0),
    (Activation("Clip", (float("-inf"), 2.0)), lambda x: np.minimum(x, 2), 0),
    (Activation("LeakyRelu", (0.25,)), lambda x: np.where(x < 0, 0.25 * x, x), 0.5),
    (Activation("ThresholdedRelu", (1.5,)), lambda x: np.where(x > 1.5, x, 0), 0),
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("activation", "formula", "limit"), FORMULAS, ids=lambda value: getattr(value, "name", None))
def test_function_is_within_its_stated_error(
    activation: Activation, formula: Callable[[Array], Array], limit: float, width: int
) -> None:
    x = draw_everywhere()
    with np.errstate(all="ignore"):
        expected = formula(x.astype(np.float64))
        rounded = expected.astype(np.float32)
        # A subnormal result may be flushed to 0.
        unit = np.spacing(np.maximum(np.abs(rounded), np.float32(1.2e-38)).clip(max=np.float32(3.4e38))).astype(np.float64)
        output = apply_kernel(activation, x, width)
        error = np.abs(output - expected) / unit
        is_flushed = (
            (np.abs(expected) < 1.2e-36) & (np.abs(output) < 1.2e-36) & (activation.operator in ("Sigmoid", "Swish", "Mish"))
        )
        error[(output == rounded) | (np.isnan(output) & np.isnan(expected)) | is_flushed] = 0
    assert not np.isnan(error).any()
    assert error.max() <= limit, x[error.argmax()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("activation", "formula", "limit"), FORMULAS, ids=lambda value: getattr(value, "name", None))
def test_function_of_a_limit_is_the_limit(
    activation: Activation, formula: Callable[[Array], Array], limit: float, width: int
) -> None:
    with np.errstate(all="ignore"):
        expected = formula(SPECIAL.astype(np.float64)).astype(np.float32)
    output = apply_kernel(activation, SPECIAL, width)
    np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-35)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize(("operator", "formula"), [("Sin", np.sin), ("Cos", np.cos)])
def test_special_number_changes_no_large_angle_beside_it(
    operator: str, formula: Callable[[Array], Array], special: float, width: int
) -> None:
    for lane in range(width):
        x = np.full(4 * width, 1e30, np.float32)
        x[lane::width] = special
        with np.errstate(invalid="ignore"):
            expected = formula(x.astype(np.float64))
        np.testing.assert_allclose(apply_kernel(Activation(operator), x, width), expected, rtol=0, atol=2e-7)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + erf(x * np.sqrt(0.5)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("operator", "formula"), [("Gelu", gelu), ("GeluTanh", gelu_tanh)])
def test_gelu_is_within_four_parts_of_its_argument(operator: str, formula: Callable[[Array], Array], width: int) -> None:
    x = draw_everywhere()
    x = x[np.abs(x) > 1e-30]
    x = x[: x.size // 16 * 16].copy()
    with np.errstate(all="ignore"):
        error = np.abs(apply_kernel(Activation(operator), x, width) - formula(x.astype(np.float64))) / np.abs(x.astype(np.float64))
    assert error.max() * 2**24 <= 4, x[error.argmax()]


@pytest.mark.parametrize("width", WIDTHS)
def test_hard_swish_is_within_two_parts_of_its_argument(width: int) -> None:
    x = draw_everywhere()
    exact = x.astype(np.float64)
    error = np.abs(apply_kernel(Activation("HardSwish"), x, width) - exact * np.clip(exact / 6 + 0.5, 0, 1))
    assert (error <= np.maximum(2**-23 * np.abs(exact), 1e-45)).all()


def test_every_function_has_a_formula_here() -> None:
    tested = {activation.operator for activation, _, _ in FORMULAS} | {"Gelu", "GeluTanh", "HardSwish", "HardSigmoid"}
    assert tested == set(EMITTERS)
