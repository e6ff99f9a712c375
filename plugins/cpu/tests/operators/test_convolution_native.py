"""Machine code against float64: direct and Winograd convolutions, with and without halos, and matrix products."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx.helper
import onnx.numpy_helper
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_core import Core

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu.machine.compiler import find_width
from hetero_cpu.operators.images import find_overhang
from hetero_cpu.operators.tiling import choose_chunks, choose_tiling, pack_columns
from hetero_cpu.operators.winograd import choose_winograd

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

Array = np.ndarray[Any, Any]


def convolve(
    x: Array, w: Array, *, strides: tuple[int, int], dilations: tuple[int, int], pads: tuple[int, int, int, int], group: int
) -> Array:
    """Returns the convolution of ONNX Conv in float64, as the sum over the taps of shifted images."""
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    batch, _, height, width = wide.shape
    outputs, own, tall, broad = w.shape
    down = (height - dilations[0] * (tall - 1) - 1) // strides[0] + 1
    right = (width - dilations[1] * (broad - 1) - 1) // strides[1] + 1
    y = np.zeros((batch, group, outputs // group, down, right))
    images = wide.reshape(batch, group, own, height, width)
    kernels = w.astype(np.float64).reshape(group, outputs // group, own, tall, broad)
    for i, j in np.ndindex(tall, broad):
        top, left = i * dilations[0], j * dilations[1]
        part = images[
            ..., top : top + (down - 1) * strides[0] + 1 : strides[0], left : left + (right - 1) * strides[1] + 1 : strides[1]
        ]
        y += np.einsum("bgchw,goc->bgohw", part, kernels[..., i, j])
    return y.reshape(batch, outputs, down, right)


def build(nodes: list[Any], inputs: dict[str, tuple[int, ...]], output: str, constants: dict[str, Array]) -> Any:
    """Returns a model of float32 inputs of these shapes."""
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "products",
        [onnx.helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [onnx.helper.make_tensor_value_info(output, kind, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def run(model: Any, inputs: dict[str, Array], *, threads: int = 1) -> tuple[Array, int]:
    """Returns the output and the number of steps that were machine code."""
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": threads})
        (output,) = loaded.infer(inputs).values()
        return output, loaded.get_metric("CPU_NATIVE_STEPS")


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(output: Array, expected: Array, tolerance: float = 3e-6) -> None:
    assert output.shape == expected.shape
    assert np.abs(output - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-30)


SIZES = st.integers(1, 9)


@settings(max_examples=14, deadline=None, derandomize=True)
@given(st.data())
def test_convolution_of_any_parameters_equals_the_formula(data: st.DataObject) -> None:
    batch, channels, outputs = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 70))
    kernel = (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    strides = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    dilations = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)))
    pads = tuple(data.draw(st.integers(0, 2)) for _ in range(4))
    least = [dilations[axis] * (kernel[axis] - 1) + 1 - pads[axis] - pads[axis + 2] for axis in (0, 1)]
    height, width = (max(size, 1) + data.draw(SIZES) for size in least)
    x, w, b = draw(1, batch, channels, height, width), draw(2, outputs, channels, *kernel), draw(3, outputs)
    node = onnx.helper.make_node("Conv", ["x", "w", "b"], ["y"], strides=strides, dilations=dilations, pads=pads)
    output, native = run(build([node], {"x": x.shape}, "y", {"w": w, "b": b}), {"x": x})
    assert native == 1
    expected = convolve(x, w, strides=strides, dilations=dilations, pads=pads, group=1) + b.reshape(1, -1, 1, 1)
    check(output, expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "height", "width"),
    [(1, 16, 48, 20, 20), (2, 32, 16, 14, 11), (1, 64, 64, 57, 31), (3, 16, 80, 10, 33), (1, 48, 32, 23, 70)],
)
def test_winograd_convolution_equals_the_formula(
    batch: int, channels: int, outputs: int, height: int, width: int, threads: int
) -> None:
    x, w, b = draw(1, batch, channels, height, width), draw(2, outputs, channels, 3, 3), draw(3, outputs)
    rest = draw(4, batch, outputs, height, width)
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w", "b"], ["made"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Add", ["made", "rest"], ["sum"]),
        onnx.helper.make_node("Relu", ["sum"], ["y"]),
    ]
    model = build(nodes, {"x": x.shape, "rest": rest.shape}, "y", {"w": w, "b": b})
    output, native = run(model, {"x": x, "rest": rest}, threads=threads)
    assert native
    convolved = convolve(x, w, strides=(1, 1), dilations=(1, 1), pads=(1, 1, 1, 1), group=1)
    check(output, np.maximum(convolved + b.reshape(1, -1, 1, 1) + rest, 0), 1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_halos_in_shared_memory_are_zero_in_every_run(threads: int) -> None:
    """A chain that shares memory, read by windows of several sizes through a concatenation."""
    x = draw(1, 2, 24, 17, 19)
    weights = {"a": draw(2, 32, 24, 1, 1), "b": draw(3, 16, 32, 5, 5), "c": draw(4, 40, 32, 3, 3), "d": draw(5, 8, 56, 3, 3)}
    nodes = [
        onnx.helper.make_node("Conv", ["x", "a"], ["p"]),
        onnx.helper.make_node("Conv", ["p", "b"], ["q"], pads=[2, 2, 2, 2]),
        onnx.helper.make_node("Conv", ["p", "c"], ["r"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Concat", ["q", "r"], ["s"], axis=1),
        onnx.helper.make_node("Conv", ["s", "d"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2]),
    ]
    model = build(nodes, {"x": x.shape}, "y", weights)
    plain: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "group": 1}
    p = convolve(x, weights["a"], pads=(0, 0, 0, 0), **plain)
    q, r = convolve(p, weights["b"], pads=(2, 2, 2, 2), **plain), convolve(p, weights["c"], pads=(1, 1, 1, 1), **plain)
    s = np.concatenate([q, r], axis=1)
    expected = convolve(s, weights["d"], pads=(1, 1, 1, 1), strides=(2, 2), dilations=(1, 1), group=1)
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": threads})
        for _ in range(3):
            (output,) = loaded.infer({"x": x}).values()
            check(output, expected, 1e-5)
            loaded.infer({"x": np.full_like(x, np.nan)})


@settings(max_examples=14, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 60),
    depth=st.integers(1, 90),
    outputs=st.integers(1, 300),
    is_gemm=st.booleans(),
    is_turned=st.booleans(),
    has_bias=st.booleans(),
    threads=st.integers(1, 2),
)
def test_matrix_product_of_any_sizes_equals_the_formula(
    rows: int, depth: int, outputs: int, *, is_gemm: bool, is_turned: bool, has_bias: bool, threads: int
) -> None:
    x, w, b = draw(1, rows, depth), draw(2, depth, outputs), draw(3, outputs)
    if is_gemm:
        names = ["x", "w", "b"][: 2 + has_bias]
        nodes = [onnx.helper.make_node("Gemm", names, ["y"], transB=int(is_turned), beta=0.5)]
    else:
        nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["m" if has_bias else "y"])]
        nodes += [onnx.helper.make_node("Add", ["m", "b"], ["y"])] if has_bias else []
    weight = np.ascontiguousarray(w.T) if is_gemm and is_turned else w
    constants = {"w": weight, "b": b} if has_bias else {"w": weight}
    output, native = run(build(nodes, {"x": x.shape}, "y", constants), {"x": x}, threads=threads)
    assert native == 1
    expected = x.astype(np.float64) @ w + (b * (0.5 if is_gemm else 1.0) if has_bias else 0.0)
    # A sum of `depth` products may lose a few units of the largest.
    check(output, expected, 1e-5 if rows * outputs == 1 else 4e-6)


def test_nan_and_infinity_pass_through_a_product() -> None:
    x = np.array([[np.nan, 1], [np.inf, 1], [1, 1]], np.float32)
    w = np.array([[1, -1], [1, 1]], np.float32)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["m"]), onnx.helper.make_node("Relu", ["m"], ["y"])]
    output, _ = run(build(nodes, {"x": x.shape}, "y", {"w": w}), {"x": x})
    np.testing.assert_array_equal(output, np.array([[np.nan, np.nan], [np.inf, 0], [2, 0]], np.float32))


@given(st.integers(1, 4000), st.integers(1, 3000), st.sampled_from([8, 16]))
def test_tiling_covers_every_pixel_and_channel_once(pixels: int, outputs: int, width: int) -> None:
    tiling = choose_tiling(pixels, outputs, width)
    assert tiling.long_tiles * tiling.pixels + (tiling.tiles - tiling.long_tiles) * (tiling.pixels - 1) == pixels
    assert (tiling.blocks - 1) * tiling.vectors * width + (tiling.last_vectors - 1) * width + tiling.last == outputs
    assert 1 <= tiling.last <= width
    assert tiling.pixels * tiling.vectors + tiling.vectors + 1 <= (32 if width == 16 else 17)


@given(st.integers(1, 300), st.integers(1, 500), st.integers(1, 50), st.integers(1, 3000), st.integers(1, 8))
def test_chunks_cover_every_unit_and_block_once(pixels: int, outputs: int, lines: int, depth: int, workers: int) -> None:
    tiling = choose_tiling(pixels, outputs, 16)
    chunks = choose_chunks(tiling, lines=lines, depth=depth, pixel_bytes=depth * 4, workers=workers)
    seen = np.zeros((chunks.units, tiling.blocks), int)
    for chunk in range(chunks.count):
        first, block = chunk % chunks.unit_chunks * chunks.units_of_chunk, chunk // chunks.unit_chunks * chunks.blocks_of_chunk
        part = seen[first : first + chunks.units_of_chunk, block : block + chunks.blocks_of_chunk]
        assert part.size
        part += 1
    assert chunks.units == lines * tiling.tiles
    assert (seen == 1).all()


@given(st.integers(1, 40), st.integers(1, 200), st.sampled_from([8, 16]))
def test_packed_columns_hold_all_weights_in_kernel_order(depth: int, outputs: int, width: int) -> None:
    weight = np.arange(depth * outputs, dtype=np.float32).reshape(depth, outputs) + 1
    tiling = choose_tiling(14, outputs, width)
    packed = pack_columns(weight, tiling)
    assert packed.ctypes.data % 64 == 0
    restored, begin = np.zeros_like(weight), 0
    for block in range(tiling.blocks):
        columns = (tiling.vectors if block < tiling.blocks - 1 else tiling.last_vectors) * width
        part = packed[begin : begin + depth * columns].reshape(depth, columns)
        begin += depth * columns
        first = block * tiling.vectors * width
        restored[:, first : first + columns] = part[:, : outputs - first]
        assert not part[:, outputs - first :].any()
    assert begin == packed.size
    np.testing.assert_array_equal(restored, weight)


def test_winograd_is_chosen_by_shape_alone() -> None:
    from hetero_core.kernels.windows import lay_windows

    windows = lay_windows((28, 28), (3, 3), auto_pad="NOTSET", pads=[1, 1, 1, 1], strides=None, dilations=None)
    assert choose_winograd(windows, channels=64, outputs=64, group=1, width=16) == 4
    assert choose_winograd(windows, channels=64, outputs=64, group=2, width=16) == 0
    assert choose_winograd(windows, channels=60, outputs=64, group=1, width=16) == 0
    halo = find_overhang(lay_windows((27, 26), (3, 3), pads=(1, 1, 1, 1)), 4)
    assert (halo.top, halo.left, halo.bottom, halo.right) == (1, 1, 2, 3)


AGAIN = """
import sys
import hetero_cpu.machine.compiler as compiler
compiler.find_width = lambda: 8
import pytest
options = ["-q", "-k", "formula or halos", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
sys.exit(pytest.main([sys.argv[1], *options]))
"""


@pytest.mark.skipif(find_width() <= 8, reason="the tests above run with vectors of AVX2 already")
def test_products_with_vectors_of_avx2_equal_the_formula(tmp_path: Path) -> None:
    """Runs the tests of this file as on a processor without AVX-512."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", AGAIN, __file__], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert "passed" in ended.stdout
