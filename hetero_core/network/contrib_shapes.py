"""Arithmetic on sizes that may be unknown or names, for the rules of types of ONNX Runtime's own operators. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType, shape_of

Size = int | str | None
Shape = tuple[Size, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class TypedNode:
    """A node with what is known of the types of its inputs, None for an absent or unknown one, as rules of types ask for it."""

    node: Node
    input_types: Sequence[ValueType | None]

    def type(self, index: int) -> ValueType | None:
        """Returns the type of an input."""
        return self.input_types[index] if index < len(self.input_types) else None

    def dtype(self, index: int) -> str | None:
        """Returns the element type of an input."""
        value_type = self.type(index)
        return value_type.dtype if isinstance(value_type, TensorType) else None

    def shape(self, index: int) -> Shape:
        """Returns the shape of an input; None where its rank is not known."""
        return shape_of(self.type(index))

    def size(self, index: int, axis: int) -> Size:
        """Returns one size of an input; None where it is not known."""
        return size_at(self.shape(index), axis)

    def shape_with_last(self, index: int, *sizes: Size) -> Shape:
        """Returns the shape of an input with these sizes in place of its last one."""
        shape = self.shape(index)
        return None if shape is None else (*shape[:-1], *sizes)

    def shape_with_more(self, index: int, *sizes: Size) -> Shape:
        """Returns the shape of an input with these sizes behind its own."""
        shape = self.shape(index)
        return None if shape is None else (*shape, *sizes)

    def open_shape(self, index: int, more: int = 0) -> Shape:
        """Returns the rank of an input, and so many axes more, as open sizes."""
        shape = self.shape(index)
        return None if shape is None else (None,) * (len(shape) + more)

    def has(self, index: int) -> bool:
        """Says whether an optional input is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def integer(self, name: str, default: int = 0) -> int:
        """Returns an attribute that holds an integer."""
        value = self.node.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Returns an attribute that holds integers, None where it is absent."""
        value: Any = self.node.attributes.get(name)
        return value if isinstance(value, tuple) else None


Types = tuple[ValueType | None, ...]
Rule = Callable[[TypedNode], ValueType | Types | None]
"""Returns the type of the only output, or one for each; None where nothing is known."""


def size_at(shape: Shape, axis: int) -> Size:
    """Returns one size of a shape, None where it is unknown."""
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def add(left: Size, right: Size) -> Size:
    """Returns the sum of two sizes; a name plus 0 is the name."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return left if right == 0 else right if left == 0 else None


def multiply(left: Size, right: Size) -> Size:
    """Returns the product of two sizes; a name times 1 is the name."""
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    return left if right == 1 else right if left == 1 else None


def divide(size: Size, divisor: int) -> Size:
    """Returns a size divided by a number that divides it."""
    return size // divisor if isinstance(size, int) and divisor > 0 else size if divisor == 1 else None


def broadcast(*shapes: Shape) -> Shape:
    """Returns the common shape of tensors that are computed element by element."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(_meet(sizes) for sizes in zip(*padded, strict=True))


def _meet(sizes: Sequence[Size]) -> Size:
    larger = [size for size in sizes if size != 1]
    if not larger:
        return 1
    fixed = [size for size in larger if isinstance(size, int)]
    return fixed[0] if fixed else larger[0] if all(size == larger[0] for size in larger) else None


def product_shape(left: Shape, right: Shape) -> Shape:
    """Returns the shape of a matrix product with NumPy's rules."""
    if left is None or right is None or not left or not right:
        return None
    outer = broadcast(left[:-2], right[:-2])
    if outer is None:
        return None
    rows = () if len(left) == 1 else (left[-2],)
    columns = () if len(right) == 1 else (right[-1],)
    return (*outer, *rows, *columns)


def same_as(index: int) -> Rule:
    """Returns the rule of an operator whose first output has the type of an input."""
    return lambda node: node.type(index)
