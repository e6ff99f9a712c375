"""ONNX Runtime as a reference: the largest products of bytes, compared with exact integers and float64 formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.conformance.contrib import judge_case
from hetero_core.conformance.graphs.judgement import Expectation, run_engine
from hetero_core.network.reader import read_network
from hetero_core.testing import reference_session
from hetero_core.testing.contrib.case import ContribCase
from hetero_core.testing.contrib.case import run_engine as run_kernel

DEPTH = 64
SCALE = 2.0**-20
WEIGHTS = [np.array(value, dtype) for dtype in (np.int8, np.uint8) for value in (np.iinfo(dtype).min, np.iinfo(dtype).max)]
IDS = [f"{weight.dtype}({weight})" for weight in WEIGHTS]


def _bytes(*shape: int) -> Any:
    return np.full(shape, 255, np.uint8)


def _single(value: float) -> Any:
    return np.array(value, np.float32)


def _make_matmul(w: Any) -> tuple[ContribCase, Any]:
    case = ContribCase("MatMulIntegerToFloat", (_bytes(2, DEPTH), np.full((DEPTH, 3), w), _single(1), _single(1)))
    return case, np.full((2, 3), DEPTH * 255 * int(w))


def _make_dynamic(w: Any) -> tuple[ContribCase, Any]:
    """The range of the input is 0 (always included) to 255, so the dynamic scale is 1."""
    case = ContribCase("DynamicQuantizeMatMul", (np.full((2, DEPTH), 255, np.float32), np.full((DEPTH, 3), w), _single(1)))
    return case, np.full((2, 3), DEPTH * 255 * int(w))


def _make_gemm(w: Any) -> tuple[ContribCase, Any]:
    zero = np.zeros((), np.uint8)
    inputs = (_bytes(2, DEPTH), _single(1), zero, np.full((DEPTH, 3), w), _single(1), np.zeros((), w.dtype))
    return ContribCase("QGemm", inputs), np.full((2, 3), DEPTH * 255 * int(w))


def _make_conv(w: Any) -> tuple[ContribCase, Any]:
    """The output has scale 2^15, so no product is near a rounding tie, and zero point 128."""
    weights, zero = np.full((3, DEPTH, 1, 1), w), np.zeros((), w.dtype)
    inputs = (_bytes(1, DEPTH, 2, 2), _single(1), np.zeros((), np.uint8), weights, _single(1), zero)
    exact = np.clip(round(DEPTH * 255 * int(w) / 2**15) + 128, 0, 255)
    case = ContribCase("QLinearConv", (*inputs, _single(2**15), np.array(128, np.uint8)))
    return case, np.full((1, 3, 2, 2), exact)


def _make_attention(w: Any) -> tuple[ContribCase, Any]:
    """There is a single key with attention weight 1, so the output is its value."""
    inputs = (_bytes(1, 1, DEPTH), np.full((DEPTH, 12), w), np.zeros(12, np.float32), _single(SCALE), _single(1))
    return ContribCase("QAttention", inputs, {"num_heads": 2}), np.full((1, 1, 4), DEPTH * 255 * int(w) * SCALE)


def _make_lstm(w: Any) -> tuple[ContribCase, Any]:
    """A single step from a zero state: all four gates have the same sum."""
    scale, zero = np.full(1, SCALE, np.float32), np.zeros(1, w.dtype)
    inputs = (np.full((1, 1, DEPTH), 255, np.float32), np.full((1, DEPTH, 8), w), np.full((1, 2, 8), w), *[None] * 5)
    total = DEPTH * 255 * int(w) * SCALE
    gate = 1 / (1 + np.exp(-total))
    case = ContribCase("DynamicQuantizeLSTM", (*inputs, scale, zero, scale, zero), {"hidden_size": 2}, constants=frozenset({1, 2}))
    return case, np.full((1, 1, 1, 2), gate * np.tanh(gate * np.tanh(total)))


@pytest.mark.parametrize("w", WEIGHTS, ids=IDS)
@pytest.mark.parametrize("make", [_make_matmul, _make_dynamic, _make_gemm, _make_conv, _make_attention, _make_lstm])
def test_kernel_with_the_largest_bytes_is_exact(make: Callable[[Any], tuple[ContribCase, Any]], w: Any) -> None:
    case, exact = make(w)
    (answer,) = run_kernel(case).values()
    np.testing.assert_allclose(answer, exact, rtol=1e-6)
    with Core() as core:
        for device in ("CPU", "TEMPLATE"):
            judge_case(case, {"y0": exact.astype(answer.dtype)}, core, device)


PRODUCT = "g (uint8[4,64] a, int8[64,8] b) => (int32[4,8] y) { y = MatMulInteger (a, b) }"
BRANCHES = """g (bool c, uint8[4,64] a, int8[64,8] b) => (int32[4,8] y) { y = If (c) <
    then_branch = t () => (int32[4,8] d) { d = MatMulInteger (a, b) },
    else_branch = e () => (int32[4,8] f) { f = MatMulInteger (a, b) }> }"""


@pytest.mark.parametrize("text", [PRODUCT, BRANCHES])
@pytest.mark.parametrize("is_exact", [False, True])
def test_engine_checks_byte_products_only_if_it_is_exact(text: str, is_exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_session, "engine_multiplies_exactly", lambda: is_exact)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    feeds = {"a": _bytes(4, 64), "b": np.full((64, 8), 1, np.int8)} | ({"c": np.array(True)} if text is BRANCHES else {})
    answer = run_engine(model.SerializeToString(), feeds)
    assert (answer is None) == (not is_exact)


def test_probe_agrees_with_exact_integers_on_this_processor() -> None:
    """With unsigned weights, a sum of two products never saturates 16 bits."""
    assert reference_session.engine_multiplies_exactly("uint8")
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {PRODUCT}')
    feeds = {"a": _bytes(4, 64), "b": np.full((64, 8), 127, np.int8)}
    (product,) = reference_session.open_reference_session(model.SerializeToString()).run(None, feeds)
    assert (product == 64 * 255 * 127).all() == reference_session.engine_multiplies_exactly()
    expectation = Expectation(read_network(model), feeds)
    assert expectation.describe_dispute() is None
    assert expectation.describe_fault([np.full((4, 8), 64 * 255 * 127, np.int32)]) is None
