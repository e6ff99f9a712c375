"""with_shapes and with_batch: new input sizes are inferred through the network, and impossible sizes are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.conformance.models import run_onnxruntime
from hetero_core.errors import InputShapeError, InvalidNetworkError
from hetero_core.network.reader import read_network
from hetero_core.network.writer import network_to_bytes, network_to_proto, pack_network, unpack_network
from hetero_core.testing.models import dynamic_batch_model, if_model, loop_model, lstm_model
from hetero_core.transforms.editing import edit

ZEROS = ", ".join(["0"] * 108)
RELU = "g (float[1,2] x) => (float[1,2] y) { y = Relu(x) }"
OPEN = "g (float[n,2] x) => (float[n,2] y) { y = Relu(x) }"
Read = Callable[..., Network]


def describe(network: Network) -> list[str]:
    return [str(spec) for spec in (*network.inputs, *network.outputs)]


def test_shape_of_an_input_reaches_the_outputs_and_inner_values(read: Read) -> None:
    network = read(
        "g (float[1,3,8,8] x) => (float[1,4,3,3] y) "
        "<float[4,3,3,3] w = {" + ZEROS + "}> { a = Conv(x, w) "
        "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a) }"
    )
    reshaped = network.with_shapes({"x": (2, 3, 16, 12)})
    assert describe(reshaped) == ["x: float32[2,3,16,12]", "y: float32[2,4,7,5]"]
    assert str(reshaped.types["a"]) == "float32[2,4,14,10]"
    assert describe(network) == ["x: float32[1,3,8,8]", "y: float32[1,4,3,3]"]


def test_named_size_is_set_on_every_input_that_has_it(read: Read) -> None:
    network = read("g (float[n,2] x, float[n] w) => (float[m,2] y) { a = Identity(w) y = Identity(x) }")
    assert describe(network.with_shapes({"n": 4})) == ["x: float32[4,2]", "w: float32[4]", "y: float32[4,2]"]


def test_sizes_may_be_opened_again(read: Read) -> None:
    network = read(RELU)
    assert describe(network.with_shapes({"x": ("rows", 2)})) == ["x: float32[rows,2]", "y: float32[rows,2]"]
    assert describe(network.with_shapes({"x": (None, 2)})) == ["x: float32[?,2]", "y: float32[?,2]"]


def test_body_of_a_branch_follows_the_new_shape() -> None:
    network = edit(read_network(if_model())).with_shapes({"x": (6, 8)})
    assert describe(network)[-1] == "y: float32[6,8]"


def test_network_without_a_change_is_the_same_nodes(read: Read) -> None:
    network = read(RELU)
    assert network.with_shapes({"x": (1, 2)}).nodes is network.nodes


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"])
def test_bounds_are_kept_by_every_device_and_by_files_and_blobs(core: Core, read: Read, device: str, tmp_path: Any) -> None:
    network = read(OPEN).with_shapes({"n": range(1, 5)})
    for bounded in (network, core.read_network(network_to_bytes(network)), unpack_network(pack_network(network))):
        assert dict(bounded.border.bounds) == {"n": (1, 4)}
    loaded = core.load_network(network, device)
    loaded.export_network(tmp_path / "blob")
    for executable in (loaded, core.import_network(tmp_path / "blob", device)):
        assert executable.infer({"x": np.ones((4, 2), np.float32)})["y"].shape == (4, 2)
        with pytest.raises(InputShapeError, match=r"input 'x' of network 'g': 'n' is 5, and its bounds are 1 to 4"):
            executable.infer({"x": np.ones((5, 2), np.float32)})


def test_range_on_an_axis_of_an_input_becomes_a_named_size(read: Read) -> None:
    network = read(RELU).with_shapes({"x": (range(1, 9), 2)})
    assert (describe(network), dict(network.border.bounds)) == (["x: float32[x_0,2]", "y: float32[x_0,2]"], {"x_0": (1, 8)})


def test_bounds_vanish_with_their_size(read: Read) -> None:
    network = read(OPEN).with_shapes({"n": range(1, 5)})
    assert dict(network.with_shapes({"n": 3}).border.bounds) == {}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "g (float[1,2] image) => (float[1,2] y) { y = Relu(image) }",
        {"imag": (1, 2)},
        "has no input 'imag', did you mean 'image'? its inputs are image",
    ),
    (OPEN, {"m": 3}, "has no size 'm'; its named sizes are n, and an input takes"),
    (
        OPEN,
        {"x": 3},
        "has no size 'x'; its named sizes are n, and an input takes a shape, as in (1, 3, 224, 224)",
    ),
    (RELU, {"x": (1, 2, 3)}, "input 'x' of network 'g' is float32[1,2]; a shape of 3 axes cannot be given to it"),
    (RELU, {"x": (-1, 2)}, "input 'x' of network 'g': a size is -1; expected an int of 0 or more, a name, None or a range"),
    (RELU, {"x": (range(4, 1), 2)}, "bounds are range(4, 1); expected a range of sizes from 0 on in steps of 1, as range(1, 9)"),
    (
        "g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {0,0,0,0}> { [m] y = MatMul(x, w) }",
        {"x": (1, 3)},
        "network 'g' cannot take x: float32[1,3]: node 'm' (MatMul-13): ",
    ),
    (
        "g (float[1,3,8,8] x) => (float[1,4,6,6] y) <float[4,3,3,3] w = {" + ZEROS + "}> { [conv] y = Conv(x, w) }",
        {"x": (1, 4, 8, 8)},
        "node 'conv' (Conv-11): its operator does not take x: float32[1,4,8,8]; w: float32[4,3,3,3]",
    ),
    (
        "g (float[1,3,8,8] x) => (y) { [pool] y = AveragePool<kernel_shape=[7,7]>(x) }",
        {"x": (1, 3, 5, 8)},
        "node 'pool' (AveragePool-11): its operator does not take x: float32[1,3,5,8]",
    ),
    (
        "g (float[1,8] x) => (y) <int64[2] s = {2,4}> { [r] y = Reshape(x, s) }",
        {"x": (2, 8)},
        "node 'r' (Reshape-14): its operator does not take x: float32[2,8]; s: [2, 4]",
    ),
]


@pytest.mark.parametrize(("text", "shapes", "message"), REFUSED, ids=[row[2][:40] for row in REFUSED])
def test_impossible_shape_is_refused_by_name(read: Read, text: str, shapes: dict[str, Any], message: str) -> None:
    network = read(text)
    with pytest.raises(InvalidNetworkError) as caught:
        network.with_shapes(shapes)
    assert message in str(caught.value)


def test_recurrence_names_the_state_of_another_batch() -> None:
    message = r"node 'lstm' \(LSTM-\d+\): its operator does not take x: float32\[5,3,6\]; .*; initial_h: float32\[2,2,4\]"
    with pytest.raises(InvalidNetworkError, match=message):
        edit(read_network(lstm_model())).with_shapes({"x": (5, 3, 6)})


def test_batch_is_the_first_axis_without_a_layout(read: Read) -> None:
    from hetero_core.network.border import InputInfo

    network = read("g (float[1,2] x, float[1,3] w, float[4,1] z) => (float[1,2] y) { y = Relu(x) }")
    network = network.with_inputs({"z": InputInfo(model_layout="CN")})
    assert describe(network.with_batch(5)) == ["x: float32[5,2]", "w: float32[5,3]", "z: float32[4,5]", "y: float32[5,2]"]


def test_inputs_of_different_batch_sizes_are_left_to_the_user(read: Read) -> None:
    network = read("g (float[1,2] x, float[3] w) => (float[1,2] y) { y = Relu(x) }")
    message = "inputs of network 'g' have different batch sizes: 'x' 1, 'w' 3; say the shape of each with with_shapes"
    with pytest.raises(InvalidNetworkError, match=message):
        network.with_batch(2)


def test_network_without_a_batch_says_so(read: Read) -> None:
    with pytest.raises(InvalidNetworkError, match="no input of network 'g' has a batch axis; say the shapes with with_shapes"):
        read("g (float x) => (float y) { y = Relu(x) }").with_batch(2)


def test_constant_of_a_reshape_that_repeats_the_batch_follows_it(core: Core, read: Read) -> None:
    network = read("g (float[1,2,3] x) => (float[1,6] y) <int64[2] s = {1,6}> { y = Reshape(x, s) }").with_batch(4)
    assert describe(network) == ["x: float32[4,2,3]", "y: float32[4,6]"]
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    assert core.load_network(network, "CPU").infer({"x": x})["y"].tolist() == x.reshape(4, 6).tolist()


def test_reshape_without_a_batch_axis_is_refused_by_name(read: Read) -> None:
    network = read(
        "g (float[1,2,3] x) => (float[1,6] y) <int64[2] s = {1,6}> { a = Transpose<perm=[1,0,2]>(x) [r] y = Reshape(a, s) }"
    )
    with pytest.raises(
        InvalidNetworkError, match=r"node 'r' \(Reshape-14\): its operator does not take a: float32\[2,2,3\]; s: \[1, 6\]"
    ):
        network.with_batch(2)


@pytest.mark.parametrize("build", [loop_model, dynamic_batch_model])
def test_reshaped_model_gives_the_results_of_onnxruntime(core: Core, build: Callable[[], Any]) -> None:
    network = edit(read_network(build()))
    name = network.inputs[-1].name
    shape = (6, *(network.inputs[-1].shape or ())[1:])
    feeds: dict[str, Any] = {name: np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    if build is loop_model:
        feeds["trip_count"] = np.array(3)
    reshaped = network.with_shapes({name: shape})
    outputs = [core.load_network(reshaped, device).infer(feeds) for device in ("CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU")]
    expected = run_onnxruntime(network_to_proto(reshaped), feeds)
    for values in outputs:
        for value, reference in zip(values.values(), expected, strict=True):
            np.testing.assert_allclose(value, reference, rtol=1e-4, atol=1e-5)


def test_huge_vector_is_not_inferred_element_by_element(read: Read) -> None:
    # The strict inference of onnx would list two thousand million unknown elements.
    network = read("g (int32[n,4] x) => (int64[m] y) <int64[1] flat = {-1}> { f = Reshape(x, flat) y = Cast<to=7>(f) }")
    assert describe(network.with_shapes({"x": (500_000_000, 4)})) == ["x: int32[500000000,4]", "y: int64[2000000000]"]
