"""The seam implemented with CuPy. Nothing of this file has run on a card so far: docs/explanation/gpu-device.md says what was.

CuPy is imported when the device is created. Kernels that it compiles go to a folder that only the user can write to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hetero_core.blobs.store import open_private_folder
from hetero_core.errors import DeviceUnavailableError
from hetero_cupy.cupy_copies import CupyCopyEngine
from hetero_cupy.cupy_gemm import multiply_by_cublas
from hetero_cupy.probe import explain_facts, explain_import, find_facts
from hetero_cupy.runtime import CardFacts, Launch
from hetero_cupy.staging import Copies
from hetero_cupy.utilisation import read_utilisation

_CACHE_VARIABLE = "CUPY_CACHE_DIR"


def open_cupy(name: str) -> CupyRuntime:
    """Returns CuPy with its cards, after a kernel has run on each of them.

    Raises: DeviceUnavailableError that says what is missing, and the cure; PrivateFolderError.
    """
    if not os.environ.get(_CACHE_VARIABLE):
        os.environ[_CACHE_VARIABLE] = str(open_private_folder("cupy-kernels"))
    try:
        import cupy  # heavy, and not a dependency: which distribution fits depends on the driver
    except ImportError as error:
        raise DeviceUnavailableError(f"device {name} is not available: {explain_import(error)}") from error
    reason = explain_facts(find_facts(cupy, lambda: _run_first_kernel(cupy)))
    if reason is not None:
        raise DeviceUnavailableError(f"device {name} is not available: {reason}")
    return CupyRuntime(cupy)


def _run_first_kernel(cupy: Any) -> None:
    double = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x + x", "hetero_first_kernel")
    for index in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(index):
            doubled = double(cupy.arange(4, dtype=np.float32)).get().tolist()
        if doubled != [0.0, 2.0, 4.0, 6.0]:
            raise RuntimeError(f"card {index} answered {doubled}, expected [0.0, 2.0, 4.0, 6.0]")


class CupyRuntime:
    """The cards that CuPy finds."""

    def __init__(self, cupy: Any) -> None:
        self.version = str(cupy.__version__)
        self.name = f"CuPy {self.version}"
        self._cards = tuple(CupyCard(cupy, index) for index in range(cupy.cuda.runtime.getDeviceCount()))

    def cards(self) -> tuple[CupyCard, ...]:
        """Returns the cards, always the same."""
        return self._cards


class CupyCard:
    """One card, with the arrays that CuPy keeps on it."""

    def __init__(self, cupy: Any, index: int) -> None:
        self.xp = cupy
        self.memory = f"cuda:{index}"
        self._index = index
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        full_name = properties["name"]
        self.facts = CardFacts(
            full_name.decode() if isinstance(full_name, bytes) else str(full_name),
            f"{properties['major']}.{properties['minor']}",
            int(properties["totalGlobalMem"]),
            # HIP has none.
            bytes(properties.get("uuid", b"")).hex(),
        )
        with cupy.cuda.Device(index):
            self._copies = Copies(CupyCopyEngine(cupy))

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """Returns a copy on the host, by way of page-locked memory."""
        with self.xp.cuda.Device(self._index):
            result = np.empty(array.shape, array.dtype)
            if result.nbytes:
                laid = array if array.flags.c_contiguous else self.xp.ascontiguousarray(array)
                self._copies.read(int(laid.data.ptr), result, current=self.xp.cuda.get_current_stream())
        return result

    def from_host(self, array: Any) -> Any:
        """Returns a copy on the card; what lies there already, of another library, is taken as it is by DLPack."""
        with self.xp.cuda.Device(self._index):
            if not isinstance(array, np.ndarray):
                return self._adopt(array)
            result = self.xp.empty(array.shape, array.dtype)
            self.fill(result, array)
        return result

    def fill(self, target: Any, array: np.ndarray[Any, Any]) -> None:
        """Copies an array into one of its size."""
        if array.nbytes:
            with self.xp.cuda.Device(self._index):
                self._copies.write(np.ascontiguousarray(array), int(target.data.ptr), current=self.xp.cuda.get_current_stream())

    def _adopt(self, array: Any) -> Any:
        adopted = self.xp.from_dlpack(array)
        self.xp.cuda.Device(self._index).synchronize()
        return adopted if adopted.flags.c_contiguous else self.xp.ascontiguousarray(adopted)

    def owns(self, value: Any) -> bool:
        """Says whether a value is an array of CuPy on this card."""
        return isinstance(value, self.xp.ndarray) and value.device.id == self._index

    def find_nonzero(self, flags: Any) -> Any:
        """Returns the positions of what is true; CuPy reads their number and waits for it."""
        return self.xp.nonzero(flags)[0]

    def create_stream(self) -> Any:
        """Returns a stream that does not wait for the default one."""
        with self.xp.cuda.Device(self._index):
            return self.xp.cuda.Stream(non_blocking=True)

    @contextmanager
    def use(self, stream: Any) -> Iterator[None]:
        """Makes card and stream this thread's own, behind the inputs that are under way, and waits at the end."""
        with self.xp.cuda.Device(self._index), stream:
            self._copies.join(stream)
            try:
                yield
            finally:
                stream.synchronize()

    def compile_kernel(self, name: str, source: str) -> Launch:
        """Returns CuPy's kernel of a module, which is compiled when it is first called."""
        kernel = self.xp.RawKernel(source, name)
        return lambda blocks, threads, arguments: kernel((blocks,), (threads,), arguments)

    def multiply(self, a: Any, b: Any, *, uses_tf32: bool) -> Any:
        """Returns the product by cuBLAS."""
        from cupy_backends.cuda.libs import cublas  # loads the library

        return multiply_by_cublas(self.xp, cublas, a=a, b=b, uses_tf32=uses_tf32)

    def read_memory(self) -> tuple[int, int]:
        """Returns the available bytes (free in the driver plus reserved by the pool) and the total bytes."""
        with self.xp.cuda.Device(self._index):
            free, total = self.xp.cuda.runtime.memGetInfo()
            return int(free) + int(self.xp.get_default_memory_pool().free_bytes()), int(total)

    def read_utilisation(self) -> int | None:
        """Asks NVIDIA's management library, where it is."""
        return read_utilisation(self.xp.cuda.Device(self._index).pci_bus_id)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Knows the error of CuPy's pool, and the driver's own."""
        return isinstance(error, self.xp.cuda.memory.OutOfMemoryError) or "cudaErrorMemoryAllocation" in str(error)

    def wanted_bytes(self, error: BaseException) -> int | None:
        """Returns the first number of "Out of memory allocating 1,024 bytes (...)", None if the text has another form."""
        words = str(error).replace(",", "").split("allocating", 1)[-1].split()
        return int(words[0]) if words and words[0].isdigit() else None

    def free_unused(self) -> None:
        """Gives the pools' free blocks back to the driver."""
        with self.xp.cuda.Device(self._index):
            self.xp.get_default_memory_pool().free_all_blocks()
            self.xp.get_default_pinned_memory_pool().free_all_blocks()
