"""The catalogue: every check of the kit in the order in which they run, and their selection by level and name."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module

from hetero_core.conformance import (
    contract_device,
    contract_exporting,
    contract_networks,
    contract_resources,
    contract_runs,
    contract_values,
)
from hetero_core.conformance.check import LEVELS, Check
from hetero_core.errors import HeteroError, enumerate_choices, suggest

_FILES = (contract_device, contract_networks, contract_values, contract_runs, contract_resources, contract_exporting)
# Traces come first, so that their check of process settings covers the first load of the device.
SUBJECTS = (
    *("traces", "registry", "properties", "capabilities", "device_facts", "query", "load", "meaning", "tensors", "memory"),
    *("values", "formulas", "dynamic_shapes", "requests", "callbacks", "cancel", "perf_counts", "executed", "extensions"),
    *("lifetime", "start", "threading", "exporting"),
)
"""The subjects of the contract files in the order of their checks."""
STATIC_CHECKS: tuple[Check, ...] = tuple(
    sorted(
        (*(check for file in _FILES for check in vars(file).values() if isinstance(check, Check)), *contract_values.FORMULA_CHECKS),
        key=lambda check: SUBJECTS.index(check.subject),
    )
)
"""The checks that are written out; those of single cases and models are made when they are asked for."""


_MAKERS: Mapping[str, str] = {
    "choices": "choices.list_choice_checks",
    "operators": "operators.list_operator_checks",
    "contrib": "contrib.list_contrib_checks",
    "models": "models.list_model_checks",
    "hetero": "models.list_hetero_checks",
    "graphs": "graphs.attempt.list_graph_checks",
}
"""Level -> the function that makes a check for each of its cases or models."""


class UnknownCheckError(HeteroError, ValueError):
    """The named level or check does not exist."""


@cache
def list_checks(levels: tuple[str, ...] = (), *, cases: int | None = None) -> tuple[Check, ...]:
    """Returns the checks of these levels, of all levels by default. The first call for "operators" or "hetero" takes seconds.

    `cases` is the number of graphs that the level "graphs" draws; None is its default.

    Raises: UnknownCheckError for a level that does not exist.
    """
    chosen_levels = levels or tuple(LEVELS)
    for level in chosen_levels:
        if level not in LEVELS:
            raise UnknownCheckError(f"no level '{level}'{suggest(level, LEVELS) or ';'} the levels are {enumerate_choices(LEVELS)}")
    checks: list[Check] = []
    for level in (level for level in LEVELS if level in chosen_levels):
        checks += [check for check in STATIC_CHECKS if check.level == level]
        if level in _MAKERS:
            module, _, function = _MAKERS[level].rpartition(".")
            # Most of these files import onnx or the toolkit.
            make: Callable[..., tuple[Check, ...]] = getattr(import_module(f"hetero_core.conformance.{module}"), function)
            checks += make(cases) if level == "graphs" and cases is not None else make()
    return tuple(checks)


def choose_checks(levels: Sequence[str] = (), patterns: Sequence[str] = (), *, cases: int | None = None) -> tuple[Check, ...]:
    """Returns the checks of these levels whose names match a pattern; without patterns, all checks of the levels.

    `cases` is the number of graphs in the level "graphs".

    Raises: UnknownCheckError for an unknown level, and for a pattern that matches nothing.
    """
    if not patterns:
        return list_checks(tuple(levels), cases=cases)
    if all(pattern.partition(".")[0] in (*SUBJECTS, "choices") for pattern in patterns):
        # The patterns name subjects of contract files, and are matched without building any case.
        written = tuple(level for level in levels or LEVELS if level == "choices" or level not in _MAKERS)
        checks = list_checks(written) if written else ()
    else:
        checks = list_checks(tuple(levels), cases=cases)
    names = [check.name for check in checks]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise UnknownCheckError(
                f"no check '{pattern}'{suggest(pattern, names) or ';'} 'hetero conformance --list' names all; looked in the levels "
                f"{enumerate_choices(check.level for check in checks)}"
            )
    return tuple(check for check in checks if any(fnmatch.fnmatchcase(check.name, pattern) for pattern in patterns))
