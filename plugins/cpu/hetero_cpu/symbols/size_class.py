"""A class of sizes: its symbols, their places in input shapes, their limits, and the guards of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_core.network.types import ValueSpec
from hetero_cpu.symbols.evaluation import LARGEST_NUMBER, Evaluator, Products, write_function, write_tuple
from hetero_cpu.symbols.terms import Terms

Signature = tuple[tuple[int, ...] | None, ...]
"""The shape of each input; None for a sequence or an absent optional."""


def read_static_signature(inputs: Sequence[ValueSpec]) -> Signature | None:
    """Returns the shapes that a network declares for its inputs; None when a size is open, or an input is no tensor."""
    shapes: list[tuple[int, ...]] = []
    for spec in inputs:
        if spec.shape is None or any(not isinstance(size, int) for size in spec.shape):
            return None
        shapes.append(tuple(size for size in spec.shape if isinstance(size, int)))
    return tuple(shapes)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size of an input: its atom, the input and the axis that it is read from, its least and its largest value."""

    atom: int
    input: int
    axis: int
    low: int
    high: int


class SizeClass:
    """Safe for threads."""

    def __init__(
        self,
        symbols: Sequence[Symbol],
        shapes: Sequence[tuple[int | tuple[int], ...] | None],
        evaluator: Evaluator,
        guards: Mapping[str, Sequence[Terms]],
    ) -> None:
        """`shapes`: of each input, None if it is no array; (atom,) stands for a symbol. `guards`: terms by what holds for each of them."""
        self.symbols, self.shapes, self.parameters = symbols, shapes, evaluator.parameters
        written = (
            "None" if shape is None else write_tuple(f"a{size[0]}" if isinstance(size, tuple) else repr(size) for size in shape)
            for shape in shapes
        )
        limits = [f"{symbol.low} <= a{symbol.atom} <= {symbol.high}" for symbol in symbols]
        claims = [
            f"{own} {comparison}" for comparison, kind in guards.items() for own in evaluator.tabulate(kind).write(range(len(kind)))
        ]
        lines = [
            *(f"    a{symbol.atom} = shapes[{symbol.input}][{symbol.axis}]" for symbol in symbols),
            f"    if not ({' and '.join([*limits, f'shapes == {write_tuple(written)}'])}):",
            "        return None",
            *evaluator.write_products(),
        ]
        holds = " and ".join([f"max({', '.join([*self.parameters, '0', '0'])}) < {LARGEST_NUMBER}", *claims])
        self._match = write_function(["shapes"], f"{write_tuple(self.parameters)} if {holds} else None", lines)

    @property
    def is_single(self) -> bool:
        """Says whether the class is a single set of sizes."""
        return all(symbol.low == symbol.high for symbol in self.symbols)

    def match(self, signature: Signature) -> Products | None:
        """Returns the products of atoms for a set of input shapes; None if it is not of the class."""
        try:
            products: Products | None = self._match(signature)
        except (IndexError, TypeError, ZeroDivisionError):
            # Of inputs with fewer axes, or that are no arrays; of sizes for which the guards do not hold.
            return None
        return products
