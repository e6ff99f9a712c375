"""The values that a kernel computes with: numbers, conditions, masks, and vectors of float32, as terms of the function in the making.

Operators on terms emit instructions into their `Code`. Both operands have the same width, or the second is a Python number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hetero_cpu.machine import llvm as ir

if TYPE_CHECKING:
    from hetero_cpu.machine.code import Code


def lanes_of(kind: ir.Type) -> tuple[ir.Type, int]:
    """Returns the type of the elements of a type, and their number."""
    return (kind.element, kind.count) if isinstance(kind, ir.VectorType) else (kind, 1)


class Term:
    """A value of the function under construction. `code` emits the instructions of operators."""

    __slots__ = ("code", "value")

    def __init__(self, code: Code, value: Any) -> None:
        self.code, self.value = code, value


class Number(Term):
    """An integer of 64 bits: a size, a count, an address; or a vector of elements."""

    __slots__ = ()

    def _like(self, other: Number | int) -> Number:
        return other if isinstance(other, Number) else Number(self.code, ir.write_integer(self.value.type, int(other)))

    def _emit(self, name: str, other: Number | int, *, turned: bool = False) -> Number:
        left, right = self.value, self._like(other).value
        if turned:
            left, right = right, left
        return Number(self.code, self.code.builder.compute(name, left, right))

    def __add__(self, other: Number | int) -> Number:
        return self if isinstance(other, int) and other == 0 else self._emit("add", other)

    __radd__ = __add__

    def __sub__(self, other: Number | int) -> Number:
        return self._emit("sub", other)

    def __rsub__(self, other: Number | int) -> Number:
        return self._emit("sub", other, turned=True)

    def __mul__(self, other: Number | int) -> Number:
        return self if isinstance(other, int) and other == 1 else self._emit("mul", other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Number | int) -> Number:
        """The quotient of two numbers that are not negative."""
        return self._emit("udiv", other)

    def __mod__(self, other: Number | int) -> Number:
        """The remainder of two numbers that are not negative."""
        return self._emit("urem", other)

    def _compare(self, sign: str, other: Number | int) -> Truth:
        return Truth(self.code, self.code.builder.compare(f"icmp {sign}", self.value, self._like(other).value))

    def __lt__(self, other: Number | int) -> Truth:
        return self._compare("slt", other)

    def __le__(self, other: Number | int) -> Truth:
        return self._compare("sle", other)

    def __gt__(self, other: Number | int) -> Truth:
        return self._compare("sgt", other)

    def __ge__(self, other: Number | int) -> Truth:
        return self._compare("sge", other)

    def equals(self, other: Number | int) -> Truth:
        """Returns whether both are the same number."""
        return self._compare("eq", other)

    def at_most(self, other: Number | int) -> Number:
        """Returns the smaller of both."""
        chosen: Number = (self < other).choose(self, self._like(other))
        return chosen

    def at_least(self, other: Number | int) -> Number:
        """Returns the larger of both."""
        chosen: Number = (self > other).choose(self, self._like(other))
        return chosen


class Truth(Term):
    """A condition."""

    __slots__ = ()

    def __and__(self, other: Truth) -> Truth:
        return Truth(self.code, self.code.builder.compute("and", self.value, other.value))

    def __or__(self, other: Truth) -> Truth:
        return Truth(self.code, self.code.builder.compute("or", self.value, other.value))

    def choose(self, yes: Any, no: Any) -> Any:
        """Returns the first or the second value, of the same kind."""
        return type(yes)(self.code, self.code.builder.select(self.value, yes.value, no.value))


_Chosen = TypeVar("_Chosen", bound=Term)


class Mask(Term):
    """A truth value for each element of a vector."""

    __slots__ = ()

    def choose(self, yes: _Chosen, no: _Chosen) -> _Chosen:
        """Returns for each element `yes` if the mask holds, else `no`; of a scalar, values of any kind."""
        return type(yes)(self.code, self.code.builder.select(self.value, yes.value, no.value))


class Integers(Term):
    """A vector of int32 as long as one of float32. Sums and products keep the lower 32 bits."""

    __slots__ = ()

    def _emit(self, name: str, other: Integers) -> Integers:
        return Integers(self.code, self.code.builder.compute(name, self.value, other.value))

    def __sub__(self, other: Integers) -> Integers:
        return self._emit("sub", other)

    def __mul__(self, other: Integers) -> Integers:
        return self._emit("mul", other)

    def to_floats(self) -> Floats:
        """Returns the numbers as float32, rounded to nearest, ties to even."""
        return Floats(self.code, self.code.builder.convert("sitofp", self.value, ir.VectorType(ir.FLOAT, self.value.type.count)))


class Floats(Term):
    """A float32 or a vector of them, or of float64; both operands of an operator have the same width, or the second is a Python number."""

    __slots__ = ()

    @property
    def width(self) -> int:
        """The number of elements; 1 for a scalar."""
        return lanes_of(self.value.type)[1]

    def _like(self, other: Floats | float) -> Any:
        return other.value if isinstance(other, Floats) else self.constant(other).value

    def constant(self, value: float) -> Floats:
        """Returns a constant of the same type."""
        is_double = lanes_of(self.value.type)[0] is ir.DOUBLE
        return (
            Floats(self.code, ir.write_float(value, self.width, ir.DOUBLE)) if is_double else self.code.constant(value, self.width)
        )

    def _emit(self, name: str, other: Floats | float, *, turned: bool = False) -> Floats:
        left, right = self.value, self._like(other)
        if turned:
            left, right = right, left
        return Floats(self.code, self.code.builder.compute(name, left, right))

    def __add__(self, other: Floats | float) -> Floats:
        return self._emit("fadd", other)

    __radd__ = __add__

    def __sub__(self, other: Floats | float) -> Floats:
        return self._emit("fsub", other)

    def __rsub__(self, other: Floats | float) -> Floats:
        return self._emit("fsub", other, turned=True)

    def __mul__(self, other: Floats | float) -> Floats:
        return self._emit("fmul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Floats | float) -> Floats:
        return self._emit("fdiv", other)

    def __rtruediv__(self, other: Floats | float) -> Floats:
        return self._emit("fdiv", other, turned=True)

    def __neg__(self) -> Floats:
        return Floats(self.code, self.code.builder.negate(self.value))

    def _compare(self, sign: str, other: Floats | float) -> Mask:
        return Mask(self.code, self.code.builder.compare(f"fcmp {sign}", self.value, self._like(other)))

    def __lt__(self, other: Floats | float) -> Mask:
        return self._compare("olt", other)

    def __le__(self, other: Floats | float) -> Mask:
        return self._compare("ole", other)

    def __gt__(self, other: Floats | float) -> Mask:
        return self._compare("ogt", other)

    def __ge__(self, other: Floats | float) -> Mask:
        return self._compare("oge", other)

    def equals(self, other: Floats | float) -> Mask:
        """Returns the mask of the elements that are equal; a NaN equals nothing."""
        return self._compare("oeq", other)

    def is_nan(self) -> Mask:
        """Returns the mask of the elements that are not a number."""
        return Mask(self.code, self.code.builder.compare("fcmp uno", self.value, self.value))

    def at_least(self, low: Floats | float) -> Floats:
        """Returns max(self, low); a NaN of self stays, as in ONNX's Relu and Clip."""
        return self._limit("olt", low)

    def at_most(self, high: Floats | float) -> Floats:
        """Returns min(self, high); a NaN of self stays."""
        return self._limit("ogt", high)

    def _limit(self, sign: str, bound: Floats | float) -> Floats:
        limit = bound if isinstance(bound, Floats) else self.constant(bound)
        return Mask(self.code, self.code.builder.compare(f"fcmp {sign}", self.value, limit.value)).choose(limit, self)

    def shuffle(self, other: Floats, positions: Sequence[int]) -> Floats:
        """Returns elements of self followed by `other`, by position."""
        return Floats(self.code, self.code.builder.shuffle(self.value, other.value, positions))

    def fold(self, combine: Any) -> Floats:
        """Returns the float32 of all elements combined by `combine(half, half)`, halves first."""
        partial_result = self
        while partial_result.width > 1:
            half = partial_result.width // 2
            partial_result = combine(
                partial_result.shuffle(partial_result, range(half)), partial_result.shuffle(partial_result, range(half, 2 * half))
            )
            if half == 1:
                partial_result = Floats(self.code, self.code.builder.extract_element(partial_result.value, 0))
        return partial_result
