"""The batch axis of every value of a network, from its inputs on; and the nodes that mix images, which cannot be batched.

A value has the axis on which the images of a batch lie, None if it is the same for all of them, or SIZE if it is made from the
size of the batch: it may be part of a shape, but not of the numbers. `rules` follows the axis through a node that reads images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetero_batch.rules import SIZE, Axis, MixedImages, NodeView, find_output_axes, is_shape, refuse, shape_with_size_at, size_place
from hetero_core.network.graph import Network
from hetero_core.network.types import TensorType, ValueSpec
from hetero_core.transforms.reshaping import free_batch


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
            output_axes = [_first_axis(network, value) for value in node.outputs]
        axes.update((value, axis) for value, axis in zip(node.outputs, output_axes, strict=True) if value)
    outputs = [axes.get(spec.name) for spec in network.outputs]
    for spec, axis in zip(network.outputs, outputs, strict=True):
        maker = network.index_of_producer.get(spec.name)
        if maker is not None and (isinstance(axis, str) or not isinstance(spec.type, TensorType)):
            why = "the size of the batch" if isinstance(axis, str) else "no tensor"
            refused.setdefault(network.nodes[maker].name, f"its output '{spec.name}', which is one of the network's, is {why}")
    return BatchAxes(tuple(_plain(axes[spec.name]) for spec in network.inputs), tuple(_plain(axis) for axis in outputs), refused)


def _find_output_axes(view: NodeView) -> list[Axis]:
    """Returns the batch axis of each output of a node. Raises: MixedImages."""
    node = view.node
    if not node.domain and node.op_type in ("Gather", "Slice") and is_shape(view.axis(0)):
        return [SIZE if _takes_size(view) else None]
    axes = [SIZE if is_shape(axis) else axis for axis in map(view.axes.get, node.reads)]
    count = len(node.outputs)
    if all(axis is None for axis in axes):
        if node.bodies or node.op_type in _RANDOM:
            refuse("it draws numbers or has a body, and is not known to keep images apart")
        return [None] * count
    if node.op_type in ("Shape", "Size") and not node.domain:
        return [_describe_shape(view)]
    if SIZE in axes and all(axis in (None, SIZE) for axis in axes):
        if (node.op_type in ("Reshape", "Expand", "ConstantOfShape", "Range") and view.axis(0) is None) or node.bodies:
            refuse("it makes a tensor of the size of the batch from what is the same for all images")
        return [SIZE] * count
    if SIZE in axes and node.op_type not in ("Reshape", "Expand"):
        refuse("it computes with the size of the batch")
    return find_output_axes(view)


def _describe_shape(view: NodeView) -> Axis:
    """Shape, Size: a shape with the size of the batch at its place, or None if that is cut off."""
    axis, rank = view.axis(0), len(view.shape(0))
    if not isinstance(axis, int) or view.node.op_type == "Size":
        return SIZE
    start, end = (int(view.node.attributes.get(name, default)) for name, default in (("start", 0), ("end", rank)))
    start, end = (max(0, min(bound + rank if bound < 0 else bound, rank)) for bound in (start, end))
    return shape_with_size_at(axis - start) if start <= axis < end else None


def _takes_size(view: NodeView) -> bool:
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
    return size_place(view.axis(0)) in [place % length for place in places]


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


def _first_axis(network: Network, value: str) -> Axis:
    value_type = network.type_of(value)
    return 0 if isinstance(value_type, TensorType) and value_type.shape else None


def _plain(axis: Axis) -> int | None:
    return axis if isinstance(axis, int) else None
