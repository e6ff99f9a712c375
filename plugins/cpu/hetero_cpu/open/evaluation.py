"""Numbers of a plan for given sizes: all sums of products of atoms at once, with one small function and one product of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_core.records import record
from hetero_cpu.open.sizes import Scope
from hetero_cpu.open.terms import Atom, Key, NotOpenError, Terms

Product = tuple[int, ...]
Numbers = np.ndarray[Any, Any]

LARGEST_NUMBER = 1 << 52
"""Up to which sums of float64 are exact, with room to spare."""


@record(frozen=True, slots=True)
class Derivation:
    """How products of atoms follow from sizes: `sizes` are the atoms whose values are given, `atoms` all others that are needed."""

    sizes: tuple[int, ...]
    atoms: Mapping[int, Atom]
    products: tuple[Product, ...]


class Evaluator:
    """Evaluates lists of terms. `derive(values of sizes)` makes the products of atoms; `Table.evaluate` what is linear in them."""

    def __init__(self, scope: Scope, sizes: Sequence[int], expressions: Iterable[Terms]) -> None:
        """`sizes`: the atoms whose values are given. Addresses are no part of it."""
        products = {product for terms in expressions for product in terms if product}
        own = tuple(sorted(product for product in products if not _is_base(scope, product)))
        self.derivation = Derivation(tuple(sizes), _list_atoms(scope, sizes, own), own)
        self._index = {product: row for row, product in enumerate(own)}
        self.derive = write_derivation(self.derivation)

    def tabulate(self, expressions: Sequence[Terms]) -> Table:
        """Returns the table of numbers that are linear in the products."""
        constants = np.zeros(len(expressions))
        rows: list[int] = []
        columns: list[int] = []
        factors: list[int] = []
        for row, terms in enumerate(expressions):
            for product, factor in terms.items():
                if abs(factor) > LARGEST_NUMBER:
                    raise NotOpenError(f"a number that float64 does not hold: {factor}")
                if not product:
                    constants[row] = factor
                elif product in self._index:
                    rows.append(row)
                    columns.append(self._index[product])
                    factors.append(factor)
        return Table(constants, (rows, columns, factors), len(self._index))


class Table:
    """Numbers, each a constant and a sum over products."""

    __slots__ = ("_constants", "_matrix", "entries")

    def __init__(self, constants: Numbers, entries: tuple[Any, Any, Any], products: int) -> None:
        """`entries`: row, product and factor of each summand, three lists or arrays of integers."""
        rows, columns, factors = entries
        self._matrix = np.zeros((len(constants), products))
        self._matrix[rows, columns] = factors
        self._constants, self.entries = constants, entries

    def __len__(self) -> int:
        return len(self._constants)

    @property
    def constants(self) -> Numbers:
        """The constant of each number."""
        return self._constants

    def evaluate(self, products: Numbers) -> Numbers:
        """Returns all numbers, as int64."""
        # Within a run a call of NumPy takes 10 us whatever its size: all rows at once take less than those that depend on sizes.
        numbers = self._matrix @ products
        numbers += self._constants
        return numbers.astype(np.int64)

    def write_first(self) -> Callable[..., int]:
        """Returns a function of the products, plain numbers, that returns the first number."""
        rows, columns, factors = self.entries
        parts = [f"{int(factor)}*p[{int(column)}]" for row, column, factor in zip(rows, columns, factors, strict=True) if row == 0]
        return write_function(("p",), " + ".join([str(int(self._constants[0])), *parts]))


def write_function(parameters: Sequence[str], result: str, lines: Sequence[str] = ()) -> Callable[..., Any]:
    """Returns a function of these parameters that returns an expression of them: one call in place of a loop over its parts."""
    names: dict[str, Any] = {}
    exec("\n".join([f"def function({', '.join(parameters)}):", *lines, f"    return {result}"]), names)
    function: Callable[..., Any] = names["function"]
    return function


def write_tuple(parts: Iterable[str]) -> str:
    """Returns the expression of a tuple."""
    return f"({''.join(f'{part}, ' for part in parts)})"


def write_derivation(derivation: Derivation) -> Callable[[Sequence[int]], Numbers | None]:
    """Returns a function from sizes to the products of atoms; to None where there is none or it would be too large."""
    lines = []
    for number, atom in sorted(derivation.atoms.items()):
        parts = [_write(part) for part in atom.parts]
        # Parts of an atom were made before it.
        expression = f"({parts[0]}) // ({parts[1]})" if atom.kind == "quotient" else f"max({', '.join(parts)})"
        lines.append(f"    a{number} = {expression}")
    results = write_tuple("*".join(f"a{number}" for number in product) for product in derivation.products)
    compute = write_function([f"a{number}" for number in derivation.sizes], results, lines)

    def derive(sizes: Sequence[int]) -> Numbers | None:
        try:
            values = compute(*sizes)
        except ZeroDivisionError:
            # Of sizes for which the guards do not hold.
            return None
        if values and max(values) >= LARGEST_NUMBER:
            return None
        return np.array(values, np.float64)

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
