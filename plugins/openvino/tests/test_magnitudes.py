"""OPENVINO: integers too large for the engine are refused by the query or checked in a run; casts that the engine drops are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest

from hetero_core import Core, Network
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.testing.backend_cases import iterate_backend_cases

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

Read = Callable[..., Network]
SMALLEST = -(2**63)


@pytest.mark.parametrize(
    ("text", "node", "words"),
    [
        (
            f"g (bool[2] c, int64[2] z) => (float[2] y) <int64 low = {{{SMALLEST}}}> {{ m = Where (c, z, low) y = Cast <to = 1> (m) }}",
            "Cast_1",
            "computes Cast of int64 in 32 bits; 'm' may have absolute values up to 9.2233720368547758e+18",
        ),
        (
            f"g (int64[2] s) => (int64[A,B] y) {{ y = ConstantOfShape <value = int64[1] {{{SMALLEST}}}> (s) }}",
            "ConstantOfShape_0",
            "'y' may have absolute values up to 9.2233720368547758e+18",
        ),
        (
            "g (int64[2] m, float[2] f) => (int64[2] y) { a = Cast <to = 7> (f) y = Add (a, m) }",
            "Cast_0",
            "'a' may have absolute values up to inf",
        ),
        (
            "g (int64[2] m) => (int64[2] y) <int64 k = {100000}> { y = Mul (m, k) }",
            "Mul_0",
            "'y' may have absolute values up to 26214300000",
        ),
        (
            "g (int64[2] m) => (bool[2] y) <int64 k = {100}> { a = Mul (m, k) y = Equal (a, m) }",
            "Equal_1",
            "in float32, which is exact up to 2^24; 'a' may have absolute values up to",
        ),
        (
            "g (int32[2] m) => (bool[2] y) <uint16 k = {9}> { a = Cast <to = 4> (m) y = Less (a, k) }",
            "Cast_0",
            "holds uint16 in 32 bits within a network and does not wrap it around",
        ),
        (
            "g (uint16[2] m) => (bool[2] y) { a = Add (m, m) y = Less (a, m) }",
            "Add_0",
            "does not wrap it around",
        ),
        (
            "g (float[2] x) => (float[2] y) { a = Cast <to = 10> (x) b = Identity (a) y = Cast <to = 1> (b) }",
            "Cast_2",
            "does not round what is cast to float16",
        ),
    ],
)
def test_large_value_is_refused_with_reason_and_version(core: Core, read: Read, text: str, node: str, words: str) -> None:
    refused = core.query_network(read(text), "OPENVINO").refused
    assert node in refused, refused
    assert words in refused[node]
    version = core.get_metric("OPENVINO", "FULL_DEVICE_NAME").rpartition(" ")[2]
    assert refused[node].endswith(f"(OpenVINO {version})")


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("y = Add (x, x)", 2**30 - 1),
        ("a = Add (x, x) y = Add (a, x)", 2**29 - 1),
        ("y = Mul (x, k)", 2**21 - 1),
        ("s = Shape (x) n = Gather (s, i) y = Add (x, n)", 2**30 - 1),
    ],
)
def test_input_is_limited_so_that_results_fit(
    core: Core, read: Read, text: str, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    network = read(f"g (int64[N] x) => (int64[M] y) <int64 k = {{1000}}, int64 i = {{0}}> {{ {text} }}")
    assert not core.query_network(network, "OPENVINO").refused
    loaded, expected = core.load_network(network, "OPENVINO"), core.load_network(network, "CPU")
    x = {"x": np.array([-limit, 3, limit])}
    assert loaded.infer(x)["y"].tolist() == expected.infer(x)["y"].tolist()
    assert not caplog.messages
    beyond = {"x": np.array([0, 2 * limit + 2])}
    assert loaded.infer(beyond)["y"].tolist() == expected.infer(beyond)["y"].tolist()
    assert loaded.infer(beyond)["y"].tolist() == expected.infer(beyond)["y"].tolist()
    (warning,) = caplog.messages
    assert f"input 'x' has int64 values from 0 to {2 * limit + 2}" in warning
    assert f"exact up to {limit}. NumPy computes such runs" in warning


def test_reduction_over_axes_of_a_computed_range_is_right(core: Core) -> None:
    """Part of a normalization of ONNX's suite: the length of the axes follows from shapes, which the engine does not infer."""
    (case,) = iterate_backend_cases("^test_rms_normalization_default_axis_expanded$", kinds=("node",))
    network = core.read_network(case.model)
    first = next(index for index, node in enumerate(network.nodes) if node.op_type == "Range")
    part = cut_subnetwork(network, [node.name for node in network.nodes[first : first + 9]])
    draw = np.random.default_rng(3)
    values = [draw.standard_normal((2, 3, 4, 5)).astype(np.float32), draw.standard_normal(5).astype(np.float32)]
    inputs = dict(zip([spec.name for spec in part.inputs], [*values, np.float32(1e-5), np.array(4), np.array(3)], strict=True))
    expected = values[0] / np.sqrt((values[0].astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * values[1]
    assert core.query_network(part, "OPENVINO").refused == {}
    (y,) = core.load_network(part, "OPENVINO").infer(inputs).values()
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_mask_with_the_smallest_integer_goes_to_another_device(core: Core, read: Read) -> None:
    network = read(
        f"g (int64[2,3] m, float[2,3] x) => (float[2,3] y) <int64 one = {{1}}, int64 low = {{{SMALLEST}}}> "
        "{ a = Sub (one, m) b = Mul (a, low) c = Cast <to = 1> (b) d = Add (c, x) y = Softmax (d) }"
    )
    loaded = core.load_network(network, "HETERO:OPENVINO,CPU")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 3)).astype(np.float32)
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    exact = np.where(mask == 1, np.exp(x.astype(np.float64)), 0)
    np.testing.assert_allclose(loaded.infer({"m": mask, "x": x})["y"], exact / exact.sum(axis=1, keepdims=True), rtol=1e-5)
    assert "OPENVINO" in core.query_network(network, "HETERO:OPENVINO,CPU").supported.values()


TYPES: dict[str, int] = {
    "float32": 1,
    "float16": 10,
    "int8": 3,
    "uint8": 2,
    "int16": 5,
    "uint16": 4,
    "int32": 6,
    "uint32": 12,
    "int64": 7,
    "uint64": 13,
    "bool": 9,
}


def draw_values(dtype: str) -> Any:
    """Returns numbers at the edges of all narrower types, within the limits of the engine's integers."""
    if "float" in dtype:
        return np.array([0, 1.0001, -1.0001, 0.3, 2.7, -2.7, 100.5, 300.7, 40000.6], dtype)
    if dtype == "bool":
        return np.array([False, True])
    edges = [sign * (2**bits + step) for bits in (0, 7, 8, 15, 16) for step in (-1, 0, 1) for sign in (1, -1)]
    limits = np.iinfo(dtype)
    return np.array([edge for edge in edges if limits.min <= edge <= limits.max], dtype)


def build_casts(pairs: Iterable[tuple[str, str]], middle: str) -> onnx.ModelProto:
    """Returns a network that casts an input for each pair of types from the first to `middle` and then to the second."""
    nodes, inputs, outputs = [], [], []
    for source, target in pairs:
        x, a, y = (f"{prefix}_{source}_{target}" for prefix in "xay")
        nodes += [onnx.helper.make_node("Cast", [x], [a], f"{a}_node", to=TYPES[middle])]
        nodes += [onnx.helper.make_node("Cast", [a], [y], f"{y}_node", to=TYPES[target])]
        inputs.append(onnx.helper.make_tensor_value_info(x, TYPES[source], [f"n_{x}"]))
        outputs.append(onnx.helper.make_tensor_value_info(y, TYPES[target], [f"n_{y}"]))
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("middle", sorted(TYPES.keys() - {"uint32", "uint64"}))
def test_casts_in_a_row_are_right_or_refused(core: Core, middle: str) -> None:
    """Expected values are NumPy's casts, which are C's; a float outside the range of an integer type is undefined in both."""
    pairs = list(product(("float32", "int8", "uint16", "int32", "int64"), ("float32", "uint16", "int64", "bool")))
    refused = core.query_network(build_casts(pairs, middle), "OPENVINO").refused
    pairs = [pair for pair in pairs if not refused.keys() & {f"{prefix}_{'_'.join(pair)}_node" for prefix in "ay"}]
    assert pairs
    inputs, expected = {}, {}
    for source, target in pairs:
        x = draw_values(source)
        if "float" in source and "int" in middle:
            limits = np.iinfo(middle)
            x = x[(np.trunc(x) >= limits.min) & (np.trunc(x) <= limits.max)]
        with np.errstate(over="ignore"):
            between = x.astype(middle)
            if middle == "float16" and "int" in target:
                x, between = x[np.isfinite(between) & (between >= 0)], between[np.isfinite(between) & (between >= 0)]
            inputs[f"x_{source}_{target}"], expected[f"y_{source}_{target}"] = x, between.astype(target)
    outputs = core.load_network(build_casts(pairs, middle), "OPENVINO").infer(inputs)
    for name, answer in outputs.items():
        np.testing.assert_array_equal(answer, expected[name], err_msg=f"{name} by {middle}")


@pytest.mark.parametrize("operator", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("constant", [0, 2**24 - 2, -(2**24) + 1])
def test_comparison_with_a_constant_of_float32_is_right(core: Core, read: Read, operator: str, constant: int) -> None:
    network = read(
        f"g (int32[N] x) => (bool[N] y, bool[N] z) <int32 k = {{{constant}}}> {{ y = {operator} (x, k) z = {operator} (k, x) }}"
    )
    compare = {
        "Equal": np.equal,
        "Less": np.less,
        "LessOrEqual": np.less_equal,
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
    }[operator]
    x = np.array([-(2**31), 2**31 - 1, *range(constant - 3, constant + 4), *range(2**24 - 4, 2**24 + 4), 0], np.int32)
    x = np.concatenate([x, -x[2:]])
    outputs = core.load_network(network, "OPENVINO").infer({"x": x})
    np.testing.assert_array_equal(outputs["y"], compare(x, constant))
    np.testing.assert_array_equal(outputs["z"], compare(constant, x))


@pytest.mark.parametrize("constant", [2**24, -(2**24)])
def test_comparison_with_a_rounded_constant_limits_its_input(core: Core, read: Read, constant: int) -> None:
    network = read(f"g (int32[N] x) => (bool[N] y) <int32 k = {{{constant}}}> {{ y = Equal (x, k) }}")
    loaded = core.load_network(network, "OPENVINO")
    assert loaded.infer({"x": np.array([constant], np.int32)})["y"].tolist() == [True]
    # The nearest float32 of the next integer is the constant.
    beyond = np.array([constant + (1 if constant > 0 else -1)], np.int32)
    assert loaded.infer({"x": beyond})["y"].tolist() == [False]
