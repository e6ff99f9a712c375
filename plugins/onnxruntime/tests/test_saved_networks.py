"""Networks saved by ONNX Runtime with all optimizations: convolutions of blocked channels run on every device, as before saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from hetero_core import Core
from hetero_core.testing.reference_session import open_reference_session

DOMAIN = "com.microsoft.nchwc"
# Filters: three and many inputs, depthwise, groups, channels that do not fill a block; sums and activations of convolutions.
TEXT = """<ir_version: 8, opset_import: ["": %d]> g (float[N,3,H,W] x) => (float[N,A,B,32] y, float[N,C,1,1] p, float[N,20,D,E] r) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w0, b0)
    b = Relu (a)
    c = Conv <kernel_shape = [3,3], pads = [1,1,1,1], group = 32> (b, w1)
    d = MaxPool <kernel_shape = [2,2], strides = [2,2]> (c)
    e = Conv <kernel_shape = [1,1]> (d, w2)
    f = Add (e, d)
    h = Relu (f)
    i = Conv <kernel_shape = [3,3], pads = [1,1,1,1], group = 2> (h, w3)
    j = Concat <axis = 1> (i, h)
    k = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (j)
    l = Conv <kernel_shape = [1,1]> (k, w4)
    y = Transpose <perm = [0,2,3,1]> (l)
    p = GlobalAveragePool (l)
    r = Conv <kernel_shape = [2,2], dilations = [2,2]> (l, w5)
}"""
SHAPES = {
    "w0": (32, 3, 3, 3),
    "w1": (32, 1, 3, 3),
    "w2": (32, 32, 1, 1),
    "w3": (32, 16, 3, 3),
    "w4": (32, 64, 1, 1),
    "w5": (20, 32, 2, 2),
}
RESIZED = """<ir_version: 8, opset_import: ["": %d]> g (float[N,3,H,W] x) => (float[N,A,B,C] y) <float[0] e = {}, float[4] s = {1,1,2,2}> {
    a = Conv <kernel_shape = [3,3]> (x, w0, b0) b = Resize <%s> (a, e, s) y = Conv <kernel_shape = [1,1]> (b, w2) }"""
# Its channels lie last, so the network input is transposed and padded.
LAST = """<ir_version: 8, opset_import: ["": %d]> g (float[N,H,W,C] x) => (float[N,20,A,B] y, float[N,D,E,20] z) {
    a = Relu (x) b = Transpose <perm = [0,3,1,2]> (a) c = Conv <kernel_shape = [1,1]> (b, w6) y = Conv <kernel_shape = [2,2]> (c, w5)
    z = Transpose <perm = [0,2,3,1]> (y) }"""


def build(text: str) -> onnx.ModelProto:
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(4)
    arrays = {
        name: rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:])) for name, shape in {**SHAPES, "w6": (32, 20, 1, 1)}.items()
    }
    for name, array in {**arrays, "b0": rng.standard_normal(32)}.items():
        if any(name in node.input for node in model.graph.node):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


def save(model: onnx.ModelProto, path: Path) -> set[str]:
    """Saves ONNX Runtime's optimized model; returns its operators of blocked channels."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(path), 4
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return {node.op_type for node in onnx.load(path).graph.node if node.domain == DOMAIN}


def run_unoptimized(model: onnx.ModelProto, x: Any) -> Any:
    return open_reference_session(model.SerializeToString()).run(None, {"x": x})


def check(core: Core, model: onnx.ModelProto, path: Path, shapes: list[tuple[int, ...]]) -> None:
    for device in ("CPU", "TEMPLATE", "ORT", "HETERO:ORT,CPU"):
        loaded = core.load_network(core.read_network(path), device)
        for shape in shapes:
            x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
            for answer, expected in zip(loaded.infer({"x": x}).values(), run_unoptimized(model, x), strict=True):
                np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 17])
def test_saved_network_runs_as_before(core: Core, tmp_path: Path, opset: int) -> None:
    model = build(TEXT % opset)
    assert save(model, tmp_path / "saved.onnx") >= {"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "ReorderOutput"}
    check(core, model, tmp_path / "saved.onnx", [(1, 3, 10, 12), (2, 3, 8, 9)])


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize(
    "attributes",
    [
        'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
        'mode = "linear", coordinate_transformation_mode = "asymmetric"',
        'mode = "linear", coordinate_transformation_mode = "align_corners"',
        'mode = "linear", coordinate_transformation_mode = "half_pixel"',
    ],
)
def test_saved_network_that_resizes_runs_as_before(core: Core, tmp_path: Path, opset: int, attributes: str) -> None:
    model = build(RESIZED % (opset, attributes))
    assert "Upsample" in save(model, tmp_path / "saved.onnx")
    check(core, model, tmp_path / "saved.onnx", [(1, 3, 6, 5)])


def test_saved_network_with_channels_last_runs_as_before(core: Core, tmp_path: Path) -> None:
    model = build(LAST % 17)
    assert save(model, tmp_path / "saved.onnx") >= {"Conv", "ReorderInput", "ReorderOutput"}
    check(core, model, tmp_path / "saved.onnx", [(1, 6, 5, 20), (2, 4, 4, 20)])


def test_blocks_of_eight_are_told_by_an_odd_filter(core: Core) -> None:
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((1, 8, 5, 5)), rng.standard_normal((24, 8, 3, 3))
    blocked = w.reshape(3, 8, 1, 8, 3, 3).transpose(0, 2, 4, 5, 3, 1).reshape(w.shape)
    text = f"""<ir_version: 8, opset_import: ["": 17, "{DOMAIN}": 1]> g (float[1,8,5,5] x) => (float[1,20,3,3] y) {{
        a = {DOMAIN}.ReorderInput (x) b = {DOMAIN}.Conv <kernel_shape = [3,3], activation = "Relu"> (a, w)
        y = {DOMAIN}.ReorderOutput <channels = 20> (b) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(blocked.astype(np.float32), "w"))
    y = core.load_network(core.read_network(model), "CPU").infer({"x": x.astype(np.float32)})["y"]
    windows = sliding_window_view(x, (3, 3), axis=(2, 3))
    np.testing.assert_allclose(y, np.maximum(np.einsum("nchwij,ocij->nohw", windows, w), 0)[:, :20], rtol=1e-4, atol=1e-4)


def test_saved_convolution_with_hard_swish_runs_as_before(core: Core, tmp_path: Path) -> None:
    model = build("""<ir_version: 8, opset_import: ["": 17]> g (float[N,3,H,W] x) => (float[N,20,A,B] y) {
        a = Conv <kernel_shape = [3,3]> (x, w0, b0) b = HardSwish (a) y = Conv <kernel_shape = [2,2]> (b, w5) }""")
    save(model, tmp_path / "saved.onnx")
    saved = onnx.load(tmp_path / "saved.onnx")
    assert b"HardSwish" in {attribute.s for node in saved.graph.node for attribute in node.attribute}
    check(core, model, tmp_path / "saved.onnx", [(1, 3, 6, 5)])
