"""Weights in the form in which kernels read them, made once for all plans of a network.

Steps of NumPy take the array at once. Machine code needs only an address when a plan is bound, so that its arrays are promised first: a
plan, and with it the list of its kernels, is there before anything is packed, and several threads pack at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hetero_core.network.initializers import Initializer
from hetero_cpu.machine.calls import address_of
from hetero_cpu.machine.memory import allocate_arena

Array = np.ndarray[Any, Any]


_LARGE_PAGES = 1 << 22
"""Bytes from which on NumPy asks for large pages by itself; a network of fewer bytes of weights gains nothing from them."""
_SHARED_BYTES = 1 << 24
_LEAST_PLACED = 1 << 16
_LINE = 64


def pack_affine(scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float) -> Array:
    """Returns the factor and the shift of each channel of a batch normalization, computed in float64."""
    factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    shift = bias.astype(np.float64) - mean.astype(np.float64) * factor
    return np.stack([factor, shift]).astype(np.float32)


class WeightMemory:
    """Memory of arrays that lie side by side on pages of 2 MiB. Safe for threads.

    NumPy asks the system for such pages for memory of 4 MiB and more. A run that reads many weights of a few megabytes for a single row
    waits for a new page of 4 KiB every 4 KiB otherwise.
    """

    __slots__ = ("_begin", "_lock", "_made", "_memory")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory, self._begin, self._made = np.empty(0, np.uint8), 0, 0

    def allocate(self, nbytes: int) -> Array | None:
        """Returns uint8 memory at a cache line, contents undefined; None for small and large arrays, or while the total is small."""
        with self._lock:
            self._made += nbytes
            if not _LEAST_PLACED <= nbytes < _LARGE_PAGES <= self._made:
                return None
            if self._begin + nbytes > self._memory.size:
                self._memory = np.empty(_SHARED_BYTES, np.uint8)
                self._begin = -self._memory.ctypes.data % _LINE
            begin = self._begin
            self._begin += -(-nbytes // _LINE) * _LINE
            return self._memory[begin : begin + nbytes]


_IN_USE = threading.local()
"""`memory`: that of the weights that a thread is packing."""


def allocate_floats(count: int) -> Array:
    """Returns float32 numbers that begin at a cache line, contents undefined: in the memory of the weights that are being packed."""
    memory: WeightMemory | None = getattr(_IN_USE, "memory", None)
    shared = None if memory is None else memory.allocate(count * 4)
    return (allocate_arena(count * 4) if shared is None else shared).view(np.float32)


class LazyArray:
    """An array that is made when it is first asked for, read-only. Safe for threads."""

    __slots__ = ("__weakref__", "_array", "_lock", "_memory", "_releases", "make", "sources")

    def __init__(
        self, sources: tuple[Array | Initializer, ...], make: Callable[..., Array], *, memory: WeightMemory, releases: bool
    ) -> None:
        """`memory` has room for the packed form; `releases`: when it is made, only constants remain among the sources."""
        self.sources, self.make, self._memory, self._releases = sources, make, memory, releases
        self._array: Array | None = None
        self._lock = threading.Lock()

    def get(self) -> Array:
        """Returns the array."""
        with self._lock:
            if self._array is None:
                arrays = [source.array if isinstance(source, Initializer) else source for source in self.sources]
                _IN_USE.memory = self._memory
                try:
                    # NumPy makes scalars of arrays without dimensions.
                    packed = np.asarray(self.make(*arrays))
                finally:
                    _IN_USE.memory = None
                packed.flags.writeable = False
                self._array = packed
                constants = tuple(source for source in self.sources if isinstance(source, Initializer))
                for constant in constants:
                    # A further plan may want the array, but rarely constants that are packed already.
                    constant.release()
                if self._releases:
                    # Constants are kept as the key, without their arrays.
                    self.sources = constants
            return self._array

    @property
    def address(self) -> int:
        """The address of the packed array, which is made if it is not there yet."""
        return address_of(self.get())

    @property
    def nbytes(self) -> int:
        """The bytes of the array; 0 before it is made."""
        array = self._array
        return 0 if array is None else array.nbytes

    @property
    def source_bytes(self) -> int:
        """Bytes of the array that it is made of."""
        return sum(source.nbytes for source in self.sources)


class PackedWeights:
    """Arrays by (constants, purpose). Threads may ask for the same array; it is made once.

    With `releases` a constant is freed when it was packed: for a network with a single plan. With `is_once` each weight is to be held in
    one form, by all plans.
    """

    __slots__ = ("_arrays", "_memory", "_owners", "is_once", "releases")

    def __init__(self, *, releases: bool = False, is_once: bool = False) -> None:
        self.is_once, self.releases = is_once, releases
        # The sources are kept beside the packed array: an id is only theirs while they live.
        self._arrays: dict[tuple[object, ...], LazyArray] = {}
        self._memory = WeightMemory()
        self._owners: dict[int, Initializer] = {}

    @property
    def is_shared(self) -> bool:
        """Says whether plans for several sizes are to read each weight in one form."""
        return self.is_once and not self.releases

    def serve(self, constants: Mapping[str, Initializer]) -> PackedWeights:
        """Returns the same weights for the plan of a network with these constants: an array is told apart by the constant that it is of."""
        served = PackedWeights(releases=self.releases, is_once=self.is_once)
        served._arrays, served._memory = self._arrays, self._memory
        for constant in constants.values():
            served.own(constant)
        return served

    def own(self, constant: Initializer) -> None:
        """Notes a further constant of the network."""
        self._owners[id(constant.array)] = constant

    def pack(self, constants: tuple[Array, ...], purpose: tuple[object, ...], make: Callable[..., Array]) -> Array:
        """Returns `make(*constants)`, read-only; `purpose` tells packed forms of the same constants apart."""
        return self.pack_lazily(constants, purpose, make).get()

    def pack_lazily(
        self, constants: tuple[Array | Initializer, ...], purpose: tuple[object, ...], make: Callable[..., Array]
    ) -> LazyArray:
        """Returns the lazy array of `make(*constants)`: `pack_all` makes it, or its first use."""
        sources = tuple(map(self._find_owner, constants))
        if self.releases and not all(isinstance(source, Initializer) for source in sources):
            # Views, as of a matrix that is turned: freed with their bases, so that nothing may find them by their id.
            unshared = LazyArray(sources, make, memory=self._memory, releases=True)
            self._arrays[("unshared", id(unshared))] = unshared
            return unshared
        promise = LazyArray(sources, make, memory=self._memory, releases=self.releases)
        return self._arrays.setdefault((*map(id, sources), *purpose), promise)

    def _find_owner(self, array: Array | Initializer) -> Array | Initializer:
        owner = None if isinstance(array, Initializer) else self._owners.get(id(array))
        # The id may be that of an array which was let go.
        return owner if owner is not None and owner.held is array else array

    def pack_all(self, workers: int) -> None:
        """Makes all lazy arrays, the largest first, with up to `workers` threads."""
        arrays = [lazy for lazy in list(self._arrays.values()) if not lazy.nbytes]
        arrays.sort(key=lambda lazy: -lazy.source_bytes)
        if workers <= 1 or len(arrays) <= 1:
            for lazy in arrays:
                lazy.get()
            return
        from concurrent.futures import ThreadPoolExecutor  # only several processors need it

        with ThreadPoolExecutor(min(workers, len(arrays)), thread_name_prefix="hetero-CPU-weights") as pool:
            list(pool.map(LazyArray.get, arrays))

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays that are held."""
        return sum(lazy.nbytes for lazy in list(self._arrays.values()))
