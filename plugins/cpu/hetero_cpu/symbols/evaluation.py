"""A class of sizes and its guards, and numbers of a plan for sizes of it: products of atoms by a written function, all sums at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_core.network.types import ValueSpec, sizes_of
from hetero_cpu.symbols.sizes import Atom, Key, NotOpenError, Scope, Size, Terms, is_open

Products = tuple[int, ...]
"""The values of products of atoms."""
Numbers = np.ndarray[Any, Any]

LARGEST_NUMBER = 1 << 52
"""Of a factor and of a product. Their sums are sizes and addresses of arrays that are in memory, which int64 holds exactly."""


class Evaluator:
    """The products of atoms that some terms have, and tables of numbers that are linear in these."""

    def __init__(self, scope: Scope, expressions: Iterable[Terms], bases: Sequence[Size] = ()) -> None:
        """`bases`: where memories begin; behind the products they are columns of tables."""
        products = {product for terms in expressions for product in terms if product}
        addresses = {product for product in products if scope.has_base({product: 1})}
        if any(len(product) > 1 for product in addresses):
            raise NotOpenError("an address in a product")
        self.products = tuple(sorted(products - addresses))
        self.parameters = [f"p{column}" for column in range(len(self.products))]
        """The names of the products in written functions."""
        columns = [*self.products, *(product for base in bases for product in base.terms)]
        self._column_of_product = {product: column for column, product in enumerate(columns)}
        self._atoms = _list_atoms(scope, self.products)

    def write_products(self) -> list[str]:
        """Returns the lines of a function that has the sizes as a0, a1 and so on, and makes the products of these."""
        lines = []
        for number, atom in self._atoms.items():
            # Parts of an atom were made before it.
            parts = [_write(part) for part in atom.parts]
            expression = f"({parts[0]}) // ({parts[1]})" if atom.kind == "quotient" else f"max({', '.join(parts)})"
            lines.append(f"    a{number} = {expression}")
        for name, product in zip(self.parameters, self.products, strict=True):
            lines.append(f"    {name} = {'*'.join(f'a{number}' for number in product)}")
        return lines

    def tabulate(self, expressions: Sequence[Terms]) -> Table:
        """Returns the table of numbers that are linear in the products."""
        constants = np.zeros(len(expressions), np.int64)
        rows, columns, factors = list[int](), list[int](), list[int]()
        # A loop: comprehensions take 1.7 times as long.
        for row, terms in enumerate(expressions):
            for product, factor in terms.items():
                if abs(factor) > LARGEST_NUMBER:
                    raise NotOpenError(f"a number that is too large: {factor}")
                if not product:
                    constants[row] = factor
                else:
                    rows.append(row)
                    columns.append(self._column_of_product[product])
                    factors.append(factor)
        entries = [np.array(part, np.int64) for part in (rows, columns, factors)]
        return Table(constants, entries[0], entries[1], entries[2], len(self.products))


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers, each a constant and a sum of columns with factors; the first columns are `products`, the rest bases."""

    constants: Numbers
    rows: Numbers
    columns: Numbers
    factors: Numbers
    products: int

    def write(self, rows: Iterable[int]) -> list[str]:
        """Returns the numbers of some rows as expressions of the products p0, p1 and so on, addresses from the begin of their memory."""
        sums = {row: str(self.constants[row]) for row in rows}
        for row, column, factor in zip(self.rows.tolist(), self.columns.tolist(), self.factors.tolist(), strict=True):
            if row in sums and column < self.products:
                sums[row] += f" + {factor}*p{column}"
        return list(sums.values())


def compile_sums(table: Table, rows: Numbers) -> Callable[[Sequence[int]], Numbers]:
    """Returns a function of the columns' values that evaluates some numbers of a table together; `rows`: in order, without duplicates."""
    is_read = np.isin(table.rows, rows)
    # A constant is the factor of a further product, which is 1: so every number is a sum, and no number is treated by itself.
    every_row = np.concatenate([rows, table.rows[is_read]])
    order = np.argsort(every_row, kind="stable")
    places = np.concatenate([np.full(len(rows), -1), table.columns[is_read]])[order]
    factors = np.concatenate([table.constants[rows], table.factors[is_read]])[order]
    begins = np.searchsorted(every_row[order], rows)

    def evaluate(columns: Sequence[int]) -> Numbers:
        values = np.array((*columns, 1), np.int64).take(places)
        values *= factors
        return np.add.reduceat(values, begins)

    return evaluate


def write_function(parameters: Sequence[str], result: str, lines: Sequence[str] = ()) -> Callable[..., Any]:
    """Returns a function of these parameters that returns an expression of them: a single call in place of a loop over its parts."""
    names: dict[str, Any] = {}
    exec("\n".join([f"def function({', '.join(parameters)}):", *lines, f"    return {result}"]), names)
    function: Callable[..., Any] = names["function"]
    return function


def write_tuple(parts: Iterable[str]) -> str:
    """Returns the expression of a tuple."""
    return f"({''.join(f'{part}, ' for part in parts)})"


def _list_atoms(scope: Scope, products: Sequence[tuple[int, ...]]) -> dict[int, Atom]:
    """Returns the atoms that products are made of beside sizes of inputs."""
    needed, waiting = set[int](), [number for product in products for number in product]
    while waiting:
        if (number := waiting.pop()) not in needed:
            needed.add(number)
            waiting += [other for part in scope.atoms[number].parts for product, _ in part for other in product]
    atoms = {number: atom for number in sorted(needed) if (atom := scope.atoms[number]).kind != "size"}
    if any(atom.kind not in ("quotient", "largest") for atom in atoms.values()):
        raise NotOpenError("a number that no size gives")
    return atoms


def _write(part: Key) -> str:
    return " + ".join("*".join((str(factor), *(f"a{number}" for number in product))) for product, factor in part) or "0"


Signature = tuple[tuple[int, ...] | None, ...]
"""The shape of each input; None for a sequence or an absent optional."""


def read_static_signature(inputs: Sequence[ValueSpec]) -> Signature | None:
    """Returns the shapes that a network declares for its inputs; None when a size is open, or an input is no tensor."""
    shapes = tuple([sizes_of(spec.type) for spec in inputs])
    return None if None in shapes else shapes


class SizeClass:
    """Safe for threads."""

    def __init__(self, scope: Scope, shapes: Sequence[Sequence[Any] | None], evaluator: Evaluator) -> None:
        """`shapes`: of each input, with symbols; None if it is no array. `evaluator`: with the terms of the scope's guards."""
        self.shapes, self.parameters = shapes, evaluator.parameters
        self.place_of_symbol: dict[int, tuple[int, int]] = {}
        """The first input and axis that have each symbol, by its atom."""
        written = ["None" if shape is None else self._write_shape(index, shape) for index, shape in enumerate(shapes)]
        self.bounds = [scope.bounds[atom] for atom in self.place_of_symbol]
        """The least and the largest value of each symbol."""
        limits = [f"{low} <= a{atom} <= {high}" for atom, (low, high) in zip(self.place_of_symbol, self.bounds, strict=True)]
        claims = [
            f"{own} {claim}"
            for claim, keys in scope.guards.items()
            for own in evaluator.tabulate([dict(key) for key in keys]).write(range(len(keys)))
        ]
        lines = [
            *(f"    a{atom} = shapes[{index}][{axis}]" for atom, (index, axis) in self.place_of_symbol.items()),
            f"    if not ({' and '.join([*limits, f'shapes == {write_tuple(written)}'])}):",
            "        return None",
            *evaluator.write_products(),
        ]
        holds = " and ".join([f"max({', '.join([*self.parameters, '0', '0'])}) < {LARGEST_NUMBER}", *claims])
        self._match = write_function(["shapes"], f"{write_tuple(self.parameters)} if {holds} else None", lines)

    def _write_shape(self, index: int, shape: Sequence[Any]) -> str:
        """Returns the expression of the shape of an input, and notes its symbols."""
        parts = []
        for axis, size in enumerate(shape):
            if is_open(size):
                ((atom,),) = size.terms
                self.place_of_symbol.setdefault(atom, (index, axis))
            parts.append(f"a{atom}" if is_open(size) else str(int(size)))
        return write_tuple(parts)

    @property
    def is_single(self) -> bool:
        """Says whether the class is a single set of sizes."""
        return all(low == high for low, high in self.bounds)

    def match(self, signature: Signature) -> Products | None:
        """Returns the products of atoms for a set of input shapes; None if it is not of the class."""
        try:
            products: Products | None = self._match(signature)
        except (IndexError, TypeError, ZeroDivisionError):
            # Of inputs with fewer axes, or that are no arrays; of sizes for which the guards do not hold.
            return None
        return products
