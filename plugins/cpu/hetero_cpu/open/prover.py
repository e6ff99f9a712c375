"""Proves that sums of products of atoms are at least zero for all sizes of a class, from the limits of its symbols and its guards alone.

```text
terms ── equalities put in ──> bounds ──> at least 0? ── no ──> a quotient or a maximum replaced by its limits ──> bounds ...
```

A quotient q = a // b obeys a - b + 1 <= b q <= a; a maximum is at least each of its parts and equal to one of them. What is not proven
may be true all the same: `samples` are sets of sizes of the class at which it can be computed. Nothing here compares a `Size`, since each
comparison would write down a guard that the class does not enforce.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from hetero_cpu.open.size_class import SizeClass
from hetero_cpu.open.sizes import LARGEST_SIZE, Scope
from hetero_cpu.open.terms import Key, Terms, add, bound_terms, evaluate, key_of, multiply, multiply_by, reduce_terms

_ADDRESSES = 1 << 32, 1 << 47
_MOST_TERMS, _MOST_SAMPLES, _DRAWS = 64, 40, 600
_MOST_STEPS = 400
"""Sums that the proof of one claim may lead to."""
_DEEPEST = 60
"""Sums of which each is proven for the one before: few proofs need more than ten, and Python's stack holds some 200."""

Bounds = list[tuple[int, int]]
Values = Sequence[int]
"""Of all atoms, for one set of sizes."""


class Prover:
    """Knows a class as it is enforced when a run comes: limits of symbols and guards, not what the planner believed."""

    def __init__(self, scope: Scope, sizes: SizeClass) -> None:
        form = sizes.form
        # Guards that came after the class was written down are not enforced.
        positive: list[Terms] = [dict(key) for key in islice(scope.at_least_zero, form.least)]
        zero: list[Terms] = [dict(key) for key in islice(scope.equal_zero, form.equal - form.least)]
        self.scope = scope
        limits = {symbol.atom: (symbol.low, symbol.high) for symbol in form.symbols}
        self.bounds = _bound_atoms(scope, limits, positive)
        self._rules: list[tuple[int, Terms]] = []
        for terms in zero:
            self._add_rule(self.simplify(terms))
        for terms in _list_halves(scope):
            self._add_rule(self.simplify(terms))
        self._guards = [self.simplify(terms) for terms in positive]
        self.samples = list(islice(_draw_samples(scope, sizes, self._rules), _MOST_SAMPLES))
        self._known: dict[Key, bool] = {}
        self._steps, self._depth = _MOST_STEPS, 0
        self._multiples: dict[tuple[int, int], bool] = {}

    def simplify(self, terms: Terms) -> Terms:
        """Returns terms without the atoms that the class's equalities give."""
        for number, replacement in self._rules:
            terms = substitute(terms, number, replacement)
        return terms

    def is_same(self, left: Terms, right: Terms) -> bool:
        """Says whether two sums are one expression."""
        return left == right or not self.simplify(add(left, right, -1))

    def proves(self, ways: Sequence[Sequence[Terms]]) -> bool:
        """Says whether all sums of one of the ways are proven to be at least zero; False where they may be all the same."""
        for way in ways:
            self._steps = _MOST_STEPS
            if all(map(self.is_at_least_zero, way)):
                return True
        return False

    def is_at_least_zero(self, terms: Terms) -> bool:
        """Says whether terms are proven to be at least zero; False where they may be all the same."""
        if self._has_low_bound(terms):
            return True
        terms = self.simplify(terms)
        key = key_of(terms)
        if key not in self._known:
            self._steps -= 1
            if self._steps < 0 or self._depth >= _DEEPEST:
                return False
            self._depth += 1
            try:
                self._known[key] = self._prove(terms)
            finally:
                self._depth -= 1
        return self._known[key]

    def is_multiple(self, terms: Terms, factor: int) -> bool:
        """Says whether terms are proven to be a multiple of a number: a maximum is one where all its parts are."""
        return all(
            amount % factor == 0 or any(self._is_multiple_atom(number, factor) for number in product)
            for product, amount in terms.items()
        )

    def _is_multiple_atom(self, number: int, factor: int) -> bool:
        atom = self.scope.atoms[number]
        if atom.kind != "largest":
            return False
        key = number, factor
        if key not in self._multiples:
            self._multiples[key] = all(self.is_multiple(dict(part), factor) for part in atom.parts)
        return self._multiples[key]

    def _prove(self, terms: Terms) -> bool:
        if self._has_low_bound(terms):
            return True
        if len(terms) > _MOST_TERMS or any(evaluate(terms, values) < 0 for values in self.samples):
            return False
        if self._follows_from_guard(terms):
            return True
        derived = {number for product in terms for number in product if self.scope.atoms[number].parts}
        return any(self._prove_without(terms, number) for number in sorted(derived, reverse=True))

    def _has_low_bound(self, terms: Terms) -> bool:
        return bound_terms(self.bounds, reduce_terms(self.bounds, terms))[0] >= 0

    def _follows_from_guard(self, terms: Terms) -> bool:
        """Says whether what terms are more than a guard, so many times, has a bound."""
        for guard in self._guards:
            for product, factor in guard.items():
                amount = terms.get(product, 0)
                if product and amount * factor > 0:
                    rest = add(multiply_by(terms, abs(factor)), multiply_by(guard, abs(amount)), -1)
                    if self._has_low_bound(rest):
                        return True
        return False

    def _prove_without(self, terms: Terms, number: int) -> bool:
        """Says whether terms are proven with an atom replaced by its parts, which were all made before it."""
        atom = self.scope.atoms[number]
        factors, rest = split_atom(terms, number)
        if atom.kind == "largest":
            parts = [dict(part) for part in atom.parts]
            if any(number in product for product in factors):
                return all(self.is_at_least_zero(substitute(terms, number, part)) for part in parts)
            own = [self._join(rest, factors, part) for part in parts]
            return (self.is_at_least_zero(factors) and any(map(self.is_at_least_zero, own))) or all(map(self.is_at_least_zero, own))
        if any(number in product for product in factors):
            return False
        above, below = (dict(part) for part in atom.parts)
        if self.is_at_least_zero(factors):
            limit = add(add(above, below, -1), {(): 1})
        elif self.is_at_least_zero(multiply_by(factors, -1)):
            limit = above
        else:
            return False
        # What is at least 1 - b after a multiplication by b was at least 0, since it is whole.
        return self.is_at_least_zero(add(add(self._join(multiply(rest, below), factors, limit), below), {(): -1}))

    @staticmethod
    def _join(rest: Terms, factors: Terms, part: Terms) -> Terms:
        return add(rest, multiply(factors, part))

    def _add_rule(self, terms: Terms) -> None:
        """Notes an equality as an atom that the others give, the one that was made last where there are several."""
        single = [product[0] for product, factor in terms.items() if len(product) == 1 and abs(factor) == 1]
        for number in sorted(single, reverse=True):
            factors, rest = split_atom(terms, number)
            if factors in ({(): 1}, {(): -1}) and not any(number in product for product in rest):
                replacement = multiply_by(rest, -factors[()]) if rest else {}
                self._rules = [(own, substitute(part, number, replacement)) for own, part in self._rules]
                self._rules.append((number, replacement))
                return


def split_atom(terms: Terms, number: int) -> tuple[Terms, Terms]:
    """Returns what an atom is multiplied by in terms, and the terms without it."""
    factors: dict[tuple[int, ...], int] = {}
    rest: dict[tuple[int, ...], int] = {}
    for product, factor in terms.items():
        if number in product:
            others = list(product)
            others.remove(number)
            factors[tuple(others)] = factor
        else:
            rest[product] = factor
    return factors, rest


def substitute(terms: Terms, number: int, replacement: Terms) -> Terms:
    """Returns terms with an atom replaced wherever it stands."""
    while any(number in product for product in terms):
        factors, rest = split_atom(terms, number)
        terms = add(rest, multiply(factors, replacement))
    return terms


def _bound_atoms(scope: Scope, limits: dict[int, tuple[int, int]], guards: Sequence[Terms]) -> Bounds:
    """Returns the least and the largest value of each atom, told anew from the limits of symbols and the guards of single atoms."""
    own_guards: dict[int, list[Terms]] = {}
    for terms in guards:
        products = [product for product in terms if product]
        if len(products) == 1 and len(products[0]) == 1:
            own_guards.setdefault(products[0][0], []).append(terms)
    bounds: Bounds = []
    for number, atom in enumerate(scope.atoms):
        parts = [bound_terms(bounds, dict(part)) for part in atom.parts]
        if atom.kind == "quotient":
            (low, high), (least, most) = parts[0], (max(parts[1][0], 1), max(parts[1][1], 1))
            low, high = min(low // least, low // most), max(high // least, high // most)
        elif atom.kind == "largest":
            low, high = max(low for low, _ in parts), max(high for _, high in parts)
        else:
            low, high = _ADDRESSES if atom.kind == "base" else limits.get(number, (2, LARGEST_SIZE))
        for terms in own_guards.get(number, ()):
            factor, rest = terms[number,], terms.get((), 0)
            low, high = (max(low, -(rest // factor)), high) if factor > 0 else (low, min(high, rest // -factor))
        bounds.append((low, high))
    return bounds


def _list_halves(scope: Scope) -> Iterator[Terms]:
    """Yields what is zero for every integer a: a // 2 + (a + 1) // 2 - a."""
    of_above = {atom.parts[0]: number for number, atom in enumerate(scope.atoms) if atom.parts[1:] == ((((), 2),),)}
    for key, number in of_above.items():
        other = of_above.get(key_of(add(dict(key), {(): 1})))
        if other is not None:
            yield add({(number,): 1, (other,): 1}, dict(key), -1)


def _draw_samples(scope: Scope, sizes: SizeClass, rules: Sequence[tuple[int, Terms]]) -> Iterator[Values]:
    """Yields the values of all atoms at the example, at corners of the class and at sizes drawn from it."""
    yield scope.evaluate_atoms({})
    symbols = sizes.form.symbols
    example = {symbol.atom: scope.values[symbol.atom] for symbol in symbols}
    known = {tuple(example.values())}
    rng = np.random.default_rng(0)
    for drawn in _draw_sizes(symbols, example, rng):
        values = {**example, **drawn}
        for number, replacement in rules:
            if number in values:
                values[number] = evaluate(replacement, [values.get(other, 0) for other in range(len(scope.atoms))])
        key = tuple(values.values())
        if key not in known and sizes.holds(key):
            known.add(key)
            yield scope.evaluate_atoms(values)


def _draw_sizes(symbols: Sequence[Any], example: dict[int, int], rng: np.random.Generator) -> Iterator[dict[int, int]]:
    """Yields changes of the example: each symbol, those of one value, and all of them at their limits, beside them and anywhere."""
    groups = [[symbol] for symbol in symbols]
    groups += [[symbol for symbol in symbols if example[symbol.atom] == value] for value in dict.fromkeys(example.values())]
    groups.append(list(symbols))
    corners = [
        {own.atom: (own.low + beside, own.high - beside)[end] for own in group}
        for group in groups
        for end in (0, 1)
        for beside in (0, 1)
    ]
    corners += [{own.atom: example[own.atom] + change for own in group} for group in groups for change in (-1, 1, 7)]
    for draw in range(_DRAWS):
        # In turns, so that neither takes all places.
        yield from corners[draw : draw + 1]
        group = groups[int(rng.integers(len(groups)))]
        share, near = rng.random(), bool(rng.random() < 0.7)
        drawn = {}
        for own in group:
            part = share if rng.random() < 0.5 else rng.random()
            high = min(own.high, 4 * example[own.atom] + 64) if near else own.high
            drawn[own.atom] = max(own.low, int(np.exp(np.log(own.low) + part * np.log(max(high, own.low) / own.low))))
        yield drawn
