"""Pointers to the pixels of a tile, each of which an instruction reaches without arithmetic: that would compete with the products."""

from __future__ import annotations

from hetero_cpu.machine.code import Code
from hetero_cpu.machine.terms import Number

# A pointer to pixel 0 or 9, plus 0, 1, 2, 4 or 8 times a register with a multiple of the stride: (pointer, multiple, factor).
_PIXELS_OF_POINTER = 9
_REACHES = {
    0: (0, 1, 0), 1: (0, 1, 1), 2: (0, 1, 2), 3: (0, 3, 1), 4: (0, 1, 4), 5: (0, 5, 1), 6: (0, 3, 2), 7: (0, 7, 1), 8: (0, 1, 8),
    9: (1, 1, 0), 10: (0, 5, 2), 11: (1, 1, 2), 12: (0, 3, 4), 13: (1, 1, 4), 14: (0, 7, 2),
}  # fmt: skip


class PixelPointers:
    """The addresses of a tile's pixels, at most 15 at one stride; `begin` has to be called before the others."""

    def __init__(self, code: Code, stride: Number, pixels: int) -> None:
        self._code, self._stride, self._pixels = code, stride, pixels
        multiples = sorted({multiple for multiple, factor in (_REACHES[m][1:] for m in range(pixels)) if factor})
        # LLVM would make pointers of its own out of what it knows about them, and add to each of them in every step.
        self._multiples = {multiple: code.hide(stride * multiple) for multiple in multiples}

    def begin(self, start: Number) -> None:
        """Sets the address of the first pixel."""
        firsts = range(0, self._pixels, _PIXELS_OF_POINTER)
        self._pointers = [self._code.variable(self._code.hide(start + self._stride * first)) for first in firsts]

    def read(self) -> list[Number]:
        """Returns the pointers as they are here."""
        return [pointer.get() for pointer in self._pointers]

    def find(self, bases: list[Number], pixel: int) -> Number:
        """Returns the address of a pixel, by pointers that were read."""
        pointer, multiple, factor = _REACHES[pixel]
        return bases[pointer] + self._multiples[multiple] * factor if factor else bases[pointer]

    def move(self, bases: list[Number], amount: int) -> None:
        """Sets all pointers to `amount` bytes behind those that were read."""
        for pointer, base in zip(self._pointers, bases, strict=True):
            pointer.set(self._code.hide(base + amount))
