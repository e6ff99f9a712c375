"""ONNX Runtime's rewrites that change a result are switched off; the remaining rewrites stay on."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_tests.child_loads import load_in_child

from hetero_core import Core

PAIRS = """<ir_version: 8, opset_import: ["": 13]>
pairs (float[4] x) => (float[4] y) <float s1 = {0.02}, uint8 z1 = {115}, float s2 = {0.05}, uint8 z2 = {0}>
{ a = QuantizeLinear (x, s1, z1) b = DequantizeLinear (a, s1, z1) c = QuantizeLinear (b, s2, z2) y = DequantizeLinear (c, s2, z2) }"""


@pytest.mark.parametrize("opset", [19, 21])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_dequantized_numbers_are_turned(opset: int, dtype: str) -> None:
    """At opset 21 the engine fails to load this, except for uint8: it moves the pair after the Transpose and loses the pair's type."""
    if dtype == "int16" and opset < 21:
        pytest.skip("int16 is quantized from opset 21 on")
    text = f'<ir_version: 8, opset_import: ["": {opset}]> turned ({dtype}[2,3] x) => (float[3,2] y)'
    text += f" <float s = {{0.5}}, {dtype} z = {{3}}> {{ a = DequantizeLinear (x, s, z) y = Transpose (a) }}"
    x = np.arange(6, dtype=dtype).reshape(2, 3)
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(text), "ORT").infer({"x": x})["y"]
    assert y.tolist() == ((x.T.astype(float) - 3) * 0.5).tolist()


@pytest.mark.parametrize("move", ["Transpose <perm = [1, 0]> (a)", "Reshape (a, turned)"])
@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_dequantized_numbers_without_a_zero_point_are_moved(opset: int, dtype: str, move: str) -> None:
    """The engine also moves this pair, and adds a QuantizeLinear to uint8 unless a zero point has another type."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> moved ({dtype}[2,3] x) => (float[3,2] y)'
    text += f" <float s = {{0.5}}, int64[2] turned = {{3, 2}}> {{ a = DequantizeLinear (x, s) y = {move} }}"
    numbers = np.array([[100, 2, 3], [4, 5, 120]]) if dtype == "uint8" else np.array([[-100, 2, -3], [4, 70000, -6]])
    x = numbers.astype(dtype)  # 70000 wraps around in int8
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(text), "ORT").infer({"x": x})["y"]
    moved = x.T if move.startswith("Transpose") else x.reshape(3, 2)
    assert y.tolist() == (moved.astype(float) * 0.5).tolist()


def test_dequantized_int32_is_refused_beside_a_transpose() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (int32[2,3] x) => (float[3,2] y)'
    text += " <float s = {0.5}, int32 z = {0}> { a = DequantizeLinear (x, s, z) y = Transpose (a) }"
    with Core() as core:
        (reason,) = core.query_network(core.read_network(onnx.parser.parse_model(text)), "ORT").refused.values()
    assert "fails to load a DequantizeLinear of int32 with a zero point" in reason


@pytest.mark.parametrize("order", ["1, 2, 0", "1, 0, 2"])
def test_float16_product_of_a_turned_batch_runs(order: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[3,3,3] x) => (float[3,3,2] y) <float16[3,2] w = {{0,0,0,0,0,0}}> {{
        h = Cast <to = 10> (x) t = Transpose <perm = [{order}]> (h) m = MatMul (t, w) y = Cast <to = 1> (m) }}"""
    load = load_in_child(onnx.parser.parse_model(text).SerializeToString(), "ORT")
    assert load.outputs["y"] == np.zeros((3, 3, 2)).tolist()


def test_two_pairs_of_other_scales_round_twice() -> None:
    x = np.array([0.615, 1.3, -0.2, 0.07], np.float32)
    once = (np.clip(np.round(x.astype(float) / 0.02) + 115, 0, 255) - 115) * 0.02
    twice = np.clip(np.round(once / 0.05), 0, 255) * 0.05
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(PAIRS), "ORT").infer({"x": x})["y"]
    np.testing.assert_allclose(y, twice, atol=1e-6)


@pytest.mark.parametrize("product", ["m = MatMul (d, w) p = Add (m, b)", "p = Gemm (d, w, b)"])
def test_float_weights_are_not_quantized(product: str) -> None:
    generator = np.random.default_rng(0)
    weights, bias = (generator.standard_normal(shape).astype(np.float32) for shape in ((12, 17), (17,)))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (uint8[24,12] x) => (uint8[24,17] y) '
        "<float s = {0.037}, float t = {0.05}, uint8 z = {0}> "
        f"{{ d = DequantizeLinear (x, s, z) {product} y = QuantizeLinear (p, t, z) }}"
    )
    model.graph.initializer.extend([onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(bias, "b")])
    x = generator.integers(0, 255, (24, 12)).astype(np.uint8)
    with Core() as core:
        y = core.load_network(model, "ORT").infer({"x": x})["y"]
    products = (x * np.float64(np.float32(0.037))) @ weights.astype(float) + bias
    assert y.tolist() == np.clip(np.round(products / np.float64(np.float32(0.05))), 0, 255).tolist()


@pytest.mark.parametrize("sizes", [("0", "3"), ("n", "3"), ("2", "0"), ("n", "m")])
@pytest.mark.parametrize("opset", [18, 21])
def test_groups_of_no_elements_are_no_elements(sizes: tuple[str, str], opset: int) -> None:
    text = (
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[{sizes[0]},4,{sizes[1]}] x) => (y) <float[{{}}] s = {{{{{{}}}}}}>'
    )
    count = 4 if opset == 21 else 2
    model = onnx.parser.parse_model(
        text.format(count, ", ".join("1" * count)) + " { y = GroupNormalization <num_groups = 2> (x, s, s) }"
    )
    x = np.zeros((2, 4, 0) if sizes[0] == "2" else (0, 4, 3), np.float32)
    with Core() as core:
        assert core.load_network(model, "ORT").infer({"x": x})["y"].shape == x.shape


def describe_weights(form: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, int], np.ndarray]:
    """Returns quantized weights of a form, their scales, zero points, the attributes of DequantizeLinear, and the exact weights."""
    depth, columns = 0 if form == "empty" else 16, 17
    dtype = np.dtype(ml_dtypes.uint2 if form == "2 bits" else np.int8)
    low, high = (0, 4) if form == "2 bits" else (-128, 128)
    shape, attributes = {
        "rows": ((depth,), {"axis": 0}),
        "blocks": ((4, columns), {"axis": 0, "block_size": 4}),
        "columns": ((columns,), {"axis": 1}),
        "batch": ((columns,), {"axis": 2}),
    }.get(form, ((), {}))
    w = rng.integers(low, high, (2, depth, columns) if form == "batch" else (depth, columns))
    scales, points = rng.uniform(0.01, 0.1, shape).astype(np.float32), rng.integers(low, high, shape)
    wide = [np.asarray(part, np.float64) for part in (points, scales)]
    if form == "blocks":
        wide = [part.repeat(4, axis=0) for part in wide]
    elif form == "rows":
        wide = [part.reshape(-1, 1) for part in wide]
    return w.astype(dtype), scales, points.astype(dtype), attributes, (w - wide[0]) * wide[1]


@pytest.mark.parametrize("is_quantized", [False, True], ids=["floats", "bytes"])
@pytest.mark.parametrize("form", ["columns", "batch", "rows", "blocks", "2 bits", "empty"])
def test_product_of_dequantized_weights_is_exact(form: str, is_quantized: bool) -> None:
    """The engine fuses it: it fails with scales of rows, blocks or several matrices, and with no elements, and is wrong about 2 bits."""
    rng = np.random.default_rng(3)
    w, scales, points, attributes, exact = describe_weights(form, rng)
    x = rng.integers(0, 256, (3, w.shape[-2]))
    nodes = [onnx.helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], **attributes)]
    left = onnx.helper.make_node("DequantizeLinear", ["x", "t", "p"], ["f"])
    nodes += [left, onnx.helper.make_node("MatMul", ["f" if is_quantized else "x", "d"], ["y"])]
    constants = {"w": w, "s": scales, "z": points, "t": np.float32(0.5), "p": np.uint8(7)}
    graph = onnx.helper.make_graph(
        nodes if is_quantized else [nodes[0], nodes[2]],
        "product",
        [
            onnx.helper.make_tensor_value_info(
                "x", onnx.TensorProto.UINT8 if is_quantized else onnx.TensorProto.FLOAT, ["n", w.shape[-2]]
            )
        ],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)], ir_version=11)
    with Core() as core:
        y = core.load_network(model, "ORT").infer({"x": x.astype(np.uint8 if is_quantized else np.float32)})["y"]
    expected = ((x - 7) * 0.5 if is_quantized else x) @ exact
    assert y.shape == expected.shape
    assert np.abs(y - expected).max(initial=0) <= 1e-5 * np.abs(expected).max(initial=0)


def test_weights_of_an_outer_graph_are_dequantized_in_a_body() -> None:
    branches = (
        "then_branch = t () => (float[2,2] a) { d = DequantizeLinear (w, s) a = MatMul (x, d) }, "
        "else_branch = e () => (float[2,2] b) { b = Neg (x) }"
    )
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (bool c, float[2,2] x) => (float[2,2] y)
        <int8[2,2] w = {{1, 2, 3, 4}}, float s = {{0.5}}> {{ y = If (c) <{branches}> }}"""
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(text), "ORT")
        y = network.infer({"c": np.array(True), "x": np.eye(2, dtype=np.float32)})["y"]
    assert y.tolist() == [[0.5, 1.0], [1.5, 2.0]]


@pytest.mark.parametrize("function", ["LeakyRelu <alpha = 0.5> (a)", "Sigmoid (a)", "GlobalAveragePool (a)", "Add (a, a)"])
def test_activations_with_scales_by_channels_load(function: str) -> None:
    """The engine fuses the function with the scales of its input and of its result, which have to be single."""
    channels = "float[2] s = {0.5, 2}, uint8[2] z = {3, 7}"
    text = f"""<ir_version: 8, opset_import: ["": 13]> g (uint8[n,2,1,1] x) => (uint8[n,2,1,1] y) <{channels}>
        {{ a = DequantizeLinear (x, s, z) b = {function} y = QuantizeLinear (b, s, z) }}"""
    x = np.array([[1, 9], [3, 6]], np.uint8).reshape(2, 2, 1, 1)
    a = (x.astype(np.float64) - np.array([3, 7]).reshape(2, 1, 1)) * np.array([0.5, 2]).reshape(2, 1, 1)
    b = {"L": np.where(a < 0, 0.5 * a, a), "S": 1 / (1 + np.exp(-a)), "G": a, "A": 2 * a}[function[0]]
    expected = np.clip(np.rint(b / np.array([0.5, 2]).reshape(2, 1, 1)) + np.array([3, 7]).reshape(2, 1, 1), 0, 255)
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(text), "ORT").infer({"x": x})["y"]
    assert y.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("equation", "shapes", "shape"),
    [
        ("bij,bkj->bik", [(0, 2, 3), (0, 4, 3)], (0, 2, 4)),
        ("bij,bkj->bik", [(2, 2, 0), (2, 4, 0)], (2, 2, 4)),
        ("ij,jk->", [(2, 0), (0, 3)], ()),
    ],
)
def test_einsum_over_nothing_is_zero(equation: str, shapes: list[tuple[int, ...]], shape: tuple[int, ...]) -> None:
    """The engine divides by the size, and the processor ends the process."""
    inputs = ", ".join(
        f"float[{','.join(f'd{name}{axis}' for axis in range(len(each)))}] {name}" for name, each in zip("ab", shapes, strict=True)
    )
    text = f'<ir_version: 8, opset_import: ["": 13]> g ({inputs}) => (y) {{ y = Einsum <equation = "{equation}"> (a, b) }}'
    arrays = {name: np.ones(each, np.float32) for name, each in zip("ab", shapes, strict=True)}
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(text), "ORT")
        np.testing.assert_array_equal(network.infer(arrays)["y"], np.zeros(shape, np.float32))
        filled = {name: np.ones([size or 2 for size in each], np.float32) for name, each in zip("ab", shapes, strict=True)}
        np.testing.assert_array_equal(network.infer(filled)["y"], np.einsum(equation, *filled.values()))


def test_expand_to_nothing_is_not_removed() -> None:
    text = """<ir_version: 8, opset_import: ["": 13]> g (float[n,3] x) => (int64[a,b,c] y) <int64[1] i = {0}, int64[3] k = {0, 1, 1}>
        { u = Unsqueeze (x, i) e = Expand (u, k) y = ArgMax <axis = 2> (e) }"""
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(text), "ORT").infer({"x": np.ones((2, 3), np.float32)})["y"]
    assert y.shape == (0, 2, 1)


def test_expand_to_a_folded_size_of_nothing_is_not_removed() -> None:
    # As torch.repeat_interleave of a constant that has a 0.
    text = """<ir_version: 8, opset_import: ["": 13]> g (float[1] x) => (float[n] y) <int64[1] a = {1}, int64[1] b = {0}, int64[1] m = {-1}>
        { u = Unsqueeze (x, a) s = Concat <axis = 0> (a, b) e = Expand (u, s) y = Reshape (e, m) }"""
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(text), "ORT").infer({"x": np.ones(1, np.float32)})["y"]
    assert y.shape == (0,)


@pytest.mark.parametrize("function", ["Add", "Mul"])
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_no_quantized_numbers_are_empty(function: str, threads: int) -> None:
    """The engine reads memory that is not there if it has several threads, and the process ends."""
    text = f"""<ir_version: 8, opset_import: ["": 13]> g (uint8[n,1,2,2] x) => (uint8[n,1,1,1] y) <float s = {{0.5}}, uint8 z = {{0}}>
        {{ a = DequantizeLinear (x, s, z) b = GlobalAveragePool (a) c = QuantizeLinear (b, s, z) d = DequantizeLinear (c, s, z)
        e = {function} (d, d) y = QuantizeLinear (e, s, z) }}"""
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(text), "ORT", {"INFERENCE_NUM_THREADS": threads})
        answers = [network.infer({"x": np.full((batch, 1, 2, 2), 4, np.uint8)})["y"] for batch in (2, 0, 1)]
    assert [answer.ravel().tolist() for answer in answers] == [[8, 8], [], [8]]
    assert [answer.shape for answer in answers] == [(batch, 1, 1, 1) for batch in (2, 0, 1)]


def test_empty_batch_keeps_the_size_that_minus_one_stands_for() -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[n,3,4] x) => (float[n,c] y) <int64[2] k = {0, -1}> { y = Reshape (x, k) }'
    )
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(text), "ORT")
        assert [network.infer({"x": np.ones((batch, 3, 4), np.float32)})["y"].shape for batch in (2, 0)] == [(2, 12), (0, 12)]


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("layer", ["y, h, c = LSTM", "y, h = GRU", "y, h = RNN"])
def test_sequence_of_no_steps_keeps_its_initial_states(layer: str, direction: str) -> None:
    """The engine returns zeros in their place. Weights of 0 halve a state of LSTM and GRU in each step, and RNN forgets it."""
    count, gates = 1 + (direction == "bidirectional"), {"L": 4, "G": 3, "R": 1}[layer.partition("= ")[2][0]]
    outputs = ", ".join(layer.partition(" =")[0].split(", "))
    zeros = ", ".join("0" * gates * count)
    inputs = "x, w, r, , n, s, s" if gates == 4 else "x, w, r, , n, s"
    text = f"""<ir_version: 8, opset_import: ["": 14]> g (float[2,3,1] x, int32[3] n, float[{count},3,1] s) => ({outputs})
        <float[{count},{gates},1] w = {{{zeros}}}, float[{count},{gates},1] r = {{{zeros}}}>
        {{ {layer} <hidden_size = 1, direction = "{direction}"> ({inputs}) }}"""
    states = np.array([1, 2, 4] * count, np.float32).reshape(count, 3, 1)
    feeds = {"x": np.ones((2, 3, 1), np.float32), "n": np.array([0, 1, 2], np.int32), "s": states}
    with Core() as core:
        answers = core.load_network(onnx.parser.parse_model(text), "ORT").infer(feeds)
    last = {4: "c", 3: "h", 1: "h"}[gates]
    assert answers["h"][:, 0].ravel().tolist() == [1] * count
    np.testing.assert_allclose(answers[last].reshape(count, 3), [[1, 0, 0] if gates == 1 else [1, 1, 1]] * count, rtol=1e-6)


@pytest.mark.parametrize("opset", [18, 21])
def test_groups_far_from_zero_are_normalized_by_their_own_mean(opset: int) -> None:
    """The engine takes the mean of the squares less the square of the mean, and is off by 0.3 here."""
    x = (np.random.default_rng(0).standard_normal((2, 4, 8, 8)) + 1000).astype(np.float32)
    count = 4 if opset == 21 else 2
    ones, zeros = (", ".join(digit * count) for digit in "10")
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[2,4,8,8] x) => (float[2,4,8,8] y)
        <float[{count}] s = {{{ones}}}, float[{count}] b = {{{zeros}}}> {{ y = GroupNormalization <num_groups = 2> (x, s, b) }}"""
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(text), "ORT").infer({"x": x})["y"]
    groups = x.astype(np.float64).reshape(2, 2, -1)
    centered = groups - groups.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(y, (centered / np.sqrt(groups.var(axis=-1, keepdims=True) + 1e-5)).reshape(x.shape), atol=1e-3)


def test_empty_batch_is_reshaped_by_a_rest_beside_a_copied_axis() -> None:
    """The engine fails: it divides the elements, which are none, by the copied 0. NumPy computes runs of empty inputs that fail there."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,2,3] x) => (float[n,6] y) <int64[2] t = {0, -1}> { y = Reshape (x, t) }"""
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(text), "ORT")
        assert network.infer({"x": np.zeros((0, 2, 3), np.float32)})["y"].shape == (0, 6)


@pytest.mark.parametrize("function", ["LeakyRelu <alpha = 0.5> (a)", "Sigmoid (a)"])
def test_result_is_quantized_by_channels_behind_a_single_scale(function: str) -> None:
    """The engine fuses the function with the scales of its result, which have to be single, and fails to load."""
    text = f"""<ir_version: 8, opset_import: ["": 13]> g (uint8[n,2,1,1] x) => (uint8[n,2,1,1] y) <float r = {{0.5}}, uint8 p = {{3}},
        float[2] s = {{0.5, 2}}, uint8[2] z = {{3, 7}}> {{ a = DequantizeLinear (x, r, p) b = {function} y = QuantizeLinear (b, s, z) }}"""
    x = np.array([[1, 9], [3, 6]], np.uint8).reshape(2, 2, 1, 1)
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(text), "ORT").infer({"x": x})["y"]
    a = (x.astype(np.float64) - 3) * 0.5
    b = np.where(a < 0, 0.5 * a, a) if function.startswith("L") else 1 / (1 + np.exp(-a))
    expected = np.rint(b / np.array([0.5, 2]).reshape(2, 1, 1)) + np.array([3, 7]).reshape(2, 1, 1)
    assert y.tolist() == expected.tolist()


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_layer_without_steps_returns_its_initial_states(operator: str) -> None:
    """The engine returns zeros."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[t,b,3] x, float[1,b,2] h) => (z, y)
        {{ z, y = {operator} <hidden_size = 2> (x, w, r, , , h) }}"""
    )
    weights = {"w": np.ones((1, 2 * gates, 3), np.float32), "r": np.ones((1, 2 * gates, 2), np.float32)}
    model.graph.initializer.extend([onnx.numpy_helper.from_array(array, name) for name, array in weights.items()])
    states = np.full((1, 2, 2), 0.5, np.float32)
    with Core() as core:
        y = core.load_network(model, "ORT").infer({"x": np.zeros((0, 2, 3), np.float32), "h": states})["y"]
    assert y.tolist() == states.tolist()
