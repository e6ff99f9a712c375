"""A program that reads weights in mapped files and holds the pages of one node at a time: for a run beside packed weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hetero_core.kernels.execution import Program, Step
from hetero_core.network.initializers import Initializer


def drop_read_pages(program: Program, constants: Mapping[str, Initializer]) -> Program:
    """Returns the program; each node gives the pages of its constants in mapped files back to the system when it has run."""
    return replace(program, steps=tuple(_drop_after(step, constants) for step in program.steps))


def _drop_after(step: Step, constants: Mapping[str, Initializer]) -> Step:
    mapped = tuple(constants[name] for name in step.node.inputs if name in constants and constants[name].is_mapped)
    return replace(step, function=_run_and_drop(step.function, mapped)) if mapped else step


def _run_and_drop(function: Callable[..., Any], mapped: tuple[Initializer, ...]) -> Callable[..., Any]:
    def run(*inputs: Any, **bodies: Any) -> Any:
        results = function(*inputs, **bodies)
        for constant in mapped:
            constant.drop_pages()
        return results

    return run
