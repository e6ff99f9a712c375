"""Random operators. With a seed a node repeats its numbers in every run; without a seed each run draws new numbers.

The numbers are drawn on the host by NumPy: with a seed they are the same wherever a network runs. Training-mode Dropout belongs here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.precision import Array, Integers, Namespace, narrow, widen
from hetero_core.kernels.registry import ANY, BOOL, FLOAT8, FLOATS, NUMBERS, kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType

_FLOAT_DTYPES = {"dtype": (1, 10, 11, 16)}


def _make_generator(seed: float | None) -> np.random.RandomState:
    """Returns a generator; the bits of a fractional seed count, too."""
    if seed is None:
        return np.random.RandomState()
    whole = int(seed)
    return np.random.RandomState(whole if whole == seed and whole >= 0 else int(np.float32(seed).view(np.uint32)))


def _target(dtype: int | None, default: Any) -> Any:
    name = None if dtype is None else dtype_of_onnx(dtype)
    return default if name is None else numpy_dtype(name)


def _refuse_untold(node: Node, input_types: InputTypes) -> str | None:
    """Refuses random numbers in the type of an input that is no float."""
    input_type = input_types[0]
    dtype = input_type.dtype if isinstance(input_type, TensorType) else None
    if "dtype" in node.attributes or dtype is None or dtype in FLOATS:
        return None
    return f"{node.operator} draws floats and has no dtype, and its input is {dtype}"


def _declare(kind: str, limits: Mapping[str, float]) -> Callable[..., Array]:
    """Declares the operator with a shape and the operator with an input of that shape, and returns the former."""

    def draw(xp: Namespace, shape: Integers, seed: float | None, numbers: Mapping[str, float], dtype: Any) -> Array:
        return xp.asarray(getattr(_make_generator(seed), kind.lower())(*{**limits, **numbers}.values(), shape)).astype(dtype)

    @kernel(f"Random{kind}", since=(1, 22), dtypes=FLOATS, choices=_FLOAT_DTYPES, shared=limits)
    def make(xp: Namespace, *, dtype: int = 1, seed: float | None = None, shape: Integers, **numbers: float) -> Array:
        return draw(xp, shape, seed, numbers, _target(dtype, np.float32))

    @kernel(f"Random{kind}Like", since=(1, 22), dtypes=ANY, choices=_FLOAT_DTYPES, refuse=_refuse_untold, shared=limits)
    def make_like(xp: Namespace, x: Array, *, dtype: int | None = None, seed: float | None = None, **numbers: float) -> Array:
        return draw(xp, x.shape, seed, numbers, _target(dtype, x.dtype))

    return make


# The attributes stand in the order of NumPy's arguments.
random_normal = _declare("Normal", {"mean": 0.0, "scale": 1.0})
random_uniform = _declare("Uniform", {"low": 0.0, "high": 1.0})


@kernel("Bernoulli", since=(15, 22), dtypes=FLOATS)
def bernoulli(xp: Namespace, x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    """Returns 1 with the probability x, else 0."""
    drawn = xp.asarray(_make_generator(seed).uniform(0.0, 1.0, x.shape))
    return (drawn < widen(x)).astype(_target(dtype, x.dtype))


@kernel("Multinomial", since=(7, 22), dtypes=FLOATS, choices={"dtype": (6, 7)})
def multinomial(xp: Namespace, x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    """Returns class indices drawn by unnormalized log-probabilities (batch, classes)."""
    wide = widen(x)
    weights = xp.exp(wide - xp.max(wide, axis=1, keepdims=True))
    totals = xp.cumsum(weights, axis=1)
    drawn = xp.asarray(_make_generator(seed).uniform(0.0, 1.0, (x.shape[0], sample_size))) * totals[:, -1:]
    return xp.sum(totals[:, None, :-1] <= drawn[:, :, None], axis=2).astype(_target(dtype, np.int32))


@kernel("Dropout", since=(12, 13), dtypes=(FLOATS, NUMBERS, BOOL), host=(1, 2), outputs=2)
@kernel("Dropout", since=(22,), dtypes=(FLOATS | FLOAT8, NUMBERS | FLOAT8, BOOL), host=(1, 2), outputs=2)
def dropout(
    xp: Namespace, x: Array, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None = None
) -> tuple[Array, Array]:
    """Returns x and a mask of true; in training x / (1 - ratio) with that share of elements at zero."""
    trains = training_mode is not None and bool(training_mode.reshape(-1)[0])
    share = 0.5 if ratio is None or not trains else float(ratio.reshape(-1)[0])
    if not trains or share == 0:
        return x, xp.broadcast_to(xp.ones((), dtype=bool), x.shape)
    mask = xp.asarray(_make_generator(seed).uniform(0.0, 1.0, x.shape)) >= share
    return narrow(widen(x) * mask * (1 / (1 - share)), x.dtype), mask


kernel("Dropout", since=(10,), dtypes=FLOATS, outputs=2, without=("training_mode", "seed"))(partial(dropout, ratio=0.5))
