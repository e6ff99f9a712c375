"""Sizes as symbols: integers that the planner computes with, and its questions about them.

A `Size` is a polynomial of *atoms*: sizes of the network's inputs, addresses where memory begins, quotients and maxima of other sizes. It
has the value of an example, for which a plan is being made. Each answer that depends on the example, a comparison or a number that
leaves for a place that knows no symbols, is written down as a *guard*, a condition on the sizes for which the plan is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Terms = Mapping[tuple[int, ...], int]
"""Products of atoms, as sorted numbers of these, with their factors; () is the constant."""
Key = tuple[tuple[tuple[int, ...], int], ...]
"""Terms that can be compared."""


class NotOpenError(Exception):
    """Something cannot be planned for all sizes of a class; never leaves the device."""


@dataclass(frozen=True, slots=True)
class Atom:
    """`kind`: "size", "base" (where memory begins), "quotient" or "largest" of `parts`."""

    kind: str
    parts: tuple[Key, ...] = ()
    name: str = ""


def evaluate(terms: Terms, values: Sequence[int]) -> int:
    """Returns a sum of products of atoms with these values."""
    total = 0
    for product, factor in terms.items():
        for number in product:
            factor *= values[number]
        total += factor
    return total


def add(left: Terms, right: Terms, times: int = 1) -> Terms:
    """Returns a sum, with a factor for the second operand."""
    total = dict(left)
    for product, factor in right.items():
        if amount := total.get(product, 0) + times * factor:
            total[product] = amount
        else:
            total.pop(product, None)
    return total


def multiply(left: Terms, right: Terms) -> Terms:
    """Returns a product."""
    total: dict[tuple[int, ...], int] = {}
    for product, factor in left.items():
        for other, amount in right.items():
            key = tuple(sorted(product + other))
            total[key] = total.get(key, 0) + factor * amount
    return {product: factor for product, factor in total.items() if factor}


def key_of(terms: Terms) -> Key:
    """Returns terms in an order that is always the same."""
    return tuple(sorted(terms.items()))


def take_out(terms: Terms, product: tuple[int, ...]) -> tuple[Terms, bool]:
    """Returns terms divided by a product of atoms, and whether each of them could be."""
    divided = {}
    for own, factor in terms.items():
        atoms = list(own)
        for number in product:
            if number not in atoms:
                return terms, False
            atoms.remove(number)
        divided[tuple(atoms)] = factor
    return divided, True


def reduce_terms(bounds: Sequence[tuple[int, int]], terms: Terms) -> Terms:
    """Returns terms without the atoms that are in all of them and positive: the sign stays."""
    if () in terms:
        return terms
    shared = set.intersection(*(set(product) for product in terms)) if terms else set()
    for number in shared:
        if bounds[number][0] > 0:
            terms, _ = take_out(terms, (number,))
    return terms


LARGEST_SIZE = 1 << 31
_ADDRESSES = 1 << 32, 1 << 47
_MOST_TERMS = 64


@dataclass(slots=True, eq=False)
class Scope:
    """The atoms of one class of sizes, their values in the example, and the guards so far."""

    atoms: list[Atom] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    bounds: list[tuple[int, int]] = field(default_factory=list)
    """The least and the largest value that each atom has while the guards hold."""
    guards: dict[str, dict[Key, None]] = field(default_factory=lambda: {">= 0": {}, "== 0": {}, "!= 0": {}})
    """The terms for which each claim holds."""
    tables: dict[tuple[Any, tuple[Key, ...]], Size] = field(default_factory=dict)
    """The addresses of small arrays that are made when a plan is bound, by the function that makes them and its numbers."""
    is_structural: bool = False
    """Whether sizes are equal only if they are the same expression, which leaves no guard: for passes that may miss a chance."""
    _numbers: dict[Atom, int] = field(default_factory=dict)
    _bases: set[int] = field(default_factory=set)
    _limits: dict[tuple[tuple[tuple[int, ...], int], ...], tuple[int, int]] = field(default_factory=dict)
    _expansions: dict[tuple[int, ...], Terms] = field(default_factory=dict)
    """A product of atoms -> the same as a sum of products of what each atom has beyond its least value."""

    def open_size(self, name: str, value: int) -> Size | int:
        """Returns the symbol of a size; 0 and 1 are no symbols, since they broadcast or are empty: each is a class of its own."""
        if value < 2:
            return value
        return self._make_atom(Atom("size", name=name), value, (2, LARGEST_SIZE))

    def open_base(self, name: str) -> Size:
        """Returns the symbol of the address where some memory begins."""
        return self._make_atom(Atom("base", name=name), _ADDRESSES[0] << (len(self.atoms) % 8), _ADDRESSES)

    def lay_table(self, make: Any, numbers: Sequence[Any]) -> Size:
        """Returns the address of the array that `make` will make of numbers."""
        key = make, tuple(key_of(terms_of(number)) for number in numbers)
        if key not in self.tables:
            self.tables[key] = self.open_base(f"table {len(self.tables)}")
        return self.tables[key]

    def find_largest(self, sizes: Sequence[Size | int]) -> Size | int:
        """Returns the largest of sizes, without asking which it is."""
        candidates: list[Size | int] = []
        for size in sizes:
            if any(is_at_least(other, size) for other in candidates):
                continue
            candidates = [other for other in candidates if not is_at_least(size, other)]
            candidates.append(size)
        if len(candidates) == 1:
            return candidates[0]
        parts = tuple(sorted(key_of(terms_of(size)) for size in candidates))
        limits = [self.bound(terms_of(size)) for size in candidates]
        bounds = max(low for low, _ in limits), max(high for _, high in limits)
        return self._make_atom(Atom("largest", parts), max(value_of(size) for size in candidates), bounds)

    def divide(self, above: Terms, below: Terms) -> Size | int:
        """Returns a quotient, rounded down, as an atom; `below` is positive."""
        value = evaluate(above, self.values) // evaluate(below, self.values)
        (low, high), (least, most) = self.bound(above), self.bound(below)
        least = max(least, 1)
        bounds = min(low // least, low // most), max(high // least, high // most)
        if bounds[0] == bounds[1]:
            return bounds[0]
        return self._make_atom(Atom("quotient", (key_of(above), key_of(below))), value, bounds)

    def _make_atom(self, atom: Atom, value: int, bounds: tuple[int, int]) -> Size:
        number = self._numbers.get(atom)
        if number is None:
            number = self._numbers[atom] = len(self.atoms)
            self.atoms.append(atom)
            self.values.append(value)
            self.bounds.append(bounds)
            if atom.kind == "base":
                self._bases.add(number)
        return Size(self, {(number,): 1})

    def bound(self, terms: Terms) -> tuple[int, int]:
        """Returns limits of a sum while the guards hold. Cached: planning asks for the same sums four or five times."""
        key = tuple(terms.items())
        limits = self._limits.get(key)
        if limits is None:
            # Each atom is its least value and something from zero on, in which the sum is written.
            shifted: Terms = {}
            bounds, expansions = self.bounds, self._expansions
            for product, factor in terms.items():
                if product not in expansions:
                    parts: Terms = {(): 1}
                    for number in product:
                        parts = multiply(parts, {(number,): 1, (): bounds[number][0]})
                    expansions[product] = parts
                shifted = add(shifted, expansions[product], factor)
            low = high = shifted.get((), 0)
            for product, factor in shifted.items():
                span = factor if product else 0
                for number in product:
                    span *= bounds[number][1] - bounds[number][0]
                low, high = low + min(span, 0), high + max(span, 0)
            limits = self._limits[key] = low, high
        return limits

    def has_base(self, terms: Terms) -> bool:
        """Says whether an address is among the terms."""
        return not all(map(self._bases.isdisjoint, terms))

    def guard(self, terms: Terms, claim: str) -> None:
        """Writes down a claim of `guards` about terms."""
        if self.has_base(terms):
            raise NotOpenError("an address was asked for its value")
        self.guards[claim][key_of(terms)] = None
        products = [product for product in terms if product]
        if claim == "!= 0" or len(products) != 1 or len(products[0]) != 1:
            return
        # A limit of an atom answers many later questions.
        (number,) = products[0]
        factor, rest = terms[products[0]], terms.get((), 0)
        low, high = self.bounds[number]
        if factor > 0:
            low = max(low, -(rest // factor))
        else:
            high = min(high, rest // -factor)
        if claim == "== 0":
            low = high = self.values[number]
        if self.bounds[number] != (low, high):
            self.bounds[number] = low, high
            self._limits.clear()
            self._expansions.clear()


class Size:
    """An integer that depends on the sizes of the inputs; an `int` for isinstance; its use as a plain number leaves a guard."""

    __slots__ = ("scope", "terms")

    def __init__(self, scope: Scope, terms: Terms) -> None:
        self.scope, self.terms = scope, terms

    @property  # type: ignore[misc]  # isinstance takes it for an int
    def __class__(self) -> type:
        return int

    @property
    def value(self) -> int:
        """The value in the example."""
        return evaluate(self.terms, self.scope.values)

    def pin(self) -> int:
        """Returns the value in the example, which it then has in the whole class."""
        value = self.value
        self.scope.guard(add(self.terms, {(): -value}), "== 0")
        return value

    # Arithmetic.

    def __add__(self, other: Any) -> Any:
        return _operate(self, other, add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _operate(self, other, lambda a, b: add(a, b, -1))

    def __rsub__(self, other: Any) -> Any:
        return _operate(self, other, lambda a, b: add(b, a, -1))

    def __mul__(self, other: Any) -> Any:
        return _operate(self, other, multiply)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return make_size(self.scope, {product: -factor for product, factor in self.terms.items()})

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __floordiv__(self, other: Any) -> Any:
        return divide(self, other) if _is_whole(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return divide(other, self) if _is_whole(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return self - divide(self, other) * other if _is_whole(other) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return other - divide(other, self) * self if _is_whole(other) else NotImplemented

    def __truediv__(self, other: Any) -> Any:
        return self.pin() / other

    # Questions.

    def __eq__(self, other: object) -> bool:
        if type(other) is int and len(self.terms) == 1:
            # The question that is asked most often: is a size 1?
            ((product, factor),) = self.terms.items()
            if len(product) == 1 and self.scope.bounds[product[0]][0] * factor > max(other, 0):
                return False
        elif not _is_whole(other):
            return False
        return _is_zero(self.scope, add(self.terms, terms_of(other), -1))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return not _is_at_least(self, other) if _is_whole(other) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return _is_at_least(self, other) if _is_whole(other) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return not _is_at_least(other, self) if _is_whole(other) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return _is_at_least(other, self) if _is_whole(other) else NotImplemented

    def __bool__(self) -> bool:
        return self != 0

    # Conversions to plain numbers.

    def __hash__(self) -> int:
        return hash(self.pin())

    def __index__(self) -> int:
        return self.pin()

    __int__ = __trunc__ = __index__

    def __float__(self) -> float:
        return float(self.pin())

    def __repr__(self) -> str:
        return str(self.pin())

    def __format__(self, spec: str) -> str:
        return format(self.pin(), spec)


def is_open(number: object) -> bool:
    """Says whether a number is a symbol."""
    return type(number) is Size


def value_of(number: Any) -> int:
    """Returns the value in the example, without a guard."""
    value: int = number.value if is_open(number) else number
    return value


def largest(*numbers: Any) -> Any:
    """Returns the largest of numbers; of symbols as a symbol, without asking which it is."""
    scope = next((number.scope for number in numbers if is_open(number)), None)
    return max(numbers) if scope is None else scope.find_largest(numbers)


def least(*numbers: Any) -> Any:
    """Returns the least of numbers, as `largest` does."""
    return -largest(*(-number for number in numbers))


def terms_of(number: Any) -> Terms:
    """Returns an integer as terms."""
    if is_open(number):
        terms: Terms = number.terms
        return terms
    return {(): int(number)} if number else {}


def make_size(scope: Scope, terms: Terms) -> Size | int:
    """Returns terms as a number, a plain number if they are constant."""
    if len(terms) > _MOST_TERMS:
        raise NotOpenError("a size of too many terms")
    if not terms:
        return 0
    return terms[()] if len(terms) == 1 and () in terms else Size(scope, terms)


def is_at_least(left: Any, right: Any) -> bool:
    """Says whether a number is at least as large as the second in the whole class, without asking the example."""
    difference = left - right
    if not is_open(difference):
        return bool(difference >= 0)
    scope: Scope = difference.scope
    return scope.bound(difference.terms)[0] >= 0


def divide(left: Any, right: Any) -> Any:
    """Returns a quotient rounded down."""
    scope = left.scope if is_open(left) else right.scope
    above, below = terms_of(left), terms_of(right)
    if not (right > 0):
        return divide(-left, -right)
    if scope.bound(above)[1] < 0:
        # So that quotients of positive numbers are all that there are.
        return -divide(-left + right - 1, right)
    if len(below) == 1:
        ((product, factor),) = below.items()
        above, is_whole = take_out(above, product)
        if is_whole:
            return _divide_by(scope, above, factor)
    if key_of(above) == key_of(below):
        return 1
    return scope.divide(above, below)


def _divide_by(scope: Scope, above: Terms, factor: int) -> Any:
    whole, rest = {}, {}
    for product, amount in above.items():
        times, remainder = divmod(amount, factor) if amount > 0 or amount % factor == 0 else (0, amount)
        if times:
            whole[product] = times
        if remainder:
            rest[product] = remainder
    quotient = scope.divide(rest, {(): factor}) if rest else 0
    return make_size(scope, add(whole, terms_of(quotient)))


def _operate(left: Size, right: Any, combine: Any) -> Any:
    if not _is_whole(right):
        return NotImplemented
    return make_size(left.scope, combine(left.terms, terms_of(right)))


def _is_whole(number: object) -> bool:
    return (
        type(number) in (int, Size)
        or isinstance(number, int)
        or (hasattr(number, "__index__") and hasattr(number, "dtype") and getattr(number, "ndim", 1) == 0)
    )


def _is_zero(scope: Scope, terms: Terms) -> bool:
    if not terms:
        return True
    if scope.has_base(terms):
        # Addresses in two memories are never the same.
        return False
    terms = reduce_terms(scope.bounds, terms)
    low, high = scope.bound(terms)
    if low > 0 or high < 0:
        return False
    if low == high == 0:
        return True
    if scope.is_structural:
        return False
    is_zero = evaluate(terms, scope.values) == 0
    scope.guard(terms, "== 0" if is_zero else "!= 0")
    return is_zero


def _is_at_least(left: Any, right: Any) -> bool:
    scope: Scope = left.scope if is_open(left) else right.scope
    terms = reduce_terms(scope.bounds, add(terms_of(left), terms_of(right), -1))
    low, high = scope.bound(terms)
    if low >= 0 or high < 0:
        return low >= 0
    if evaluate(terms, scope.values) >= 0:
        scope.guard(terms, ">= 0")
        return True
    scope.guard(add({product: -factor for product, factor in terms.items()}, {(): -1}), ">= 0")
    return False


def pays(number: Any, limit: int) -> bool:
    """Says whether a number is at least a limit from which on something pays, and from half of it on is right.

    So that sizes on both sides of the limit do not need a class each, a class reaches from half of it on without an end; that of an example
    below reaches up to four times the limit.
    """
    if not is_open(number):
        return bool(number >= limit)
    if number.value >= limit // 2:
        return bool(number >= limit // 2)
    return not number < 4 * limit


def is_same(left: Any, right: Any) -> bool:
    """Says whether two numbers are the same expression, without asking the example."""
    return terms_of(left) == terms_of(right)


def is_same_shape(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Says whether two shapes are the same in the whole class, without asking the example."""
    return len(left) == len(right) and all(map(is_same, left, right))
