"""Features for models of ai.onnx.ml, numbers in and numbers out: Scaler, Normalizer, Binarizer, Imputer, ArrayFeatureExtractor, ...

Scaler, Normalizer and FeatureVectorizer give float32 whatever they are given.
"""

from __future__ import annotations

from math import isnan

import numpy as np

from hetero_core.kernels.operators.ml_scores import NUMERIC, InputTypes, as_rows
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import INT64, STRING, ml_kernel


@ml_kernel("Scaler", since=(1,), dtypes=NUMERIC)
def scaler(xp: Namespace, x: Array, *, offset: tuple[float, ...] = (0.0,), scale: tuple[float, ...] = (1.0,)) -> Array:
    """Returns (x - offset) * scale as float32; one value serves all features. Source: ONNX Scaler-1."""
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    return ((wide - xp.asarray(offset, dtype=wide.dtype)) * xp.asarray(scale, dtype=wide.dtype)).astype(np.float32)


@ml_kernel("Normalizer", since=(1,), dtypes=NUMERIC, choices={"norm": ("MAX", "L1", "L2")})
def normalizer(xp: Namespace, x: Array, *, norm: str = "MAX") -> Array:
    """Returns each row by its norm, float32; a row whose norm is zero stays as it is. Source: ONNX Normalizer-1.

    MAX is the greatest element with its sign, as the text and ONNX Runtime have it; scikit-learn takes the greatest magnitude.
    """
    rows = as_rows(xp, x)
    if norm == "MAX":
        size = xp.max(rows, axis=1, keepdims=True)
    elif norm == "L1":
        size = xp.sum(xp.abs(rows), axis=1, keepdims=True)
    else:
        size = xp.sqrt(xp.sum(rows * rows, axis=1, keepdims=True))
    return (rows / xp.where(size == 0, size.dtype.type(1), size)).astype(np.float32).reshape(x.shape)


@ml_kernel("Binarizer", since=(1,), dtypes=NUMERIC)
def binarizer(xp: Namespace, x: Array, *, threshold: float = 0.0) -> Array:
    """Returns 1 where x is above the threshold, 0 elsewhere, in the type of x. Source: ONNX Binarizer-1."""
    return (x > threshold).astype(x.dtype)


def _prepare_imputer(
    xp: Namespace,
    input_types: InputTypes,
    *,
    imputed_value_floats: tuple[float, ...] = (),
    imputed_value_int64s: tuple[int, ...] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> tuple[tuple[float, ...], float]:
    if bool(imputed_value_floats) == bool(imputed_value_int64s):
        raise ValueError("needs the values to put in either as floats or as integers")
    if imputed_value_floats:
        return imputed_value_floats, replaced_value_float
    return imputed_value_int64s, replaced_value_int64


@ml_kernel("Imputer", since=(1,), dtypes=NUMERIC, prepare=_prepare_imputer)
def imputer(xp: Namespace, x: Array, *, prepared: tuple[tuple[float, ...], float]) -> Array:
    """Returns x with the missing value (NaN, too) replaced by its feature's value, or by the one value. Source: ONNX Imputer-1."""
    values, missing = prepared
    if len(values) not in (1, x.shape[-1]):
        raise ValueError(f"{len(values)} imputed values are given for {x.shape[-1]} features")
    is_missing = x != x if isnan(missing) else x == x.dtype.type(missing)
    return xp.where(is_missing, xp.asarray(values, dtype=x.dtype), x)


@ml_kernel("FeatureVectorizer", since=(1,), dtypes=NUMERIC)
def feature_vectorizer(xp: Namespace, *features: Array, inputdimensions: tuple[int, ...]) -> Array:
    """Returns the inputs side by side as float32, each cut or filled with zeros to its size. Source: ONNX FeatureVectorizer-1."""
    if len(features) != len(inputdimensions):
        raise ValueError(f"{len(features)} inputs are given and {len(inputdimensions)} sizes")
    columns = []
    for x, size in zip(features, inputdimensions, strict=True):
        rows = as_rows(xp, x)[:, :size]
        filler = xp.zeros((rows.shape[0], size - rows.shape[1]), dtype=rows.dtype)
        columns.append(xp.concatenate([rows, filler], axis=1))
    return xp.concatenate(columns, axis=1).astype(np.float32)


@ml_kernel("ArrayFeatureExtractor", since=(1,), dtypes=(NUMERIC | STRING, INT64))
def array_feature_extractor(xp: Namespace, x: Array, y: Array) -> Array:
    """Returns the elements of the last axis at the indices y; of a vector, one row. Source: ONNX ArrayFeatureExtractor-1."""
    picked = xp.take(x, y.reshape(-1), axis=-1)
    return picked.reshape((1, -1)) if x.ndim == 1 else picked
