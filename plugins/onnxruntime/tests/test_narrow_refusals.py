"""ORT refuses only the engine's faults: zero points of ConvInteger, steps in the model's own opset, unread constants."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from hetero_core import Core, InputInfo


def convolve(x: np.ndarray, w: np.ndarray, x_point: int, w_point: int, pad: int) -> np.ndarray:
    """ConvInteger by its definition, in int64: a border of zero points, windows, products."""
    padded = np.pad(x.astype(np.int64) - x_point, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w.astype(np.int64) - w_point)


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("filter_point", ["int8 wz = {3}", "int8[1] wz = {3}"])
def test_padded_convolution_with_zero_points_runs(core: Core, pad: int, filter_point: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, (1, 2, 5, 5), dtype=np.uint8), rng.integers(-128, 128, (3, 2, 3, 3), dtype=np.int8)
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (uint8[1,2,5,5] x, int8[3,2,3,3] w, uint8 xz) => (y) <{filter_point}>
    {{ y = ConvInteger <pads = [{pad},{pad},{pad},{pad}]> (x, w, xz, wz) }}"""
    loaded = core.load_network(onnx.parser.parse_model(text), "ORT")
    y = loaded.infer({"x": x, "w": w, "xz": np.array(7, np.uint8)})["y"]
    np.testing.assert_array_equal(y, convolve(x, w, 7, 3, pad))


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 12, 13, 17])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_resize_before_a_model_of_an_older_opset_runs_with_it(core: Core, mode: str, opset: int) -> None:
    # Softmax changed in opset 13, so that a common opset has to be the model's own.
    text = (
        f'<ir_version: 7, opset_import: ["": {opset}]> g (float[N,3,8,8] x) => (float[N,3,8,8] y) {{ y = Softmax <axis = 3> (x) }}'
    )
    network = core.read_network(onnx.parser.parse_model(text)).with_inputs({"x": InputInfo(resize=mode, shape=(None, 3, 4, 4))})
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 4)).astype(np.float32)
    # The size doubles: each target pixel lies a quarter of a pixel from its source, towards the next source pixel.
    along = {"nearest": np.repeat(np.eye(4), 2, axis=0), "bilinear": np.zeros((8, 4))}[mode]
    for target in range(8 if mode == "bilinear" else 0):
        along[target, target // 2] += 0.75
        along[target, np.clip(target // 2 + (1 if target % 2 else -1), 0, 3)] += 0.25
    large = np.einsum("ti,sj,ncij->ncts", along, along, x.astype(np.float64))
    shares = np.exp(large) / np.exp(large).sum(axis=3, keepdims=True)
    y = core.load_network(network, "ORT").infer({"x": x})["y"]
    np.testing.assert_allclose(y, shares, rtol=1e-5)


def test_large_constant_that_nothing_reads_is_left_out(core: Core) -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "unread"))
    loaded = core.load_network(model, "ORT")
    assert loaded.infer({"x": np.array([1, -2], np.float32)})["y"].tolist() == [-1, 2]


def test_withdrawn_operator_runs_in_the_last_opset_that_has_it(core: Core) -> None:
    # Upsample-10 has the same text as Upsample-9, but ONNX deprecated it there.
    text = """<ir_version: 4, opset_import: ["": 9]> g (float[N,1,H,W] x) => (float[a,b,c,d] y) <float[4] s = {1, 1, 2, 2}>
    { y = Upsample <mode = "nearest"> (x, s) }"""
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    loaded = core.load_network(onnx.parser.parse_model(text), "ORT")
    np.testing.assert_array_equal(loaded.infer({"x": x})["y"], x.repeat(2, axis=2).repeat(2, axis=3))


ALIGNED = """<ir_version: 8, opset_import: ["": 13]> g (float[1,C,H,W] x) => (float[1,C,A,B] y) <float[4] s = {%s}>
{ y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, , s) }"""


@pytest.mark.parametrize("device", ["ORT", "CPU"])
def test_aligned_corners_with_whole_scales_run_for_open_sizes(core: Core, device: str) -> None:
    loaded = core.load_network(core.read_network(onnx.parser.parse_model(ALIGNED % "1,1,2,3")), device)
    for height, width in ((3, 4), (5, 2), (1, 6)):
        x = np.random.default_rng(height).standard_normal((1, 2, height, width)).astype(np.float32)
        columns = np.linspace(0, width - 1, 3 * width)
        wide = np.stack([[np.interp(columns, range(width), row) for row in image] for image in x[0].astype(np.float64)])
        rows = np.linspace(0, height - 1, 2 * height)
        expected = np.stack([[np.interp(rows, range(height), column) for column in image.T] for image in wide]).swapaxes(1, 2)
        np.testing.assert_allclose(loaded.infer({"x": x})["y"][0], expected, rtol=1e-5, atol=1e-6)


def test_aligned_corners_with_a_size_that_is_rounded_are_refused(core: Core) -> None:
    network = core.read_network(onnx.parser.parse_model(ALIGNED % "1,1,1.5,2"))
    assert "the rounded size" in core.query_network(network, "ORT").refused["Resize_0"]
    shaped = {height: network.with_inputs({"x": InputInfo(shape=(1, 2, height, 4))}) for height in (3, 4)}
    assert [height for height, each in shaped.items() if core.query_network(each, "ORT").refused] == [3]


def test_squeeze_in_a_body_with_axes_from_outside_runs(core: Core) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,1] x, bool b) => (float[M] y) <int64[1] axes = {1}> {
        y = If (b) <then_branch = t () => (float[P] s) { s = Squeeze (x, axes) },
                    else_branch = e () => (float[Q] r) { n = Neg (x) r = Squeeze (n, axes) }> }"""
    loaded = core.load_network(core.read_network(onnx.parser.parse_model(text)), "ORT")
    x = np.array([[1], [2], [3]], np.float32)
    assert loaded.infer({"x": x, "b": np.array(True)})["y"].tolist() == [1, 2, 3]
    assert loaded.infer({"x": x[:1], "b": np.array(False)})["y"].tolist() == [-1]


def test_squeeze_in_a_body_with_possibly_empty_axes_is_refused(core: Core) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,1] x, bool b, int64[K] axes) => (y) {
        y = If (b) <then_branch = t () => (s) { s = Squeeze (x, axes) }, else_branch = e () => (r) { r = Neg (x) }> }"""
    refused = core.query_network(core.read_network(onnx.parser.parse_model(text)), "ORT").refused
    assert "(Squeeze): the engine takes an empty list of axes" in refused["If_0"]


def test_part_of_unread_constants_is_loaded(core: Core) -> None:
    graph = "g (float[2] x) => (float[2] y) <float[2] w = {1, -2}> { [a] y = Neg (x) [b] r = Relu (w) }"
    text = f'<ir_version: 8, opset_import: ["": 17]> {graph}'
    network = core.read_network(onnx.parser.parse_model(text)).with_affinity({"a": "CPU", "b": "ORT"})
    loaded = core.load_network(network, "HETERO:ORT,CPU")
    assert loaded.infer({"x": np.array([1, -3], np.float32)})["y"].tolist() == [-1, 3]
