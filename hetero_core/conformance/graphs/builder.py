"""GraphBuilder: a random model that grows node by node, with the shape, element type and rough size of every value known.

Sizes of open dimensions are names ("N"). Their numbers are in `sizes`; they are never written into the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

Size = int | str
Shape = tuple[Size, ...]

LARGEST_BYTES = 400_000
"""No value of a graph is larger: twice the largest size at which the memory of a plan is known to change its form."""
LARGEST_WORK = 12_000_000
"""Multiplications of one node."""
FLOATS = ("float32", "float16", "float64")


class NotApplicable(Exception):  # not an error: another operator is drawn instead
    """The graph has no value that the operator could read."""


@dataclass(frozen=True, slots=True)
class DrawnValue:
    """A value of the graph. `bound` is the approximate magnitude of its numbers; it limits the growth of products and powers."""

    name: str
    dtype: str
    shape: Shape
    bound: float = 3.0

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        """Says whether it is of a floating-point type."""
        return self.dtype in FLOATS

    @property
    def is_closed(self) -> bool:
        """Says whether every size is a number."""
        return self.is_closed_from(0)

    def is_closed_from(self, axis: int) -> bool:
        """Says whether the size of this axis and of all behind it are numbers."""
        return all(isinstance(size, int) for size in self.shape[axis:])

    def with_size(self, axis: int, *sizes: Size) -> Shape:
        """Returns the shape with this axis replaced by zero or more sizes."""
        return (*self.shape[:axis], *sizes, *self.shape[axis + 1 :])


class GraphBuilder:
    """A growing graph; `values` are the values that operators may read, in order of creation."""

    def __init__(self, random: np.random.Generator, *, dtype: str, opset: int) -> None:
        self.random = random
        self.dtype = dtype
        self.opset = opset
        self.sizes: dict[str, int] = {}
        self.values: list[DrawnValue] = []
        self.inputs: list[DrawnValue] = []
        self.initializers: dict[str, Any] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.readers: dict[str, int] = {}
        self._names = 0

    # Values

    def name(self, prefix: str) -> str:
        """Returns a new name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def add_input(self, dtype: str, shape: Sequence[Size], *, bound: float = 3.0) -> DrawnValue:
        """Adds an input of the graph."""
        value = DrawnValue(self.name("x"), dtype, tuple(shape), bound)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def constant(self, array: Any) -> str:
        """Adds a constant; returns its name."""
        name = self.name("c")
        self.initializers[name] = np.asarray(array)
        return name

    def weight(self, *shape: int, deviation: float = 1.0, mean: float = 0.0, dtype: str | None = None) -> str:
        """Adds normally distributed weights of the graph's floating-point type."""
        array = self.random.standard_normal(shape) * deviation + mean
        return self.constant(array.astype(dtype or self.dtype))

    def scalar(self, number: float, dtype: str | None = None) -> str:
        """Adds a constant without dimensions."""
        return self.constant(np.array(number, dtype or self.dtype))

    def numbers(self, *numbers: int) -> str:
        """Adds a constant of int64, as axes and shapes are."""
        return self.constant(np.array(numbers, np.int64))

    def add(
        self,
        op_type: str,
        inputs: Sequence[DrawnValue | str],
        shape: Sequence[Size],
        *,
        dtype: str = "",
        bound: float = 3.0,
        **attributes: Any,
    ) -> DrawnValue:
        """Adds a node with one output, which has the element type of the first input unless `dtype` is given."""
        (value,) = self.add_many(op_type, inputs, [shape], dtypes=[dtype], bound=bound, **attributes)
        return value

    def add_many(
        self,
        op_type: str,
        inputs: Sequence[DrawnValue | str],
        shapes: Sequence[Sequence[Size]],
        *,
        dtypes: Sequence[str] = (),
        bound: float = 3.0,
        **attributes: Any,
    ) -> tuple[DrawnValue, ...]:
        """Adds a node of several outputs. Raises: NotApplicable if an output would be too large."""
        import onnx  # heavy

        for shape in shapes:
            if self.count(shape) * 4 > LARGEST_BYTES:
                raise NotApplicable
        first = next((operand for operand in inputs if isinstance(operand, DrawnValue)), None)
        fallback = self.dtype if first is None else first.dtype
        types = [(dtypes[index] if index < len(dtypes) else "") or fallback for index in range(len(shapes))]
        names = [operand.name if isinstance(operand, DrawnValue) else operand for operand in inputs]
        outputs = [DrawnValue(self.name("v"), dtype, tuple(shape), bound) for shape, dtype in zip(shapes, types, strict=True)]
        known = {name: value for name, value in attributes.items() if value is not None}
        node = onnx.helper.make_node(op_type, names, [operand.name for operand in outputs], name=self.name("n"), **known)
        self.nodes.append(node)
        for name in names:
            self.readers[name] = self.readers.get(name, 0) + 1
        self.values += outputs
        return tuple(outputs)

    def tile(self, x: DrawnValue, repeats: Sequence[int]) -> DrawnValue:
        """Adds a Tile of a closed value."""
        shape = [int(size) * count for size, count in zip(x.shape, repeats, strict=True)]
        return self.add("Tile", [x, self.numbers(*repeats)], shape, bound=x.bound)

    # Choices

    def count(self, shape: Sequence[Size]) -> int:
        """Returns the number of elements."""
        return math.prod(self.size(size) for size in shape)

    def size(self, size: Size) -> int:
        """Returns a size as a number."""
        return size if isinstance(size, int) else self.sizes[size]

    def chance(self, probability: float) -> bool:
        """Returns True with this probability."""
        return bool(self.random.random() < probability)

    def choose(self, *choices: Any) -> Any:
        """Returns a random choice."""
        return choices[int(self.random.integers(len(choices)))]

    def integer(self, low: int, high: int) -> int:
        """Returns a number from low to high, both included."""
        return int(self.random.integers(low, high + 1))

    def pick(self, suits: Callable[[DrawnValue], bool]) -> DrawnValue:
        """Returns a suitable value, preferring the newest and values not read so far. Raises: NotApplicable."""
        suited = [value for value in self.values if suits(value)]
        if not suited:
            raise NotApplicable
        draw = self.random.random()
        unread = [value for value in suited if value.name not in self.readers]
        if draw < 0.35 and unread:
            return unread[int(self.random.integers(len(unread)))]
        if draw < 0.7:
            return suited[-1 - int(self.random.integers(min(3, len(suited))))]
        return suited[int(self.random.integers(len(suited)))]

    def pick_float(self, *, bound: float = 1e3) -> DrawnValue:
        """Returns a value of the graph's floating-point type. Raises: NotApplicable."""
        return self.pick(lambda value: value.dtype == self.dtype and value.bound <= bound)

    def pick_ranked(self, *ranks: int, bound: float, closed_from: int) -> DrawnValue:
        """Returns a floating-point value of one of these ranks, smaller than the bound, closed from an axis on. Raises: NotApplicable."""
        return self.pick(
            lambda value: (
                value.dtype == self.dtype and value.rank in ranks and value.is_closed_from(closed_from) and value.bound < bound
            )
        )

    def pick_like(self, value: DrawnValue) -> DrawnValue:
        """Returns a value of the same type and shape, at times `value` itself. Never raises NotApplicable."""
        return self.pick(lambda other: other.dtype == value.dtype and other.shape == value.shape and other.bound <= 1e3)
