"""Inputs and outputs of open sizes lie outside the arena however small they are when the plan is made; every answer keeps its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

pytest.importorskip("llvmlite")

from hetero_cpu.executable import CpuExecutable

from hetero_core.contract import RunContext
from hetero_core.network.reader import read_network

_TEXT = """
<ir_version: 8, opset_import: ["": 17]>
outside (float[n, 8] x, float[n, 8] z) => (float[n, 3] y, float[rows, 3] behind, float[n, 3] other)
<int64[1] two = {2}, int64[1] last = {1000000}, int64[1] zero = {0}>
{ y = MatMul (x, w) cut = Slice (x, two, last, zero) behind = MatMul (cut, w) other = MatMul (z, w) }
"""
_WEIGHT = np.random.default_rng(1).standard_normal((8, 3)).astype(np.float32)


def _load() -> CpuExecutable:
    model = onnx.parser.parse_model(_TEXT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(_WEIGHT, "w"))
    return CpuExecutable(read_network(model), {}, kernels="JIT")


def test_inputs_and_outputs_of_open_sizes_are_not_copied_however_small_the_first_ones_were() -> None:
    network = _load()
    x = np.ones((6, 8), np.float32)
    network.run((x, x), RunContext())
    (plan,) = network._list_plans()
    assert (plan.outside.inputs, set(plan.outside.outputs)) == (("x", "z"), {"y", "behind", "other"})


def test_answers_keep_their_values_while_sizes_vary_and_inputs_come_again_or_lie_otherwise() -> None:
    network = _load()
    rng = np.random.default_rng(2)
    answers: list[tuple[Any, Any, Any]] = []
    for place in range(60):
        # Two rows leave none behind.
        rows = int(rng.integers(2, 6))
        x, z = rng.standard_normal((2, rows, 8)).astype(np.float32)
        earlier = [inputs[0] for inputs, _, _ in answers if inputs[0].shape == x.shape]
        if place % 4 == 0:
            z = x
        elif place % 4 == 1:
            x, z = np.asfortranarray(x), z[::-1]
        elif earlier:
            x = earlier[-1]
        expected = tuple(value.astype(np.float64) @ _WEIGHT for value in (x, x[2:], z))
        answers.append(((x, z), network.run((x, z), RunContext()), expected))
    assert any(plan.outside.inputs for plan in network._list_plans())
    for _, outputs, expected in answers:
        for output, value in zip(outputs, expected, strict=True):
            assert output.shape == value.shape
            np.testing.assert_allclose(output, value, rtol=1e-5, atol=1e-6)
