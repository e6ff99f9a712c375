"""Cards by CuPy, and the reason why CuPy cannot work on this machine. Beyond that probe this file has not run on a card yet.

CuPy is imported when the device is created. Its compiled kernels go to a folder that only the user can write to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from hetero_core.blobs.store import open_private_folder
from hetero_core.errors import DeviceUnavailableError

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
    reason = find_fault(cupy, lambda: _run_first_kernel(cupy))
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


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Facts about a card, known before the first run. `capability` is the compute capability, as "9.0"; `memory_bytes` all it has;
    `uuid` its driver's identifier, 32 hexadecimal digits, "" if unknown."""

    full_name: str
    capability: str
    memory_bytes: int
    uuid: str = ""


class CupyRuntime:
    """The cards that CuPy finds."""

    def __init__(self, cupy: Any) -> None:
        self.name = f"CuPy {cupy.__version__}"
        self._cards = tuple(CupyCard(cupy, index) for index in range(cupy.cuda.runtime.getDeviceCount()))

    def cards(self) -> tuple[CupyCard, ...]:
        """Returns the cards, always the same."""
        return self._cards


class CupyCard:
    """One card, with the arrays that CuPy keeps on it. Safe for threads.

    All further code of the plugin knows a card through these methods only, so that a card of make-believe can take its place in tests.
    `memory` is the name of its memory in a ValueSpec, `xp` the namespace of arrays, which never reads from the card by itself.
    """

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
            # HIP has no UUID.
            bytes(properties.get("uuid", b"")).hex(),
        )

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """Returns a copy on the host; the array is complete by then."""
        with self.xp.cuda.Device(self._index):
            copied: np.ndarray[Any, Any] = array.get()
        return copied

    def from_host(self, array: Any) -> Any:
        """Returns a copy on the card; an array of another library on the card is adopted by DLPack."""
        with self.xp.cuda.Device(self._index):
            if isinstance(array, np.ndarray):
                result = self.xp.empty(array.shape, array.dtype)
                self.fill(result, array)
                return result
            adopted = self.xp.from_dlpack(array)
            self.xp.cuda.Device(self._index).synchronize()
            return adopted if adopted.flags.c_contiguous else self.xp.ascontiguousarray(adopted)

    def fill(self, target: Any, array: np.ndarray[Any, Any]) -> None:
        """Copies an array into an array of its size, and waits, since runs have streams of their own."""
        if array.nbytes:
            with self.xp.cuda.Device(self._index):
                target.set(np.ascontiguousarray(array).reshape(array.shape))
                self.xp.cuda.get_current_stream().synchronize()

    def owns(self, value: Any) -> bool:
        """Says whether a value is an array of CuPy on this card."""
        return isinstance(value, self.xp.ndarray) and value.device.id == self._index

    def find_nonzero(self, flags: Any) -> Any:
        """Returns the positions of true elements; CuPy reads their number and waits for it."""
        return self.xp.nonzero(flags)[0]

    def create_stream(self) -> Any:
        """Returns a stream that does not wait for the default stream."""
        with self.xp.cuda.Device(self._index):
            return self.xp.cuda.Stream(non_blocking=True)

    @contextmanager
    def use(self, stream: Any) -> Iterator[None]:
        """Makes card and stream the current ones of this thread, and waits for the stream at the end."""
        with self.xp.cuda.Device(self._index), stream:
            try:
                yield
            finally:
                stream.synchronize()

    def read_memory(self) -> tuple[int, int]:
        """Returns the available bytes (free in the driver plus reserved by the pool) and the total bytes."""
        with self.xp.cuda.Device(self._index):
            free, total = self.xp.cuda.runtime.memGetInfo()
            return int(free) + int(self.xp.get_default_memory_pool().free_bytes()), int(total)

    def read_utilisation(self) -> int | None:
        """Asks NVIDIA's management library if it is installed."""
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


def read_utilisation(bus_id: str) -> int | None:
    """Returns the recent load, in per cent, of the card at a bus address ("0000:3B:00.0"); None if unknown."""
    if find_spec("pynvml") is None:
        return None
    library = import_module("pynvml")
    try:
        # The library counts: each opening needs a closing.
        library.nvmlInit()
        try:
            return int(library.nvmlDeviceGetUtilizationRates(library.nvmlDeviceGetHandleByPciBusId(bus_id.encode())).gpu)
        finally:
            library.nvmlShutdown()
    except library.NVMLError:
        return None


INSTALL = "pip install 'hetero-cupy[cuda12]' for a driver of CUDA 12, 'hetero-cupy[cuda13]' for one of CUDA 13 or later"


def find_fault(cupy: Any, run_kernel: Callable[[], None]) -> str | None:
    """Returns the first missing part and its remedy; None if nothing is missing. Versions are as CUDA numbers them: 12090 is 12.9."""
    runtime = cupy.cuda.runtime
    driver, version = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if not driver:
        return (
            "CuPy finds no NVIDIA driver; install the driver of the card, or, in a container, start it with access to the card "
            "(docker run --gpus all)"
        )
    if driver // 1000 < version // 1000:
        return (
            f"the driver is too old: it is for CUDA {_show(driver)} and this CuPy for CUDA {_show(version)}; install a newer "
            f"driver, or the CuPy that fits: {INSTALL}"
        )
    calls = (
        (runtime.getDeviceCount, "there is a driver and no card{}; look at nvidia-smi, and at the variable CUDA_VISIBLE_DEVICES"),
        (
            cupy.cuda.nvrtc.getVersion,
            "NVRTC, with which CuPy compiles kernels, cannot be loaded{}; "
            f"pip install nvidia-cuda-nvrtc-cu{version // 1000} for CUDA 12, nvidia-cuda-nvrtc for later ones",
        ),
        (run_kernel, f"the card did not run a first kernel{{}}; look at nvidia-smi, and whether the CuPy fits: {INSTALL}"),
    )
    for call, reason in calls:
        try:
            if call() == 0:
                return reason.format("")
        except Exception as error:  # noqa: BLE001  # whatever it is becomes a part of the reason that the user reads
            return reason.format(f" ({type(error).__name__}: {' '.join(str(error).split())[:300]})")
    return None


def explain_import(error: ImportError) -> str:
    """Returns why CuPy cannot be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
        return f"CuPy is not installed; {INSTALL}"
    text = " ".join(str(error).split())[:300]
    return f"CuPy is installed and cannot be imported ({text}); uninstall every distribution of it, and then {INSTALL}"


def _show(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
