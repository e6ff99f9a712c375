"""Late constants computed by a written function equal the toolkit's bit for bit, errors included."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.plan.open_plan import add_toolkit, write_shape_constants

from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (int64 begin, int64 end) =>'
CONSTANTS = """<int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] last = {-1}, float yes = {0.0}, float no = {-1e9},
    float[6, 2] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}>"""
GRAPHS = {
    "mask": "(float[a, b] y) {C} { q = Range (begin, end, one) k = Range (zero, end, one) u = Unsqueeze (q, last) m = {COMPARISON} (k, u) "
    "y = Where (m, yes, no) }",
    "rows": "(float[1, a, 2] y) {C} { q = Range (begin, end, one) g = Gather (table, q) y = Unsqueeze (g, first) }",
    "inner axes": "(int64[a, 1, 1] y) {C} <int64[2] both = {-1, 1}> { q = Range (begin, end, one) y = Unsqueeze (q, both) }",
    "columns": "(float[2] y) {C} { y = Gather (table, begin) }",
    "another operator": "(int64[a] y) {C} { q = Range (begin, end, one) y = Neg (q) }",
    "scalars": "(float y) {C} { m = Less (begin, end) y = Where (m, yes, no) }",
}
WRITTEN = {"mask", "rows", "inner axes", "columns"}
SIZES = [(0, 1), (0, 5), (3, 5), (5, 6), (4, 4), (-2, 2)]


def compile_graph(name: str, comparison: str = "LessOrEqual") -> Any:
    text = GRAPHS[name].replace("{COMPARISON}", comparison)
    text = text.replace("{C} <", CONSTANTS[:-1] + ", ").replace("{C}", CONSTANTS)
    return compile_program(read_network(onnx.parser.parse_model(f"{HEAD} {text}")))


def check(program: Any) -> None:
    compute = add_toolkit(write_shape_constants(program), program)
    for sizes in SIZES:
        inputs = tuple(np.array(size, np.int64) for size in sizes)
        for actual, expected in zip(compute(*sizes), program.run(inputs), strict=True):
            assert isinstance(actual, np.ndarray)
            assert (actual.dtype, actual.shape, actual.flags.c_contiguous) == (expected.dtype, expected.shape, True)
            assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", GRAPHS)
def test_function_equals_the_toolkit(name: str) -> None:
    program = compile_graph(name)
    assert (write_shape_constants(program) is not None) == (name in WRITTEN)
    check(program)


@pytest.mark.parametrize("comparison", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_every_comparison_is_that_of_its_operator(comparison: str) -> None:
    check(compile_graph("mask", comparison))


def test_error_is_that_of_the_toolkit() -> None:
    program = compile_graph("rows")
    inputs = (np.array(4, np.int64), np.array(9, np.int64))
    with pytest.raises(IndexError) as expected:
        program.run(inputs)
    with pytest.raises(IndexError) as actual:
        add_toolkit(write_shape_constants(program), program)(*inputs)
    assert (str(actual.value), actual.value.__notes__) == (str(expected.value), expected.value.__notes__)
