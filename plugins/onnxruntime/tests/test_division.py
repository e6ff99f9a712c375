"""Integer division of the least integer by -1 wraps around in every place; ONNX Runtime 1.32 dies of a signal there."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core

HEAD = '<ir_version: 8, opset_import: ["": 17]> '
LEAST = -(2**31)


@pytest.mark.parametrize("device", ["ORT", "HETERO:ORT,CPU"])
@pytest.mark.parametrize(
    ("text", "x", "expected"),
    [
        (
            f"g (int32[1] x) => (int32[1] y) <int32[1] a = {{{LEAST}}}, int32[1] b = {{-1}}> {{ c = Div(a, b) y = Add(x, c) }}",
            [1],
            [LEAST + 1],
        ),
        ("g (int32[2] x) => (int32[2] y) <int32[2] b = {3, -1}> { y = Div(x, b) }", [LEAST, LEAST], [-715827882, LEAST]),
        (f"g (int32[1] x) => (int32[1] y) <int32[1] a = {{{LEAST}}}> {{ y = Div(a, x) }}", [-1], [LEAST]),
        (
            f"g (int32[1] x) => (int32[1] y) <int32[1] a = {{{LEAST}}}, int32[1] o = {{1}}> {{ m = Neg(o) c = Div(a, m) y = Add(x, c) }}",
            [0],
            [LEAST],
        ),
        (
            f"g (int32[1] x) => (int32[1] y) <int32[1] a = {{{LEAST}}}, int32[1] b = {{-1}}> {{ z = ReduceSum(x) k = Cast<to = 9>(z) "
            "y = If (k) <then_branch = t () => (int32[1] c) { c = Div(a, b) }, else_branch = e () => (int32[1] d) { d = Neg(x) }> }",
            [5],
            [LEAST],
        ),
        ("g (int32[n] x) => (int32[n] y) { m = Neg(x) s = Sign(m) t = Neg(s) y = Div(x, t) }", [LEAST, 7, -7], [LEAST, 7, 7]),
        ("g (int32[2] x) => (int32[2] y) <int32[2] b = {3, 2}> { y = Div(x, b) }", [7, -8], [2, -4]),
        ("g (int32[2] x) => (int32[2] y) <int32[2] a = {9, -6}> { y = Div(a, x) }", [2, -1], [4, 6]),
        ("g (int32[1] x) => (int32[1] y) <int32[1] b = {-1}> { y = Mod(x, b) }", [LEAST], [0]),
    ],
    ids=["constants", "divisor", "dividend", "computed", "body", "run", "harmless divisor", "harmless dividend", "Mod"],
)
def test_least_integer_divided_by_minus_one_wraps_around(device: str, text: str, x: list[int], expected: list[int]) -> None:
    with Core() as core:
        outputs = core.load_network(onnx.parser.parse_model(HEAD + text), device).infer({"x": np.array(x, np.int32)})
    assert outputs["y"].tolist() == expected


@pytest.mark.parametrize("shapes", [("", "[3]"), ("[3]", ""), ("[2,1]", "[3]"), ("[n]", "[1]")])
def test_operands_of_a_division_broadcast(shapes: tuple[str, str]) -> None:
    text = f"g (int64{shapes[0]} a, int64{shapes[1]} b) => (y) {{ y = Div(a, b) }}"
    sizes = [tuple({"n": 4}.get(size, size) for size in shape.strip("[]").split(",") if size) for shape in shapes]
    least = np.iinfo(np.int64).min
    a, b = (np.full([int(size) for size in shape], value, np.int64) for shape, value in zip(sizes, (least, -1), strict=True))
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(HEAD + text), "ORT").infer({"a": a, "b": b})["y"]
    np.testing.assert_array_equal(y, np.full(np.broadcast_shapes(a.shape, b.shape), least))
