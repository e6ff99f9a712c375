"""Products with constant weights by machine code: long sums split into pieces, and results written over an input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_core import Core
from hetero_core.network.graph import Node

from ..conftest import NativeRun

SETTINGS = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
HALF_ULP = 2.0**-24


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def run_product(native: NativeRun, nodes: list[Node], images: dict[str, Any], constants: dict[str, Any], outputs: int) -> Any:
    from hetero_cpu.operators.product import plan_native_product

    shape = (len(images["x"]), outputs)
    recipe = plan_native_product(native.make_site(nodes, images, constants, shape))
    assert recipe is not None
    assert [kernel for kernel in recipe.kernels if "pieces" in kernel.name]
    y = np.full(shape, np.nan, np.float32)
    native.run(recipe, images, y)
    return y


@SETTINGS
@given(
    rows=st.sampled_from([1, 2, 19, 30]),
    depth=st.sampled_from([2049, 2500, 4103]),
    outputs=st.sampled_from([1, 20, 96, 205]),
    after=st.lists(st.sampled_from(["Add", "Relu"]), unique=True),
)
def test_long_sums_of_any_sizes_equal_the_formula(native: NativeRun, rows: int, depth: int, outputs: int, after: list[str]) -> None:
    x, w, r = draw_array(1, rows, depth), draw_array(2, depth, outputs), draw_array(3, rows, outputs)
    exact, size_of_terms = x.astype(np.float64) @ w, abs(x).astype(np.float64) @ abs(w)
    nodes, images = [Node("m", "MatMul", ("x", "w"), ("y0",), since_version=13)], {"x": x}
    if "Add" in after:
        nodes.append(Node("a", "Add", ("y0", "r"), ("y1",), since_version=14))
        images["r"], exact, size_of_terms = r, exact + r, size_of_terms + abs(r)
    if "Relu" in after:
        nodes.append(Node("n", "Relu", ("y1",), ("y2",), since_version=14))
        exact = np.maximum(exact, 0)
    output = run_product(native, nodes, images, {"w": w}, outputs)
    # No sum is longer than 1024 products and the sums of the pieces.
    assert np.all(abs(output - exact) <= 1040 * HALF_ULP * size_of_terms)
    assert abs(output - exact).max() <= 2e-6 * abs(size_of_terms).max()


@pytest.mark.parametrize("rows", [1, 8])
def test_long_sums_of_one_sign_lose_few_digits(native: NativeRun, rows: int) -> None:
    depth, outputs = 25088, 48
    x, w = abs(draw_array(1, rows, depth)), abs(draw_array(2, depth, outputs))
    exact = x.astype(np.float64) @ w
    nodes = [Node("m", "MatMul", ("x", "w"), ("y",), since_version=13)]
    output = run_product(native, nodes, {"x": x}, {"w": w}, outputs)
    # As a single piece the sums lose up to 20 times as much.
    assert abs(output / exact - 1).max() < 1e-6


@pytest.mark.parametrize(("depth", "pieces", "size"), [(2048, 1, 2048), (2049, 3, 684), (3072, 3, 1024), (25088, 25, 1004)])
def test_sums_of_over_2048_products_split_into_pieces_up_to_1024(depth: int, pieces: int, size: int) -> None:
    pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
    from hetero_cpu.operators.tiling import choose_pieces

    assert choose_pieces(depth) == (pieces, size)


@pytest.mark.parametrize("added", ["r", "x", "view of x"])
def test_product_overwrites_only_an_addend_it_does_not_multiply(native: NativeRun, added: str) -> None:
    from hetero_cpu.operators.product import plan_native_product

    x = draw_array(1, 20, 48)
    images = {"x": x, "r": draw_array(2, 20, 48) if added == "r" else x[:]}
    name = "x" if added == "x" else "r"
    nodes = [
        Node("m", "MatMul", ("x", "w"), ("y0",), since_version=13),
        Node("a", "Add", ("y0", name), ("y1",), since_version=14),
    ]
    images = {"x": x} if added == "x" else images
    recipe = plan_native_product(native.make_site(nodes, images, {"w": draw_array(3, 48, 48)}, (20, 48)))
    assert recipe is not None
    assert recipe.overwrites == ((1,) if added == "r" else ())


@pytest.mark.parametrize("operator", ["MatMul", "Conv", "Conv of 3 x 3"])
def test_network_that_adds_a_factor_equals_the_formula(operator: str) -> None:
    pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
    from onnx import TensorProto, helper, numpy_helper

    size = 3 if operator.endswith("3") else 1
    x, w = draw_array(1, 1, 160, 9, 160), draw_array(2, 160, 160, size, size)
    shape = [1, 160, 9, 160]
    if operator == "MatMul":
        weight = w[:, :, 0, 0]
        product = helper.make_node("MatMul", ["a", "w"], ["m"])
        exact = np.maximum(x, 0).astype(np.float64) @ weight + np.maximum(x, 0)
    else:
        weight, border = w, size // 2
        product = helper.make_node("Conv", ["a", "w"], ["m"], pads=[border] * 4)
        padded = np.pad(np.maximum(x, 0).astype(np.float64), ((0, 0), (0, 0), (border, border), (border, border)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))
        exact = np.einsum("nchwij,ocij->nohw", windows, w, optimize=True) + np.maximum(x, 0)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        product,
        helper.make_node("Add", ["m", "a"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "sums", values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 2})
        output = loaded.infer({"x": x})["y"]
    np.testing.assert_allclose(output, np.maximum(exact, 0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 20), (37, 20), (3, 5, 20)])
def test_product_with_a_vector_equals_the_formula_also_from_a_blob(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
    from onnx import numpy_helper, parser

    text = f"""<ir_version: 8, opset_import: ["": 17]> linear (float{list(shape)} x) => (float{list(shape[:-1])} y) {{
        p = MatMul (x, v) s = Add (p, b) y = Exp (s) }}"""
    model, x, v = parser.parse_model(text), draw_array(1, *shape), draw_array(2, 20)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in (("v", v), ("b", np.ones(1, np.float32)))
    )
    exact = np.exp(x.astype(np.float64) @ v + 1)
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        np.testing.assert_allclose(loaded.infer({"x": x})["y"], exact, rtol=1e-5)
        assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0
        loaded.export_network(tmp_path / "linear.blob")
        imported = core.import_network(tmp_path / "linear.blob", "CPU")
        np.testing.assert_allclose(imported.infer({"x": x})["y"], exact, rtol=1e-5)
