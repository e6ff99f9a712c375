"""The batch axis of every value of a network, from its inputs on; and the nodes that mix images, which cannot be batched.

A value has the axis on which the images of a batch lie, None if it is the same for all of them, or SIZE if it is made from the
size of the batch: it may be part of a shape, but not of the numbers. Behind a node that reads images, the sizes of the outputs are
computed for two sizes of the batch: the axis that follows them is the batch axis. The operator's record of sizes names in `along` the
axes on which it mixes places. Axes count from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from hetero_core.network.graph import Network, Node
from hetero_core.network.operators import OPERATORS, REFUSALS, Operator, SizedNode, infer_sizes, is_unknown, open_size
from hetero_core.network.types import TensorType, ValueSpec
from hetero_core.transforms.reshaping import free_batch


@dataclass(frozen=True, slots=True)
class Size:
    """Stands for a value made from the size of the batch; it is a shape that has the size at this place, if there is one."""

    place: int | None = None


SIZE = Size()
Axis = int | Size | None
"""An axis, a value made from the size of the batch, None for a value that is the same for all images."""


class MixedImages(Exception):  # carries the reason out of a rule
    """A node mixes images, or may mix them."""


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
        value = self.node.inputs[index]
        known = self.network.type_of(value)
        if not isinstance(known, TensorType) or known.shape is None:
            raise MixedImages(f"the rank of '{value}' is not known, so that its batch axis is not either")
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

    def with_batch(self, batch: int) -> SizedNode:
        """Returns the node for a size of the batch. Raises: MixedImages if the rank of an input is not known."""
        shapes: list[tuple[Any, ...] | None] = []
        for index, name in enumerate(self.node.inputs):
            axis = self.axis(index)
            sizes: list[Any] = [size if isinstance(size, int) else open_size(size) for size in self.shape(index)] if name else []
            if axis is None:
                sizes = [_OTHER_SIZE if is_unknown(size) else size for size in sizes]
            shapes.append(tuple(batch if place == axis else size for place, size in enumerate(sizes)) if name else None)
        return SizedNode(self.node, shapes, self._read)

    def _read(self, name: str) -> list[Any] | None:
        constant = self.network.initializers.get(name)
        return None if constant is None or prod(constant.shape) > _LARGEST_READ_CONSTANT else constant.array.reshape(-1).tolist()


_BATCHES = (10007, 10009)
"""Two sizes of the batch, primes that no model has."""
_OTHER_SIZE = 20011
"""The size of an open axis of a value without images: no size of the batch."""
_LARGEST_READ_CONSTANT = 1024
_ROWS = frozenset(
    {
        *("Binarizer", "Imputer", "LinearClassifier", "LinearRegressor", "Normalizer", "SVMClassifier", "SVMRegressor", "Scaler"),
        *("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"),
    }
)
"""Operators of ai.onnx.ml on (batch, features)."""


def find_output_axes(view: NodeView) -> list[Axis]:
    """Returns the batch axis of each output of a node that reads images. Raises: MixedImages."""
    node = view.node
    if node.domain == "ai.onnx.ml" and node.op_type in _ROWS:
        if view.axis(0) != 0 or len(view.shape(0)) != 2:
            raise MixedImages("its input is one image, not a batch of them")
        return [0] * len(node.outputs)
    operator = None if node.domain else OPERATORS.get(node.op_type)
    if operator is None or operator.along is None or node.bodies:
        raise MixedImages("it is not known to keep images apart")
    views = [view.with_batch(batch) for batch in _BATCHES]
    _require_apart(view, operator, views[0])
    try:
        axes = _follow_sizes(view, [infer_sizes(sized) for sized in views])
    except REFUSALS:
        if node.op_type not in ("Expand", "Reshape") or view.constant(1) is not None:
            raise MixedImages("it sums or broadcasts over the batch axis, or has a value of its own for each image") from None
        axes = [_follow_name(view)]
    if node.op_type == "Reshape" and axes != [0]:
        raise MixedImages("it moves the batch axis")
    return axes


def _require_apart(view: NodeView, operator: Operator, sized: SizedNode) -> None:
    """Raises MixedImages if a node works along the batch axis of an input, or reads an input with images whole."""
    assert operator.along is not None
    try:
        along = operator.along(sized)
    except REFUSALS:
        raise MixedImages("it works along axes that are not known") from None
    for index, name in enumerate(view.node.inputs):
        axis = view.axis(index)
        if not isinstance(axis, int):
            continue
        if index >= len(along):
            raise MixedImages(f"its input '{name}' has images, where it expects what is the same for all")
        if axis in along[index]:
            is_whole = len(along[index]) == len(view.shape(index))
            raise MixedImages("it works along all axes" if is_whole else f"it works along axis {axis}, on which the images lie")


def _follow_sizes(view: NodeView, sizes: Sequence[Sequence[tuple[Any, ...]]]) -> list[Axis]:
    """Returns the axis of each output that has the size of the batch. Raises: MixedImages."""
    axes: list[Axis] = []
    for name, *shapes in zip(view.node.outputs, *sizes, strict=False):
        pairs = enumerate(zip(*shapes, strict=True))
        changed = [(axis, pair) for axis, pair in pairs if not any(map(is_unknown, pair)) and pair[0] != pair[1]]
        if name and [pair for _, pair in changed] != [_BATCHES]:
            raise MixedImages(f"its output '{name}' has no axis of its own for the images: it sums, cuts, joins or repeats them")
        axes.append(changed[0][0] if name else None)
    return axes


def _follow_name(view: NodeView) -> int:
    """Returns the only axis of the output with the name of the batch axis, if the sizes are not constant. Raises: MixedImages."""
    before, axis, output_type = view.shape(0), view.axis(0), view.network.type_of(view.node.outputs[0])
    name = before[axis] if isinstance(axis, int) else None
    after = (output_type.shape if isinstance(output_type, TensorType) else None) or ()
    if not isinstance(axis, int) or not isinstance(name, str) or after.count(name) != 1:
        raise MixedImages("the shape that it makes is not known to keep the batch axis")
    place = after.index(name)
    if view.node.op_type == "Expand" and len(after) - place != len(before) - axis:
        raise MixedImages("it repeats images")
    return place


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """The axes of a network's inputs and outputs, None for values without images; `refused` maps nodes that mix images to the reason."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    refused: Mapping[str, str]


_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
_RECURRENT = ("GRU", "LSTM", "RNN")


def find_batch_axes(network: Network) -> BatchAxes:
    """Returns the batch axes: on the first axis of the inputs, or on the second if a recurrent operator has it there."""
    axes = _walk(network, 0)
    if not axes.refused or any(network.node(name).op_type not in _RECURRENT for name in axes.refused):
        return axes
    others = _walk(network, 1)
    return axes if others.refused else others


def _walk(network: Network, place: int) -> BatchAxes:
    """Returns the batch axes, derived from the inputs' axes; outputs of a node that mixes images are treated like inputs."""
    axes: dict[str, Axis] = {spec.name: find_input_axis(network, spec, place) for spec in network.inputs}
    sizes = [spec.shape[axis] for spec in network.inputs if spec.shape and isinstance(axis := axes[spec.name], int)]
    fixed = next((size for size in sizes if isinstance(size, int)), None)
    network = network if fixed is None else free_batch(network, fixed)
    refused: dict[str, str] = {}
    for node in network.nodes:
        try:
            output_axes = _find_output_axes(NodeView(node, network, axes))
        except MixedImages as reason:
            refused[node.name] = str(reason)
            types = map(network.type_of, node.outputs)
            output_axes = [0 if isinstance(known, TensorType) and known.shape else None for known in types]
        axes.update((value, axis) for value, axis in zip(node.outputs, output_axes, strict=True) if value)
    for spec in network.outputs:
        axis, maker = axes.get(spec.name), network.index_of_producer.get(spec.name)
        if maker is not None and (isinstance(axis, Size) or not isinstance(spec.type, TensorType)):
            why = "the size of the batch" if isinstance(axis, Size) else "no tensor"
            refused.setdefault(network.nodes[maker].name, f"its output '{spec.name}', which is one of the network's, is {why}")
    sides = ([axes.get(spec.name) for spec in specs] for specs in (network.inputs, network.outputs))
    inputs, outputs = (tuple(axis if isinstance(axis, int) else None for axis in side) for side in sides)
    return BatchAxes(inputs, outputs, refused)


def _find_output_axes(view: NodeView) -> list[Axis]:
    """Returns the batch axis of each output of a node. Raises: MixedImages."""
    node = view.node
    first = view.axis(0)
    if not node.domain and node.op_type in ("Gather", "Slice") and isinstance(first, Size) and first.place is not None:
        return [SIZE if _takes_size(view, first.place) else None]
    axes = [SIZE if isinstance(axis, Size) else axis for axis in map(view.axes.get, node.reads)]
    count = len(node.outputs)
    if all(axis is None for axis in axes):
        if node.bodies or node.op_type in _RANDOM:
            raise MixedImages("it draws numbers or has a body, and is not known to keep images apart")
        return [None] * count
    if node.op_type in ("Shape", "Size") and not node.domain:
        return [_describe_shape(view)]
    if SIZE in axes and all(axis in (None, SIZE) for axis in axes):
        if (node.op_type in ("Reshape", "Expand", "ConstantOfShape", "Range") and view.axis(0) is None) or node.bodies:
            raise MixedImages("it makes a tensor of the size of the batch from what is the same for all images")
        return [SIZE] * count
    if SIZE in axes and node.op_type not in ("Reshape", "Expand"):
        raise MixedImages("it computes with the size of the batch")
    return find_output_axes(view)


def _describe_shape(view: NodeView) -> Axis:
    """Shape, Size: a shape with the size of the batch at its place, or None if that is cut off."""
    axis, rank = view.axis(0), len(view.shape(0))
    if not isinstance(axis, int) or view.node.op_type == "Size":
        return SIZE
    start, end = (int(view.node.attributes.get(name, default)) for name, default in (("start", 0), ("end", rank)))
    start, end = (max(0, min(bound + rank if bound < 0 else bound, rank)) for bound in (start, end))
    return Size(axis - start) if start <= axis < end else None


def _takes_size(view: NodeView, size_place: int) -> bool:
    """Says whether a Gather or Slice of a shape takes the size of the batch, as far as is known."""
    (length,) = view.shape(0)
    places = view.constant(1, "starts")
    if not isinstance(length, int) or places is None:
        return True
    if view.node.op_type == "Slice":
        ends, steps = view.constant(2, "ends"), view.constant(4) or [1]
        if ends is None or len(places) != 1:
            return True
        places = list(range(length))[places[0] : ends[0] : steps[0]]
    return size_place in [place % length for place in places]


def find_input_axis(network: Network, spec: ValueSpec, place: int) -> int | None:
    """Returns the batch axis of an input.

    That is N of its layout, if a layout is known. Otherwise the batch size is the size on axis `place` of the first input. If that
    size has a name, the batch axis of an input is the axis with this name; if it is a number or an open size without a name, it is
    axis `place`, provided that the sizes are equal.
    """
    layout = network.border.layouts.get(spec.name)
    if layout is not None:
        return layout.index("N") if "N" in layout else None
    first = next((spec.shape for spec in network.inputs if isinstance(spec.type, TensorType) and spec.shape), None)
    if first is None or len(first) <= place or not spec.shape:
        return None
    if isinstance(first[place], str):
        return spec.shape.index(first[place]) if first[place] in spec.shape else None
    return place if len(spec.shape) > place and spec.shape[place] == first[place] else None
