"""Older versions of operators against ONNX Runtime, an independent engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network
from hetero_core.testing.compare import assert_same

Arrays = tuple[np.ndarray[Any, Any], ...]


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def parse(opset: int, text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


def run_kernels(opset: int, text: str, *inputs: np.ndarray[Any, Any]) -> Arrays:
    return compile_program(read_network(parse(opset, text))).run(inputs)


def run_onnxruntime(opset: int, text: str, *inputs: np.ndarray[Any, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(parse(opset, text).SerializeToString(), providers=["CPUExecutionProvider"])
    names = [spec.name for spec in session.get_inputs()]
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


X = draw(2, 3, 7, 7)
VECTORS = tuple(draw(3, seed=seed) for seed in range(1, 4))
BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11], [0, 10.2, 1, 11.2]]], np.float32)
SCORES = np.array([[[0.9, 0.75, 0.6, 0.95]]], np.float32)
ROIS = np.array([[0, 0, 4, 4], [1, 2, 5.5, 6]], np.float32)

# Name, opset, model, inputs: run by both.
AGAINST_ONNXRUNTIME: list[tuple[str, int, str, Arrays]] = [
    ("softmax_flattens_from_axis_2", 11, "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 2>(x) }", (draw(2, 3, 4),)),
    ("hardmax_flattens", 11, "g (float[2,3,4] x) => (float[2,3,4] y) { y = Hardmax(x) }", (draw(2, 3, 4),)),
    (
        "lrn_more_channels_than_batch",
        9,
        "g (float[2,9,3,3] x) => (y) { y = LRN<size = 5, alpha = 0.5, bias = 2.0>(x) }",
        (draw(2, 9, 3, 3),),
    ),
    ("clip_attributes", 6, "g (float[5] x) => (float[5] y) { y = Clip<min = -0.5, max = 0.25>(x) }", (draw(5),)),
    (
        "clip_low_above_high",
        12,
        "g (float[5] x, float a, float b) => (float[5] y) { y = Clip(x, a, b) }",
        (draw(5), np.array(2, np.float32), np.array(1, np.float32)),
    ),
    (
        "slice_attributes",
        9,
        "g (float[5,6] x) => (y) { y = Slice<axes = [1, 0], starts = [-4, 1], ends = [1000, -1]>(x) }",
        (draw(5, 6),),
    ),
    (
        "resize_10_linear",
        10,
        'g (float[1,1,3,3] x) => (y) <float[4] s = {1.0, 1.0, 1.7, 2.4}> { y = Resize<mode = "linear">(x, s) }',
        (draw(1, 1, 3, 3),),
    ),
    (
        "resize_10_nearest",
        10,
        "g (float[1,1,4,4] x) => (y) <float[4] s = {1.0, 1.0, 0.6, 2.3}> { y = Resize(x, s) }",
        (draw(1, 1, 4, 4),),
    ),
    (
        "upsample_9",
        9,
        'g (float[1,1,3,3] x) => (y) <float[4] s = {1.0, 1.0, 2.0, 3.0}> { y = Upsample<mode = "linear">(x, s) }',
        (draw(1, 1, 3, 3),),
    ),
    ("upsample_7", 7, "g (float[1,1,3,3] x) => (y) { y = Upsample<scales = [1.0, 1.0, 2.0, 2.0]>(x) }", (draw(1, 1, 3, 3),)),
    ("pad_2_reflect", 10, 'g (float[3,4] x) => (y) { y = Pad<mode = "reflect", pads = [1, 2, 0, 3]>(x) }', (draw(3, 4),)),
    ("pad_2_negative", 10, "g (float[3,4] x) => (y) { y = Pad<pads = [-1, 2, 1, -1], value = 7.0>(x) }", (draw(3, 4),)),
    ("top_k_10", 10, "g (float[3,6] x) => (v, i) <int64[1] k = {4}> { v, i = TopK<axis = 1>(x, k) }", (draw(3, 6),)),
    ("squeeze_attribute", 11, "g (float[1,3,1] x) => (y) { y = Squeeze<axes = [-1]>(x) }", (draw(1, 3, 1),)),
    ("unsqueeze_attribute", 11, "g (float[3] x) => (y) { y = Unsqueeze<axes = [0, -1]>(x) }", (draw(3),)),
    ("reduce_sum_attribute", 11, "g (float[2,3,4] x) => (y) { y = ReduceSum<axes = [-1, 0], keepdims = 0>(x) }", (draw(2, 3, 4),)),
    ("split_attribute", 11, "g (float[6,2] x) => (a, b) { a, b = Split<split = [2, 4]>(x) }", (draw(6, 2),)),
    (
        "gemm_7",
        7,
        "g (float[4,3] a, float[4,5] b, float[5] c) => (y) { y = Gemm<alpha = 0.5, beta = 2.0, transA = 1>(a, b, c) }",
        (draw(4, 3), draw(4, 5), draw(5)),
    ),
    (
        "batch_normalization_9",
        9,
        "g (float[2,3,7,7] x, float[3] s, float[3] b, float[3] m) => (y) <float[3] v = {0.5, 1.0, 2.0}> "
        "{ y = BatchNormalization(x, s, b, m, v) }",
        (X, *VECTORS),
    ),
    (
        "batch_normalization_7",
        7,
        "g (float[2,3,7,7] x, float[3] s, float[3] b, float[3] m) => (y) <float[3] v = {0.5, 1.0, 2.0}> "
        "{ y = BatchNormalization<epsilon = 0.01>(x, s, b, m, v) }",
        (X, *VECTORS),
    ),
    ("dropout_7", 7, "g (float[4] x) => (float[4] y) { y = Dropout<ratio = 0.9>(x) }", (draw(4),)),
    (
        "max_pool_column_major",
        11,
        "g (float[2,3,7,7] x) => (y, i) { y, i = MaxPool<kernel_shape = [2, 2], storage_order = 1>(x) }",
        (X,),
    ),
    (
        "max_roi_pool",
        9,
        "g (float[1,2,7,7] x, float[2,5] r) => (y) { y = MaxRoiPool<pooled_shape = [2, 3], spatial_scale = 0.9>(x, r) }",
        (draw(1, 2, 7, 7), np.concatenate([np.zeros((2, 1), np.float32), ROIS], axis=1)),
    ),
    (
        "roi_align_10",
        10,
        "g (float[1,2,7,7] x, float[2,4] r) => (y) <int64[2] b = {0, 0}> { y = RoiAlign<output_height = 2, "
        "output_width = 3, spatial_scale = 0.8>(x, r, b) }",
        (draw(1, 2, 7, 7), ROIS),
    ),
    (
        "grid_sample_16_reflection",
        16,
        'g (float[1,2,5,6] x, float[1,3,4,2] g) => (y) { y = GridSample<mode = "bicubic", padding_mode = "reflection">(x, g) }',
        (draw(1, 2, 5, 6), draw(1, 3, 4, 2, seed=3)),
    ),
    (
        "one_hot_9",
        9,
        "g (int64[4] i) => (y) <int64 d = {3}, float[2] v = {-1.0, 5.0}> { y = OneHot<axis = 0>(i, d, v) }",
        (np.array([0, -1, 2, 7]),),
    ),
    (
        "scatter_9",
        9,
        "g (float[3,3] x, int64[2,3] i, float[2,3] u) => (y) { y = Scatter(x, i, u) }",
        (draw(3, 3), np.array([[1, 0, 2], [0, 2, 1]]), draw(2, 3)),
    ),
    (
        "qlinear_conv",
        10,
        "g (uint8[1,2,5,5] x, int8[3,2,3,3] w, int32[3] b) => (y) <float xs = {0.03}, uint8 xz = {120}, float[3] ws = "
        "{0.01, 0.02, 0.03}, int8[3] wz = {0, 0, 0}, float ys = {0.05}, uint8 yz = {100}> { y = QLinearConv<pads = [1, 1, 1, 1]>"
        "(x, xs, xz, w, ws, wz, ys, yz, b) }",
        (
            np.arange(50, dtype=np.uint8).reshape(1, 2, 5, 5) * 5,
            (np.arange(54) % 7 - 3).astype(np.int8).reshape(3, 2, 3, 3) * 20,
            np.array([5, -300, 900], np.int32),
        ),
    ),
]


@pytest.mark.parametrize(
    ("opset", "text", "inputs"), [case[1:] for case in AGAINST_ONNXRUNTIME], ids=[case[0] for case in AGAINST_ONNXRUNTIME]
)
def test_old_version_agrees_with_onnxruntime(opset: int, text: str, inputs: Arrays) -> None:
    expected = run_onnxruntime(opset, text, *inputs)
    for found, wanted in zip(run_kernels(opset, text, *inputs), expected, strict=True):
        assert_same(found, wanted)
