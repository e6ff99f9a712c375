"""WEIGHTS_ONCE: each weight is held in a single form for all input sizes, and answers stay right."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from hetero_core import Core, ExecutableNetwork
from hetero_core.conformance.models import run_onnxruntime

PRODUCTS = (
    "g (float[n, 200] x) => (float[n, 300] y) {"
    " a = MatMul(x, w0)  b = Relu(a)  c = Gemm<transB = 1>(b, w1, w2)  d = Tanh(c)  y = MatMul(d, w3) }"
)
PRODUCT_SHAPES = {"w0": (200, 500), "w1": (400, 500), "w2": (400,), "w3": (400, 300)}
IMAGES = (
    "g (float[1, 64, h, w] x) => (float[1, 64, p, q] y) {"
    " a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w0)  b = Relu(a)"
    " c = Conv <kernel_shape = [1, 1]> (b, w1)  y = Conv <kernel_shape = [3, 3], group = 4> (c, w2) }"
)
IMAGE_SHAPES = {"w0": (128, 64, 3, 3), "w1": (128, 128, 1, 1), "w2": (64, 32, 3, 3)}


def make_model(text: str, shapes: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Returns a model of opset 17 with random weights."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    generator = np.random.default_rng(5)
    for name, shape in shapes.items():
        weight = (generator.standard_normal(shape) / 20).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def count_bytes(model: onnx.ModelProto) -> int:
    return sum(onnx.numpy_helper.to_array(weight).nbytes for weight in model.graph.initializer)


def count_held(loaded: ExecutableNetwork) -> int:
    return sum(int(loaded.get_metric(f"CPU_{kind}_BYTES")) for kind in ("WEIGHT", "CONSTANT"))


def draw(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "shapes", "inputs"),
    [
        (PRODUCTS, PRODUCT_SHAPES, [(1, 200), (3, 200), (17, 200), (64, 200), (2, 200)]),
        (IMAGES, IMAGE_SHAPES, [(1, 64, 40, 40), (1, 64, 7, 9), (1, 64, 20, 33), (1, 64, 3, 3)]),
        (IMAGES.replace("h, w", "30, 30"), IMAGE_SHAPES, [(1, 64, 30, 30)]),
    ],
    ids=["products", "images", "one image"],
)
def test_weights_are_held_once_for_all_sizes(
    core: Core, text: str, shapes: dict[str, tuple[int, ...]], inputs: list[tuple[int, ...]]
) -> None:
    model = make_model(text, shapes)
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "WEIGHTS_ONCE": "YES"})
    for shape in inputs:
        x = draw(shape)
        np.testing.assert_allclose(loaded.infer({"x": x})["y"], run_onnxruntime(model, {"x": x})[0], rtol=1e-4, atol=1e-4)
    assert 0.99 * count_bytes(model) <= count_held(loaded) <= 1.1 * count_bytes(model)


def test_products_of_several_sizes_have_several_forms_by_default(core: Core) -> None:
    model = make_model(PRODUCTS, PRODUCT_SHAPES)
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    for rows in (1, 3, 17, 64):
        loaded.infer({"x": draw((rows, 200))})
    assert count_held(loaded) > 1.1 * count_bytes(model)


def test_blob_of_weights_that_are_held_once_is_imported_as_such(core: Core, tmp_path: Path) -> None:
    model, config = make_model(PRODUCTS, PRODUCT_SHAPES), {"CPU_KERNELS": "JIT", "WEIGHTS_ONCE": "YES"}
    loaded = core.load_network(model, "CPU", config)
    x = draw((3, 200))
    expected = loaded.infer({"x": x})["y"]
    loaded.export_network(tmp_path / "g.blob")
    imported = core.import_network(tmp_path / "g.blob", "CPU")
    assert imported.get_config("WEIGHTS_ONCE") is True
    for rows in (1, 3, 64):
        imported.infer({"x": draw((rows, 200))})
    np.testing.assert_allclose(imported.infer({"x": x})["y"], expected, rtol=1e-6)
    assert count_held(imported) <= 1.1 * count_bytes(model)


def test_table_of_a_blob_is_read_in_place_by_plans_of_all_sizes(core: Core, tmp_path: Path) -> None:
    text = "g (int64[n] i) => (float[n, 32] y) { a = Gather(table, i)  y = MatMul(a, w0) }"
    model = make_model(text, {"table": (3000, 64), "w0": (64, 32)})
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    loaded.infer({"i": np.arange(5)})
    loaded.export_network(tmp_path / "g.blob")
    content = io.BytesIO((tmp_path / "g.blob").read_bytes())
    for imported in (core.import_network(tmp_path / "g.blob", "CPU"), core.import_network(content, "CPU")):
        for count in (5, 1, 9):
            i = np.arange(count) * 300
            np.testing.assert_allclose(imported.infer({"i": i})["y"], run_onnxruntime(model, {"i": i})[0], rtol=1e-4, atol=1e-4)
        # A product with a single row reads the matrix without packing it.
        assert 3000 * 64 * 4 <= imported.get_metric("CPU_CONSTANT_BYTES") <= (3000 + 32) * 64 * 4
