"""Planning asks about a bounded number of values for each node; the tests count calls and measure no time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import onnx
import onnx.helper as helper
import onnx.numpy_helper
import pytest

from hetero_core import Core
from hetero_core.transforms.activations import fuse_gelu

FLOAT = onnx.TensorProto.FLOAT


def make_model(nodes: list[onnx.NodeProto], output: str) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("v0", FLOAT, [4])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info(output)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_chain(length: int) -> onnx.ModelProto:
    return make_model([helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(length)], f"v{length}")


def make_fan(length: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", ["v0"], [f"v{i + 1}"]) for i in range(length)]
    return make_model([*nodes, helper.make_node("Sum", [f"v{i + 1}" for i in range(length)], ["y"])], "y")


def make_joins(length: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", ["v0"], ["n"])]
    nodes += [helper.make_node("Concat", [f"v{i}", "n"], [f"v{i + 1}"], axis=0) for i in range(length)]
    return make_model(nodes, f"v{length}")


def make_constants(length: int) -> onnx.ModelProto:
    kinds = ("Add", "Mul", "Sub", "Div")
    model = make_model([helper.make_node(kinds[i % 4], [f"v{i}", f"c{i}"], [f"v{i + 1}"]) for i in range(length)], f"v{length}")
    for i in range(length):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(4, i + 1, np.float32), f"c{i}"))
    return model


def count_calls(action: Callable[[], Any]) -> int:
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("make", [make_chain, make_fan, make_joins, make_constants])
@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
def test_calls_of_planning_grow_with_the_nodes(make: Callable[[int], onnx.ModelProto], kernels: str) -> None:
    if kernels == "JIT":
        pytest.importorskip("llvmlite")
    with Core() as core:
        small, large = (core.read_network(make(length)) for length in (60, 240))
        config = {"CPU_KERNELS": kernels}
        core.load_network(small, "CPU", config)
        few, many = (count_calls(lambda network=network: core.load_network(network, "CPU", config)) for network in (small, large))
    # Four times the nodes; a quadratic cost would be sixteen times the calls.
    assert many < 6 * few


def test_pattern_search_is_cheap_if_nothing_matches() -> None:
    with Core() as core:
        network = core.read_network(make_constants(400))
    # The last operator alone rules out several patterns per node; matching whole patterns took 135 calls for each node.
    assert count_calls(lambda: fuse_gelu(network)) < 90 * 400
    assert fuse_gelu(network) is network


def test_long_chain_is_right() -> None:
    x = np.array([1, -2, 3, 0.5], np.float32)
    with Core() as core:
        assert core.load_network(make_chain(2001), "CPU").infer({"v0": x})["v2001"].tolist() == (-x).tolist()
