"""Expressions of elements by machine code, against NumPy in float64: operands of every kind, strides, halos, chains of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import erf
from typing import Any

import numpy as np
import onnx.helper
import onnx.parser
import onnx.shape_inference
import pytest
from hetero_cpu.operators.elementwise import join_chains, plan_native_expression
from hetero_cpu.operators.groups import Extra, Group, form_groups
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import cut_rows, find_kind
from hetero_cpu.operators.weights import PackedWeights
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node
from hetero_core.network.reader import read_network
from hetero_core.network.types import TensorType

from ..trial import WIDTHS, run_calls

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")
Array = np.ndarray[Any, Any]
SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


def make_node(op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> Node:
    return Node(output, op_type, tuple(inputs), (output,), attributes=attributes, since_version=15)


def make_site(nodes: Sequence[Node], arrays: Mapping[str, Array], shape: tuple[int, ...], constants: Sequence[str] = ()) -> Site:
    group = Group(nodes[0], tuple(Extra(node) for node in nodes[1:]))
    types = {name: TensorType("float32", array.shape) for name, array in arrays.items()}
    types |= {node.outputs[0]: TensorType("float32", shape) for node in nodes}
    return Site(group, types, {name: arrays[name] for name in constants}, arrays, PackedWeights(), workers=3)


def run_site(site: Site, arrays: Mapping[str, Array], y: Array, width: int) -> Recipe:
    recipe = plan_native_expression(site)
    assert recipe is not None
    run_calls(recipe.bind([arrays[value] for value in recipe.reads], [y], np.empty(0, np.uint8)), width)
    return recipe


def draw_array(seed: int, shape: Sequence[int], layout: str = "C") -> Array:
    """Returns random numbers in C order, or as an image channels last: dense, inside a halo, or a slice of more channels."""
    array = np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)
    if layout == "C":
        return array
    n, c, h, w = shape
    more = {"last": (0, 0), "halo": (3, 0), "slice": (0, 5)}[layout]
    memory = np.full((n, h + more[0], w + more[0], c + more[1]), np.nan, np.float32)
    laid = memory[:, more[0] // 2 :, more[0] // 2 :, more[1] // 2 :][:, :h, :w, :c].transpose(0, 3, 1, 2)
    laid[...] = array
    return laid


images = st.fixed_dictionaries(
    {
        "shape": st.tuples(st.integers(1, 3), st.sampled_from([1, 3, 8, 17, 40, 130]), st.integers(1, 9), st.integers(1, 9)),
        "x": st.sampled_from(["last", "halo", "slice"]),
        "y": st.sampled_from(["last", "halo", "slice"]),
        "other": st.sampled_from(["full", "channel", "image", "one", "pixel"]),
        "width": st.sampled_from(WIDTHS or (0,)),
    }
)


@SETTINGS
@given(case=images)
def test_sum_of_images_channels_last_equals_numpy(case: Any) -> None:
    n, c, h, w = shape = case["shape"]
    x = draw_array(1, shape, case["x"])
    sizes = {"full": shape, "channel": (c, 1, 1), "image": (n, c, 1, 1), "one": (1,), "pixel": (n, 1, h, w)}[case["other"]]
    addend = draw_array(2, sizes, "slice" if case["other"] == "full" else "C")
    site = make_site([make_node("Add", ["x", "other"], "s"), make_node("Relu", ["s"], "y")], {"x": x, "other": addend}, shape)
    y = draw_array(3, shape, case["y"])
    recipe = plan_native_expression(site)
    if not site.is_channels_last("x") or c == 1:
        return
    assert recipe is not None
    assert recipe.is_channels_last
    run_site(site, {"x": x, "other": addend}, y, case["width"])
    np.testing.assert_array_equal(y, np.maximum(x + addend, 0))
    # No element outside the image is written.
    assert np.isnan(y.base).sum() == y.base.size - y.size


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("height", [2, 5, 40])
def test_narrow_image_of_one_channel_is_written_into_a_halo(height: int, width: int) -> None:
    x, y = draw_array(0, (2, 3, height, 1))[:, :1], draw_array(0, (2, 1, height, 1), "halo")
    run_site(make_site([make_node("Relu", ["x"], "y")], {"x": x}, x.shape), {"x": x}, y, width)
    assert np.array_equal(y, np.maximum(x, 0))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", [(1,), (7,), (4096,), (100_001,), (3, 5), (2, 3, 50), (70, 700), (2, 3, 2, 2, 3)])
@pytest.mark.parametrize("operand", ["full", "last", "rows", "one"])
def test_product_in_c_order_equals_numpy(shape: tuple[int, ...], operand: str, width: int) -> None:
    sizes = {"full": shape, "last": shape[-1:], "rows": (*shape[:-1], 1), "one": ()}[operand]
    arrays = {"x": draw_array(1, shape), "other": draw_array(2, sizes)}
    y = np.full(shape, np.nan, np.float32)
    run_site(make_site([make_node("Mul", ["x", "other"], "y")], arrays, shape), arrays, y, width)
    np.testing.assert_array_equal(y, arrays["x"] * arrays["other"])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("op_type", "formula"),
    [
        ("Add", np.add),
        ("Sub", np.subtract),
        ("Mul", np.multiply),
        ("Div", np.divide),
        ("Max", np.maximum),
        ("Min", np.minimum),
        ("Sum", np.add),
        ("PRelu", lambda a, b: np.where(a < 0, a * b, a)),
    ],
)
def test_arithmetic_equals_numpy_with_nan_and_infinity(op_type: str, formula: Any, width: int) -> None:
    special = np.array([0, -1, 2, np.inf, -np.inf, np.nan, 3e38, 1e-40], np.float32)
    arrays = {"a": np.repeat(special, 8), "b": np.tile(special, 8)}
    y = np.empty(64, np.float32)
    run_site(make_site([make_node(op_type, ["a", "b"], "y")], arrays, (64,)), arrays, y, width)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, formula(arrays["a"], arrays["b"]))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", [(2, 19, 5, 3), (3, 70)])
def test_batch_normalization_and_relu_equal_the_formula(shape: tuple[int, ...], width: int) -> None:
    channels = shape[1]
    arrays = {name: draw_array(seed, (channels,)) for seed, name in enumerate(["scale", "bias", "mean"])}
    arrays |= {"variance": np.abs(draw_array(9, (channels,))), "x": draw_array(4, shape, "last" if len(shape) == 4 else "C")}
    nodes = [
        make_node("BatchNormalization", ["x", "scale", "bias", "mean", "variance"], "n", epsilon=1e-3),
        make_node("Relu", ["n"], "y"),
    ]
    y = draw_array(5, shape, "last" if len(shape) == 4 else "C")
    run_site(make_site(nodes, arrays, shape, ["scale", "bias", "mean", "variance"]), arrays, y, width)
    wide = {
        name: array.astype(np.float64).reshape(-1, *[1] * (len(shape) - 2)) if name != "x" else array.astype(np.float64)
        for name, array in arrays.items()
    }
    expected = (wide["x"] - wide["mean"]) / np.sqrt(wide["variance"] + 1e-3) * wide["scale"] + wide["bias"]
    np.testing.assert_allclose(y, np.maximum(expected, 0), rtol=1e-5, atol=1e-5)


def test_result_in_the_place_of_an_operand_equals_numpy() -> None:
    arrays = {"a": draw_array(1, (3, 5000)), "b": draw_array(2, (5000,))}
    site = make_site([make_node("Sub", ["a", "b"], "t"), make_node("Exp", ["t"], "y")], arrays, (3, 5000))
    expected = np.exp((arrays["a"] - arrays["b"]).astype(np.float64))
    recipe = run_site(site, arrays, arrays["a"], WIDTHS[-1])
    assert recipe.overwrites == (0,)
    np.testing.assert_allclose(arrays["a"], expected, rtol=3e-7)


def test_operand_with_an_alias_is_not_overwritten() -> None:
    a = draw_array(1, (6,))
    recipe = plan_native_expression(make_site([make_node("Add", ["a", "b"], "y")], {"a": a, "b": a[2:3]}, (6,)))
    assert recipe is not None
    assert recipe.overwrites == ()


@pytest.mark.parametrize(
    ("a", "b", "shape"),
    [
        # A transposed operand; a strided operand; another type.
        (draw_array(1, (60, 40)), draw_array(2, (40, 60)).T, (60, 40)),
        (draw_array(1, (60, 80))[:, ::2], draw_array(2, (60, 40)), (60, 40)),
        (draw_array(1, (4,)), np.ones(4), (4,)),
        (draw_array(1, (1, 8, 30, 30), "last"), draw_array(1, (1, 8, 30, 30)), (1, 8, 30, 30)),
    ],
)
def test_many_elements_that_do_not_lie_in_rows_are_refused(a: Array, b: Array, shape: tuple[int, ...]) -> None:
    assert plan_native_expression(make_site([make_node("Add", ["a", "b"], "y")], {"a": a, "b": b}, shape)) is None


def test_rows_of_a_halo_keep_three_axes() -> None:
    y = draw_array(1, (2, 8, 5, 6), "halo")
    rows = cut_rows(y, [draw_array(1, (2, 8, 1, 1))])
    assert rows is not None
    assert (rows.sizes, rows.length) == ((2, 5, 6), 8)
    assert [strides[1] for strides in rows.strides] == [32, 0, 0]
    assert find_kind(draw_array(1, (2, 1, 5, 6)), y) == "r"


NUMBERS = {"root": 1.4142135, "one": 1.0, "half": 0.5}
GELU = "a = Div (x, root) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Mul (d, half)"


def read_groups(body: str, *, shape: str = "2, 40") -> tuple[Group, ...]:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{shape}] x) => (float[{shape}] y) {{ {body} }}'
    )
    model.graph.initializer.extend(onnx.helper.make_tensor(name, 1, (), [value]) for name, value in NUMBERS.items())
    network = read_network(onnx.shape_inference.infer_shapes(model))
    types = {name: value_type for name, value_type in network.types.items() if isinstance(value_type, TensorType)}
    constants = {name: initializer.array for name, initializer in network.initializers.items()}
    types.update({name: initializer.type for name, initializer in network.initializers.items()})
    return join_chains(form_groups(network, types, constants), network, types, constants)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (GELU, [["Div", "Erf", "Add", "Mul", "Mul"]]),
        ("s = Sigmoid (x) y = Mul (x, s)", [["Sigmoid", "Mul"]]),
        # A value with two readers joins them if both are in the chain, but not if a third node outside also reads it.
        ("a = Exp (x) b = Neg (a) y = Mul (a, b)", [["Exp", "Neg", "Mul"]]),
        ("a = Exp (x) b = Neg (a) c = Softmax (a) d = Mul (a, b) y = Add (c, d)", [["Exp"], ["Softmax"], ["Neg", "Mul", "Add"]]),
        ("a = Softmax (x) b = Relu (a) y = Softmax (b)", [["Softmax"], ["Relu"], ["Softmax"]]),
    ],
)
def test_nodes_without_readers_between_them_form_one_group(body: str, expected: list[list[str]]) -> None:
    assert [[node.op_type for node in group.members] for group in read_groups(body)] == expected


@pytest.mark.parametrize("width", WIDTHS)
def test_gelu_in_parts_equals_the_formula(width: int) -> None:
    (group,) = read_groups(GELU)
    x = draw_array(1, (2, 40))
    constants = {name: np.array(value, np.float32) for name, value in NUMBERS.items()}
    site = make_site(group.members, {"x": x, **constants}, (2, 40), list(constants))
    y = np.empty_like(x)
    run_site(site, {"x": x}, y, width)
    expected = 0.5 * x.astype(np.float64) * (1 + np.vectorize(erf)(x.astype(np.float64) / np.sqrt(2)))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)
