"""Constant folding is limited by the bytes of its results: a small graph can ask for a huge constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_core import Network
from hetero_core.limits import FOLDED_FLOOR, FOLDED_TIMES
from hetero_core.network.graph import Node
from hetero_core.transforms.constants import fold_constants, limit_folding

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
