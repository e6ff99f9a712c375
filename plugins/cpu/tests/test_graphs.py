"""Random graphs on CPU, by NumPy and by machine code; `nox -s graphs` runs many more."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.conformance.graphs.attempt import RIGHT, Subject, try_graph

PARTS = {
    "JIT": [range(first, first + 8) for first in range(0, 16, 8)],
    "NUMPY": [range(first, first + 8) for first in range(80, 96, 8)],
}
"""The seeds of each part."""


@pytest.mark.parametrize("part", range(2))
def test_drawn_graphs_are_right(kernels: str, part: int) -> None:
    subject = Subject("CPU", exports=True, config={"CPU_KERNELS": kernels})
    with Core() as core:
        outcomes = [try_graph(core, subject, seed) for seed in PARTS[kernels][part]]
    assert {outcome.seed: outcome.describe() for outcome in outcomes if outcome.status != RIGHT} == {}


def test_gemm_takes_a_bias_without_dimensions_and_a_factor(kernels: str) -> None:
    """NumPy returns a scalar for a factor times an array without dimensions, and a scalar has no flags to set."""
    text = "(float[2,3] x, float[3,2] w) => (float[2,2] y) <float c = {4}> { y = Gemm <alpha = 0.5, beta = 0.25> (x, w, c) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 2), np.float32)
    with Core() as core:
        y = core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": x, "w": w})["y"]
    assert y.tolist() == (0.5 * (x @ w) + 1).tolist()
