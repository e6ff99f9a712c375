"""A program whose nodes round otherwise: each float that a node makes is moved by a random part of its type's tolerance.

Two orders of summation, or a product that is fused, differ by less than that. So what the answers of such a program differ by is what
nobody can tell from rounding. Source: Parker 1997, Monte Carlo arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_core.dtypes import TOLERANCES, dtype_of_numpy
from hetero_core.kernels.execution import Program, Step
from hetero_cpu.deviation import find_median

Array = np.ndarray[Any, Any]

_PART = 0.25
_LARGEST_EXACT = float(1 << 20)


def blur_program(program: Program, seed: int) -> Program:
    """Returns the program with other roundings, bodies included; for one run by one thread. The same seed gives the same roundings."""
    return _blur(program, np.random.default_rng(seed))


def _blur(program: Program, random: np.random.Generator) -> Program:
    return replace(program, steps=tuple(_blur_step(step, random) for step in program.steps))


def _blur_step(step: Step, random: np.random.Generator) -> Step:
    bodies = tuple(replace(body, program=_blur(body.program, random)) for body in step.bodies)
    return replace(step, function=_blur_results(step.function, random), bodies=bodies)


def _blur_results(function: Callable[..., Any], random: np.random.Generator) -> Callable[..., Any]:
    def run(*inputs: Any, **bodies: Any) -> Any:
        results = function(*inputs, **bodies)
        return (
            tuple(blur_value(result, random) for result in results) if isinstance(results, tuple) else blur_value(results, random)
        )

    return run


def blur_value(value: Any, random: np.random.Generator) -> Any:
    """Returns a value with its floats moved: x + u * tolerance / 4 * (|x| + the median |x|), u between -1 and 1.

    Whole numbers up to 2**20 stay: what is computed of sizes, indices and masks has no rounding, and is not to get one.
    """
    if isinstance(value, list):
        return [blur_value(item, random) for item in value]
    dtype = getattr(value, "dtype", None)
    tolerance = 0.0 if dtype is None else TOLERANCES.get(dtype_of_numpy(dtype) or "", 0.0)
    if dtype is None or not tolerance or dtype.kind == "c":
        return value
    # Also a NumPy scalar, which kernels return of arrays without dimensions.
    x = np.asarray(value).astype(np.float64)
    with np.errstate(all="ignore"):
        magnitudes = np.where(np.isfinite(x), np.abs(x), 0.0)
        steps = random.uniform(-_PART * tolerance, _PART * tolerance, x.shape) * (magnitudes + find_median(magnitudes))
        is_exact = (x == np.rint(x)) & (magnitudes <= _LARGEST_EXACT)
        return np.asarray(np.where(is_exact | ~np.isfinite(x), x, x + steps).astype(dtype))
