"""Which steps of machine code are asked about an operator, and in which order, whatever was asked before."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu import providers
from hetero_cpu.jit.native import NATIVE_STEP_FUNCTIONS
from hetero_cpu.recipe import STEP_FUNCTIONS

STEPS = "hetero_cpu.jit."


def test_table_has_the_operators_of_each_module_of_steps() -> None:
    providers.import_native_steps()
    found: dict[str, set[str]] = {}
    for op_type, functions in NATIVE_STEP_FUNCTIONS.items():
        for function in functions:
            if function.__module__.startswith(STEPS):
                found.setdefault(function.__module__.removeprefix(STEPS), set()).add(op_type)
    assert found.keys() == providers._NATIVE_STEPS.keys()
    for module, operators in providers._NATIVE_STEPS.items():
        assert operators is providers._ALL or set(operators.split()) == found[module]


def test_table_has_the_operators_of_each_module_of_numpy_steps() -> None:
    found: dict[str, set[str]] = {}
    for module in providers._NUMPY_STEPS:
        importlib.import_module(f"hetero_cpu.{module}")
    for op_type, functions in STEP_FUNCTIONS.items():
        for function in functions:
            found.setdefault(function.__module__.removeprefix("hetero_cpu."), set()).add(op_type)
    assert found == {module: set(operators.split()) for module, operators in providers._NUMPY_STEPS.items()}


def ask(code: str) -> Any:
    """Returns what a fresh process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


def test_order_of_steps_does_not_depend_on_what_was_asked_before() -> None:
    code = """if True:
        import json
        from hetero_cpu import providers
        providers._list_native_steps("Expand")
        print(json.dumps([step.__module__ for step in providers._list_native_steps("Transpose")]))
    """
    assert ask(code) == [STEPS + "steps_shuffle", STEPS + "steps_layout"]


def test_question_about_an_operator_imports_its_steps_alone() -> None:
    code = """if True:
        import json, sys
        from hetero_cpu import providers
        assert providers._list_native_steps("MaxPool")
        print(json.dumps([name for name in sys.modules if name.startswith("hetero_cpu.jit.steps_")]))
    """
    assert set(ask(code)) == {STEPS + "steps_elementwise", STEPS + "steps_pooling"}
