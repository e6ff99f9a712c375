"""What onnx.reference gets wrong in the default domain is refused, with the reason; the rest of an operator is not."""

from __future__ import annotations

import onnx.parser
import pytest

from hetero_core import Core

POOL = "(float[1,2,6,6] x) => (float[1,2,H,W] y) { y = MaxPool <kernel_shape = [3, 3], pads = PADS, strides = [STEP, STEP]> (x) }"

GROUPS = "(float[1,SIZE,5,5] x, float[SIZE,1,2,2] w) => (float[1,2,6,6] y) { y = ConvTranspose <group = 2> (x, w) }"


def refusals_of(text: str) -> list[str]:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    with Core() as core:
        return list(core.query_network(core.read_network(model), "TEMPLATE").refused.values())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (POOL.replace("PADS", "[0, 1, 0, 1]").replace("STEP", "1"), "pads that differ"),
        (POOL.replace("PADS", "[0, 0, 1, 1]").replace("STEP", "1"), "pads that differ"),
        ("(float[1,2,6] x) => (float[1,2,L] y) { y = MaxPool <kernel_shape = [3], pads = [1, 1]> (x) }", "or along one axis"),
        (GROUPS.replace("SIZE", "4"), "several channels in each of its groups"),
        (
            """(int64 n, float[2] x) => (float[2] y) { y = Loop (n, , x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e)
               { d = Identity (c) e = Neg (a) }> }""",
            "without a condition: onnx.reference makes no trip",
        ),
        (
            """(int64 n, bool c, float[2,3] x) => (float[2,3] y, float[T,2,3] z) { y, z = Loop (n, c, x)
               <body = b (int64 i, bool k, float[2,3] a) => (bool d, float[2,3] e, float[2,3] f)
               { d = Identity (k) e = Neg (a) f = Abs (a) }> }""",
            "with a scan output of several dimensions",
        ),
        ("(double[2] x) => (double[2] y) { y = Erf (x) }", "of float64: onnx.reference computes it in float32"),
    ],
)
def test_fault_is_refused(text: str, reason: str) -> None:
    (refused,) = refusals_of(text)
    assert reason in refused


@pytest.mark.parametrize(
    "text",
    [
        POOL.replace("PADS", "[1, 1, 1, 1]").replace("STEP", "1"),
        POOL.replace("PADS", "[0, 1, 0, 1]").replace("STEP", "2"),
        "(float[1,2,6] x) => (float[1,2,L] y) { y = MaxPool <kernel_shape = [3]> (x) }",
        GROUPS.replace("SIZE", "2"),
        "(float[2] x) => (float[2] y) { y = Erf (x) }",
    ],
)
def test_what_it_does_right_is_not_refused(text: str) -> None:
    assert refusals_of(text) == []
