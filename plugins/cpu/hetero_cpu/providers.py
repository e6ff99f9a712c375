"""The step functions of each value of CPU_KERNELS: NUMPY, or JIT and then NUMPY."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from hetero_cpu.operators import ALL, NATIVE_STEPS, NUMPY_STEPS
from hetero_cpu.planning.recipe import STEP_FUNCTIONS, Choice, Site, StepFunction

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


@cache
def _list_numpy_steps(op_type: str) -> tuple[StepFunction, ...]:
    """Returns the functions that are asked about an operator, in order."""
    for folder, operators in NUMPY_STEPS.items():
        if op_type in operators.split():
            importlib.import_module(f"hetero_cpu.operators.{folder}.numpy_steps")
    return tuple(STEP_FUNCTIONS.get(op_type, ()))


def provide_numpy(site: Site) -> Choice | None:
    """Returns what the first step function makes that takes the group; None when none does."""
    if site.node.domain:
        return None
    for function in _list_numpy_steps(site.node.op_type):
        choice = function(site)
        if choice is not None:
            return choice
    return None


def provide_native(site: Site) -> Choice | None:
    """Returns what the first function of machine code makes that takes the group; None when none does."""
    if site.node.domain:
        return None
    for function in _list_native_steps(site.node.op_type):
        choice: Choice | None = function(site)
        if choice is not None:
            return choice
    return None


def choose_step(site: Site, provider: str = NUMPY) -> Choice | None:
    """Returns what the provider makes of the group, or NUMPY where JIT does not take it; None leaves it to the toolkit."""
    choice = _ask(provide_native, site) if provider == JIT else None
    if choice is None and _is_plain(site):
        choice = _ask(provide_numpy, site)
    return choice


def _ask(provide: Callable[[Site], Choice | None], site: Site) -> Choice | None:
    try:
        return provide(site)
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        # Attributes that contradict each other or the types: the toolkit's kernel says so when the node runs.
        logger.debug("node %s has no step: %s", site.node.label, error)
        return None


def _is_plain(site: Site) -> bool:
    """Says whether NumPy's steps can read what the group reads: of images with a halo they only join pieces, and no chains of elements."""
    from hetero_cpu.planning.fusion import ANCHORS  # a plan that is read needs no groups

    if site.group.epilogue and site.node.op_type not in ANCHORS:
        return False
    return site.node.op_type == "Concat" or not any(value in site.halos for value in site.group.reads)
