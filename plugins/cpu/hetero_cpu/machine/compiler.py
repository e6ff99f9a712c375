"""From a kernel's code to an address: object files that are shipped or in the user's private cache, LLVM for the processor at hand.

A kernel is found by its name, which holds all of its parameters. What is compiled stays for the life of the process.
"""

from __future__ import annotations

import logging
import platform
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from hetero_core.blobs.private_cache import find_private_folder, read_private_file, write_private_file
from hetero_core.devices.installed import find_version
from hetero_core.devices.processors import grants_flag
from hetero_core.errors import HeteroError
from hetero_core.hashing import sha256
from hetero_core.runtime.executors import call_in_child
from hetero_cpu.machine.footprints import Numbers, Spans
from hetero_cpu.machine.image import ImageError, load_image
from hetero_cpu.machine.shipped import ShippedKernels, open_shipped
from hetero_cpu.machine.sources import digest_sources

logger = logging.getLogger(__name__)

FOLDER = "cpu-kernels"
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of machine code: void (int64 row, int64 chunk, int64 worker). `emit(name, width)` returns its Code, finished.

    `name`: unique for what `emit` does, with all parameters in it. Two kernels of one name are the same.
    """

    name: str
    emit: Callable[[str, int], Any]
    parameters: tuple[str, ...] = ()
    """The names of the numbers of a call, in order, as far as `writes` asks for them."""
    writes: Callable[[Numbers, int], Spans] | None = None
    """Which bytes each chunk of a call writes, by the numbers of the call and the elements of a vector; None where nothing tells."""

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and other.name == self.name


@cache
def find_width() -> int:
    """Returns the elements of the processor's float32 vectors: 16 with AVX-512, 8 with AVX2; 0 where no kernels are made."""
    if (
        platform.machine().lower() not in ("x86_64", "amd64")
        or not sys.platform.startswith("linux")
        or find_spec("llvmlite") is None
    ):
        return 0
    features = set(_describe_processor().split())
    if {"avx512f", "avx512vl"} <= features:
        return 16
    return 8 if {"avx2", "fma"} <= features else 0


@cache
def _describe_processor() -> str:
    """Returns the lines of the first processor that say which it is, and what it and the system can do."""
    fields = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags"}
    lines = []
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.partition(":")[0].strip() in fields:
                    lines.append(" ".join(filter(grants_flag, line.split())) + "\n")
                if not line.strip():
                    break
    except OSError as error:
        logger.info("no machine code is made: the processor is not known: %s", error)
    return "".join(lines)


@cache
def find_shipped() -> ShippedKernels | None:
    """Returns the kernels that are shipped for this processor; None where there are none."""
    return open_shipped(find_width(), frozenset(_describe_processor().split()))


class Compiler:
    """Safe for threads: two may compile the same kernel, one result stays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: dict[str, int] = {}

    def renew_lock(self) -> None:
        """Makes a forked child free of a lock that a thread of its parent may hold; what is compiled is mapped there, too."""
        self._lock = threading.Lock()

    def find(self, kernel: Kernel) -> int | None:
        """Returns the address of a kernel that is compiled already; None for another one."""
        return self._addresses.get(kernel.name)

    def load_stored(self, kernels: Iterable[Kernel]) -> bool:
        """Loads what is shipped of these kernels or in the private cache; returns whether all of them are there now."""
        missing = [
            kernel for kernel in dict.fromkeys(kernels) if kernel.name not in self._addresses and not self._load_stored(kernel)
        ]
        return not missing

    def compile(self, kernel: Kernel) -> int:
        """Returns the address of a kernel, compiled now where it is not yet; takes some 10 to 100 ms then."""
        if kernel.name not in self._addresses and not self._load_stored(kernel):
            self._finish(kernel, self._translate(kernel))
        return self._addresses[kernel.name]

    def compile_all(self, kernels: Iterable[Kernel], before: Callable[[], None] = lambda: None) -> None:
        """Compiles kernels, each emitted while LLVM is at the one before; calls `before` before each, which may raise.

        LLVM is at rest when this returns or raises. To emit takes a tenth of the time, more where other threads run Python.
        """
        translation: _Translation | None = None
        try:
            for kernel in kernels:
                before()
                if kernel.name in self._addresses or self._load_stored(kernel):
                    continue
                text = self._emit(kernel)
                if translation is not None:
                    translation.wait()
                translation = _Translation(kernel, text, self._finish)
                translation.start()
        finally:
            if translation is not None:
                translation.wait()

    def _finish(self, kernel: Kernel, image: bytes) -> None:
        self._write(kernel, image)
        self._link(kernel, image)

    def _load_stored(self, kernel: Kernel) -> bool:
        shipped = find_shipped()
        image = None if shipped is None else shipped.read(kernel.name)
        if image is None:
            image = self._read(kernel)
        if image is None:
            return False
        try:
            self._link(kernel, image)
        except ImageError as error:
            logger.warning("a stored kernel cannot be used and is compiled again: %s", error)
            return False
        return True

    def _translate(self, kernel: Kernel) -> bytes:
        return _translate_text(self._emit(kernel), kernel)

    def _emit(self, kernel: Kernel) -> str:
        # The process starts while the kernel is emitted.
        self.prepare()
        text: str = kernel.emit(kernel.name, find_width()).take_text()
        return text

    def expect(self) -> None:
        """Has the process that compiles started for kernels that are not known yet, unless they may well be shipped."""
        if find_shipped() is None:
            self.prepare()

    def prepare(self) -> None:
        """Has the process that compiles started, where there is none, and does not wait for it."""
        from hetero_cpu.machine.translator import TRANSLATOR  # subprocess, and LLVM where there can be no other process

        TRANSLATOR.prepare()

    def rest(self) -> None:
        """Ends the process that compiles, where there is one; for when nothing is left to be compiled."""
        from hetero_cpu.machine.translator import TRANSLATOR

        TRANSLATOR.rest()

    def _link(self, kernel: Kernel, image: bytes) -> None:
        with self._lock:
            if kernel.name not in self._addresses:
                self._addresses[kernel.name] = load_image(image, kernel.name)

    def _read(self, kernel: Kernel) -> bytes | None:
        path = _find_path(kernel)
        if path is None:
            return None
        try:
            stored = read_private_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("a stored kernel is not used and is compiled again: %s", error.strerror or error)
            return None
        digest, image = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
        if sha256(image).digest() != digest:
            logger.warning("'%s' is damaged; the kernel is compiled again", path)
            return None
        return image

    def _write(self, kernel: Kernel, image: bytes) -> None:
        path = _find_path(kernel)
        if path is None:
            return
        try:
            write_private_file(path, sha256(image).digest() + image)
        except OSError as error:
            # The kernel works; the next process compiles it again.
            logger.warning("cannot keep kernel %s: %s", kernel.name, error)


def _translate_text(text: str, kernel: Kernel) -> bytes:
    from hetero_cpu.machine.translator import TRANSLATOR

    return TRANSLATOR.translate(text, kernel.name)


class _Translation(threading.Thread):
    """LLVM at one kernel."""

    def __init__(self, kernel: Kernel, text: str, finish: Callable[[Kernel, bytes], None]) -> None:
        super().__init__(name="hetero-cpu-compiler", daemon=True)
        self._kernel, self._text, self._finish = kernel, text, finish
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._finish(self._kernel, _translate_text(self._text, self._kernel))
        except Exception as error:  # noqa: BLE001  # raised by `wait`
            self._error = error

    def wait(self) -> None:
        """Waits until the kernel is there. Raises: what has stopped it."""
        self.join()
        if self._error is not None:
            raise self._error


@cache
def find_llvmlite_version() -> str:
    """Returns the version that is installed; asked once in a process."""
    return find_version("llvmlite")


@cache
def describe_environment() -> str:
    """Returns a digest of all that machine code depends on beside a kernel's name: LLVM, the processor, and the code that emits."""
    parts = (find_llvmlite_version(), _describe_processor(), digest_sources())
    return sha256("".join(parts).encode()).hexdigest()[:16]


@cache
def _open_folder() -> str | None:
    try:
        return find_private_folder(FOLDER)
    except HeteroError as error:
        logger.warning("compiled kernels are not kept: %s", error)
        return None


def _find_path(kernel: Kernel) -> str | None:
    folder = _open_folder()
    if folder is None:
        return None
    name = sha256(f"{describe_environment()}/{kernel.name}".encode()).hexdigest()[:40]
    return f"{folder}/{name}.o"


COMPILER = Compiler()
"""The compiler of this process; what it has compiled is shared by all Cores."""

call_in_child(COMPILER.renew_lock)
