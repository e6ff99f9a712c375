"""A class of sizes as data: its symbols, their places in input shapes, their limits, and the guards of the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetero_core.network.types import ValueSpec
from hetero_cpu.symbols.evaluation import Derivation, Products, Table, write_derivation, write_function, write_tuple

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


@dataclass(frozen=True, slots=True)
class ClassForm:
    """A class that can be written down. `shapes`: of each input, None if it is no array; (atom,) stands for a symbol.

    The first `least` of the numbers of `guards` are at least 0, the next up to `equal` are 0, the rest are not.
    """

    symbols: tuple[Symbol, ...]
    shapes: tuple[tuple[int | tuple[int], ...] | None, ...]
    derivation: Derivation
    guards: Table
    least: int
    equal: int


class SizeClass:
    """Safe for threads."""

    def __init__(self, form: ClassForm) -> None:
        self.form = form
        self._derive, self._holds = write_derivation(form.derivation), write_guards(form)
        places = (f"shapes[{symbol.input}][{symbol.axis}]" for symbol in form.symbols)
        limits = (f"{symbol.low} <= a{symbol.atom} <= {symbol.high}" for symbol in form.symbols)
        self._are_within = write_function([f"a{symbol.atom}" for symbol in form.symbols], " and ".join(limits) or "True")
        self._read_sizes = write_function(("shapes",), write_tuple(places))
        shapes = (
            "None" if shape is None else write_tuple(f"a{size[0]}" if isinstance(size, tuple) else repr(size) for size in shape)
            for shape in form.shapes
        )
        self._write_shapes = write_function([f"a{symbol.atom}" for symbol in form.symbols], write_tuple(shapes))

    @property
    def is_single(self) -> bool:
        """Says whether the class is a single set of sizes."""
        return all(symbol.low == symbol.high for symbol in self.form.symbols)

    def match(self, signature: Signature) -> Products | None:
        """Returns the products of atoms for a set of input shapes; None if it is not of the class."""
        try:
            sizes = self._read_sizes(signature)
        except (IndexError, TypeError):
            # Of inputs with fewer axes, or that are no arrays.
            return None
        products = self._find_products(sizes)
        return products if products is not None and self._write_shapes(*sizes) == signature else None

    def _find_products(self, sizes: Sequence[int]) -> Products | None:
        if not self._are_within(*sizes):
            return None
        products = self._derive(sizes)
        return products if products is not None and self._holds(*products) else None

    def write_signature(self, sizes: Sequence[int]) -> Signature:
        """Returns the input shapes that have these values of the symbols, in their order."""
        signature: Signature = self._write_shapes(*sizes)
        return signature


def write_guards(form: ClassForm) -> Callable[..., bool]:
    """Returns a function of the products that says whether all guards hold: a third of the time of one product and three comparisons."""
    sums = form.guards.write(range(len(form.guards)))
    comparisons = [">= 0" if row < form.least else "== 0" if row < form.equal else "!= 0" for row in range(len(sums))]
    claims = [f"{own} {comparison}" for own, comparison in zip(sums, comparisons, strict=True)]
    holds: Callable[..., bool] = write_function(form.derivation.parameters, " and ".join(claims) or "True")
    return holds
