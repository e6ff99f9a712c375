"""Arrays without memory: shape, strides and address as sizes with symbols. They answer a planner as arrays of NumPy do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero_cpu.machine.calls import address_of
from hetero_cpu.symbols.sizes import NotOpenError, is_open

Array = Any
Shape = tuple[Any, ...]


class OpenArray:
    """An array whose sizes may be symbols; `address` is a number, too. Arrays with different objects as `memory` never overlap."""

    __slots__ = ("address", "dtype", "itemsize", "memory", "ndim", "shape", "strides")

    def __init__(self, shape: Shape, strides: Shape, dtype: np.dtype[Any], address: Any, memory: object) -> None:
        self.shape, self.strides, self.dtype, self.address, self.memory = tuple(shape), tuple(strides), dtype, address, memory
        self.ndim, self.itemsize = len(self.shape), int(dtype.itemsize)

    def _with(self, shape: Sequence[Any], strides: Sequence[Any], address: Any = None) -> OpenArray:
        return OpenArray(tuple(shape), tuple(strides), self.dtype, self.address if address is None else address, self.memory)

    @property
    def size(self) -> Any:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> Any:
        """The bytes of all elements."""
        return self.size * self.itemsize

    @property
    def flags(self) -> Any:
        """Whether it lies in C order."""
        return SimpleNamespace(c_contiguous=self._is_contiguous())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotOpenError(f"'{name}' of an array with open sizes")

    def _is_contiguous(self) -> bool:
        expected: Any = self.itemsize
        if any(size == 0 for size in self.shape):
            return True
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size == 1:
                continue
            if stride != expected:
                return False
            expected = expected * size
        return True

    def transpose(self, *axes: Any) -> OpenArray:
        """Returns a view with the axes in another order."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = tuple(reversed(range(self.ndim))) if not len(axes) or order is None else tuple(int(axis) for axis in order)
        if sorted(axis % self.ndim for axis in order) != list(range(self.ndim)):
            raise ValueError("axes that are no permutation")
        return self._with([self.shape[axis] for axis in order], [self.strides[axis] for axis in order])

    def reshape(self, *shape: Any) -> OpenArray:
        """Returns the same elements in another shape, a view if possible, else an array in memory of its own."""
        sizes = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        holes = [place for place, size in enumerate(sizes) if not is_open(size) and size == -1]
        if holes:
            sizes[holes[0]] = self.size // prod(size for place, size in enumerate(sizes) if place != holes[0])
        if not prod(sizes) == self.size:
            raise ValueError("cannot reshape an array into another number of elements")
        strides = _find_strides(self, sizes)
        if strides is not None:
            return self._with(sizes, strides)
        # NumPy copies into new memory.
        copied: OpenArray = lay_open(tuple(sizes), self.dtype)
        return copied

    def view(self, dtype: Any) -> OpenArray:
        """Returns a row of bytes as elements of another type."""
        kind = np.dtype(dtype)
        if self.ndim != 1 or self.strides != (self.itemsize,):
            raise NotOpenError("a view of what is no row of bytes")
        return OpenArray((self.nbytes // kind.itemsize,), (kind.itemsize,), kind, self.address, self.memory)

    def __getitem__(self, key: Any) -> OpenArray:
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(part is Ellipsis for part in keys):
            place = next(index for index, part in enumerate(keys) if part is Ellipsis)
            named = sum(part is not None for part in keys) - 1
            keys[place : place + 1] = [slice(None)] * (self.ndim - named)
        shape: list[Any] = []
        strides: list[Any] = []
        address, axis = self.address, 0
        for part in keys:
            if part is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = self.shape[axis], self.strides[axis]
            axis += 1
            if isinstance(part, slice):
                step = 1 if part.step is None else int(part.step)
                if step < 1:
                    raise NotOpenError("a slice that goes backwards")
                from hetero_core.network.operators import clip_slice  # as below

                begin, end = clip_slice(
                    0 if part.start is None else part.start, size if part.stop is None else part.stop, size, step
                )
                count = -((begin - end) // step)
                shape.append(count if count > 0 else 0)
                strides.append(stride * step)
                address = address + begin * stride
            elif isinstance(part, int):
                if not -size <= part < size:
                    raise IndexError("an index out of bounds")
                address = address + (part + size if part < 0 else part) * stride
            else:
                raise NotOpenError(f"an array indexed by {type(part).__name__}")
        shape += self.shape[axis:]
        strides += self.strides[axis:]
        return self._with(shape, strides, address)

    def __array_function__(self, function: Callable[..., Any], types: Any, arguments: Any, keywords: Any) -> Any:
        own = _FUNCTIONS.get(function)
        if own is None:
            raise NotOpenError(f"{function.__name__} of an array with open sizes")
        return own(*arguments, **keywords)

    __array_ufunc__ = None

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        raise NotOpenError("an array with open sizes has no elements")


def _find_strides(array: OpenArray, sizes: Sequence[Any]) -> list[Any] | None:
    """Returns the strides of the same elements in another shape, None if they do not lie so: as NumPy does without a copy."""
    old = [(size, stride) for size, stride in zip(array.shape, array.strides, strict=True) if size != 1]
    strides: list[Any] = [0] * len(sizes)
    if any(size == 0 for size in array.shape):
        return strides
    done = place = 0
    while done < len(old) and place < len(sizes):
        whole, target, first, begin = old[done][0], sizes[place], done, place
        while target != whole:
            if target < whole:
                place += 1
                if place == len(sizes):
                    return None
                target = target * sizes[place]
            else:
                done += 1
                if done == len(old):
                    return None
                whole = whole * old[done][0]
        for index in range(first, done):
            if old[index][1] != old[index + 1][0] * old[index + 1][1]:
                return None
        stride = old[done][1]
        for index in range(place, begin - 1, -1):
            strides[index] = stride
            stride = stride * sizes[index]
        done, place = done + 1, place + 1
    stride = array.itemsize if place == 0 else strides[place - 1]
    for index in range(place, len(sizes)):
        # The remaining axes have one element.
        strides[index] = stride
    return strides


def lay_open(shape: Shape, dtype: Any, *, address: Any = 0, memory: object | None = None) -> Any:
    """Returns an array in C order."""
    kind = np.dtype(dtype)
    strides: list[Any] = []
    stride: Any = kind.itemsize
    for size in reversed(shape):
        strides.append(stride)
        stride = stride * size
    return OpenArray(shape, tuple(reversed(strides)), kind, address, object() if memory is None else memory)


def lay_table(make: Callable[..., Any], numbers: Sequence[Any]) -> Any:
    """Returns `make(*numbers)`, an array; of symbols it is made when the plan is bound, and only its address is known."""
    scope = next((number.scope for number in numbers if is_open(number)), None)
    if scope is None:
        return make(*numbers)
    return lay_open((), np.uint8, address=scope.lay_table(make, numbers))


def lay_in(memory: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """Returns an array in C order in the first bytes of some memory, which may be a symbol."""
    kind = np.dtype(dtype)
    if isinstance(memory, OpenArray):
        return lay_open(tuple(shape), kind, address=memory.address, memory=memory.memory)
    return np.ndarray(tuple(shape), kind, memory)


def keep_sizes(array: Any, other: Any) -> Any:
    """Returns an array of the same shape for a function that reads no element of it: an open one lies at the beginning of `other`."""
    if not isinstance(array, OpenArray) or not isinstance(other, OpenArray):
        return array
    return OpenArray(array.shape, (0,) * array.ndim, other.dtype, other.address, other.memory)


def lay_empty(shape: Sequence[Any], dtype: Any, order: Sequence[int] | None = None) -> Any:
    """Returns an array with axes in an order, from the slowest to the fastest; without memory if a size is a symbol."""
    axes = range(len(shape)) if order is None else order
    sizes = [shape[axis] for axis in axes]
    laid = lay_open(tuple(sizes), dtype) if any(is_open(size) for size in sizes) else np.empty(sizes, dtype)
    return laid if order is None else laid.transpose(invert_order(tuple(order)))


@cache
def invert_order(order: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the axes that undo a transposition by `order`."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def broadcast(array: Any, shape: Sequence[Any]) -> Any:
    """Returns an array broadcast to a shape, as NumPy does it; of sizes that are symbols as well."""
    if not isinstance(array, OpenArray):
        if not any(is_open(size) for size in shape):
            return np.broadcast_to(array, tuple(shape))
        # The caller keeps the memory.
        array = OpenArray(array.shape, array.strides, array.dtype, address_of(array), object())
    missing = len(shape) - array.ndim
    if missing < 0:
        raise ValueError("more axes than it is broadcast to")
    strides: list[Any] = [0] * missing
    for own, stride, size in zip(array.shape, array.strides, shape[missing:], strict=True):
        if own == size:
            strides.append(stride)
        elif own == 1:
            strides.append(0)
        else:
            raise ValueError("a shape that does not broadcast")
    return OpenArray(tuple(shape), tuple(strides), array.dtype, array.address, array.memory)


def broadcast_shapes(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the shape to which shapes broadcast. Raises: ValueError."""
    if any(is_open(size) for shape in shapes for size in shape):
        from hetero_core.network.operators import broadcast_sizes  # plans of fixed sizes need no rules

        return broadcast_sizes(*(tuple(shape) for shape in shapes))
    return np.broadcast_shapes(*(tuple(shape) for shape in shapes))


def _move_axis(array: OpenArray, source: int, target: int) -> OpenArray:
    order = [axis for axis in range(array.ndim) if axis != source % array.ndim]
    order.insert(target % array.ndim, source % array.ndim)
    return array.transpose(order)


_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.broadcast_to: broadcast,
    np.may_share_memory: lambda a, b, *_: isinstance(a, OpenArray) and isinstance(b, OpenArray) and a.memory is b.memory,
    np.moveaxis: _move_axis,
}
