"""Passes are skipped for a network without any of their operators; on such a network they change nothing."""

from __future__ import annotations

import importlib

import onnx.parser
import pytest
from hetero_cpu.plan.passes import PASSES, PASSES_OF_SHAPES, OperatorPass, join_network, transform_network
from hetero_cpu.transforms import reshapes

from hetero_core.network.reader import read_network
from hetero_core.transforms import activations, attention, normalizations
from hetero_core.transforms.matching import OneOf, Op, Pattern

LATE = {apply.name: apply for apply in (*PASSES, *PASSES_OF_SHAPES) if isinstance(apply, OperatorPass)}
PATTERNS = {
    "fuse_layer_normalization": [normalizations._LAYER, normalizations._SCALED],
    "fuse_rms_normalization": [normalizations._RMS],
    "fuse_gelu": [activations._BY_ERF, activations._BY_TANH],
    "fuse_swish": [activations._SWISH],
    "fuse_hard_swish": [activations._HARD_SWISH, activations._HARD_SIGMOID],
    "fuse_attention": [attention._PATTERN],
    "pack_heads": [attention._join()],
}


def needs_one_of(pattern: Pattern, operators: frozenset[str]) -> bool:
    """Says whether every match of a pattern contains at least one of these operators."""
    if isinstance(pattern, OneOf):
        return all(needs_one_of(each, operators) for each in pattern.patterns)
    return isinstance(pattern, Op) and (
        pattern.op_type in operators or any(needs_one_of(each, operators) for each in pattern.inputs)
    )


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_of_a_late_pass_needs_one_of_its_operators(name: str) -> None:
    assert [pattern for pattern in PATTERNS[name] if not needs_one_of(pattern, LATE[name].operators)] == []


@pytest.mark.parametrize("name", LATE)
def test_late_pass_names_a_function(name: str) -> None:
    assert callable(getattr(importlib.import_module(LATE[name].module), name))


def test_operators_of_reshapes_are_those_of_their_pass() -> None:
    single_operators = {"Cast", "Expand", "Identity", "Pad", "Slice", "Tile"}
    assert LATE["eliminate_idle"].operators == reshapes._RESHAPES | reshapes._OF_ONE_INPUT | single_operators


@pytest.mark.parametrize("operator", ["Relu", "Neg", "Conv", "MatMul", "Gemm", "Sqrt"])
def test_network_of_other_operators_is_left_as_it_is(operator: str) -> None:
    inputs = {"Conv": "x, w", "MatMul": "x, w", "Gemm": "x, w"}.get(operator, "x")
    shape = "1,1,1,1" if operator == "Conv" else "1,1"
    text = f"g (float[{shape}] x, float[{shape}] w) => (y) {{ a = {operator} ({inputs}) y = Abs (a) }}"
    network = read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))
    for apply in LATE.values():
        assert getattr(importlib.import_module(apply.module), apply.name)(network) is network
    assert transform_network(network) is network
    assert join_network(network) is network
