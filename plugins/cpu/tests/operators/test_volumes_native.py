"""Machine code for volumes, (batch, channels, depth, height, width), against formulas in float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper
import pytest

from hetero_core import Core

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu.machine.compiler import find_width

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

Array = np.ndarray[Any, Any]


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def build(nodes: list[Any], shape: tuple[Any, ...], constants: dict[str, Array] | None = None) -> Any:
    graph = oh.make_graph(
        nodes,
        "volumes",
        [oh.make_tensor_value_info("x", 1, shape)],
        [oh.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)


def check(model: Any, x: Array, expected: Array, *, threads: int = 1, steps: int = 1, tolerance: float = 3e-6) -> None:
    """Runs a model twice, all of it in `steps` steps of machine code, and compares the result."""
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": threads})
        for _ in range(2):
            (output,) = loaded.infer({"x": x}).values()
            assert output.shape == expected.shape
            assert np.abs(output - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-30)
        assert loaded.get_metric("CPU_NATIVE_STEPS") == steps


def find_pads(size: int, kernel: int, stride: int, dilation: int, mode: str) -> tuple[int, int]:
    """Returns the pads of ONNX's SAME_UPPER and SAME_LOWER."""
    total = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return (total // 2, total - total // 2) if mode == "SAME_UPPER" else (total - total // 2, total // 2)


def list_taps(x: Array, kernel: Any, attributes: dict[str, Any], fill: float) -> Any:
    """Yields each position of the kernel with the elements under it, (batch, channels, *outputs)."""
    strides, dilations = (attributes.get(name, [1] * 3) for name in ("strides", "dilations"))
    pads, mode = attributes.get("pads", [0] * 6), attributes.get("auto_pad", "NOTSET")
    ends = list(zip(pads[:3], pads[3:], strict=True))
    if mode.startswith("SAME"):
        ends = [find_pads(*sizes, mode) for sizes in zip(x.shape[2:], kernel, strides, dilations, strict=True)]
    counts = []
    for axis in range(3):
        room = x.shape[2 + axis] + sum(ends[axis]) - (kernel[axis] - 1) * dilations[axis] - 1
        counts.append((-(-room // strides[axis]) if attributes.get("ceil_mode") else room // strides[axis]) + 1)
        # A last window may hang over.
        ends[axis] = (ends[axis][0], ends[axis][1] + strides[axis])
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *ends), constant_values=fill)
    for taps in np.ndindex(*kernel):
        begins = [tap * dilation for tap, dilation in zip(taps, dilations, strict=True)]
        cut = (slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(begins, counts, strides, strict=True))
        yield taps, padded[:, :, *cut]


def convolve(x: Array, w: Array, b: Array, attributes: dict[str, Any]) -> Array:
    group = attributes.get("group", 1)
    filters = w.astype(np.float64).reshape(group, -1, *w.shape[1:])
    total: Any = 0.0
    for taps, part in list_taps(x, w.shape[2:], attributes, 0.0):
        split = part.reshape(len(x), group, -1, *part.shape[2:])
        total = total + np.einsum("ngcdhw,goc->ngodhw", split, filters[..., *taps])
    return total.reshape(len(x), len(w), *total.shape[3:]) + b.reshape(1, -1, 1, 1, 1)


CONVOLUTIONS = {
    "plain": ((2, 3, 5, 9, 8), (16, 3, 3, 3, 3), {"pads": [1] * 6}),
    "many taps outside": ((1, 5, 2, 4, 5), (7, 5, 3, 3, 3), {"pads": [2] * 6}),
    "no taps inside": ((1, 5, 1, 4, 5), (7, 5, 2, 1, 1), {"pads": [2, 0, 0, 2, 0, 0]}),
    "depth of one": ((2, 16, 1, 8, 7), (96, 16, 3, 3, 3), {"pads": [1] * 6}),
    "a narrower last block": ((1, 8, 4, 5, 5), (81, 8, 3, 3, 3), {"pads": [1] * 6}),
    "single elements": ((2, 5, 4, 6, 7), (7, 5, 1, 1, 1), {}),
    "a single pixel": ((1, 4, 1, 1, 1), (6, 4, 1, 1, 1), {}),
    "planes alone": ((2, 16, 4, 26, 27), (32, 16, 1, 3, 3), {"pads": [0, 1, 1, 0, 1, 1]}),
    "depth alone": ((2, 16, 6, 6, 7), (32, 16, 3, 1, 1), {"pads": [1, 0, 0, 1, 0, 0]}),
    "uneven pads and strides": ((2, 16, 7, 9, 8), (40, 16, 3, 2, 3), {"pads": [0, 1, 2, 1, 0, 1], "strides": [2, 1, 2]}),
    "dilations": ((1, 17, 6, 7, 9), (9, 17, 3, 3, 2), {"pads": [2] * 6, "dilations": [2, 1, 3]}),
    "SAME_UPPER": ((1, 4, 9, 8, 9), (20, 4, 5, 2, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}),
    "SAME_LOWER": ((1, 4, 9, 8, 9), (20, 4, 4, 2, 3), {"auto_pad": "SAME_LOWER", "strides": [1, 2, 2]}),
    "groups": ((2, 12, 4, 6, 7), (20, 3, 3, 3, 3), {"pads": [1] * 6, "group": 4}),
    "depthwise": ((2, 19, 5, 6, 7), (19, 1, 3, 3, 3), {"pads": [1] * 6, "group": 19}),
    "depthwise with strides": ((1, 32, 6, 8, 7), (32, 1, 3, 3, 3), {"pads": [1, 0, 1] * 2, "strides": [2] * 3, "group": 32}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_of_volumes_equals_the_formula(case: str) -> None:
    """An input lies in C order; the second convolution reads the first's result, which lies channels last."""
    shape, sizes, attributes = CONVOLUTIONS[case]
    x, w, b = draw(1, *shape), draw(2, *sizes), draw(3, sizes[0])
    own = shape[1]
    first, bias = draw(4, own, own, 1, 1, 1), draw(5, own)
    middle = convolve(x, first, bias, {})
    expected = convolve(middle, w, b, attributes)
    nodes = [
        oh.make_node("Conv", ["x", "first", "bias"], ["m"]),
        oh.make_node("Conv", ["m", "w", "b"], ["c"], **attributes),
        oh.make_node("Relu", ["c"], ["y"]),
    ]
    both = build(nodes, shape, {"first": first, "bias": bias, "w": w, "b": b})
    check(both, x, np.maximum(expected, 0), threads=2, steps=2, tolerance=1e-5)
    alone = build([oh.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)], shape, {"w": w, "b": b})
    check(alone, x, convolve(x, w, b, attributes), tolerance=1e-5)


@pytest.mark.parametrize(("group", "batch"), [(1, 1), (1, 2), (24, 2)])
def test_computed_addend_and_activation_follow_all_taps(group: int, batch: int) -> None:
    x, w, b = draw(1, batch, 24, 4, 6, 7), draw(2, 24, 24 // group, 3, 3, 3), draw(3, 24)
    attributes = {"pads": [1] * 6, "group": group}
    nodes = [
        oh.make_node("Conv", ["x", "v", "b"], ["a"]),
        oh.make_node("Conv", ["a", "w", "b"], ["c"], **attributes),
        oh.make_node("Add", ["c", "a"], ["s"]),
        oh.make_node("LeakyRelu", ["s"], ["y"], alpha=0.25),
    ]
    v = draw(4, 24, 24, 1, 1, 1)
    a = convolve(x, v, b, {})
    total = convolve(a, w, b, attributes) + a
    expected = np.where(total < 0, total * 0.25, total)
    check(build(nodes, x.shape, {"v": v, "w": w, "b": b}), x, expected, steps=2, tolerance=1e-5)


POOLINGS = [
    {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]},
    {"kernel_shape": [1, 2, 3], "strides": [1, 2, 2]},
    {"kernel_shape": [3, 1, 1], "pads": [1, 0, 0, 0, 0, 0]},
    {"kernel_shape": [3, 3, 3], "strides": [2, 1, 2], "pads": [1, 0, 1, 1, 1, 0]},
    {"kernel_shape": [2, 3, 2], "strides": [2, 2, 2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2], "ceil_mode": 1},
]


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "counting"])
@pytest.mark.parametrize("attributes", POOLINGS)
def test_pooling_of_volumes_equals_the_formula(operator: str, attributes: dict[str, Any]) -> None:
    counts = operator == "counting"
    if counts and {"auto_pad", "ceil_mode"} & attributes.keys():
        pytest.skip("what counts as a pad is another question there")
    x, w, b = draw(1, 2, 19, 5, 7, 8), draw(2, 19, 19, 1, 1, 1), draw(3, 19)
    middle = convolve(x, w, b, {})
    more = {"count_include_pad": 1} if counts else {}
    nodes = [
        oh.make_node("Conv", ["x", "w", "b"], ["m"]),
        oh.make_node("MaxPool" if operator == "MaxPool" else "AveragePool", ["m"], ["y"], **attributes, **more),
    ]
    kernel = attributes["kernel_shape"]
    if operator == "MaxPool":
        expected = np.max([part for _, part in list_taps(middle, kernel, attributes, -np.inf)], axis=0)
    else:
        total = sum(part for _, part in list_taps(middle, kernel, attributes, 0.0))
        ones = np.ones_like(middle)
        expected = total / (np.prod(kernel) if counts else sum(part for _, part in list_taps(ones, kernel, attributes, 0.0)))
    check(build(nodes, x.shape, {"w": w, "b": b}), x, expected, steps=2)


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "AveragePool"])
def test_reduction_of_all_pixels_equals_the_formula(operator: str) -> None:
    x, w, b = draw(1, 2, 19, 3, 5, 4), draw(2, 19, 19, 1, 1, 1), draw(3, 19)
    inputs = ["m", "axes"] if operator == "ReduceMean" else ["m"]
    more = {"kernel_shape": [3, 5, 4]} if operator == "AveragePool" else {}
    nodes = [oh.make_node("Conv", ["x", "w", "b"], ["m"]), oh.make_node(operator, inputs, ["y"], **more)]
    middle = convolve(x, w, b, {})
    expected = (np.max if operator == "GlobalMaxPool" else np.mean)(middle, axis=(2, 3, 4), keepdims=True)
    check(build(nodes, x.shape, {"w": w, "b": b, "axes": np.array([2, 3, -1])}), x, expected, steps=2, tolerance=1e-5)


def resample(size: int, count: int, mode: str) -> Array:
    """Returns the matrix (count, size) of an axis: ONNX's half_pixel for linear, asymmetric and floor for nearest."""
    matrix = np.zeros((count, size))
    for index in range(count):
        if mode == "nearest":
            matrix[index, index * size // count] = 1
            continue
        place = min(max((index + 0.5) * size / count - 0.5, 0.0), size - 1.0)
        low = min(int(place), size - 1)
        matrix[index, low] += 1 - (place - low)
        matrix[index, min(low + 1, size - 1)] += place - low
    return matrix


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("channels", [19, 70])
@pytest.mark.parametrize("sizes", [(3, 5, 4), (5, 7)])
def test_instance_normalization_channels_last_equals_the_formula(sizes: tuple[int, ...], channels: int, threads: int) -> None:
    """Of images and of volumes; a mean that is large beside the deviations costs no digits."""
    ones = (1,) * len(sizes)
    x, w, b = draw(1, 2, channels, *sizes), draw(2, channels, channels, *ones), draw(3, channels) * 30
    scale, shift = draw(4, channels), draw(5, channels)
    nodes = [
        oh.make_node("Conv", ["x", "w", "b"], ["m"]),
        oh.make_node("InstanceNormalization", ["m", "scale", "shift"], ["y"], epsilon=0.01),
    ]
    axes = tuple(range(2, 2 + len(sizes)))
    middle = np.einsum("nc...,oc->no...", x.astype(np.float64), w.reshape(channels, channels)) + b.reshape(-1, *ones)
    deviation = np.sqrt(middle.var(axis=axes, keepdims=True) + 0.01)
    expected = (middle - middle.mean(axis=axes, keepdims=True)) / deviation * scale.reshape(-1, *ones) + shift.reshape(-1, *ones)
    model = build(nodes, x.shape, {"w": w, "b": b, "scale": scale, "shift": shift})
    check(model, x, expected, threads=threads, steps=2, tolerance=2e-5)


@pytest.mark.parametrize("factors", [(2, 2, 2), (1, 2, 4), (4, 1, 1)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resized_volume_equals_the_formula(mode: str, factors: tuple[int, ...]) -> None:
    x, w, b = draw(1, 2, 19, 3, 5, 4), draw(2, 19, 19, 1, 1, 1), draw(3, 19)
    more = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} if mode == "nearest" else {}
    nodes = [
        oh.make_node("Conv", ["x", "w", "b"], ["m"]),
        oh.make_node("Resize", ["m", "", "scales"], ["y"], mode=mode, **more),
    ]
    matrices = [resample(size, size * factor, mode) for size, factor in zip(x.shape[2:], factors, strict=True)]
    expected = np.einsum("ncdhw,id,jh,kw->ncijk", convolve(x, w, b, {}), *matrices)
    scales = np.array([1, 1, *factors], np.float32)
    check(build(nodes, x.shape, {"w": w, "b": b, "scales": scales}), x, expected, steps=2, tolerance=1e-5)


@pytest.mark.parametrize(("kernel", "outputs"), [((2, 2, 2), 16), ((1, 2, 3), 21), ((3, 1, 1), 5)])
def test_transposed_convolution_with_adjacent_windows_equals_the_formula(kernel: tuple[int, ...], outputs: int) -> None:
    x, first, bias = draw(1, 2, 19, 3, 5, 4), draw(2, 19, 19, 1, 1, 1), draw(3, 19)
    w, b = draw(4, 19, outputs, *kernel), draw(5, outputs)
    nodes = [
        oh.make_node("Conv", ["x", "first", "bias"], ["m"]),
        oh.make_node("ConvTranspose", ["m", "w", "b"], ["y"], strides=kernel),
    ]
    windows = np.einsum("ncdhw,coijk->nodihjwk", convolve(x, first, bias, {}), w)
    sizes = [size * stride for size, stride in zip(x.shape[2:], kernel, strict=True)]
    expected = windows.reshape(2, outputs, *sizes) + b.reshape(1, -1, 1, 1, 1)
    check(build(nodes, x.shape, {"first": first, "bias": bias, "w": w, "b": b}), x, expected, steps=2, tolerance=1e-5)


def test_joined_volumes_lie_where_they_are_made() -> None:
    """Both parts of a concatenation are written into it, and what reads it finds the pixels of each farther apart."""
    x, w, v, b = draw(1, 2, 16, 4, 6, 6), draw(2, 16, 16, 3, 3, 3), draw(3, 8, 32, 3, 3, 3), draw(4, 16)
    nodes = [
        oh.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1] * 6),
        oh.make_node("MaxPool", ["a"], ["p"], kernel_shape=[3] * 3, pads=[1] * 6),
        oh.make_node("Concat", ["a", "p"], ["j"], axis=1),
        oh.make_node("Conv", ["j", "v"], ["y"], pads=[1] * 6),
    ]
    pads = {"pads": [1] * 6}
    a = convolve(x, w, b, pads)
    pooled = np.max([part for _, part in list_taps(a, (3, 3, 3), pads, -np.inf)], axis=0)
    expected = convolve(np.concatenate([a, pooled], axis=1), v, np.zeros(8), pads)
    check(build(nodes, x.shape, {"w": w, "v": v, "b": b}), x, expected, steps=3, tolerance=1e-5)


@pytest.mark.parametrize("opened", list(product([False, True], repeat=4))[1:])
def test_open_sizes_of_volumes_equal_the_formula(opened: tuple[bool, ...]) -> None:
    w, b, v = draw(2, 16, 3, 3, 3, 3), draw(3, 16), draw(4, 16, 4, 2, 2, 2)
    attributes = {"pads": [1] * 6}
    nodes = [
        oh.make_node("Conv", ["x", "w", "b"], ["c"], **attributes),
        oh.make_node("Relu", ["c"], ["r"]),
        oh.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2] * 3, strides=[2] * 3),
        oh.make_node("ConvTranspose", ["p", "v"], ["y"], strides=[2] * 3),
    ]
    names = ("batch", "depth", "height", "width")
    base = (2, 4, 6, 6)
    batch, *sizes = (name if is_open else size for name, size, is_open in zip(names, base, opened, strict=True))
    with Core() as core:
        loaded = core.load_network(build(nodes, (batch, 3, *sizes), {"w": w, "b": b, "v": v}), "CPU", {"CPU_KERNELS": "JIT"})
        for shape in (base, (1, 2, 8, 10), (3, 6, 2, 4), base):
            batch, *sizes = (other if is_open else size for other, size, is_open in zip(shape, base, opened, strict=True))
            x = draw(1, batch, 3, *sizes)
            relu = np.maximum(convolve(x, w, b, attributes), 0)
            pooled = np.max([part for _, part in list_taps(relu, (2, 2, 2), {"strides": [2] * 3}, -np.inf)], axis=0)
            expected = np.einsum("ncdhw,coijk->nodihjwk", pooled, v).reshape(batch, 4, *sizes)
            (output,) = loaded.infer({"x": x}).values()
            assert np.abs(output - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", [case for case in CONVOLUTIONS if "auto_pad" not in CONVOLUTIONS[case][2]])
def test_convolution_of_bytes_equals_exact_integers(case: str, threads: int) -> None:
    """Pads are zero points, and a run of planes subtracts the sums of the weights that it has read alone."""
    shape, sizes, attributes = CONVOLUTIONS[case]
    generator = np.random.default_rng(7)
    x, w = generator.integers(0, 256, shape).astype(np.uint8), generator.integers(-128, 128, sizes).astype(np.int8)
    zero = np.array(93, np.uint8)
    nodes = [
        oh.make_node("ConvInteger", ["x", "w", "zero"], ["c"], **attributes),
        oh.make_node("Cast", ["c"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    model = build(nodes, shape, {"w": w, "zero": zero})
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    expected = convolve((x.astype(np.float64) - 93), w, np.zeros(len(w)), attributes)
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": threads})
        for _ in range(2):
            (output,) = loaded.infer({"x": x}).values()
            np.testing.assert_array_equal(output, expected)


def test_class_of_each_pixel_of_a_volume() -> None:
    x, w = np.round(draw(1, 1, 3, 2, 4, 5) * 8), np.round(draw(2, 7, 3, 3, 3, 3) * 8)
    nodes = [oh.make_node("Conv", ["x", "w"], ["m"], pads=[1] * 6), oh.make_node("ArgMax", ["m"], ["y"], axis=1, keepdims=0)]
    model = build(nodes, x.shape, {"w": w})
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    check(model, x, convolve(x, w, np.zeros(7), {"pads": [1] * 6}).argmax(1), steps=2, tolerance=0)
