"""TopK is a step, and orders elements as the sort of Python does: NaN is the largest, both zeros are equal, lower positions come first."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.plan.plan import Foreign

from hetero_core import Core

from ..trial import WIDTHS

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")

# Few values, so that many are equal.
SPECIAL = np.array([0.0, -0.0, 1.5, -1.5, 2, -2, np.nan, -np.nan, np.inf, -np.inf, 1e-42, -1e-42, 3e38, -3e38], np.float32)


def draw(dtype: Any, *shape: int) -> Any:
    rng = np.random.default_rng(shape)
    if dtype == np.float32:
        return np.where(rng.random(shape) < 0.5, rng.choice(SPECIAL, shape), rng.standard_normal(shape).astype(np.float32))
    extremes = np.iinfo(dtype)
    return rng.choice(np.array([extremes.min, extremes.min + 1, -1, 0, 1, 7, extremes.max], dtype), shape)


def order(row: Any, count: int, *, is_largest: bool) -> list[int]:
    """Returns the positions of the first `count` elements of a row in order."""
    sign = -1 if is_largest else 1
    keys = [(sign * isnan(x), sign * (0 if isnan(x) else x), place) for place, x in enumerate(row.tolist())]
    return [key[2] for key in sorted(keys)[:count]]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis", "count"),
    [((3, 50), -1, 7), ((2, 3000), 1, 300), ((40,), 0, 40), ((3, 31, 5), 1, 8), ((9, 2, 4), 0, 1), ((1, 2), -1, 2)],
)
def test_elements_and_positions_are_those_of_the_sort(
    core: Core, shape: tuple[int, ...], axis: int, count: int, largest: int, dtype: Any
) -> None:
    """Twice: with fixed and with open sizes."""
    x = draw(dtype, *shape)
    rows = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])
    places = np.array([order(row, count, is_largest=bool(largest)) for row in rows])
    turned = np.moveaxis(x, axis, -1).shape[:-1]
    expected = np.moveaxis(places.reshape(*turned, count), -1, axis)
    for sizes in (list(shape), [f"n{position}" for position in range(len(shape))]):
        names, results = ", ".join(map(str, sizes)), ", ".join("abc"[: x.ndim])
        kind = "float" if dtype == np.float32 else "int32"
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> g ({kind}[{names}] x) => ({kind}[{results}] y, int64[{results}] places) '
            f"<int64[1] k = {{{count}}}> {{ y, places = TopK <axis = {axis}, largest = {largest}> (x, k) }}"
        )
        loaded: Any = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 2})
        answer = loaded.infer({"x": x})
        (plan,) = loaded.executable._plans
        assert not [step.node.name for step in plan.plan.steps if isinstance(step.work, Foreign)]
        np.testing.assert_array_equal(answer["places"], expected)
        # The bits, so that zeros have their signs.
        np.testing.assert_array_equal(answer["y"].view(np.int32), np.take_along_axis(x, expected, axis).view(np.int32))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("shape", "axis", "count"), [((3, 2048), -1, 256), ((2, 300, 2), 1, 300), ((700,), 0, 500)])
def test_large_part_of_a_row_is_sorted_by_numpy(
    core: Core, shape: tuple[int, ...], axis: int, count: int, largest: int, dtype: Any
) -> None:
    x = draw(dtype, *shape)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({"float" if dtype == np.float32 else "int32"}[{", ".join(map(str, shape))}] x) => '
        f"({'float' if dtype == np.float32 else 'int32'}[{', '.join('abc'[: x.ndim])}] y, int64[{', '.join('abc'[: x.ndim])}] places) "
        f"<int64[1] k = {{{count}}}> {{ y, places = TopK <axis = {axis}, largest = {largest}> (x, k) }}"
    )
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    answer = loaded.infer({"x": x})
    assert loaded.get_metric("CPU_FOREIGN_STEPS") == 1
    expected = np.apply_along_axis(lambda row: order(row, count, is_largest=bool(largest)), axis, x)
    np.testing.assert_array_equal(answer["places"], expected)
    np.testing.assert_array_equal(answer["y"].view(np.int32), np.take_along_axis(x, expected, axis).view(np.int32))


@pytest.mark.parametrize("is_open", [False, True])
def test_more_elements_than_there_are_raise_the_toolkits_error(core: Core, is_open: bool) -> None:
    size = "n" if is_open else "3"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{size}] x) => (float[m] y, int64[m] places) <int64[1] k = {{4}}> {{ '
        "y, places = TopK (x, k) }"
    )
    answers = []
    for kernels in ("NUMPY", "JIT"):
        with pytest.raises(Exception) as caught:
            core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": np.zeros(3, np.float32)})
        answers.append((type(caught.value), str(caught.value)))
    assert answers[0] == answers[1]
