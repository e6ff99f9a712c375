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


Expansions = dict[tuple[int, ...], Terms]
"""A product of atoms -> the same as a sum of products of what each atom has beyond its least value."""


def bound_terms(bounds: Sequence[tuple[int, int]], terms: Terms, expansions: Expansions) -> tuple[int, int]:
    """Returns limits of a sum: `bounds` of each atom, which is its least value and something from zero on, in which the sum is written.

    `expansions` are those of these bounds so far; new ones are added.
    """
    shifted: Terms = {}
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
    return low, high
