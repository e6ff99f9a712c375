"""Functions, their arguments, and the memory that a plan reads, as plain lists that JSON can write.

Functions are of NumPy and of this project, by name. An array is a part of a memory: a constant of the network, packed weights with what
they are packed of, or a few bytes that are written out.
"""

from __future__ import annotations

import base64
import importlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from hetero_core.network.initializers import Initializer
from hetero_cpu.open.plan import ArrayMark, NumberMark
from hetero_cpu.planning.instance import allocate_arena
from hetero_cpu.planning.weights import LaterArray, PackedWeights

Array = np.ndarray[Any, Any]

_PACKAGES = ("numpy", "hetero_core", "hetero_cpu")
_PLAIN = (bool, int, float, str, type(None))


class NotStorableError(Exception):
    """A part of a plan cannot be written down; never leaves the device."""


class ValueWriter:
    """Writes values; `memories` are those that the arrays among them are parts of, each after those that it is made of."""

    most_bytes = 1 << 18
    """Of an array that is written out; a plan is kept beside a digest of all constants, of which it may be made."""

    def __init__(self, constants: Mapping[str, Initializer], weights: PackedWeights) -> None:
        self.memories: list[Any] = []
        self._name_of_constant = {id(constant): name for name, constant in constants.items()}
        self._place_of_key: dict[tuple[Any, ...], int] = {}
        # Who keeps the memory of an array, so that its address is not given away meanwhile.
        self._keep: list[Any] = []
        spans: list[tuple[int, int, Any]] = [(*byte_bounds(later.get()), later) for later in weights.list_made()]
        # Behind what is packed, so that what needs no packing is the constant itself.
        for name, constant in constants.items():
            if constant.nbytes and not constant.array.dtype.hasobject:
                spans.append((*byte_bounds(constant.array), name))
        self._spans = sorted(spans, key=lambda span: span[:2])
        self._begins = [begin for begin, _, _ in self._spans]

    def write(self, value: Any) -> Any:
        """Returns a value as lists. Raises: NotStorableError."""
        if type(value) in _PLAIN:
            return value
        if type(value) in (tuple, list):
            return [type(value).__name__, [self.write(part) for part in value]]
        if isinstance(value, slice):
            return ["slice", [self.write(part) for part in (value.start, value.stop, value.step)]]
        if isinstance(value, range):
            return ["range", value.start, value.stop]
        if isinstance(value, ArrayMark):
            return ["array", value.index]
        if isinstance(value, NumberMark):
            return ["number", value.index]
        if isinstance(value, partial):
            named = {key: self.write(part) for key, part in value.keywords.items()}
            return ["partial", self.write(value.func), [self.write(part) for part in value.args], named]
        if isinstance(value, np.ndarray):
            place, begin = self.locate(value)
            offset = value.__array_interface__["data"][0] - begin
            return ["memory", place, offset, _name_dtype(value.dtype), value.shape, value.strides]
        if isinstance(value, np.generic):
            return ["scalar", _name_dtype(value.dtype), value.tobytes().hex()]
        if isinstance(value, np.dtype):
            return ["dtype", _name_dtype(value)]
        if is_dataclass(value) and not isinstance(value, type):
            return ["record", _name(type(value)), [self.write(getattr(value, field.name)) for field in fields(value)]]
        if callable(value):
            return ["function", _name(value)]
        raise NotStorableError(f"a value of type {type(value).__name__}")

    def locate(self, array: Array) -> tuple[int, int]:
        """Returns the memory that an array lies in, and where that begins. Raises: NotStorableError."""
        low, high = byte_bounds(array)
        index = bisect_right(self._begins, low) - 1
        if index >= 0 and array.size and high <= self._spans[index][1]:
            begin, _, owner = self._spans[index]
            return self._add((id(owner) if isinstance(owner, LaterArray) else owner,), owner), begin
        memory: Any = array
        while isinstance(memory, np.ndarray) and not memory.flags.c_contiguous:
            memory = memory.base
        if not isinstance(memory, np.ndarray) or memory.dtype.hasobject or memory.nbytes > self.most_bytes:
            raise NotStorableError(f"an array of {array.nbytes} bytes that is no constant")
        self._keep.append(memory)
        begin = int(memory.__array_interface__["data"][0])
        return self._add((begin, memory.nbytes), memory), begin

    def _add(self, key: tuple[Any, ...], owner: Any) -> int:
        if key not in self._place_of_key:
            described = self.describe(owner)
            self._place_of_key[key] = len(self.memories)
            self.memories.append(described)
        return self._place_of_key[key]

    def describe(self, owner: Any) -> Any:
        """Returns what makes the memory again: of a constant, by its name, of packed weights or of an array."""
        if isinstance(owner, str):
            return ["constant", owner]
        if isinstance(owner, LaterArray):
            sources = [
                ["initializer", self._name_of_constant[id(source)]]
                if id(source) in self._name_of_constant
                else self.write(source.array if isinstance(source, Initializer) else source)
                for source in owner.sources
            ]
            return ["packed", self.write(owner.make), self.write(owner.purpose), sources]
        return ["bytes", base64.b64encode(owner.tobytes()).decode()]


class ValueReader:
    """Reads what a `ValueWriter` has written. Where memories are is for a class of its own to say.

    Raises: ValueError, KeyError, TypeError, IndexError.
    """

    def __init__(self, memories: Sequence[Any]) -> None:
        self._memories: list[Array | LaterArray] = []
        for described in memories:
            self._memories.append(self.open_memory(described))

    def open_memory(self, described: Any) -> Array | LaterArray:
        """Returns a memory, of those before it."""
        raise NotImplementedError

    def read(self, value: Any) -> Any:
        """Returns a value."""
        if type(value) in _PLAIN:
            return value
        kind, first, *rest = value
        match kind:
            case "tuple" | "list":
                return (tuple if kind == "tuple" else list)(self.read(part) for part in first)
            case "slice":
                return slice(*(self.read(part) for part in first))
            case "range":
                return range(read_count(first), read_count(rest[0]))
            case "array":
                return ArrayMark(read_count(first))
            case "number":
                return NumberMark(read_count(first))
            case "partial":
                function = self.read(first)
                require(callable(function), "it calls what is no function")
                return partial(function, *map(self.read, rest[0]), **{key: self.read(part) for key, part in rest[1].items()})
            case "memory":
                return self._lay(read_count(first), *rest)
            case "scalar":
                return np.frombuffer(bytes.fromhex(rest[0]), read_dtype(first))[0]
            case "dtype":
                return read_dtype(first)
            case "record":
                record = _resolve(first)
                require(isinstance(record, type) and is_dataclass(record), f"'{first}' is no record")
                return record(*map(self.read, rest[0]))
            case "function":
                function = _resolve(first)
                require(callable(function), f"'{first}' is no function")
                return function
        raise ValueError(f"it has a value of kind {kind!r}")

    def find_memory(self, place: int) -> Array:
        """Returns a memory as an array in C order."""
        memory = self._memories[read_count(place)]
        return memory.get() if isinstance(memory, LaterArray) else memory

    def _lay(self, place: int, offset: int, dtype: str, shape: list[int], strides: list[int]) -> Array:
        # NumPy refuses an array that is not within the memory.
        memory = self.find_memory(place).reshape(-1).view(np.uint8)
        return np.ndarray(tuple(map(read_count, shape)), read_dtype(dtype), memory, read_count(offset), tuple(map(int, strides)))


class NetworkReader(ValueReader):
    """Reads what was written for a network with the same constants."""

    def __init__(self, memories: Sequence[Any], constants: Mapping[str, Initializer], weights: PackedWeights) -> None:
        self._constants, self._weights = constants, weights
        super().__init__(memories)

    def open_memory(self, described: Any) -> Array | LaterArray:
        """Returns the array of a constant, packed weights, or bytes that were written out."""
        kind, first, *rest = described
        if kind == "constant":
            return self._constants[first].array
        if kind == "packed":
            sources = tuple(
                self._constants[source[1]].array if source[0] == "initializer" else self.read(source) for source in rest[1]
            )
            return self._weights.pack_later(sources, self.read(rest[0]), self.read(first))
        require(kind == "bytes", f"it has a memory of kind {kind!r}")
        content = np.frombuffer(base64.b64decode(first, validate=True), np.uint8)
        memory = allocate_arena(content.size)
        memory[...] = content
        return memory


def require(is_right: bool, fault: str) -> None:
    """Raises ValueError with the fault unless all is right."""
    if not is_right:
        raise ValueError(fault if len(fault) <= 300 else f"{fault[:300]} ...")


def read_count(value: Any) -> int:
    """Returns a whole number from zero on. Raises: ValueError."""
    require(type(value) is int and 0 <= value < 1 << 62, f"{value!r} is no count")
    return int(value)


def read_dtype(name: Any) -> np.dtype[Any]:
    """Returns an element type of numbers. Raises: ValueError."""
    require(isinstance(name, str), f"{name!r} is no element type")
    dtype: np.dtype[Any] = np.dtype(name)
    require(not dtype.hasobject and dtype.fields is None and dtype.itemsize > 0, f"{name!r} is no element type of numbers")
    return dtype


def _name_dtype(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject or np.dtype(dtype.str) != dtype:
        raise NotStorableError(f"elements of type {dtype}")
    name: str = dtype.str
    return name


def _name(function: Any) -> str:
    """Returns the name of a function or a class. Raises: NotStorableError where it is not found by it."""
    module = "numpy" if isinstance(function, np.ufunc) else getattr(function, "__module__", None)
    path = f"{module}:{getattr(function, '__qualname__', getattr(function, '__name__', ''))}"
    try:
        known = _resolve(path)
    except (ValueError, ImportError, AttributeError):
        known = None
    if known is not function:
        raise NotStorableError(f"a function that has no name: {path}")
    return path


def _resolve(path: Any) -> Any:
    require(isinstance(path, str), f"{path!r} is no name of a function")
    module, _, name = path.partition(":")
    require(module.partition(".")[0] in _PACKAGES and name.isidentifier(), f"'{path}' is no function of NumPy or of this project")
    return getattr(importlib.import_module(module), name)
