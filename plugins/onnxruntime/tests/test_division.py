"""A division that would end the process is refused by the query; others run. The processor's signal is ONNX Runtime 1.32's."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import UnsupportedNodesError

HEAD = '<ir_version: 8, opset_import: ["": 17]> '
LEAST = -(2**31)


@pytest.mark.parametrize(
    "text",
    [
        f"g (int32[1] x) => (int32[1] y) <int32[1] a = {{{LEAST}}}, int32[1] b = {{-1}}> {{ c = Div(a, b) y = Add(x, c) }}",
        "g (int32[2] x) => (int32[2] y) <int32[2] b = {3, -1}> { y = Div(x, b) }",
        f"g (int32[1] x) => (int32[1] y) <int32[1] a = {{{LEAST}}}> {{ y = Div(a, x) }}",
        f"g (int32[1] x) => (int32[1] y) <int32[1] a = {{{LEAST}}}, int32[1] o = {{1}}> {{ m = Neg(o) c = Div(a, m) y = Add(x, c) }}",
        f"g (int32[1] x, bool k) => (int32[1] y) <int32[1] a = {{{LEAST}}}, int32[1] b = {{-1}}> "
        "{ y = If (k) <then_branch = t () => (int32[1] c) { c = Div(a, b) }, else_branch = e () => (int32[1] d) { d = Neg(x) }> }",
    ],
    ids=["constants", "divisor", "dividend", "computed", "body"],
)
def test_division_that_may_end_the_process_is_refused(text: str) -> None:
    with (
        Core() as core,
        pytest.raises(UnsupportedNodesError, match="ONNX Runtime ends the process where it divides the least integer by -1"),
    ):
        core.load_network(onnx.parser.parse_model(HEAD + text), "ORT")


@pytest.mark.parametrize(
    ("text", "x", "expected"),
    [
        ("g (int32[2] x) => (int32[2] y) <int32[2] b = {3, 2}> { y = Div(x, b) }", [7, -8], [2, -4]),
        ("g (int32[2] x) => (int32[2] y) <int32[2] a = {9, -6}> { y = Div(a, x) }", [2, -1], [4, 6]),
        ("g (int32[1] x) => (int32[1] y) <int32[1] b = {-1}> { y = Mod(x, b) }", [LEAST], [0]),
    ],
)
def test_division_that_is_harmless_runs(text: str, x: list[int], expected: list[int]) -> None:
    with Core() as core:
        outputs = core.load_network(onnx.parser.parse_model(HEAD + text), "ORT").infer({"x": np.array(x, np.int32)})
    assert outputs["y"].tolist() == expected
