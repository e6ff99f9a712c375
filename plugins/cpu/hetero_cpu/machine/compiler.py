"""From a kernel's code to an address: object files of the installed wheel or of the private store, else LLVM for the processor at hand.

```text
name of a kernel ── entry of this name? ── yes ──────────────> object file ── link ──> address
      │ no                                                        │
      └──> emit ──> text ── digest of text and target in the wheel or the store? ── no ──> LLVM
```

An object file is stored under the digest of its text and target, so that it outlives changes of the code that emits the same. A small
entry leads from the kernel's name, and the code that emits it, to that digest, since emitting takes some 8 ms for each kernel. What is
compiled stays for the life of the process.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from importlib.util import find_spec
from typing import Any

import importlib_metadata
import numpy as np

import hetero_core
from hetero_core.blobs.store import STORE, name_entry, read_brought
from hetero_core.devices.processors import grants_flag
from hetero_core.errors import ConfigValueError

# Tables of an object file. Source: System V ABI, ELF-64.
_SECTION = np.dtype(
    {
        "names": ["kind", "flags", "offset", "size", "link", "about", "alignment"],
        "formats": ["<u4", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8"],
        "offsets": [4, 8, 24, 32, 40, 44, 48],
        "itemsize": 64,
    }
)
_SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")])
_RELOCATION = np.dtype([("offset", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_ALLOCATED = 2
_SYMBOLS, _RELOCATIONS = 2, 4
_ABSOLUTE_64, _RELATIVE_32, _CALL_32 = 1, 2, 4
# jmp *0(%rip), followed by the address: a function of the C library may be too far away for a call.
_JUMP = bytes((0xFF, 0x25, 0, 0, 0, 0))
_JUMP_BYTES = 16
_MAPPING_FAILED = ctypes.c_void_p(-1).value


def load_image(image: bytes, name: str) -> int:
    """Returns the address of the function `name` of an object file of LLVM for x86-64, mapped for the life of the process.

    The file is whole: the store compares its digest. Raises: RuntimeError for a reference of an unknown kind; OSError if the system
    gives no executable memory.
    """
    (begin,), (count,) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<H", image, 60)
    sections = np.frombuffer(image, _SECTION, count, begin)
    content = [image[int(own["offset"]) : int(own["offset"] + own["size"])] for own in sections]
    places, end = {}, 0
    for index in np.flatnonzero(sections["flags"] & _ALLOCATED).tolist():
        alignment = int(sections["alignment"][index]) or 1
        places[index] = -(-end // alignment) * alignment
        end = places[index] + len(content[index])
    (table,) = np.flatnonzero(sections["kind"] == _SYMBOLS).tolist()
    symbols, texts = np.frombuffer(content[table], _SYMBOL).tolist(), content[sections["link"][table]]
    names = [texts[symbol[0] : texts.index(b"\0", symbol[0])].decode() for symbol in symbols]
    homes = [symbol[3] for symbol in symbols]
    outside = sorted({own for own, home in zip(names, homes, strict=True) if own and not home})
    first_jump = -(-end // _JUMP_BYTES) * _JUMP_BYTES
    jumps = {own: first_jump + index * _JUMP_BYTES for index, own in enumerate(outside)}
    memory = bytearray(-(-(first_jump + len(outside) * _JUMP_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE)
    for index, place in places.items():
        memory[place : place + len(content[index])] = content[index]
    for own, place in jumps.items():
        target = ctypes.cast(getattr(_open_library(), own), ctypes.c_void_p).value or 0
        memory[place : place + _JUMP_BYTES] = (_JUMP + struct.pack("<Q", target)).ljust(_JUMP_BYTES, b"\0")
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base: int = _open_library().mmap(None, len(memory), access, flags, -1, 0)
    if base == _MAPPING_FAILED:
        raise OSError(ctypes.get_errno(), "no memory for machine code")
    targets = [
        base + (places.get(home, 0) + symbol[4] if home else jumps.get(own, 0))
        for symbol, own, home in zip(symbols, names, homes, strict=True)
    ]
    for index in np.flatnonzero(sections["kind"] == _RELOCATIONS).tolist():
        if (about := int(sections["about"][index])) in places:
            _relocate(memory, content[index], places[about], base, targets)
    ctypes.memmove(base, bytes(memory), len(memory))
    if _open_library().mprotect(base, len(memory), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "the system does not let machine code be executed")
    return targets[names.index(name)]


def _relocate(memory: bytearray, rows: bytes, place: int, base: int, targets: list[int]) -> None:
    for offset, kind, symbol, addend in np.frombuffer(rows, _RELOCATION).tolist():
        position, value = place + offset, targets[symbol] + addend
        if kind in (_RELATIVE_32, _CALL_32):
            struct.pack_into("<i", memory, position, value - (base + position))
        elif kind == _ABSOLUTE_64:
            struct.pack_into("<Q", memory, position, value)
        else:
            raise RuntimeError(
                f"the object file has a reference of kind {kind}; expected {_ABSOLUTE_64}, {_RELATIVE_32} or {_CALL_32}"
            )


@cache
def _open_library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def give_back_memory() -> None:
    """Gives memory that the C library holds free back to the system; takes some milliseconds, does nothing if it cannot."""
    trim = getattr(_open_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


logger = logging.getLogger(__name__)

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BROUGHT = os.path.join(PACKAGE, "kernels")
"""The folder of the object files that a wheel brings along (plugins/cpu/hatch_build.py); a checkout has none."""
_FLAGS_V3 = frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"})
FLAGS = {"x86-64-v4": _FLAGS_V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}, "x86-64-v3": _FLAGS_V3}
"""The flags, as Linux names them, of the levels of x86-64 that the wheel's kernels are for. Source: System V ABI, AMD64 supplement."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of machine code: void (int64 row, int64 chunk, int64 worker). `emit(name, width)` returns its Code, finished.

    `name` is unique for the code: all parameters are in it. Kernels of the same name are equal.
    """

    name: str
    emit: Callable[[str, int], Any]

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and other.name == self.name


def name_fields(own: Any) -> str:
    """Returns the fields of a dataclass, flags by their names, as a part of a kernel's name that no kernel of other fields has."""
    parts: list[str] = []
    for field in fields(own):
        value = getattr(own, field.name)
        if isinstance(value, bool):
            parts += [field.name] * value
        else:
            parts += [getattr(item, "name", str(item)) for item in (value if isinstance(value, tuple) else (value,))]
    return "_".join(parts)


def _is_known_machine() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


@cache
def find_width() -> int:
    """Returns the elements of the processor's float32 vectors: 16 with AVX-512, 8 with AVX2; 0 if no kernels are made."""
    if not (_is_known_machine() and find_spec("llvmlite")):
        return 0
    features = set(_describe_processor().split())
    if {"avx512f", "avx512vl"} <= features:
        return 16
    return 8 if {"avx2", "fma"} <= features else 0


# Linux gives AMX's registers to processes that ask for them. Source: Linux, Documentation/arch/x86/xstate.rst.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@cache
def find_byte_products() -> str:
    """Returns which products of bytes the processor has: "amx" (of matrices, and those of vectors), "vnni" (of vectors), "pairs" (of
    vectors, if the sum of two products fits into 16 bits, else of words), or "" without machine code."""
    if find_width() == 8:
        return "vnni" if "avx_vnni" in _describe_processor().split() else "pairs"
    return _find_products("avx512_vnni", "amx_int8", ("vnni", "amx")) or "pairs" * (find_width() > 0)


@cache
def find_half_products() -> str:
    """Returns which products of bfloat16 the processor has: "amx_bf16", "bf16" (of vectors), or ""."""
    return _find_products("avx512_bf16", "amx_bf16", ("bf16", "amx_bf16"))


def _find_products(of_vectors: str, of_matrices: str, names: tuple[str, str]) -> str:
    flags = set(_describe_processor().split())
    if find_width() != 16 or of_vectors not in flags:
        return ""
    return names["amx_tile" in flags and of_matrices in flags and _may_use_tiles()]


@cache
def _may_use_tiles() -> bool:
    """Asks for AMX's registers, and says whether the process has them."""
    return not _open_library().syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)


@cache
def _describe_processor() -> str:
    """Returns the lines of the first processor with its model and its flags."""
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
def find_level() -> str:
    """Returns the level for which a wheel has brought kernels that this processor can run; empty if there is none."""
    flags = set(_describe_processor().split())
    level = {16: "x86-64-v4", 8: "x86-64-v3"}.get(find_width(), "")
    return level if level and flags >= FLAGS[level] and os.path.isdir(BROUGHT) else ""


def name_brought(text: str, level: str) -> str:
    """Returns the name of the object file of a text, compiled for all processors of a level."""
    return name_entry("kernel", level, text)


class Compiler:
    """Safe for threads: two threads may compile or map the same kernel, the first result stays."""

    def __init__(self) -> None:
        self._addresses: dict[str, int] = {}

    def load_stored(self, kernel: Kernel) -> bool:
        """Loads a kernel from the wheel or the private store; returns whether it is there now."""
        # Without a wheel's kernels a new name is most likely a new text.
        return self._load_known(kernel) or (bool(find_level()) and self._load_text(kernel, _emit(kernel)))

    def compile(self, kernel: Kernel) -> int:
        """Returns the address of a kernel, compiled now if it is not yet; takes some 10 to 100 ms then."""
        self.compile_all([kernel])
        return self._addresses[kernel.name]

    def compile_all(self, kernels: Iterable[Kernel], before: Callable[[], None] = lambda: None) -> Any:
        """Compiles kernels; calls `before` before each, which may raise. Returns the result of a generator of kernels."""
        iterator = iter(kernels)
        while True:
            try:
                kernel = next(iterator)
            except StopIteration as stop:
                return stop.value
            before()
            if self._load_known(kernel):
                continue
            # The process starts while the kernel is emitted.
            self.expect()
            text = _emit(kernel)
            if not self._load_text(kernel, text):
                from hetero_cpu.machine.translator import TRANSLATOR  # subprocess, and LLVM if there can be no other process

                image, name = TRANSLATOR.translate(text, kernel.name), name_entry("kernel", _describe_target(), text)
                STORE.write(name, image)
                STORE.write(_name_lead(kernel), name.encode())
                self._link(kernel, image)

    def _load_known(self, kernel: Kernel) -> bool:
        """Loads a kernel by its name alone, if it is not there; returns whether it is there now."""
        if kernel.name in self._addresses:
            return True
        lead = STORE.read(_name_lead(kernel))
        return lead is not None and self._load_image(kernel, lead.decode("ascii", "replace"))

    def _load_text(self, kernel: Kernel, text: str) -> bool:
        names = [name_entry("kernel", _describe_target(), text)]
        if level := find_level():
            names.append(name_brought(text, level))
        for name in names:
            if self._load_image(kernel, name):
                STORE.write(_name_lead(kernel), name.encode())
                return True
        return False

    def _load_image(self, kernel: Kernel, name: str) -> bool:
        image = STORE.read(name)
        if image is None and find_level():
            image = read_brought(os.path.join(BROUGHT, name))
        if image is None:
            return False
        self._link(kernel, image)
        return True

    def expect(self) -> None:
        """Has the process that compiles started for kernels that are not known yet, unless a wheel may well have them."""
        if not find_level():
            from hetero_cpu.machine.translator import TRANSLATOR  # as above

            TRANSLATOR.prepare()

    def rest(self) -> None:
        """Ends the compiling process, if there is one, when nothing is left to be compiled."""
        from hetero_cpu.machine.translator import TRANSLATOR

        TRANSLATOR.rest()

    def _link(self, kernel: Kernel, image: bytes) -> None:
        self._addresses.setdefault(kernel.name, load_image(image, kernel.name))


def _emit(kernel: Kernel) -> str:
    text: str = kernel.emit(kernel.name, find_width()).take_text()
    return text


@cache
def find_llvmlite_version() -> str:
    """Returns the version that is installed; asked once in a process."""
    return importlib_metadata.version("llvmlite")


@cache
def describe_environment() -> str:
    """Returns a digest of all that kernels' names depend on: LLVM, the processor, and sizes and times of the source files."""
    transforms = os.path.join(os.path.dirname(hetero_core.__file__), "transforms")
    stamps = [stamp for folder in (PACKAGE, transforms) for stamp in _stamp_sources(folder)]
    return name_entry("environment", f"{_describe_target()} {find_byte_products()} {find_half_products()}", repr(stamps))


def _describe_target() -> str:
    return f"{find_llvmlite_version()} {_describe_processor()}"


def _stamp_sources(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith(".py"):
                yield entry.name, entry.stat().st_size, entry.stat().st_mtime_ns
            elif "." not in entry.name and not entry.name.startswith("__") and entry.is_dir():
                yield from _stamp_sources(entry.path)


def _name_lead(kernel: Kernel) -> str:
    """Returns the name of the entry that leads from a kernel's name to its object file."""
    return name_entry("name", describe_environment(), kernel.name)


NUMPY, JIT, AUTO = "NUMPY", "JIT", "AUTO"
KERNELS_KEY, KERNEL_CHOICES = "CPU_KERNELS", (AUTO, JIT, NUMPY)


def choose_kernels(choice: str, device: str) -> str:
    """Returns NUMPY, JIT (wait for machine code) or AUTO (the toolkit answers until it is compiled), as wished and possible.

    Raises: ConfigValueError for JIT if no machine code can be made.
    """
    if choice == NUMPY or find_width():
        return choice
    if choice == AUTO:
        return NUMPY
    raise ConfigValueError(
        f"configuration key {KERNELS_KEY} of device {device}: expected {AUTO} or {NUMPY}, got {JIT}, which needs {_find_obstacle()}"
    )


def describe_machine_code() -> str:
    """Returns in a few words which machine code is made here, or the missing requirement."""
    if not find_width():
        return f"no machine code, which needs {_find_obstacle()}"
    return f"machine code for {'AVX-512' if find_width() == 16 else 'AVX2'} by llvmlite {find_llvmlite_version()}"


def _find_obstacle() -> str:
    if _is_known_machine() and find_spec("llvmlite") is None:
        return "the package llvmlite, which hetero-cpu depends on here: pip install hetero-cpu"
    return "Linux on an x86-64 processor with AVX2"


COMPILER = Compiler()
"""The compiler of this process; all Cores share its kernels."""
