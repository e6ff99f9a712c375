"""Encoders of ai.onnx.ml: LabelEncoder, CategoryMapper and OneHotEncoder. They look keys up one by one, on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_core.kernels.operators.ml_scores import NUMERIC, InputTypes
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import STRING, Dtypes, ml_kernel
from hetero_core.network.graph import Node

_LABELS: Dtypes = frozenset({"string", "int64", "float32"})
_TENSOR_LABELS: Dtypes = _LABELS | {"int32", "int16", "float64"}
_NAN = object()


@dataclass(frozen=True, slots=True)
class Lookup:
    """The value for each key and for a key that is not there, and the NumPy type of the results."""

    value_of_key: Mapping[Any, Any]
    default: Any
    dtype: np.dtype[Any]


def _build_lookup(keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: Any) -> Lookup:
    """Returns the table.

    Raises: ValueError for keys and values of other numbers, or one key with two values, on which engines differ.
    """
    if len(keys) != len(values):
        raise ValueError(f"has {len(keys)} keys and {len(values)} values")
    table: dict[Any, Any] = {}
    for key, value in zip(keys, values, strict=True):
        folded = _NAN if key != key else key
        if folded in table and table[folded] != value:
            raise ValueError(f"has two values for key {key!r}")
        table[folded] = value
    return Lookup(table, default, np.dtype(dtype))


def _look_up(lookup: Lookup, x: Array) -> Array:
    results = [lookup.value_of_key.get(_NAN if key != key else key, lookup.default) for key in x.reshape(-1).tolist()]
    return np.asarray(results, dtype=lookup.dtype).reshape(x.shape)


def _choose_one(kinds: Mapping[str, Any], what: str) -> tuple[str, Any]:
    lists = {name: value for name, value in kinds.items() if value is not None}
    if len(lists) != 1:
        raise ValueError(f"needs one list of {what}, has {len(lists)}")
    return next(iter(lists.items()))


def _prepare_label_encoder(
    xp: Namespace,
    input_types: InputTypes,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Any = None,
    keys_floats: tuple[float, ...] | None = None,
    keys_int64s: tuple[int, ...] | None = None,
    keys_strings: tuple[str, ...] | None = None,
    keys_tensor: Any = None,
    values_floats: tuple[float, ...] | None = None,
    values_int64s: tuple[int, ...] | None = None,
    values_strings: tuple[str, ...] | None = None,
    values_tensor: Any = None,
) -> Lookup:
    _, keys = _choose_one({"floats": keys_floats, "int64s": keys_int64s, "strings": keys_strings, "tensor": keys_tensor}, "keys")
    kind, values = _choose_one(
        {"floats": values_floats, "int64s": values_int64s, "strings": values_strings, "tensor": values_tensor}, "values"
    )
    if kind != "tensor":
        default, dtype = {
            "floats": (default_float, np.float32),
            "int64s": (default_int64, np.int64),
            "strings": (default_string, object),
        }[kind]
        return _build_lookup(_list_elements(keys), values, default, dtype)
    if default_tensor is None:
        default = {"f": default_float, "i": default_int64, "O": default_string}[values.dtype.kind]
    else:
        default = default_tensor.reshape(-1)[0]
    return _build_lookup(_list_elements(keys), _list_elements(values), default, values.dtype)


def _list_elements(values: Any) -> Sequence[Any]:
    return values.reshape(-1).tolist() if isinstance(values, np.ndarray) else values


def _refuse_nan(node: Node, input_types: InputTypes) -> str | None:
    if any(key != key for key in node.attributes.get("keys_floats", ())):
        return f"{node.operator} has a NaN among its keys, which version 2 leaves open"
    return None


@ml_kernel("LabelEncoder", since=(4,), dtypes=_TENSOR_LABELS, runs_on_host=True, prepare=_prepare_label_encoder)
@ml_kernel(
    "LabelEncoder",
    since=(2,),
    dtypes=_LABELS,
    runs_on_host=True,
    prepare=_prepare_label_encoder,
    without=("default_tensor", "keys_tensor", "values_tensor"),
    refuse=_refuse_nan,
)
def label_encoder(xp: Namespace, x: Array, *, prepared: Lookup) -> Array:
    """Returns the value of each key, the default for others; a NaN is a key like any other. Source: ONNX LabelEncoder-4."""
    return _look_up(prepared, x)


Pair = tuple[Lookup, Lookup]
"""From strings to integers, and back."""


def _prepare_label_encoder_1(
    xp: Namespace,
    input_types: InputTypes,
    *,
    classes_strings: tuple[str, ...],
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Pair:
    places = range(len(classes_strings))
    return (
        _build_lookup(classes_strings, places, default_int64, np.int64),
        _build_lookup(places, classes_strings, default_string, object),
    )


def _prepare_category_mapper(
    xp: Namespace,
    input_types: InputTypes,
    *,
    cats_int64s: tuple[int, ...],
    cats_strings: tuple[str, ...],
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Pair:
    return (
        _build_lookup(cats_strings, cats_int64s, default_int64, np.int64),
        _build_lookup(cats_int64s, cats_strings, default_string, object),
    )


@ml_kernel("LabelEncoder", since=(1,), dtypes=frozenset({"string", "int64"}), runs_on_host=True, prepare=_prepare_label_encoder_1)
@ml_kernel("CategoryMapper", since=(1,), dtypes=frozenset({"string", "int64"}), runs_on_host=True, prepare=_prepare_category_mapper)
def category_mapper(xp: Namespace, x: Array, *, prepared: Pair) -> Array:
    """Returns integers for strings, and strings for integers. Source: ONNX LabelEncoder-1, CategoryMapper-1."""
    return _look_up(prepared[0] if x.dtype == object else prepared[1], x)


def _prepare_one_hot_encoder(
    xp: Namespace, input_types: InputTypes, *, cats_int64s: tuple[int, ...] = (), cats_strings: tuple[str, ...] = (), zeros: int = 1
) -> tuple[Lookup, int, bool]:
    if bool(cats_int64s) == bool(cats_strings):
        raise ValueError("needs its categories either as integers or as strings")
    categories: tuple[Any, ...] = cats_int64s or cats_strings
    lookup = _build_lookup(categories, range(len(categories)), -1, np.int64)
    return lookup, len(categories), bool(zeros)


@ml_kernel("OneHotEncoder", since=(1,), dtypes=NUMERIC | STRING, runs_on_host=True, prepare=_prepare_one_hot_encoder)
def one_hot_encoder(xp: Namespace, x: Array, *, prepared: tuple[Lookup, int, bool]) -> Array:
    """Returns float32 (*x, categories): 1 at the category; floats are truncated first. Source: ONNX OneHotEncoder-1.

    Raises: ValueError for an unknown category where zeros is 0.
    """
    lookup, count, allows_unknown = prepared
    places = _look_up(lookup, x.astype(np.int64) if x.dtype.kind == "f" else x)
    if not allows_unknown and (places < 0).any():
        raise ValueError(f"category {x[places < 0][0]!r} is unknown, and zeros is 0")
    return (places[..., None] == np.arange(count)).astype(np.float32)
