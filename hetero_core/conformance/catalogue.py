"""The catalogue: every check of the kit in the order in which it runs, and the choice of some of them by level and name."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from functools import cache

from hetero_core.conformance.check import LEVELS, Check
from hetero_core.conformance.choices import list_choice_checks
from hetero_core.conformance.subjects import SUBJECTS, read_subject
from hetero_core.errors import HeteroError, enumerate_choices, suggest

STATIC_CHECKS: tuple[Check, ...] = tuple(check for subject in SUBJECTS for check in read_subject(subject))
"""The checks that are written out; those of single cases and models are made when they are asked for."""


class UnknownCheckError(HeteroError, ValueError):
    """A level or check was named that does not exist."""


@cache
def list_checks(levels: tuple[str, ...] = (), *, cases: int | None = None) -> tuple[Check, ...]:
    """Returns every check of these levels, of all where none is given. The first call for "operators" or "hetero" takes seconds.

    `cases` is how many graphs the level "graphs" draws; None is as many as it does by itself.

    Raises: UnknownCheckError for a level that does not exist.
    """
    chosen_levels = levels or tuple(LEVELS)
    for level in chosen_levels:
        if level not in LEVELS:
            raise UnknownCheckError(f"no level '{level}'{suggest(level, LEVELS) or ';'} the levels are {enumerate_choices(LEVELS)}")
    checks: list[Check] = []
    for level in LEVELS:
        if level in chosen_levels:
            checks += [check for check in STATIC_CHECKS if check.level == level]
            checks += _make_checks(level, cases)
    return tuple(checks)


def _make_checks(level: str, cases: int | None) -> tuple[Check, ...]:
    if level == "choices":
        return list_choice_checks()
    if level == "operators":
        from hetero_core.conformance.operators import list_operator_checks  # imports onnx

        return list_operator_checks()
    if level == "contrib":
        from hetero_core.conformance.contrib import list_contrib_checks  # imports the draws

        return list_contrib_checks()
    if level == "models":
        from hetero_core.conformance.models import list_model_checks  # imports onnx when a model is made

        return list_model_checks()
    if level == "hetero":
        from hetero_core.conformance.hetero import list_hetero_checks  # imports onnx

        return list_hetero_checks()
    if level == "graphs":
        from hetero_core.conformance.graph_checks import list_graph_checks  # imports the toolkit

        return list_graph_checks() if cases is None else list_graph_checks(cases)
    return ()


def choose_checks(levels: Sequence[str] = (), patterns: Sequence[str] = (), *, cases: int | None = None) -> tuple[Check, ...]:
    """Returns the checks of these levels whose names match one of the patterns, all of them where none is given.

    `cases` is the number of graphs in the level "graphs".

    Raises: UnknownCheckError for an unknown level, and for a pattern that matches nothing.
    """
    checks = _list_written(levels) if _is_written(patterns) else list_checks(tuple(levels), cases=cases)
    if not patterns:
        return checks
    for pattern in patterns:
        require_known(pattern, checks)
    return tuple(check for check in checks if any(fnmatch.fnmatchcase(check.name, pattern) for pattern in patterns))


def _is_written(patterns: Sequence[str]) -> bool:
    """Says whether the patterns name subjects of files alone, so that no case has to be made to find them."""
    subjects = {check.name.partition(".")[0] for check in STATIC_CHECKS} | {"choices"}
    return bool(patterns) and all(pattern.partition(".")[0] in subjects for pattern in patterns)


def _list_written(levels: Sequence[str]) -> tuple[Check, ...]:
    generated_levels = ("operators", "contrib", "models", "hetero", "graphs")
    written_levels = tuple(level for level in levels or LEVELS if level not in generated_levels)
    return list_checks(written_levels) if written_levels else ()


def require_known(pattern: str, checks: Sequence[Check]) -> None:
    """Raises UnknownCheckError with the near names unless the pattern matches a check."""
    names = [check.name for check in checks]
    if any(fnmatch.fnmatchcase(name, pattern) for name in names):
        return
    levels = enumerate_choices(check.level for check in checks)
    raise UnknownCheckError(
        f"no check '{pattern}'{suggest(pattern, names) or ';'} 'hetero conformance --list' names all; looked in the levels {levels}"
    )
