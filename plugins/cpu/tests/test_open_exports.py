"""Open sizes as exporters write them: a single plan serves all sizes, and answers equal ONNX Runtime's without optimizations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hetero_tests.open_models import Builder
from onnx import TensorProto

from hetero_core import Core
from hetero_core.testing.reference_session import open_reference_session

pytest.importorskip("onnxruntime")
pytest.importorskip("llvmlite")

Feeds = Mapping[str, Any]
WIDTH, HEADS, DEPTH = 32, 2, 16
LAST = 1 << 62
ROWS = (TensorProto.FLOAT, ["batch", "length", WIDTH])
IMAGE = (TensorProto.FLOAT, ["batch", 3, "height", "width"])


def _normals(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def _draw_rows() -> list[Feeds]:
    return [{"x": _normals(batch, length, WIDTH)} for batch, length in ((3, 11), (2, 33), (5, 16), (7, 30), (2, 64), (4, 101))]


def _draw_images() -> list[Feeds]:
    return [{"x": _normals(2, 3, *sides)} for sides in ((41, 60), (64, 96), (97, 51), (33, 128))]


def _make_computed_pads() -> tuple[onnx.ModelProto, list[Feeds]]:
    """torch's `F.pad` with computed sizes: pairs from the last axis to the first, reversed by a slice with a negative step."""
    b = Builder()
    x = b.add("Conv", "x", b.weight(16, 3, 3, 3), pads=[1] * 4)
    small = b.add("ConvTranspose", b.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), b.weight(16, 16, 2, 2), strides=[2, 2])
    pairs = []
    for axis in (3, 2):
        missing = b.add("Sub", *(b.add("Gather", b.add("Shape", value), b.constant(axis)) for value in (x, small)))
        half = b.add("Cast", b.add("Cast", b.add("Div", missing, b.constant(2)), to=TensorProto.INT64), to=TensorProto.INT64)
        pairs += [half, b.add("Sub", missing, half)]
    pads_of_sides = b.add("Concat", *(b.add("Unsqueeze", size, b.constant([0])) for size in pairs), axis=0)
    count = b.add("Sub", b.constant([8]), b.constant([4]))
    zeros = b.add("ConstantOfShape", count, value=onnx.numpy_helper.from_array(np.zeros(1, np.int64)))
    stacked = b.add("Reshape", b.add("Concat", pads_of_sides, zeros, axis=0), b.constant([-1, 2]))
    turned = b.add("Slice", stacked, b.constant([-1]), b.constant([-LAST]), b.constant([0]), b.constant([-1]))
    pads = b.add("Reshape", b.add("Transpose", turned, perm=[1, 0]), b.constant([-1]))
    b.add("Relu", b.add("Concat", b.add("Pad", small, pads, mode="constant"), x, axis=1), name="y")
    return b.finish({"x": IMAGE}, {"y": ["batch", 32, "height", "width"]}), _draw_images()


def _make_shuffled_pixels() -> tuple[onnx.ModelProto, list[Feeds]]:
    b = Builder()
    x = b.add("Conv", "x", b.weight(16, 3, 3, 3), pads=[1] * 4)
    shuffled = b.add("DepthToSpace", x, blocksize=2, mode="CRD")
    b.add("Conv", shuffled, b.weight(8, 4, 3, 3), pads=[1] * 4, name="y")
    return b.finish({"x": IMAGE}, {"y": ["batch", 8, None, None]}), _draw_images()


def _make_turned_rows() -> tuple[onnx.ModelProto, list[Feeds]]:
    """Length before batch, the order inside torch's transformer layers."""
    b = Builder()
    turned = b.add("Transpose", "x", perm=[1, 0, 2])
    inner = b.add("Relu", b.add("Add", b.add("MatMul", turned, b.weight(WIDTH, 48)), b.weight(48)))
    back = b.add("Transpose", b.add("MatMul", inner, b.weight(48, WIDTH)), perm=[1, 0, 2])
    b.add("Add", "x", back, name="y")
    return b.finish({"x": ROWS}, {"y": ["batch", "length", WIDTH]}), _draw_rows()


def _make_expanded() -> tuple[onnx.ModelProto, list[Feeds]]:
    """torch's `expand` with -1 for a size that stays."""
    b = Builder()
    target = b.add("Concat", b.size("x", 0), b.size("x", 1), b.constant([-1]), axis=0)
    ones = b.add("ConstantOfShape", b.add("Shape", target), value=onnx.numpy_helper.from_array(np.ones(1, np.int64), "ones"))
    hidden = b.add("Equal", target, b.add("Mul", ones, b.constant(-1)))
    spread = b.add("Expand", b.weight(1, 1, WIDTH), b.add("Where", hidden, ones, target))
    b.add("Mul", b.add("Add", "x", spread), "x", name="y")
    return b.finish({"x": ROWS}, {"y": ["batch", "length", WIDTH]}), _draw_rows()


def _attend(b: Builder, hide: Callable[[str], str]) -> None:
    batch, length = b.size("x", 0), b.size("x", 1)
    parts = [b.reshape(b.add("MatMul", "x", b.weight(WIDTH, WIDTH)), batch, length, HEADS, DEPTH) for _ in range(3)]
    query, key, value = (b.add("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
    scores = b.add("MatMul", query, b.add("Transpose", key, perm=[0, 1, 3, 2]))
    weights = b.add("Softmax", hide(b.add("Div", scores, b.constant(4.0, np.float32))), axis=-1)
    b.add("Transpose", b.add("MatMul", weights, value), perm=[0, 2, 1, 3], name="y")


def _draw_masked(dtype: type) -> list[Feeds]:
    """Masks that hide the last third of the keys: -inf in float masks, 0 in integer masks."""
    drawn = []
    for feeds in _draw_rows():
        batch, length, _ = feeds["x"].shape
        mask = np.zeros((batch, length), dtype) if dtype is np.float32 else np.ones((batch, length), dtype)
        mask[:, length - length // 3 :] = -np.inf if dtype is np.float32 else 0
        drawn.append({**feeds, "mask": mask})
    return drawn


def _make_chosen_mask() -> tuple[onnx.ModelProto, list[Feeds]]:
    """torch's `masked_fill`: a constant replaces the hidden scores."""
    b = Builder()
    hidden = b.add("Equal", b.add("Unsqueeze", "mask", b.constant([1, 2])), b.constant(0))
    _attend(b, lambda scores: b.add("Where", hidden, b.constant(-1e9, np.float32), scores))
    inputs = {"x": ROWS, "mask": (TensorProto.INT64, ["batch", "length"])}
    return b.finish(inputs, {"y": ["batch", "length", HEADS, DEPTH]}), _draw_masked(np.int64)


def _make_infinite_mask() -> tuple[onnx.ModelProto, list[Feeds]]:
    b = Builder()
    _attend(b, lambda scores: b.add("Add", scores, b.add("Unsqueeze", "mask", b.constant([1, 2]))))
    inputs = {"x": ROWS, "mask": (TensorProto.FLOAT, ["batch", "length"])}
    return b.finish(inputs, {"y": ["batch", "length", HEADS, DEPTH]}), _draw_masked(np.float32)


def _make_filled_mask() -> tuple[onnx.ModelProto, list[Feeds]]:
    """Zeros of a computed shape, filled at each key that comes after its query."""
    b = Builder()

    def hide(scores: str) -> str:
        length = b.size("x", 1)
        zeros = b.add("ConstantOfShape", b.add("Concat", length, length, axis=0))
        places = b.add("Range", b.constant(0), b.add("Squeeze", length, b.constant([0])), b.constant(1))
        later = b.add("Greater", places, b.add("Unsqueeze", places, b.constant([1])))
        return b.add("Add", scores, b.add("Where", later, b.constant(-1e9, np.float32), zeros))

    _attend(b, hide)
    return b.finish({"x": ROWS}, {"y": ["batch", "length", HEADS, DEPTH]}), _draw_rows()


def _make_recurrent() -> tuple[onnx.ModelProto, list[Feeds]]:
    b = Builder()
    steps_first = b.add("Transpose", "x", perm=[1, 0, 2])
    weights = (b.weight(2, 4 * 24, WIDTH), b.weight(2, 4 * 24, 24), b.weight(2, 8 * 24))
    whole = b.add("LSTM", steps_first, *weights, hidden_size=24, direction="bidirectional")
    turned = b.add("Transpose", whole, perm=[2, 0, 1, 3])
    flat = b.reshape(turned, b.size("x", 0), b.size("x", 1), 48)
    b.add("MatMul", flat, b.weight(48, 8), name="y")
    return b.finish({"x": ROWS}, {"y": ["batch", "length", 8]}), _draw_rows()


def _make_quantized() -> tuple[onnx.ModelProto, list[Feeds]]:
    """An integer product with a scale from the run, as dynamic quantization makes it.

    ONNX Runtime adds pairs of products in 16 bits on some processors; two products of 255 and -64 fit.
    """
    b = Builder()
    weight = b.constant(np.random.default_rng(3).integers(-64, 64, (WIDTH, 24)).astype(np.int8))
    b.add_node(onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["whole", "scale", "zero"], name="quantize"))
    product = b.add("Cast", b.add("MatMulInteger", "whole", weight, "zero"), to=TensorProto.FLOAT)
    b.add("Relu", b.add("Mul", product, b.add("Mul", "scale", b.constant(0.02, np.float32))), name="y")
    return b.finish({"x": ROWS}, {"y": ["batch", "length", 24]}), _draw_rows()


def _make_searched() -> tuple[onnx.ModelProto, list[Feeds]]:
    b = Builder()
    b.add_node(onnx.helper.make_node("TopK", ["x", b.constant([3])], ["largest", "places"], name="search", axis=1))
    again = b.add("GatherElements", "x", "places", axis=1)
    b.add("Sub", b.add("Mul", "largest", again), b.weight(WIDTH), name="y")
    return b.finish({"x": ROWS}, {"y": ["batch", 3, WIDTH]}), _draw_rows()


_NETWORKS = {
    "computed pads": _make_computed_pads,
    "shuffled pixels": _make_shuffled_pixels,
    "turned rows": _make_turned_rows,
    "expanded": _make_expanded,
    "chosen mask": _make_chosen_mask,
    "infinite mask": _make_infinite_mask,
    "filled mask": _make_filled_mask,
    "recurrent": _make_recurrent,
    "quantized": _make_quantized,
    "searched": _make_searched,
}
# Runs feeds through the network of each folder: the first feeds, or the rest.


def _require_right(model: onnx.ModelProto, feeds: Feeds, answers: Mapping[str, Any]) -> None:
    session = open_reference_session(model.SerializeToString())
    for output, expected in zip(model.graph.output, session.run(None, dict(feeds)), strict=True):
        atol = 1e-4 * max(float(np.abs(expected).max(initial=0)), 1e-3)
        np.testing.assert_allclose(np.asarray(answers[output.name]), expected, rtol=0, atol=atol, err_msg=output.name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", _NETWORKS)
def test_one_plan_is_right_for_all_sizes(name: str, threads: int) -> None:
    model, drawn = _NETWORKS[name]()
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": threads})
        for feeds in drawn:
            _require_right(model, feeds, network.infer(dict(feeds)))
        plans: tuple[int, int] = network.get_metric("CPU_PLANS")
    assert plans[0] == 1
