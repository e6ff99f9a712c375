"""The types of values: tensors, sequences, optionals, maps; rank, dimensions and element type may be unknown. And records: frozen
dataclasses as values for JSON, read back by their annotations.

Imports no array library and no onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from math import prod
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hetero_core.dtypes import DTYPES, bits_of_dtype

Dimension = int | str | None
"""A size, the name of a size that is known at run time, or None if nothing is known."""

HOST = "host"

LARGEST_RANK = 64
"""Dimensions of an array of NumPy 2."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor: its element type (None: unknown) and its shape (None: unknown rank)."""

    dtype: str | None
    shape: tuple[Dimension, ...] | None = None

    def __str__(self) -> str:
        shape = "[...]" if self.shape is None else "[" + ",".join("?" if d is None else str(d) for d in self.shape) + "]"
        return f"{self.dtype or 'unknown'}{shape}"

    @property
    def nbytes(self) -> int | None:
        """The bytes of such an array; None if a dimension is open or the elements are strings."""
        sizes, bits = fixed_sizes(self.shape), None if self.dtype is None else bits_of_dtype(self.dtype)
        # Small types travel unpacked, with a byte per element.
        return None if sizes is None or bits is None else prod(sizes) * max(bits // 8, 1)


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of the same type."""

    element: ValueType

    def __str__(self) -> str:
        return f"sequence({self.element})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value that may be absent (None)."""

    element: ValueType

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True, slots=True)
class MapType:
    """A dict from keys (string or an integer type) to values of the same type."""

    key: str
    value: ValueType

    def __str__(self) -> str:
        return f"map({self.key}, {self.value})"


ValueType = TensorType | SequenceType | OptionalType | MapType


def shape_of(value_type: ValueType | None) -> tuple[Dimension, ...] | None:
    """Returns the shape of a tensor; None if it is no tensor or of unknown rank."""
    return value_type.shape if isinstance(value_type, TensorType) else None


def rank_of(value_type: ValueType | None) -> int | None:
    """Returns the number of axes of a tensor; None as `shape_of`."""
    shape = shape_of(value_type)
    return None if shape is None else len(shape)


def sizes_of(value_type: ValueType | None) -> tuple[int, ...] | None:
    """Returns the shape of a tensor if all its sizes are known, else None."""
    return fixed_sizes(shape_of(value_type))


def fixed_sizes(shape: Sequence[Dimension] | None) -> tuple[int, ...] | None:
    """Returns the shape if all its sizes are known, else None."""
    if shape is None:
        return None
    sizes = tuple([size for size in shape if isinstance(size, int)])
    return sizes if len(sizes) == len(shape) else None


def map_tensor(value_type: ValueType, change: Callable[[TensorType], TensorType]) -> ValueType:
    """Returns the type with another tensor within its sequences, optionals and maps."""
    if isinstance(value_type, TensorType):
        return change(value_type)
    if isinstance(value_type, MapType):
        return MapType(value_type.key, map_tensor(value_type.value, change))
    return type(value_type)(map_tensor(value_type.element, change))


def find_tensor(value_type: ValueType) -> TensorType:
    """Returns the tensor within the sequences, optionals and maps of a type."""
    while not isinstance(value_type, TensorType):
        value_type = value_type.value if isinstance(value_type, MapType) else value_type.element
    return value_type


def has_known_element(value_type: ValueType | None) -> bool:
    """Says whether the element type is known down to the tensor, as a cut through the value needs it."""
    return value_type is not None and find_tensor(value_type).dtype is not None


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """The name, type and memory of a value at the border of a network or of a part."""

    name: str
    type: ValueType
    memory: str = HOST

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" + ("" if self.memory == HOST else f" in {self.memory}")

    @property
    def dtype(self) -> str | None:
        """The element type of a tensor; None if it is no tensor."""
        return self.type.dtype if isinstance(self.type, TensorType) else None

    @property
    def shape(self) -> tuple[Dimension, ...] | None:
        """The shape of a tensor; None if it is no tensor or of unknown rank."""
        return shape_of(self.type)


def type_to_json(value_type: ValueType) -> list[object]:
    """Returns a type as nested lists that JSON can hold; `type_of_json` reads them back."""
    if isinstance(value_type, TensorType):
        return ["tensor", value_type.dtype, None if value_type.shape is None else list(value_type.shape)]
    if isinstance(value_type, MapType):
        return ["map", value_type.key, type_to_json(value_type.value)]
    return ["sequence" if isinstance(value_type, SequenceType) else "optional", type_to_json(value_type.element)]


def type_of_json(value: Any) -> ValueType:
    """Returns the type that `type_to_json` wrote. Raises: ValueError."""
    match value:
        case ["tensor", dtype, None] if dtype is None or dtype in DTYPES:
            return TensorType(dtype, None)
        case ["tensor", dtype, [*shape]] if (dtype is None or dtype in DTYPES) and all(map(_is_dimension, shape)):
            return TensorType(dtype, tuple(shape))
        case ["map", str() as key, element] if key in DTYPES:
            return MapType(key, type_of_json(element))
        case ["sequence", element]:
            return SequenceType(type_of_json(element))
        case ["optional", element]:
            return OptionalType(type_of_json(element))
    raise ValueError(f"expected the type of a value, got {value!r}")


def _is_dimension(size: Any) -> bool:
    return size is None or isinstance(size, str) or (isinstance(size, int) and not isinstance(size, bool) and size >= 0)


def write_record(
    value: Any,
    write_type: Callable[[ValueType], Any] = type_to_json,
    write_row: Callable[[dict[str, Any]], Any] = lambda row: list(row.values()),
) -> Any:
    """Returns a value for JSON: tuples as lists, types and the fields of records as two functions write them."""
    if isinstance(value, ValueType):
        return write_type(value)
    if is_dataclass(value):
        return write_row({each.name: write_record(getattr(value, each.name), write_type, write_row) for each in fields(value)})
    if isinstance(value, Mapping):
        return {name: write_record(entry, write_type, write_row) for name, entry in value.items()}
    return [write_record(entry, write_type, write_row) for entry in value] if isinstance(value, tuple) else value


_kinds_of_fields = cache(get_type_hints)


def read_record(kind: Any, value: Any, name: str = "") -> Any:
    """Returns a JSON value as a value of an annotated type; a record may be a mapping or a list of its fields.

    `name` is the field that messages name.

    Raises: TypeError, ValueError, AttributeError for another value; no number of a record is negative.
    """
    if kind == ValueType:
        return type_of_json(value)
    if isinstance(kind, type) and is_dataclass(kind):
        kinds = _kinds_of_fields(kind)
        row = value if isinstance(value, Mapping) else dict(zip(kinds, value, strict=True))
        # The class refuses an unknown field, which might forbid something.
        return kind(**{field: read_record(kinds.get(field, Any), entry, field) for field, entry in row.items()})
    form, inner = get_origin(kind), get_args(kind)
    if form is UnionType:
        return None if value is None and NoneType in inner else read_record(inner[0], value, name)
    if form is Mapping and isinstance(value, dict):
        return {key: read_record(inner[1], entry, name) for key, entry in value.items()}
    if form is tuple and isinstance(value, list):
        kinds_of_entries = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(read_record(each, entry, name) for each, entry in zip(kinds_of_entries, value, strict=True))
    if kind is not Any and (type(value) is not kind or (kind in (int, float) and value < 0)):
        raise TypeError(f"its field '{name}' has {value!r:.60}; expected {kind}")
    return value


def merge_types(first: ValueType, second: ValueType) -> ValueType | None:
    """Returns the type that says all that both say; None if they contradict. Of two names of a size the first stays."""
    if first == second:
        return first
    if isinstance(first, TensorType) and isinstance(second, TensorType):
        return _merge_tensors(first, second)
    if isinstance(first, MapType) and isinstance(second, MapType):
        value = merge_types(first.value, second.value)
        return None if value is None or first.key != second.key else MapType(first.key, value)
    if isinstance(first, SequenceType | OptionalType) and isinstance(second, type(first)):
        element = merge_types(first.element, second.element)
        return None if element is None else type(first)(element)
    # A tensor type that says nothing stands for a value of which not even the kind is known.
    if first == TensorType(None):
        return second
    return first if second == TensorType(None) else None


def _merge_tensors(first: TensorType, second: TensorType) -> TensorType | None:
    if first.dtype is not None and second.dtype is not None and first.dtype != second.dtype:
        return None
    dtype = second.dtype if first.dtype is None else first.dtype
    if first.shape is None or second.shape is None:
        return TensorType(dtype, second.shape if first.shape is None else first.shape)
    if len(first.shape) != len(second.shape):
        return None
    shape: list[Dimension] = []
    for size, other in zip(first.shape, second.shape, strict=True):
        if isinstance(size, int) and isinstance(other, int) and size != other:
            return None
        shape.append(other if size is None or (isinstance(size, str) and isinstance(other, int)) else size)
    return TensorType(dtype, tuple(shape))


def unite_types(first: ValueType, second: ValueType) -> ValueType:
    """Returns the type of a value that is either of two: it says no more than both types say."""
    if first == second:
        return first
    if isinstance(first, SequenceType | OptionalType) and isinstance(second, type(first)):
        return type(first)(unite_types(first.element, second.element))
    if not (isinstance(first, TensorType) and isinstance(second, TensorType)):
        return TensorType(None)
    dtype = first.dtype if first.dtype == second.dtype else None
    if first.shape is None or second.shape is None or len(first.shape) != len(second.shape):
        return TensorType(dtype)
    return TensorType(dtype, tuple(a if a == b else None for a, b in zip(first.shape, second.shape, strict=True)))
