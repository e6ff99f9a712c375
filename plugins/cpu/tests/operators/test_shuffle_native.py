"""Machine code for channel shuffles, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper as oh
import pytest
from hetero_cpu.operators.recipe import Halo, Views
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_core import Core
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
    groups=st.sampled_from([2, 3, 4, 5, 6, 8]),
    own=st.sampled_from([2, 7, 8, 16, 34, 50]),
    size=st.tuples(st.integers(2, 5), st.integers(2, 7)),
    x_lay=lays,
    y_lay=lays,
)
def test_shuffle_of_channels_equals_numpy(native: NativeRun, monkeypatch: pytest.MonkeyPatch, **drawn: Any) -> None:
    from hetero_cpu.operators import rows as row_plan
    from hetero_cpu.operators.layout import plan_shuffle

    monkeypatch.setattr(row_plan, "_CHUNK_TIME", 1e-3)
    batch, groups, own, (height, width) = drawn["batch"], drawn["groups"], drawn["own"], drawn["size"]
    x = draw_array(1, batch, groups * own, height, width)
    expected = x.reshape(batch, groups, own, height, width).swapaxes(1, 2).reshape(x.shape)
    laid = drawn["x_lay"].place(x)[1].reshape(batch, groups, own, height, width)
    images = {"x": laid.transpose(0, 2, 1, 3, 4)}
    node = Node("back", "Reshape", ("x", "shape"), ("y",), since_version=14)
    recipe = plan_shuffle(native.make_site([node], images, {}, expected.shape, workers=64))
    assert recipe is not None
    memory, y = Lay(drawn["y_lay"].before, drawn["y_lay"].after, Halo(1, 2, 0, 1), drawn["y_lay"].gap).place(np.zeros(x.shape))
    before = memory.copy()
    assert native.run(recipe, images, y) == batch * height
    np.testing.assert_array_equal(y, expected)
    y[...] = 0
    np.testing.assert_array_equal(memory, before)


def test_group_transpose_is_a_view_if_only_a_reshape_reads_it(native: NativeRun) -> None:
    from hetero_cpu.operators.layout import plan_transpose

    pixels = Lay().place(draw_array(1, 1, 12, 3, 3))[1].reshape(1, 4, 3, 3, 3)
    plain = draw_array(1, 1, 4, 3, 3, 3)
    for x, readers, perm, is_view in (
        (pixels, ("Reshape",), (0, 2, 1, 3, 4), True),
        (pixels, ("Reshape", "Relu"), (0, 2, 1, 3, 4), False),
        (pixels, (), (0, 2, 1, 3, 4), False),
        (pixels, ("Reshape",), (0, 1, 2, 4, 3), False),
        (plain, ("Reshape",), (0, 2, 1, 3, 4), False),
    ):
        node = Node("turn", "Transpose", ("x",), ("y",), since_version=13, attributes={"perm": perm})
        site = native.make_site([node], {"x": x}, {}, tuple(x.shape[axis] for axis in perm), readers=readers)
        choice = plan_transpose(site)
        assert isinstance(choice, Views) == is_view
        if isinstance(choice, Views):
            np.testing.assert_array_equal(choice.make[0](x), x.transpose(perm))


def test_network_with_a_shuffle_equals_numpy() -> None:
    from hetero_cpu.machine.compiler import find_width

    if not find_width():
        pytest.skip("no machine code is made for this processor")
    w, sizes, shape = draw_array(1, 24, 6, 1, 1), np.array([1, 4, 6, 5, 5]), np.array([1, 24, 5, 5])
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], group=4),
        oh.make_node("Reshape", ["a", "sizes"], ["b"]),
        oh.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 1, 3, 4]),
        oh.make_node("Reshape", ["c", "shape"], ["d"]),
        oh.make_node("MaxPool", ["d"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    constants = [
        oh.make_tensor("w", 1, w.shape, w.reshape(-1)),
        oh.make_tensor("sizes", 7, [5], sizes),
        oh.make_tensor("shape", 7, [4], shape),
    ]
    ends = [oh.make_tensor_value_info("x", 1, [1, 24, 5, 5])], [oh.make_tensor_value_info("y", 1, [1, 24, 5, 5])]
    model = oh.make_model(oh.make_graph(nodes, "g", *ends, constants), opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
    x = draw_array(2, 1, 24, 5, 5)
    with Core() as core:
        output, expected = (
            core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": x})["y"] for kernels in ("JIT", "NUMPY")
        )
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
