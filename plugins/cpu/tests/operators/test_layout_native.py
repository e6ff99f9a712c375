"""Copies by machine code against NumPy: transposed matrices of any size, rows, broadcasts, pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_cpu.operators.groups import Group
from hetero_cpu.operators.layout import TURN, plan_concat, plan_copy, plan_expand, plan_pieces, plan_reshape, plan_transpose
from hetero_cpu.operators.recipe import Recipe, Site, Views
from hetero_cpu.operators.weights import PackedWeights
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType

from ..trial import WIDTHS, run_calls

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")
Array = np.ndarray[Any, Any]
SETTINGS = settings(max_examples=80, deadline=None, derandomize=True)


def draw_array(seed: int, *shape: int) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def lay_last(array: Array, *, around: int = 0) -> Array:
    """Returns an image channels last, with pixels of NaN around it."""
    n, c, h, w = array.shape
    memory = np.full((n, h + 2 * around, w + 2 * around, c), np.nan, np.float32)
    laid = memory[:, around : around + h, around : around + w].transpose(0, 3, 1, 2)
    laid[...] = array
    return laid


@SETTINGS
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 7, 8, 16, 17, 33, 50]), min_size=1, max_size=4).filter(
        lambda sizes: np.prod(sizes) < 60_000
    ),
    order=st.permutations(range(4)),
    gap=st.sampled_from([0, 3]),
    width=st.sampled_from(WIDTHS or (0,)),
)
def test_copy_of_a_turned_array_equals_numpy(shape: list[int], order: list[int], gap: int, width: int) -> None:
    perm = [axis for axis in order if axis < len(shape)]
    # The gaps between rows, in source and target, must stay as they are.
    x = draw_array(1, *shape[:-1], shape[-1] + gap)[..., : shape[-1]].transpose(perm)
    memory = np.full((*x.shape[:-1], x.shape[-1] + gap), np.nan, np.float32)
    y = memory[..., : x.shape[-1]]
    copy = plan_copy(y, x, workers=2)
    if copy is None:
        # With a single element per row and a gap after it, no two elements are adjacent.
        assert gap
        assert 1 in (shape[-1], y.shape[-1])
        return
    run_calls([copy.bind(y, x)], width)
    np.testing.assert_array_equal(y, x)
    assert np.isnan(memory).sum() == memory.size - y.size


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("sizes", [(64, 3136), (3, 1000), (1000, 3), (100, 333)])
def test_large_matrix_is_turned_in_several_chunks(sizes: tuple[int, int], width: int) -> None:
    x = draw_array(2, *sizes)
    y = np.full(sizes[::-1], np.nan, np.float32)
    copy = plan_copy(y, x.T, workers=4)
    assert copy is not None
    assert copy.kernel == TURN
    run_calls([copy.bind(y, x.T)], width)
    np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize("width", WIDTHS)
def test_copy_moves_whole_numbers_of_four_bytes(width: int) -> None:
    x = np.arange(-500, 500, dtype=np.int32).reshape(20, 50)
    y = np.empty((50, 20), np.int32)
    copy = plan_copy(y, x.T, workers=1)
    assert copy is not None
    run_calls([copy.bind(y, x.T)], width)
    np.testing.assert_array_equal(y, x.T)


def test_large_copy_without_elements_side_by_side_is_refused() -> None:
    assert plan_copy(np.empty((40, 50), np.float32), np.empty((40, 100), np.float32)[:, ::2], workers=1) is None
    assert plan_copy(np.empty((4, 5)), np.empty((5, 4)).T, workers=1) is None


def make_site(node: Node, x: Array, shape: tuple[int, ...], readers: tuple[str, ...] = ("Conv",)) -> Site:
    types = {"x": TensorType("float32", x.shape), "y": TensorType("float32", shape)}
    return Site(Group(node), types, {}, {"x": x}, PackedWeights(), readers, workers=2)


def run(recipe: Any, x: Array, y: Array, width: int) -> Array:
    assert isinstance(recipe, Recipe)
    run_calls(recipe.bind([x], [y], np.empty(0, np.uint8)), width)
    return y


@pytest.mark.parametrize("width", WIDTHS)
def test_transpose_of_heads_equals_numpy(width: int) -> None:
    x = draw_array(3, 2, 9, 4, 24)
    node = Node("n", "Transpose", ("x",), ("y",), attributes={"perm": (0, 2, 1, 3)})
    y = run(plan_transpose(make_site(node, x, (2, 4, 9, 24))), x, np.empty((2, 4, 9, 24), np.float32), width)
    np.testing.assert_array_equal(y, x.transpose(0, 2, 1, 3))


@pytest.mark.parametrize(("perm", "is_last"), [((0, 3, 1, 2), False), ((0, 2, 3, 1), True)])
def test_transpose_that_only_renames_axes_of_an_image_is_a_view(perm: tuple[int, ...], is_last: bool) -> None:
    x = lay_last(draw_array(4, 1, 8, 5, 6)) if is_last else draw_array(4, 1, 5, 6, 8)
    node = Node("n", "Transpose", ("x",), ("y",), attributes={"perm": perm})
    views = plan_transpose(make_site(node, x, tuple(x.shape[axis] for axis in perm)))
    assert isinstance(views, Views)
    np.testing.assert_array_equal(views.make[0](x), x.transpose(perm))


def test_transpose_that_products_read_is_a_view() -> None:
    node = Node("n", "Transpose", ("x",), ("y",), attributes={"perm": (1, 0)})
    assert isinstance(plan_transpose(make_site(node, draw_array(1, 4, 5), (5, 4), ("MatMul",))), Views)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("around", [0, 1])
def test_flattened_image_channels_last_is_in_c_order(around: int, width: int) -> None:
    x = lay_last(draw_array(5, 2, 40, 3, 7), around=around)
    node = Node("n", "Flatten", ("x",), ("y",))
    y = run(plan_reshape(make_site(node, x, (2, 840))), x, np.empty((2, 840), np.float32), width)
    np.testing.assert_array_equal(y, x.reshape(2, 840))


def test_reshape_that_has_a_view_is_a_view() -> None:
    assert isinstance(plan_reshape(make_site(Node("n", "Reshape", ("x",), ("y",)), draw_array(1, 6, 4), (3, 8))), Views)


@pytest.mark.parametrize(("shapes", "output"), [([(3, 3), (3, 3)], (5, 3)), ([(3, 3), (3, 2)], (6, 3)), ([(3, 3), (3,)], (6, 3))])
def test_concat_that_contradicts_its_type_is_left_to_the_toolkit(shapes: list[tuple[int, ...]], output: tuple[int, ...]) -> None:
    node = Node("joined", "Concat", ("a", "b"), ("y",), attributes={"axis": 0})
    types = {name: TensorType("float32", shape) for name, shape in zip("aby", [*shapes, output], strict=True)}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in zip("ab", shapes, strict=True)}
    assert plan_concat(Site(Group(node), types, {}, arrays, PackedWeights())) is None


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("sizes", [(1,), (40,), (3, 1), (1, 40), (2, 1, 40)])
def test_expand_equals_numpy(sizes: tuple[int, ...], width: int) -> None:
    x = draw_array(6, *sizes)
    node = Node("n", "Expand", ("x",), ("y",))
    y = run(plan_expand(make_site(node, x, (2, 3, 40))), x, np.empty((2, 3, 40), np.float32), width)
    np.testing.assert_array_equal(y, np.broadcast_to(x, (2, 3, 40)))


@pytest.mark.parametrize("width", WIDTHS)
def test_pieces_are_copied_side_by_side(width: int) -> None:
    sources = {"a": lay_last(draw_array(1, 2, 24, 5, 6)), "b": lay_last(draw_array(2, 2, 40, 5, 6), around=1)}
    y = lay_last(np.zeros((2, 64, 5, 6), np.float32), around=1)
    cuts = [(slice(None), slice(0, 24)), (slice(None), slice(24, 64))]
    recipe = plan_pieces(y, cuts, sources, workers=2)
    assert recipe is not None
    assert len(recipe.kernels) == 1
    run_calls(recipe.bind([sources[value] for value in recipe.reads], [y], np.empty(0, np.uint8)), width)
    np.testing.assert_array_equal(y, np.concatenate(list(sources.values()), axis=1))
    assert np.isnan(y.base).sum() == y.base.size - y.size


def test_pieces_of_eight_bytes_are_refused() -> None:
    assert plan_pieces(np.empty(4), [(slice(0, 4),)], {"a": np.empty(4)}, workers=1) is None
