"""Quantized networks against exact integer arithmetic, and the float32 nodes that stand for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hetero_cpu.plan.passes import transform_network

from hetero_core import Core
from hetero_core.network.reader import read_network

from .integers import KINDS, draw_case, find_difference

CASES = 24
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
