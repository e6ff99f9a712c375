"""OPENVINO: what the engine loses or misreads and the plugin puts right, or refuses where it cannot, each with its smallest graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from hetero_core import Core, Network
from hetero_core.errors import InferenceError
from hetero_core.testing.compare import describe_mismatch

Read = Callable[..., Network]
HALF = np.float16
POOL = "AveragePool <kernel_shape = [3], pads = [1, 1], strides = [2], ceil_mode = 1, count_include_pad = 1>"


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


@pytest.mark.parametrize(
    ("equation", "shapes"), [("bld->bd", [(1, 15, 2)]), ("...ld->...d", [(1, 15, 2)]), ("bld,dk->bk", [(1, 5, 2), (2, 3)])]
)
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_transpose_behind_an_einsum_is_not_lost(core: Core, read: Read, equation: str, shapes: list[Any], dtype: str) -> None:
    values = [draw(*shape, dtype=HALF if dtype == "float16" else np.float32) for shape in shapes]
    specs = ", ".join(f"{dtype}[{','.join(map(str, shape))}] x{index}" for index, shape in enumerate(shapes))
    names = ", ".join(f"x{index}" for index in range(len(shapes)))
    network = read(
        f'g ({specs}) => ({dtype}[a,b] y) {{ v = Einsum <equation = "{equation}"> ({names}) y = Transpose <perm = [1, 0]> (v) }}'
    )
    y = run(core, network, **{f"x{index}": value for index, value in enumerate(values)})
    expected = np.einsum(equation, *(value.astype(np.float64) for value in values)).T
    np.testing.assert_allclose(y, expected, rtol=1e-2 if dtype == "float16" else 1e-4, atol=1e-2 if dtype == "float16" else 1e-4)


@pytest.mark.parametrize("repeat", ["Concat <axis = 1> (p, p, p, p)", "Tile (p, repeats)", "Expand (p, sizes)", "Expand (p, four)"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_one_channel_is_repeated_where_channels_are_last(core: Core, read: Read, repeat: str, dtype: str) -> None:
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
    # Both sizes are 4: an axis that is taken for another one shows in the values alone.
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
            'v = Einsum <equation = "bld->bd"> (x) a = Transpose <perm = [1, 0]> (v)',
            (1, 5, 2),
            "float[2,1]",
            lambda x: x.sum(1).T,
        ),
        (
            "v = Log (zero) m = Mul (x, v) a = ReduceMax <axes = [1], keepdims = 1> (m)",
            (2, 3),
            "float[2,1]",
            lambda x: np.full((2, 1), -np.inf),
        ),
        ("a = PRelu (x, slopes)", (1, 3, 3), "float[1,3,3]", lambda x: np.where(x < 0, x * np.float32([0.5, 2, 3]), x)),
        (
            "k = Constant <value_ints = [1]> () m = Max (x, five) v, a = TopK (m, k)",
            (2, 3),
            "int64[2,1]",
            lambda x: np.zeros((2, 1)),
        ),
        ("v = Div (seven, two) w = Cast <to = 1> (v) a = Add (x, w)", (1,), "float[1]", lambda x: x - 3),
    ],
)
def test_what_is_put_right_in_a_network_is_put_right_in_a_body(
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


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("sizes", ["T,3", "6,B"])
def test_lengths_of_sequences_are_refused_where_length_or_batch_is_open(core: Core, read: Read, operator: str, sizes: str) -> None:
    network = read(write_recurrent(operator, sizes, "", has_lengths=True), 14)
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert f"ignores the lengths of the sequences of {operator} if length or batch is open" in reason


@pytest.mark.parametrize(
    ("operator", "attributes", "words"),
    [
        ("LSTM", ", input_forget = 1", "ignores input_forget of LSTM"),
        (
            "RNN",
            ', direction = "bidirectional", activations = ["Tanh", "Relu"]',
            "both directions of RNN with the activations of the first",
        ),
    ],
)
def test_attribute_that_the_engine_ignores_is_refused(core: Core, read: Read, operator: str, attributes: str, words: str) -> None:
    network = read(write_recurrent(operator, "6,3", attributes, has_lengths=False), 14)
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert words in reason


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = LRN <size = 3, bias = 1.5> (x) }",
            "cuts the fraction of the bias of LRN off",
        ),
        (
            f"g (float[1,2,8] x) => (float[1,2,5] y) {{ y = {POOL} (x) }}",
            "counts elements behind the padding, under ceil_mode and count_include_pad",
        ),
        ("g (float[2,0] x, float[0,3] w) => (float[2,3] y) { y = MatMul (x, w) }", "wrong about products over an axis of length 0"),
        ("g () => (float[0] y) <float16[0] none = {}> { y = Cast <to = 1> (none) }", "gives a Cast of no elements another shape"),
    ],
)
def test_formula_that_the_engine_changes_is_refused(core: Core, read: Read, text: str, words: str) -> None:
    (reason,) = core.query_network(read(text, 17), "OPENVINO").refused.values()
    assert words in reason


def test_windows_that_end_within_the_padding_are_taken(core: Core, read: Read) -> None:
    x = draw(1, 2, 7)
    network = read(f"g (float[1,2,7] x) => (float[1,2,4] y) {{ y = {POOL} (x) }}")
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1)))
    expected = np.lib.stride_tricks.sliding_window_view(padded, 3, 2)[:, :, ::2].mean(-1)
    np.testing.assert_allclose(run(core, network, x=x), expected, rtol=1e-5, atol=1e-6)


def test_product_over_no_elements_of_an_open_length_is_an_error_of_the_run(core: Core, read: Read) -> None:
    network = read("g (float[N,K] x, float[K,3] w, float[3] b) => (float[N,3] y) { y = Gemm (x, w, b) }")
    loaded = core.load_network(network, "OPENVINO")
    x, w, b = draw(2, 4), draw(4, 3), draw(3)
    np.testing.assert_allclose(loaded.infer({"x": x, "w": w, "b": b})["y"], x @ w + b, rtol=1e-4, atol=1e-5)
    with pytest.raises(InferenceError, match="axis 1 of input 'x' has length 0; OpenVINO is wrong about products over no elements"):
        loaded.infer({"x": x[:, :0], "w": w[:0], "b": b})
    assert loaded.infer({"x": x[:0], "w": w, "b": b})["y"].shape == (0, 3)


def test_error_of_the_engine_names_the_inputs_and_its_node(core: Core, read: Read) -> None:
    network = read("g (float[N,2,6,6] x) => (float[N,2,5,5] y) { y = MaxPool <kernel_shape = [2, 2]> (x) }")
    loaded = core.load_network(network, "OPENVINO")
    with pytest.raises(InferenceError, match=r"cannot compute network 'g' of x\[0, 2, 6, 6\]: .*MaxPool node with name"):
        loaded.infer({"x": draw(0, 2, 6, 6)})
    assert loaded.infer({"x": draw(1, 2, 6, 6)})["y"].shape == (1, 2, 5, 5)


SPLIT = "a, b, c = Split <axis = 1, num_outputs = 3> (x)"
SLICES = "a = Slice (x, i0, i1, i1) b = Slice (x, i1, i2, i1) c = Slice (x, m1, i3, i1)"


@pytest.mark.parametrize("parting", [SPLIT, SLICES])
@pytest.mark.parametrize("sizes", ["1,3,9,6", "n,k,h,w"])
@pytest.mark.parametrize(
    ("joined", "axis", "last"),
    [("bac", 1, ""), ("ab", 1, ""), ("abc", 2, ""), ("bbb", 3, ""), ("abca", 1, ""), ("bac", 1, "Identity")],
)
def test_convolutions_of_channels_keep_their_order(
    core: Core, read: Read, parting: str, sizes: str, joined: str, axis: int, last: str
) -> None:
    if parting is SLICES and sizes != "1,3,9,6":
        sizes = "n,3,h,w"
    filters = {name: draw(2, 1, 3, 3) + index for index, name in enumerate("abc")}
    nodes = " ".join(f"{name}v = Conv <pads = [1, 1, 1, 1]> ({name}, {name}w)" for name in "abc")
    if last:
        nodes += " " + " ".join(f"{name}u = {last} ({name}v)" for name in "abc")
    values = ", ".join(name + ("u" if last else "v") for name in joined)
    weights = ", ".join(f"float[2,1,3,3] {name}w" for name in "abc")
    numbers = ", ".join(f"int64[1] i{index} = {{{index}}}" for index in range(4))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[{sizes}] x, {weights}) => (float[q,r,s,t] y)
        <{numbers}, int64[1] m1 = {{-1}}> {{ {parting} {nodes} y = Concat <axis = {axis}> ({values}) }}"""
    )
    del model.graph.input[1:]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, f"{name}w") for name, value in filters.items())
    x = draw(1, 3, 9, 6)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3)
    )
    each = {name: np.einsum("nhwij,oij->nohw", windows[:, "abc".index(name)], filters[name][:, 0]) for name in "abc"}
    expected = np.concatenate([each[name] for name in joined], axis=axis)
    np.testing.assert_allclose(run(core, core.read_network(model), x=x), expected, atol=1e-4)


@pytest.mark.parametrize("other", ["w", "x", "q, w"])
@pytest.mark.parametrize("axis", [1, 2])
def test_convolution_of_a_part_beside_a_constant(core: Core, read: Read, other: str, axis: int) -> None:
    filters = "2,2,1,1" if axis == 1 else "4,4,1,1"
    network = read(
        f"""g (float[1,4,4,3] x) => (float[a,b,c,d] y) <float[{filters}] f = {{{", ".join(["1"] * (4 if axis == 1 else 16))}}},
        float[1,4,4,3] w = {{{", ".join(str(index) for index in range(48))}}}>
        {{ p, q = Split <axis = {axis}, num_outputs = 2> (x) v = Conv (q, f) y = Concat <axis = {axis}> (v, {other}) }}""",
        18,
    )
    x = draw(1, 4, 4, 3)
    half = np.split(x, 2, axis)[1]
    summed = half.astype(np.float64).sum(1, keepdims=True).repeat(2 if axis == 1 else 4, 1)
    values = {"x": x, "q": half, "w": np.arange(48.0).reshape(x.shape)}
    expected = np.concatenate([summed, *(values[name] for name in other.split(", "))], axis)
    np.testing.assert_allclose(run(core, network, x=x), expected, atol=1e-5)


def test_convolutions_of_parts_that_come_with_the_run_are_refused(core: Core, read: Read) -> None:
    network = read(
        """g (float[1,2,9,6] x, int64[2] s) => (float[1,2,9,6] y) <float[1,1,1,1] w = {2}>
        { a, b = Split <axis = 1> (x, s) c = Conv (a, w) d = Conv (b, w) y = Concat <axis = 1> (d, c) }""",
        18,
    )
    (refusal,) = core.query_network(network, "OPENVINO").refused.values()
    assert "makes one convolution with groups" in refusal


@pytest.mark.parametrize(
    ("before", "operator", "function", "ranks"),
    [
        ("s = ReduceSum <keepdims = 0> (x, axes)", "Add", np.add, (0, 1)),
        ("s = Squeeze (x, axes)", "Mul", np.multiply, (1, 3)),
        ("s = Gather <axis = 0> (x, zero)", "Max", np.maximum, (0, 3)),
        ("s = Squeeze (x, axes)", "Div", np.divide, (0, 1)),
    ],
)
def test_a_constant_of_one_element_adds_its_dimensions(
    core: Core, read: Read, before: str, operator: str, function: Callable[..., Any], ranks: tuple[int, int]
) -> None:
    x = draw(1, *(5,) * ranks[0])
    shape, ones = ",".join(map(str, x.shape)), ",".join("1" * ranks[1])
    head = f"g (float[{shape}] x) => (float[{','.join('abc'[: ranks[1]])}] y)"
    constants = f"<int64[1] axes = {{0}}, int64 zero = {{0}}, float[{ones}] c = {{2}}>"
    network = read(f"{head} {constants} {{ {before} y = {operator} (s, c) }}")
    expected = function(x[0], np.full((1,) * ranks[1], 2, np.float32))
    assert describe_mismatch(run(core, network, x=x), expected) is None
