"""Inputs that are exactly what a network wants pass without a closer look, and no others do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero_core.network.border import Border
from hetero_core.network.types import SequenceType, TensorType, ValueSpec
from hetero_core.runtime.plain_inputs import open_plain_door


@pytest.mark.parametrize("shape", [(2, 2), ("N", 2), ("N", None)])
@pytest.mark.parametrize(
    ("inputs", "is_plain"),
    [
        ({"x": np.zeros((2, 2), np.float32)}, True),
        ({"x": np.zeros((2, 2), np.float64)}, False),
        ({"x": np.zeros((2, 2), ">f4")}, False),
        ({"x": np.zeros((2, 2), np.float32).T}, False),
        ({"x": np.zeros((3, 2), np.float32).T[:, :2]}, False),
        ({"x": np.zeros(4, np.float32)}, False),
        ({"x": np.zeros((2, 2, 1), np.float32)}, False),
        ({"x": [[0.0, 0.0], [0.0, 0.0]]}, False),
        ({"x": np.zeros((2, 2), np.float32).view(np.matrix)}, False),
        ({"y": np.zeros((2, 2), np.float32)}, False),
        ({"x": np.zeros((2, 2), np.float32), "y": 1}, False),
        ({}, False),
        ([np.zeros((2, 2), np.float32)], False),
    ],
)
def test_only_what_is_exactly_wanted_passes(inputs: Any, is_plain: bool, shape: tuple[int | str | None, ...]) -> None:
    take = open_plain_door([ValueSpec("x", TensorType("float32", shape))])
    assert take is not None
    arrays = take(inputs)
    assert (arrays is not None and arrays[0] is inputs["x"]) == is_plain


@pytest.mark.parametrize(
    ("shapes", "is_plain"),
    [
        ([(1, 2, 5), (1, 2, 5), (5, 3), (4,), (7,)], True),
        # Of the same declaration and of another shape.
        ([(1, 2, 5), (1, 2, 6), (5, 3), (4,), (7,)], False),
        # A name with a second size, in another declaration and in one of two names alike.
        ([(1, 2, 5), (1, 2, 5), (6, 3), (4,), (7,)], False),
        ([(3, 2, 5), (3, 2, 5), (5, 4), (4,), (7,)], False),
        # A fixed size that is another one.
        ([(1, 3, 5), (1, 3, 5), (5, 3), (4,), (7,)], False),
    ],
)
def test_named_sizes_are_the_same_wherever_the_name_stands(shapes: list[tuple[int, ...]], is_plain: bool) -> None:
    declared = [("batch", 2, "past"), ("batch", 2, "past"), ("past", 3), (None,), (None,)]
    take = open_plain_door([ValueSpec(f"x{index}", TensorType("int64", shape)) for index, shape in enumerate(declared)])
    assert take is not None
    arrays = take({f"x{index}": np.zeros(shape, np.int64) for index, shape in enumerate(shapes)})
    assert (arrays is not None and [array.shape for array in arrays] == shapes) == is_plain


@pytest.mark.parametrize(
    "spec",
    [
        ValueSpec("x", TensorType("float32")),
        ValueSpec("x", TensorType("string", (2,))),
        ValueSpec("x", TensorType(None, (2,))),
        ValueSpec("x", SequenceType(TensorType("float32", (2,)))),
        ValueSpec(
            "x",
            TensorType(
                "float32",
                (2,),
            ),
            memory="cuda:0",
        ),
        ValueSpec(
            "x",
            TensorType(
                "float32",
                ("N",),
            ),
            memory="cuda:0",
        ),
    ],
)
def test_inputs_that_need_a_closer_look_are_never_plain(spec: ValueSpec) -> None:
    assert open_plain_door([spec]) is None


def test_open_sizes_with_bounds_are_never_plain() -> None:
    assert open_plain_door([ValueSpec("x", TensorType("float32", ("N",)))], Border(bounds={"N": (1, 4)})) is None
