"""Products and convolutions shared by the threads of a network: exact in integers, and complete for any behaviour of the helper threads."""

from __future__ import annotations

import threading
import warnings
from functools import partial
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.run.blas import ProductTeam

from hetero_core import Core
from hetero_core.kernels.operators import convolution, elementwise
from hetero_core.kernels.precision import share_with

SHAPES = [
    ((300, 200), (200, 300)),
    ((3000, 64), (64, 33)),
    ((33, 64), (64, 3000)),
    ((17, 2000), (2000, 1000)),
    ((40, 64, 64), (40, 64, 64)),
    ((1, 64, 300), (8, 300, 64)),
    ((8, 1, 64, 300), (300, 64)),
    ((2, 3, 200, 64), (3, 64, 200)),
    ((1, 1, 5, 100000), (2, 1, 100000, 7)),
    ((1, 3000000), (3000000, 2)),
    ((0, 1000), (1000, 1000)),
    ((1000, 0), (0, 1000)),
    ((2000,), (2000, 2000)),
    ((2000, 2000), (2000,)),
]
"""Products of the rows, of the columns, of the batch; one side repeated; too small to be cut; empty; vectors."""


def draw(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).integers(-3, 4, shape, np.int8)


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize(("threads", "dtype"), [(2, np.float32), (5, np.float32), (2, np.float64)])
def test_shared_product_is_exact(left: tuple[int, ...], right: tuple[int, ...], threads: int, dtype: Any) -> None:
    a, b = draw(*left), draw(*right)
    # Sums below 2**24 are exact in float32 and in float64, in which BLAS multiplies much faster than NumPy does in integers.
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    team = ProductTeam(threads)
    fresh = team.multiply(a.astype(dtype), b.astype(dtype))
    assert fresh.dtype == dtype
    np.testing.assert_array_equal(fresh, expected)
    padded = np.full((*expected.shape, 2), -7, dtype)
    team.multiply(a.astype(dtype), b.astype(dtype), padded[..., 0])
    np.testing.assert_array_equal(padded[..., 0], expected)
    assert (padded[..., 1] == -7).all()
    team.close()


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.bool_])
def test_shared_product_of_other_types_is_numpys(dtype: Any) -> None:
    """Integers wrap, truth values are joined by or."""
    a, b = draw(200, 150).astype(dtype), draw(150, 200).astype(dtype)
    exact = np.matmul(a.astype(np.int64), b.astype(np.int64))
    expected = exact != 0 if dtype is np.bool_ else exact.astype(dtype)
    product = ProductTeam(2).multiply(a, b)
    assert product.dtype == dtype
    np.testing.assert_array_equal(product, expected)


@pytest.mark.parametrize("is_turned", [False, True])
def test_shared_product_over_its_own_operand_is_exact(is_turned: bool) -> None:
    a, b = draw(300, 300).astype(np.float32), draw(300, 300).astype(np.float32)
    expected = np.matmul(a.astype(np.int64), b.astype(np.int64))
    team = ProductTeam(2)
    out = b if is_turned else a
    assert team.multiply(a, b, out) is out
    np.testing.assert_array_equal(out, expected)
    team.close()


def test_infinities_in_a_helper_raise_no_warning() -> None:
    a, b = np.full((400, 400), np.inf, np.float32), np.full((400, 400), 0, np.float32)
    team = ProductTeam(4)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        for _ in range(20):
            assert np.isnan(team.multiply(a, b)).all()
    team.close()


def test_caller_computes_all_if_no_helper_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is never bound to a helper thread that is suspended or failed to start, so the caller does not wait for it."""
    held = threading.Event()
    a = draw(300, 300).astype(np.float32)
    expected = np.matmul(a.astype(np.int64), a.astype(np.int64))
    team = ProductTeam(2)
    sleeping = team._open_helpers().submit(held.wait)
    np.testing.assert_array_equal(team.multiply(a, a), expected)
    held.set()
    assert sleeping.result()
    monkeypatch.setattr(team, "_open_helpers", lambda: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
    np.testing.assert_array_equal(team.multiply(a, a), expected)


def test_helpers_end_with_the_team() -> None:
    a = draw(300, 300).astype(np.float32)
    before = set(threading.enumerate())
    team = ProductTeam(3)
    first = team.multiply(a, a)
    team.close()
    # Threads of earlier tests may end meanwhile.
    assert set(threading.enumerate()) <= before
    np.testing.assert_array_equal(team.multiply(a, a), first)
    assert set(threading.enumerate()) <= before


def test_error_of_a_piece_is_raised_by_the_caller() -> None:
    a, b = draw(300, 300).astype(np.float32), draw(301, 300).astype(np.float32)
    with pytest.raises(ValueError, match="mismatch"):
        ProductTeam(2).multiply(a, b)


@pytest.mark.parametrize(
    ("length", "most", "three", "two", "one"), [(32, 28, 11, 16, 16), (63, 28, 21, 16, 21), (63, 60, 21, 32, 32), (2, 9, 1, 1, 2)]
)
def test_each_thread_has_as_many_equal_parts(length: int, most: int, three: int, two: int, one: int) -> None:
    """At most as many threads as the work is worth."""
    team = ProductTeam(3)
    assert [team.cut(length, most, shares) for shares in (100, 3, 2, 1, 0)] == [three, three, two, one, one]


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize(("outputs", "group", "stride"), [(2, 1, 1), (8, 8, 1), (8, 8, 2), (16, 1, 1), (16, 1, 2)])
def test_shared_blocks_of_a_convolution_are_exact(
    monkeypatch: pytest.MonkeyPatch, outputs: int, group: int, stride: int, images: int
) -> None:
    """By products that are added, by shifted rows and by columns, in blocks of a few rows or groups."""
    for name in ("_COLUMN_BYTES", "_NEAR_COLUMN_BYTES"):
        monkeypatch.setattr(convolution, name, 1 << 14)
    monkeypatch.setattr(convolution, "_LEAST_SHARE", 1 << 12)
    x, w = draw(images, 8, 40, 30).astype(np.float32), draw(outputs, 8 // group, 3, 3).astype(np.float32)
    run = partial(convolution.conv, np, x, w, group=group, strides=(stride, stride), pads=(1, 2, 0, 1))
    alone = run()
    team = ProductTeam(3)
    with share_with(team):
        for _ in range(5):
            np.testing.assert_array_equal(run(), alone)
    assert team._helpers is not None
    team.close()
    with share_with(team):
        np.testing.assert_array_equal(run(), alone)


def test_shared_blocks_of_a_long_formula_are_exact() -> None:
    x = draw(300, 700).astype(np.float32)
    alone, team = elementwise.gelu(np, x), ProductTeam(3)
    with share_with(team):
        for _ in range(5):
            np.testing.assert_array_equal(elementwise.gelu(np, x), alone)
    assert team._helpers is not None
    team.close()


@pytest.mark.parametrize("node", ["MatMul(x, w)", "Gemm(x, w)", "MatMul(x, x)", "Einsum<equation='ij,jk->ik'>(x, w)"])
@pytest.mark.parametrize("size", ["256", "N"])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_large_products_of_a_network_are_shared(monkeypatch: pytest.MonkeyPatch, node: str, size: str, kind: str) -> None:
    """By steps of NumPy and of the toolkit; an `Einsum` is not shared if NumPy computes it as a whole."""
    for count in ("hetero_core.devices.device.count_processors", "hetero_cpu.run.blas.count_affinity"):
        monkeypatch.setattr(count, lambda: 2)
    shared: list[int] = []
    share = ProductTeam._share
    monkeypatch.setattr(ProductTeam, "_share", lambda self, pieces: (shared.append(len(pieces)), share(self, pieces)))
    node = node.replace("'", '"')
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({kind}[256,{size}] x, {kind}[256,256] w) => ({kind}[256,256] y) {{ y = {node} }}'
    )
    x, w = (draw(256, 256).astype(np.float32 if kind == "float" else np.float64) for _ in range(2))
    with Core() as core:
        y = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"}).infer({"x": x, "w": w})["y"]
    np.testing.assert_array_equal(y, np.matmul(x.astype(np.int64), (x if node == "MatMul(x, x)" else w).astype(np.int64)))
    assert bool(shared) == ("Einsum" not in node or (kind == "float" and size != "N"))
