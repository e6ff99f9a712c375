"""The values that a kernel computes with: numbers, conditions, masks, and vectors of float32, as terms of the function in the making.

Operators on terms emit instructions into their `Code`. Both operands have the same width, or the second is a Python number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from hetero_cpu.machine import llvm as ir

if TYPE_CHECKING:
    from hetero_cpu.machine.code import Code


_Chosen = TypeVar("_Chosen", bound="Term")


class Term:
    """A value of the function under construction. `code` emits the instructions of operators."""

    __slots__ = ("code", "value")

    def __init__(self, code: Code, value: Any) -> None:
        self.code, self.value = code, value

    def convert(self, operation: str, element: ir.Type, kind: type[_Chosen]) -> _Chosen:
        """Returns it as another kind of term with elements of another type, by an instruction such as "bitcast" or "sitofp"."""
        target = ir.widen_type(element, self.value.type.count)
        return kind(self.code, self.code.builder.convert(operation, self.value, target))


class Mask(Term):
    """A condition: a truth value, or one for each element of a vector."""

    __slots__ = ()

    def __and__(self, other: Mask) -> Mask:
        return Mask(self.code, self.code.builder.compute("and", self.value, other.value))

    def __or__(self, other: Mask) -> Mask:
        return Mask(self.code, self.code.builder.compute("or", self.value, other.value))

    def choose(self, yes: _Chosen, no: _Chosen) -> _Chosen:
        """Returns the first value if the condition holds, else the second, for each element; of a scalar, values of any kind."""
        return type(yes)(self.code, self.code.builder.select(self.value, yes.value, no.value))


class _Arithmetic(Term):
    """A term with sums, products and comparisons, by the names of LLVM's instructions."""

    __slots__ = ()
    _ADD, _SUBTRACT, _MULTIPLY, _ORDER, _EQUAL = "add", "sub", "mul", "icmp s", "icmp eq"

    def constant(self, value: float) -> Self:
        """Returns a constant of the same type."""
        return type(self)(self.code, ir.write_integer(self.value.type, int(value)))

    def to_floats(self) -> Floats:
        """Returns whole numbers as float32, rounded to nearest, ties to even."""
        return self.convert("sitofp", ir.FLOAT, Floats)

    def _like(self, other: Self | float) -> Self:
        return other if isinstance(other, type(self)) else self.constant(other)  # type: ignore[arg-type]  # a number

    def compute(self, name: str, other: Self | float, *, turned: bool = False) -> Self:
        """Returns the result of an instruction such as "shl" on this and another term, `turned` of the other and this."""
        left, right = self.value, self._like(other).value
        if turned:
            left, right = right, left
        return type(self)(self.code, self.code.builder.compute(name, left, right))

    def __add__(self, other: Self | float) -> Self:
        return self.compute(self._ADD, other)

    __radd__ = __add__

    def __sub__(self, other: Self | float) -> Self:
        return self.compute(self._SUBTRACT, other)

    def __rsub__(self, other: float) -> Self:
        return self.compute(self._SUBTRACT, other, turned=True)

    def __mul__(self, other: Self | float) -> Self:
        return self.compute(self._MULTIPLY, other)

    __rmul__ = __mul__

    def _compare(self, predicate: str, other: Self | float) -> Mask:
        return Mask(self.code, self.code.builder.compare(predicate, self.value, self._like(other).value))

    def __lt__(self, other: Self | float) -> Mask:
        return self._compare(f"{self._ORDER}lt", other)

    def __le__(self, other: Self | float) -> Mask:
        return self._compare(f"{self._ORDER}le", other)

    def __gt__(self, other: Self | float) -> Mask:
        return self._compare(f"{self._ORDER}gt", other)

    def __ge__(self, other: Self | float) -> Mask:
        return self._compare(f"{self._ORDER}ge", other)

    def equals(self, other: Self | float) -> Mask:
        """Returns whether both are the same number; a NaN equals nothing."""
        return self._compare(self._EQUAL, other)

    def at_most(self, high: Self | float) -> Self:
        """Returns min(self, high); a NaN of self stays, as in ONNX's Relu and Clip."""
        return (self > high).choose(self._like(high), self)

    def at_least(self, low: Self | float) -> Self:
        """Returns max(self, low); a NaN of self stays."""
        return (self < low).choose(self._like(low), self)


class Number(_Arithmetic):
    """An integer of 64 bits: a size, a count, an address; or a vector of elements."""

    __slots__ = ()

    def __add__(self, other: Number | float) -> Number:
        return self if isinstance(other, int) and other == 0 else super().__add__(other)

    __radd__ = __add__

    def __mul__(self, other: Number | float) -> Number:
        return self if isinstance(other, int) and other == 1 else super().__mul__(other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Number | int) -> Number:
        """The quotient of two numbers that are not negative."""
        return self.compute("udiv", other)

    def __mod__(self, other: Number | int) -> Number:
        """The remainder of two numbers that are not negative."""
        return self.compute("urem", other)


class Integers(_Arithmetic):
    """A vector of int32 as long as one of float32. Sums and products keep the lower 32 bits."""

    __slots__ = ()


class Floats(_Arithmetic):
    """A float32 or a vector of them, or of float64; both operands of an operator have the same width, or the second is a Python number."""

    __slots__ = ()
    _ADD, _SUBTRACT, _MULTIPLY, _ORDER, _EQUAL = "fadd", "fsub", "fmul", "fcmp o", "fcmp oeq"

    @property
    def width(self) -> int:
        """The number of elements; 1 for a scalar."""
        width: int = self.value.type.count
        return width

    def constant(self, value: float) -> Floats:
        """Returns a constant of the same type."""
        rounded = value if self.value.type.element is ir.DOUBLE else float(np.float32(value))
        return Floats(self.code, ir.write_float(self.value.type, rounded))

    def __truediv__(self, other: Floats | float) -> Floats:
        return self.compute("fdiv", other)

    def __rtruediv__(self, other: float) -> Floats:
        return self.compute("fdiv", other, turned=True)

    def __neg__(self) -> Floats:
        return Floats(self.code, self.code.builder.give(self.value.type, f"fneg {self.value.type.text} {self.value.text}"))

    def is_nan(self) -> Mask:
        """Returns the mask of the elements that are not a number."""
        return self._compare("fcmp uno", self)

    def shuffle(self, other: Floats, positions: Sequence[int]) -> Floats:
        """Returns elements of self followed by `other`, by position."""
        return Floats(self.code, self.code.builder.shuffle(self.value, other.value, positions))

    def halve(self, combine: Any) -> Floats:
        """Returns `combine(first half, second half)`, a scalar of two elements."""
        half = self.width // 2
        halves = self.shuffle(self, range(half)), self.shuffle(self, range(half, 2 * half))
        combined: Floats = combine(*halves)
        return combined if half > 1 else Floats(self.code, self.code.builder.extract_element(combined.value, 0))

    def fold(self, combine: Any) -> Floats:
        """Returns all elements combined by `combine(half, half)`, halves first."""
        folded = self
        while folded.width > 1:
            folded = folded.halve(combine)
        return folded
