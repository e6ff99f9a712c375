"""INFERENCE_PRECISION_HINT=bf16: products of operands rounded to bfloat16 with sums in float32, by each of the processor's instructions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hetero_cpu.machine import compiler

from hetero_core import Core
from hetero_core.errors import ConfigValueError

from .conftest import use_products
from .integers import Builder, Case, draw_case, find_difference

HINT = {"INFERENCE_PRECISION_HINT": "bf16"}
FLAGS = {"amx_bf16": "", "bf16": r" amx_\w+", "": r" amx_\w+| avx512_bf16"}
"""The flags of a processor to overlook, so that others are used."""


@pytest.fixture(params=FLAGS, ids=lambda name: name or "float32")
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The products of bfloat16 in use; skipped if the processor has others alone."""
    yield from use_products(monkeypatch, compiler.find_half_products, request.param, FLAGS[request.param])


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


def narrow(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float64)


def make_product(rows: int, depth: int, outputs: int) -> Case:
    """Returns relu(x @ w + bias) with the answer of float64 on rounded operands."""
    rng, graph = np.random.default_rng(rows), Builder()
    x, w, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, depth), (depth, outputs), (outputs,)))
    y = graph.node("Relu", graph.node("Gemm", graph.feed(x), graph.constant(w), graph.constant(bias)))
    return graph.finish({y: np.maximum(narrow(x) @ narrow(w) + bias, 0).astype(np.float32)}, is_open=True)


@pytest.mark.parametrize("kernels", ["JIT", "NUMPY"])
@pytest.mark.parametrize(
    "sizes", [(1, 8, 8), (5, 33, 17), (16, 64, 40), (49, 100, 70)], ids=lambda sizes: "x".join(map(str, sizes))
)
def test_products_round_their_operands_alone(
    core: Core, products: str, kernels: str, sizes: tuple[int, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    case = make_product(*sizes)
    (expected,) = case.expected.values()
    found = core.load_network(case.model, "CPU", {**HINT, "CPU_KERNELS": kernels}).infer(case.feeds)
    plain = core.load_network(case.model, "CPU", {"CPU_KERNELS": kernels}).infer(case.feeds)
    (rounded,), (exact,) = found.values(), plain.values()
    assert ("CPU does not multiply bfloat16 on this processor" in caplog.text) != bool(products)
    bound = 1e-5 * np.abs(expected).max()
    if products:
        assert np.abs(rounded - expected).max() <= bound < np.abs(exact - expected).max()
    else:
        assert np.array_equal(rounded, exact)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [3, 16, 33])
def test_convolutions_round_their_operands_alone(core: Core, products: str, channels: int, stride: int) -> None:
    rng, graph = np.random.default_rng(channels), Builder()
    x = rng.standard_normal((2, channels, 11, 13)).astype(np.float32)
    w = rng.standard_normal((24, channels, 3, 3)).astype(np.float32)
    y = graph.node("Conv", graph.feed(x), graph.constant(w), kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[stride, stride])
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(narrow(x), ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    expected = np.einsum("bchwij,ocij->bohw", windows[:, :, ::stride, ::stride], narrow(w))
    case = graph.finish({y: expected.astype(np.float32)})
    (found,) = core.load_network(case.model, "CPU", {**HINT, "CPU_KERNELS": "JIT"}).infer(case.feeds).values()
    assert (np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()) == bool(products)


@pytest.mark.parametrize("channels", [5, 20, 32])
def test_infinite_pixel_reaches_its_windows_alone(core: Core, products: str, channels: int) -> None:
    rng, graph = np.random.default_rng(0), Builder()
    x = rng.standard_normal((1, channels, 6, 30)).astype(np.float32)
    x[0, :, 3, 11] = np.inf
    w = np.abs(rng.standard_normal((16, channels, 1, 3))).astype(np.float32)
    y = graph.node("Conv", graph.feed(x), graph.constant(w), kernel_shape=[1, 3])
    case = graph.finish({y: np.zeros((1, 16, 6, 28), np.float32)})
    (found,) = core.load_network(case.model, "CPU", {**HINT, "CPU_KERNELS": "JIT"}).infer(case.feeds).values()
    is_reached = np.zeros(found.shape, bool)
    is_reached[:, :, 3, 9:12] = True
    assert np.array_equal(np.isposinf(found), is_reached)
    assert np.isfinite(found[~is_reached]).all()


@pytest.mark.parametrize("kind", ["qlinear_conv", "dynamic_mat_mul"])
def test_integers_stay_exact(core: Core, products: str, kind: str) -> None:
    assert find_difference(core, draw_case(kind, 3), "JIT", HINT) == ""


def test_blob_keeps_the_precision(core: Core, products: str, tmp_path: Path) -> None:
    case = make_product(9, 40, 24)
    config = {**HINT, "CPU_KERNELS": "JIT"}
    loaded = core.load_network(case.model, "CPU", config)
    answers = loaded.infer(case.feeds)
    loaded.export_network(tmp_path / "blob")
    imported = core.import_network(tmp_path / "blob", "CPU", config).infer(case.feeds)
    assert all(np.array_equal(imported[name], answers[name]) for name in answers)


def test_other_precisions_are_refused(core: Core) -> None:
    with pytest.raises(ConfigValueError, match="expected one of bf16, f32, got 'f16'"):
        core.load_network(make_product(1, 8, 8).model, "CPU", {"INFERENCE_PRECISION_HINT": "f16"})
