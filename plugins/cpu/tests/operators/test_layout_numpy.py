"""The steps of layout by NumPy: what Concat leaves to the toolkit."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize(("shapes", "made"), [([(3, 3), (3, 3)], (5, 3)), ([(3, 3), (3, 2)], (6, 3)), ([(3, 3), (3,)], (6, 3))])
def test_concat_of_pieces_that_contradict_its_type_is_left_to_the_toolkit(
    shapes: list[tuple[int, ...]], made: tuple[int, ...]
) -> None:
    """A model may say so where inference has nothing to say against it; the toolkit names the node when it runs."""
    from hetero_cpu.operators.layout.numpy_steps import plan_concat
    from hetero_cpu.planning.fusion import Group
    from hetero_cpu.planning.recipe import Join, Site
    from hetero_cpu.planning.weights import PackedWeights

    from hetero_core.network.graph import Node
    from hetero_core.network.types import TensorType

    node = Node("joined", "Concat", ("a", "b"), ("y",), attributes={"axis": 0})
    types = {name: TensorType("float32", shape) for name, shape in zip("aby", [*shapes, made], strict=True)}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in zip("ab", shapes, strict=True)}
    assert plan_concat(Site(Group(node), types, {}, arrays, PackedWeights())) is None
    right = {**types, "y": TensorType("float32", (6, 3)), "b": TensorType("float32", (3, 3))}
    choice = plan_concat(Site(Group(node), right, {}, {name: np.zeros((3, 3), np.float32) for name in "ab"}, PackedWeights()))
    assert isinstance(choice, Join)
