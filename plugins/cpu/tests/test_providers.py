"""The native steps that are asked about an operator, and their order, which does not depend on earlier queries."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu.operators import steps as providers
from hetero_cpu.operators.steps import ALL, NATIVE_STEP_FUNCTIONS, NATIVE_STEPS


def name_steps(folder: str) -> str:
    return f"hetero_cpu.operators.{folder}"


def test_table_has_the_operators_of_each_native_folder() -> None:
    for folder in providers.NATIVE_STEPS:
        importlib.import_module(f"hetero_cpu.operators.{folder}")
    operators_of_module: dict[str, set[str]] = {}
    for op_type, functions in NATIVE_STEP_FUNCTIONS.items():
        for function in functions:
            if function.__module__.startswith("hetero_cpu."):
                operators_of_module.setdefault(function.__module__, set()).add(op_type)
    assert operators_of_module.keys() == {name_steps(folder) for folder in NATIVE_STEPS}
    for folder, names in NATIVE_STEPS.items():
        assert names is ALL or set(names.split()) == operators_of_module[name_steps(folder)]


def ask(code: str) -> Any:
    """Returns the output of a fresh process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=900)
    return json.loads(done.stdout)


def test_order_of_steps_is_independent_of_earlier_queries() -> None:
    code = """if True:
        import json
        from hetero_cpu.operators import steps as providers
        providers._list_native_steps("Expand")
        print(json.dumps([step.__module__ for step in providers._list_native_steps("Transpose")]))
    """
    assert ask(code) == [name_steps("shuffle"), name_steps("layout")]
