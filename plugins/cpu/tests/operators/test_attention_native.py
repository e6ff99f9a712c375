"""Machine code for attention, against the formula in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node

from ..conftest import NativeRun

SETTINGS = settings(max_examples=14, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
MASKS = ("", "key", "query", "head")


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def attend(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    """softmax(scale q k^T + mask) v with an axis of heads; queries that see no key get zeros."""
    scores = scale * np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k.astype(np.float64)) + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    hidden = np.all(np.isneginf(scores), axis=-1, keepdims=True)
    weights = np.where(hidden, 0, weights)
    return np.einsum("bhqk,bhkd->bhqd", weights / np.where(hidden, 1, weights.sum(axis=-1, keepdims=True)), v.astype(np.float64))


def lay_heads(array: Any, how: str) -> tuple[Any, Any]:
    """Returns the operand as a node reads it, and as heads: a C-ordered copy, a view of (batch, steps, heads, size), or packed."""
    batch, heads, steps, size = array.shape
    if how == "heads":
        return array.copy(), array
    turned = np.ascontiguousarray(array.transpose(0, 2, 1, 3))
    if how == "turned":
        view = turned.transpose(0, 2, 1, 3)
        return view, view
    wide = np.full((batch, steps, heads * size + 5), np.nan, np.float32)
    packed = wide[:, :, 2 : 2 + heads * size]
    packed[...] = turned.reshape(batch, steps, heads * size)
    return packed, packed


def run_attention(native: NativeRun, images: dict[str, Any], attributes: dict[str, Any], shape: tuple[int, ...]) -> Any:
    from hetero_cpu.operators.attention import plan_native_attention

    node = Node("attention", "Attention", tuple(images), ("y",), since_version=24, attributes=attributes)
    recipe = plan_native_attention(native.make_site([node], images, {}, shape))
    assert recipe is not None
    y = np.full(shape, np.nan, np.float32)
    native.run(recipe, images, y)
    return y


@SETTINGS
@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    queries=st.sampled_from([1, 3, 16, 33, 64, 70]),
    keys=st.sampled_from([1, 5, 14, 27, 65]),
    size=st.sampled_from([4, 17, 32]),
    value_size=st.sampled_from([1, 8, 23, 48, 70]),
    mask=st.sampled_from(MASKS),
    how=st.sampled_from(["heads", "turned", "packed"]),
)
def test_attention_of_any_sizes_and_strides_equals_the_formula(native: NativeRun, **drawn: Any) -> None:
    batch, heads, queries, keys = (drawn[name] for name in ("batch", "heads", "queries", "keys"))
    q, k = draw_array(1, batch, heads, queries, drawn["size"]), draw_array(2, batch, heads, keys, drawn["size"])
    v = draw_array(3, batch, heads, keys, drawn["value_size"])
    images = {name: lay_heads(array, drawn["how"])[0] for name, array in (("q", q), ("k", k), ("v", v))}
    mask: Any = 0.0
    if drawn["mask"]:
        shape = {"key": (batch, 1, 1, keys), "query": (queries, keys), "head": (1, heads, queries, keys)}[drawn["mask"]]
        mask = images["mask"] = draw_array(4, *shape)
    is_packed = drawn["how"] == "packed"
    attributes = {"scale": 0.3, **({"q_num_heads": heads, "kv_num_heads": heads} if is_packed else {})}
    exact = attend(q, k, v, mask, 0.3)
    if is_packed:
        exact = exact.transpose(0, 2, 1, 3).reshape(batch, queries, -1)
    output = run_attention(native, images, attributes, exact.shape)
    np.testing.assert_allclose(output, exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("mask", ["key", "query"])
def test_queries_without_keys_get_zeros_and_nan_does_not_spread(native: NativeRun, mask: str) -> None:
    q, k, v = draw_array(1, 1, 2, 18, 8), draw_array(2, 1, 2, 20, 8), draw_array(3, 1, 2, 20, 16)
    q[0, 1, 4, 2] = np.nan
    hidden = np.zeros((1, 1, 1, 20) if mask == "key" else (18, 20), np.float32)
    hidden[..., :9] = -np.inf
    if mask == "query":
        hidden[3] = -np.inf
    exact = attend(q, k, v, hidden, 8**-0.5)
    output = run_attention(native, {"q": q, "k": k, "v": v, "mask": hidden}, {}, exact.shape)
    assert np.isnan(output[0, 1, 4]).all()
    assert np.isnan(output).sum() == 16
    if mask == "query":
        assert not output[0, :, 3].any()
    seen = ~np.isnan(output)
    np.testing.assert_allclose(output[seen], exact[seen], rtol=2e-6, atol=2e-6)


def test_large_scores_do_not_overflow(native: NativeRun) -> None:
    q, k, v = draw_array(1, 1, 1, 5, 8) * 100, draw_array(2, 1, 1, 30, 8) * 100, draw_array(3, 1, 1, 30, 8)
    output = run_attention(native, {"q": q, "k": k, "v": v}, {"scale": 1.0}, (1, 1, 5, 8))
    picked = np.einsum("bhqd,bhkd->bhqk", q, k).argmax(axis=-1)[0, 0]
    np.testing.assert_allclose(output[0, 0], v[0, 0, picked], rtol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "shapes"),
    [
        ({"is_causal": 1}, [(1, 2, 4, 8)] * 3),
        ({"softcap": 5.0}, [(1, 2, 4, 8)] * 3),
        ({"q_num_heads": 4, "kv_num_heads": 2}, [(1, 4, 16), (1, 4, 8), (1, 4, 8)]),
        ({}, [(1, 4, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)]),
    ],
    ids=["causal", "capped", "shared heads, packed", "shared heads"],
)
def test_native_step_refuses_attention_beyond_the_formula(native: NativeRun, attributes: Any, shapes: Any) -> None:
    from hetero_cpu.operators.attention import plan_native_attention

    images = {name: draw_array(1, *shape) for name, shape in zip("qkv", shapes, strict=True)}
    node = Node("attention", "Attention", tuple("qkv"), ("y",), since_version=24, attributes=attributes)
    assert plan_native_attention(native.make_site([node], images, {}, shapes[0])) is None


def test_native_step_refuses_strided_head_sizes(native: NativeRun) -> None:
    from hetero_cpu.operators.attention import plan_native_attention

    images = {name: draw_array(1, 1, 2, 4, 8) for name in "qkv"}
    images["k"] = draw_array(1, 1, 2, 8, 4).swapaxes(2, 3)
    node = Node("attention", "Attention", tuple("qkv"), ("y",), since_version=24)
    assert plan_native_attention(native.make_site([node], images, {}, (1, 2, 4, 8))) is None


@SETTINGS
@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    queries=st.sampled_from([1, 3, 8]),
    past=st.sampled_from([1, 5, 64]),
    size=st.sampled_from([4, 17, 64]),
    value_size=st.sampled_from([8, 23, 64]),
    mask=st.sampled_from(["", "key", "query"]),
    is_turned=st.booleans(),
)
def test_keys_and_values_are_appended_to_their_caches(native: NativeRun, **drawn: Any) -> None:
    from hetero_cpu.operators.attention import plan_native_attention

    batch, heads, queries, past = (drawn[name] for name in ("batch", "heads", "queries", "past"))
    keys = past + queries
    q = draw_array(1, batch, heads, queries, drawn["size"])
    k, v = (draw_array(seed, batch, heads, keys, size) for seed, size in ((2, drawn["size"]), (3, drawn["value_size"])))
    parts = {"k": k[:, :, past:], "v": v[:, :, past:], "past_k": k[:, :, :past], "past_v": v[:, :, :past]}
    how = "turned" if drawn["is_turned"] else "heads"
    images = {"q": q, **{name: lay_heads(array, how)[0] for name, array in parts.items()}}
    mask: Any = 0.0
    if drawn["mask"]:
        mask = images["mask"] = draw_array(4, *((batch, 1, 1, keys) if drawn["mask"] == "key" else (queries, keys)))
    names = ("q", "k", "v", "mask" if drawn["mask"] else "", "past_k", "past_v")
    node = Node("attention", "Attention", names, ("y", "present_k", "present_v"), since_version=24, attributes={"scale": 0.3})
    exact = attend(q, k, v, mask, 0.3)
    recipe = plan_native_attention(native.make_site([node], images, {}, exact.shape))
    assert recipe is not None
    output, *presents = (np.full(shape, np.nan, np.float32) for shape in (exact.shape, k.shape, v.shape))
    native.run(recipe, images, output, *presents)
    np.testing.assert_allclose(output, exact, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(presents[0], k)
    np.testing.assert_array_equal(presents[1], v)


@pytest.mark.parametrize("begin", [0, 8, 1])
def test_long_caches_are_written_where_they_lie(native: NativeRun, begin: int) -> None:
    from hetero_cpu.operators.attention import plan_native_attention
    from hetero_cpu.operators.tiling import allocate_floats

    q = draw_array(1, 2, 3, 1, 64)
    k, v = draw_array(2, 2, 3, 701, 64), draw_array(3, 2, 3, 701, 32)
    images = {"q": q, "k": k[:, :, 700:], "v": v[:, :, 700:], "past_k": k[:, :, :700], "past_v": v[:, :, :700]}
    names = ("q", "k", "v", "", "past_k", "past_v")
    node = Node("attention", "Attention", names, ("y", "present_k", "present_v"), since_version=24)
    recipe = plan_native_attention(native.make_site([node], images, {}, (2, 3, 1, 32)))
    assert recipe is not None
    memories = [allocate_floats(array.size + 32) for array in (k, v)]
    for memory in memories:
        memory[...] = np.nan
    presents = [memory[begin : begin + array.size].reshape(array.shape) for memory, array in zip(memories, (k, v), strict=True)]
    output = np.full((2, 3, 1, 32), np.nan, np.float32)
    native.run(recipe, images, output, *presents)
    np.testing.assert_allclose(output, attend(q, k, v, 0.0, 0.125), rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(presents[0], k)
    np.testing.assert_array_equal(presents[1], v)
    assert all(np.isnan(memory).sum() == 32 for memory in memories)


@pytest.mark.parametrize(
    ("queries", "inputs", "outputs"),
    [
        (40, ("q", "k", "v", "", "past_k", "past_v"), ("y", "present_k", "present_v")),
        (4, ("q", "k", "v", "", "past_k", "past_v"), ("y",)),
        (4, ("q", "k", "v", "", "past_k"), ("y", "present_k")),
        (4, ("q", "k", "v", "", "past_v", "past_k"), ("y", "present_k", "present_v")),
    ],
    ids=["more queries than a block has", "no outputs for caches", "one cache", "sizes that do not go together"],
)
def test_native_step_refuses_unsupported_caches(native: NativeRun, queries: int, inputs: Any, outputs: Any) -> None:
    from hetero_cpu.operators.steps import choose_step

    images = {name: draw_array(1, 1, 2, queries, 8) for name in "qk"}
    images |= {"v": draw_array(1, 1, 2, queries, 16), "past_k": draw_array(1, 1, 2, 6, 8), "past_v": draw_array(1, 1, 2, 6, 16)}
    node = Node("attention", "Attention", inputs, outputs, since_version=24)
    choice = choose_step(native.make_site([node], images, {}, (1, 2, queries, 16)))
    assert choice is None
