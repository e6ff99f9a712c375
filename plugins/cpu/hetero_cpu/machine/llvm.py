"""The text of LLVM's modules: the types, constants, instructions and functions that kernels have, each written as it is emitted.

An instruction is a line of its block from the start; nothing is kept of it but its name and type. So emitting takes a third of the time
that it takes with `llvmlite.ir`, and a process that compiles in a child process never imports llvmlite. LLVM checks the text
when it reads the module.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


class Type:
    """A type, by its text and as names of intrinsics have it; `nbytes` are those of an element. A vector has `count` of them."""

    __slots__ = ("count", "element", "nbytes", "short", "text")

    def __init__(self, text: str, short: str = "", nbytes: int = 0, element: Type | None = None, count: int = 1) -> None:
        self.text, self.short, self.nbytes, self.count = text, short, nbytes, count
        self.element = self if element is None else element


def vector_type(element: Type, count: int) -> Type:
    """Returns the type of a vector."""
    return Type(f"<{count} x {element.text}>", f"v{count}{element.short}", element.nbytes, element, count)


def widen_type(element: Type, count: int) -> Type:
    """Returns the type of a vector, or of its element for a count of 1."""
    return element if count == 1 else vector_type(element, count)


I1, I8, I16, I32, I64 = (Type(f"i{bits}", f"i{bits}", bits // 8) for bits in (1, 8, 16, 32, 64))
HALF, FLOAT, DOUBLE = (Type(name, f"f{8 * nbytes}", nbytes) for name, nbytes in (("half", 2), ("float", 4), ("double", 8)))
BFLOAT, VOID, POINTER = (Type(name) for name in ("bfloat", "void", "ptr"))


@dataclass(slots=True, eq=False)
class Value:
    """A value of a function, or a constant: its type, and its text as an operand."""

    type: Type
    text: str


def write_integer(kind: Type, value: int) -> Value:
    """Returns a constant; of a vector type it is in all elements."""
    return Value(kind, str(value) if kind.count == 1 else f"splat ({kind.element.text} {value})")


def write_integers(kind: Type, values: Sequence[int]) -> Value:
    """Returns a constant vector."""
    listed = ", ".join([f"{kind.text} {value}" for value in values])
    return Value(vector_type(kind, len(values)), f"<{listed}>")


def write_float(kind: Type, value: float) -> Value:
    """Returns a constant of float32 or float64, or a vector of it; the value is one of its type."""
    # By its bytes: zeros of either sign are equal. LLVM reads a float32 by the bits of the float64 that is equal to it.
    text = f"0x{struct.pack('>d', value).hex()}"
    return Value(kind, text if kind.count == 1 else f"splat ({kind.element.text} {text})")


class Module:
    """Functions that are compiled together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.globals: dict[str, Function] = {}

    def declare(self, name: str, result: Type, parameters: Sequence[Type]) -> Function:
        """Returns a function from elsewhere, declared once."""
        return self.globals.get(name) or Function(self, name, result, parameters)

    def __str__(self) -> str:
        return "\n".join([f'; ModuleID = "{self.name}"', *map(str, self.globals.values()), ""])


@dataclass(slots=True, eq=False)
class BasicBlock:
    """Instructions that follow one another, as lines."""

    label: str
    lines: list[str] = field(default_factory=list)
    is_ended: bool = False


class Function:
    """A function with a body, or the declaration of a function elsewhere."""

    def __init__(self, module: Module, name: str, result: Type, parameters: Sequence[Type], *, is_internal: bool = False) -> None:
        self.name, self.result, self.is_internal = name, result, is_internal
        self.args = [Value(kind, f"%p{place}") for place, kind in enumerate(parameters)]
        self.blocks: list[BasicBlock] = []
        self.names = 0
        module.globals[name] = self

    def append_block(self) -> BasicBlock:
        """Returns a new last block."""
        block = BasicBlock(f"b{len(self.blocks)}")
        self.blocks.append(block)
        return block

    def __str__(self) -> str:
        if not self.blocks:
            kinds = ", ".join([argument.type.text for argument in self.args])
            return f'declare {self.result.text} @"{self.name}"({kinds})'
        linkage = "internal " if self.is_internal else ""
        lines = [f'define {linkage}{self.result.text} @"{self.name}"({_list_operands(self.args)}) {{']
        for block in self.blocks:
            lines.append(f"{block.label}:")
            lines += block.lines
        return "\n".join([*lines, "}"])


def _list_operands(values: Sequence[Value]) -> str:
    return ", ".join([f"{value.type.text} {value.text}" for value in values])


class Builder:
    """Writes instructions at the end of a block of a function."""

    def __init__(self, function: Function, block: BasicBlock) -> None:
        self._function = function
        self.go_to(block)

    def go_to(self, block: BasicBlock) -> None:
        """Writes at the end of another block from now on."""
        self._block, self.write = block, block.lines.append

    def give(self, kind: Type, text: str) -> Value:
        """Returns the result of an instruction."""
        self._function.names += 1
        name = f"%v{self._function.names}"
        self.write(f"{name} = {text}")
        return Value(kind, name)

    # Arithmetic.

    def compute(self, operation: str, left: Value, right: Value) -> Value:
        """Returns the result of an instruction of two operands of the same type, such as "add" or "fmul"."""
        return self.give(left.type, f"{operation} {left.type.text} {left.text}, {right.text}")

    def compare(self, predicate: str, left: Value, right: Value) -> Value:
        """Returns the result of a comparison such as "icmp slt" or "fcmp olt"."""
        kind = I1 if left.type.element is left.type else vector_type(I1, left.type.count)
        return self.give(kind, f"{predicate} {left.type.text} {left.text}, {right.text}")

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """Returns the first or the second value, by a condition."""
        return self.give(yes.type, f"select {_list_operands((condition, yes, no))}")

    def convert(self, operation: str, value: Value, kind: Type) -> Value:
        """Returns a value in another type, by an instruction such as "bitcast" or "sitofp"."""
        return self.give(kind, f"{operation} {value.type.text} {value.text} to {kind.text}")

    # Vectors.

    def extract_element(self, vector: Value, position: int) -> Value:
        """Returns an element."""
        return self.give(vector.type.element, f"extractelement {vector.type.text} {vector.text}, i32 {position}")

    def spread(self, scalar: Value, lanes: int) -> Value:
        """Returns a vector with the same element in each lane."""
        kind = vector_type(scalar.type, lanes)
        first_lane = self.give(kind, f"insertelement {kind.text} undef, {scalar.type.text} {scalar.text}, i32 0")
        return self.give(kind, f"shufflevector {kind.text} {first_lane.text}, {kind.text} undef, <{lanes} x i32> zeroinitializer")

    def shuffle(self, left: Value, right: Value, positions: Sequence[int]) -> Value:
        """Returns elements of two vectors, by their positions in both together."""
        kind, mask = vector_type(left.type.element, len(positions)), write_integers(I32, positions)
        return self.give(kind, f"shufflevector {_list_operands((left, right, mask))}")

    # Memory.

    def reserve(self, kind: Type, count: int = 1) -> Value:
        """Returns the address of a place on the stack; several begin with a cache line."""
        return self.give(POINTER, f"alloca {kind.text}" if count == 1 else f"alloca [{count} x {kind.text}], align 64")

    def load(self, pointer: Value, kind: Type, align: int = 0) -> Value:
        """Returns the value at an address, of a known alignment unless it is a place on the stack."""
        return self.give(kind, f"load {kind.text}, ptr {pointer.text}{f', align {align}' * bool(align)}")

    def store(self, value: Value, pointer: Value, align: int = 0) -> None:
        """Writes to an address as `load` reads."""
        self.write(f"store {value.type.text} {value.text}, ptr {pointer.text}{f', align {align}' * bool(align)}")

    # Calls.

    def call(self, function: str, result: Type, arguments: Sequence[Value]) -> Value:
        """Returns the result of the function at an address, or of a name; a value of type void if it returns nothing."""
        text = f"call {result.text} {function}({_list_operands(arguments)})"
        if result is not VOID:
            return self.give(result, text)
        self.write(text)
        return Value(VOID, "")

    def hide(self, value: Value) -> Value:
        """Returns the same int64, or vector, as the result of an instruction that LLVM does not look into."""
        kind, place = value.type.text, "r" if value.type.count == 1 else "v"
        return self.give(value.type, f'call {kind} asm "", "={place},0"({kind} {value.text})')

    # Control.

    def branch(self, block: BasicBlock) -> None:
        """Goes on in another block."""
        self.end(f"br label %{block.label}")

    def branch_if(self, condition: Value, yes: BasicBlock, no: BasicBlock) -> None:
        """Goes on in the first or the second block, by a condition."""
        self.end(f"br i1 {condition.text}, label %{yes.label}, label %{no.label}")

    def end(self, text: str) -> None:
        """Ends the block with an instruction."""
        self.write(text)
        self._block.is_ended = True

    @contextmanager
    def inside(self, block: BasicBlock, after: BasicBlock) -> Iterator[None]:
        """Writes in a block, which goes on in another if the body does not end it."""
        self.go_to(block)
        yield
        if not self._block.is_ended:
            self.branch(after)
