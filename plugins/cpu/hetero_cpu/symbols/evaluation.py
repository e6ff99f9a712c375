"""Numbers of a plan for given sizes: products of atoms by a written function, and all sums of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_cpu.symbols.sizes import Scope
from hetero_cpu.symbols.terms import Atom, Key, NotOpenError, Terms

Product = tuple[int, ...]
Products = tuple[int, ...]
"""The values of products of atoms."""
Numbers = np.ndarray[Any, Any]

LARGEST_NUMBER = 1 << 52
"""Of a factor and of a product. Their sums are sizes and addresses of arrays that are in memory, which int64 holds exactly."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """How products of atoms follow from sizes: `sizes` are the atoms with given values, `atoms` all other atoms that are needed."""

    sizes: tuple[int, ...]
    atoms: Mapping[int, Atom]
    products: tuple[Product, ...]

    @property
    def parameters(self) -> list[str]:
        """The names of products in written functions."""
        return [f"p{column}" for column in range(len(self.products))]


class Evaluator:
    """Evaluates lists of terms. `derive(values of sizes)` makes the products of atoms; `Sums` the sums of them."""

    def __init__(self, scope: Scope, sizes: Sequence[int], expressions: Iterable[Terms]) -> None:
        """`sizes`: the atoms with given values. Addresses are no part of it."""
        products = {product for terms in expressions for product in terms if product}
        own = tuple(sorted(product for product in products if not _is_base(scope, product)))
        self.derivation = Derivation(tuple(sizes), _list_atoms(scope, sizes, own), own)
        self._index = {product: row for row, product in enumerate(own)}
        self.derive = write_derivation(self.derivation)

    def tabulate(self, expressions: Sequence[Terms]) -> Table:
        """Returns the table of numbers that are linear in the products."""
        constants = np.zeros(len(expressions), np.int64)
        rows: list[int] = []
        columns: list[int] = []
        factors: list[int] = []
        for row, terms in enumerate(expressions):
            for product, factor in terms.items():
                if abs(factor) > LARGEST_NUMBER:
                    raise NotOpenError(f"a number that is too large: {factor}")
                if not product:
                    constants[row] = factor
                elif product in self._index:
                    rows.append(row)
                    columns.append(self._index[product])
                    factors.append(factor)
        return Table(constants, (rows, columns, factors))


class Table:
    """Numbers, each a constant and a sum over products."""

    __slots__ = ("constants", "entries")

    def __init__(self, constants: Numbers, entries: tuple[Any, Any, Any]) -> None:
        """`entries`: row, product and factor of each summand, three lists or arrays of integers."""
        self.constants, self.entries = constants, entries

    def __len__(self) -> int:
        return len(self.constants)

    def list_open_rows(self) -> Numbers:
        """Returns the rows of numbers that are not the same for all sizes, in order."""
        # np.unique imports masked arrays, which takes 16 ms of a first run.
        return np.flatnonzero(np.bincount(np.asarray(self.entries[0], np.int64)))

    def write(self, rows: Sequence[int]) -> list[str]:
        """Returns the numbers of some rows as expressions of the products p0, p1 and so on."""
        place_of_row = {row: place for place, row in enumerate(rows)}
        sums = [str(self.constants[row]) for row in rows]
        for row, column, factor in zip(*(np.asarray(part, np.int64).tolist() for part in self.entries), strict=True):
            if row in place_of_row:
                sums[place_of_row[row]] += f" + {factor}*p{column}"
        return sums


class Sums:
    """Some numbers of a table, which are evaluated together."""

    __slots__ = ("_begins", "_columns", "_factors")

    def __init__(self, table: Table, rows: Numbers) -> None:
        """`rows`: in order, without duplicates."""
        own_rows, columns, factors = (np.asarray(part, np.int64) for part in table.entries)
        is_read = np.isin(own_rows, rows)
        # A constant is the factor of a further product, which is 1: so every number is a sum, and no number is treated by itself.
        every_row = np.concatenate([rows, own_rows[is_read]])
        order = np.argsort(every_row, kind="stable")
        self._columns = np.concatenate([np.full(len(rows), -1), columns[is_read]])[order]
        self._factors = np.concatenate([table.constants[rows], factors[is_read]])[order]
        self._begins = np.searchsorted(every_row[order], rows)

    def evaluate(self, products: Products) -> Numbers:
        """Returns the numbers."""
        values = np.array((*products, 1), np.int64).take(self._columns)
        values *= self._factors
        return np.add.reduceat(values, self._begins)


def write_function(parameters: Sequence[str], result: str, lines: Sequence[str] = ()) -> Callable[..., Any]:
    """Returns a function of these parameters that returns an expression of them: a single call in place of a loop over its parts."""
    names: dict[str, Any] = {}
    exec("\n".join([f"def function({', '.join(parameters)}):", *lines, f"    return {result}"]), names)
    function: Callable[..., Any] = names["function"]
    return function


def write_tuple(parts: Iterable[str]) -> str:
    """Returns the expression of a tuple."""
    return f"({''.join(f'{part}, ' for part in parts)})"


def write_derivation(derivation: Derivation) -> Callable[[Sequence[int]], Products | None]:
    """Returns a function from sizes to the products of atoms; to None if there is no such product or it would be too large."""
    lines = []
    for number, atom in sorted(derivation.atoms.items()):
        parts = [_write(part) for part in atom.parts]
        # Parts of an atom were made before it.
        expression = f"({parts[0]}) // ({parts[1]})" if atom.kind == "quotient" else f"max({', '.join(parts)})"
        lines.append(f"    a{number} = {expression}")
    results = write_tuple("*".join(f"a{number}" for number in product) for product in derivation.products)
    compute = write_function([f"a{number}" for number in derivation.sizes], results, lines)

    def derive(sizes: Sequence[int]) -> Products | None:
        try:
            values: Products = compute(*sizes)
        except ZeroDivisionError:
            # Of sizes for which the guards do not hold.
            return None
        return None if values and max(values) >= LARGEST_NUMBER else values

    return derive


def _is_base(scope: Scope, product: Product) -> bool:
    is_base = any(scope.atoms[number].kind == "base" for number in product)
    if is_base and len(product) > 1:
        raise NotOpenError("an address in a product")
    return is_base


def _list_atoms(scope: Scope, sizes: Sequence[int], products: Sequence[Product]) -> dict[int, Atom]:
    """Returns the atoms that products are made of beside the sizes."""
    needed: set[int] = set()

    def need(number: int) -> None:
        if number in needed:
            return
        needed.add(number)
        for part in scope.atoms[number].parts:
            for product, _ in part:
                for other in product:
                    need(other)

    for product in products:
        for number in product:
            need(number)
    atoms = {number: scope.atoms[number] for number in sorted(needed - set(sizes))}
    if any(atom.kind not in ("quotient", "largest") for atom in atoms.values()):
        raise NotOpenError("a number that no size gives")
    return atoms


def _write(part: Key) -> str:
    return " + ".join("*".join((str(factor), *(f"a{number}" for number in product))) for product, factor in part) or "0"
