"""Questions about sizes whose answers are choices: what may be answered so that a class is wide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero_cpu.open.sizes import is_open, terms_of


def pays(number: Any, limit: int) -> bool:
    """Says whether a number is at least a limit from which on something pays, and from half of it on is right.

    So that sizes on both sides of the limit do not need a class each, one reaches from half of it on without an end; that of an example
    below reaches up to four times the limit.
    """
    if not is_open(number):
        return bool(number >= limit)
    if number.value >= limit // 2:
        return bool(number >= limit // 2)
    return not number < 4 * limit


def is_same(left: Any, right: Any) -> bool:
    """Says whether two numbers are one expression, without asking the example."""
    return terms_of(left) == terms_of(right)


def is_same_shape(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Says whether two shapes are the same in the whole class, without asking the example."""
    return len(left) == len(right) and all(map(is_same, left, right))
