"""The step of Attention by NumPy, against a formula in float64, with random sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.helper as oh
import pytest
from hetero_cpu.operators.attention import numpy_steps as steps_attention
from hypothesis import given
from hypothesis import strategies as st

from hetero_core import Core

from .single_nodes import SETTINGS, check, draw_array, make_model


@pytest.fixture(scope="module")
def core(kernels: str) -> Iterator[Core]:
    with Core() as opened:
        opened.set_config({"CPU_KERNELS": kernels}, "CPU")
        yield opened


def attend(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    """softmax(scale q k^T + mask) v in float64; rows that see nothing are zero."""
    scores = scale * np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k.astype(np.float64)) + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = np.where(np.isnan(weights), 0, weights)
    total = weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bhkd->bhqd", weights / np.where(total == 0, 1, total), v.astype(np.float64))


def pack(array: Any) -> Any:
    batch, heads, steps, size = array.shape
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3).reshape(batch, steps, heads * size))


@SETTINGS
@given(
    sizes=st.tuples(*(st.integers(1, limit) for limit in (3, 5, 9, 11, 8, 7))),
    is_packed=st.booleans(),
    mask_axes=st.sampled_from([None, (1, 1), (0, 0), (0, 1), (1, 0)]),
    hides=st.booleans(),
    scale=st.sampled_from([None, 0.3, 1.0]),
    tile=st.sampled_from([1, 64, 400, 1 << 19]),
)
def test_attention_equals_the_formula(
    core: Core, sizes: tuple[int, ...], is_packed: bool, mask_axes: Any, hides: bool, scale: float | None, tile: int
) -> None:
    batch, heads, queries, keys, size, width = sizes
    q, k, v = (
        draw_array(seed, batch, heads, steps, last) for seed, steps, last in ((1, queries, size), (2, keys, size), (3, keys, width))
    )
    given_mask = None
    if mask_axes is not None:
        shape = (batch if mask_axes[0] else 1, heads if mask_axes[1] else 1, queries, keys)
        given_mask = draw_array(4, *shape)
        if hides:
            given_mask[draw_array(5, *shape) > 0.5] = -np.inf
    inputs = {"q": q, "k": k, "v": v} if not is_packed else {"q": pack(q), "k": pack(k), "v": pack(v)}
    if given_mask is not None:
        inputs["mask"] = given_mask
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads} if is_packed else {}
    if scale is not None:
        attributes["scale"] = scale
    model = make_model(oh.make_node("Attention", list(inputs), ["y"], **attributes), inputs)
    wanted = attend(q, k, v, 0 if given_mask is None else given_mask, size**-0.5 if scale is None else scale)
    before = steps_attention._TILE
    try:
        # Tiles of a row, of some rows and of several heads.
        steps_attention._TILE = tile
        check(core, model, inputs, pack(wanted) if is_packed else wanted)
    finally:
        steps_attention._TILE = before


def test_attention_of_large_scores_does_not_overflow(core: Core) -> None:
    q, k, v = (100 * draw_array(seed, 1, 2, 3, 4) for seed in (1, 2, 3))
    inputs = {"q": q, "k": k, "v": v}
    check(core, make_model(oh.make_node("Attention", list(inputs), ["y"]), inputs), inputs, attend(q, k, v, 0, 0.5))


@pytest.mark.parametrize(
    ("attributes", "shapes", "outputs"),
    [
        ({"is_causal": 1}, [(1, 2, 3, 4)] * 3, 1),
        ({"softcap": 2.0}, [(1, 2, 3, 4)] * 3, 1),
        ({}, [(1, 4, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)], 1),
        ({}, [(1, 2, 3, 4)] * 3, 3),
        ({}, [(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), (3, 2)], 1),
    ],
    ids=["causal", "capped", "shared heads", "caches", "a mask that is too short"],
)
def test_attention_of_other_forms_is_the_toolkits(
    core: Core, attributes: dict[str, Any], shapes: list[tuple[int, ...]], outputs: int
) -> None:
    names = ["q", "k", "v", "mask"][: len(shapes)]
    inputs = {name: draw_array(index, *shape) for index, (name, shape) in enumerate(zip(names, shapes, strict=True))}
    model = make_model(oh.make_node("Attention", names, ["y", "k2", "v2"][:outputs], **attributes), inputs)
    assert core.load_network(model, "CPU").get_metric("CPU_FOREIGN_STEPS") == 1
