"""Contract of formulas: fixed cases of the faults in kernels that ONNX's suite and its tolerances do not show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip, load_each, skip_declared
from hetero_core.errors import InferenceError
from hetero_core.testing.compare import describe_mismatch


@dataclass(frozen=True, slots=True)
class _Case:
    """A graph in ONNX's text, its inputs by name, and its formula on them in float64; `rtol` 0 demands equal results."""

    graph: str
    inputs: Mapping[str, Any]
    formula: Callable[..., Any]
    rtol: float = 0.0
    opset: int = 17


def _count(*shape: int) -> Any:
    """Returns small integers, whose sums and products are exact in float32."""
    return (np.arange(math.prod(shape), dtype=np.float32) * 5 % 11 - 4).reshape(shape)


def _floats(*values: float) -> Any:
    return np.array(values, np.float32)


def _slide(x: Any, w: Any) -> Any:
    """Returns a convolution with dilations 2 and 1, and pads 1 and 0 before, 2 and 3 after."""
    x = np.pad(x[0, 0], ((1, 2), (0, 3)))
    rows, columns = x.shape[0] - 2 * (w.shape[2] - 1), x.shape[1] - w.shape[3] + 1
    places = np.ndindex(*w.shape[2:])
    return sum(w[0, 0, i, j] * x[2 * i : 2 * i + rows, j : j + columns] for i, j in places)[None, None]


def _gate(x: Any, w: Any, r: Any, b: Any) -> Any:
    """Returns GRU with linear_before_reset = 1. Source: ONNX GRU-14."""
    state, outputs = np.zeros((1, 2)), []
    for step in x:
        (wz, wr, wh), (rz, rr, rh) = np.split(step @ w[0].T + b[0, :6], 3, 1), np.split(state @ r[0].T + b[0, 6:], 3, 1)
        update, reset = 1 / (1 + np.exp(-(wz + rz))), 1 / (1 + np.exp(-(wr + rr)))
        state = (1 - update) * np.tanh(wh + reset * rh) + update * state
        outputs.append(state[None])
    return np.array(outputs)


_erf = np.vectorize(math.erf, otypes=[float])
_RAMP = np.linspace(-4, 4, 97, dtype=np.float32)
_HALF = {"x": np.ones((1, 4096), np.float16)}
_UNITS = np.arange(1, 5, dtype=np.float32) * np.float32(1e-40)

_CASES: Mapping[str, tuple[str, Mapping[str, _Case]]] = {
    "halves_are_rounded_to_even": (
        "QuantizeLinear and Round take the even neighbour of a number in the middle of two, not the one away from zero.",
        {
            "QuantizeLinear": _Case(
                "(float[8] x) => (uint8[8] y) <float s = {2}, uint8 z = {3}> { y = QuantizeLinear (x, s, z) }",
                {"x": _floats(1, 3, 5, 7, 9, 11, 13, -1)},
                lambda x: np.rint(x / 2) + 3,
            ),
            "Round": _Case("(float[4] x) => (float[4] y) { y = Round (x) }", {"x": _floats(0.5, 1.5, 2.5, -2.5)}, np.rint),
        },
    ),
    "casts_to_integers_cut_the_fraction": (
        "Cast from float to an integer cuts the fraction off; it does not round.",
        {
            "Cast": _Case(
                "(float[6] x) => (int32[6] y) { y = Cast <to = 6> (x) }", {"x": _floats(1.7, -1.7, 2.5, -0.9, 0.5, 3.5)}, np.trunc
            )
        },
    ),
    "windows_have_pads_and_dilations_of_each_side": (
        "A convolution with dilations has its own pads at each side of each axis.",
        {
            "Conv": _Case(
                "(float[1,1,5,6] x, float[1,1,2,3] w) => (y) { y = Conv <dilations = [2, 1], pads = [1, 0, 2, 3]> (x, w) }",
                {"x": _count(1, 1, 5, 6), "w": _count(1, 1, 2, 3)},
                _slide,
            )
        },
    ),
    "products_of_depth_0_are_zero": (
        "A product over an axis of size 0 is a sum of no terms, which is 0.",
        {
            "MatMul": _Case(
                "(float[M,K] x, float[K,N] w) => (float[M,N] y) { y = MatMul (x, w) }",
                {"x": np.ones((3, 0), np.float32), "w": np.ones((0, 2), np.float32)},
                np.matmul,
            )
        },
    ),
    "denormals_are_kept": (
        "Numbers below 1.2e-38 are computed as they are, not flushed to 0.",
        {
            "Add": _Case("(float[4] x) => (float[4] y) { y = Add (x, x) }", {"x": _UNITS}, lambda x: 2 * x),
            "Mul": _Case("(float[4] x) => (float[4] y) <float[1] w = {2}> { y = Mul (x, w) }", {"x": _UNITS}, lambda x: 2 * x),
        },
    ),
    "float16_is_summed_in_a_wider_type": (
        "A sum of 4,096 ones is 4,096 in float16, which a sum in float16 never reaches: it stops at 2,048.",
        {
            "MatMul": _Case(
                "(float16[1,4096] x, float16[4096,1] w) => (float16[1,1] y) { y = MatMul (x, w) }",
                {**_HALF, "w": np.ones((4096, 1), np.float16)},
                np.matmul,
            ),
            "ReduceSum": _Case(
                "(float16[1,4096] x) => (y) { y = ReduceSum (x) }", _HALF, lambda x: x.sum(keepdims=True).astype(x.dtype)
            ),
        },
    ),
    "float16_overflows_to_infinity": (
        "A result past 65,504 in float16 is infinite, not the largest finite number.",
        {
            "Add": _Case(
                "(float16[2] x) => (float16[2] y) { y = Add (x, x) }", {"x": np.array([60000, -60000], np.float16)}, lambda x: x + x
            )
        },
    ),
    "functions_are_those_of_the_standard": (
        "Erf and Gelu are right to float32, not computed by formulas of four digits; Gelu is by erf unless `approximate` says tanh.",
        {
            "Erf": _Case("(float[97] x) => (float[97] y) { y = Erf (x) }", {"x": _RAMP}, _erf, rtol=3e-6),
            "Gelu": _Case(
                "(float[97] x) => (float[97] y) { y = Gelu (x) }",
                {"x": _RAMP},
                lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))),
                rtol=3e-6,
                opset=20,
            ),
        },
    ),
    "inner_values_have_strides": (
        "A kernel reads an inner value by its strides: a transposed value or one of every second column.",
        {
            "Transpose": _Case(
                "(float[3,4] x) => (float[4,3] y) { a = Transpose (x) y = Neg (a) }", {"x": _count(3, 4)}, lambda x: -x.T
            ),
            "Slice": _Case(
                "(float[3,8] x) => (float[3,4] y) <int64[1] b = {0}, int64[1] e = {8}, int64[1] i = {1}, int64[1] s = {2}> "
                "{ a = Slice (x, b, e, i, s) y = Neg (a) }",
                {"x": _count(3, 8)},
                lambda x: -x[:, ::2],
            ),
        },
    ),
    "large_batches_are_computed_to_the_end": (
        "Each matrix and image of a batch of 7 is computed.",
        {
            "MatMul": _Case(
                "(float[7,2,3] x, float[7,3,2] w) => (float[7,2,2] y) { y = MatMul (x, w) }",
                {"x": _count(7, 2, 3), "w": _count(7, 3, 2)},
                np.matmul,
            ),
            "Conv": _Case(
                "(float[7,2,3,3] x, float[4,2,1,1] w) => (float[7,4,3,3] y) { y = Conv (x, w) }",
                {"x": _count(7, 2, 3, 3), "w": _count(4, 2, 1, 1)},
                lambda x, w: np.einsum("bihw,oi->bohw", x, w[:, :, 0, 0]),
            ),
        },
    ),
    "linear_before_reset_is_followed": (
        "GRU with linear_before_reset multiplies by the reset gate after the product and its bias.",
        {
            "GRU": _Case(
                "(float[3,1,2] x, float[1,6,2] w, float[1,6,2] r, float[1,12] b) => (y) "
                "{ y = GRU <hidden_size = 2, linear_before_reset = 1> (x, w, r, b) }",
                {"x": _count(3, 1, 2) / 4, "w": _count(1, 6, 2) / 4, "r": _count(1, 6, 2) / 4, "b": _count(1, 12) / 4},
                _gate,
                rtol=1e-5,
            )
        },
    ),
    "results_may_have_no_dimension": (
        "A result of rank 0 has the shape (), not (1,).",
        {
            "ReduceSum": _Case("(float[2,3] x) => (y) { y = ReduceSum <keepdims = 0> (x) }", {"x": _count(2, 3)}, np.sum),
            "Squeeze": _Case("(float[1,1] x) => (y) { y = Squeeze (x) }", {"x": _count(1, 1)}, np.squeeze),
        },
    ),
    "softmax_of_large_numbers_is_finite": (
        "Softmax subtracts the largest number first, since the exponential of 1,000 overflows.",
        {
            "Softmax": _Case(
                "(float[3] x) => (float[3] y) { y = Softmax (x) }", {"x": _floats(1000, 0, -1000)}, lambda x: np.array([1, 0, 0])
            )
        },
    ),
    "clip_takes_the_upper_bound_last": (
        "Clip with a lower bound above the upper bound gives the upper bound.",
        {
            "Clip": _Case(
                "(float[3] x) => (float[3] y) <float low = {2}, float high = {1}> { y = Clip (x, low, high) }",
                {"x": _floats(0, 1.5, 3)},
                np.ones_like,
            )
        },
    ),
}
"""Name of a check -> its claim, and a case of each operator."""


_DEVIATIONS = {"denormals_are_kept": "DENORMALS"}
"""Name of a check -> the word of the metric VALUE_DEVIATIONS by which a device declares that it deviates there."""


def _make_check(name: str, claim: str, cases: Mapping[str, _Case]) -> Check:
    def check(context: CheckContext) -> None:
        import onnx.parser  # heavy

        skip_declared(context, _DEVIATIONS.get(name, ""))
        networks = {}
        for operator, case in cases.items():
            head = f'<ir_version: 8, opset_import: ["": {case.opset}]>'
            networks[operator] = context.core.read_network(onnx.parser.parse_model(f"{head} {operator} {case.graph}"))
        for operator, loaded in load_each(context, networks):
            case = cases[operator]
            try:
                (value,) = loaded.infer({key: array.copy() for key, array in case.inputs.items()}).values()
            except InferenceError as error:
                if error.__cause__ is None:  # the device refuses these sizes or numbers in words of its own
                    raise Skip(f"{operator}: {error}") from error
                raise
            with np.errstate(over="ignore"):
                exact = case.formula(*(array.astype(np.float64) for array in case.inputs.values()))
                expected = np.asarray(exact).astype(value.dtype)
            mismatch = describe_mismatch(value, expected, rtol=max(case.rtol, context.rtol or 0.0), name=operator)
            if mismatch is not None:
                raise CheckFailed(f"{claim} {mismatch}")

    check.__doc__ = claim
    return Check(f"formulas.{name}", "contract", check)


FORMULA_CHECKS = tuple(_make_check(name, claim, cases) for name, (claim, cases) in _CASES.items())
