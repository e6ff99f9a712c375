"""Sizes of 0: attention without keys, products of depth 0, convolutions without channels, empty normalizations; checked by formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core

Shapes = dict[str, tuple[int, ...]]
_Q, _K, _V = (2, 2, 3, 4), (2, 2, 0, 4), (2, 2, 0, 5)
_NO_QUERIES, _KEYS, _VALUES = (2, 2, 0, 4), (2, 2, 5, 4), (2, 2, 5, 5)
_ATTENTION = "Attention(q, k, v)"
_MICROSOFT = "com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)"
_LINEAR = 'y, state = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "linear">(q, k, v)'
_GROUPS = "GroupNormalization<num_groups = 2>(x, s, b)"
# Call, opset, shapes of the inputs, shape of the result, the value of all its elements.
CASES: list[tuple[str, int, Shapes, tuple[int, ...], float]] = [
    (_ATTENTION, 23, {"q": _Q, "k": _K, "v": _V}, (2, 2, 3, 5), 0),
    (_ATTENTION, 23, {"q": _NO_QUERIES, "k": _KEYS, "v": _VALUES}, (2, 2, 0, 5), 0),
    (_ATTENTION, 23, {"q": (0, 2, 3, 4), "k": (0, 2, 5, 4), "v": (0, 2, 5, 4)}, (0, 2, 3, 4), 0),
    ("Attention<is_causal = 1>(q, k, v)", 23, {"q": _Q, "k": _K, "v": _V}, (2, 2, 3, 5), 0),
    ("Attention<is_causal = 1>(q, k, v)", 24, {"q": _NO_QUERIES, "k": _KEYS, "v": _VALUES}, (2, 2, 0, 5), 0),
    ("Attention<softcap = 3.0>(q, k, v, m)", 24, {"q": _Q, "k": _K, "v": _V, "m": (3, 0)}, (2, 2, 3, 5), 0),
    ("Attention<q_num_heads = 2, kv_num_heads = 1>(q, k, v)", 23, {"q": (2, 3, 8), "k": (2, 0, 4), "v": (2, 0, 4)}, (2, 3, 8), 0),
    ("Attention<q_num_heads = 2, kv_num_heads = 1>(q, k, v)", 23, {"q": (2, 0, 8), "k": (2, 5, 4), "v": (2, 5, 4)}, (2, 0, 8), 0),
    ("Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v)", 23, {"q": (0, 3, 8), "k": (0, 5, 8), "v": (0, 5, 8)}, (0, 3, 8), 0),
    (_MICROSOFT, 17, {"q": (2, 3, 8), "k": (2, 0, 8), "v": (2, 0, 8)}, (2, 3, 8), 0),
    (_MICROSOFT, 17, {"q": (2, 0, 8), "k": (2, 0, 8), "v": (2, 0, 8)}, (2, 0, 8), 0),
    (_MICROSOFT, 17, {"q": (0, 3, 8), "k": (0, 5, 8), "v": (0, 5, 8)}, (0, 3, 8), 0),
    ("com.microsoft.Attention<num_heads = 2>(x, w, b)", 17, {"x": (2, 0, 8), "w": (8, 24), "b": (24,)}, (2, 0, 8), 0),
    ("ai.onnx.preview.FlexAttention(q, k, v)", 26, {"q": _Q, "k": _K, "v": _V}, (2, 2, 3, 5), 0),
    ("RotaryEmbedding<num_heads = 2>(x, c, s)", 23, {"x": (2, 0, 8), "c": (2, 0, 2), "s": (2, 0, 2)}, (2, 0, 8), 0),
    (_LINEAR, 27, {"q": (2, 0, 8), "k": (2, 0, 8), "v": (2, 0, 8)}, (2, 0, 8), 0),
    (_LINEAR, 27, {"q": (0, 3, 8), "k": (0, 3, 8), "v": (0, 3, 8)}, (0, 3, 8), 0),
    ("Conv<pads = [1, 1, 1, 1]>(x, w)", 17, {"x": (2, 0, 6, 6), "w": (3, 0, 3, 3)}, (2, 3, 6, 6), 0),
    ("Conv<pads = [1, 1, 1, 1]>(x, w)", 17, {"x": (2, 4, 6, 6), "w": (0, 4, 3, 3)}, (2, 0, 6, 6), 0),
    ("Conv(x, w, b)", 17, {"x": (2, 0, 6, 6), "w": (3, 0, 1, 1), "b": (3,)}, (2, 3, 6, 6), 1),
    ("Conv<pads = [2, 2, 2, 2]>(x, w, b)", 17, {"x": (2, 3, 0, 4), "w": (3, 3, 3, 3), "b": (3,)}, (2, 3, 2, 6), 1),
    ("ConvTranspose(x, w)", 17, {"x": (2, 0, 4, 4), "w": (0, 3, 3, 3)}, (2, 3, 6, 6), 0),
    ("ConvTranspose(x, w, b)", 17, {"x": (2, 0, 4, 4), "w": (0, 3, 3, 3), "b": (3,)}, (2, 3, 6, 6), 1),
    ("MatMul(a, b)", 17, {"a": (3, 0), "b": (0, 4)}, (3, 4), 0),
    ("MatMul(a, b)", 17, {"a": (2, 3, 0), "b": (2, 0, 4)}, (2, 3, 4), 0),
    ("Gemm<beta = 3.0>(a, b, c)", 17, {"a": (3, 0), "b": (0, 4), "c": (4,)}, (3, 4), 3),
    ("Gemm<transA = 1, transB = 1>(a, b)", 17, {"a": (0, 3), "b": (4, 0)}, (3, 4), 0),
    ('Einsum<equation = "mk,kn->mn">(a, b)', 17, {"a": (3, 0), "b": (0, 4)}, (3, 4), 0),
    ("LSTM<hidden_size = 3>(x, w, r)", 14, {"x": (0, 2, 4), "w": (1, 12, 4), "r": (1, 12, 3)}, (0, 1, 2, 3), 0),
    ("LSTM<hidden_size = 3>(x, w, r)", 14, {"x": (5, 0, 4), "w": (1, 12, 4), "r": (1, 12, 3)}, (5, 1, 0, 3), 0),
    ("GRU<hidden_size = 3>(x, w, r)", 14, {"x": (0, 2, 4), "w": (1, 9, 4), "r": (1, 9, 3)}, (0, 1, 2, 3), 0),
    ("RNN<hidden_size = 3>(x, w, r)", 14, {"x": (5, 0, 4), "w": (1, 3, 4), "r": (1, 3, 3)}, (5, 1, 0, 3), 0),
    ("InstanceNormalization(x, s, b)", 17, {"x": (2, 3, 0), "s": (3,), "b": (3,)}, (2, 3, 0), 0),
    ("LayerNormalization(x, s, b)", 17, {"x": (2, 3, 0), "s": (0,), "b": (0,)}, (2, 3, 0), 0),
    ("RMSNormalization(x, s)", 23, {"x": (2, 3, 0), "s": (0,)}, (2, 3, 0), 0),
    (_GROUPS, 21, {"x": (2, 4, 0), "s": (4,), "b": (4,)}, (2, 4, 0), 0),
    (_GROUPS, 21, {"x": (0, 4, 5), "s": (4,), "b": (4,)}, (0, 4, 5), 0),
    ("MeanVarianceNormalization(x)", 17, {"x": (0, 3, 4, 5)}, (0, 3, 4, 5), 0),
    ("GlobalMaxPool(x)", 17, {"x": (2, 3, 0, 4)}, (2, 3, 1, 1), -np.inf),
    ("GlobalAveragePool(x)", 17, {"x": (2, 3, 0, 4)}, (2, 3, 1, 1), np.nan),
    ("GlobalLpPool(x)", 17, {"x": (2, 3, 0, 4)}, (2, 3, 1, 1), 0),
    ("MaxPool<kernel_shape = [2, 2]>(x)", 17, {"x": (0, 3, 4, 4)}, (0, 3, 3, 3), 0),
    ("Softmax(x)", 17, {"x": (2, 0)}, (2, 0), 0),
    ("LogSoftmax<axis = 0>(x)", 17, {"x": (0, 3)}, (0, 3), 0),
    ("Unique<axis = 0>(x)", 17, {"x": (0, 3)}, (0, 3), 0),
    ("Unique(x)", 17, {"x": (2, 0)}, (0,), 0),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize(
    ("call", "opset", "shapes", "shape", "value"), CASES, ids=[f"{case[0].split('(')[0]}-{case[3]}" for case in CASES]
)
def test_result_of_empty_operands(
    kernels: str, call: str, opset: int, shapes: Shapes, shape: tuple[int, ...], value: float, is_open: bool
) -> None:
    def declare(name: str, sizes: tuple[int, ...]) -> str:
        # onnx 1.23 infers a hidden size of 0 for packed Attention if the hidden size of the values is open.
        fixed = len(sizes) - 1 if "num_heads" in call else len(sizes)
        dims = (f"{name}{axis}" if is_open and axis < fixed else str(size) for axis, size in enumerate(sizes))
        return f"float[{','.join(dims)}] {name}"

    domains = f'"": {opset}, "com.microsoft": 1, "ai.onnx.preview": 1'
    inputs = ", ".join(declare(name, sizes) for name, sizes in shapes.items())
    text = call if call.startswith("y") else f"y = {call}"
    model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]> g ({inputs}) => (y) {{ {text} }}")
    arrays: dict[str, Any] = {name: np.ones(sizes, np.float32) for name, sizes in shapes.items()}
    with Core() as core:
        y = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer(arrays)["y"]
    np.testing.assert_array_equal(y, np.full(shape, value, np.float32))


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize("side", ["4", "s"])
def test_empty_batch_keeps_the_size_that_minus_one_stands_for(kernels: str, device: str, side: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n,3,{side}] x) => (float[n,c] y, float[n,d] m) <int64[2] k = {{0, -1}},
        float[12,2] w = {{{",".join("1" * 24)}}}> {{ f = Reshape (x, k) y = Relu (f) m = MatMul (y, w) }}"""
    config = {"CPU_KERNELS": kernels} if device == "CPU" else {}
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(text), device, config)
        for batch in (2, 0, 1):
            outputs = network.infer({"x": np.ones((batch, 3, 4), np.float32)})
            assert outputs["y"].tolist() == np.ones((batch, 12)).tolist()
            assert [value.shape for value in outputs.values()] == [(batch, 12), (batch, 2)]


_BODY = (
    "body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] o) { d = Identity(c) t = Add(s, s) o = Identity(t) }"
)


@pytest.mark.parametrize("trips", [0, -1, -(2**63)])
@pytest.mark.parametrize("call", [f"Loop<{_BODY}>(n, , x)", f"Loop<{_BODY}>(n, yes, x)", f"Loop<{_BODY}>(, no, x)"])
def test_loop_of_no_trips_returns_its_state(kernels: str, call: str, trips: int) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (int64 n, float[2] x) => (y, ys) '
        f"<bool yes = {{1}}, bool no = {{0}}> {{ y, ys = {call} }}"
    )
    x = np.array([1, -2], np.float32)
    with Core() as core:
        outputs = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"n": np.array(trips), "x": x})
    assert outputs["y"].tolist() == [1, -2]
    assert outputs["ys"].shape == (0, 2)


@pytest.mark.parametrize("shape", ["1,8,8", "a,b,c"])
def test_an_empty_slice_behind_the_last_element(kernels: str, shape: str) -> None:
    """The slice is empty along the first axis and begins at row 3 of the second, so its address lies behind the input."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[{shape}] x) => (y) <int64[2] begins = {{2, 3}}, int64[2] ends = {{9, 9}},
        int64[2] axes = {{0, 1}}> {{ y = Slice (x, begins, ends, axes) }}"""
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": kernels})
        assert network.infer({"x": np.ones((1, 8, 8), np.float32)})["y"].shape == (0, 5, 8)
