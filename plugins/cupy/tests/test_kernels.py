"""The hand-made kernels, as they are written: run on the host by its own compiler, compiled by NVIDIA's for two architectures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hetero_cupy.device import GpuDevice
from hetero_cupy.kernel_texts import CudaText, Geometry, write_columns, write_depthwise, write_layer_normalization, write_softmax
from hetero_cupy.operators import CardOperators

from hetero_core import Core
from hetero_core.errors import UnsupportedNodesError
from hetero_core.testing.backend_cases import iterate_backend_cases
from hetero_core.testing.compare import describe_mismatch

from . import cuda_compiler, host_compiler
from .host_compiler import HostCompiledCard, HostCompilingRuntime

TYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
# One unit in the last place of a value of size 1 to 2, twice: the result is rounded once, the formula not at all.
BOUNDS = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
GEOMETRY = Geometry((3, 2), (2, 1), (1, 2), (1, 1))

needs_compiler = pytest.mark.skipif(host_compiler.COMPILER is None, reason=host_compiler.MISSING)
needs_cuda_compiler = pytest.mark.skipif(not cuda_compiler.has_compiler(), reason=cuda_compiler.MISSING)


def iterate_texts() -> Iterator[tuple[str, CudaText]]:
    for dtype in TYPES:
        yield f"columns-{dtype}", write_columns(dtype, GEOMETRY)
        yield f"depthwise-{dtype}", write_depthwise(dtype, GEOMETRY)
        yield f"softmax-{dtype}", write_softmax(dtype)
        yield f"layer_normalization-{dtype}", write_layer_normalization(dtype, "float32")
    yield "layer_normalization-float16-float16", write_layer_normalization("float16", "float16")


@needs_cuda_compiler
@pytest.mark.parametrize("architecture", cuda_compiler.ARCHITECTURES)
def test_nvidias_compiler_takes_every_kernel(architecture: str) -> None:
    # Two types share the text of the columns.
    source_of_name = {text.name: text.source for _, text in iterate_texts()}
    ptx = cuda_compiler.compile_modules([*source_of_name.values()], architecture)
    assert f".target sm_{architecture}".encode() in ptx
    assert [name for name in source_of_name if f".entry {name}(".encode() not in ptx] == []
    # No double precision slips in by a literal or by a function without an f: it is many times slower.
    assert [part.partition(b"(")[0].decode() for part in ptx.split(b".entry ") if b".f64" in part] == []


def test_same_text_has_the_same_name_and_another_one_another() -> None:
    texts = [text for _, text in iterate_texts()]
    # The columns of both types of 16 bits are the same text: what is only copied has no type.
    assert len({text.name for text in texts}) == len({text.source for text in texts}) == len(texts) - 1
    assert write_softmax("float16") == write_softmax("float16")


def draw(dtype: str, *shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32).astype(TYPES[dtype])


def run(card: HostCompiledCard, name: str, *arrays: Any, **attributes: Any) -> np.ndarray[Any, Any]:
    operator = CardOperators(card, uses_tf32=False).list_extensions()["hetero.gpu", name]
    return card.to_host(operator.function(*(card.from_host(array) for array in arrays), **attributes))


def check(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], dtype: str) -> None:
    assert found.dtype == TYPES[dtype]
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=BOUNDS[dtype], atol=BOUNDS[dtype] * np.abs(expected).max())


@needs_compiler
@pytest.mark.parametrize("dtype", TYPES)
def test_softmax_is_the_formula(dtype: str) -> None:
    card, x = HostCompiledCard(0), draw(dtype, 3, 2, 300) * TYPES[dtype].type(8)
    x[0, 0, 7] = -np.inf
    wide = np.exp(x.astype(np.float64) - x.astype(np.float64).max(axis=-1, keepdims=True))
    check(run(card, "Softmax", x), wide / wide.sum(axis=-1, keepdims=True), dtype)
    assert card.launches == [write_softmax(dtype).name]


@needs_compiler
def test_softmax_of_nothing_but_minus_infinity_and_of_nan_is_nan() -> None:
    x = np.array([[-np.inf, -np.inf], [np.nan, 1], [0, 0]], np.float32)
    np.testing.assert_array_equal(run(HostCompiledCard(0), "Softmax", x), [[np.nan] * 2, [np.nan] * 2, [0.5, 0.5]])


@needs_compiler
@pytest.mark.parametrize("dtype", TYPES)
def test_layer_normalization_is_the_formula(dtype: str) -> None:
    card, x, scale, bias = HostCompiledCard(0), draw(dtype, 5, 300), draw("float32", 300, seed=1), draw("float32", 300, seed=2)
    wide = x.astype(np.float64)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-3) * scale.astype(np.float64) + bias
    check(run(card, "LayerNormalization", x, scale, bias, epsilon=1e-3), expected, dtype)
    assert card.launches == [write_layer_normalization(dtype, "float32").name]


def convolve_by_loops(x: Any, w: Any, *, group: int, strides: Any, dilations: Any, pads: Any) -> np.ndarray[Any, Any]:
    """Returns the sum of products of the definition, in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    outputs, share, (tall, wide) = w.shape[0], w.shape[1], w.shape[2:]
    sizes = [
        (size - (tap - 1) * dilation - 1) // stride + 1
        for size, tap, dilation, stride in zip(x.shape[2:], (tall, wide), dilations, strides, strict=True)
    ]
    y = np.zeros((x.shape[0], outputs, *sizes))
    for n, o, i, j in product(range(x.shape[0]), range(outputs), *map(range, sizes)):
        first = o // (outputs // group) * share
        top, left = i * strides[0], j * strides[1]
        seen = x[
            n,
            first : first + share,
            top : top + tall * dilations[0] : dilations[0],
            left : left + wide * dilations[1] : dilations[1],
        ]
        y[n, o, i, j] = (seen * w[o].astype(np.float64)).sum()
    return y


@needs_compiler
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("channels", "outputs", "group"), [(4, 6, 1), (4, 6, 2), (4, 4, 4)])
def test_convolution_is_the_definition(dtype: str, channels: int, outputs: int, group: int) -> None:
    card, x, w = HostCompiledCard(0), draw(dtype, 2, channels, 9, 8), draw(dtype, outputs, channels // group, 3, 2, seed=1)
    geometry: dict[str, Any] = {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 1, 0, 2), "group": group}
    check(run(card, "Conv", x, w, **geometry), convolve_by_loops(x, w, **geometry), dtype)
    writer = write_depthwise if group == channels == outputs else write_columns
    assert card.launches == [writer(dtype, GEOMETRY).name]


@needs_compiler
def test_convolution_over_one_axis_is_the_definition() -> None:
    card, x, w, b = HostCompiledCard(0), draw("float32", 2, 4, 11), draw("float32", 3, 4, 3, seed=1), draw("float32", 3, seed=2)
    found = run(card, "Conv", x, w, b, strides=(2,), pads=(2, 1))
    flat = convolve_by_loops(x[:, :, None], w[:, :, None], group=1, strides=(1, 2), dilations=(1, 1), pads=(0, 2, 0, 1))[:, :, 0]
    check(found, flat + b[:, None], "float32")


@needs_compiler
def test_images_that_are_too_many_for_the_columns_are_computed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    import hetero_cupy.operators

    card, x, w = HostCompiledCard(0), draw("float32", 5, 2, 6, 6), draw("float32", 3, 2, 3, 3, seed=1)
    # The columns of one image: 2 channels, 9 taps, 16 positions.
    monkeypatch.setattr(hetero_cupy.operators, "_COLUMN_BYTES", 2 * 2 * 9 * 16 * 4)
    geometry: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1}
    check(run(card, "Conv", x, w, **geometry), convolve_by_loops(x, w, **geometry), "float32")
    assert len(card.launches) == 3


# What runs a kernel of its own, by the names of onnx's cases.
CASES = (
    r"^test_(basic_conv|conv_with|softmax|layer_normalization|gelu_default|relu|Conv[12]d|Softmax|clip|add|Linear|operator_conv)"
)


@needs_compiler
def test_backend_cases_are_right_on_the_kernels_as_they_are_written() -> None:
    runtime, wrong, right = HostCompilingRuntime(), {}, 0
    with Core() as core:
        core.register_plugin("CARD", GpuDevice("CARD", runtime))
        for case in iterate_backend_cases(CASES, kinds=("node", "simple", "pytorch-converted", "pytorch-operator")):
            try:
                loaded = core.load_network(case.model, "CARD")
            except UnsupportedNodesError:
                continue
            for inputs, expected in case.runs:
                given = {spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=False)}
                for (name, value), wanted in zip(loaded.infer(given).items(), expected, strict=True):
                    mismatch = describe_mismatch(value, wanted, rtol=max(case.rtol, 1e-4), name=name)
                    if mismatch is not None:
                        wrong[case.name] = mismatch
            right += case.name not in wrong
    assert wrong == {}
    assert right >= 100
    assert len(set(runtime.card.launches)) >= 15
