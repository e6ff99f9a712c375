"""Machine code for transposed convolutions whose filters lie side by side, against a formula in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_cpu.operators.recipe import Halo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node

from ..conftest import Lay, NativeRun

SETTINGS = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
HALF_ULP = 2.0**-24
lays = st.builds(Lay, before=st.sampled_from([0, 3]), after=st.sampled_from([0, 5]), gap=st.sampled_from([0, 2]))


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@SETTINGS
@given(
    batch=st.integers(1, 2),
    channels=st.sampled_from([1, 5, 32]),
    outputs=st.sampled_from([1, 16, 37]),
    size=st.tuples(st.integers(1, 9), st.integers(1, 17)),
    kernel=st.sampled_from([(2, 2), (1, 3), (1, 1)]),
    has_bias=st.booleans(),
    x_lay=lays,
    y_lay=lays,
)
def test_transposed_convolution_side_by_side_equals_the_formula(native: NativeRun, **drawn: Any) -> None:
    from hetero_cpu.operators.convolution import plan_transposed_convolution

    (height, width), (down, right) = drawn["size"], drawn["kernel"]
    x = draw_array(1, drawn["batch"], drawn["channels"], height, width)
    w, b = draw_array(2, drawn["channels"], drawn["outputs"], down, right), draw_array(3, drawn["outputs"])
    if not drawn["has_bias"]:
        b[...] = 0

    def transpose(x: Any, w: Any, b: Any) -> Any:
        blocks = np.einsum("nchw,coij->nohiwj", x.astype(np.float64), w.astype(np.float64))
        return blocks.reshape(drawn["batch"], drawn["outputs"], height * down, width * right) + b[:, None, None]

    exact, size_of_terms = transpose(x, w, b), transpose(abs(x), abs(w), abs(b))
    images = {"x": drawn["x_lay"].place(x)[1]}
    constants = {"w": w, **({"b": b} if drawn["has_bias"] else {})}
    node = Node("up", "ConvTranspose", ("x", *constants), ("y",), since_version=22, attributes={"strides": (down, right)})
    recipe = plan_transposed_convolution(native.make_site([node], images, constants, exact.shape))
    assert recipe is not None
    memory, y = Lay(drawn["y_lay"].before, drawn["y_lay"].after, Halo(1, 2, 0, 1), drawn["y_lay"].gap).place(np.zeros(exact.shape))
    before = memory.copy()
    assert native.run(recipe, images, y) >= down * right
    assert np.all(np.abs(y - exact) <= (drawn["channels"] + 2) * HALF_ULP * size_of_terms)
    y[...] = 0
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": (1, 1)},
        {"strides": (2, 2), "pads": (1, 1, 1, 1)},
        {"strides": (2, 2), "group": 2},
        {"strides": (2, 2), "dilations": (2, 2)},
        {"strides": (2, 2), "output_padding": (1, 1)},
        {"strides": (2, 2), "auto_pad": "SAME_UPPER", "output_padding": (1, 1)},
    ],
)
def test_native_step_refuses_overlapping_transposed_convolution(native: NativeRun, attributes: dict[str, Any]) -> None:
    from hetero_cpu.operators.convolution import plan_transposed_convolution

    images = {"x": Lay().place(draw_array(1, 1, 4, 5, 5))[1]}
    node = Node("up", "ConvTranspose", ("x", "w"), ("y",), since_version=22, attributes=attributes)
    site = native.make_site([node], images, {"w": draw_array(2, 4, 2, 2, 2)}, (1, 2, 10, 10))
    assert plan_transposed_convolution(site) is None
