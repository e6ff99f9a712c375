"""Networks of float16 and bfloat16: float32 inside, rounded once at the outputs, unless ACCURACY is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.machine.compiler import choose_kernels
from hetero_cpu.transforms.precision import widen_halves
from hetero_tests.half_models import set_float_type
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero_core import Core
from hetero_core.errors import HeteroError
from hetero_core.network.reader import read_network
from hetero_core.network.types import TensorType

HALVES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
NUMPY_TYPES: Mapping[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
UNITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance of neighbours, relative to the number."""

# Text of a graph, and the shapes of its weights.
NETS: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "image": (
        "g (float[1, 3, 20, 20] x) => (float[1, 10] y, float[1, 16, 20, 20] z) {"
        " a = Conv <pads = [1, 1, 1, 1]> (x, w0, b0)  c = Relu(a)  d = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)"
        " e = Conv <pads = [1, 1, 1, 1], group = 16> (d, w1)  f = HardSwish(e)"
        ' z = Resize <mode = "linear"> (f, none, scales)  h = GlobalAveragePool(f)  i = Flatten(h)  y = Gemm <transB = 1> (i, w2, b2) }',
        {"w0": (16, 3, 3, 3), "b0": (16,), "w1": (16, 1, 3, 3), "w2": (10, 16), "b2": (10,)},
    ),
    "attention": (
        "g (float[2, 12, 32] x) => (float[2, 12, 32] y) {"
        " q = MatMul(x, w0)  k = MatMul(x, w1)  v = MatMul(x, w2)  t = Transpose <perm = [0, 2, 1]> (k)  s = MatMul(q, t)"
        " p = Softmax <axis = -1> (s)  c = MatMul(p, v)  d = MatMul(c, w3)  r = Add(x, d)  y = LayerNormalization(r, g0, g1) }",
        {**{f"w{index}": (32, 32) for index in range(4)}, "g0": (32,), "g1": (32,)},
    ),
    "recurrence": (
        "g (float[7, 2, 8] x) => (float[7, 1, 2, 6] y, float[1, 2, 6] h) { y, h = LSTM <hidden_size = 6> (x, w, r, b) }",
        {"w": (1, 24, 8), "r": (1, 24, 6), "b": (1, 48)},
    ),
    "table": (
        "g (int64[1, 5] x) => (float[1, 5, 16] y) { a = Gather(w0, x)  b = MatMul(a, w1)  c = Tanh(b)  y = Add(c, a) }",
        {"w0": (50, 16), "w1": (16, 16)},
    ),
}
KINDS = ("NUMPY", "JIT")


def has_machine_code() -> bool:
    try:
        return choose_kernels("JIT", "CPU") == "JIT"
    except HeteroError:
        return False


@pytest.fixture(params=KINDS)
def kernels(request: pytest.FixtureRequest) -> str:
    if request.param == "JIT" and not has_machine_code():
        pytest.skip("no machine code on this processor")
    return str(request.param)


def make_model(text: str, shapes: Mapping[str, tuple[int, ...]], half: str, seed: int = 0) -> onnx.ModelProto:
    """Returns the half model of a graph with random weights. The names `none` and `scales` are inputs of Resize."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text.replace(", none,", ", ,")}')
    rng = np.random.default_rng(seed)
    for name, shape in shapes.items():
        array = rng.standard_normal(shape, np.float32) * (shape[-1] ** -0.5)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    if "scales" in text:
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    return set_float_type(model, HALVES[half])


def draw_inputs(model: onnx.ModelProto, half: str, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    inputs = {}
    for value in model.graph.input:
        shape = [dim.dim_value or (sizes or {})[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
        is_index = value.type.tensor_type.elem_type == TensorProto.INT64
        inputs[value.name] = rng.integers(0, 50, shape) if is_index else rng.standard_normal(shape).astype(NUMPY_TYPES[half])
    return inputs


def evaluate_wide(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the outputs of the same network in float32, by onnx's reference evaluator."""
    wide = set_float_type(model, TensorProto.FLOAT)
    feeds = {name: array if array.dtype == np.int64 else array.astype(np.float32) for name, array in inputs.items()}
    outputs: list[Any] = ReferenceEvaluator(wide).run(None, feeds)
    return outputs


def assert_rounded_once(outputs: Mapping[str, Any], expected: list[Any], half: str) -> None:
    """Requires that each number is the nearest half of the expected number, or its neighbour where float32 itself differs."""
    for (name, array), exact in zip(outputs.items(), expected, strict=True):
        assert array.dtype == NUMPY_TYPES[half], name
        nearest = exact.astype(NUMPY_TYPES[half]).astype(np.float64)
        unit = np.maximum(np.abs(nearest), 2.0**-14) * UNITS[half]
        differing = np.abs(array.astype(np.float64) - nearest)
        assert (differing <= unit).all(), name
        # float32 is four decimal digits finer, so hardly any number lies at a border.
        assert (differing > 0).mean() < 0.05, name


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("net", NETS)
def test_outputs_are_those_of_float32_rounded_once(core: Core, net: str, half: str, kernels: str) -> None:
    model = make_model(*NETS[net], half)
    inputs = draw_inputs(model, half)
    outputs = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer(inputs)
    assert_rounded_once(outputs, evaluate_wide(model, inputs), half)


@pytest.mark.parametrize("net", ["image", "attention", "table"])
def test_machine_code_computes_all_nodes(core: Core, net: str) -> None:
    if not has_machine_code():
        pytest.skip("no machine code on this processor")
    loaded = core.load_network(make_model(*NETS[net], "float16"), "CPU", {"CPU_KERNELS": "JIT"})
    loaded.infer(draw_inputs(make_model(*NETS[net], "float16"), "float16"))
    assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0


CHAIN = "g (float[1, 4] x) => (float[1, 4] y) { a = Mul(x, w0)  b = Add(a, w1)  c = Mul(b, w2)  y = Sub(c, w3) }"
VECTORS = {f"w{index}": (4,) for index in range(4)}


def test_accuracy_rounds_after_each_operator(core: Core, kernels: str) -> None:
    model = make_model(CHAIN, VECTORS, "float16")
    inputs = draw_inputs(model, "float16")
    x = inputs["x"]
    w = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    expected = (((x * w[0]).astype(np.float16) + w[1]).astype(np.float16) * w[2]).astype(np.float16) - w[3]
    config = {"CPU_KERNELS": kernels, "EXECUTION_MODE_HINT": "ACCURACY"}
    np.testing.assert_array_equal(core.load_network(model, "CPU", config).infer(inputs)["y"], expected)
    widened = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer(inputs)["y"]
    wide = ((x.astype(np.float32) * w[0] + w[1]) * w[2] - w[3]).astype(np.float16)
    assert np.abs(widened.astype(np.float64) - wide.astype(np.float64)).max() <= 2.0**-11
    assert (widened != expected).any()


def test_values_beyond_float16_within_the_network_are_finite(core: Core, kernels: str) -> None:
    model = make_model("g (float[3] x) => (float[3] y) { a = Mul(x, x)  y = Sqrt(a) }", {}, "float16")
    inputs = {"x": np.array([3000, 60000, 0.00001], np.float16)}
    np.testing.assert_array_equal(core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer(inputs)["y"], inputs["x"])
    exact = core.load_network(model, "CPU", {"CPU_KERNELS": kernels, "EXECUTION_MODE_HINT": "ACCURACY"}).infer(inputs)["y"]
    assert np.isinf(exact[:2]).all()


@pytest.mark.parametrize("text", [
    "g (float[4] x) => (float16[4] h, float[4] y) { a = Exp(x)  h = Cast <to = 10> (a)  b = Cast <to = 1> (h)  y = Mul(b, b) }",
    "g (float[4] x) => (float[4] y) { a = Exp(x)  h = Cast <to = 10> (a)  b = Cast <to = 1> (h)  y = Mul(b, b) }",
])  # fmt: skip
def test_cast_to_float16_in_the_model_rounds(core: Core, kernels: str, text: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    x = np.array([0.1, 0.7, 1.3, 2.9], np.float32)
    rounded = np.exp(x.astype(np.float64)).astype(np.float16).astype(np.float32)
    y = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": x})["y"]
    np.testing.assert_array_equal(y, rounded * rounded)


def test_cast_to_float32_of_a_computed_half_is_an_alias(core: Core, kernels: str) -> None:
    text = "g (float16[4] x) => (float[4] y) { a = Mul(x, x)  y = Cast <to = 1> (a) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    x = np.array([1.001, 300, 0.0003, -7.1], np.float16)
    y = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": x})["y"]
    np.testing.assert_array_equal(y, x.astype(np.float32) ** 2)


MIXED = {
    "a branch that reads a half": (
        "g (float16[2, 3] x, bool c) => (float16[2, 3] y) { a = Mul(x, x)"
        " b = If (c) <then_branch = t () => (float16[2, 3] r) { r = Neg(a) }, else_branch = e () => (float16[2, 3] s) { s = Abs(a) }>"
        " y = Add(b, a) }"
    ),
    "a sequence of halves": (
        "g (float16[2, 3] x) => (float16[4, 3] y) { a = Mul(x, x)  s = SequenceConstruct(a, x)"
        " b = ConcatFromSequence <axis = 0> (s)  y = Neg(b) }"
    ),
    "an integer of a half": "g (float16[2, 3] x) => (int32[2, 3] y) { a = Mul(x, x)  y = Cast <to = 6> (a) }",
    "a move of halves alone": "g (float16[2, 3] x) => (float16[3, 2] y) { y = Transpose <perm = [1, 0]> (x) }",
    "a value that is read and returned": "g (float16[2, 3] x) => (float16[2, 3] y, float16[2, 3] z) { y = Mul(x, x)  z = Add(y, x) }",
    "an input that is returned": "g (float16[2, 3] x) => (float16[2, 3] x) { }",
    "a comparison": "g (float16[2, 3] x) => (bool[2, 3] y) { a = Mul(x, x)  y = Less(a, x) }",
}


@pytest.mark.parametrize("kind", MIXED)
def test_nodes_that_keep_halves_read_rounded_values(core: Core, kernels: str, kind: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {MIXED[kind]}')
    # Squares of these are exact, so that rounding in between changes nothing.
    inputs: dict[str, Any] = {"x": np.array([[1.5, -2, 3], [0.5, 4, -8]], np.float16)}
    if "bool c" in MIXED[kind]:
        inputs["c"] = np.array(True)
    outputs = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer(inputs)
    exact = core.load_network(model, "TEMPLATE").infer(inputs)
    for name, array in exact.items():
        assert outputs[name].dtype == array.dtype
        np.testing.assert_array_equal(outputs[name], array)


@pytest.mark.parametrize("half", HALVES)
def test_open_sizes(core: Core, half: str, kernels: str) -> None:
    text, shapes = NETS["attention"]
    model = make_model(text.replace("2, 12, 32", "batch, steps, 32"), shapes, half)
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": kernels})
    for batch, steps in ((1, 9), (3, 4), (2, 30)):
        inputs = draw_inputs(model, half, {"batch": batch, "steps": steps})
        assert_rounded_once(loaded.infer(inputs), evaluate_wide(model, inputs), half)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("mode", ["ACCURACY", "PERFORMANCE"])
def test_import_computes_as_the_export(core: Core, half: str, mode: str, kernels: str, tmp_path: Path) -> None:
    model = make_model(*NETS["image"], half)
    inputs = draw_inputs(model, half)
    config = {"CPU_KERNELS": kernels, "EXECUTION_MODE_HINT": mode}
    loaded = core.load_network(model, "CPU", config)
    loaded.export_network(tmp_path / "blob")
    imported = core.import_network(tmp_path / "blob", "CPU", config)
    for expected, array in zip(loaded.infer(inputs).values(), imported.infer(inputs).values(), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_reports_name_the_nodes_of_the_model(core: Core, kernels: str) -> None:
    model = make_model(*NETS["attention"], "float16")
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": kernels, "PERF_COUNT": "YES"})
    loaded.infer(draw_inputs(model, "float16"))
    names = {node.name for node in read_network(model).nodes}
    executed = [origin for node in loaded.executable.executed_nodes() for origin in node.origins]
    assert names >= set(executed)


@pytest.mark.parametrize("rows", ["4", "rows"])
def test_widened_weights_are_released_when_they_are_packed(core: Core, rows: str) -> None:
    if not has_machine_code():
        pytest.skip("no machine code on this processor")
    text = f"g (float[{rows}, 256] x) => (float[{rows}, 512] y) {{ a = MatMul(x, w0)  b = Relu(a)  y = MatMul(b, w1) }}"
    model = make_model(text, {"w0": (256, 384), "w1": (384, 512)}, "float16")
    network = core.read_network(model)
    loaded = core.load_network(network, "CPU", {"CPU_KERNELS": "JIT"})
    loaded.infer(draw_inputs(model, "float16", {"rows": 4}))
    executable = loaded.executable
    assert isinstance(executable, CpuExecutable)
    wide = [constant for constant in executable.transformed.initializers.values() if constant.dtype == "float32"]
    assert len(wide) == 2
    assert all(constant._array is None for constant in wide)
    assert loaded.get_metric("CPU_CONSTANT_BYTES") == 0
    assert loaded.get_metric("CPU_WEIGHT_BYTES") <= 1.1 * 4 * (256 * 384 + 384 * 512)


def test_network_without_halves_is_returned_as_it_is() -> None:
    network = read_network(set_float_type(make_model(CHAIN, VECTORS, "float16"), TensorProto.FLOAT))
    assert widen_halves(network) is network


def cast_by_machine_code(core: Core, array: Any, target: int) -> Any:
    """Returns an array after a Cast, by a network of Cast alone with machine code."""
    source = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    values = [onnx.helper.make_tensor_value_info(name, kind, list(array.shape)) for name, kind in (("x", source), ("y", target))]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Cast", ["x"], ["y"], to=target)], "g", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    result = loaded.infer({"x": array})["y"]
    assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0
    return result


def draw_floats() -> Any:
    """Returns float32 of all magnitudes: ties, subnormal numbers, infinities and NaN among them."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 20011, dtype=np.uint64).astype(np.uint32)
    ties = np.arange(0, 1 << 16, 7, dtype=np.uint32) << 16 | np.uint32(0x8000)
    near = (rng.standard_normal(5000) * 2.0 ** rng.integers(-26, 17, 5000)).astype(np.float32)
    halfway = np.arange(0x3C00, 0x3D00, dtype=np.uint16).view(np.float16).astype(np.float32) + np.float32(2.0**-11)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.996, 65520, 2**-24, 2**-25, 3 * 2**-25], np.float32)
    return np.concatenate([bits.view(np.float32), ties.view(np.float32), near, halfway, special])


@pytest.mark.parametrize("half", HALVES)
def test_cast_rounds_all_float32_as_ml_dtypes_does(core: Core, half: str) -> None:
    if not has_machine_code():
        pytest.skip("no machine code on this processor")
    x = draw_floats()
    with np.errstate(all="ignore"):
        expected = x.astype(NUMPY_TYPES[half])
    y = cast_by_machine_code(core, x, HALVES[half])
    both_nan = np.isnan(y.astype(np.float32)) & np.isnan(x)
    assert (both_nan | (y.view(np.uint16) == expected.view(np.uint16))).all()
    assert np.array_equal(np.isnan(y.astype(np.float32)), np.isnan(x))


@pytest.mark.parametrize("half", HALVES)
def test_cast_widens_all_halves_exactly(core: Core, half: str) -> None:
    if not has_machine_code():
        pytest.skip("no machine code on this processor")
    x = np.arange(1 << 16, dtype=np.uint16).view(NUMPY_TYPES[half])
    y = cast_by_machine_code(core, x, TensorProto.FLOAT)
    np.testing.assert_array_equal(y, x.astype(np.float32))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4, 5), (1, 6000)])
def test_cast_of_any_shape(core: Core, shape: tuple[int, ...]) -> None:
    if not has_machine_code():
        pytest.skip("no machine code on this processor")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    np.testing.assert_array_equal(cast_by_machine_code(core, np.asarray(x), TensorProto.FLOAT), x.astype(np.float32))


def test_cast_of_a_half_weight_is_no_step_of_a_run(core: Core) -> None:
    text = "g (float[4, 1024] x) => (float[4, 768] y) { v = Cast <to = 1> (w)  y = MatMul(x, v) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    # More than a megabyte, which constant folding leaves.
    w = np.random.default_rng(0).standard_normal((1024, 768)).astype(np.float16)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
    assert [node.operator for node in loaded.executable.executed_nodes()] == ["MatMul"]
    x = np.random.default_rng(1).standard_normal((4, 1024), np.float32)
    np.testing.assert_allclose(loaded.infer({"x": x})["y"], x.astype(np.float64) @ w.astype(np.float64), atol=1e-3)


def test_shapes_that_onnx_infers_in_float32_alone_are_known_after_widening() -> None:
    """onnx does not tell the shapes of versions without bfloat16, as of Conv-11, which exporters write."""
    text = """<ir_version: 8, opset_import: ["": 18]> net (bfloat16[1, 4, 9, 9] x, bfloat16[4, 4, 3, 3] w) => (bfloat16[1, 4, 5, 5] y) {
        a = Conv (x, w) y = Conv (a, w) }"""
    network = read_network(onnx.parser.parse_model(text))
    unknown = replace(network, types={**network.types, "a": TensorType("bfloat16")})
    assert widen_halves(unknown).type_of("a") == TensorType("float32", (1, 4, 7, 7))
