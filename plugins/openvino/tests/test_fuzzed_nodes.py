"""Fuzzed nodes that crash the engine or return unwritten memory are refused; similar nodes are accepted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hetero_core import Core, Network

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

Read = Callable[..., Network]

# The number of iterations is a tensor without elements.
LOOP = """g () => (float[n, 2] y) <int64[0] s = {}, bool c = {1}>
{ y = Loop (s, c) <body: graph = b (int64 i, bool k) => (bool o, float[2] z)
  { o = Identity (k) z = Constant <value_floats = [1.0, 2.0]> () }> }"""


@pytest.mark.parametrize(
    ("opset", "text", "reason"),
    [
        (13, "g (uint8[5, 3] x, int64[5, 2, 0] i) => (uint8[5, 2, 5, 3] y) { y = GatherND (x, i) }", "indices of no coordinates"),
        (13, "g (uint8[2, 1, 2] x) => (uint8[a, b, c] y) { y = Unique <axis = 3> (x) }", "an axis that its input may not have"),
        (13, "g (uint8[2, 0] x) => (uint8[a] y) { y = Unique (x) }", "Unique of no elements"),
        (2, "g (float[2, 0] x) => (float[2, 0] y) { y = GlobalLpPool (x) }", "GlobalLpPool of no elements"),
        (18, "g (float[1, 9, 4] x, int64[2] s, int64[2] b) => (float[1, 1, 5, 5] y) { y = Col2Im (x, s, b) }", "come with the run"),
        (11, "g (float x) => (float y) { y = Softmax (x) }", "Softmax-11"),
        *(
            (
                22,
                f"g (float[1, 1, 4, 4] x) => (y) {{ y = {name} <ceil_mode = 1, dilations: ints = [], kernel_shape = [2, 2]> (x) }}",
                name,
            )
            for name in ("AveragePool", "LpPool", "MaxPool")
        ),
        *(
            (
                18,
                f"g (float[2, 3] x) => (y) {{ y = {name} <noop_with_empty_axes = 1> (x) }}",
                f"OpenVINO makes no absolute value and no logarithm of {name} without axes",
            )
            for name in ("ReduceL1", "ReduceL2", "ReduceLogSum")
        ),
        (
            13,
            "g () => (uint32[2] y) <uint32[2] a = {3, 1}, uint32[2] b = {0, 1}> { y = Mod (a, b) }",
            "it folds Mod of integers by 0",
        ),
        (
            14,
            "g () => (int32[1] y) <int32[1] a = {-2147483648}, int32[1] b = {-1}> { y = Div (a, b) }",
            "or of the least one by -1",
        ),
        *(
            (6, f"g (float[3] x) => (float[3] y) {{ y = {name} <{zero}: float = 0> (x) }}", f"default of {name} for a factor of 0")
            for name, zero in (("HardSigmoid", "alpha"), ("HardSigmoid", "beta"), ("Selu", "alpha"), ("Selu", "gamma"))
        ),
        (
            1,
            "g (float16[2, 1] x) => (float16[4, 1] y, int64[4, 1] i) { y, i = TopK <axis = 0, k = 4> (x) }",
            "TopK of more elements than there are",
        ),
        (
            11,
            "g (float[2, 3] x) => (float[2, 4] y, int64[2, 4] i) <int64[1] k = {4}> { y, i = TopK (x, k) }",
            "TopK of more elements than there are",
        ),
    ],
)
def test_node_that_the_engine_does_not_survive_is_refused(core: Core, read: Read, opset: int, text: str, reason: str) -> None:
    (refusal,) = core.query_network(read(text, opset), "OPENVINO").refused.values()
    assert reason in refusal


@pytest.mark.parametrize(
    "text",
    [
        "g (uint8[5, 3] x, int64[5, 2, 1] i) => (uint8[5, 2, 3] y) { y = GatherND (x, i) }",
        "g (float[2, 1, 2] x) => (float[a, b, c] y) { y = Unique <axis = -1> (x) }",
        "g (float[1, 1, 4, 4] x) => (y) { y = LpPool <kernel_shape = [2, 2]> (x) }",
        "g (float[3] x) => (float[3] y) { y = Selu <alpha: float = 0.5> (x) }",
    ],
)
def test_node_beside_it_is_taken(core: Core, read: Read, text: str) -> None:
    assert not core.query_network(read(text, 13), "OPENVINO").refused


@pytest.mark.parametrize(
    ("opset", "text", "is_refused"),
    [
        (13, "g (float[1, 3] x) => (float[1, 3] y) <int64[0] a = {}> { y = Squeeze (x, a) }", True),
        (13, "g (float[1, 3] x, int64[n] a) => (float[m, k] y) { y = Squeeze (x, a) }", True),
        (13, "g (float[1, 3] x, int64[1] a) => (float[3] y) { y = Squeeze (x, a) }", False),
        (13, "g (float[1, 3] x) => (float[3] y) { y = Squeeze (x) }", False),
        (11, "g (float[1, 3] x) => (float[3] y) { y = Squeeze <axes = [0]> (x) }", False),
    ],
)
def test_possibly_empty_axes_are_refused(core: Core, read: Read, opset: int, text: str, is_refused: bool) -> None:
    refused = core.query_network(read(text, opset), "OPENVINO").refused
    assert ["an empty list of axes" in reason for reason in refused.values()] == [True] * is_refused
