"""Numbers of a plan for given sizes: all sums of products of atoms at once, with one small function and one product of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hetero_cpu.open.sizes import Scope
from hetero_cpu.open.terms import Key, NotOpenError, Terms

Product = tuple[int, ...]

LARGEST_NUMBER = 1 << 52
"""Up to which sums of float64 are exact, with room to spare."""


class Evaluator:
    """Evaluates lists of terms. `derive(values of sizes)` makes the products of atoms; `Table.evaluate` what is linear in them."""

    def __init__(self, scope: Scope, sizes: Sequence[int], expressions: Iterable[Terms]) -> None:
        """`sizes`: the atoms whose values are given. Addresses are no part of it."""
        products = {product for terms in expressions for product in terms if product}
        self.products: tuple[Product, ...] = tuple(sorted(product for product in products if not _is_base(scope, product)))
        self._index = {product: row for row, product in enumerate(self.products)}
        self._derive = _write_function(scope, sizes, self.products)

    def derive(self, sizes: Sequence[int]) -> np.ndarray[Any, Any] | None:
        """Returns the products of atoms for sizes; None where there is none or it would be too large."""
        try:
            values = self._derive(*sizes)
        except ZeroDivisionError:
            # Of sizes for which the guards do not hold.
            return None
        if values and max(values) >= LARGEST_NUMBER:
            return None
        return np.array(values, np.float64)

    def tabulate(self, expressions: Sequence[Terms]) -> Table:
        """Returns the table of numbers that are linear in the products."""
        matrix = np.zeros((len(expressions), len(self.products)))
        constants = np.zeros(len(expressions))
        for row, terms in enumerate(expressions):
            for product, factor in terms.items():
                if not product:
                    constants[row] = factor
                elif product in self._index:
                    matrix[row, self._index[product]] = factor
        return Table(matrix, constants)


class Table:
    """Numbers, each a constant and a sum over products."""

    __slots__ = ("_constants", "_matrix")

    def __init__(self, matrix: np.ndarray[Any, Any], constants: np.ndarray[Any, Any]) -> None:
        self._matrix, self._constants = matrix, constants

    def __len__(self) -> int:
        return len(self._constants)

    def evaluate(self, products: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns all numbers, as float64 without a fraction."""
        numbers: np.ndarray[Any, Any] = self._matrix @ products
        numbers += self._constants
        return numbers


def write_function(parameters: Sequence[str], result: str) -> Callable[..., Any]:
    """Returns a function of these parameters that returns an expression of them: one call in place of a loop over its parts."""
    names: dict[str, Any] = {}
    exec(f"def function({', '.join(parameters)}):\n    return {result}", names)
    function: Callable[..., Any] = names["function"]
    return function


def write_tuple(parts: Iterable[str]) -> str:
    """Returns the expression of a tuple."""
    return f"({''.join(f'{part}, ' for part in parts)})"


def _is_base(scope: Scope, product: Product) -> bool:
    is_base = any(scope.atoms[number].kind == "base" for number in product)
    if is_base and len(product) > 1:
        raise NotOpenError("an address in a product")
    return is_base


def _write_function(scope: Scope, sizes: Sequence[int], products: Sequence[Product]) -> Callable[..., tuple[int, ...]]:
    """Returns a function from sizes to the values of products."""
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
    parameters = ", ".join(f"a{number}" for number in sizes)
    lines = [f"def derive({parameters}):"]
    # Parts of an atom were made before it.
    for number in sorted(needed - set(sizes)):
        atom = scope.atoms[number]
        parts = [_write(part) for part in atom.parts]
        if atom.kind == "quotient":
            lines.append(f"    a{number} = ({parts[0]}) // ({parts[1]})")
        elif atom.kind == "largest":
            lines.append(f"    a{number} = max({', '.join(parts)})")
        else:
            raise NotOpenError("a number that no size gives")
    results = "".join("*".join(f"a{number}" for number in product) + ", " for product in products)
    lines.append(f"    return ({results})")
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    function: Callable[..., tuple[int, ...]] = names["derive"]
    return function


def _write(part: Key) -> str:
    return " + ".join("*".join((str(factor), *(f"a{number}" for number in product))) for product, factor in part) or "0"
