"""Object files in executable memory: what a linker does, for the few kinds of references that kernels have.

A kernel is code and constants beside it, and calls of the C library at most. Constants are mapped read-only and code executable;
nothing is ever writable and executable, and nothing is unmapped: helpers may be in it until the process ends. With this, a process whose
kernels are all stored needs no LLVM. Source: System V ABI, AMD64 supplement, 4.4 (relocation).
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

_ALLOCATED, _EXECUTABLE, _WRITABLE = 2, 4, 1
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_ABSOLUTE_64, _RELATIVE_32, _CALL_32 = 1, 2, 4
_ABSOLUTE_SYMBOL = 0xFFF1
# jmp *0(%rip), followed by the address: a function of the C library may be too far away for a call.
_JUMP = bytes((0xFF, 0x25, 0, 0, 0, 0))
_JUMP_BYTES = 16
_MAPPING_FAILED = ctypes.c_void_p(-1).value


class ImageError(Exception):
    """An object file that has what is not expected of a kernel."""


@dataclass(frozen=True, slots=True)
class _ElfSection:
    name: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    about: int
    alignment: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int


def load_image(image: bytes, name: str) -> int:
    """Returns the address of the function `name` of an object file, mapped for the life of the process.

    The file is whole: the store compares its digest. Raises: ImageError; OSError if the system gives no executable memory.
    """
    sections = _read_sections(image)
    places, code_begin, end = _place_sections(sections)
    symbols = _read_symbols(image, sections)
    outside = sorted({symbol.name for symbol in symbols if symbol.section == 0 and symbol.name})
    jumps = {symbol: end + position * _JUMP_BYTES for position, symbol in enumerate(outside)}
    size = -(-max(end + len(outside) * _JUMP_BYTES, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = bytearray(size)
    for index, place in places.items():
        section = sections[index]
        if section.kind != _NO_BITS:
            memory[place : place + section.size] = _cut(image, section)
    for symbol, place in jumps.items():
        memory[place : place + _JUMP_BYTES] = (_JUMP + struct.pack("<Q", _find_outside(symbol))).ljust(_JUMP_BYTES, b"\0")
    base = _map_memory(size)
    targets = [_find_target(symbol, places, jumps, base) for symbol in symbols]
    for section in sections:
        if section.kind == _RELOCATIONS and section.about in places:
            _relocate(memory, _cut(image, section), places[section.about], base, targets)
    entry = next((target for symbol, target in zip(symbols, targets, strict=True) if symbol.name == name and symbol.section), None)
    if entry is None:
        raise ImageError(f"the object file of kernel {name} has no function of that name")
    ctypes.memmove(base, bytes(memory), size)
    if code_begin:
        _protect(base, code_begin, mmap.PROT_READ)
    _protect(base + code_begin, size - code_begin, mmap.PROT_READ | mmap.PROT_EXEC)
    return entry


def _cut(image: bytes, section: _ElfSection) -> bytes:
    return image[section.offset : section.offset + section.size]


def _read_sections(image: bytes) -> list[_ElfSection]:
    # 64 bits, little-endian, relocatable, x86-64.
    if image[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", image, 16) != (1, 62):
        raise ImageError("this is no object file for x86-64")
    (begin,), (row, count, _) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<HHH", image, 58)
    sections = []
    for index in range(count):
        name, kind, flags, _, offset, size, link, about, alignment, _ = struct.unpack_from(
            "<IIQQQQIIQQ", image, begin + index * row
        )
        if flags & _ALLOCATED and flags & _WRITABLE:
            raise ImageError("the object file has variables; kernels have none")
        sections.append(_ElfSection(name, kind, flags, offset, size, link, about, alignment))
    return sections


def _place_sections(sections: list[_ElfSection]) -> tuple[dict[int, int], int, int]:
    """Returns the offset of each section that is loaded, where code begins, and the end. Constants come first, code on pages of its own."""
    places: dict[int, int] = {}
    end = code_begin = 0
    for is_code in (False, True):
        if is_code:
            end = code_begin = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        for index, section in enumerate(sections):
            if section.flags & _ALLOCATED and bool(section.flags & _EXECUTABLE) == is_code:
                alignment = max(section.alignment, 1)
                if alignment > mmap.PAGESIZE:
                    raise ImageError(f"the object file has a section aligned to {alignment} bytes; expected at most a page")
                end = places[index] = -(-end // alignment) * alignment
                end += section.size
    return places, code_begin, -(-end // _JUMP_BYTES) * _JUMP_BYTES


def _read_symbols(image: bytes, sections: list[_ElfSection]) -> list[_Symbol]:
    symbols = []
    for table in sections:
        if table.kind != _SYMBOLS:
            continue
        names = sections[table.link]
        texts = _cut(image, names)
        for name, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", _cut(image, table)):
            symbols.append(_Symbol(texts[name : texts.index(b"\0", name)].decode(), section, value))
    return symbols


def _find_target(symbol: _Symbol, places: dict[int, int], jumps: dict[str, int], base: int) -> int:
    if symbol.section == 0:
        return base + jumps[symbol.name] if symbol.name else 0
    if symbol.section == _ABSOLUTE_SYMBOL:
        return symbol.value
    return base + places[symbol.section] + symbol.value if symbol.section in places else 0


def _relocate(memory: bytearray, rows: bytes, place: int, base: int, targets: list[int]) -> None:
    for offset, kind, symbol, addend in struct.iter_unpack("<QIIq", rows):
        position = place + offset
        value = targets[symbol] + addend
        if kind in (_RELATIVE_32, _CALL_32):
            struct.pack_into("<i", memory, position, value - (base + position))
        elif kind == _ABSOLUTE_64:
            struct.pack_into("<Q", memory, position, value)
        else:
            raise ImageError(
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


def _find_outside(name: str) -> int:
    try:
        function = getattr(_open_library(), name)
    except AttributeError as error:
        raise ImageError(f"the C library has no function '{name}'") from error
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _map_memory(size: int) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _open_library().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address == _MAPPING_FAILED:
        raise OSError(ctypes.get_errno(), "no memory for machine code")
    return int(address)


def _protect(begin: int, size: int, rights: int) -> None:
    if _open_library().mprotect(begin, size, rights):
        raise OSError(ctypes.get_errno(), "the system does not let machine code be executed")
