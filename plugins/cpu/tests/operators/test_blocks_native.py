"""Products with weights in blocks of 2, 4 and 8 bits by machine code, against float64 of the same codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_tests.block_models import Blocks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node

from ..conftest import NativeRun

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
HALF_ULP = 2.0**-24


def run(native: NativeRun, blocks: Blocks, x: Any, bias: Any = None) -> Any:
    from hetero_cpu.operators.blocks import plan_block_product

    arrays = {"w": blocks.codes, "s": blocks.scales, "z": blocks.zeros, "": None, "b": bias}
    constants = {name: array for name, array in arrays.items() if array is not None}
    columns, depth = blocks.weights.shape
    inputs = ("x", *[name if name in constants else "" for name in arrays])
    attributes = {"K": depth, "N": columns, **blocks.attributes}
    node = Node("m", "MatMulNBits", inputs, ("y",), domain="com.microsoft", attributes=attributes)
    y = np.full((len(x), columns), np.nan, np.float32)
    recipe = plan_block_product(native.make_site([node], {"x": x}, constants, y.shape))
    assert recipe is not None
    native.run(recipe, {"x": x}, y)
    return y


def bound(blocks: Blocks, x: Any) -> Any:
    length = blocks.attributes["block_size"] + x.shape[1] // blocks.attributes["block_size"] + 16
    return length * HALF_ULP * (abs(x).astype(np.float64) @ blocks.sizes.T + 10)


@SETTINGS
@given(
    bits=st.sampled_from([2, 4, 8]),
    block=st.sampled_from([16, 32, 64, 128, 256]),
    depth=st.sampled_from([1, 15, 16, 17, 63, 130, 256, 700, 1100, 2049]),
    outputs=st.sampled_from([1, 7, 8, 9, 16, 23, 24, 25, 64, 65, 200]),
    rows=st.sampled_from([1, 2, 3, 7, 20]),
    zeros=st.sampled_from(["none", "least", "largest", "drawn", "floats"]),
    has_bias=st.booleans(),
)
def test_products_equal_float64_of_the_codes(
    native: NativeRun, bits: int, block: int, depth: int, outputs: int, rows: int, zeros: str, has_bias: bool
) -> None:
    rng = np.random.default_rng([bits, block, depth, outputs, rows])
    blocks = Blocks(rng, outputs, depth, bits=bits, block=block, zeros=zeros)
    x, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, depth), (outputs,)))
    exact = x.astype(np.float64) @ blocks.weights.T + b * has_bias
    assert np.all(abs(run(native, blocks, x, b if has_bias else None) - exact) <= bound(blocks, x))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 3e38, 1e-44])
def test_special_numbers_equal_float64_of_the_codes(native: NativeRun, rows: int, bits: int, special: float) -> None:
    rng = np.random.default_rng(bits)
    blocks = Blocks(rng, 50, 70, bits=bits, block=32, zeros="drawn")
    x = rng.standard_normal((rows, 70)).astype(np.float32)
    x[-1, 17] = special
    with np.errstate(all="ignore"):
        exact = (x[:, None].astype(np.float64) * blocks.weights).sum(-1)
    output, is_finite = run(native, blocks, x), np.isfinite(exact)
    np.testing.assert_array_equal(output[~is_finite], exact[~is_finite])
    assert np.all(abs(output[is_finite] - exact[is_finite]) <= bound(blocks, np.where(np.isfinite(x), x, 0))[is_finite])


def test_digits_of_8_bits_do_not_depend_on_zero_points(native: NativeRun) -> None:
    """Small weights around a zero point of 128, which is a hundred times as large, keep their digits."""
    rng = np.random.default_rng(4)
    blocks, codes = Blocks(rng, 40, 512, bits=8, block=64), rng.integers(127, 130, (40, 512))
    blocks.codes = codes.reshape(40, 8, 64).astype(np.uint8)
    weights = (codes - 128) * np.repeat(blocks.scales.astype(np.float64), 64, axis=1)
    x = rng.standard_normal((1, 512)).astype(np.float32)
    assert np.all(abs(run(native, blocks, x) - x @ weights.T) <= 100 * HALF_ULP * (abs(x) @ abs(weights).T))
