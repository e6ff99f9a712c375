"""Constant folding is limited by the bytes of its results: a small graph can ask for a huge constant."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

from hetero_core import Network
from hetero_core.limits import FOLDED_FLOOR, FOLDED_TIMES
from hetero_core.network.graph import Node
from hetero_core.transforms.constants import fold_constants, limit_folding
from hetero_core.transforms.folding import find_excess_folding, measure_folding

Read = Callable[..., Network]
MIB = 1 << 20


def tile(count: int) -> str:
    tiles = " ".join(f"t{index} = Tile (c, r) y{index} = Add (t{index}, x)" for index in range(count))
    outputs = ", ".join(f"float[262144] y{index}" for index in range(count))
    return f"g (float[1] x) => ({outputs}) <float[1] c = {{1}}, int64[1] r = {{262144}}> {{ {tiles} }}"


def evaluate(node: Node, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Computes Tile as a view of a single element, without the memory of the result."""
    return (np.broadcast_to(inputs[0], [size * count for size, count in zip(inputs[0].shape, inputs[1], strict=True)]),)


def test_nodes_are_folded_until_their_results_reach_the_limit(read: Read) -> None:
    network = read(tile(150))
    assert limit_folding(network) == FOLDED_FLOOR + FOLDED_TIMES * (4 + 8)
    folded = fold_constants(network, evaluate)
    operators = [node.op_type for node in folded.nodes]
    assert operators.count("Tile") == 150 - FOLDED_FLOOR // MIB
    assert [node.name for node in fold_constants(network, evaluate).nodes] == [node.name for node in folded.nodes]


def test_room_of_the_caller_replaces_the_limit(read: Read) -> None:
    folded = fold_constants(read(tile(10)), evaluate, room=3 * MIB)
    assert [node.op_type for node in folded.nodes].count("Tile") == 7


def test_nodes_beyond_the_limit_are_named_with_the_bytes(read: Read) -> None:
    network = read(tile(150))
    assert set(measure_folding(network).values()) == {MIB}
    excess = find_excess_folding(network)
    assert list(excess) == [f"Tile_{2 * index}" for index in range(FOLDED_FLOOR // MIB, 150)]
    assert set(excess.values()) == {FOLDED_FLOOR + MIB}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A float64 takes 8 bytes.
        ("g (float[3] x) => (double[3] y) <float[3] c = {1,2,3}> { d = Cast <to = 11> (c) z = Cast <to = 11> (x) y = Add (d, z) }", [24]),
        # An int4 takes half a byte in an engine.
        ("g (float[1] x) => (int4[6] y) <float[6] c = {1,2,3,4,5,6}> { d = Neg (c) y = Cast <to = 22> (d) z = Neg (x) }", [24, 3]),
        ("g (float[2] x) => (float[2] y) <float[2] c = {1,2}> { r = RandomUniformLike (c) y = Add (x, r) }", []),
        # 64 elements that are read count as a byte: 2 x 2 x 100000 in the product, and 10**5 x 10**5 in the sum over all pairs.
        (
            "g (float[2,2] x) => (float[2,2] y) { a = Constant <value = float[2,1] {1,2}> () s = Constant <value_ints = [2,100000]> () "
            "e = Expand (a, s) t = Transpose (e) p = MatMul (e, t) y = Add (p, x) }",
            [800_000, 800_000, 2 * 2 * 100_000 // 64],
        ),
        (
            "g (float[1] x) => (float[1] y) { a = Constant <value = float[1] {1}> () s = Constant <value_ints = [100000]> () "
            'e = Expand (a, s) p = Einsum <equation = "i,j->"> (e, e) y = Add (p, x) }',
            [400_000, 10**10 // 64],
        ),
        (
            "g (float[1] x) => (float[1,1,3,3] y) <float[1,1,3,3] c = {1,2,3,4,5,6,7,8,9}> { "
            "p = MaxPool <kernel_shape = [1025,1025], pads = [512,512,512,512]> (c) y = Add (p, x) }",
            [9 * 1025 * 1025 // 64],
        ),
        # A text counts with its length.
        (
            "g (string[1] x) => (string[1] y) { a = Constant <value_strings = [\"0123456789\"]> () b = StringConcat (a, a) "
            "c = StringConcat (b, b) y = StringConcat (c, x) }",
            [20, 40],
        ),
        # If no shape is known, the estimate is the product of the numbers of elements of the inputs.
        ("g (float[2] x) => (int64[L,M] y) <float[3] c = {1,0,2}> { n = NonZero (c) y = Mul (n, n) }", [24, 72]),
    ],
)  # fmt: skip
def test_bytes_of_nodes_that_read_nothing_but_constants(read: Read, text: str, expected: list[int]) -> None:
    assert list(measure_folding(read(text, 21)).values()) == expected


def test_doubling_of_an_unknown_shape_is_seen(read: Read) -> None:
    doubled = " ".join(f"n{index + 1} = Concat <axis = 1> (n{index}, n{index})" for index in range(30))
    network = read(f"g (float[2] x) => (int64[1,M] n30) <float[3] c = {{1,0,2}}> {{ n0 = NonZero (c) {doubled} }}")
    assert max(measure_folding(network).values()) >= 8 * 2 * 2**30
    assert "Concat_30" in find_excess_folding(network)


def test_constants_of_a_body_count_for_the_owning_node(read: Read) -> None:
    network = read(
        "g (bool b, float[999] x) => (float[999] y) <float[1] c = {1}, int64[1] r = {999}> { y = If (b) <"
        "then_branch = t () => (float[999] a) { s = Tile (c, r) a = Add (s, x) }, "
        "else_branch = e () => (float[999] d) { d = Neg (x) }> }"
    )
    # 999 numbers of s, 4 bytes each.
    assert measure_folding(network) == {"If_0": 3996}


def test_sizes_are_exact_if_shapes_are_known(read: Read) -> None:
    shape = (3, 5, 7)
    text = "g (float[1] x) => (float[3,5,7] y) <float[1] c = {1}, int64[3] s = {3,5,7}> { e = Expand (c, s) y = Add (e, x) }"
    assert measure_folding(read(text)) == {"Expand_0": 4 * prod(shape)}


def test_node_with_hours_of_work_is_not_folded(read: Read) -> None:
    window = "kernel_shape = [1048576,1048576], pads = [524288,524288,524287,524287]"
    text = "g (float[1] x) => (float[1,1,3,3] y) <float[1,1,3,3] c = {1,2,3,4,5,6,7,8,9}> { "
    network = read(f"{text} a = Neg (c) b = MaxPool <{window}> (a) y = Add (b, x) }}")

    def evaluate(node: Node, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        assert node.op_type == "Neg"
        return (-inputs[0],)

    assert [node.op_type for node in fold_constants(network, evaluate).nodes] == ["MaxPool", "Add"]
