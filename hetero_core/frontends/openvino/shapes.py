"""Types, sizes, shapes and layouts, as OpenVINO's classes have them, and from and to those of a network; the form of errors and getters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import wraps
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from hetero_core.dtypes import bits_of_dtype, dtype_of_numpy, numpy_dtype
from hetero_core.errors import HeteroError
from hetero_core.network.types import ValueSpec

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)
_BITS = {"u1": 1, "u3": 3, "u6": 6, "nf4": 4}
"""Element types that ONNX lacks -> their bits."""
_LARGEST = 2**62
"""The end of the range of a size that has a lower bound alone."""


def translated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorates a function so that an error of hetero is a RuntimeError, as OpenVINO raises it, with the error as its cause."""

    @wraps(function)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            return function(*arguments, **named)
        except HeteroError as error:
            if isinstance(error, RuntimeError):
                raise
            raise RuntimeError(str(error)) from error

    return call


def with_getters(*names: str) -> Callable[[Class], Class]:
    """Returns a decorator that adds `get_x()` for each of these attributes `x`, and `set_x()` for a property that may be set."""

    def decorate(kind: Class) -> Class:
        for name in names:
            setattr(kind, f"get_{name}", lambda self, name=name: getattr(self, name))
            if setter := getattr(vars(kind).get(name), "fset", None):
                setattr(kind, f"set_{name}", setter)
        return kind

    return decorate


class Listed:
    """A class of OpenVINO that lacks some of OpenVINO's names."""

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept every name

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"hetero's front end for OpenVINO has no '{type(self).__name__}.{name}': models are ONNX and have no operators of "
                "OpenVINO. docs/reference/openvino-api.md lists its names, and the reasons; give tools that rewrite models the ONNX file"
            )


class Written:
    """A class with OpenVINO's two texts of a value."""

    def to_string(self) -> str:
        """Returns the text of the value alone: `1..5` of a size, `[1,?,1..5]` of a shape, `[N,H,W,C]` of a layout."""
        return str(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


@with_getters("size", "bitwidth")
class Type(Enum):
    """An element type; the value is its name in ONNX, None for `dynamic`, and its own name for u1, u3, u6 and nf4, which ONNX lacks."""

    dynamic = None
    boolean = "bool"
    bf16, f16, f32, f64 = "bfloat16", "float16", "float32", "float64"
    f4e2m1, f8e4m3, f8e5m2, f8e8m0 = "float4e2m1", "float8e4m3fn", "float8e5m2", "float8e8m0"
    i4, i8, i16, i32, i64 = "int4", "int8", "int16", "int32", "int64"
    u2, u4, u8, u16, u32, u64 = "uint2", "uint4", "uint8", "uint16", "uint32", "uint64"
    string = "string"
    u1, u3, u6, nf4 = "u1", "u3", "u6", "nf4"

    @classmethod
    def _missing_(cls, value: object) -> Type | None:
        """Returns the type of a NumPy type. Raises: ValueError, by Enum, for a type that ONNX does not have."""
        try:
            dtype = dtype_of_numpy(value)
        except TypeError:
            return None
        return None if dtype is None else find_type(dtype)

    def to_dtype(self) -> np.dtype[Any]:
        """Returns the NumPy type of arrays of this type. Raises: RuntimeError for `dynamic`."""
        if self.value is None:
            raise RuntimeError("the type 'dynamic' has no NumPy type")
        return np.dtype(np.uint8) if self.name in _BITS else numpy_dtype(self.value)

    @property
    def size(self) -> int:
        """The bytes of an element in a file, rounded up; 0 for texts and `dynamic`."""
        return -(-self.bitwidth // 8)

    @property
    def bitwidth(self) -> int:
        """The bits of an element; 0 for texts and `dynamic`."""
        return _BITS.get(self.name) or bits_of_dtype(self.value or "string") or 0

    def is_real(self) -> bool:
        """Says whether the elements are floating-point numbers."""
        return self.name.startswith(("f", "bf"))

    def is_integral(self) -> bool:
        """Says whether the elements are no floating-point numbers."""
        return not self.is_real()

    def is_integral_number(self) -> bool:
        """Says whether the elements are neither floating-point numbers nor booleans."""
        return self.is_integral() and self is not Type.boolean

    def to_string(self) -> str:
        """Returns OpenVINO's name of the type: "f32"."""
        return self.name

    get_type_name = to_string
    type_name = property(to_string)

    def __eq__(self, other: Any) -> bool:
        """Says whether `other` is this type, or the type of this name of an installed OpenVINO: its functions compare both."""
        return self is other or (type(other).__name__ == "Type" and bool(other.to_string() == self.name))

    __hash__ = Enum.__hash__

    def __repr__(self) -> str:
        return f"<Type: '{self.value or self.name}'>"

    __str__ = __repr__


def find_type(dtype: str | None) -> Type:
    """Returns the type of an element type of ONNX; `dynamic` for those that OpenVINO does not have."""
    return Type._value2member_map_.get(dtype, Type.dynamic)  # type: ignore[return-value]  # members of this class


@with_getters("min_length", "max_length")
class Dimension(Written):
    """A size, or bounds of a size; `Dimension()` and `Dimension(-1)` are any size, `Dimension(1, 5)` and `Dimension("1..5")` 1 to 5."""

    def __init__(self, dimension: Any = -1, max_dimension: int | None = None) -> None:
        low, high = _read_bounds(dimension) if max_dimension is None else (int(dimension), int(max_dimension))
        self.min_length = max(low, 0)
        self.max_length = high  # -1 without a bound
        self.is_static = self.min_length == high
        self.is_dynamic = not self.is_static

    @staticmethod
    def dynamic() -> Dimension:
        """Returns any size."""
        return Dimension()

    def compatible(self, other: Any) -> bool:
        """Says whether a size may satisfy both."""
        lows, highs = zip(_read_bounds(self), _read_bounds(Dimension(other)), strict=True)
        return max(lows) <= min(_LARGEST if high < 0 else high for high in highs)

    def relaxes(self, other: Any) -> bool:
        """Says whether each size that satisfies the other satisfies this."""
        (low, high), (other_low, other_high) = _read_bounds(self), _read_bounds(Dimension(other))
        return low <= other_low and (high < 0 or 0 <= other_high <= high)

    def refines(self, other: Any) -> bool:
        """Says whether each size that satisfies this satisfies the other."""
        return Dimension(other).relaxes(self)

    def get_length(self) -> int:
        """Returns the size. Raises: RuntimeError if it is open."""
        if self.is_dynamic:
            raise RuntimeError(f"the size {self} is open and has no length")
        return self.min_length

    __len__ = get_length

    def to_size(self) -> int | range | None:
        """Returns the size as a network takes it: a number, a range, or None if it is open."""
        if self.is_static:
            return self.min_length
        is_open = (self.min_length, self.max_length) == (0, -1)
        return None if is_open else range(self.min_length, (_LARGEST if self.max_length < 0 else self.max_length) + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | Dimension) and _read_bounds(self) == _read_bounds(Dimension(other))

    def __hash__(self) -> int:
        return hash(_read_bounds(self))

    def __str__(self) -> str:
        if self.is_static:
            return str(self.min_length)
        bounds = f"{self.min_length or ''}..{'' if self.max_length < 0 else self.max_length}"
        return "?" if bounds == ".." else bounds


def _read_bounds(value: Any) -> tuple[int, int]:
    """Returns the lowest and the largest size, -1 if it has no bound."""
    if isinstance(value, Dimension):
        return value.min_length, value.max_length
    if isinstance(value, tuple | list):
        return value[0], value[-1]
    text = str(value).strip()
    low, dots, high = text.partition("..")
    try:
        if dots:
            return int(low or 0), int(high or -1)
        size = -1 if value is None or text == "?" else int(text or 0)  # as in OpenVINO, an empty text is the size 0
    except ValueError:
        raise RuntimeError(f"'{text}' is no size; expected a number, ? or bounds as 1..5") from None
    return (0, -1) if size < 0 else (size, size)


class Shape(list[int], Written):
    """A shape of known sizes."""

    def __init__(self, sizes: Iterable[int] | str = ()) -> None:
        super().__init__(int(size) for size in (re.findall(r"\d+", sizes) if isinstance(sizes, str) else sizes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list
    __repr__ = Written.__repr__

    def __str__(self) -> str:
        return "[" + ",".join(map(str, self)) + "]"


class PartialShape(Written):
    """A shape of which sizes, or the number of axes, may be open."""

    def __init__(self, shape: Any) -> None:
        if isinstance(shape, str):
            text = shape.strip()
            text = text[1:-1] if text.startswith("[") and text.endswith("]") else text
            shape = None if text == "..." else [size for size in text.split(",") if size.strip()]
        elif isinstance(shape, PartialShape):
            shape = shape.sizes
        self.sizes: list[Dimension] | None = None if shape is None else [Dimension(size) for size in shape]

    @staticmethod
    def dynamic(rank: int | None = None) -> PartialShape:
        """Returns a shape of open sizes; without `rank`, of an open number of axes."""
        return PartialShape(None if rank is None else [-1] * rank)

    @property
    def rank(self) -> Dimension:
        """The number of axes."""
        return Dimension() if self.sizes is None else Dimension(len(self.sizes))

    @property
    def is_static(self) -> bool:
        """Whether all sizes are known."""
        return self.sizes is not None and all(size.is_static for size in self.sizes)

    @property
    def is_dynamic(self) -> bool:
        """Whether a size or the number of axes is open."""
        return not self.is_static

    def require_sizes(self) -> list[Dimension]:
        """Returns the sizes. Raises: RuntimeError if their number is open."""
        if self.sizes is None:
            raise RuntimeError("the number of axes of this shape is open")
        return self.sizes

    def to_shape(self) -> Shape:
        """Returns the shape. Raises: RuntimeError if a size is open."""
        if self.is_dynamic:
            raise RuntimeError(f"the shape {self} is open; expected known sizes, see partial_shape")
        return self.get_min_shape()

    get_shape = to_shape

    def get_min_shape(self) -> Shape:
        """Returns the lowest sizes."""
        return Shape(size.min_length for size in self.require_sizes())

    def get_max_shape(self) -> Shape:
        """Returns the largest sizes; that of an open size is the largest int64."""
        return Shape(size.max_length if size.max_length >= 0 else 2**63 - 1 for size in self.require_sizes())

    def compatible(self, other: Any) -> bool:
        """Says whether a shape may satisfy both."""
        second = PartialShape(other).sizes
        if self.sizes is None or second is None:
            return True
        return len(self.sizes) == len(second) and all(map(Dimension.compatible, self.sizes, second))

    def __len__(self) -> int:
        return len(self.require_sizes())

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self.require_sizes())

    def __getitem__(self, index: int | slice) -> Any:
        sizes = self.require_sizes()[index]
        return PartialShape(sizes) if isinstance(sizes, list) else sizes

    get_dimension = __getitem__

    def __setitem__(self, index: int, size: Any) -> None:
        self.require_sizes()[index] = Dimension(size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartialShape | Sequence) and self.sizes == PartialShape(other).sizes

    __hash__ = None  # type: ignore[assignment]  # its sizes may be set

    def __str__(self) -> str:
        return "[...]" if self.sizes is None else "[" + ",".join(map(str, self.sizes)) + "]"


class Layout(Written):
    """The order of the axes of a tensor, a letter each: `Layout("NHWC")`, `Layout("[N,H,W,C]")`; `?` is any axis, `...` any number."""

    def __init__(self, layout: Any = "") -> None:
        letters = re.sub(r"[\[\],\s]", "", str(layout)).upper()
        self.letters: str = "" if letters == "..." else letters
        self._parts: list[str] = re.findall(r"\.{3}|.", self.letters)

    @property
    def empty(self) -> bool:
        """Whether no order is said."""
        return not self.letters

    def has_name(self, name: str) -> bool:
        """Says whether an axis has this letter."""
        return name.upper() in self.letters

    def get_index_by_name(self, name: str) -> int:
        """Returns the axis with a letter. Raises: RuntimeError if no axis has it."""
        if not self.has_name(name):
            raise RuntimeError(f"the layout {self} has no axis '{name}'")
        parts = self._parts
        index = parts.index(name.upper())
        return index - len(parts) if "..." in parts[:index] else index

    def name_axes(self, rank: int) -> str:
        """Returns a letter for each of `rank` axes: an unused letter for an axis without one, no letters for an empty layout."""
        number = rank - len(self._parts) + 1
        text = self.letters.replace("...", "?" * number)
        unused = (letter for letter in ascii_uppercase if letter not in f"NCDHW{text}")
        return "".join(next(unused) if letter == "?" else letter for letter in text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str | Layout) and self.letters == Layout(other).letters

    def __hash__(self) -> int:
        return hash(self.letters)

    def __str__(self) -> str:
        return f"[{','.join(self._parts) or '...'}]"


def find_shape(spec: ValueSpec, bounds: Mapping[str, tuple[int, int]]) -> PartialShape:
    """Returns the shape of a value; `bounds` are those of the sizes of its network by name."""
    if spec.shape is None:
        return PartialShape.dynamic()
    return PartialShape([bounds.get(size, -1) if isinstance(size, str) else size for size in spec.shape])
