"""ONNX Runtime's own operators on simulated cards, which refuse every access of the host: right, or refused with the reason."""

from __future__ import annotations

import pytest

from hetero_core import Core
from hetero_core.conformance.check import Skip
from hetero_core.conformance.contrib import draw_case, judge_case
from hetero_core.testing.contrib.case import run_engine
from hetero_core.testing.contrib.draws import DRAWS


@pytest.mark.parametrize("operator", DRAWS)
def test_drawn_case_is_computed_or_refused(core: Core, operator: str) -> None:
    pytest.importorskip("onnxruntime")
    case = draw_case(operator, 0, 1)
    try:
        expected = run_engine(case)
    except Exception as error:  # noqa: BLE001  # its errors have no common class
        pytest.skip(f"ONNX Runtime has no kernel of {operator} for this processor: {error}")
    try:
        judge_case(case, expected, core, "GPU")
        return
    except Skip as refusal:
        reason = str(refusal)
    assert "computed on the host" in reason or "has dtype" in reason
