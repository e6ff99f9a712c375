"""A ConvTranspose whose windows overlap is computed as a convolution; the answers are those of the reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper
import pytest
from hetero_cpu.transforms.lines import convolve_upsampling, lift_lines
from hetero_tests.passes import draw_array, list_operators
from onnx.reference import ReferenceEvaluator

from hetero_core import Core

# Kernel, strides, pads, output padding.
LINES = (
    ((4,), (2,), (0, 0), (0,)), ((4,), (2,), (1, 1), (0,)), ((7,), (4,), (2, 1), (1,)), ((16,), (8,), (4, 4), (0,)),
    ((3,), (2,), (1, 1), (1,)), ((3,), (1,), (1, 0), (0,)), ((2,), (3,), (0, 0), (0,)), ((3,), (3,), (1, 0), (0,)),
)  # fmt: skip
IMAGES = (
    ((4, 4), (2, 2), (1, 1, 1, 1), (0, 0)), ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)), ((5, 2), (3, 1), (0, 1, 2, 0), (0, 0)),
    ((1, 4), (1, 2), (0, 1, 0, 1), (0, 0)), ((3, 4), (1, 2), (1, 1, 1, 1), (0, 1)),
)  # fmt: skip
VOLUMES = (
    ((3, 3, 3), (2, 2, 2), (1,) * 6, (1, 1, 1)), ((4, 2, 3), (2, 1, 3), (1, 0, 0, 1, 0, 1), (0, 0, 0)),
    ((3, 3, 3), (1, 1, 1), (1, 1, 1, 0, 1, 1), (0, 0, 0)), ((1, 2, 2), (1, 2, 2), (0, 1, 0, 0, 0, 0), (0, 0, 0)),
)  # fmt: skip


def make_model(geometry: tuple[Any, ...], *, is_open: bool, bias: bool = True, **attributes: Any) -> Any:
    kernel, strides, pads, more = geometry
    names = {"kernel_shape": kernel, "strides": strides, "pads": pads, "output_padding": more} | attributes
    inputs = ["x", "w", "b"] if bias else ["x", "w"]
    channels = 20
    sizes = [f"size{axis}" for axis in range(len(kernel))] if is_open else [9, 6, 4][: len(kernel)]
    constants = {"w": draw_array(1, channels, 6 // attributes.get("group", 1), *kernel), "b": draw_array(2, 6)}
    graph = oh.make_graph(
        [oh.make_node("ConvTranspose", inputs, ["y"], **names), oh.make_node("Relu", ["y"], ["z"])],
        "g",
        [oh.make_tensor_value_info("x", 1, ["batch" if is_open else 2, channels, *sizes])],
        [oh.make_tensor_value_info("z", 1, None)],
        [onnx.numpy_helper.from_array(constants[name], name) for name in inputs[1:]],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("geometry", [*LINES, *IMAGES, *VOLUMES])
def test_answer_is_that_of_the_reference(core: Core, kernels: str, geometry: tuple[Any, ...], bias: bool, is_open: bool) -> None:
    model = make_model(geometry, is_open=is_open, bias=bias)
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": kernels})
    for sizes in ((9, 6, 4), (13, 5, 3), (1, 1, 2)) if is_open else ((9, 6, 4),):
        x = draw_array(3, 2, 20, *sizes[: len(geometry[0])])
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        answer = loaded.infer({"x": x})["z"]
        assert answer.shape == expected.shape
        np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("geometry", [*LINES, *IMAGES, *VOLUMES])
def test_overlapping_windows_become_a_convolution(core: Core, geometry: tuple[Any, ...]) -> None:
    network = convolve_upsampling(lift_lines(core.read_network(make_model(geometry, is_open=False))))
    operators = list_operators(network)
    assert "Conv" in operators
    assert "ConvTranspose" not in operators


@pytest.mark.parametrize(
    ("geometry", "attributes"),
    [
        (((2, 2), (2, 2), (0, 0, 0, 0), (0, 0)), {}),
        (((3, 3), (2, 2), (0, 0, 0, 0), (0, 0)), {"dilations": [2, 1]}),
        (((3, 3), (2, 2), (0, 0, 0, 0), (0, 0)), {"group": 2}),
        (((3, 3), (4, 4), (0, 0, 0, 0), (2, 2)), {}),
    ],
)
def test_other_convolutions_stay(core: Core, geometry: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    network = convolve_upsampling(core.read_network(make_model(geometry, is_open=False, **attributes)))
    assert list_operators(network) == ["ConvTranspose", "Relu"]
