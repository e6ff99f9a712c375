"""Long sums keep their digits along any axes, by float64; sums of integers wrap around, as exact integers modulo 2**bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.kernels.operators.reductions import reduce_mean

# More than 2**24 elements of 1: float32 loses the last in a sequential sum. The shapes differ in which axes NumPy adds in pairs.
COUNT = 2**24 + 2**20


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((COUNT, 2), (0,)), ((COUNT,), (0,)), ((COUNT // 4, 2, 4), (0, 2)), ((2, COUNT), (1,)), ((1, COUNT, 1), (1,))],
)
def test_mean_of_more_ones_than_float32_counts(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    assert np.unique(reduce_mean(np, np.ones(shape, np.float32), axes, keepdims=True)).tolist() == [1]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceProd", "ReduceSumSquare"])
def test_integers_wrap_around(operator: str, dtype: Any) -> None:
    limits = np.iinfo(dtype)
    x = np.array([[limits.max, 5, 7], [limits.min, limits.max, 3]], dtype)
    name = np.dtype(dtype).name
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g ({name}[2,3] x) => (y) <int64[1] a = {{1}}> {{ y = {operator}<keepdims = 0>(x, a) }}'
    )
    rows = [[int(value) for value in row] for row in x]
    formulas = {
        "ReduceSum": sum,
        "ReduceProd": lambda row: row[0] * row[1] * row[2],
        "ReduceSumSquare": lambda row: sum(value * value for value in row),
    }
    span = int(limits.max) - int(limits.min) + 1
    expected = [(formulas[operator](row) - int(limits.min)) % span + int(limits.min) for row in rows]
    with Core() as core:
        for device in ("TEMPLATE", "CPU"):
            assert core.load_network(model, device).infer({"x": x})["y"].tolist() == expected
