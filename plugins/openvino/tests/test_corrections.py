"""OPENVINO: operations that the engine loses or misreads are corrected or refused, each with its smallest graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from hetero_core import Core, Network
from hetero_core.testing.compare import describe_mismatch

Read = Callable[..., Network]
HALF = np.float16


def draw(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def run(core: Core, network: Network, **inputs: Any) -> Any:
    assert not core.query_network(network, "OPENVINO").refused
    return core.load_network(network, "OPENVINO").infer(inputs)["y"]


@pytest.mark.parametrize(
    ("operator", "behind"),
    [
        ("Sum", "Transpose <perm = [1, 0]> (v)"),
        ("Mean", "Reshape (v, shape)"),
        ("Prod", "Reshape (v, shape)"),
        ("Max", "Reshape (v, shape)"),
    ],
)
def test_reshape_behind_a_reduction_is_not_lost(core: Core, read: Read, operator: str, behind: str) -> None:
    x = draw(1, 15, 2)
    text = f"{{ v = Reduce{operator} <keepdims = 0> (x, axes) y = {behind} }}"
    network = read(f"g (float[1,15,2] x) => (float[2,1] y) <int64[1] axes = {{1}}, int64[2] shape = {{-1, 1}}> {text}", 18)
    expected = getattr(x.astype(np.float64), operator.lower())(axis=1).astype(np.float32).T
    assert describe_mismatch(run(core, network, x=x), expected) is None


@pytest.mark.parametrize("repeat", ["Concat <axis = 1> (p, p, p, p)", "Tile (p, repeats)", "Expand (p, sizes)", "Expand (p, four)"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_single_channel_is_repeated_if_channels_are_last(core: Core, read: Read, repeat: str, dtype: str) -> None:
    x = draw(3, 1, 17, 17, dtype=HALF if dtype == "float16" else np.float32)
    specs = f"{dtype}[3,1,17,17] x" + (", int64[4] four" if "four" in repeat else "")
    constants = "<int64[4] repeats = {1, 4, 1, 1}, int64[3] sizes = {4, 1, 9}>"
    results = f"{dtype}[3,4,17,9] y, {dtype}[3,1,17,9] r"
    network = read(
        f"g ({specs}) => ({results}) {constants} {{ p = MaxPool <kernel_shape = [1, 1], strides = [1, 2]> (x) y = {repeat} r = Relu (p) }}",
        18,
    )
    inputs = {"x": x, "four": np.array([1, 4, 1, 1])} if "four" in repeat else {"x": x}
    assert describe_mismatch(run(core, network, **inputs), np.repeat(x[..., ::2], 4, axis=1)) is None


@pytest.mark.parametrize("operator", ["Sum", "Max", "L2"])
@pytest.mark.parametrize(("place", "axis", "keeps"), [(2, -2, 0), (2, -2, 1), (2, 0, 1), (1, 0, 1), (2, 2, 1)])
@pytest.mark.parametrize("before", ["Unsqueeze (x, place)", "Reshape (x, shape)"])
def test_reduction_behind_an_inserted_size_reduces_its_own_axis(
    core: Core, read: Read, operator: str, place: int, axis: int, keeps: int, before: str
) -> None:
    # Both sizes are 4, so that a wrong axis shows in the values alone.
    x = draw(4, 4)
    inserted = np.expand_dims(x, place)
    constants = (
        f"int64[1] place = {{{place}}}, int64[1] axes = {{{axis}}}, int64[3] shape = {{{','.join(map(str, inserted.shape))}}}"
    )
    text = f"{{ v = {before} y = Reduce{operator} <keepdims = {keeps}> (v, axes) }}"
    y = run(core, read(f"g (float[4,4] x) => (y) <{constants}> {text}", 18), x=x)
    wide = inserted.astype(np.float64)
    expected = (
        np.sqrt((wide**2).sum(axis, keepdims=bool(keeps)))
        if operator == "L2"
        else getattr(wide, operator.lower())(axis, keepdims=bool(keeps))
    )
    assert describe_mismatch(y, expected.astype(np.float32)) is None


BODY = "If (c) <then_branch = t () => ({to} a) {{ {body} }}, else_branch = e () => ({to} b) {{ b = Identity (z) }}>"


@pytest.mark.parametrize(
    ("body", "source", "to", "compute"),
    [
        ("a = Concat <axis = 1> (x, x)", (2, 1, 3, 3), "float[2,2,3,3]", lambda x: np.concatenate([x, x], 1)),
        ("v = ReduceSum <keepdims = 0> (x, one) a = Transpose <perm = [1, 0]> (v)", (1, 5, 2), "float[2,1]", lambda x: x.sum(1).T),
        ("v = Unsqueeze(x, one) a = ReduceSum (v, one)", (2, 3), "float[2,1,3]", lambda x: x[:, None]),
        (
            "v = Log (zero) m = Mul (x, v) a = ReduceMax <axes = [1], keepdims = 1> (m)",
            (2, 3),
            "float[2,1]",
            lambda x: np.full((2, 1), -np.inf),
        ),
        (
            "k = Constant <value_ints = [1]> () m = Max (x, five) v, a = TopK (m, k)",
            (2, 3),
            "int64[2,1]",
            lambda x: np.zeros((2, 1)),
        ),
        ("v = Div (seven, two) w = Cast <to = 1> (v) a = Add (x, w)", (1,), "float[1]", lambda x: x - 3),
    ],
)
def test_corrections_apply_in_a_body_too(
    core: Core, read: Read, body: str, source: tuple[int, ...], to: str, compute: Callable[[Any], Any]
) -> None:
    sizes = ",".join(map(str, source))
    constants = "int64[1] one = {1}, float[1] zero = {0}, float[3] slopes = {0.5, 2, 3}, float[1] five = {5}, "
    constants += "int64[1] seven = {-7}, int64[1] two = {2}"
    network = read(f"g (float[{sizes}] x, {to} z, bool c) => ({to} y) <{constants}> {{ y = {BODY.format(to=to, body=body)} }}", 13)
    x = np.abs(draw(*source)) if "Log" in body else draw(*source)
    expected = np.asarray(compute(x))
    z = np.zeros(expected.shape, np.int64 if "int64" in to else np.float32)
    y = run(core, network, x=x, z=z, c=np.array(True))
    assert describe_mismatch(y, expected.astype(z.dtype)) is None


def write_recurrent(operator: str, sizes: str, attributes: str, *, has_lengths: bool) -> str:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator] * 4
    ways = 2 if "bidirectional" in attributes else 1
    specs = f"float[{sizes},5] x, float[{ways},{gates},5] w, float[{ways},{gates},4] r"
    specs += f", int32[{sizes.split(',')[1]}] n" if has_lengths else ""
    inputs = "x, w, r, , n" if has_lengths else "x, w, r"
    return f"g ({specs}) => (float[a,b,c,d] y) {{ y = {operator} <hidden_size = 4{attributes}> ({inputs}) }}"


@pytest.mark.parametrize(
    ("operator", "attributes", "has_lengths"),
    [
        ("LSTM", "", True),
        ("GRU", ', direction = "reverse"', True),
        ("RNN", ', direction = "bidirectional", activations = ["Relu", "Relu"]', False),
    ],
)
def test_recurrent_node_that_is_taken_is_right(
    core: Core, read: Read, operator: str, attributes: str, *, has_lengths: bool
) -> None:
    text = write_recurrent(operator, "6,3", attributes, has_lengths=has_lengths)
    network = read(text, 14)
    inputs = {spec.name: draw(*spec.type.shape) for spec in network.inputs}  # type: ignore[union-attr, arg-type]  # static tensors
    if has_lengths:
        inputs["n"] = np.array([6, 2, 4], np.int32)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 14]> {text}')
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(run(core, network, **inputs), session.run(None, inputs)[0], rtol=1e-4, atol=1e-5)


def test_product_over_an_empty_axis_is_the_bias(core: Core, read: Read) -> None:
    network = read("g (float[N,K] x, float[K,3] w, float[3] b) => (float[N,3] y) { y = Gemm (x, w, b) }")
    loaded = core.load_network(network, "OPENVINO")
    x, w, b = draw(2, 4), draw(4, 3), draw(3)
    np.testing.assert_allclose(loaded.infer({"x": x, "w": w, "b": b})["y"], x @ w + b, rtol=1e-4, atol=1e-5)
    assert loaded.infer({"x": x[:, :0], "w": w[:0], "b": b})["y"].tolist() == [b.tolist()] * 2
    assert loaded.infer({"x": x[:0], "w": w, "b": b})["y"].shape == (0, 3)


def test_pool_of_no_images_that_the_engine_cannot_compute(core: Core, read: Read) -> None:
    network = read("g (float[N,2,6,6] x) => (float[N,2,5,5] y) { y = MaxPool <kernel_shape = [2, 2]> (x) }")
    loaded = core.load_network(network, "OPENVINO")
    assert loaded.infer({"x": draw(0, 2, 6, 6)})["y"].shape == (0, 2, 5, 5)
    assert loaded.infer({"x": draw(1, 2, 6, 6)})["y"].shape == (1, 2, 5, 5)
