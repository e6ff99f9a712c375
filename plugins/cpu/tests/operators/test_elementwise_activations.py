"""The vector function of each node: its numbers from attributes and constants, and refused nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_cpu.machine.arithmetic import Activation
from hetero_cpu.operators.elementwise import read_activation

from hetero_core.network.graph import Node

CONSTANTS = {"two": np.float32(2), "six": np.full(1, 6, np.float32), "nan": np.float32(np.nan), "row": np.ones(3, np.float32)}


def make_node(op_type: str, *inputs: str, since_version: int = 13, **attributes: Any) -> Node:
    return Node("n", op_type, ("x", *inputs), ("y",), attributes=attributes, since_version=since_version)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (make_node("Relu"), Activation("Relu")),
        (make_node("Clip", "two", "six"), Activation("Clip", (2.0, 6.0))),
        (make_node("Clip", "", "six"), Activation("Clip", (float(np.finfo(np.float32).min), 6.0))),
        (make_node("Clip", since_version=6, min=-1.0), Activation("Clip", (-1.0, float(np.finfo(np.float32).max)))),
        (make_node("LeakyRelu", alpha=0.1), Activation("LeakyRelu", (float(np.float32(0.1)),))),
        (make_node("HardSigmoid"), Activation("HardSigmoid", (float(np.float32(0.2)), 0.5))),
        (make_node("PRelu", "six"), Activation("LeakyRelu", (6.0,))),
    ],
    ids=lambda value: value.name if isinstance(value, Activation) else value.op_type,
)
def test_function_of_one_value_has_the_numbers_of_its_node(node: Node, expected: Activation) -> None:
    assert read_activation(node, CONSTANTS) == expected


@pytest.mark.parametrize(
    "node",
    [
        make_node("Relu", since_version=1, consumed_inputs=[0]),
        make_node("Clip", "computed"),
        make_node("Clip", "nan"),
        make_node("Clip", "row"),
        make_node("PRelu", "row"),
        make_node("Softmax"),
        make_node("Gelu", approximate="other"),
    ],
    ids=lambda node: "-".join((node.op_type, *node.inputs[1:])),
)
def test_node_that_no_vector_function_computes_is_refused(node: Node) -> None:
    assert read_activation(node, CONSTANTS) is None
