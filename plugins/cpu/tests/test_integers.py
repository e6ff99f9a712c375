"""Quantized networks against exact integer arithmetic, and the float32 nodes that stand for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.plan.passes import transform_network

from hetero_core import Core
from hetero_core.network.graph import Network
from hetero_core.network.reader import read_network

from .integers import KINDS, draw_case, find_difference

CASES = 24


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
def test_integers_equal_exact_arithmetic(core: Core, kernels: str, kind: str) -> None:
    differences = {index: find_difference(core, draw_case(kind, index), kernels) for index in range(CASES)}
    assert {index: difference for index, difference in differences.items() if difference} == {}
