"""Arrays on a simulated card: every implicit copy or wait of a real card is an error.

Rules: an array belongs to a single memory, and cannot be combined with host arrays or arrays of another memory; no element can be read;
results with a data-dependent length (a boolean index, `nonzero`) are refused; unlisted methods do not exist. So code that runs
here keeps its values on the card, and makes only explicit copies.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

# Attributes of CuPy's arrays that need no wait and no copy to the host.
_VALUES = frozenset({"shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags"})
_VIEWS = frozenset({"T", "real", "imag"})
_METHODS = frozenset(
    (
        *(
            *("all", "any", "argmax", "argmin", "argsort", "astype", "clip", "conj", "copy", "cumprod", "cumsum", "fill"),
            *("max", "mean"),
        ),
        *(
            *("min", "prod", "ravel", "repeat", "reshape", "round", "squeeze", "std", "sum", "swapaxes", "take", "transpose"),
            *("var", "view"),
        ),
    )
)
# Functions with a data-dependent number of elements, and random numbers.
_REFUSED_FUNCTIONS = frozenset(
    ("nonzero", "flatnonzero", "argwhere", "unique", "compress", "extract", "random", "array_equal", "allclose")
)


class HostAccessError(TypeError):
    """Host access to the memory of a card without an explicit copy."""


Allocate = Callable[..., np.ndarray[Any, Any]]
"""Allocates memory for an array: returns the array or a copy of it."""


class FakeArray:
    """An array in a simulated memory."""

    __slots__ = ("__weakref__", "_array", "home")

    def __init__(self, home: Home, array: np.ndarray[Any, Any]) -> None:
        self.home = home
        self._array = home.allocate(array)

    def __getattr__(self, name: str) -> Any:
        if name in _VALUES:
            return getattr(self._array, name)
        if name in _VIEWS:
            return self.home.wrap(getattr(self._array, name))
        if name in _METHODS:
            return self.home.wrap_function(getattr(self._array, name))
        # Protocols (__array_interface__, __dlpack__, ...) are missing, so that they grant no access.
        if name.startswith("__"):
            raise AttributeError(name)
        raise HostAccessError(
            f"'{name}' of an array in {self.home.memory} is not to be used: it waits, copies, or CuPy has no such thing"
        )

    @property
    def base(self) -> None:
        """Returns None, as an array that owns its memory: views are counted separately."""

    def __getitem__(self, key: Any) -> Any:
        if any(isinstance(index, FakeArray) and index.dtype == bool for index in _keys(key)):
            raise HostAccessError("a boolean index makes as many elements as only the card knows")
        return self.home.wrap(self._array[self.home.unwrap(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        is_masked = any(isinstance(index, FakeArray) and index.dtype == bool for index in _keys(key))
        if is_masked and isinstance(value, FakeArray) and value.size != 1:
            raise HostAccessError("a boolean index takes as many elements as only the card knows")
        self._array[self.home.unwrap(key)] = self.home.unwrap(value)

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Any]:
        return (self.home.wrap(element) for element in self._array)

    def __repr__(self) -> str:
        return f"FakeArray({self._array.dtype}{list(self._array.shape)} in {self.home.memory})"

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns DLPack's number for an unknown device, and the number of the card; grants no access."""
        return 12, int(self.home.memory.partition(":")[2])

    def __array__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise HostAccessError(f"implicit copy from {self.home.memory} to the host")

    def __array_function__(self, function: Callable[..., Any], *arguments: Any) -> NoReturn:
        raise HostAccessError(f"numpy.{function.__name__} called on an array in {self.home.memory}")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        # A NumPy scalar as left operand is a plain number, which cards accept.
        if method == "__call__" and any(isinstance(value, np.generic) for value in inputs):
            return self.home.wrap(ufunc(*self.home.unwrap(inputs), **self.home.unwrap(keywords)))
        raise HostAccessError(f"numpy.{ufunc.__name__} called on an array in {self.home.memory}")

    def _refuse_scalar(self) -> NoReturn:
        raise HostAccessError(f"reading an element waits for {self.home.memory}")

    __bool__ = __float__ = __int__ = __index__ = __complex__ = _refuse_scalar

    def __eq__(self, operand: object) -> Any:
        return self.home.wrap(self._array == self.home.unwrap(operand))

    def __ne__(self, operand: object) -> Any:
        return self.home.wrap(self._array != self.home.unwrap(operand))

    __hash__ = None  # type: ignore[assignment]  # as arrays have it


def _keys(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _forward_operator(name: str) -> Callable[..., Any]:
    def operate(self: FakeArray, *operands: Any) -> Any:
        return self.home.wrap(getattr(self._array, name)(*(self.home.unwrap(operand) for operand in operands)))

    return operate


def _forward_in_place(name: str) -> Callable[[FakeArray, Any], FakeArray]:
    def operate(self: FakeArray, operand: Any) -> FakeArray:
        self._array = getattr(self._array, name)(self.home.unwrap(operand))
        return self

    return operate


for _operator in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"]:
    for _prefix in ("", "r"):
        setattr(FakeArray, f"__{_prefix}{_operator}__", _forward_operator(f"__{_prefix}{_operator}__"))
    setattr(FakeArray, f"__i{_operator}__", _forward_in_place(f"__i{_operator}__"))
for _operator in ["lt", "le", "gt", "ge", "neg", "abs", "invert", "pos"]:
    setattr(FakeArray, f"__{_operator}__", _forward_operator(f"__{_operator}__"))


class Home:
    """A simulated memory: wraps new arrays, and unwraps its own arrays for use inside this module only."""

    def __init__(self, memory: str, allocate: Allocate) -> None:
        self.memory = memory
        self.allocate = allocate

    def wrap(self, value: Any) -> Any:
        """Returns NumPy arrays and scalars as arrays of this memory, also inside tuples and lists."""
        if isinstance(value, np.ndarray):
            return FakeArray(self, value)
        if isinstance(value, np.generic):
            return FakeArray(self, np.asarray(value))
        if type(value) in (tuple, list):
            return type(value)(self.wrap(element) for element in value)
        return value

    def unwrap(self, value: Any) -> Any:
        """Returns arrays of this memory as NumPy arrays. Raises: HostAccessError for arrays of the host or another memory."""
        if isinstance(value, FakeArray):
            if value.home is not self:
                raise HostAccessError(f"an array in {value.home.memory} was given to a card with {self.memory}")
            return value._array
        if isinstance(value, np.ndarray):
            raise HostAccessError(f"a host array was given to a card with {self.memory}")
        if type(value) in (tuple, list):
            return type(value)(self.unwrap(element) for element in value)
        if isinstance(value, dict):
            return {key: self.unwrap(element) for key, element in value.items()}
        return value

    def make_empty(self, shape: Any, dtype: Any = float) -> FakeArray:
        """Returns an uninitialized array."""
        array = FakeArray.__new__(FakeArray)
        array.home, array._array = self, self.allocate(np.empty(shape, dtype))
        return array

    def wrap_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function on arrays of this memory."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            return self.wrap(function(*self.unwrap(arguments), **self.unwrap(keywords)))

        return call


class FakeNamespace(types.ModuleType):
    """NumPy's functions on the arrays of a simulated memory; element types, constants and numbers pass through."""

    def __init__(self, home: Home, module: types.ModuleType = np) -> None:
        super().__init__(f"fake.{module.__name__}")
        self._home = home
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _REFUSED_FUNCTIONS:
            raise HostAccessError(f"'{name}' waits for the card, or draws other numbers there")
        value = getattr(self._module, name)
        if value is np.empty:
            return self._home.make_empty
        if isinstance(value, types.ModuleType):
            attribute: Any = FakeNamespace(self._home, value)
        elif isinstance(value, type) or not callable(value):
            attribute = value
        else:
            attribute = _FakeUfunc(self._home, value) if isinstance(value, np.ufunc) else self._home.wrap_function(value)
        setattr(self, name, attribute)
        return attribute


class _FakeUfunc:
    """A universal function with its method `at`; refuses lists, as CuPy does."""

    def __init__(self, home: Home, ufunc: np.ufunc) -> None:
        self._home = home
        self._ufunc = ufunc
        self.__name__ = ufunc.__name__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if any(isinstance(argument, list | tuple) for argument in arguments):
            raise HostAccessError(f"{self.__name__} was given a list; make an array of it")
        return self._home.wrap(self._ufunc(*self._home.unwrap(arguments), **self._home.unwrap(keywords)))

    def at(self, target: FakeArray, *arguments: Any) -> None:
        """Applies the function in place, at possibly repeated indices."""
        self._ufunc.at(*self._home.unwrap((target, *arguments)))
