"""Products of bytes by VNNI and by AMX against exact integer arithmetic: each that the processor has, and the products of float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hetero_cpu.machine import compiler
from hetero_cpu.operators import narrow_product

from hetero_core import Core

from .conftest import use_products
from .integers import KINDS, Builder, Case, convolve, draw_case, find_difference

FLAGS = {
    "amx": "",
    "vnni": r" amx_\w+",
    "vnni with AVX2": r" (amx_|avx512)\w+",
    "pairs": r" amx_\w+| avx512_vnni| avx_vnni",
    "pairs with AVX2": r" (amx_|avx512)\w+| avx_vnni",
}
"""The flags of a processor to overlook, so that others are used."""
FACTOR = np.float32(0.5)


@pytest.fixture(params=FLAGS)
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The products of bytes in use; skipped if the processor has others alone."""
    yield from use_products(monkeypatch, compiler.find_byte_products, request.param.split(" ")[0], FLAGS[request.param])


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels of products of bytes that were planned."""
    names: list[str] = []
    make_product = narrow_product.make_product

    def note(*cut: Any, **fields: Any) -> Any:
        kernel = make_product(*cut, **fields)
        names.append(kernel.name)
        return kernel

    monkeypatch.setattr(narrow_product, "make_product", note)
    return names


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


def assert_products(planned: list[str], products: str, w: Any, largest: int = 255) -> None:
    """Asserts that these products, or of few rows those of vectors, were planned; words where two products do not fit into 16 bits."""
    is_small = 2 * largest * np.abs(w.astype(int)).max() < 1 << 15
    expected = "words" if products == "pairs" and not is_small else products
    assert planned
    assert all(expected in name or (products == "amx" and "vnni" in name) for name in planned)


def make_convolution(x: Any, w: Any, zero: Any, geometry: dict[str, Any], *, adds: bool = False) -> Case:
    """Returns a quantized image that is convolved, with a bias and, if it `adds`, a further image."""
    graph = Builder()
    names = graph.constant(FACTOR), graph.constant(zero)
    values = (x.astype(np.float32) - np.float32(zero)) * FACTOR
    image = graph.node("DequantizeLinear", graph.node("QuantizeLinear", graph.feed(values), *names), *names)
    weights = graph.node("DequantizeLinear", graph.constant(w), graph.constant(FACTOR))
    y = graph.node("Conv", image, weights, kernel_shape=list(w.shape[2:]), **geometry)
    expected = convolve(x.astype(np.int64) - int(zero), w.astype(np.int64), **geometry).astype(np.float32) / 4
    if adds:
        more = np.arange(expected.size, dtype=np.float32).reshape(expected.shape) / 4
        y, expected = graph.node("Relu", graph.node("Add", y, graph.feed(more))), np.maximum(expected + more, 0)
    return graph.finish({y: expected})


IMAGES = [
    # batch, channels, height, width, outputs, kernel, stride, pads, dilation
    (1, 64, 14, 14, 64, 1, 1, 0, 1),
    (2, 16, 9, 13, 40, 3, 1, 1, 1),
    (1, 3, 33, 31, 24, 7, 2, 3, 1),
    (1, 24, 20, 17, 72, 3, 2, 1, 1),
    (1, 32, 18, 18, 16, 3, 1, 2, 2),
    (3, 5, 7, 7, 9, 1, 2, 0, 1),
    (1, 130, 3, 3, 33, 3, 1, 1, 1),
    (1, 1, 40, 40, 8, 5, 1, 2, 1),
    # Two tiles of rows of which the second is short, in a block of two and one of a single vector.
    (1, 20, 5, 5, 40, 1, 1, 0, 1),
    (1, 70, 9, 27, 70, 3, 1, 0, 1),
]


@pytest.mark.parametrize("sizes", IMAGES, ids=lambda sizes: "x".join(map(str, sizes)))
@pytest.mark.parametrize("zero", [np.uint8(0), np.uint8(255), np.int8(-3)], ids=["least", "most", "signed"])
def test_convolutions_are_exact(core: Core, products: str, planned: list[str], sizes: Any, zero: Any) -> None:
    batch, channels, height, width, outputs, side, stride, pads, dilation = sizes
    rng, limits = np.random.default_rng(height), np.iinfo(zero.dtype)
    x = rng.integers(limits.min, limits.max + 1, (batch, channels, height, width)).astype(zero.dtype)
    # Small enough for a single product of float32.
    w = rng.integers(-128, 128, (outputs, channels, side, side)).astype(np.int8) // (16 if channels * side > 200 else 1)
    geometry = {"strides": [stride] * 2, "pads": [pads] * 4, "dilations": [dilation] * 2, "group": 1}
    case = make_convolution(x, w.astype(np.int8), zero, geometry, adds=outputs % 2 == 0)
    assert find_difference(core, case, "JIT") == ""
    assert_products(planned, products, w)


@pytest.mark.parametrize(
    ("largest", "weight"), [(127, -128), (127, 127), (255, -64), (255, 64), (255, 65), (255, -128), (128, 127)]
)
def test_pairs_of_the_largest_products_are_exact(core: Core, products: str, planned: list[str], largest: int, weight: int) -> None:
    """The sum of two products fits into 16 bits or not: 2 * 127 * 128 does, 2 * 255 * 65 does not."""
    graph, rng = Builder(), np.random.default_rng(largest)
    x = rng.choice([0, largest], (3, 40), p=[0.2, 0.8]).astype(np.uint8)
    w = rng.choice([0, weight], (40, 24), p=[0.2, 0.8]).astype(np.int8)
    limited = graph.node("Clip", graph.node("Cast", graph.feed(x), to=1), "", graph.constant(np.float32(largest)))
    y = graph.node("MatMul", limited, graph.constant(w.astype(np.float32)))
    expected = (x.astype(np.int64) @ w.astype(np.int64)).astype(np.float32)
    assert find_difference(core, graph.finish({y: expected}), "JIT") == ""
    assert_products(planned, products, w, largest)


def make_product(x: Any, w: Any) -> Case:
    graph = Builder()
    y = graph.node("Cast", graph.node("MatMulInteger", graph.feed(x), graph.constant(w)), to=1)
    return graph.finish({y: (x.astype(np.int64) @ w.astype(np.int64)).astype(np.float32)}, is_open=True)


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 15, 16, 17, 31, 32, 33, 70])
@pytest.mark.parametrize(("depth", "outputs"), [(1, 8), (3, 17), (64, 32), (65, 33), (127, 100)])
def test_products_of_an_open_number_of_rows_are_exact(
    core: Core, products: str, planned: list[str], rows: int, depth: int, outputs: int
) -> None:
    rng = np.random.default_rng(rows)
    x, w = rng.integers(0, 256, (rows, depth)).astype(np.uint8), rng.integers(-128, 128, (depth, outputs)).astype(np.int8)
    assert find_difference(core, make_product(x, w), "JIT") == ""
    assert_products(planned, products, w)


def test_weights_that_are_no_bytes_are_multiplied_as_floats(core: Core, products: str, planned: list[str]) -> None:
    x, w = np.full((4, 9), 255, np.uint8), np.full((9, 16), 255, np.uint8)
    assert find_difference(core, make_product(x, w), "JIT") == ""
    assert planned == []


def test_the_byte_of_a_nan_behind_a_relu_is_multiplied(core: Core, products: str, planned: list[str]) -> None:
    graph = Builder()
    x, w = np.array([[np.nan, 1, 2], [3, np.nan, 4]], np.float32), np.arange(-12, 12).reshape(3, 8).astype(np.int8)
    names = graph.constant(np.float32(1)), graph.constant(np.int8(0))
    codes = graph.node("QuantizeLinear", graph.node("Relu", graph.feed(x)), *names)
    weights = graph.node("DequantizeLinear", graph.constant(w), *names)
    y = graph.node("MatMul", graph.node("DequantizeLinear", codes, *names), weights)
    expected = np.array([[-128, 1, 2], [3, -128, 4]]) @ w.astype(np.int64)
    assert find_difference(core, graph.finish({y: expected.astype(np.float32)}), "JIT") == ""
    assert_products(planned, products, w)


def test_bytes_far_from_zero_are_multiplied_as_floats(core: Core, products: str, planned: list[str]) -> None:
    graph, x, w = Builder(), np.arange(6, dtype=np.uint8).reshape(2, 3), np.full((3, 8), 64, np.float32)
    shifted = graph.node("Add", graph.node("Cast", graph.feed(x), to=1), graph.constant(np.float32(1 << 24)))
    y = graph.node("MatMul", shifted, graph.constant(w))
    expected = (x.astype(np.float32) + np.float32(1 << 24)).astype(np.float64) @ w
    assert find_difference(core, graph.finish({y: expected.astype(np.float32)}), "JIT") == ""
    assert planned == []


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_networks_are_exact(core: Core, products: str, kind: str) -> None:
    differences = {index: find_difference(core, draw_case(kind, index), "JIT") for index in range(16, 22)}
    assert {index: difference for index, difference in differences.items() if difference} == {}


def test_results_that_products_of_bytes_read_are_written_as_bytes(core: Core, products: str, planned: list[str]) -> None:
    assert find_difference(core, draw_case("qdq_inverted_residual", 0), "JIT") == ""
    # All but the last, whose result is float32.
    assert ["LimitNarrow" in name or "LimitWhole" in name for name in planned] == [True] * 4 + [False]


def test_bytes_between_products_are_exact_behind_a_relu(core: Core, products: str, planned: list[str]) -> None:
    graph, rng = Builder(), np.random.default_rng(5)
    x, first, second = (
        rng.integers(*limits, size) for *limits, size in ((0, 256, (7, 70)), (-64, 65, (70, 33)), (-128, 128, (33, 9)))
    )
    one, zero, step = graph.constant(np.float32(1)), graph.constant(np.int8(0)), graph.constant(np.float32(1024))

    def multiply(value: str, w: Any) -> str:
        weights = graph.node("DequantizeLinear", graph.constant(w.astype(np.int8)), one, zero)
        return graph.node("MatMul", value, weights)

    def quantize(value: str, scale: str) -> str:
        codes = graph.node("QuantizeLinear", graph.node("Relu", value), scale, zero)
        return graph.node("DequantizeLinear", codes, scale, zero)

    codes = graph.node("DequantizeLinear", graph.feed(x.astype(np.uint8)), one)
    y = multiply(quantize(multiply(codes, first), step), second)
    held = np.minimum(np.rint(np.maximum(x @ first, 0) / 1024), 127).astype(np.int64)
    assert find_difference(core, graph.finish({y: (held @ second * 1024).astype(np.float32)}), "JIT") == ""
    narrowing = "LimitWhole" if products == "pairs" else "LimitNarrow"
    assert [narrowing in name for name in planned] == [True, False]
