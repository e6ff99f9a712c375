"""erf for float32 in place, in strips: the toolkit's is right to the last bit of float64 and makes many arrays on its way."""

from __future__ import annotations

import numpy as np

from hetero_cpu.planning.recipe import Array

# erf(x) / x as P(x^2) / Q(x^2) on |x| <= 4, beyond which erf is 1 in float32. Fitted by reweighted least squares in double precision;
# the largest relative error is 2.5e-8, 4e-7 when it is computed in float32.
_P = (
    1.1283791393844775,
    0.1935371437719231,
    0.05310071043105271,
    0.0038830114858550524,
    0.0002845592087563099,
    1.9868485743364965e-06,
)
_Q = (1.0, 0.5048503851523551, 0.11534673720571892, 0.015206580520303537, 0.0011854923526531764, 3.742052463776577e-05)
_P32 = tuple(np.float32(number) for number in _P)
_Q32 = tuple(np.float32(number) for number in _Q)
_EDGE = np.float32(4)
# Elements at a time: x and the three arrays beside it stay in the nearest cache.
_STRIP = 1 << 13


def write_erf(x: Array) -> None:
    """Writes erf over x, float32 of any shape and C-contiguous. NaN stays NaN."""
    flat = x.reshape(-1)
    square, upper, lower = (np.empty(min(_STRIP, flat.size), np.float32) for _ in range(3))
    for begin in range(0, flat.size, _STRIP):
        part = flat[begin : begin + _STRIP]
        count = part.size
        u, p, q = square[:count], upper[:count], lower[:count]
        np.minimum(part, _EDGE, out=part)
        np.maximum(part, -_EDGE, out=part)
        np.multiply(part, part, out=u)
        _write_polynomial(u, _P32, p)
        _write_polynomial(u, _Q32, q)
        np.multiply(part, p, out=part)
        np.divide(part, q, out=part)


def _write_polynomial(u: Array, coefficients: tuple[np.float32, ...], out: Array) -> None:
    np.multiply(u, coefficients[-1], out=out)
    for coefficient in coefficients[-2:0:-1]:
        np.add(out, coefficient, out=out)
        np.multiply(out, u, out=out)
    np.add(out, coefficients[0], out=out)
