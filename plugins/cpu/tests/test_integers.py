"""Quantized networks against exact integer arithmetic, and the float32 nodes that stand for them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.operators.recipe import Limits
from hetero_cpu.plan import planner
from hetero_cpu.plan.passes import transform_network
from hetero_cpu.plan.planner import find_ranges

from hetero_core import Core
from hetero_core.network.reader import read_network

from .integers import KINDS, Builder, draw_case, find_difference

CASES = 16
INTEGER_OPERATORS = ("Quantize", "Dequantize", "QLinear", "QGemm", "Integer", "Dynamic")


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
def test_integers_equal_exact_arithmetic(core: Core, kernels: str, kind: str) -> None:
    differences = {index: find_difference(core, draw_case(kind, index), kernels) for index in range(CASES)}
    assert {index: difference for index, difference in differences.items() if difference} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_integer_operators_become_float_operators(kind: str) -> None:
    for index in range(CASES):
        network = transform_network(read_network(draw_case(kind, index).model))
        operators = {node.op_type for node in network.nodes}
        assert not [name for name in operators if name.startswith(INTEGER_OPERATORS) or name.endswith(INTEGER_OPERATORS)]


@pytest.mark.parametrize("kind", ["qlinear_conv", "qlinear_add", "qdq_residual", "dynamic_mat_mul"])
def test_exported_integers_keep_their_answers(core: Core, kernels: str, kind: str, tmp_path: Path) -> None:
    config = {"CPU_KERNELS": kernels}
    for index in range(3):
        case = draw_case(kind, index)
        network = core.load_network(case.model, "CPU", config)
        network.export_network(tmp_path / "blob")
        answers, imported = network.infer(case.feeds), core.import_network(tmp_path / "blob", "CPU", config).infer(case.feeds)
        assert all(np.array_equal(imported[name], answers[name]) for name in answers)


def test_dequantized_constant_without_dimensions_is_read(core: Core, kernels: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 13]> g (float[n] x) => (float[n] y, float w)
        <int8 q = {5}, float s = {0.5}, int8 z = {1}> { w = DequantizeLinear (q, s, z) y = Add (x, w) }"""
    outputs = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": kernels}).infer({"x": np.ones(3, np.float32)})
    assert (outputs["y"].tolist(), outputs["w"].item()) == ([3.0, 3.0, 3.0], 2.0)


def test_product_over_no_rows_with_a_scale_for_each_is_zero(core: Core, kernels: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 13]> g (uint8[n,0] x) => (float[n,3] y)
        <float s = {0.5}, int8[0,3] w = {}, float[0] t = {}>
        { d = DequantizeLinear (x, s) e = DequantizeLinear <axis = 0> (w, t) y = MatMul (d, e) }"""
    network = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": kernels})
    assert network.infer({"x": np.zeros((2, 0), np.uint8)})["y"].tolist() == np.zeros((2, 3)).tolist()


def test_nan_becomes_the_lowest_code(core: Core, kernels: str) -> None:
    graph = Builder()
    x = np.array([np.nan, -np.inf, np.inf, 0.75, -0.75, 1e30], np.float32)
    y = graph.node("QuantizeLinear", graph.feed(x), graph.constant(np.float32(0.5)), graph.constant(np.uint8(7)))
    case = graph.finish({y: np.array([0, 0, 255, 9, 5, 255], np.uint8)})
    assert find_difference(core, case, kernels) == ""


@pytest.mark.parametrize(("depth", "pieces"), [(518, 1), (519, 2), (1036, 2), (1037, 3)])
def test_depth_is_cut_where_sums_reach_two_to_the_24(depth: int, pieces: int) -> None:
    graph = Builder()
    x, w = np.full((2, depth), 255, np.uint8), np.full((depth, 3), 127, np.int8)
    y = graph.node("Cast", graph.node("MatMulInteger", graph.feed(x), graph.constant(w)), to=1)
    network = transform_network(read_network(graph.finish({y: np.zeros((2, 3), np.float32)}).model))
    assert [node.op_type for node in network.nodes].count("MatMul") == pieces


def test_operator_without_rule_reads_bytes(core: Core, kernels: str) -> None:
    graph = Builder()
    x = np.array([[1.0, -3.0, 2.0], [0.5, 0.25, -1.0]], np.float32)
    codes = graph.node("QuantizeLinear", graph.feed(x), graph.constant(np.float32(0.25)), graph.constant(np.int8(3)))
    largest = graph.node("ReduceMax", codes, graph.constant(np.array([1])), keepdims=0)
    case = graph.finish({codes: np.array([[7, -9, 11], [5, 4, -1]], np.int8), largest: np.array([11, 5], np.int8)})
    assert find_difference(core, case, kernels) == ""


def test_weights_of_floats_are_folded_whatever_their_size() -> None:
    graph = Builder()
    w = np.ones((600, 1100), np.int8)
    weights = graph.node("DequantizeLinear", graph.constant(w), graph.constant(np.float32(0.5)))
    y = graph.node("MatMul", graph.feed(np.ones((1, 600), np.float32)), weights)
    network = transform_network(read_network(graph.finish({y: np.zeros((1, 1100), np.float32)}).model))
    assert [node.op_type for node in network.nodes] == ["MatMul"]


def test_ranges_follow_a_clip_through_constants() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y)
    <float low = {0}, float high = {255}, float shift = {128}>
    { a = Relu (x) b = Round (a) c = Add (b, shift) d = Clip (c, low, high) y = Sub (d, shift) }"""
    ranges = find_ranges(read_network(onnx.parser.parse_model(text)))
    limits = {name: (limits.low, limits.high) for name, limits in ranges.items()}
    assert limits == {"a": (0, inf), "b": (0, inf), "c": (128, inf), "d": (128, 255), "y": (0, 127)}
    # x may be NaN, which stays.
    assert [name for name, limits in ranges.items() if limits.is_whole] == ["b", "c", "d", "y"]
    assert not any(limits.has_no_nan for limits in ranges.values())


def test_ranges_hold_what_computed_bounds_and_thresholds_let_through() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (uint8[1, 1, 6, 6] x, uint8 p, float q) => (float[1, 1, 6, 6] y)
    <float shift = {5}>
    { a = Cast <to = 1> (x) low = Cast <to = 1> (p) high = Round (q) b = Sub (a, shift) c = Clip (b, low) d = Clip (b, , high)
      e = Add (a, shift) f = ThresholdedRelu <alpha = 9.0> (e)
      h = MaxPool <kernel_shape = [2, 2], dilations = [7, 7], pads = [1, 1, 1, 1]> (a)
      y = Sum (c, d, f, h) }"""
    ranges = find_ranges(read_network(onnx.parser.parse_model(text)))
    # The bound may be above all of b, or below; the threshold may lie above some of e; a window of h may lie in the pads alone.
    assert ranges["c"] == Limits(0, 255, is_whole=True, has_no_nan=True)
    assert ranges["d"] == Limits(-inf, 250, is_whole=True)
    assert ranges["f"] == Limits(0, 260, is_whole=True, has_no_nan=True)
    assert not ranges["h"].is_whole


def test_ranges_of_a_product_hold_its_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "find_byte_products", lambda: "pairs")
    text = """<ir_version: 10, opset_import: ["": 17]> g (uint8[2, 3] x) => (float[2, 2] y)
    <float[3, 2] w = {1, 1, 1, 1, 1, 1}, float[2] c = {-5, 5}>
    { a = Cast <to = 1> (x) y = Gemm <alpha = -100.0, beta = 9000.0> (a, w, c) }"""
    limits = find_ranges(read_network(onnx.parser.parse_model(text)))["y"]
    assert limits.low <= -100 * 3 * 255 - 9000 * 5
    assert limits.high >= 9000 * 5
    assert limits.has_no_nan


def test_ranges_of_a_concat_hold_all_of_its_inputs() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 6] y)
    <float low = {-3}, float high = {5}, float zero = {0}, float most = {9}>
    { a = Clip (x, low, high) b = Clip (x, zero, most) y = Concat <axis = 1> (a, b) }"""
    assert find_ranges(read_network(onnx.parser.parse_model(text)))["y"] == Limits(-3, 9)


def test_quantized_values_are_known_as_bytes() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[2, 3] x, int8[2, 3] z) => (float[2, 3] y, float[2, 3] w, float[2, 3] v)
    <float most = {255}, float shift = {7}, float half = {0.5}>
    { a = Round (x) b = Add (a, shift) c = ThresholdedRelu <alpha = 0.0> (b) d = Clip (c, , most) y = Sub (d, shift)
      w = Cast <to = 1> (z) e = Clip (c, , most) v = Add (e, half) }"""
    ranges = find_ranges(read_network(onnx.parser.parse_model(text)))
    assert ranges["y"] == Limits(-7, 248, is_whole=True, has_no_nan=True)
    assert ranges["w"] == Limits(-128, 127, is_whole=True, has_no_nan=True)
    assert not ranges["v"].is_whole


def test_computed_zero_point_is_known() -> None:
    case = draw_case("dynamic_mat_mul", 0)
    network = transform_network(read_network(case.model))
    shifts = {limits.shift for limits in find_ranges(network).values() if limits.shift}
    (shift,) = shifts
    assert find_ranges(network)[shift].high == 255
