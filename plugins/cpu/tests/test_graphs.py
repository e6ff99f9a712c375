"""Drawn graphs on CPU, by NumPy and by machine code; many more are `nox -s graphs`."""

from __future__ import annotations

import pytest

from hetero_core import Core
from hetero_core.conformance.graphs.attempt import RIGHT, Subject, try_graph

PARTS = {
    "JIT": [range(first, first + 20) for first in range(0, 80, 20)],
    "NUMPY": [range(first, first + 55) for first in range(80, 300, 55)],
}
"""The seeds of each part. Machine code is compiled for each graph, which takes most of the time, so NumPy has more of them."""


@pytest.mark.parametrize("part", range(4))
def test_drawn_graphs_are_right(kernels: str, part: int) -> None:
    subject = Subject("CPU", exports=True, config={"CPU_KERNELS": kernels})
    with Core() as core:
        outcomes = [try_graph(core, subject, seed) for seed in PARTS[kernels][part]]
    assert {outcome.seed: outcome.describe() for outcome in outcomes if outcome.status != RIGHT} == {}
