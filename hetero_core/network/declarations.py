"""Shapes that a model declares and inference does not confirm: hints, which are compared with the computed shapes and which no
device gets.

Imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.types import TensorType, ValueType, type_of_json


def word_contradiction(value: str, graph: str, declared: ValueType, computed: ValueType, source: str) -> str:
    """Returns the text of a declaration that inference has proved wrong; `source` gives the computed type."""
    return (
        f"value '{value}' of '{graph}' is declared as {declared}, but {source} gives {computed}; "
        "the computed shape is used. Correct the declaration or remove it."
    )


@dataclass(frozen=True, slots=True)
class Hint:
    """A declared shape that says more than inference proves; `source` is the node that makes the value."""

    value: str
    declared: TensorType
    proved: TensorType
    source: str

    @property
    def may_fail(self) -> bool:
        """Says whether a run may contradict the hint: it states a rank or a size that is not proved, and not only names."""
        declared, proved = self.declared.shape, self.proved.shape
        if declared is None or proved is None:
            return declared is not None
        return any(isinstance(size, int) and not isinstance(own, int) for size, own in zip(declared, proved, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Declarations:
    """All that a model declares and that is not so: `contradictions` in any graph, and `hints`, by value of the root graph, which inference
    does not confirm.

    `are_stated` says whether the network's types include the hints, as a caller sees them; a device is given a network without.
    `reported` are the values that a warning has named; a network and its parts share it, so that each value is named once.
    """

    contradictions: tuple[str, ...] = ()
    hints: Mapping[str, Hint] = field(default_factory=lambda: MappingProxyType({}))
    reported: set[str] = field(default_factory=set)
    are_stated: bool = False

    def of_part(self, values: Collection[str]) -> Declarations:
        """Returns the hints about these values; the network and the part share the reported values."""
        hints = {value: hint for value, hint in self.hints.items() if value in values}
        return Declarations((), MappingProxyType(hints), self.reported, self.are_stated) if hints else NO_DECLARATIONS


NO_DECLARATIONS = Declarations()


def pack_hints(declarations: Declarations, values: Collection[str]) -> bytes:
    """Returns the hints about these values that a run may contradict, as the bytes of a section of a blob; empty if there are none."""
    hints = [declarations.hints[value] for value in values if value in declarations.hints]
    rows = [[hint.value, hint.declared.dtype, hint.declared.shape, hint.source] for hint in hints if hint.may_fail]
    if not rows:
        return b""
    return json.dumps(rows).encode()


def unpack_hints(content: bytes) -> Declarations:
    """Returns the hints that `pack_hints` wrote. Raises: InvalidNetworkError."""
    try:
        hints = {}
        for value, dtype, shape, source in json.loads(content):
            declared = type_of_json(["tensor", dtype, shape])
            assert isinstance(declared, TensorType)
            hints[str(value)] = Hint(str(value), declared, TensorType(declared.dtype), str(source))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidNetworkError(f"the declared shapes in a blob cannot be read: {error}. Export the network again.") from error
    return Declarations((), MappingProxyType(hints))
