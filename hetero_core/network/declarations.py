"""Shapes that a model declares and inference does not confirm. They are hints: compared with what is computed, used for nothing.

Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hetero_core.network.types import TensorType, ValueType


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A declaration that inference has proved wrong: the value, its graph, both types, and what gives the computed one."""

    value: str
    graph: str
    declared: ValueType
    computed: ValueType
    source: str

    def __str__(self) -> str:
        return f"value '{self.value}' of '{self.graph}' is declared as {self.declared}, but {self.source} gives {self.computed}"


@dataclass(frozen=True, slots=True)
class Hint:
    """A declared shape that says more than inference can prove: perhaps even the rank; `source` is the node that makes the value."""

    value: str
    declared: TensorType
    source: str
    has_proved_rank: bool


@dataclass(frozen=True, eq=False)
class Declarations:
    """All that a model declares and inference does not confirm: `contradictions` in any graph, `hints` by value of the root graph.

    `reported` are the values that a warning has named; a network and its parts share it, so that each value is named once.
    """

    contradictions: tuple[Contradiction, ...] = ()
    hints: Mapping[str, Hint] = field(default_factory=lambda: MappingProxyType({}))
    reported: set[str] = field(default_factory=set)

    def of_part(self, values: Iterable[str]) -> Declarations:
        """Returns the hints about these values; what is reported of the part is reported of the whole."""
        if not self.hints:
            return NO_DECLARATIONS
        return Declarations((), {value: self.hints[value] for value in values if value in self.hints}, self.reported)

    def without_hints(self) -> Declarations:
        """Returns the contradictions alone, for a network of other shapes than the declared ones."""
        return replace(self, hints=MappingProxyType({})) if self.hints else self


NO_DECLARATIONS = Declarations()
