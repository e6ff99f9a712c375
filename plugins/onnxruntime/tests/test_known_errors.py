"""Known errors and corrections: each row refuses a small model and accepts a similar model; random similar models are right."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from hetero_onnxruntime import corrections, session
from hetero_onnxruntime.known_errors import ERRORS
from hetero_tests.engine_rows import Example, check_neighbours, check_row

from hetero_core import Core
from hetero_core.engines.known_errors import KnownError

ATTENTION = "float[1,2,3,4] q, float[1,2,5,4] k"


def rotate(head: int) -> str:
    """Returns the graph of a GroupQueryAttention of 4 heads of this size."""
    key, cache, table = f"float[1,1,{2 * head}]", f"float[1,2,4,{head}]", f"float[8,{head // 2}]"
    rows = ", ".join(["0.5"] * (8 * head // 2))
    return (
        f"17 g (float[1,1,{4 * head}] q, {key} k, {key} v, {cache} a, {cache} b) => (y, c, d) "
        f"<int32[1] s = {{4}}, int32 t = {{5}}, {table} w = {{{rows}}}> "
        "{ y, c, d = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, do_rotary = 1>(q, k, v, a, b, s, t, w, w) }"
    )


EXAMPLES: dict[str, Example] = {
    "scores of causal attention": (
        f"23 g ({ATTENTION}) => (float[1,2,3,4] y, s) {{ y, , , s = Attention<is_causal = 1>(q, k, k) }}",
        f"23 g ({ATTENTION}) => (float[1,2,3,4] y, s) {{ y, , , s = Attention(q, k, k) }}",
    ),
    "mask of integers": (
        f"23 g ({ATTENTION}, int32[3,5] m) => (y) {{ y = Attention(q, k, k, m) }}",
        f"23 g ({ATTENTION}, bool[3,5] m) => (y) {{ y = Attention(q, k, k, m) }}",
    ),
    "short mask": (
        f"23 g ({ATTENTION}, bool[3,4] m) => (y) {{ y = Attention(q, k, k, m) }}",
        f"23 g ({ATTENTION}, bool[3,5] m) => (y) {{ y = Attention(q, k, k, m) }}",
    ),
    "batch statistics that nothing reads": (
        "15 g (float[2,3] x, float[3] s) => (y) { y, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s) }",
        "15 g (float[2,3] x, float[3] s) => (y, m, v) { y, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s) }",
    ),
    "saturate": (
        "21 g (float[2] x) => (float8e4m3fn[2] y) { y = Cast<to = 17, saturate = 2>(x) }",
        "21 g (float[2] x) => (float8e4m3fn[2] y) { y = Cast<to = 17, saturate = 0>(x) }",
    ),
    "printed floats": (
        "13 g (float[3] x) => (string[3] y) { y = Cast<to = 8>(x) }",
        "13 g (int64[3] x) => (string[3] y) { y = Cast<to = 8>(x) }",
    ),
    "dilated windows of the same size": (
        '13 g (float[1,2,5,5] x, float[3,2,2,2] w) => (y) { y = Conv<auto_pad = "SAME_UPPER", dilations = [2, 1]>(x, w) }',
        '13 g (float[1,2,5,5] x, float[3,2,2,2] w) => (y) { y = Conv<auto_pad = "SAME_UPPER", dilations = [1, 1]>(x, w) }',
    ),
    "dilated pools of the same size": (
        '13 g (float[1,2,5,5] x) => (y) { y = MaxPool<auto_pad = "SAME_UPPER", kernel_shape = [2, 2], dilations = [2, 1]>(x) }',
        '13 g (float[1,2,5,5] x) => (y) { y = MaxPool<auto_pad = "VALID", kernel_shape = [2, 2], dilations = [2, 1]>(x) }',
    ),
    "recurrence in float64": (
        "14 g (double[3,1,2] x, double[1,6,2] w, double[1,6,2] r) => (y) { y = GRU<hidden_size = 2>(x, w, r) }",
        "14 g (float[3,1,2] x, float[1,6,2] w, float[1,6,2] r) => (y) { y = GRU<hidden_size = 2>(x, w, r) }",
    ),
    "zero points of channels": (
        "13 g (uint8[1,2,5,5] x, uint8[3,2,3,3] w, uint8 a, uint8[3] z) => (y) { y = ConvInteger(x, w, a, z) }",
        "13 g (uint8[1,2,5,5] x, uint8[3,2,3,3] w, uint8 a, uint8 z) => (y) { y = ConvInteger(x, w, a, z) }",
    ),
    "8-bit product over nothing": (
        "13 g (uint8[n,k] a, uint8[k,j] b) => (y) { y = MatMulInteger(a, b) }",
        "13 g (uint8[n,k] a, uint8[3,j] b) => (y) { y = MatMulInteger(a, b) }",
    ),
    "8-bit product with scales over nothing": (
        "13 g (uint8[2,0] a, uint8[0,3] b, float s, uint8 z) => (y) { y = QLinearMatMul(a, s, z, b, s, z, s, z) }",
        "13 g (uint8[0,2] a, uint8[2,3] b, float s, uint8 z) => (y) { y = QLinearMatMul(a, s, z, b, s, z, s, z) }",
    ),
    "zero points of rows": (
        "13 g (uint8[3,5] a, uint8[5,2] b, uint8[3] z) => (y) { y = MatMulInteger(a, b, z) }",
        "13 g (uint8[3,5] a, uint8[5,2] b, uint8[1] z) => (y) { y = MatMulInteger(a, b, z) }",
    ),
    "rotated heads": (rotate(8), rotate(16)),
    "groups of bits in another order": (
        "21 g (float[2,16] a, uint8[3,1,8] b, float[3] s, uint8[3] z, int32[16] i) => (y) "
        "{ y = com.microsoft.MatMulNBits<K = 16, N = 3, bits = 4, block_size = 16>(a, b, s, z, i) }",
        "21 g (float[2,16] a, uint8[3,1,8] b, float[3] s, uint8[3] z) => (y) "
        "{ y = com.microsoft.MatMulNBits<K = 16, N = 3, bits = 4, block_size = 16>(a, b, s, z) }",
    ),
    "long padding of outputs": (
        "13 g (float[1,2,3,4] x, float[2,1,2,2] w) => (y) { y = ConvTranspose<dilations = [1, 2], output_padding = [0, 1]>(x, w) }",
        "13 g (float[1,2,3,4] x, float[2,1,2,2] w) => (y) { y = ConvTranspose<strides = [1, 2], output_padding = [0, 1]>(x, w) }",
    ),
    "single block": (
        "21 g (uint8[2] x, float[1] s) => (y) { y = DequantizeLinear<axis = 0, block_size = 2>(x, s) }",
        "21 g (uint8[4] x, float[2] s) => (y) { y = DequantizeLinear<axis = 0, block_size = 2>(x, s) }",
    ),
    "dequantized int32 beside a Transpose": (
        "13 g (int32[2,3] x, float s, int32 z) => (y) { d = DequantizeLinear(x, s, z) y = Transpose(d) }",
        "13 g (int32[2,3] x, float s) => (y) { d = DequantizeLinear(x, s) y = Transpose(d) }",
    ),
    "training dropout": (
        "13 g (float[2] x, float r, bool t) => (y) { y = Dropout(x, r, t) }",
        "13 g (float[2] x, float r) => (y) { y = Dropout(x, r) }",
    ),
    "norm of many elements": (
        "13 g (float[2,2000000] x) => (y) { y = LpNormalization(x) }",
        "13 g (float[2000000,2] x) => (y) { y = LpNormalization(x) }",
    ),
    "given size of MaxUnpool": (
        "11 g (float[1,1,2,2] x, int64[1,1,2,2] i, int64[4] s) => (y) { y = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(x, i, s) }",
        "11 g (float[1,1,2,2] x, int64[1,1,2,2] i) => (y) { y = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(x, i) }",
    ),
    "coordinates of a scalar": ("13 g (float x) => (y) { y = NonZero(x) }", "13 g (float[1] x) => (y) { y = NonZero(x) }"),
    "exponentials of integers": (
        "13 g (int32[2,3] x) => (y) { y = ReduceLogSumExp(x) }",
        "13 g (float[2,3] x) => (y) { y = ReduceLogSumExp(x) }",
    ),
    "extreme of no bools": ("20 g (bool[n] x) => (y) { y = ReduceMax(x) }", "20 g (bool[2] x) => (y) { y = ReduceMax(x) }"),
    "product of integers": (
        "13 g (int64[3] x) => (y) { y = ReduceProd(x) }",
        "13 g (float[n,m,3] x) => (y) { s = Shape(x) y = ReduceProd(s) }",
    ),
    "power of integers": (
        "13 g (int64[3] x) => (y) <int64 e = {5}> { y = Pow(x, e) }",
        "13 g (int64[3] x) => (y) <int64 e = {3}> { y = Pow(x, e) }",
    ),
    "drawn numbers": (
        "13 g (float[2] x) => (y) { y = RandomNormalLike<scale = 0.0>(x) }",
        "13 g (float[2] x) => (y) { y = RandomNormalLike(x) }",
    ),
    "position in a sequence": (
        "13 g (float[2] x, int64[0] p) => (y) { s = SequenceConstruct(x, x) y = SequenceAt(s, p) }",
        "13 g (float[2] x, int64 p) => (y) { s = SequenceConstruct(x, x) y = SequenceAt(s, p) }",
    ),
    "axes of a Scan": (
        "17 g (float[n] h, float[3,n] x) => (a, s) { a, s = Scan<num_scan_inputs = 1, scan_output_axes = [1], "
        "body = b (float[p] t, float[p] e) => (float[p] u, float[p] o) { u = Add(t, e) o = Neg(e) }>(h, x) }",
        "17 g (float[n] h, float[3,n] x) => (a, s) { a, s = Scan<num_scan_inputs = 1, scan_output_axes = [0], "
        "body = b (float[p] t, float[p] e) => (float[p] u, float[p] o) { u = Add(t, e) o = Neg(e) }>(h, x) }",
    ),
    "aligned corners": (
        '13 g (float[1,1,5,4] x) => (y) <float[4] s = {1, 1, 1.5, 1}> { y = Resize<mode = "linear", '
        'coordinate_transformation_mode = "align_corners">(x, , s) }',
        '13 g (float[1,1,5,4] x) => (y) <float[4] s = {1, 1, 2, 1}> { y = Resize<mode = "linear", '
        'coordinate_transformation_mode = "align_corners">(x, , s) }',
    ),
    "nearest pixel": (
        '18 g (float[1,1,1,20] x) => (y) <int64[4] s = {1, 1, 1, 12}> { y = Resize<mode = "nearest", nearest_mode = "floor", '
        'coordinate_transformation_mode = "asymmetric">(x, , , s) }',
        '18 g (float[1,1,1,20] x) => (y) <int64[4] s = {1, 1, 1, 40}> { y = Resize<mode = "nearest", nearest_mode = "floor", '
        'coordinate_transformation_mode = "asymmetric">(x, , , s) }',
    ),
    "backwards to the largest integer": (
        "13 g (float[3] x) => (y) <int64[1] a = {9}, int64[1] b = {2147483647}, int64[1] c = {0}, int64[1] d = {-1}> "
        "{ y = Slice(x, a, b, c, d) }",
        "13 g (float[3] x) => (y) <int64[1] a = {9}, int64[1] b = {-2147483648}, int64[1] c = {0}, int64[1] d = {-1}> "
        "{ y = Slice(x, a, b, c, d) }",
    ),
    "empty list of axes": (
        "13 g (float[2,1] x, int64[n] a) => (y) { y = Squeeze(x, a) }",
        "13 g (float[2,1] x, int64[1] a) => (y) { y = Squeeze(x, a) }",
    ),
    "slices of nothing": (
        "13 g (float[n,2] x) => (y) { y = Unique<axis = 0>(x) }",
        "13 g (float[n,2] x) => (y) { y = Unique(x) }",
    ),
    "shared caches": (
        "17 g (float[1,2,4] x, float[4,12] w, float[12] b, float[2,1,2,3,2] p) => (y, q) "
        "{ y, q = com.microsoft.Attention<num_heads = 2, past_present_share_buffer = 1>(x, w, b, , p) }",
        "17 g (float[1,2,4] x, float[4,12] w, float[12] b) => (y) { y = com.microsoft.Attention<num_heads = 2>(x, w, b) }",
    ),
}
"""Name of a row -> a graph with a node that the row refuses, and a neighbour that is taken."""
WITHOUT_KERNEL = {"layers without steps"}
"""Rows for operators that this version of the engine refuses by itself in most forms."""


def test_each_row_has_an_example() -> None:
    assert {row.name for row in ERRORS} == EXAMPLES.keys() | WITHOUT_KERNEL
    assert len({row.name for row in ERRORS}) == len(ERRORS)


@pytest.mark.parametrize("row", [row for row in ERRORS if row.name in EXAMPLES], ids=lambda row: row.name)
def test_row_refuses_its_model_and_takes_the_neighbour(core: Core, row: KnownError) -> None:
    check_row(core, "ORT", row, EXAMPLES[row.name], {})


@pytest.mark.parametrize("name", EXAMPLES)
def test_neighbours_with_open_sizes_are_right_or_refused(core: Core, name: str) -> None:
    check_neighbours(core, "ORT", EXAMPLES[name], {})


def test_network_without_int8_asks_no_probe(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "saturates_products", lambda: pytest.fail("the probe was asked"))
    text = '<ir_version: 8, opset_import: ["": 17]> g (uint8[2,3] x, uint8[3,2] w) => (y) { y = MatMulInteger(x, w) }'
    y = core.load_network(onnx.parser.parse_model(text), "ORT").infer(
        {"x": np.full((2, 3), 255, np.uint8), "w": np.ones((3, 2), np.uint8)}
    )["y"]
    assert y.tolist() == [[765, 765], [765, 765]]


@pytest.mark.parametrize("saturates", [True, False])
def test_corrected_products_hold_on_every_processor(core: Core, monkeypatch: pytest.MonkeyPatch, saturates: bool) -> None:
    # Small numbers never saturate, so both settings are right on every processor.
    monkeypatch.setattr(session, "saturates_products", lambda: saturates)
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 128, (3, 16)).astype(np.uint8), rng.integers(-60, 60, (16, 4)).astype(np.int8)
    points = np.array([-3, 5, 0, 7], np.int8)
    inputs = "uint8[n,16] a, int8[16,4] b, uint8 p, int8[4] q"
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (y) {{ y = MatMulInteger(a, b, p, q) }}'
    y = core.load_network(onnx.parser.parse_model(text), "ORT").infer({"a": a, "b": b, "p": np.array(9, np.uint8), "q": points})[
        "y"
    ]
    np.testing.assert_array_equal(y, (a.astype(np.int64) - 9) @ (b.astype(np.int64) - points.astype(np.int64)))


@pytest.mark.parametrize("node", ["ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"])
@pytest.mark.parametrize("shape", ["[1100000,2]", "[n,2]"])
def test_many_floats_are_added_up_in_float64(core: Core, node: str, shape: str) -> None:
    axes = "<keepdims = 0>(x, a)"
    text = f'<ir_version: 8, opset_import: ["": 18]> g (float{shape} x) => (y) <int64[1] a = {{0}}> {{ y = {node}{axes} }}'
    x = np.full((1_100_000, 2), 0.7, np.float32)
    wide = x.astype(np.float64)
    expected = {
        "ReduceSum": wide.sum(0),
        "ReduceMean": wide.mean(0),
        "ReduceL1": wide.sum(0),
        "ReduceL2": np.sqrt((wide * wide).sum(0)),
        "ReduceSumSquare": (wide * wide).sum(0),
        "ReduceLogSum": np.log(wide.sum(0)),
    }[node]
    loaded = core.load_network(onnx.parser.parse_model(text), "ORT")
    np.testing.assert_allclose(loaded.infer({"x": x})["y"], expected, rtol=2e-7)


def test_small_networks_are_left_as_they_are(core: Core) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x, int8[2] z) => (y, v) { y = ReduceMean<axes = [1]>(x) v = Neg(z) }'
    )
    network = core.read_network(onnx.parser.parse_model(text))
    assert corrections.correct_network(network, saturates=True) is network


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[6] x) => (float[2] y) <int64[3] s = {1, 3, 2}> { , , y = Split<axis = 0>(x, s) }",
        """g (float[2] x) => (float[n,2] y) <int64 n = {3}, bool t = {1}> {
            , y = Loop<body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e, float[2] f) {
                d = Identity(c) e = Neg(a) f = Abs(a) }>(n, t, x) }""",
    ],
    ids=["Split", "Loop"],
)
def test_output_that_nothing_reads_is_named(core: Core, graph: str) -> None:
    # The engine ends the process at a Split or Loop with an output without a name.
    network = core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}'))
    assert all(corrections.correct_network(network, saturates=True).nodes[-1].outputs)
    x = np.arange(1, 1 + (network.inputs[0].type.shape or ())[0], dtype=np.float32)
    expected = x[4:] if len(x) == 6 else np.stack([x] * 3)
    assert core.load_network(network, "ORT").infer({"x": x})["y"].tolist() == expected.tolist()
