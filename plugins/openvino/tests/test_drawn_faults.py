"""What drawn graphs found wrong in the engine: put right, or refused with the reason, each with its smallest graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from hetero_core import Core, Network
from hetero_core.testing.compare import describe_mismatch

Read = Callable[..., Network]
BRANCHES = (
    "If <then_branch = t () => (a) { r = Relu (x) a = Add (r, x) }, else_branch = e () => (b) { s = Abs (x) b = Sub (s, x) }> (c)"
)


@pytest.mark.parametrize("text", ["g (float[2,15,15] x) => (float[2,15,15] y)", "g (float[N,L,15] x) => (float[N,L,15] y)"])
def test_slopes_of_one_dimension_belong_to_the_last_axis(core: Core, read: Read, text: str) -> None:
    slopes = np.linspace(-1, 1, 15, dtype=np.float32)
    network = read(f"{text} <float[15] s = {{{', '.join(str(value) for value in slopes)}}}> {{ y = PRelu(x, s) }}", 17)
    x = np.random.default_rng(0).standard_normal((2, 15, 15)).astype(np.float32)
    outputs = core.load_network(network, "OPENVINO").infer({"x": x})
    assert describe_mismatch(outputs["y"], np.where(x < 0, x * slopes, x)) is None


@pytest.mark.parametrize(("slopes", "opset"), [("3", 6), ("7", 6), ("4", 7)])
def test_slopes_that_do_not_broadcast_are_refused_in_query(core: Core, read: Read, slopes: str, opset: int) -> None:
    network = read(f"g (float[2,3,4,5] x, float[{slopes}] s) => (float[2,3,4,5] y) {{ y = PRelu(x, s) }}", opset)
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert "OpenVINO may end the process on PRelu whose slopes do not broadcast to its input" in str(reason)


def test_product_with_dequantized_weights_is_computed_in_float32(core: Core) -> None:
    generator = np.random.default_rng(0)
    weights = generator.integers(-128, 127, (63, 32)).astype(np.int8)
    graph = onnx.parser.parse_graph(
        "g (float[3,40,63] x) => (float[3,40,32] y) <float s = {0.01}, int8 z = {0}> { d = DequantizeLinear(w, s, z) y = MatMul(x, d) }"
    )
    graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    network = core.read_network(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8))
    x = generator.standard_normal((3, 40, 63)).astype(np.float32)
    outputs = core.load_network(network, "OPENVINO").infer({"x": x})
    expected = (x.astype(np.float64) @ (weights * np.float64(np.float32(0.01)))).astype(np.float32)
    assert np.abs(outputs["y"] - expected).max() < 1e-3


def test_branches_with_open_sizes_are_refused(core: Core, read: Read) -> None:
    network = read(f"g (float[N,L,24] x, bool c) => (float[N,L,24] y) {{ y = {BRANCHES} }}", 18)
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert "overwrite what an If with open sizes returns" in reason


def test_branches_with_fixed_sizes_are_taken(core: Core, read: Read) -> None:
    network = read(f"g (float[1,2,24] x, bool c) => (float[1,2,24] y) {{ y = {BRANCHES} }}", 18)
    x = np.random.default_rng(0).standard_normal((1, 2, 24)).astype(np.float32)
    outputs = core.load_network(network, "OPENVINO").infer({"x": x, "c": np.array(True)})
    assert describe_mismatch(outputs["y"], np.maximum(x, 0) + x) is None


@pytest.mark.parametrize("between", ["Relu (q)", "Add (q, q)", "BatchNormalization (q, one, one, one, one)"])
def test_stride_that_would_be_moved_to_a_split_is_refused(core: Core, read: Read, between: str) -> None:
    text = "g (float[1,6,7,7] x, float[4,2,1,1] w, float[2] one) => (float[1,4,4,4] y) <int64[3] sizes = {1, 2, 3}> "
    text += f"{{ p, q, r = Split <axis = 1> (x, sizes) m = {between} y = Conv <strides = [2, 2]> (m, w) }}"
    (reason,) = core.query_network(read(text, 14), "OPENVINO").refused.values()
    assert "cannot move the strides of this Conv to the node before it, which has several outputs" in reason


@pytest.mark.parametrize(("between", "strides"), [("MaxPool <kernel_shape = [1, 1]> (q)", 2), ("Relu (q)", 1)])
def test_stride_that_stays_where_it_is_is_taken(core: Core, read: Read, between: str, strides: int) -> None:
    size = (7 - 1) // strides + 1
    text = f"g (float[1,6,7,7] x, float[4,2,1,1] w) => (float[1,4,{size},{size}] y) <int64[3] sizes = {{1, 2, 3}}> {{ "
    text += f"p, q, r = Split <axis = 1> (x, sizes) m = {between} y = Conv <strides = [{strides}, {strides}]> (m, w) }}"
    network = read(text, 14)
    generator = np.random.default_rng(0)
    x, w = (generator.standard_normal(shape).astype(np.float32) for shape in ((1, 6, 7, 7), (4, 2, 1, 1)))
    outputs = core.load_network(network, "OPENVINO").infer({"x": x, "w": w})
    part = x[:, 1:3] if "MaxPool" in between else np.maximum(x[:, 1:3], 0)
    expected = np.einsum("nchw,oc->nohw", part[:, :, ::strides, ::strides], w[:, :, 0, 0])
    assert describe_mismatch(outputs["y"], expected) is None


@pytest.mark.parametrize(
    ("shape", "strides", "is_refused"),
    [
        ("2,1,15,1", "1, 2", True),
        ("2,1,15,W", "1, 2", True),
        ("2,1,15,1", "2, 2", False),
        ("2,1,15,4", "1, 2", False),
        ("2,2,15,1", "1, 2", False),
    ],
)
def test_stride_of_the_last_axis_alone_is_refused_where_one_channel_ends_with_one_position(
    core: Core, read: Read, shape: str, strides: str, *, is_refused: bool
) -> None:
    channels = shape.split(",")[1]
    text = f"g (float[{shape}] x, float[4,{channels},3,3] w) => (float[a,b,c,d] y) "
    network = read(f"{text}{{ y = Conv <pads = [1, 1, 1, 1], strides = [{strides}]> (x, w) }}", 17)
    reasons = core.query_network(network, "OPENVINO").refused.values()
    assert any("whose last axis alone has a stride" in reason for reason in reasons) == is_refused
    if not is_refused:
        generator = np.random.default_rng(0)
        x = generator.standard_normal([int(size) for size in shape.split(",")]).astype(np.float32)
        w = generator.standard_normal((4, x.shape[1], 3, 3)).astype(np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(
            np.pad(x.astype(float), ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3)
        )
        steps = [int(step) for step in strides.split(",")]
        expected = np.einsum("nchwij,ocij->nohw", windows[:, :, :: steps[0], :: steps[1]], w)
        outputs = core.load_network(network, "OPENVINO").infer({"x": x, "w": w})
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spread", ["Concat <axis = 3> (p, p, p)", "Tile (p, times)", "Expand (p, sizes)"])
@pytest.mark.parametrize("pooling", ["MaxPool", "AveragePool"])
def test_pixel_that_is_spread_and_read_elsewhere_is_refused(core: Core, read: Read, pooling: str, spread: str) -> None:
    text = "g (float[1,8,4,4] x) => (float[1,8,1,3] y, float[1,8,1,1] z) <int64[4] times = {1,1,1,3}, int64[4] sizes = {1,8,1,3}> "
    network = read(f"{text} {{ p = {pooling} <kernel_shape = [3, 3], strides = [2, 2]> (x) y = {spread} z = Relu (p) }}", 18)
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert "of images of one pixel that another node reads is wrong if channels are last" in reason


@pytest.mark.parametrize("outputs", ["float[1,8,1,3] y", "float[1,8,1,3] y, float[1,8,3,1] z"])
def test_pixel_that_is_spread_alone_or_not_pooled_is_taken(core: Core, read: Read, outputs: str) -> None:
    first = "MaxPool <kernel_shape = [4, 4]>" if "z" not in outputs else "GlobalMaxPool"
    second = "z = Concat <axis = 2> (p, p, p)" if "z" in outputs else ""
    network = read(f"g (float[1,8,4,4] x) => ({outputs}) {{ p = {first} (x) y = Concat <axis = 3> (p, p, p) {second} }}", 18)
    x = np.random.default_rng(0).standard_normal((1, 8, 4, 4)).astype(np.float32)
    outputs_of_run = core.load_network(network, "OPENVINO").infer({"x": x})
    expected = np.repeat(x.max((2, 3), keepdims=True), 3, axis=3)
    assert describe_mismatch(outputs_of_run["y"], expected) is None


def test_compress_from_before_there_was_one_is_refused(core: Core, read: Read) -> None:
    network = read("g (float[2] x) => (y) { y = Compress (x) }", 6)
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert "the type of 'y' is not known" in reason


@pytest.mark.parametrize(
    "text",
    [
        'g (float[2] x) => (float[2] y, string[2] v) { v = Constant <value_strings = ["a", "b"]> () y = Relu (x) }',
        "g (float[2] x, string[2] v) => (float[2] y) { y = Relu (x) }",
        "g (float[2] x, string[2] v) => (float[2] y, string[2] v) { y = Relu (x) }",
    ],
    ids=["constant", "unread", "through"],
)
def test_texts_that_no_node_makes_or_reads_are_refused(core: Core, read: Read, text: str) -> None:
    network = read(text)
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert reason == "'v' is string, which OpenVINO does not take or give as an array"
    inputs: dict[str, Any] = {"x": np.array([-1, 2], np.float32), "v": np.array(["a", "b"], object)}
    answer = core.load_network(network, "HETERO:OPENVINO,CPU").infer({spec.name: inputs[spec.name] for spec in network.inputs})
    assert answer["y"].tolist() == [0, 2]
    assert all(value.tolist() == ["a", "b"] for name, value in answer.items() if name == "v")


@pytest.mark.parametrize(("sizes", "is_taken"), [("1,2,5,6", True), ("B,2,5,6", False), ("1,2,H,W", False)])
def test_transposed_convolution_with_same_is_refused_where_a_size_is_open(
    core: Core, read: Read, sizes: str, is_taken: bool
) -> None:
    network = read(
        f'g (float[{sizes}] x, float[2,3,5,5] w) => (y) {{ y = ConvTranspose <strides = [3, 3], auto_pad = "SAME_UPPER"> (x, w) }}',
        17,
    )
    reasons = list(core.query_network(network, "OPENVINO").refused.values())
    assert [reason.startswith("OpenVINO cuts nothing off a ConvTranspose with auto_pad SAME") for reason in reasons] == [True] * (
        not is_taken
    )


@pytest.mark.parametrize(
    ("attributes", "groups"), [("group = 2", 2), ('auto_pad = "SAME_UPPER"', 1), ('auto_pad = "SAME_LOWER"', 1)]
)
def test_transposed_convolution_of_an_output_shape_is_refused_where_it_is_placed_wrongly(
    core: Core, read: Read, attributes: str, groups: int
) -> None:
    network = read(
        "g (float[1,2,4,4] x, float[2,1,3,3] w) => (float[1,M,8,8] y) "
        f"{{ y = ConvTranspose <strides = [2, 2], output_shape = [8, 8], {attributes}> (x, w) }}",
        11,
    )
    assert (
        core.query_network(network, "OPENVINO")
        .refused["ConvTranspose_0"]
        .startswith("OpenVINO places the results of ConvTranspose wrongly if output_shape is given with groups or auto_pad")
    )
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 2, 4, 4), (2, 1, 3, 3)))
    spread = np.zeros((2, 9, 9))
    for channel, row, column in np.ndindex(2, 4, 4):
        spread[channel, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3] += x[0, channel, row, column] * w[channel, 0]
    # One row and one column are too many: the last with SAME_UPPER, else the first.
    first = 0 if "UPPER" in attributes else 1
    placed = spread[:, first : first + 8, first : first + 8]
    expected = placed[None] if groups == 2 else placed.sum(axis=0)[None, None]
    answer = core.load_network(network, "HETERO:OPENVINO,CPU").infer({"x": x, "w": w})["y"]
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [7, 11])
def test_transposed_convolution_of_an_output_shape_alone_runs(core: Core, read: Read, opset: int) -> None:
    network = read(
        "g (float[1,1,2,2] x, float[1,1,3,3] w) => (float[1,1,4,4] y) "
        "{ y = ConvTranspose <strides = [2, 2], output_shape = [4, 4]> (x, w) }",
        opset,
    )
    x = np.array([[[[1, 2], [3, 4]]]], np.float32)
    answer = core.load_network(network, "OPENVINO").infer({"x": x, "w": np.ones((1, 1, 3, 3), np.float32)})["y"]
    assert answer[0, 0].tolist() == [[1, 3, 2, 2], [4, 10, 6, 6], [3, 7, 4, 4], [3, 7, 4, 4]]


def test_indices_that_count_along_columns_are_refused(core: Core, read: Read) -> None:
    pool = "MaxPool <kernel_shape = [2, 2], strides = [1, 2], storage_order = 1> (x)"
    network = read(f"g (float[1,1,3,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] i) {{ y, i = {pool} }}")
    assert (
        core.query_network(network, "OPENVINO")
        .refused["MaxPool_0"]
        .startswith("OpenVINO returns the indices of MaxPool in another order and shape if storage_order is 1")
    )
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    answer = core.load_network(network, "HETERO:OPENVINO,CPU").infer({"x": x})
    # Row and column of the largest of each window, counted along the columns of three.
    assert answer["i"][0, 0].tolist() == [[1 * 3 + 1, 3 * 3 + 1], [1 * 3 + 2, 3 * 3 + 2]]
    alone = read(f"g (float[1,1,3,4] x) => (float[1,1,2,2] y) {{ y = {pool} }}")
    assert core.load_network(alone, "OPENVINO").infer({"x": x})["y"][0, 0].tolist() == [[5, 7], [9, 11]]
