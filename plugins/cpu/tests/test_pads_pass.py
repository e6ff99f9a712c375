"""The pass that lets convolutions pad for themselves, against the toolkit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from hetero_cpu.transforms.reshapes import fold_pads
from hetero_tests.passes import check, draw_array, list_operators
from hetero_tests.samples import DRAWS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_core import Core
from hetero_core.kernels.program import compile_program

SETTINGS = settings(DRAWS, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_convolution(pads: list[int], own: list[int], number: float, **attributes: Any) -> onnx.ModelProto:
    """Returns a model of Relu, Pad and Conv over images of 6x7."""
    arrays = {"pads": np.array(pads), "number": np.array(number, np.float32), "w": draw_array(1, 2, 3, 2, 3)}
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    nodes = [
        oh.make_node("Relu", ["x"], ["a"]),
        oh.make_node("Pad", ["a", "pads", "number"], ["p"]),
        oh.make_node("Conv", ["p", "w"], ["y"], pads=own, **attributes),
    ]
    outputs = [oh.make_tensor_value_info("y", 1, None)]
    graph = oh.make_graph(nodes, "g", [oh.make_tensor_value_info("x", 1, (2, 3, 6, 7))], outputs, constants)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)


@SETTINGS
@given(data=st.data())
def test_pads_before_convolutions_keep_the_numbers(core: Core, data: st.DataObject) -> None:
    pads = [0, 0, *data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=2)), 0, 0]
    pads += data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=2))
    # The filters take three channels, so axis 1 is not padded.
    pads[data.draw(st.sampled_from([0, 2, 3, 4, 6, 7]))] = data.draw(st.sampled_from([0, 1, -1]))
    own = data.draw(st.sampled_from([[0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 2]]))
    strides = data.draw(st.sampled_from([[1, 1], [2, 1]]))
    network = core.read_network(make_convolution(pads, own, data.draw(st.sampled_from([0.0, 0.0, 0.5])), strides=strides))
    x = draw_array(1, 2, 3, 6, 7)
    (reference,) = compile_program(network).run((x,))
    (actual,) = compile_program(fold_pads(network)).run((x,))
    np.testing.assert_allclose(actual, reference, rtol=1e-5, atol=1e-6)


EVEN = [0, 0, 1, 1, 0, 0, 0, 1]


@pytest.mark.parametrize(("own", "sums"), [([0, 0, 0, 0], (1, 1, 0, 1)), ([1, 2, 0, 1], (2, 3, 0, 2))])
def test_pad_moves_into_the_convolution(core: Core, own: list[int], sums: tuple[int, ...]) -> None:
    network = check(core, make_convolution(EVEN, own, 0), fold_pads)
    assert list_operators(network) == ["Relu", "Conv"]
    assert network.nodes[1].attributes["pads"] == sums
    assert network.nodes[1].origins == ("Pad_1", "Conv_2")


@pytest.mark.parametrize(
    ("pads", "own", "number"),
    [(EVEN, [0, 0, 0, 0], 0.5), ([1, *EVEN[1:]], [0, 0, 0, 0], 0), ([0, 0, -1, 1, 0, 0, 0, 1], [1, 0, 0, 0], 0)],
    ids=["a different number", "the batch", "a cut"],
)
def test_pad_stays_if_the_convolution_pads_differently(core: Core, pads: list[int], own: list[int], number: float) -> None:
    network = core.read_network(make_convolution(pads, own, number))
    assert fold_pads(network) is network
