"""INFERENCE_PRECISION_HINT: values in 16 bits, sums in float32, and no lower precision without the hint."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hetero_cupy.device import GpuDevice, find_capabilities
from hetero_cupy.precision import NEUTRAL, NORMALIZED, PRODUCTS, prepare_network
from hetero_tests.fake_runtime import FakeRuntime

from hetero_core import Core, Network
from hetero_core.errors import ConfigValueError
from hetero_core.kernels.registry import read_table
from hetero_core.network.types import TensorType
from hetero_core.testing.models import light_inputs, light_model

HINT = "INFERENCE_PRECISION_HINT"
LOWERED = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
SMALL = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
NAMES = {"f16": "float16", "bf16": "bfloat16"}


def lower(network: Network, hint: str = "f16") -> dict[str, str]:
    """Returns operator -> element type of its result; for a repeated operator, the type of its last node."""
    lowered = prepare_network(network, precision=LOWERED[hint])
    types = ((node.op_type, lowered.type_of(node.outputs[0])) for node in lowered.nodes)
    return {name: str(value_type.dtype) for name, value_type in types if isinstance(value_type, TensorType)}


def test_every_operator_of_a_class_exists_and_is_in_one_class() -> None:
    known = {op_type for domain, op_type, _ in read_table() if not domain}
    classes = (PRODUCTS, NORMALIZED, NEUTRAL)
    assert sorted(frozenset().union(*classes) - known) == []
    assert sum(map(len, classes)) == len(frozenset().union(*classes))


@pytest.mark.parametrize("hint", ["f16", "bf16"])
def test_values_between_products_are_small_and_the_border_is_not(read: Callable[..., Network], hint: str) -> None:
    text = """g (float[1,2,4,4] x) => (float[1,2,1,4] y) <float[2,2,1,1] w = {1, 2, 3, 4}, float[1,4] v = {1, 2, 3, 4}> {
        c = Conv (x, w) r = Relu (c) p = GlobalAveragePool (r) y = MatMul (p, v) }"""
    small = NAMES[hint]
    lowered = prepare_network(read(text), precision=LOWERED[hint])
    dtypes = [(node.op_type, lowered.type_of(node.outputs[0]).dtype) for node in lowered.nodes]  # type: ignore[union-attr]  # tensors
    assert dtypes == [
        ("Cast", small),
        ("Conv", small),
        ("Relu", small),
        ("GlobalAveragePool", small),
        ("MatMul", small),
        ("Cast", "float32"),
    ]
    assert [spec.dtype for spec in (*lowered.inputs, *lowered.outputs)] == ["float32", "float32"]
    assert {constant.dtype for constant in lowered.initializers.values()} == {small}


def test_values_beyond_16_bits_stay_float32(core: Core, read: Callable[..., Network]) -> None:
    text = """g (float[1,2] x) => (float[1,1] y) <float[2,2] w = {1, 0, 0, 1}, float two = {2}, int64[1] last = {1}> {
        m = MatMul (x, w) q = Pow (m, two) y = ReduceMean (q, last) }"""
    assert lower(read(text)) == {"Cast": "float32", "MatMul": "float16", "Pow": "float32", "ReduceMean": "float32"}
    # 300 squared is 90000; the largest float16 is 65504.
    result = core.load_network(read(text), "GPU", {HINT: "f16"}).infer({"x": np.array([[300, 100]], np.float32)})["y"]
    assert result.tolist() == [[50000]]


@pytest.mark.parametrize(
    ("number", "hint", "expected"),
    [
        ("-3.4e38", "f16", "float32"),
        ("-3.4e38", "bf16", "float32"),
        ("-1e38", "bf16", "bfloat16"),
        ("1e-12", "f16", "float32"),
        ("0", "f16", "float16"),
    ],
)
def test_constant_that_does_not_fit_keeps_its_node_in_float32(
    read: Callable[..., Network], number: str, hint: str, expected: str
) -> None:
    text = f"g (float[2,2] x) => (float[2,2] y) <float c = {{{number}}}> {{ m = MatMul (x, x) y = Add (m, c) }}"
    assert lower(read(text), hint)["Add"] == expected


def test_table_of_embeddings_is_small(read: Callable[..., Network]) -> None:
    text = "g (int64[3] x) => (float[3,2] y) <float[2,2] t = {1, 2, 3, 4}> { e = Gather (t, x) y = Neg (e) }"
    lowered = prepare_network(read(text), precision="float16")
    assert [constant.nbytes for constant in lowered.initializers.values()] == [8]


def test_captured_and_unknown_values_keep_the_models_types(core: Core, read: Callable[..., Network]) -> None:
    text = """g (float[2,2] x, bool c) => (float[2,2] y) { m = MatMul (x, x) y = If (c) <
        then_branch = t () => (float[2,2] p) { p = Neg (m) }, else_branch = e () => (float[2,2] q) { q = Abs (m) }> }"""
    x = np.array([[1, 2], [3, 4]], np.float32)
    result = core.load_network(read(text), "GPU", {HINT: "bf16"}).infer({"x": x, "c": np.array(True)})["y"]
    np.testing.assert_array_equal(result, -(x @ x))


@pytest.mark.parametrize("hint", ["f16", "bf16"])
def test_sums_are_float32_and_rounded_once(core: Core, read: Callable[..., Network], hint: str) -> None:
    count = 4096
    text = f"g (float[1,{count}] x, float[{count},1] z) => (float[1,1] y) {{ y = MatMul (x, z) }}"
    ones = np.ones(count, np.float32)
    loaded = core.load_network(read(text), "GPU", {HINT: hint})
    # A sum of 1s in float16 stops at 2048, in bfloat16 at 256.
    assert loaded.infer({"x": ones.reshape(1, -1), "z": ones.reshape(-1, 1)})["y"].tolist() == [[count]]
    x = np.random.default_rng(0).normal(size=count).astype(np.float32)
    small = x.astype(SMALL[hint]).astype(np.float64)
    expected = np.float64(small @ small).astype(np.float32).astype(SMALL[hint]).astype(np.float32)
    result = loaded.infer({"x": x.reshape(1, -1), "z": x.reshape(-1, 1)})["y"]
    assert result.tolist() == [[float(expected)]]


def test_weights_are_cast_before_they_are_written(core: Core, read: Callable[..., Network], runtime: FakeRuntime) -> None:
    text = "g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = MatMul (x, w) }"
    card = runtime.cards()[0]
    loaded = core.load_network(read(text), "GPU", {HINT: "f16"})
    assert card.copies == [("from_host", 12)]
    assert loaded.get_metric("GPU_WEIGHT_BYTES") == 12
    card.copies.clear()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(loaded.infer({"x": x})["y"], [[13, 16], [40, 52]])
    assert card.copies == [("from_host", 24), ("to_host", 16)]
    assert loaded.get_config(HINT) == "f16"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, 1 + 2**-12),
        ({HINT: "tf32"}, 1 + 2**-12),
        ({HINT: "f16"}, 1.0),
        ({HINT: "bf16"}, 1.0),
    ],
)
def test_factors_are_rounded_to_16_bits_on_request_only(
    core: Core, read: Callable[..., Network], config: dict[str, str], expected: float
) -> None:
    text = "g (float[1,1] x) => (float[1,1] y) <float[1,1] w = {1}> { y = MatMul (x, w) }"
    loaded = core.load_network(read(text), "GPU", config)
    assert loaded.infer({"x": np.array([[1 + 2**-12]], np.float32)})["y"].tolist() == [[expected]]


def test_other_hints_are_refused(core: Core, read: Callable[..., Network]) -> None:
    with pytest.raises(
        ConfigValueError, match="INFERENCE_PRECISION_HINT of device GPU: expected one of bf16, f16, f32, tf32, got 'f64'"
    ):
        core.load_network(read("g (float[1] x) => (float[1] y) { y = Neg (x) }"), "GPU", {HINT: "f64"})


def test_capabilities_follow_the_card() -> None:
    assert find_capabilities("9.0") == find_capabilities("10.3") == ("FP32", "FP64", "FP16", "BF16", "TF32", "INT8")
    assert find_capabilities("7.5") == ("FP32", "FP64", "FP16", "INT8")


@pytest.mark.parametrize(("hint", "bound"), [("f16", 4e-3), ("bf16", 3e-2)])
def test_squeezenet_stays_near_float32(hint: str, bound: float) -> None:
    # 26 products in a row: the bounds are four units in the last place of the type, at the largest value.
    model = light_model("squeezenet")
    inputs = light_inputs(model)
    with Core() as core:
        core.register_plugin("CARD", GpuDevice("CARD", FakeRuntime()))
        (expected,) = core.load_network(model, "CPU").infer(inputs).values()
        (result,) = core.load_network(model, "CARD", {HINT: hint}).infer(inputs).values()
    difference = np.abs(result - expected).max() / np.abs(expected).max()
    assert 1e-6 < difference < bound
    assert math.isfinite(difference)
