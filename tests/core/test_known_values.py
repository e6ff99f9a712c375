"""Shape arithmetic that is known before a run, or else only its rank: against onnx's reference evaluator."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.inference import compute_known_value
from hetero_core.network.reader import read_network
from hetero_core.network.types import TensorType


def parse(text: str, *, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')


LISTS = "int64[3] a = {7, -7, 5}, int64[3] b = {2, 2, -3}, int64[1] i = {1}, int64 n = {2}, bool[3] c = {1, 0, 1}"
KNOWN = [
    "Add(a, b)",
    "Cast <to = 6> (a)",
    "Cast <to = 9> (a)",
    "Concat <axis = 0> (a, b)",
    "ConstantOfShape <value = int64[1] {4}> (i)",
    "Div(a, b)",
    "Equal(a, b)",
    "Gather(a, i)",
    "Gather(a, n)",
    "Greater(a, b)",
    "Identity(a)",
    "Less(a, b)",
    "Mul(a, b)",
    "Neg(a)",
    "Range(n, six, n)",
    "Reshape(a, shape)",
    "Shape(x)",
    "Shape <start = 1> (x)",
    "Shape <start = -2, end = -1> (x)",
    "Size(x)",
    "Slice(a, i, end)",
    "Slice(a, zero, end, zero, two)",
    "Squeeze(i)",
    "Squeeze(i, zero)",
    "Sub(a, b)",
    "Unsqueeze(a, zero)",
    "Where(c, a, b)",
]


@pytest.mark.parametrize("operation", KNOWN)
def test_known_value_agrees_with_the_reference(operation: str) -> None:
    more = "int64 six = {6}, int64[2] shape = {3, -1}, int64[1] end = {9}, int64[1] zero = {0}, int64[1] two = {2}"
    model = parse(f"g (float[2,3,4] x) => (y) <{LISTS}, {more}> {{ y = {operation} }}")
    network = read_network(model)
    known = compute_known_value(network.nodes[0], network.types, network.initializers)
    # The parser leaves the output's type open; the reference evaluator does not need it.
    (expected,) = ReferenceEvaluator(model).run(None, {"x": np.zeros((2, 3, 4), np.float32)})
    assert known["y"].dtype == expected.dtype.name
    assert known["y"].shape == expected.shape
    np.testing.assert_array_equal(known["y"].array, expected)


@pytest.mark.parametrize(
    "operation",
    [
        "Add(x, x)",
        "Cast <to = 1> (a)",
        "Div(a, zeros)",
        "Gather(a, far)",
        "Range(n, huge, n)",
        "ConstantOfShape(far)",
        "Reshape(a, far)",
        "Shape(unknown)",
        "Slice(a, i, i, i, back)",
        "Sqrt(f)",
    ],
)
def test_unknown_and_large_values_are_left_out(operation: str) -> None:
    more = "int64[3] zeros = {1, 0, 1}, int64[1] far = {900}, int64 huge = {900000}, int64[1] back = {-1}, float[1] f = {4}"
    network = read_network(parse(f"g (int64[3] x, float[N] unknown) => (y) <{LISTS}, {more}> {{ y = {operation} }}"))
    assert compute_known_value(network.nodes[0], network.types, network.initializers) == {}


def test_size_behind_arithmetic_unknown_to_onnx_is_known() -> None:
    network = read_network(
        parse("""g (float[2,3,4] x) => (y) <int64 one = {1}, int64[1] count = {2}> {
            s = Shape(x) rank = Size(s) axes = Range(one, rank, one) m = ReduceMean(x, axes)
            ones = ConstantOfShape <value = int64[1] {1}> (count) y = Expand(m, ones)
        }""")
    )
    assert network.type_of("axes") == TensorType("int64", (2,))
    assert network.type_of("y") == TensorType("float32", (2, 1, 1))


def test_branch_knows_the_sizes_around_it() -> None:
    network = read_network(
        parse("""g (float[2,3] x, bool c) => (y) <int64[1] end = {9}, int64[1] one = {1}> {
            s = Shape(x) r = Slice(s, one, end)
            y = If(c) <then_branch = t () => (float[K] u) { z = Neg(r) p = Neg(z) q = ConstantOfShape(p) u = Relu(q) },
                       else_branch = e () => (float[K] v) { v = ConstantOfShape(r) }>
        }""")
    )
    assert network.nodes[-1].bodies["then_branch"].type_of("q") == TensorType("float32", (3,))


RANKS = [
    ("Gather <axis = 1> (x, pair)", {}),
    ("ConstantOfShape(sizes)", {}),
    ("Expand(x, sizes)", {"sizes": [5, 2, 3]}),
    ("Pad(x, pads)", {"pads": [0, 1, 0, 1]}),
    ("ReduceL2(x, one)", {}),
    ("ReduceMax <keepdims = 0> (x, one)", {}),
    ("ReduceSum <keepdims = 0> (x, none)", {}),
    ("ReduceSum <keepdims = 0, noop_with_empty_axes = 1> (x, none)", {}),
    ("Reshape(x, sizes)", {"sizes": [3, 1, 2]}),
    ("Slice(x, one, one)", {}),
    ("Squeeze(flat, one)", {}),
    ("Tile(x, pair)", {}),
    ("Unsqueeze(x, pair)", {"pair": [0, 3]}),
]


@pytest.mark.parametrize(("operation", "lengths"), RANKS)
def test_rank_is_known_if_the_sizes_come_with_the_run(operation: str, lengths: dict[str, list[int]]) -> None:
    lists = "int64[3] sizes, int64[4] pads, int64[1] one, int64[0] none, int64[2] pair"
    model = parse(f"g (float[2,3] x, float[2,1] flat, {lists}) => (y) {{ y = {operation} }}")
    feeds: dict[str, list[int]] = {"sizes": [2, 2, 2], "pads": [0] * 4, "one": [1], "none": [], "pair": [1, 2], **lengths}
    arrays = {name: np.array(numbers, np.int64) for name, numbers in feeds.items()}
    tensors = {"x": np.ones((2, 3), np.float32), "flat": np.ones((2, 1), np.float32)}
    (expected,) = ReferenceEvaluator(model).run(None, {**arrays, **tensors})
    actual = read_network(model).type_of("y")
    assert isinstance(actual, TensorType)
    assert actual.shape is not None
    assert len(actual.shape) == expected.ndim


@pytest.mark.parametrize(
    "nodes",
    [
        "b = Gather (a, a) c = Gather (b, b) d = Gather (c, c) e = Gather (d, d) f = Gather (e, e) y = Gather (f, f)",
        "f = Reshape (a, long) b = Unsqueeze (f, pair) y = Unsqueeze (b, pair)",
        "f = Reshape (a, long) b = Unsqueeze (f, pair) c = Cast <to = 7> (b) y = OneHot (c, depth, a)",
    ],
)
def test_impossible_rank_is_refused(nodes: str) -> None:
    model = parse(f"g (int64[2,2] a, int64[62] long, int64[2] pair, int64 depth) => (y) {{ {nodes} }}")
    with pytest.raises(InvalidNetworkError, match=r"makes an array of 6[56] dimensions; an array has at most 64"):
        read_network(model)


def test_split_by_an_input_has_open_lengths_and_known_ranks() -> None:
    network = read_network(parse("g (float[2,6] x, int64[2] parts) => (a, b) { a, b = Split <axis = 1> (x, parts) }"))
    assert {network.type_of(name) for name in "ab"} == {TensorType("float32", (2, None))}
