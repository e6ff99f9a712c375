"""tanh and erf of float32 vectors as quotients of polynomials.

The errors stated are the largest that were measured, in units in the last place.
"""

from __future__ import annotations

from hetero_cpu.machine.code import Code
from hetero_cpu.machine.exponential import emit_polynomial
from hetero_cpu.machine.terms import Floats

# f(x) = x P(x**2) / Q(x**2), fitted by reweighted least squares in double precision: within 2.1e-8 of tanh for |x| <= 9.02 and of erf for
# |x| <= 3.93, beyond which both are 1.
_TANH_EDGE, _ERF_EDGE = 9.02, 3.93
_TANH_UPPER = (1.3319065850225797e-08, 2.0583476725732908e-05, 0.0034940342884510756, 0.13379716873168945, 1.0)
_TANH_LOWER = (7.762016593915178e-07, 0.0003283092228230089, 0.025871071964502335, 0.4671303331851959, 1.0)
_ERF_UPPER = (
    2.041971583821578e-06, 0.00028480871696956456, 0.003779610386118293, 0.052790287882089615, 0.19078384339809418, 1.1283791065216064,
)  # fmt: skip
_ERF_LOWER = (3.800409103860147e-05, 0.0011652131797745824, 0.014997439458966255, 0.11425752937793732, 0.5024105310440063, 1.0)


def emit_tanh(code: Code, x: Floats) -> Floats:
    """Returns tanh(x), error 5 just below 1 and 3 elsewhere; at most 1."""
    return _emit_quotient(code, x, _TANH_UPPER, _TANH_LOWER, edge=_TANH_EDGE)


def emit_erf(code: Code, x: Floats) -> Floats:
    """Returns erf(x), error 6 just below 1 and 3 elsewhere; at most 1."""
    return _emit_quotient(code, x, _ERF_UPPER, _ERF_LOWER, edge=_ERF_EDGE)


def _emit_quotient(code: Code, x: Floats, upper: tuple[float, ...], lower: tuple[float, ...], *, edge: float) -> Floats:
    square = x * x
    unit = code.constant(1.0, x.width)
    quotient = x * emit_polynomial(code, square, upper) / emit_polynomial(code, square, lower)
    quotient = (x > edge).choose(unit, quotient.at_most(1.0))
    return (x < -edge).choose(-unit, quotient.at_least(-1.0))
