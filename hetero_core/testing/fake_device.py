"""A device of make-believe: an array type that refuses host access, and the namespace that computes with it.

`NAMESPACE` has NumPy's functions, but takes and gives only `FakeArray`. Whatever would be an implicit copy or a wait on a real
device is an error here: a NumPy function on a device array, a device array next to a host array, `float()`, `bool()`,
`np.asarray()`. So code that runs here keeps its data on the device. It proves residency and shapes, not speed. The two copies are
`to_device` and `to_host`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np


class HostAccessError(TypeError):
    """Something touched device memory from the host, or handed host memory to the device, without an explicit copy."""


class FakeArray:
    """An array in the memory of the make-believe device."""

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __getattr__(self, name: str) -> Any:
        # Never the protocols (__array_interface__, __dlpack__, ...): they would let the host in.
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._array, name)
        return _wrap_function(value) if callable(value) else _wrap(value)

    def __getitem__(self, key: Any) -> Any:
        return _wrap(self._array[_unwrap(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._array[_unwrap(key)] = _unwrap(value)

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Any]:
        return (_wrap(element) for element in self._array)

    def __repr__(self) -> str:
        return f"FakeArray({self._array.dtype}{list(self._array.shape)})"

    def __array__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise HostAccessError("implicit copy from the device to the host; copy with to_host")

    def __array_function__(self, function: Callable[..., Any], *arguments: Any) -> NoReturn:
        raise HostAccessError(f"numpy.{function.__name__} called on a device array; use the device's namespace")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        # A NumPy scalar as left operand is a plain number, which devices take.
        if method == "__call__" and any(isinstance(value, np.generic) for value in inputs):
            return _wrap(ufunc(*_unwrap(inputs), **_unwrap(keywords)))
        raise HostAccessError(f"numpy.{ufunc.__name__} called on a device array; use the device's namespace")

    def _refuse_scalar(self) -> NoReturn:
        raise HostAccessError("reading an element waits for the device; copy with to_host")

    __bool__ = __float__ = __int__ = __index__ = __complex__ = _refuse_scalar

    def _compare(self, other: object, name: str) -> Any:
        return _wrap(getattr(self._array, name)(_unwrap(other)))

    def __eq__(self, other: object) -> Any:
        return self._compare(other, "__eq__")

    def __ne__(self, other: object) -> Any:
        return self._compare(other, "__ne__")

    __hash__ = None  # type: ignore[assignment]  # as arrays have it


def _forward_operator(name: str) -> Callable[..., Any]:
    def operate(self: FakeArray, *others: Any) -> Any:
        return _wrap(getattr(self._array, name)(*(_unwrap(other) for other in others)))

    return operate


def _forward_in_place(name: str) -> Callable[[FakeArray, Any], FakeArray]:
    def operate(self: FakeArray, other: Any) -> FakeArray:
        self._array = getattr(self._array, name)(_unwrap(other))
        return self

    return operate


for _operator in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"]:
    for _prefix in ("", "r"):
        setattr(FakeArray, f"__{_prefix}{_operator}__", _forward_operator(f"__{_prefix}{_operator}__"))
    setattr(FakeArray, f"__i{_operator}__", _forward_in_place(f"__i{_operator}__"))
for _operator in ["lt", "le", "gt", "ge", "neg", "abs", "invert", "pos"]:
    setattr(FakeArray, f"__{_operator}__", _forward_operator(f"__{_operator}__"))


class FakeNamespace(types.ModuleType):
    """NumPy's functions on device arrays; element types, constants and numbers pass through."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(f"fake.{module.__name__}")
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._module, name)
        if isinstance(value, types.ModuleType):
            return FakeNamespace(value)
        if isinstance(value, type) or not callable(value):
            return value
        return _FakeUfunc(value) if isinstance(value, np.ufunc) else _wrap_function(value)


class _FakeUfunc:
    """A universal function with its method `at`."""

    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc = ufunc
        self.__name__ = ufunc.__name__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return _wrap(self._ufunc(*_unwrap(arguments), **_unwrap(keywords)))

    def at(self, target: FakeArray, *arguments: Any) -> None:
        self._ufunc.at(*_unwrap((target, *arguments)))


def _wrap_function(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return _wrap(function(*_unwrap(arguments), **_unwrap(keywords)))

    return call


def _wrap(value: Any) -> Any:
    """Returns arrays and array scalars as device arrays, also inside tuples and lists."""
    if isinstance(value, np.ndarray):
        return FakeArray(value)
    if isinstance(value, np.generic):
        return FakeArray(np.asarray(value))
    if type(value) in (tuple, list):
        return type(value)(_wrap(element) for element in value)
    return value


def _unwrap(value: Any) -> Any:
    """Returns device arrays as NumPy arrays, for this module's eyes only.

    Raises: HostAccessError for a host array.
    """
    if isinstance(value, FakeArray):
        return value._array
    if isinstance(value, np.ndarray):
        raise HostAccessError("a host array was handed to the device; copy with to_device")
    if type(value) in (tuple, list):
        return type(value)(_unwrap(element) for element in value)
    if isinstance(value, dict):
        return {key: _unwrap(element) for key, element in value.items()}
    return value


NAMESPACE = FakeNamespace(np)
"""The array namespace of the device, to be passed as `xp`."""


def to_device(array: np.ndarray[Any, Any]) -> FakeArray:
    """Returns a copy in device memory."""
    return FakeArray(np.array(array))


def to_host(array: FakeArray) -> np.ndarray[Any, Any]:
    """Returns a copy in host memory."""
    if not isinstance(array, FakeArray):
        raise HostAccessError(f"{type(array).__name__} is not in device memory")
    return array._array.copy()
