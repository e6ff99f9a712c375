"""Folding and fusing passes: results stay equal, nodes vanish, origins are kept, and unsafe rewrites are not made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hetero_tests.passes import check, draw_array, parse

from hetero_core import Core, Node
from hetero_core.transforms.affine import fold_affines
from hetero_core.transforms.constants import drop_unread, fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout


def make(text: str, **constants: Any) -> onnx.ModelProto:
    return parse(text, constants)


def evaluate(node: Node, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Computes the operators that these tests fold, with NumPy."""
    functions: dict[str, Callable[..., Any]] = {"Add": np.add, "Shape": lambda x: np.array(x.shape), "Expand": np.broadcast_to}
    function = functions.get(node.op_type)
    return None if function is None else (np.ascontiguousarray(function(*inputs)),)


CONV = "g (float[2, 3, 5, 5] x) => (float[2, 4, 3, 3] y)"
NORM = {"s": draw_array(1, 4), "b": draw_array(2, 4), "m": draw_array(3, 4), "v": np.abs(draw_array(4, 4)) + 0.5}


def test_norm_scale_and_shift_become_part_of_the_convolution(core: Core) -> None:
    model = make(
        f"{CONV} {{ [c] a = Conv (x, w) [n] d = BatchNormalization (a, s, b, m, v) [t] e = Mul (d, k) [p] y = Add (h, e) }}",
        w=draw_array(5, 4, 3, 3, 3),
        k=draw_array(6, 4, 1, 1),
        h=draw_array(7, 1, 4, 1, 1),
        **NORM,
    )
    network = check(core, model, fold_affines)
    assert [(node.op_type, node.origins, node.outputs) for node in network.nodes] == [("Conv", ("c", "n", "t", "p"), ("y",))]
    assert len(network.initializers) == 2


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("{ y = Conv (x, w) z = BatchNormalization (y, s, b, m, v) }", {}),
        ("{ a = Conv (x, w) y = Relu (a) z = BatchNormalization (a, s, b, m, v) }", {}),
        ("{ y = Conv (x, w) z = Mul (y, row) }", {"row": draw_array(1, 3)}),
        ("{ y = Conv (x, w) c = Abs (y) z = Mul (c, k) }", {"k": draw_array(1, 4, 1, 1)}),
    ],
    ids=["an output", "two readers", "another axis", "no convolution before"],
)
def test_scale_not_exclusive_to_a_convolution_is_not_folded(core: Core, text: str, constants: dict[str, Any]) -> None:
    used = {name: array for name, array in NORM.items() if "BatchNormalization" in text}
    model = make(
        f"g (float[2, 3, 5, 5] x) => (float[2, 4, 3, 3] y, float[2, 4, 3, 3] z) {text}",
        w=draw_array(5, 4, 3, 3, 3),
        **used,
        **constants,
    )
    network = check(core, model, fold_affines)
    assert [node.op_type for node in network.nodes] == [node.op_type for node in model.graph.node]


def test_norm_is_folded_in_float64(core: Core) -> None:
    """A large mean and a large shift cancel; folding in float32 would lose the third digit."""
    model = make(
        "g (float[1, 1, 1, 1] x) => (float[1, 1, 1, 1] y) { a = Conv (x, w, c) y = BatchNormalization (a, s, b, m, v) }",
        w=np.ones((1, 1, 1, 1), np.float32),
        c=np.array([3e7], np.float32),
        s=np.array([1.1], np.float32),
        b=np.array([0.125], np.float32),
        m=np.array([3e7], np.float32),
        v=np.array([0.3], np.float32),
    )
    network = fold_affines(core.read_network(model))
    bias = network.initializers[network.nodes[0].inputs[2]].array
    assert abs(float(bias[0]) - 0.125) < 1e-6


def test_constants_are_computed_and_shapes_that_are_known(core: Core) -> None:
    model = make(
        "g (float[2, 3] x) => (float[2, 3] y) { k = Add (one, two) s = Shape (x) e = Expand (k, s) y = Mul (x, e) }",
        one=draw_array(1, 3),
        two=draw_array(2, 3),
    )
    network = check(core, model, lambda network: fold_constants(network, evaluate))
    assert [node.op_type for node in network.nodes] == ["Mul"]
    assert list(network.initializers) == ["e"]


def test_random_and_large_values_and_outputs_are_not_folded(core: Core) -> None:
    model = make(
        """g (float[1] x) => (float[a, b] y, float[1] o, float[3] r) {
           big = Expand (one, huge) y = Mul (x, big) o = Add (one, one) r = RandomNormal <shape = [3]> () }""",
        one=np.ones(1, np.float32),
        huge=np.array([1024, 1024]),
    )
    network = core.read_network(model)
    assert fold_constants(network, evaluate) is network


def test_unread_nodes_and_constants_are_dropped(core: Core) -> None:
    model = make("g (float[1] x) => (float[1] y) { a = Add (x, one) b = Neg (a) y = Abs (x) }", one=np.ones(1, np.float32))
    network = drop_unread(core.read_network(model))
    assert [node.op_type for node in network.nodes] == ["Abs"]
    assert dict(network.initializers) == {}
    assert drop_unread(network) is network


@pytest.mark.parametrize(
    ("text", "remaining"),
    [
        ("{ a = Dropout (x) y = Neg (a) }", ["Neg"]),
        ("{ a, m = Dropout (x, half) y = Neg (a) }", ["Neg"]),
        ("{ a = Dropout (x, half, no) y = Neg (a) }", ["Neg"]),
        ("{ a = Dropout (x, half, yes) y = Neg (a) }", ["Dropout", "Neg"]),
        ("{ a, m = Dropout (x) b = Cast <to = 1> (m) y = Mul (a, b) }", ["Dropout", "Cast", "Mul"]),
    ],
)
def test_dropout_vanishes_unless_it_trains_or_its_mask_is_read(core: Core, text: str, remaining: list[str]) -> None:
    constants = {"half": np.float32(0.5), "no": np.bool_(False), "yes": np.bool_(True)}
    model = make(
        f"g (float[2] x) => (float[2] y) {text}", **{name: value for name, value in constants.items() if f" {name}" in text}
    )
    network = eliminate_copies(eliminate_dropout(core.read_network(model)))
    assert [node.op_type for node in network.nodes] == remaining
