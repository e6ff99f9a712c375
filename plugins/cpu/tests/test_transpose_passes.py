"""Transposes cancel in pairs; results stay equal."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
from hetero_cpu.transforms.reshapes import merge_transposes
from hetero_tests.passes import check, draw_array, list_operators
from hetero_tests.samples import DRAWS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from hetero_core import Core
from hetero_core.kernels.program import compile_program

SETTINGS = settings(DRAWS, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SETTINGS
@given(perms=st.lists(st.permutations(range(4)), min_size=1, max_size=5), data=st.data())
def test_chain_of_transposes_becomes_at_most_one(core: Core, perms: list[list[int]], data: st.DataObject) -> None:
    nodes = []
    remaining = data.draw(st.integers(0, len(perms)))
    for index, perm in enumerate(perms):
        nodes.append(oh.make_node("Transpose", [f"v{index}"], [f"v{index + 1}"], perm=perm))
    nodes.append(oh.make_node("Neg", [f"v{len(perms)}"], ["y"]))
    nodes.append(oh.make_node("Abs", [f"v{remaining}"], ["z"]))
    outputs = [oh.make_tensor_value_info(name, 1, None) for name in ("y", "z")]
    graph = oh.make_graph(nodes, "g", [oh.make_tensor_value_info("v0", 1, (2, 3, 4, 5))], outputs)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)
    network = merge_transposes(core.read_network(model))
    x = draw_array(1, 2, 3, 4, 5)
    for actual, target in zip(compile_program(network).run((x,)), ReferenceEvaluator(model).run(None, {"v0": x}), strict=True):
        np.testing.assert_array_equal(actual, target)
    assert list_operators(network).count("Transpose") <= 2


UNARY, BINARY = ("Relu", "Neg", "Sigmoid"), ("Add", "Mul", "Sub")


@SETTINGS
@given(data=st.data())
def test_random_graphs_keep_their_numbers_and_gain_no_transposes(core: Core, data: st.DataObject) -> None:
    nodes, ranks = [], {"x": (2, 3, 4), "w": (2, 3, 4)}
    for index in range(data.draw(st.integers(2, 12))):
        value = data.draw(st.sampled_from(sorted(ranks)))
        kind = data.draw(st.sampled_from(["Transpose", "Transpose", "unary", "binary", "bias", "Softmax"]))
        name, shape = f"n{index}", ranks[value]
        if kind == "Transpose":
            perm = data.draw(st.permutations(range(3)))
            nodes.append(oh.make_node("Transpose", [value], [name], perm=perm))
            shape = tuple(shape[axis] for axis in perm)
        elif kind == "unary":
            nodes.append(oh.make_node(data.draw(st.sampled_from(UNARY)), [value], [name]))
        elif kind == "Softmax":
            nodes.append(oh.make_node("Softmax", [value], [name], axis=data.draw(st.integers(-3, 2))))
        elif kind == "bias":
            nodes.append(oh.make_node(data.draw(st.sampled_from(BINARY)), [value, f"c{shape[-1]}"], [name]))
        else:
            fitting = sorted(candidate for candidate, actual in ranks.items() if actual == shape)
            nodes.append(oh.make_node(data.draw(st.sampled_from(BINARY)), [value, data.draw(st.sampled_from(fitting))], [name]))
        ranks[name] = shape
    last = sorted(ranks)[-2:]
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info(name, 1, (2, 3, 4)) for name in ("x", "w")],
        [oh.make_tensor_value_info(name, 1, None) for name in last if name not in ("x", "w")]
        or [oh.make_tensor_value_info("n0", 1, None)],
        [onnx.numpy_helper.from_array(draw_array(size, size), f"c{size}") for size in (2, 3, 4)],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)
    network = check(core, model, merge_transposes)
    assert list_operators(network).count("Transpose") <= [node.op_type for node in nodes].count("Transpose")
