"""Maps of ai.onnx.ml: ZipMap makes them, CastMap and DictVectorizer read them.

A map is a dict from Python integers or strings to Python numbers or strings; it lives on the host whatever the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.kernels.operators.ml_scores import InputTypes
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import FLOAT32, ml_kernel
from hetero_core.network.graph import Node
from hetero_core.network.types import MapType, TensorType, ValueType

Map = dict[Any, Any]


def _prepare_zip_map(
    xp: Namespace, input_types: InputTypes, *, classlabels_int64s: tuple[int, ...] = (), classlabels_strings: tuple[str, ...] = ()
) -> tuple[int | str, ...]:
    if bool(classlabels_int64s) == bool(classlabels_strings):
        raise ValueError("needs its keys either as integers or as strings")
    return classlabels_int64s or classlabels_strings


@ml_kernel("ZipMap", since=(1,), dtypes=FLOAT32, runs_on_host=True, prepare=_prepare_zip_map)
def zip_map(xp: Namespace, x: Array, *, prepared: tuple[int | str, ...]) -> list[Map]:
    """Returns one map for each row of x, from the keys to its elements. Source: ONNX ZipMap-1."""
    rows = x.reshape((1, -1)) if x.ndim == 1 else x
    if rows.shape[1] != len(prepared):
        raise ValueError(f"x has {rows.shape[1]} columns for {len(prepared)} keys")
    return [dict(zip(prepared, row, strict=True)) for row in rows.tolist()]


_CASTS: Mapping[str, Any] = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}


def _refuse_texts(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    """Refuses what only one engine defines: how numbers are spelled, and what fills a sparse vector of texts."""
    if node.attributes.get("cast_to", "TO_FLOAT") != "TO_STRING":
        return None
    input_type = input_types[0]
    value = input_type.value if isinstance(input_type, MapType) else None
    if node.attributes.get("map_form", "DENSE") == "SPARSE":
        return f"{node.operator} does not say what stands for absent strings in map_form SPARSE"
    if not (isinstance(value, TensorType) and value.dtype == "string"):
        return f"{node.operator} does not say how numbers are written for cast_to TO_STRING"
    return None


@ml_kernel(
    "CastMap",
    since=(1,),
    dtypes=FLOAT32 | {"string"},
    choices={"cast_to": tuple(_CASTS), "map_form": ("DENSE", "SPARSE")},
    runs_on_host=True,
    takes_maps=True,
    refuse=_refuse_texts,
)
def cast_map(xp: Namespace, x: Map, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Array:
    """Returns the values (1, values) in order of their keys, or (1, max_map) with each at its key. Source: ONNX CastMap-1.

    Raises: ValueError for a key outside of max_map, or a text that is no number.
    """
    dtype = np.dtype(_CASTS[cast_to])
    convert: Callable[[Any], Any] = str if dtype.kind == "O" else float
    if map_form == "DENSE":
        return np.asarray([[convert(x[key]) for key in sorted(x)]], dtype=dtype).reshape((1, -1))
    y = np.zeros((1, max_map), dtype=dtype)
    for key, value in x.items():
        if not 0 <= key < max_map:
            raise ValueError(f"key {key} of the map is outside of max_map {max_map}")
        y[0, key] = convert(value)
    return y


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words in order, and the type and zero of the results."""

    words: tuple[int | str, ...]
    dtype: np.dtype[Any]
    zero: float | str


def _prepare_dict_vectorizer(
    xp: Namespace,
    input_types: InputTypes,
    *,
    int64_vocabulary: tuple[int, ...] = (),
    string_vocabulary: tuple[str, ...] = (),
) -> Vocabulary:
    if bool(int64_vocabulary) == bool(string_vocabulary):
        raise ValueError("needs its vocabulary either as integers or as strings")
    input_type = input_types[0]
    if not (isinstance(input_type, MapType) and isinstance(input_type.value, TensorType) and input_type.value.dtype is not None):
        raise ValueError("needs to know the element type of its map")
    dtype = numpy_dtype(input_type.value.dtype)
    return Vocabulary(int64_vocabulary or string_vocabulary, dtype, "" if dtype.kind == "O" else 0)


@ml_kernel(
    "DictVectorizer",
    since=(1,),
    dtypes=frozenset({"int64", "string", "float32", "float64"}),
    runs_on_host=True,
    takes_maps=True,
    prepare=_prepare_dict_vectorizer,
)
def dict_vectorizer(xp: Namespace, x: Map, *, prepared: Vocabulary) -> Array:
    """Returns the values (1, words) in the order of the vocabulary, zero or "" for absent ones. Source: ONNX DictVectorizer-1.

    The row is ONNX Runtime's; ONNX writes a vector. Both pass over keys that are not in the vocabulary.
    """
    return np.asarray([[x.get(word, prepared.zero) for word in prepared.words]], dtype=prepared.dtype)
