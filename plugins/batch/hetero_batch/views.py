"""The view of a node that a rule gets: the batch axes of its inputs, shapes, constants; and how it says that images are mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType

SIZE = "size"
Axis = int | str | None
"""An axis, SIZE for a value made from the size of the batch, "size@i" for a shape that has it at place i, None for a value that is the same
for all images."""


def shape_with_size_at(place: int) -> str:
    """Returns the mark of a shape with the size of the batch at this place."""
    return f"{SIZE}@{place}"


def is_shape(axis: Axis) -> bool:
    """Says whether a value is such a shape."""
    return isinstance(axis, str) and axis != SIZE


def size_place(axis: Axis) -> int:
    """Returns the place of the size of the batch in such a shape."""
    assert isinstance(axis, str), "only a shape has the size at a place"
    return int(axis.partition("@")[2])


class MixedImages(Exception):  # a reason on its way out of a rule
    """A node puts images together, or cannot be shown not to."""


def refuse(reason: str) -> NoReturn:
    """Raises MixedImages."""
    raise MixedImages(reason)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with the shapes, constants and batch axes of its values."""

    node: Node
    network: Network
    axes: Mapping[str, Axis]

    def axis(self, index: int) -> Axis:
        """Returns the batch axis of an input; None for an absent or constant input."""
        return self.axes.get(self.node.inputs[index]) if index < len(self.node.inputs) else None

    def shape(self, index: int) -> tuple[Any, ...]:
        """Returns the shape of an input. Raises: MixedImages if its rank is not known."""
        return self._shape_of(self.node.inputs[index])

    def output_shape(self, index: int = 0) -> tuple[Any, ...]:
        """Returns the shape of an output. Raises: as `shape`."""
        return self._shape_of(self.node.outputs[index])

    def _shape_of(self, value: str) -> tuple[Any, ...]:
        known = self.network.type_of(value)
        if not isinstance(known, TensorType) or known.shape is None:
            refuse(f"the rank of '{value}' is not known, so that its batch axis is not either")
        return known.shape

    def constant(self, index: int, attribute: str = "") -> list[int] | None:
        """Returns the integers of an input that is a constant, or of an attribute; None if there is neither."""
        if attribute and attribute in self.node.attributes:
            value = self.node.attributes[attribute]
            return [int(number) for number in value] if isinstance(value, tuple | list) else [int(value)]
        name = self.node.inputs[index] if 0 <= index < len(self.node.inputs) else ""
        if name in self.network.initializers:
            return [int(number) for number in self.network.initializers[name].array.reshape(-1)]
        return None

    def require_shared(self, *indices: int) -> None:
        """Raises MixedImages if any of these inputs has images."""
        for index in indices:
            if self.axis(index) is not None:
                refuse(f"its input '{self.node.inputs[index]}' has images, where it expects what is the same for all")

    def only_first(self) -> int:
        """Returns the batch axis of the first input; no further input may have images."""
        axis = self.axis(0)
        self.require_shared(*range(1, len(self.node.inputs)))
        if not isinstance(axis, int):
            refuse("its first input has no images, where another one has")
        return axis

    def listed_axes(self, index: int) -> list[int] | None:
        """Returns the axes that an input or the attribute `axes` lists, from 0 on; None if it lists none that are known."""
        listed = self.constant(index, "axes")
        rank = len(self.shape(0))
        return None if listed is None else [position % rank for position in listed]
