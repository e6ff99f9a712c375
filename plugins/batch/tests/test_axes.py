"""Batch axes, and nodes that mix images: handmade cases for each rule, and comparison with runs of single images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_batch.axes import find_batch_axes

from hetero_core import Core, Network
from hetero_core.testing.compare import describe_mismatch
from hetero_core.testing.models import SMALL_MODELS, light_inputs, light_model, small_model
from hetero_core.testing.transformers import decoder_model, encoder_model

Read = Callable[[str], Network]


@pytest.mark.parametrize(
    ("text", "inputs", "outputs"),
    [
        ("g (float[n, 4] x) => (float[n, 4] y) <float[4] w = {1, 2, 3, 4}> { y = Add (x, w) }", [0], [0]),
        ("g (float[n, 4] x) => (float[n, 3] y) <float[4, 3] w> { y = MatMul (x, w) }", [0], [0]),
        ("g (float[n, 2, 4] x) => (float[n, 2, 2] y) { t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (x, t) }", [0], [0]),
        ("g (float[n, 2, 4] x) => (float[2, n, 4] y) { y = Transpose <perm = [1, 0, 2]> (x) }", [0], [1]),
        ("g (float[n, 2, 4] x) => (float[n, 8] y) { y = Flatten (x) }", [0], [0]),
        ("g (float[n, 2, 4] x) => (float[n, 8] y) <int64[2] s = {0, -1}> { y = Reshape (x, s) }", [0], [0]),
        ("g (float[n, 2, 4] x) => (float[n, 8] y) <int64[2] s = {-1, 8}> { y = Reshape (x, s) }", [0], [0]),
        ("g (float[n, 4] x) => (float[n] y) { y = ReduceSum <axes = [1], keepdims = 0> (x) }", [0], [0]),
        ("g (int64[n, 5] x) => (float[n, 5, 3] y) <float[9, 3] table> { y = Gather (table, x) }", [0], [0]),
        ("g (float[n, 4] x, float[n, 2] z) => (float[n, 6] y) { y = Concat <axis = 1> (x, z) }", [0, 0], [0]),
        ("g (float[t, n, 4] x, float[n, 4] z) => (float[t, n, 4] y) { y = Add (x, z) }", [0, None], [0]),
        (
            "g (float[n, t, 2] x) => (float[n, t, 2] y) <int64 one = {1}, int64 zero = {0}, int64[1] a = {1}> { s = Shape (x)"
            ""
            " t = Gather (s, one) r = Range (zero, t, one) f = Cast <to = 1> (r) w = Unsqueeze (f, a) y = Add (x, w) }",
            [0],
            [0],
        ),
        ("g (float[n, 4] x, float s) => (float[n, 4] y) { y = Mul (x, s) }", [0, None], [0]),
        ("g (float[n, 4] x) => (float[1, n, 4] y) <int64[1] a = {0}> { y = Unsqueeze (x, a) }", [0], [1]),
        ("g (float[2, 2, 4] x) => (float[2, 8] y) <int64[2] s = {2, 8}> { y = Reshape (x, s) }", [0], [0]),
        (
            "g (float[n, 4] x) => (float[n, 2] y) <int64[2] s = {0, 1}, int64[2] e = {4294967296, 3}> { y = Slice (x, s, e) }",
            [0],
            [0],
        ),
        ("g (float[n, 4] x) => (float[n, 6] y) <int64[4] p = {0, 1, 0, 1}> { y = Pad (x, p) }", [0], [0]),
        (
            "g (float[n, 3, 1] x) => (float[n, 3, 1, 1] y) <float[1, 1, 1] w = {1}>"
            " { y = RNN <hidden_size = 1, layout = 1> (x, w, w) }",
            [0],
            [0],
        ),
    ],
)
def test_axis_of_inputs_and_outputs(read: Read, text: str, inputs: list[int | None], outputs: list[int | None]) -> None:
    network = read(text.replace("<float[4, 3] w>", "<float[4, 3] w = {1,2,3,4,5,6,7,8,9,1,2,3}>").replace(
        "<float[9, 3] table>", "<float[9, 3] table = {" + ",".join(["1"] * 27) + "}>"
    ))  # fmt: skip
    axes = find_batch_axes(network)
    assert list(axes.inputs) == inputs
    assert (dict(axes.refused), list(axes.outputs)) == ({}, outputs)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[n, 4] x) => (float[n, 4] y) { y = Softmax <axis = 0> (x) }", "it works along axis 0, on which the images lie"),
        ("g (float[n, 4] x) => (float[4, n] y) { t = Transpose (x) y = MatMul (t, x) }", "no axis of its own for the images"),
        ("g (float[n, 4] x) => (float y) { y = ReduceMax <keepdims = 0> (x) }", "it works along all axes"),
        ("g (float[n, 4] x) => (float[m] y) <int64[1] s = {-1}> { y = Reshape (x, s) }", "it sums, cuts, joins or repeats them"),
        ("g (float[n, 4] x) => (float[n, 4] y) <float[2, 4] w = {1,2,3,4,5,6,7,8}> { y = Add (x, w) }", "a value of its own for each"),
        ("g (float[n, 4] x) => (float[4] y) <int64 i = {0}> { y = Gather <axis = 0> (x, i) }", "it works along axis 0"),
        ("g (float[n, 4] x) => (uint8[n, 4] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear (x) }", "not known to keep images"),
        ("g (float[n, 4] x) => (int64[2] y) { y = Shape (x) }", "the size of the batch"),
        ("g (float[n, 4] x) => (float[n, 4] y) <int64 i = {0}> { s = Shape (x) m = Gather (s, i) f = Cast <to = 1> (m) y = Div (x, f) }",
         "computes with the size"),
        ("g (float[n, 4] x) => (float[n, 4] y) { s = Size (x) f = Cast <to = 1> (s) y = Div (x, f) }", "computes with the size"),
        ("g (float[n, 1, 4] x) => (float[n, 1, 2] y, int64[n, 1, 2] i) { y, i = MaxPool <kernel_shape = [2], strides = [2]> (x) }",
         "it works along all axes"),
        ("g (float[n, 4] x) => (float[m, 4] y) <int64[1] s = {-1}, int64[1] e = {-100}, int64[1] a = {0}>"
         " { y = Slice (x, s, e, a, s) }",
         "it works along axis 0"),
        ("g (float[n, 4] x) => (float[n, 4] y) <int64[4] p = {1, 0, -1, 0}> { y = Pad (x, p) }", "it works along axis 0"),
        ("g (float[n, 4] x) => (float[4, n] y) <int64[2] s = {4, -1}> { y = Reshape (x, s) }", "it moves the batch axis"),
        ("g (float[n, 4] x) => (float[n, 4] y) <float[2, 1] s = {1, 2}> { y = PRelu (x, s) }", "a value of its own for each"),
        ("g (float[n, 1] x) => (float[n, 1] y) <float[1, 1] w = {1}, float[2, 1] c = {1, 2}> { y = Gemm (x, w, c) }", "not known"),
        ("g (int64[n] x, int64[n, 4] z) => (int64[n, 4] y) { y = Gather (z, x) }", "it works along axis 0"),
        ("g (float[n, 4] x) => (float[n, 4] y) { y = com.acme.Twist (x) }", "not known to keep images apart"),
    ],
)  # fmt: skip
def test_node_that_mixes_images_is_named_with_the_reason(read: Read, text: str, reason: str) -> None:
    (refused,) = find_batch_axes(read(text)).refused.values()
    assert reason in refused


OLD = {
    "Slice": (7, "g (float[n, 4] x) => (float[n, 2] y) { y = Slice <axes = [1], starts = [1], ends = [3]> (x) }"),
    "Upsample": (7, "g (float[n, 1, 2, 2] x) => (float[n, 1, 4, 4] y) { y = Upsample <scales = [1.0, 1.0, 2.0, 2.0]> (x) }"),
    "Resize": (10, "g (float[n, 1, 2] x) => (float[n, 1, 4] y) <float[3] s = {1, 1, 2}> { y = Resize (x, s) }"),
    "BatchNormalization": (
        7,
        "g (float[n, 1, 2] x) => (float[n, 1, 2] y) <float[1] w = {1}> { y = BatchNormalization (x, w, w, w, w) }",
    ),
}


@pytest.mark.parametrize("operator", OLD)
def test_operators_of_old_opsets_keep_images_apart(core: Core, operator: str) -> None:
    opset, text = OLD[operator]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    axes = find_batch_axes(core.read_network(model))
    assert (dict(axes.refused), axes.outputs) == ({}, (0,))


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{name: partial(small_model, name) for name in SMALL_MODELS},
    "encoder": encoder_model,
    "decoder": decoder_model,
    "squeezenet": partial(light_model, "squeezenet"),
    "shufflenet": partial(light_model, "shufflenet"),
}
REFUSED = {"if": "choose", "loop": "repeat", "lstm": "lstm"}
"""Models that BATCH refuses, with the node."""


@pytest.mark.parametrize("name", MODELS)
def test_batch_of_a_model_is_its_single_runs(core: Core, name: str) -> None:
    """BATCH gives each request the same answer as CPU alone."""
    model = MODELS[name]()
    network = core.read_network(model)
    if name in REFUSED:
        assert list(core.query_network(network, "BATCH:CPU(64)").refused) == [REFUSED[name]]
        return
    batched = core.load_network(network, "BATCH:CPU(64)", {"AUTO_BATCH_TIMEOUT": 3_600_000})
    alone = core.load_network(network, "CPU")
    requests = [batched.create_infer_request() for _ in range(3)]
    feeds: list[dict[str, Any]] = [light_inputs(model, seed) for seed in range(3)]
    for request, inputs in zip(requests, feeds, strict=True):
        request.start_async(inputs)
    for request, inputs in zip(requests, feeds, strict=True):
        assert request.wait(60)
        for output, expected in alone.infer(inputs).items():
            assert describe_mismatch(np.asarray(request.get_tensor(output)), np.asarray(expected), name=output) is None
    (images,) = batched.get_metric("BATCHES_OF_SIZES")
    assert images >= 3


def test_device_without_open_sizes_gets_full_batches(core: Core, device: Any, network: Network, feed: Any) -> None:
    device.needs_fixed_sizes = True
    loaded = core.load_network(network, "BATCH:NOTE(4)", {"AUTO_BATCH_TIMEOUT": 3_600_000})
    requests = [loaded.create_infer_request() for _ in range(3)]
    for number, request in enumerate(requests, start=1):
        request.start_async(feed(number))
    assert [request.get_tensor("y").tolist() for request in requests if request.wait(60)] == [[[2, 0]], [[4, 0]], [[6, 0]]]
    assert device.batches == [[1, 2, 3, 3]]
