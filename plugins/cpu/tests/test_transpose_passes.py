"""Transposes cancel in pairs, around elementwise operators and in Gemm; results stay equal."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from hetero_cpu.transforms.transposes import cancel_transposes, merge_transposes
from hetero_tests.passes import check as check_pass
from hetero_tests.passes import draw_array, list_operators
from hetero_tests.passes import parse as parse_with
from hetero_tests.samples import DRAWS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from hetero_core import Core
from hetero_core.kernels.program import compile_program

SETTINGS = settings(DRAWS, suppress_health_check=[HealthCheck.function_scoped_fixture])


CONSTANTS: dict[str, Any] = {
    "bias": draw_array(1, 4),
    "plane": draw_array(2, 5, 6, 4),
    "number": np.float32(0.3),
    "low": np.float32(-0.5),
    "high": np.float32(0.5),
    "filter": draw_array(3, 4, 4, 1, 1),
    "channel": np.array([3]),
    "other": draw_array(4, 1, 5, 6, 2),
}


parse = partial(parse_with, constants=CONSTANTS, opset=18)
check = partial(check_pass, transform=cancel_transposes)
IMAGES = "g (float[1,4,5,6] x) => (float[1,4,5,6] y)"
TO_LAST, TO_FIRST = "Transpose <perm = [0, 2, 3, 1]>", "Transpose <perm = [0, 3, 1, 2]>"


@pytest.mark.parametrize(
    ("inner", "operators"),
    [
        ("u = Relu (t)", ["Relu"]),
        ("u = Add (t, bias)", ["Add"]),
        ("u = Sub (plane, t)", ["Sub"]),
        ("u = Mul (t, number)", ["Mul"]),
        ("u = Clip (t, low, high)", ["Clip"]),
        ("a = Sigmoid (t) u = Mul (t, a)", ["Sigmoid", "Mul"]),
    ],
)
def test_transposes_around_layout_independent_operators_vanish(core: Core, inner: str, operators: list[str]) -> None:
    network = check(core, parse(f"{IMAGES} {{ t = {TO_LAST} (x) {inner} y = {TO_FIRST} (u) }}"))
    assert [name for name in list_operators(network) if name != "Identity"] == operators


def test_concat_is_turned_with_its_axis(core: Core) -> None:
    text = f"t = {TO_LAST} (x) r = {TO_LAST} (z) u = Concat <axis = 3> (t, other, r) y = {TO_FIRST} (u)"
    network = check(core, parse(f"g (float[1,4,5,6] x, float[1,3,5,6] z) => (float[1,9,5,6] y) {{ {text} }}"))
    (concat,) = (node for node in network.nodes if node.op_type == "Concat")
    assert concat.attributes["axis"] == 1
    assert "Transpose" not in list_operators(network)


def test_channels_last_convolutions_lose_their_transposes(core: Core) -> None:
    """The layout of tf2onnx: each convolution lies between two transposes, biases and sums lie outside."""
    blocks = "".join(
        f"a{i} = {TO_FIRST} (h{i}) c{i} = Conv (a{i}, filter) b{i} = {TO_LAST} (c{i}) s{i} = Add (b{i}, bias) r{i} = Relu (s{i}) "
        f"h{i + 1} = Add (r{i}, h{i}) "
        for i in range(3)
    )
    text = f"g (float[1,5,6,4] h0) => (float[1,5,6,4] y) {{ {blocks} y = Identity (h3) }}"
    network = check(core, parse(text))
    operators = list_operators(network)
    assert operators.count("Transpose") == 2
    assert operators[0] == "Transpose"
    known = {
        name for node in core.read_network(parse(text)).nodes if node.op_type in ("Conv", "Add", "Relu") for name in node.origins
    }
    assert known <= {name for node in network.nodes for name in node.origins}


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (IMAGES.replace("[1,4,5,6] y", "[1,5,6,4] y"), f"t = {TO_LAST} (x) y = Relu (t)"),
        (IMAGES.replace("[1,4,5,6] y", "[1,5,6] y"), f"t = {TO_LAST} (x) y = ReduceMean <keepdims = 0> (t, channel)"),
        (IMAGES, f"t = {TO_LAST} (x) s = Softmax (t) y = {TO_FIRST} (s)"),
        ("g (float[1,4,5,6] x, float[1,5,6,4] z) => (float[1,5,6,4] y)", f"t = {TO_LAST} (x) y = Add (t, z)"),
        (
            IMAGES.replace("[1,4,5,6] y", "[1,6,5,4] y, float[1,5,6,4] t"),
            f"t = {TO_LAST} (x) u = Relu (t) y = Transpose <perm = [0, 2, 1, 3]> (u)",
        ),
    ],
    ids=["an output", "fewer axes", "an axis", "only one side", "the transpose is an output"],
)
def test_transposes_stay_if_moving_them_saves_none(core: Core, head: str, text: str) -> None:
    network = core.read_network(parse(f"{head} {{ {text} }}"))
    assert cancel_transposes(network) is network


def test_output_within_a_region_gets_a_transpose_of_its_own(core: Core) -> None:
    head = IMAGES.replace(" y)", " y, float[1,5,6,4] u)")
    network = check(core, parse(f"{head} {{ t = {TO_LAST} (x) u = Relu (t) w = Neg (u) y = {TO_FIRST} (w) }}"))
    assert [name for name in list_operators(network) if name != "Identity"] == ["Relu", "Transpose", "Neg"]


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
    network = check(core, model)
    assert list_operators(network).count("Transpose") <= [node.op_type for node in nodes].count("Transpose")
