"""Control flow whose course is known is written out; the answers are those of exact arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.plan.passes import transform_network
from hetero_tests.passes import list_operators

from hetero_core import Core
from hetero_core.network.reader import read_network

X = np.array([[1, -2, 3], [4, 0, -6]], np.float32)

COUNTING = """<float[3] w = {1, 2, 3}, int64 count = {4}, bool yes = {1}>
{ y, z = Loop <body = b (int64 i, bool go, float[2, 3] v) => (bool on, float[2, 3] next, float[2, 3] seen) {
  on = Identity (go) v2 = Identity (w) f = Cast <to = 1> (i) s = Mul (v2, f) next = Add (v, s) seen = Neg (v) }> (count, yes, x) }"""
BREAKING = """<int64 one = {1}, int64 zero = {0}, int64 five = {5}, bool yes = {1}>
{ last, y = Loop <body = b (int64 i, bool go, int64 n, float[2, 3] v) => (bool on, int64 m, float[2, 3] next) {
  m = Add (n, one) on = Less (m, five) next = Add (v, x) }> (, yes, zero, x) z = Cast <to = 1> (last) }"""
BRANCHING = """<bool no = {0}>
{ y = If <then_branch = t () => (float[2, 3] p) { p = Neg (x) }, else_branch = e () => (float[2, 3] q) { q = Abs (x) }> (no)
  z = Neg (y) }"""
CHAINED = """<bool no = {0}, int64 one = {1}, int64 three = {3}>
{ u = If <then_branch = t () => (float[2, 3] p) { p = Neg (x) }, else_branch = e () => (float[2, 3] q) { q = Abs (x) }> (no)
  s = Shape (u) n = Gather (s, one) c = Equal (n, three)
  y = If <then_branch = t2 () => (float[2, 3] p2) { p2 = Neg (u) }, else_branch = e2 () => (float[2, 3] q2) { q2 = Abs (u) }> (c)
  z = Neg (y) }"""
SCANNING = """<float[2] start = {0, 10}>
{ y, z = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [-1],
  scan_output_directions = [1], body = b (float[2] sum, float[2] column) => (float[2] more, float[2] seen) {
  more = Add (sum, column) seen = Identity (more) }> (start, x) }"""
LISTING = """<int64 count = {3}, bool yes = {1}>
{ start = SequenceEmpty <dtype = 1> ()
  s = Loop <body = b (int64 i, bool go, seq(float[2, 3]) l) => (bool on, seq(float[2, 3]) m) {
  on = Identity (go) f = Cast <to = 1> (i) e = Mul (x, f) m = SequenceInsert (l, e) }> (count, yes, start)
  y = ConcatFromSequence <axis = 1, new_axis = 1> (s) z = ConcatFromSequence <axis = 0> (s) }"""
NESTED = """<int64 count = {3}, bool yes = {1}, float one = {1}>
{ y = Loop <body = outer (int64 i, bool go, float[2, 3] v) => (bool on, float[2, 3] next) {
  on = Identity (go)
  next = Loop <body = inner (int64 j, bool g, float[2, 3] u) => (bool o, float[2, 3] n) {
    o = Identity (g) f = Cast <to = 1> (i) n = Add (u, f) }> (i, go, v) }> (count, yes, x)
  z = Add (y, one) }"""
REPEATING = """<int64 count = {3}, bool yes = {1}>
{ y = Loop <body = b (int64 i, bool go, float[2, 3] v) => (bool on, float[2, 3] next) {
  on = Identity (go) p = Exp (x) q = Log (p) next = Add (v, q) }> (count, yes, x) z = Neg (y) }"""
WRITTEN = {
    "counter and scan output": (
        COUNTING,
        X + np.outer(np.ones(2), [6, 12, 18]),
        -np.stack([X + np.outer(np.ones(2), [total, 2 * total, 3 * total]) for total in (0, 0, 1, 3)]),
    ),
    "condition of a counter": (BREAKING, 6 * X, 5),
    "branch": (BRANCHING, abs(X), -abs(X)),
    "condition of sizes behind a branch": (CHAINED, -abs(X), abs(X)),
    "rows from the end": (SCANNING, [2, 8], [[2, 1, 3], [8, 4, 4]]),
    "list": (LISTING, np.stack([0 * X, X, 2 * X], axis=1), np.concatenate([0 * X, X, 2 * X])),
    "nested": (NESTED, X + 5, X + 6),
    "same in each trip": (REPEATING, 4 * X, -4 * X),
}


def make_model(body: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> loops (float[2, 3] x) => (float y, float z) {body}')
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def transform(model: onnx.ModelProto) -> Any:
    return transform_network(read_network(model))


@pytest.mark.parametrize(("body", "y", "z"), WRITTEN.values(), ids=WRITTEN)
def test_known_course_is_written_out(core: Core, kernels: str, body: str, y: Any, z: Any) -> None:
    model = make_model(body)
    assert {"ConcatFromSequence", "If", "Loop", "Scan"}.isdisjoint(transform(model).op_types)
    answer = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": X})
    np.testing.assert_allclose(answer["y"], y, rtol=1e-6)
    np.testing.assert_allclose(answer["z"], z, rtol=1e-6)


@pytest.mark.parametrize("body", [model[0] for model in WRITTEN.values()], ids=WRITTEN)
def test_nodes_name_those_of_the_model_as_their_origin(body: str) -> None:
    network = read_network(make_model(body))
    names = {node.name for node in network.nodes}
    assert names.issuperset(origin for node in transform_network(network).nodes for origin in node.origins)


def test_node_that_no_trip_changes_is_written_once() -> None:
    assert list_operators(transform(make_model(REPEATING))).count("Log") == 1


@pytest.mark.parametrize(
    ("body", "part", "other"),
    [
        (COUNTING, "count = {4}", "count = {65}"),
        (COUNTING, "count = {4}", "count = {0}"),
        (BREAKING, "on = Less (m, five)", "u = NonZero (x) t = Size (u) on = Less (m, t)"),
        (BREAKING, "five = {5}", "five = {100}"),
    ],
    ids=["many trips", "scan output of no trip", "condition of a run", "many trips of a condition"],
)
def test_loop_stays(core: Core, body: str, part: str, other: str) -> None:
    model = make_model(body.replace(part, other))
    assert "Loop" in transform(model).op_types
    assert core.load_network(model, "CPU").infer({"x": X})["y"].shape == (2, 3)
