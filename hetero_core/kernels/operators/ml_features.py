"""Features, encoders and maps of ai.onnx.ml.

Scaler, Normalizer and FeatureVectorizer return float32 for every input. Keys are looked up in turn, on the host. A map is a dict from
Python integers or strings to Python numbers or strings; it lives on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import isnan
from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.kernels.arrays import take
from hetero_core.kernels.operators.ml_models import NUMERIC, as_rows, choose_list
from hetero_core.kernels.precision import Array, Floats, Integers, Namespace, Texts
from hetero_core.kernels.registry import FLOAT32, INT64, STRING, Dtypes, ml_kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.network.graph import Node
from hetero_core.network.types import MapType, TensorType


@ml_kernel("Scaler", since=(1,), dtypes=NUMERIC)
def scaler(xp: Namespace, x: Array, *, offset: Floats = (0.0,), scale: Floats = (1.0,)) -> Array:
    """Returns (x - offset) * scale as float32; a single value serves all features."""
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    return ((wide - xp.asarray(offset, dtype=wide.dtype)) * xp.asarray(scale, dtype=wide.dtype)).astype(np.float32)


@ml_kernel("Normalizer", since=(1,), dtypes=NUMERIC, choices={"norm": ("MAX", "L1", "L2")})
def normalizer(xp: Namespace, x: Array, *, norm: str = "MAX") -> Array:
    """Returns each row by its norm, float32; a row of norm zero stays.

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
    """Returns 1 for elements above the threshold, else 0, in the type of x."""
    return (x > threshold).astype(x.dtype)


def _prepare_imputer(
    xp: Namespace,
    _: InputTypes,
    *,
    imputed_value_floats: Floats = (),
    imputed_value_int64s: Integers = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> tuple[Floats, float]:
    values = choose_list(imputed_value_int64s, imputed_value_floats, "imputed values", "floats")
    return values, replaced_value_float if imputed_value_floats else replaced_value_int64


@ml_kernel("Imputer", since=(1,), dtypes=NUMERIC, prepare=_prepare_imputer)
def imputer(xp: Namespace, x: Array, *, prepared: tuple[Floats, float]) -> Array:
    """Returns x with the missing value (NaN, too) replaced by its feature's value, or by the common value."""
    values, missing = prepared
    if len(values) not in (1, x.shape[-1]):
        raise ValueError(f"{len(values)} imputed values are given for {x.shape[-1]} features")
    is_missing = x != x if isnan(missing) else x == x.dtype.type(missing)
    return xp.where(is_missing, xp.asarray(values, dtype=x.dtype), x)


@ml_kernel("FeatureVectorizer", since=(1,), dtypes=NUMERIC)
def feature_vectorizer(xp: Namespace, *features: Array, inputdimensions: Integers) -> Array:
    """Returns the inputs side by side as float32, each cut or filled with zeros to its size."""
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
    """Returns the elements of the last axis at the indices y; of a vector, a row."""
    picked = take(xp, x, y.reshape(-1), -1)
    return picked.reshape((1, -1)) if x.ndim == 1 else picked


_LABELS: Dtypes = frozenset({"string", "int64", "float32"})
_TENSOR_LABELS: Dtypes = _LABELS | {"int32", "int16", "float64"}
_NAN = object()


@dataclass(frozen=True, slots=True)
class Lookup:
    """The value for each key and for a key that is not there, and the NumPy type of the results.

    `keys`: if they are numbers, in order without a NaN; `values`: theirs, then the default, then that of a NaN.
    """

    value_of_key: Mapping[Any, Any]
    default: Any
    dtype: np.dtype[Any]
    keys: Array
    values: Array


def _build_lookup(keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: Any) -> Lookup:
    """Returns the table. Raises: ValueError."""
    if len(keys) != len(values):
        raise ValueError(f"has {len(keys)} keys and {len(values)} values")
    table: dict[Any, Any] = {}
    for key, value in zip(keys, values, strict=True):
        folded = _NAN if key != key else key
        if folded in table and table[folded] != value:
            raise ValueError(f"has two values for key {key!r}")
        table[folded] = value
    numbers = sorted([key for key in table if isinstance(key, int | float)])
    in_order = [*map(table.get, numbers), default, table.get(_NAN, default)]
    return Lookup(table, default, np.dtype(dtype), np.array(numbers), np.array(in_order, dtype))


_FEW = 32
"""Keys that a dictionary finds in less time than a binary search of all of them."""


def _look_up(lookup: Lookup, x: Array) -> Array:
    kind, keys = x.dtype.kind, lookup.keys
    if x.size > _FEW and keys.size and kind == keys.dtype.kind:
        places = np.searchsorted(keys, x)
        is_key = keys.take(places, mode="clip") == x
        return lookup.values.take(np.where(is_key, places, keys.size if kind == "i" else keys.size + (x != x)))
    if x.size == 1:
        key, result = x.item(), np.empty(x.shape, lookup.dtype)
        result.fill(lookup.value_of_key.get(_NAN if key != key else key, lookup.default))
        return result
    elements = x.ravel().tolist()
    if kind == "f":
        elements = [_NAN if key != key else key for key in elements]
    results = map(lookup.value_of_key.get, elements, repeat(lookup.default))
    return np.fromiter(results, lookup.dtype, x.size).reshape(x.shape)


_DTYPES = {"floats": np.float32, "int64s": np.int64, "strings": object, "tensor": None}
"""Kind of a list of keys or values -> the NumPy type of its elements; a tensor has its own."""
_LISTS = {f"{part}_{kind}": None for part in ("keys", "values") for kind in _DTYPES}


def _choose_one(lists: Mapping[str, Any], part: str) -> tuple[str, Any]:
    """Returns the kind and the elements of the only list of keys or of values. Raises: ValueError."""
    present = [(kind, values) for kind in _DTYPES if (values := lists.get(f"{part}_{kind}")) is not None]
    if len(present) != 1:
        raise ValueError(f"needs one list of {part}, has {len(present)}")
    return present[0]


def _prepare_label_encoder(
    xp: Namespace,
    types: InputTypes,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Any = None,
    **lists: Any,
) -> Lookup:
    (_, keys), (kind, values) = _choose_one(lists, "keys"), _choose_one(lists, "values")
    dtype = values.dtype if kind == "tensor" else np.dtype(_DTYPES[kind])
    if kind == "tensor" and default_tensor is not None:
        default = default_tensor.reshape(-1)[0]
    else:
        default = {"f": default_float, "i": default_int64, "O": default_string}[dtype.kind]
    return _build_lookup(_list_elements(keys), _list_elements(values), default, dtype)


def _list_elements(values: Any) -> Sequence[Any]:
    return values.reshape(-1).tolist() if isinstance(values, np.ndarray) else values


def _refuse_nan(node: Node, input_types: InputTypes) -> str | None:
    if any(key != key for key in node.attributes.get("keys_floats", ())):
        return f"{node.operator} has a NaN among its keys, which version 2 leaves open"
    return None


@ml_kernel("LabelEncoder", since=(4,), dtypes=_TENSOR_LABELS, runs_on_host=True, prepare=_prepare_label_encoder, shared=_LISTS)
@ml_kernel(
    "LabelEncoder",
    since=(2,),
    dtypes=_LABELS,
    runs_on_host=True,
    prepare=_prepare_label_encoder,
    shared=_LISTS,
    without=("default_tensor", "keys_tensor", "values_tensor"),
    refuse=_refuse_nan,
)
def label_encoder(xp: Namespace, x: Array, *, prepared: Lookup) -> Array:
    """Returns the value of each key, the default for unknown keys; a NaN may be a key."""
    return _look_up(prepared, x)


Pair = tuple[Lookup, Lookup]
"""From strings to integers, and back."""


def _build_pair(integers: Sequence[int], strings: Texts, default_int64: int = -1, default_string: str = "_Unused") -> Pair:
    to_integers = _build_lookup(strings, integers, default_int64, np.int64)
    return to_integers, _build_lookup(integers, strings, default_string, object)


def _prepare_label_encoder_1(xp: Namespace, _: InputTypes, *, classes_strings: Texts, **defaults: Any) -> Pair:
    return _build_pair(range(len(classes_strings)), classes_strings, **defaults)


def _prepare_category_mapper(xp: Namespace, _: InputTypes, *, cats_int64s: Integers, cats_strings: Texts, **defaults: Any) -> Pair:
    return _build_pair(cats_int64s, cats_strings, **defaults)


_PAIR: dict[str, Any] = {"dtypes": INT64 | STRING, "shared": {"default_int64": -1, "default_string": "_Unused"}}


@ml_kernel("LabelEncoder", since=(1,), runs_on_host=True, prepare=_prepare_label_encoder_1, **_PAIR)
@ml_kernel("CategoryMapper", since=(1,), runs_on_host=True, prepare=_prepare_category_mapper, **_PAIR)
def category_mapper(xp: Namespace, x: Array, *, prepared: Pair) -> Array:
    """Returns integers for strings, and strings for integers. Source: ONNX LabelEncoder-1, CategoryMapper-1."""
    return _look_up(prepared[0] if x.dtype == object else prepared[1], x)


def _prepare_one_hot_encoder(
    xp: Namespace, _: InputTypes, *, cats_int64s: Integers = (), cats_strings: Texts = (), zeros: int = 1
) -> tuple[Lookup, Array, bool]:
    categories = choose_list(cats_int64s, cats_strings, "categories")
    lookup = _build_lookup(categories, range(len(categories)), -1, np.int64)
    return lookup, np.arange(len(categories)), bool(zeros)


@ml_kernel("OneHotEncoder", since=(1,), dtypes=NUMERIC | STRING, runs_on_host=True, prepare=_prepare_one_hot_encoder)
def one_hot_encoder(xp: Namespace, x: Array, *, prepared: tuple[Lookup, Array, bool]) -> Array:
    """Returns float32 (*x, categories): 1 at the category; floats are truncated first. Raises: ValueError."""
    lookup, positions, allows_unknown = prepared
    places = _look_up(lookup, x.astype(np.int64) if x.dtype.kind == "f" else x)
    if not allows_unknown and places.min(initial=0) < 0:
        raise ValueError(f"category {x[places < 0][0]!r} is unknown, and zeros is 0")
    return (places[..., None] == positions).astype(np.float32)


Map = dict[Any, Any]
Keys = tuple[Any, ...]


def _prepare_zip_map(xp: Namespace, _: InputTypes, *, classlabels_int64s: Integers = (), classlabels_strings: Texts = ()) -> Keys:
    return choose_list(classlabels_int64s, classlabels_strings, "keys")


@ml_kernel("ZipMap", since=(1,), dtypes=FLOAT32, runs_on_host=True, prepare=_prepare_zip_map)
def zip_map(xp: Namespace, x: Array, *, prepared: Keys) -> list[Map]:
    """Returns a map for each row of x, from the keys to its elements."""
    rows = x.reshape((1, -1)) if x.ndim == 1 else x
    if rows.shape[1] != len(prepared):
        raise ValueError(f"x has {rows.shape[1]} columns for {len(prepared)} keys")
    if len(rows) == 1:
        return [dict(zip(prepared, rows[0].tolist(), strict=True))]
    columns = rows.T.tolist()
    # Written out, the maps of two and three classes take less than half of the time of dict(zip(...)).
    if len(prepared) == 2:
        first, second = prepared
        return [{first: x0, second: x1} for x0, x1 in zip(*columns, strict=True)]
    if len(prepared) == 3:
        first, second, third = prepared
        return [{first: x0, second: x1, third: x2} for x0, x1, x2 in zip(*columns, strict=True)]
    return [dict(zip(prepared, row, strict=True)) for row in zip(*columns, strict=True)]


_CASTS: Mapping[str, Any] = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}


def _refuse_texts(node: Node, input_types: InputTypes) -> str | None:
    """Refuses results that a single engine defines: the spelling of numbers, and the filler of a sparse vector of texts."""
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
    """Returns the values (1, values) in order of their keys, or (1, max_map) with each at its key. Raises: ValueError."""
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


Vocabulary = tuple[tuple[int | str, ...], np.dtype[Any]]
"""The words in order, and the type of the results."""


def _prepare_dict_vectorizer(
    xp: Namespace, input_types: InputTypes, *, int64_vocabulary: Integers = (), string_vocabulary: Texts = ()
) -> Vocabulary:
    words = choose_list(int64_vocabulary, string_vocabulary, "vocabulary")
    input_type = input_types[0]
    if not (isinstance(input_type, MapType) and isinstance(input_type.value, TensorType) and input_type.value.dtype is not None):
        raise ValueError("needs to know the element type of its map")
    return words, numpy_dtype(input_type.value.dtype)


@ml_kernel(
    "DictVectorizer",
    since=(1,),
    dtypes=frozenset({"int64", "string", "float32", "float64"}),
    runs_on_host=True,
    takes_maps=True,
    prepare=_prepare_dict_vectorizer,
)
def dict_vectorizer(xp: Namespace, x: Map, *, prepared: Vocabulary) -> Array:
    """Returns the values (1, words) in the order of the vocabulary, zero or "" for absent words.

    The row is ONNX Runtime's; ONNX writes a vector. Both pass over keys that are not in the vocabulary.
    """
    words, dtype = prepared
    return np.asarray([[x.get(word, "" if dtype.kind == "O" else 0) for word in words]], dtype=dtype)
