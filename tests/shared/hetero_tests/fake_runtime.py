"""Cards of make-believe: the seam implemented with NumPy, for machines without a card and for tests. Proves where values are, no speed.

What runs here is the plugin's own code; only what stands behind `runtime.Card` is another one.
"""

from __future__ import annotations

import math
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
from hetero_cupy.arena import Allocation, ArrayAllocator
from hetero_cupy.runtime import CardFacts, Convolutions, Launch

from hetero_tests.fake_array import FakeArray, FakeNamespace, Home, HostAccessError


class FakeOutOfMemoryError(MemoryError):
    """The card has no room."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"out of memory allocating {nbytes} bytes")
        self.nbytes = nbytes


class FakeProducts:
    """Products with an epilogue, as a library has them: not for every shape."""

    def __init__(self, card: FakeCard, home: Home) -> None:
        self._card = card
        self._home = home

    def multiply(self, a: FakeArray, b: FakeArray, bias: FakeArray, *, activation: str, uses_tf32: bool) -> FakeArray | None:
        """Returns the product with its epilogue, None for an odd number of columns."""
        if b.shape[1] % 2 or not a.size:
            return None
        self._card.epilogues.append(activation)
        y = self._home.unwrap(self._card.multiply(a, b, uses_tf32=uses_tf32)).astype(np.float32)
        y = y + self._home.unwrap(bias).astype(np.float32)
        y = np.maximum(y, np.float32(0)) if activation == "Relu" else y
        inner = math.sqrt(2 / math.pi) * (y + np.float32(0.044715) * y**3)
        y = 0.5 * y * (1 + np.tanh(inner)) if activation == "Gelu" else y
        return FakeArray(self._home, y.astype(a.dtype))


class FakeReplay:
    """A recorded run: does it again, and puts the results where the recording had them."""

    def __init__(self, card: FakeCard, work: Callable[[], None]) -> None:
        self._card = card
        self._work = work
        self.launches = 0

    def launch(self) -> None:
        """Runs it."""
        self.launches += 1
        self._work()


class FakeCard:
    """A card with a memory of its own; `memory_bytes` limits what may be in it at once, None for no limit."""

    def __init__(self, index: int, *, memory_bytes: int | None = None, capability: str = "0.0") -> None:
        self.memory = f"ext:{index}"
        self.facts = CardFacts(f"card of make-believe {index}", capability, memory_bytes or 0, f"{index:032x}")
        self.used_bytes = 0
        self.copies: list[tuple[str, int]] = []
        self.products: list[tuple[str, bool]] = []
        """The element type of each product so far, and whether TF32 was asked for."""
        self.epilogues: list[str] = []
        """The activation of each product with an epilogue so far."""
        self._limit = memory_bytes
        self._lock = threading.RLock()
        self._own = threading.local()
        self._roots: set[int] = set()
        self.allocations = 0
        """The number of arrays that got memory of their own so far."""
        self._home = Home(self.memory, self._allocate)
        self.xp = FakeNamespace(self._home)

    def _allocate(self, array: np.ndarray[Any, Any], *, is_empty: bool = False) -> np.ndarray[Any, Any]:
        """Returns an array that is made, in the card's memory; a view of one that lies there as it is."""
        root = _find_root(array)
        with self._lock:
            if id(root) in self._roots or not array.nbytes:
                return array
        places: tuple[ArrayAllocator, Any] | None = getattr(self._own, "places", None)
        allocation = None if places is None else places[0].take(array.nbytes)
        if places is not None and allocation is not None and allocation.offset is not None:
            memory = memoryview(places[1])[allocation.offset : allocation.offset + array.nbytes]
            placed = np.ndarray(array.shape, array.dtype, buffer=memory)
            if not is_empty:
                placed[...] = array
            self._keep(memory, 0, allocation)
            return placed
        if root is not array:
            array = np.array(array)
        with self._lock:
            if self._limit is not None and self.used_bytes + array.nbytes > self._limit:
                raise FakeOutOfMemoryError(array.nbytes)
            self.used_bytes += array.nbytes
            self.allocations += 1
        if allocation is not None:
            allocation.stand_at(array.ctypes.data)
        self._keep(array, array.nbytes, allocation)
        return array

    def _keep(self, root: Any, nbytes: int, allocation: Allocation | None) -> None:
        """Knows a piece of memory, and its allocation, until nobody uses it."""
        with self._lock:
            self._roots.add(id(root))
        weakref.finalize(root, self._free, id(root), nbytes, allocation)

    def _free(self, root: int, nbytes: int, allocation: Allocation | None) -> None:
        with self._lock:
            self._roots.discard(root)
            self.used_bytes -= nbytes

    def address_of(self, array: FakeArray) -> int:
        """Returns where it is."""
        address: int = self._home.unwrap(array).ctypes.data
        return address

    @contextmanager
    def place_arrays(self, places: ArrayAllocator, block: FakeArray | None) -> Iterator[None]:
        """Asks for a place of every array that is made, and puts it there."""
        before = getattr(self._own, "places", None)
        self._own.places = places, None if block is None else self._home.unwrap(block)
        try:
            yield
        finally:
            self._own.places = before

    def allow_in_place(self, target: FakeArray, read: FakeArray) -> None:
        """Tells the places."""
        places = getattr(self._own, "places", None)
        if places is not None:
            places[0].allow_in_place(self.address_of(target), self.address_of(read))

    def to_host(self, array: FakeArray) -> np.ndarray[Any, Any]:
        """Returns a copy."""
        if not isinstance(array, FakeArray):
            raise HostAccessError(f"{type(array).__name__} is not in {self.memory}")
        self._refuse_while_recording("read")
        self.copies.append(("to_host", array.nbytes))
        copied: np.ndarray[Any, Any] = np.array(self._home.unwrap(array))
        return copied

    def from_host(self, array: np.ndarray[Any, Any]) -> FakeArray:
        """Returns a copy."""
        if not isinstance(array, np.ndarray):
            raise HostAccessError(f"{type(array).__name__} is no host array")
        self._refuse_while_recording("write")
        self.copies.append(("from_host", array.nbytes))
        return FakeArray(self._home, np.array(array))

    def fill(self, target: FakeArray, array: np.ndarray[Any, Any]) -> None:
        """Copies into it."""
        self._refuse_while_recording("write")
        self.copies.append(("from_host", array.nbytes))
        self._home.unwrap(target)[...] = array

    def _refuse_while_recording(self, what: str) -> None:
        # A stream is recorded in CuPy's relaxed mode: what other threads do meanwhile is none of it.
        if getattr(self._own, "is_recording", False):
            raise HostAccessError(f"a {what} cannot be recorded")

    def owns(self, value: Any) -> bool:
        """Says whether a value is in this card's memory."""
        return isinstance(value, FakeArray) and value.home is self._home

    def find_nonzero(self, flags: FakeArray) -> FakeArray:
        """Returns the positions of what is true."""
        self._refuse_while_recording("read")
        return FakeArray(self._home, np.flatnonzero(self._home.unwrap(flags)).astype(np.int64))

    def create_stream(self) -> object:
        """Returns something that is one."""
        return object()

    @contextmanager
    def use(self, stream: Any) -> Iterator[None]:
        """Does nothing: everything is done at once."""
        yield

    def record(self, stream: Any, work: Callable[[], None]) -> FakeReplay:
        """Returns the work, after it has run once without any copy."""
        self._own.is_recording = True
        try:
            work()
        finally:
            self._own.is_recording = False
        return FakeReplay(self, work)

    def compile_elementwise(
        self, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], body: str, preamble: str
    ) -> Callable[..., Any]:
        """Returns the function that the statements of the body describe, by NumPy's functions of the same meaning."""
        arguments = [declaration.split()[1] for declaration in inputs]
        results = [declaration.split()[1] for declaration in outputs]
        source = compile(_translate(body), name, "exec")

        def call(*arrays: FakeArray) -> Any:
            values: dict[str, Any] = dict(zip(arguments, (self._home.unwrap(array) for array in arrays), strict=True))
            with np.errstate(all="ignore"):
                exec(source, {"__builtins__": {}, **_FUNCTIONS}, values)  # the plugin's own text
            computed = [FakeArray(self._home, np.asarray(values[result])) for result in results]
            return computed[0] if len(computed) == 1 else tuple(computed)

        return call

    def compile_kernel(self, name: str, source: str) -> Launch | None:
        """Compiles nothing."""
        return None

    def multiply(self, a: FakeArray, b: FakeArray, *, uses_tf32: bool) -> FakeArray:
        """Returns the product of float32 values, rounded once, and before, too, where TF32 is asked for."""
        left, right = self._home.unwrap(a), self._home.unwrap(b)
        self.products.append((str(left.dtype), uses_tf32))
        if uses_tf32 and left.dtype == np.float32:
            left, right = _round_to_tf32(left), _round_to_tf32(right)
        product = np.matmul(left.astype(np.float32), right.astype(np.float32))
        return FakeArray(self._home, product.astype(left.dtype))

    def find_convolutions(self) -> Convolutions | None:
        """There is none."""
        return None

    def find_products(self) -> FakeProducts:
        """Returns a library of make-believe."""
        return FakeProducts(self, self._home)

    def read_memory(self) -> tuple[int, int]:
        """Returns what is free of the limit; of no limit, a large number."""
        total = (1 << 40) if self._limit is None else self._limit
        return total - self.used_bytes, total

    def read_utilisation(self) -> int | None:
        """Nobody can say."""
        return None

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Knows its own error."""
        return isinstance(error, FakeOutOfMemoryError)

    def wanted_bytes(self, error: BaseException) -> int | None:
        """Returns what the error says."""
        return error.nbytes if isinstance(error, FakeOutOfMemoryError) else None

    def free_unused(self) -> None:
        """Has nothing to give back."""


class FakeRuntime:
    """A library with cards of make-believe."""

    def __init__(self, cards: int = 1, *, memory_bytes: int | None = None, version: str = "0", capability: str = "0.0") -> None:
        self.version = version
        self.name = f"make-believe {version}"
        self._cards = tuple(FakeCard(index, memory_bytes=memory_bytes, capability=capability) for index in range(cards))

    def cards(self) -> tuple[FakeCard, ...]:
        """Returns the cards, always the same."""
        return self._cards


def _find_root(array: np.ndarray[Any, Any]) -> Any:
    """Returns what owns the memory of an array."""
    root: Any = array
    while isinstance(root, np.ndarray) and root.base is not None:
        root = root.base
    return root


def _round_to_tf32(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns float32 with 10 bits of fraction, rounded to the nearest; what is not finite as it is."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = ((bits + np.uint32(0xFFF) + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def _clip_positive(x: Any) -> Any:
    return np.where((x > 0) | np.isnan(x), x, np.float32(0))


# CUDA's name, or that of the preamble -> the same in NumPy.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "fabsf": np.abs,
    "erff": np.vectorize(math.erf, otypes=[np.float32]),
    "expf": np.exp,
    "logf": np.log,
    "sqrtf": np.sqrt,
    "tanhf": np.tanh,
    "floorf": np.floor,
    "ceilf": np.ceil,
    "hetero_relu": _clip_positive,
    "hetero_sigmoid": lambda x: np.where(x < 0, np.exp(-np.abs(x)), np.float32(1)) / (1 + np.exp(-np.abs(x))),
    "hetero_leaky": lambda x, alpha: np.where(x < 0, x * np.float32(alpha), x),
    "hetero_gelu": lambda x: np.float32(0.5) * x * (1 + np.vectorize(math.erf, otypes=[np.float32])(x * np.float32(0.5**0.5))),
    "hetero_load_float16": lambda bits: bits.view(np.float16).astype(np.float32),
    "hetero_store_float16": lambda x: np.asarray(x).astype(np.float16).view(np.uint16),
    "hetero_load_bfloat16": lambda bits: bits.view(ml_dtypes.bfloat16).astype(np.float32),
    "hetero_store_bfloat16": lambda x: np.asarray(x).astype(ml_dtypes.bfloat16).view(np.uint16),
    "hetero_clip": lambda x, least, most: np.minimum(np.maximum(x, np.float32(least)), np.float32(most)),
}


def _translate(body: str) -> str:
    """Returns statements of C as statements of Python: without types and semicolons, numbers as float32 has them."""
    lines = [line.strip() for line in body.split(";") if line.strip()]
    return "\n".join(re.sub(r"(?<=[\d.])f\b", "", re.sub(r"^float\s+", "", line)) for line in lines)
