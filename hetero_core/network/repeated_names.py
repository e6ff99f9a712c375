"""Constants and outputs that a file lists twice under one name, which ONNX Runtime runs. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.declarations import RepeatedConstant
from hetero_core.network.initializers import Initializer
from hetero_core.network.scopes import make_unique
from hetero_core.network.types import ValueSpec


def compare_constants(name: str, earlier: Initializer, later: Initializer) -> tuple[RepeatedConstant, ...]:
    """Returns what is to be said of two constants of one name, of which the later one counts: that their values differ, or nothing.

    Raises: InvalidNetworkError where their types differ, as ONNX Runtime 1.32 does.
    """
    if earlier.type != later.type:
        raise InvalidNetworkError(
            f"the constant '{name}' is there twice, as {earlier.type} and as {later.type}; expected one type. Remove one of them."
        )
    return (RepeatedConstant(name),) if earlier.digest != later.digest else ()


def name_repeated_outputs(
    outputs: Sequence[ValueSpec], names: Collection[str]
) -> tuple[tuple[ValueSpec, ...], tuple[tuple[str, str], ...]]:
    """Returns the outputs with a name of its own for each place, and the pairs (value, new name) that a copy has to be made for.

    `names` are those of all values. The first place of a value keeps its name; the output at position 2 that repeats `y` is `y_2`.
    """
    used = {*names, *(spec.name for spec in outputs)}
    copies: list[tuple[str, str]] = []

    def rename() -> Iterator[ValueSpec]:
        seen: set[str] = set()
        for position, spec in enumerate(outputs):
            if spec.name not in seen:
                seen.add(spec.name)
                yield spec
                continue
            name = make_unique(f"{spec.name}_{position}", used)
            used.add(name)
            copies.append((spec.name, name))
            yield ValueSpec(name, spec.type)

    return tuple(rename()), tuple(copies)
