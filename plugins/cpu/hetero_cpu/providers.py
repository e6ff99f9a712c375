"""The step functions of machine code, asked in order: which of them takes a group of nodes, and what it makes of it."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import TYPE_CHECKING

from hetero_cpu.operators import ALL, NATIVE_STEPS
from hetero_cpu.planning.recipe import Choice, Site

if TYPE_CHECKING:
    from hetero_cpu.machine.native import NativeStepFunction

logger = logging.getLogger(__name__)

NUMPY, JIT = "NUMPY", "JIT"


@cache
def _list_native_steps(op_type: str) -> tuple[NativeStepFunction, ...]:
    """Returns the functions that are asked about an operator, in order."""
    from hetero_cpu.machine.native import NATIVE_STEP_FUNCTIONS

    modules = [
        _name_native_steps(folder) for folder, operators in NATIVE_STEPS.items() if operators is ALL or op_type in operators.split()
    ]
    for module in modules:
        importlib.import_module(module)
    # Another operator may have had them imported in another order.
    return tuple(sorted(NATIVE_STEP_FUNCTIONS.get(op_type, ()), key=lambda function: modules.index(function.__module__)))


def import_native_steps() -> None:
    """Imports all steps of machine code."""
    for folder in NATIVE_STEPS:
        importlib.import_module(_name_native_steps(folder))


def _name_native_steps(folder: str) -> str:
    return f"hetero_cpu.operators.{folder}.native_steps"


def choose_step(site: Site) -> Choice | None:
    """Returns the choice of the first step function that takes the group; None leaves it to the toolkit."""
    if site.node.domain:
        return None
    try:
        choices = (function(site) for function in _list_native_steps(site.node.op_type))
        return next((choice for choice in choices if choice is not None), None)
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        # Attributes that contradict each other or the types: the toolkit's kernel says so when the node runs.
        logger.debug("node %s has no step: %s", site.node.label, error)
        return None
