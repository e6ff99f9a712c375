"""Products with weights in blocks of 2, 4 and 8 bits by machine code, against float64 of the same codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node

from ..conftest import NativeRun

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
HALF_ULP = 2.0**-24


def pack_codes(codes: Any, bits: int) -> Any:
    """Packs codes along the last axis into bytes, the first in the lowest bits; a byte is filled up with the largest codes."""
    count = 8 // bits
    filled = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % count)], constant_values=2**bits - 1)
    parts = filled.reshape((*codes.shape[:-1], -1, count)).astype(np.int64) << (np.arange(count) * bits)
    return parts.sum(-1).astype(np.uint8)


class Blocks:
    """Drawn weights (outputs, depth) in blocks, as inputs of MatMulNBits and as `numbers` (codes - zero points, scales)."""

    def __init__(self, seed: int, depth: int, outputs: int, bits: int, block: int, zeros: str) -> None:
        rng = np.random.default_rng([seed, depth, outputs, bits, block])
        blocks, top = -(-depth // block), 2**bits - 1
        codes = rng.integers(0, top + 1, (outputs, blocks, block))
        scales = (rng.random((outputs, blocks)) + 0.5).astype(np.float32) * rng.choice([-1, 1], (outputs, blocks)).astype(np.float32)
        points = {
            "none": np.full((outputs, blocks), 2.0 ** (bits - 1)),
            "least": np.zeros((outputs, blocks)),
            "largest": np.full((outputs, blocks), float(top)),
            "drawn": rng.integers(0, top + 1, (outputs, blocks)).astype(np.float64),
            "floats": rng.uniform(-3, top, (outputs, blocks)).astype(np.float32).astype(np.float64),
        }[zeros]
        self.attributes = {"K": depth, "N": outputs, "bits": bits, "block_size": block}
        self.constants = {"w": pack_codes(codes, bits), "s": scales, "b": rng.standard_normal(outputs).astype(np.float32)}
        if zeros != "none":
            self.constants["z"] = points.astype(np.float32) if zeros == "floats" else pack_codes(points, bits)
        self.codes = codes.reshape(outputs, -1)[:, :depth]
        self.points, self.scales = (np.repeat(array, block, axis=1)[:, :depth] for array in (points, scales.astype(np.float64)))

    def run(self, native: NativeRun, x: Any, *, has_bias: bool = True) -> Any:
        from hetero_cpu.operators.blocks import plan_block_product

        inputs = ("x", "w", "s", "z" * ("z" in self.constants), "", "b" * has_bias)
        node = Node("m", "MatMulNBits", inputs, ("y",), domain="com.microsoft", since_version=1, attributes=self.attributes)
        shape = (*x.shape[:-1], self.attributes["N"])
        recipe = plan_block_product(native.make_site([node], {"x": x}, self.constants, shape))
        assert recipe is not None
        y = np.full(shape, np.nan, np.float32)
        native.run(recipe, {"x": x}, y)
        return y

    def evaluate(self, x: Any) -> Any:
        with np.errstate(all="ignore"):
            terms = x[:, None, :].astype(np.float64) * ((self.codes - self.points) * self.scales)
            return terms.sum(-1)

    def bound(self, x: Any) -> Any:
        longest = self.attributes["block_size"] + self.codes.shape[1] // self.attributes["block_size"] + 16
        return longest * HALF_ULP * (abs(x).astype(np.float64) @ ((self.codes + abs(self.points)) * abs(self.scales)).T + 10)


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
    blocks = Blocks(1, depth, outputs, bits, block, zeros)
    x = np.random.default_rng([rows, depth]).standard_normal((rows, depth)).astype(np.float32)
    exact = blocks.evaluate(x) + (blocks.constants["b"] if has_bias else 0)
    assert np.all(abs(blocks.run(native, x, has_bias=has_bias) - exact) <= blocks.bound(x))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 3e38, 1e-44])
def test_special_numbers_equal_float64_of_the_codes(native: NativeRun, rows: int, bits: int, special: float) -> None:
    blocks = Blocks(2, 70, 50, bits, 32, "drawn")
    x = np.random.default_rng(3).standard_normal((rows, 70)).astype(np.float32)
    x[-1, 17] = special
    output, exact = blocks.run(native, x, has_bias=False), blocks.evaluate(x)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    # A sum near the largest float32 may overflow on the way.
    near = abs(exact) > 3e37
    np.testing.assert_array_equal(output[~np.isfinite(exact)], rounded[~np.isfinite(exact)])
    bound = blocks.bound(np.where(np.isfinite(x), x, 0))
    whole = np.isfinite(exact) & ~near
    assert np.all(abs(output[whole] - exact[whole]) <= bound[whole])
    assert not np.isnan(output[np.isfinite(exact)]).any()


def test_digits_of_8_bits_do_not_depend_on_zero_points(native: NativeRun) -> None:
    """Small weights around a zero point of 128, which is a hundred times as large, keep their digits."""
    blocks = Blocks(4, 512, 40, 8, 64, "none")
    codes = 127 + np.random.default_rng(5).integers(0, 3, (40, 512))
    blocks.codes, blocks.constants["w"] = codes, codes.reshape(40, 8, 64).astype(np.uint8)
    x = np.random.default_rng(6).standard_normal((1, 512)).astype(np.float32)
    sizes = abs(x).astype(np.float64) @ (abs(codes - 128) * abs(blocks.scales)).T
    assert np.all(abs(blocks.run(native, x, has_bias=False) - blocks.evaluate(x)) <= 100 * HALF_ULP * sizes)
