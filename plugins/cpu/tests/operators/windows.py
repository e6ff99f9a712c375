"""Windows for the tests of depthwise convolutions and of poolings: geometries, formulas in float64, and the check of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from hetero_cpu.operators.recipe import Recipe
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ..conftest import Lay, NativeRun

SETTINGS = settings(max_examples=16, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
HALF_ULP = 2.0**-24

# Kernel, strides, dilations, pads (top, left, bottom, right); few cases, as each compiles its own machine code.
GEOMETRIES = (
    ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    ((3, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
    ((1, 4), (1, 3), (1, 1), (0, 2, 0, 1)),
    ((3, 2), (2, 1), (2, 3), (3, 1, 2, 4)),
    ((2, 2), (2, 2), (1, 1), (0, 0, 0, 0)),
)
lays = st.builds(Lay, before=st.sampled_from([0, 3]), after=st.sampled_from([0, 5]), gap=st.sampled_from([0, 2]))
places = st.fixed_dictionaries(
    {
        "geometry": st.sampled_from(GEOMETRIES),
        "batch": st.integers(1, 2),
        "channels": st.sampled_from([2, 8, 16, 19, 32, 47]),
        "size": st.tuples(st.integers(5, 17), st.integers(5, 17)),
        "x": lays,
        "y": lays,
        "has_halo": st.booleans(),
    }
)


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def list_windows(size: int, kernel: int, stride: int, dilation: int, begin: int, outputs: int) -> list[Any]:
    """Returns, for each output along an axis, its (tap, position) pairs inside the image."""
    starts = (output * stride - begin for output in range(outputs))
    return [[(i, s + i * dilation) for i in range(kernel) if 0 <= s + i * dilation < size] for s in starts]


def walk_windows(x: Any, geometry: Any, outputs: tuple[int, int]) -> Iterator[tuple[int, int, Any, Any]]:
    """Yields (row, column, taps, elements) of each output: its taps inside the image, and their elements (batch, channels, taps)."""
    kernel, strides, dilations, pads = geometry
    rows, columns = (
        list_windows(x.shape[axis + 2], kernel[axis], strides[axis], dilations[axis], pads[axis], outputs[axis]) for axis in (0, 1)
    )
    for r, c in np.ndindex(*outputs):
        pairs = [((i, j), (y, z)) for i, y in rows[r] for j, z in columns[c]]
        elements = np.array([x[:, :, y, z] for _, (y, z) in pairs]).reshape(len(pairs), *x.shape[:2]).transpose(1, 2, 0)
        yield r, c, [taps for taps, _ in pairs], elements


def count_outputs(size: tuple[int, int], geometry: Any, *, ceil: bool = False) -> tuple[int, int]:
    counts = []
    for axis, (kernel, stride, dilation) in enumerate(zip(*geometry[:3], strict=True)):
        begin, end = geometry[3][axis], geometry[3][axis + 2]
        room = size[axis] + begin + end - (kernel - 1) * dilation - 1
        count = (-(-room // stride) if ceil else room // stride) + 1
        # No window starts after the end of the image with its first pad.
        counts.append(count - (ceil and (count - 1) * stride >= size[axis] + begin))
    return counts[0], counts[1]


def name_geometry(geometry: Any) -> dict[str, Any]:
    kernel, strides, dilations, pads = geometry
    return {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}


def check(native: NativeRun, recipe: Recipe | None, images: Mapping[str, Any], lay: Lay, expected: Any, limit: Any) -> int:
    """Runs a recipe into memory of the layout `lay`; checks the result and that no other byte was written. Returns the chunks."""
    assert recipe is not None
    memory, y = lay.place(np.zeros(expected.shape))
    before = memory.copy()
    chunks = native.run(recipe, images, y)
    result = y.copy()
    # A window of padding alone has the maximum of an empty set, -inf.
    differences = np.abs(np.subtract(result, expected, where=result != expected, out=np.zeros_like(expected)))
    assert np.all(differences <= limit), differences.max()
    y[...] = 0
    np.testing.assert_array_equal(memory, before)
    return chunks
