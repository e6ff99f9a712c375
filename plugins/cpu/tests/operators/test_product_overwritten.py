"""A product with its own input added: the result must not overwrite memory that further tiles still read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper as oh
import pytest

from hetero_core import Core


def run_sum(front: Any, product: Any, constants: dict[str, Any], x: Any) -> Any:
    """Returns product(a) + a for a = front(x), computed by CPU with machine code."""
    from hetero_cpu.machine.compiler import find_width

    if not find_width():
        pytest.skip("no machine code is made for this processor")
    nodes = [front, product, oh.make_node("Add", ["b", "a"], ["y"])]
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", 1, x.shape)],
        [oh.make_tensor_value_info("y", 1, x.shape)],
        [oh.make_tensor(name, 1, array.shape, array.reshape(-1)) for name, array in constants.items()],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
    with Core() as core:
        return core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"}).infer({"x": x})["y"]


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("size", "group"), [(1, 1), (3, 1), (1, 4), (3, 4), (3, 64)])
def test_convolution_with_its_input_added_equals_the_formula(size: int, group: int) -> None:
    x, w = draw_array(1, 1, 64, 20, 20), draw_array(2, 64, 64 // group, size, size)
    border = size // 2
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (border, border), (border, border)))
    exact = x.astype(np.float64)
    for i, j in np.ndindex(size, size):
        met = padded[0, :, i : i + 20, j : j + 20].reshape(group, -1, 20, 20)
        exact += np.einsum("gchw,goc->gohw", met, w[..., i, j].reshape(group, 64 // group, -1)).reshape(1, 64, 20, 20)
    # A pooling of single elements puts its result channels last, as a convolution would.
    front = oh.make_node("MaxPool", ["x"], ["a"], kernel_shape=[1, 1])
    output = run_sum(front, oh.make_node("Conv", ["a", "w"], ["b"], pads=[border] * 4, group=group), {"w": w}, x)
    np.testing.assert_allclose(output, exact, rtol=0, atol=2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("columns", [40, 300])
def test_matrix_product_with_its_input_added_equals_the_formula(columns: int) -> None:
    x, w = draw_array(1, 60, columns), draw_array(2, columns, columns)
    exact = -x.astype(np.float64) @ w - x
    output = run_sum(oh.make_node("Neg", ["x"], ["a"]), oh.make_node("MatMul", ["a", "w"], ["b"]), {"w": w}, x)
    np.testing.assert_allclose(output, exact, rtol=0, atol=2e-5 * np.abs(exact).max())
