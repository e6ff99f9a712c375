"""Networks with weights in blocks of a few bits: open rows, half precision, memory, and constants that dequantize in front of products."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
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
    blocks = BlockNetwork(width=96, inner=208, layers=2, bits=bits, zeros="drawn" if has_zeros else "none")
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
    blocks = BlockNetwork(width=64, inner=80, layers=1, float_type=float_type, zeros="drawn")
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


PRODUCTS = {
    "MatMul": ("y = MatMul (x, w)", 0, False),
    "turned MatMul": ("t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)", -1, True),
    "Gemm": ("y = Gemm <transB = 1> (x, w, b)", 1, True),
}


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("product", list(PRODUCTS))
def test_dequantized_blocks_equal_float64_of_the_codes(core: Core, kernels: str, product: str, has_zeros: bool, dtype: str) -> None:
    (text, axis, is_turned), depth, outputs, block = PRODUCTS[product], 72, 40, 16
    rng, low = np.random.default_rng(2), 0 if dtype.startswith("u") else -(1 << int(dtype[-1]) - 1)
    shape, parts = ((outputs, depth), (outputs, 5)) if is_turned else ((depth, outputs), (5, outputs))
    codes, zeros = (rng.integers(low, low + 2 ** int(dtype[-1]), sizes) for sizes in (shape, parts))
    scales, b = rng.random(parts).astype(np.float32), rng.standard_normal(outputs).astype(np.float32)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[rows, {depth}] x) => (float[rows, {outputs}] y) '
        f"{{ w = DequantizeLinear <axis = {axis}, block_size = {block}> (c, s{', z' * has_zeros}) {text} }}"
    )
    numpy_type = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    for name, array in {"c": codes.astype(numpy_type), "s": scales, "z": zeros.astype(numpy_type), "b": b}.items():
        if name != "z" or has_zeros:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    points, factors = (np.repeat(array, block, axis % 2)[: shape[0], : shape[1]] for array in (zeros * has_zeros, scales))
    w = (codes - points) * factors.astype(np.float64)
    network = load(core, model, kernels)
    for rows in (1, 6):
        x = rng.standard_normal((rows, depth)).astype(np.float32)
        exact = x @ (w.T if is_turned else w) + (b if product == "Gemm" else 0)
        assert abs(network.infer({"x": x})["y"] - exact).max() <= 1e-5 * abs(exact).max()
    if kernels == "JIT":
        assert network.get_metric("CPU_WEIGHT_BYTES") < 4 * depth * outputs
        assert network.get_metric("CPU_FOREIGN_STEPS") == 0
