"""Sums of products of atoms, with whole factors: the polynomials that sizes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        amount = total.get(product, 0) + times * factor
        if amount:
            total[product] = amount
        else:
            total.pop(product, None)
    return total


def add_number(terms: Terms, number: int) -> Terms:
    """Returns terms and a number."""
    total = dict(terms)
    amount = total.pop((), 0) + number
    if amount:
        total[()] = amount
    return total


def multiply_by(terms: Terms, number: int) -> Terms:
    """Returns terms so many times; the number is not 0."""
    return {product: factor * number for product, factor in terms.items()}


def multiply(left: Terms, right: Terms) -> Terms:
    """Returns a product."""
    for terms, number in ((left, right), (right, left)):
        if len(number) == 1 and () in number:
            times = number[()]
            return {product: factor * times for product, factor in terms.items()} if times else {}
    total: dict[tuple[int, ...], int] = {}
    for product, factor in left.items():
        for other, amount in right.items():
            key = tuple(sorted((*product, *other)))
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


Expansions = dict[tuple[int, ...], Mapping[tuple[int, ...], int]]
"""A product of atoms -> the same as a sum of products of what each atom has beyond its least value."""


def bound_terms(bounds: Sequence[tuple[int, int]], terms: Terms, expansions: Expansions) -> tuple[int, int]:
    """Returns limits of a sum: `bounds` of each atom, which is its least value and something from zero on, in which the sum is written.

    `expansions` are those of these bounds so far; new ones are added.
    """
    if all(len(product) < 2 for product in terms):
        return _bound_sum(bounds, terms)
    shifted: dict[tuple[int, ...], int] = {}
    for product, factor in terms.items():
        parts = expansions.get(product)
        if parts is None:
            parts = expansions[product] = _expand(bounds, product)
        for key, amount in parts.items():
            shifted[key] = shifted.get(key, 0) + factor * amount
    low = high = shifted.pop((), 0)
    for product, factor in shifted.items():
        span = factor
        for number in product:
            span *= bounds[number][1] - bounds[number][0]
        low, high = low + min(span, 0), high + max(span, 0)
    return low, high


def _expand(bounds: Sequence[tuple[int, int]], product: tuple[int, ...]) -> Mapping[tuple[int, ...], int]:
    parts: dict[tuple[int, ...], int] = {(): 1}
    for number in product:
        least = bounds[number][0]
        grown: dict[tuple[int, ...], int] = {}
        for others, amount in parts.items():
            grown[(*others, number)] = grown.get((*others, number), 0) + amount
            if least:
                grown[others] = grown.get(others, 0) + amount * least
        parts = grown
    return parts


def _bound_sum(bounds: Sequence[tuple[int, int]], terms: Terms) -> tuple[int, int]:
    """Returns limits of a sum of single atoms."""
    low = high = 0
    for product, factor in terms.items():
        least, most = bounds[product[0]] if product else (1, 1)
        if factor > 0:
            low, high = low + factor * least, high + factor * most
        else:
            low, high = low + factor * most, high + factor * least
    return low, high
