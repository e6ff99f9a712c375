"""A class of sizes as data: where its symbols are read from input shapes, their limits, and what must hold for a plan to be right."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from hetero_core.records import record
from hetero_cpu.open.evaluation import Derivation, Table, write_derivation, write_function, write_tuple
from hetero_cpu.signature import Signature

Products = np.ndarray[Any, Any]

_MOST_KNOWN = 256


@record(frozen=True, slots=True)
class Symbol:
    """A size of an input: its atom, the input and the axis that it is read from, its least and its largest value."""

    atom: int
    input: int
    axis: int
    low: int
    high: int


@record(frozen=True, slots=True)
class ClassForm:
    """A class that can be written down. `shapes`: of each input, None for one that is no array, where (atom,) stands for a symbol.

    The first `least` of the numbers of `guards` are at least 0, the next up to `equal` are 0, the others are not.
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
        self._derive = write_derivation(form.derivation)
        self._limits = tuple((symbol.low, symbol.high) for symbol in form.symbols)
        places = (f"shapes[{symbol.input}][{symbol.axis}]" for symbol in form.symbols)
        self._read_sizes = write_function(("shapes",), write_tuple(places))
        shapes = ("None" if shape is None else write_tuple(map(_write_size, shape)) for shape in form.shapes)
        self._write_shapes = write_function([f"a{symbol.atom}" for symbol in form.symbols], write_tuple(shapes))
        self._known: OrderedDict[Signature, Products | None] = OrderedDict()

    @property
    def is_single(self) -> bool:
        """Says whether the class is one set of sizes."""
        return all(low == high for low, high in self._limits)

    def match(self, signature: Signature) -> Products | None:
        """Returns the products of atoms for a set of input shapes; None where it is not of the class."""
        try:
            return self._known[signature]
        except KeyError:
            products = self._match(signature)
            self._known[signature] = products
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
            return products

    def read_sizes(self, signature: Signature) -> dict[int, int]:
        """Returns the symbols' values by atom, for a set of input shapes of the class."""
        atoms = (symbol.atom for symbol in self.form.symbols)
        return dict(zip(atoms, self._read_sizes(signature), strict=True))

    def _match(self, signature: Signature) -> Products | None:
        try:
            sizes = self._read_sizes(signature)
        except (IndexError, TypeError):
            # Of inputs with fewer axes, or that are no arrays.
            return None
        if not all(low <= size <= high for size, (low, high) in zip(sizes, self._limits, strict=True)):
            return None
        if self._write_shapes(*sizes) != signature:
            return None
        products = self._derive(sizes)
        if products is None:
            return None
        form = self.form
        values = form.guards.evaluate(products)
        holds = (values[: form.least] >= 0).all() and not values[form.least : form.equal].any() and values[form.equal :].all()
        return products if holds else None


def _write_size(size: int | tuple[int]) -> str:
    return f"a{size[0]}" if isinstance(size, tuple) else repr(size)
