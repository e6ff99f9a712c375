"""Networks with weights in blocks of a few bits: open rows, half precision, memory, and constants that dequantize in front of products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_tests.block_models import BlockNetwork
from onnx import TensorProto

from hetero_core import Core

TOLERANCES = {TensorProto.FLOAT: 1e-5, TensorProto.FLOAT16: 2e-3, TensorProto.BFLOAT16: 2e-2}


def load(core: Core, model: Any, kernels: str, threads: int = 1) -> Any:
    return core.load_network(model, "CPU", {"CPU_KERNELS": kernels, "INFERENCE_NUM_THREADS": str(threads)})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("bits", "has_zeros"), [(2, False), (4, False), (4, True), (8, True)])
def test_open_rows_equal_float64_of_the_codes(core: Core, kernels: str, bits: int, has_zeros: bool, threads: int) -> None:
    blocks = BlockNetwork(width=96, inner=208, layers=2, bits=bits, has_zeros=has_zeros)
    network, rng = load(core, blocks.make(), kernels, threads), np.random.default_rng(1)
    for rows in (1, 7, 2, 3, 40, 1, 100, 25):
        tokens = rng.integers(-100, 100, rows)
        y = network.infer({"tokens": tokens[None]})["y"]
        exact = blocks.evaluate(tokens)
        assert y.shape == exact.shape
        assert abs(y - exact).max() <= 1e-5 * abs(exact).max()
    if kernels == "JIT":
        # A row, and classes of few and of many rows.
        assert network.get_metric("CPU_PLANS")[0] <= 4


@pytest.mark.parametrize("float_type", list(TOLERANCES))
def test_widened_halves_equal_float64_of_the_codes(core: Core, kernels: str, float_type: int) -> None:
    blocks = BlockNetwork(width=64, inner=80, layers=1, float_type=float_type, has_zeros=True)
    network = load(core, blocks.make(), kernels)
    for rows in (1, 9):
        tokens = np.arange(rows)
        exact = blocks.evaluate(tokens)
        y = network.infer({"tokens": tokens[None]})["y"]
        assert abs(y.astype(np.float64) - exact).max() <= TOLERANCES[float_type] * abs(exact).max()


def test_packed_weights_take_half_a_byte_and_a_scale(core: Core) -> None:
    pytest.importorskip("llvmlite")
    blocks = BlockNetwork(width=256, inner=1024, layers=2, block=32)
    network = load(core, blocks.make(), "JIT")
    for rows in (1, 5, 60):
        network.infer({"tokens": np.zeros((1, rows), np.int64)})
    count = 4 * 256 * 1024
    assert count * (1 / 2 + 4 / 32) <= network.get_metric("CPU_WEIGHT_BYTES") <= 1.1 * count * (1 / 2 + 4 / 32)
    # The table, and scales of less than 64 KiB.
    assert network.get_metric("CPU_CONSTANT_BYTES") < count // 4
