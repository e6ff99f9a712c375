"""No-op nodes are removed, pads move into convolutions; results stay equal."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hetero_cpu.transforms.reshapes import drop_zero_states, eliminate_idle
from hetero_tests.passes import check, draw_array, list_operators
from hetero_tests.passes import parse as parse_with
from hetero_tests.samples import DRAWS
from hypothesis import HealthCheck, settings

from hetero_core import Core

SETTINGS = settings(DRAWS, suppress_health_check=[HealthCheck.function_scoped_fixture])


CONSTANTS: dict[str, Any] = {
    "back": np.array([2, 3, 4]),
    "all": np.array([9, 9, 9]),
    "none": np.array([0, 0, 0]),
    "few": np.array([1, 9, 9]),
    "ends": np.array([-1, -1, -1]),
    "starts": np.array([-10, -10, -10]),
    "axes": np.array([0, 1, 2]),
    "ahead": np.array([1, 1, 1]),
    "round": np.array([-1, -1, -1]),
    "shift": np.array([0, 0, 1, 0, 0, -1]),
    "still": np.zeros(6, np.int64),
    "p": draw_array(2, 8, 3),
    "q": draw_array(3, 8, 5),
    "r": draw_array(4, 8, 2),
    "s": draw_array(5, 2, 8, 3),
    "b3": draw_array(6, 3),
    "b5": draw_array(7, 5),
    "b2": draw_array(8, 2),
    "one": draw_array(8, 1),
}


parse = partial(parse_with, constants=CONSTANTS, opset=18)
CUBE = "g (float[2,3,4] x) => (float[2,3,4] y)"


@pytest.mark.parametrize(
    "text",
    [
        "a = Cast <to = 1> (x) y = Neg (a)",
        "a = Concat <axis = 1> (x) y = Neg (a)",
        "a = Sum (x) y = Neg (a)",
        "a = Slice (x, none, all) y = Neg (a)",
        "a = Slice (x, none, all, axes, ahead) y = Neg (a)",
        "a = Expand (x, ahead) y = Neg (a)",
        "a = Tile (x, ahead) y = Neg (a)",
        "a = Pad (x, still) y = Neg (a)",
        "a = Reshape (x, back) y = Neg (a)",
    ],
)
def test_no_op_node_is_removed(core: Core, text: str) -> None:
    assert list_operators(check(core, parse(f"{CUBE} {{ {text} }}"), eliminate_idle)) == ["Neg"]


@pytest.mark.parametrize(
    ("text", "shape_text"),
    [
        ("y = Slice (x, none, few)", "[1,3,4]"),
        ("y = Slice (x, ends, starts, axes, round)", "[2,3,4]"),
        ("y = Pad (x, shift)", "[2,3,4]"),
        ("y = Concat <axis = 0> (x, x)", "[4,3,4]"),
        ("y = Sum (x, x)", "[2,3,4]"),
    ],
    ids=["a part", "reversed", "moved by one", "twice", "twice summed"],
)
def test_node_that_only_looks_like_a_no_op_stays(core: Core, text: str, shape_text: str) -> None:
    network = core.read_network(parse(f"g (float[2,3,4] x) => (float{shape_text} y) {{ {text} }}"))
    assert eliminate_idle(network) is network


STEPS: dict[str, Any] = {
    "w1": draw_array(1, 1, 8, 3),
    "r1": draw_array(2, 1, 8, 2),
    "wg": draw_array(3, 1, 6, 3),
    "rg": draw_array(4, 1, 6, 2),
    "zero": np.zeros((1, 1, 1), np.float32),
    "size": np.array([1, 4, 2]),
    "tall": np.array([2, 4, 2]),
    "begin": np.array([0]),
    "end": np.array([1]),
}
ROWS = "g (float[5,4,3] x) => (float[5,1,4,2] y)"
NO_STATE = "h = ConstantOfShape <value = float[1] {0.0}> (size)"
ONES = "h = ConstantOfShape <value = float[1] {1.0}> (size)"
ONE_STATE = f"{NO_STATE} c = ConstantOfShape <value = float[1] {{1.0}}> (size)"


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (f"{NO_STATE} y = LSTM <hidden_size = 2> (x, w1, r1, , , h, h)", ["x", "w1", "r1", "", "", "", ""]),
        (f"{ONE_STATE} y = LSTM <hidden_size = 2> (x, w1, r1, , , h, c)", ["x", "w1", "r1", "", "", "", "c"]),
        ("h = Expand (zero, size) y = GRU <hidden_size = 2> (x, wg, rg, , , h)", ["x", "wg", "rg", "", "", ""]),
        (
            """t = ConstantOfShape <value = float[1] {0.0}> (tall) h = Slice (t, begin, end)
            y = GRU <hidden_size = 2> (x, wg, rg, , , h)""",
            ["x", "wg", "rg", "", "", ""],
        ),
        (f"{ONES} y = GRU <hidden_size = 2> (x, wg, rg, , , h)", ["x", "wg", "rg", "", "", "h"]),
    ],
    ids=["both states", "one of two", "expanded", "cut from a stack", "ones stay"],
)
def test_first_states_of_zeros_are_dropped(core: Core, text: str, inputs: list[str]) -> None:
    model = parse_with(f"{ROWS} {{ {text} }}", STEPS, opset=18)
    assert list(check(core, model, drop_zero_states).nodes[-1].inputs) == inputs
