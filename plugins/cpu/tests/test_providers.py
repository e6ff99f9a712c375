"""The native steps that are asked about an operator, and their order, which does not depend on earlier queries."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu.operators.steps import NATIVE_STEPS, list_native_steps


def test_every_function_of_the_table_exists() -> None:
    for _, name, operators in NATIVE_STEPS:
        assert name in [step.__name__ for step in list_native_steps(operators.split()[0])] or operators == "all"


def test_steps_are_asked_in_the_order_of_the_table() -> None:
    names = [step.__name__ for step in list_native_steps("Transpose")]
    assert names == ["plan_native_expression", "plan_transpose", "plan_moved_elements"]
