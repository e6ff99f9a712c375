"""Random nodes: an operator whose record keeps images apart gives a batch the results of its images alone."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hetero_batch.axes import find_batch_axes
from hetero_batch.device import _rebatch
from hetero_tests.drawn_nodes import draw_model, list_versions

from hetero_core import Core
from hetero_core.errors import HeteroError
from hetero_core.kernels.program import compile_program
from hetero_core.network.operators import OPERATORS
from hetero_core.testing.compare import describe_mismatch

VERSIONS = list_versions({name: operator for name, operator in OPERATORS.items() if operator.along is not None})
DRAWS = 10
IMAGES = 3


def draw_images(draw: np.random.Generator, dtype: str, shape: Sequence[Any], axis: int | None) -> list[Any]:
    """Returns a value for each image, or the same value for all; an open size is 2."""
    sizes = [1 if place == axis else size if isinstance(size, int) else 2 for place, size in enumerate(shape)]
    arrays = [draw.integers(0, 2, sizes).astype(dtype) for _ in range(IMAGES)]
    return arrays[:1] * IMAGES if axis is None else arrays


@pytest.mark.parametrize(("op_type", "since"), VERSIONS, ids=[f"{name}-{since}" for name, since in VERSIONS])
def test_batch_of_a_drawn_node_is_its_images_alone(core: Core, op_type: str, since: int) -> None:
    draw, numbers = random.Random(f"{op_type} {since} batch"), np.random.default_rng(1)
    for _ in range(DRAWS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a drawn node may contradict what it declares
            try:
                network = core.read_network(draw_model(draw, op_type, since))
            except HeteroError:
                continue  # the schema has no such node
        axes = find_batch_axes(network)
        if axes.refused or all(axis is None for axis in axes.inputs):
            continue
        images = [
            draw_images(numbers, str(spec.dtype), spec.shape or (), axis)
            for spec, axis in zip(network.inputs, axes.inputs, strict=True)
        ]
        batch = [
            arrays[0] if axis is None else np.concatenate(arrays, axis) for arrays, axis in zip(images, axes.inputs, strict=True)
        ]
        try:
            alone = compile_program(_rebatch(network, axes, 1))
            singles = [alone.run(tuple(arrays)) for arrays in zip(*images, strict=True)]
            together = compile_program(_rebatch(network, axes, IMAGES)).run(tuple(batch))
        except (HeteroError, IndexError, ValueError):
            continue  # no kernel takes the element type, or other sizes of the node do not fit together
        for index, (output, axis) in enumerate(zip(together, axes.outputs, strict=True)):
            parts = [results[index] for results in singles]
            expected = parts[0] if axis is None else np.concatenate(parts, axis)
            assert describe_mismatch(np.asarray(output), np.asarray(expected), name=network.outputs[index].name) is None
