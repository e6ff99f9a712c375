"""Models from a fuzzer that once raised an internal error or got a wrong shape: they are computed, or refused with a clear message."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import HeteroError, InternalError


def parse(text: str, opset: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


def infer(core: Core, model: onnx.ModelProto, **feeds: Any) -> Any:
    return core.load_network(model, "CPU").infer(feeds)["y"]


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("y = Squeeze <axes = [-1]> (x)", (2, 3)),
        ("y = Unsqueeze <axes = [-1]> (x)", (2, 3, 1, 1)),
        ("y = Unsqueeze <axes = [0, -2]> (x)", (1, 2, 3, 1, 1)),
        ("u = Unsqueeze <axes = [-4]> (x)  y = Squeeze <axes = [-1]> (u)", (1, 2, 3)),
    ],
)
def test_negative_axes_of_version_1_count_from_behind(core: Core, body: str, shape: tuple[int, ...]) -> None:
    model = parse(f"g (float[2, 3, 1] x) => (float[a] y) {{ {body} }}", 8)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    np.testing.assert_array_equal(infer(core, model, x=x), x.reshape(shape))


def test_node_without_operator_and_outputs_is_refused(core: Core) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg (x) }", 12)
    model.graph.node.add()
    with pytest.raises(HeteroError) as refusal:
        core.load_network(model, "CPU")
    assert not isinstance(refusal.value, InternalError)


@pytest.mark.parametrize("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_symmetric_window_of_a_single_element_is_nan(core: Core, op_type: str) -> None:
    model = parse(f"g (int64 n) => (float[a] y) {{ y = {op_type} <periodic = 0> (n) }}", 17)
    assert np.isnan(infer(core, model, n=np.array(1)))
    assert infer(core, model, n=np.array(0)).shape == (0,)


@pytest.mark.parametrize(
    ("opset", "text", "feeds"),
    [
        (1, "g (float[3, 4] x) => (float[a, b] y) { y = Softmax <axis = 7> (x) }", {"x": (3, 4)}),
        (
            16,
            "g (float[1, 1, 4, 4] x) => (float[a, b, c, d] y) "
            "{ y = MaxPool <ceil_mode = 4, kernel_shape = [0, -9223372036854775808]> (x) }",
            {"x": (1, 1, 4, 4)},
        ),
        (
            15,
            "g (float[1, 4, 2, 2] x) => (float[1, 4, 2, 2] y) <float[4] s = {1, 1, 1, 1}, float[2] m = {1, 1}> "
            "{ b = BatchNormalization (x, s, s, m, s)  y = Relu (b) }",
            {"x": (1, 4, 2, 2)},
        ),
        (
            13,
            "g (float[2] x) => (float[a] y) <float[2] s = {1, 2}, int64[2] n = {1, 2}> { y = Concat <axis = 0> (s, n) }",
            {"x": (2,)},
        ),
        (
            15,
            "g (float[2147483648, 4294967296, 4294967296] x) => (int64[3] y) { y = Shape (x) }",
            {"x": (2,)},
        ),
    ],
)
@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
def test_impossible_results_are_refused_with_a_message(
    core: Core, opset: int, text: str, feeds: dict[str, tuple[int, ...]], kernels: str
) -> None:
    with pytest.raises(HeteroError) as refusal:
        core.load_network(parse(text, opset), "CPU", {"CPU_KERNELS": kernels}).infer(
            {name: np.ones(shape, np.float32) for name, shape in feeds.items()}
        )
    assert not isinstance(refusal.value, InternalError)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize("where", ["int64[3] t", "<int64[3] t = {3, -1, 0}>"])
def test_open_size_of_a_reshape_with_allowzero_is_refused(core: Core, device: str, where: str) -> None:
    inputs, initializers = (f", {where}", "") if where[0] == "i" else ("", where)
    model = parse(f"g (float[0, 3, 4] x{inputs}) => (float[a, b, c] y) {initializers} {{ y = Reshape <allowzero = 1> (x, t) }}", 14)
    feeds = {"x": np.zeros((0, 3, 4), np.float32), **({"t": np.array([3, -1, 0])} if inputs else {})}
    with pytest.raises(HeteroError, match="has both -1 and 0"):
        core.load_network(model, device).infer(feeds)


@pytest.mark.parametrize("axes", ["", ", a"])
def test_squeeze_with_empty_axes_keeps_an_open_size(core: Core, axes: str) -> None:
    model = parse(
        f"g (float[1, n] x) => (float[b, c] y) <int64[0] a = {{}}> {{ v = Neg (x) s = Squeeze (v{axes}) y = Relu (s) }}", 13
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    network = core.load_network(model, "CPU")
    for size in (2, 3, 5, 2):
        assert network.infer({"x": np.ones((1, size), np.float32)})["y"].shape == ((1, size) if axes else (size,))


def test_constant_of_a_wrong_shape_is_an_error_of_the_run(core: Core) -> None:
    text = """g (float[2,9,4,8] x, float[2,3,6,8] k) => (float[a,b,c,d] y) {
    t = Transpose <perm = [0, 1, 3, 2]> (x) p = MatMul (x, t)
    m = Shape <start = -2, end = -1> (x) n = Shape <start = -2, end = -1> (k) s = Concat <axis = 0> (m, n) w = ConstantOfShape (s)
    u = Add (p, w) y = Softmax (u) }"""
    feeds = {"x": np.ones((2, 9, 4, 8), np.float32), "k": np.ones((2, 3, 6, 8), np.float32)}
    with pytest.raises(HeteroError) as caught:
        infer(core, parse(text, 23), **feeds)
    assert not isinstance(caught.value, InternalError)


@pytest.mark.parametrize(("filters", "bias"), [("float[2,1,1,1]", "float[3]"), ("float", "float[2]")])
def test_weights_of_a_wrong_shape_are_not_folded(core: Core, filters: str, bias: str) -> None:
    text = f"""g (float[1,1,3,3] x, {filters} w, {bias} b, float[2] s) => (float[a,c,d,e] y) {{
    v = Conv (x, w, b) y = BatchNormalization (v, s, s, s, s) }}"""
    model = parse(text, 9)
    for spec in list(model.graph.input)[1:]:
        shape = [size.dim_value for size in spec.type.tensor_type.shape.dim]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), spec.name))
    del model.graph.input[1:]
    with pytest.raises(HeteroError) as caught:
        infer(core, model, x=np.ones((1, 1, 3, 3), np.float32))
    assert not isinstance(caught.value, InternalError)


def test_shape_of_a_value_larger_than_memory_is_computed(core: Core) -> None:
    text = """g (float[1099511627776, 4] x, float[2] z) => (int64[2] y, float[2] u) {
    s = Shape <start = -2, end = 9> (x) y = Neg (s) u = Neg (z) }"""
    assert core.load_network(parse(text, 15), "CPU") is not None


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_pads_of_a_wrong_number_are_refused(core: Core, device: str) -> None:
    model = parse("g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[a,b,c,d] y) { y = Conv <pads = [1, 1, 1]> (x, w) }", 11)
    feeds = {"x": np.ones((1, 1, 4, 4), np.float32), "w": np.ones((1, 1, 2, 2), np.float32)}
    with pytest.raises(HeteroError, match="3 pads|pads") as caught:
        core.load_network(model, device).infer(feeds)
    assert not isinstance(caught.value, InternalError)
