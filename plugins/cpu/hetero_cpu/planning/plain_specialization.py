"""A network for one set of input shapes in one sweep, without onnx: what follows from shapes is computed, types of the rest are inferred.

onnx's inference takes a network as a message, many times where shapes are computed in the network. This asks the rules that infer what
onnx does, node by node, and has no answer for a network with one node that has no rule; all errors are onnx's to find, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import floor
from types import MappingProxyType
from typing import Any

from hetero_core.network.graph import Network, Node
from hetero_core.network.inference import rebuild_graph
from hetero_core.network.initializers import Initializer
from hetero_core.network.plain_types import infer_plain_node, says_no_more
from hetero_core.network.types import TensorType, ValueSpec, ValueType
from hetero_core.transforms.constants import Evaluate, drop_unread, fold_node
from hetero_cpu.open.rules import infer_shapes

Types = Mapping[str, ValueType]
Constants = Mapping[str, Initializer]
IsKept = Callable[[Node, Network], bool]
Shapes = Sequence[list[int]] | None
"""The shape of each output of a node; None where onnx has to be asked."""


def specialize_plainly(
    network: Network, inputs: Sequence[ValueSpec], evaluate: Evaluate, *, is_kept: IsKept, room: int
) -> Network | None:
    """Returns the network with these inputs, whose sizes are known; None where onnx has to be asked.

    `is_kept` and `room`: as for `fold_constants`. Cost: linear, some 4 us for each node and what the computed ones take.
    """
    constants: dict[str, Initializer] = dict(network.initializers)
    types: dict[str, ValueType] = {spec.name: spec.type for spec in inputs}
    types.update((name, constant.type) for name, constant in constants.items())
    nodes: list[Node] = []
    for node in network.nodes:
        folded = None if is_kept(node, network) else fold_node(node, network, constants, evaluate, type_of=types.get, room=room)
        if folded is not None:
            room -= sum(constant.nbytes for constant in folded.values())
            constants.update(folded)
            types.update((value, constant.type) for value, constant in folded.items())
            continue
        inferred = infer_plain_node(node, types, constants) or _infer(node, types, constants)
        if inferred is None or not all(
            says_no_more(network.types[name], value_type) for name, value_type in inferred.items() if name in network.types
        ):
            return None
        types.update(inferred)
        nodes.append(node)
    sized = rebuild_graph(replace(network, inputs=tuple(inputs)), tuple(nodes), types)
    assert isinstance(sized, Network)
    return drop_unread(replace(sized, initializers=MappingProxyType(constants)))


def _infer(node: Node, types: Types, constants: Constants) -> dict[str, ValueType] | None:
    """Returns the types of what a node makes whose numbers are constants, by rules for sizes that are all known."""
    key = node.op_type, node.since_version
    rule, condition = _RULES.get(key), _CONDITIONS.get(key)
    first = types.get(node.inputs[0]) if node.inputs else None
    if node.domain or (rule is None and condition is None) or not isinstance(first, TensorType):
        return None
    if first.shape is None or first.dtype is None:
        return None
    if any(not isinstance(size, int) for size in first.shape) or not all(node.outputs):
        return None
    shape = [size for size in first.shape if isinstance(size, int)]
    shapes: Sequence[Sequence[int]] | None = None
    if rule is not None:
        shapes = rule(node, shape, constants)
    elif condition is not None and condition(node, shape, constants):
        shapes = infer_shapes(node, _KnownValues(node.inputs[0], shape, constants))
    if shapes is None or len(shapes) != len(node.outputs) or any(size < 0 for own in shapes for size in own):
        return None
    return {value: TensorType(first.dtype, tuple(own)) for value, own in zip(node.outputs, shapes, strict=True)}


def _slice(node: Node, shape: Sequence[int], constants: Constants) -> Shapes:
    lists = [_read(node, position, constants) for position in range(1, len(node.inputs)) if node.inputs[position]]
    if len(lists) != len(node.inputs) - 1 or len(lists) < 2 or any(each is None for each in lists):
        return None
    starts, ends, *rest = [each for each in lists if each is not None]
    axes = rest[0] if rest else range(len(starts))
    steps = rest[1] if len(rest) > 1 else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return None
    if any(not -len(shape) <= axis < len(shape) for axis in axes) or len({axis % len(shape) for axis in axes}) < len(axes):
        return None
    sizes = list(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 0 and (start < -sizes[axis] or not sizes[axis]):
            return None
        # ONNX clamps the bounds as Python does, also where a step goes back.
        sizes[axis] = len(range(*slice(start, end, step).indices(sizes[axis])))
    return [sizes]


def _expand(node: Node, shape: Sequence[int], constants: Constants) -> Shapes:
    target = _read(node, 1, constants)
    if target is None or min(target, default=1) < 1:
        return None
    rank = max(len(shape), len(target))
    pairs = zip([1] * (rank - len(shape)) + list(shape), [1] * (rank - len(target)) + list(target), strict=True)
    sizes = [size if other == 1 else other if size in (1, other) else None for size, other in pairs]
    return None if None in sizes else [[size for size in sizes if size is not None]]


def _keep(node: Node, shape: Sequence[int], constants: Constants) -> Shapes:
    return [list(shape)]


def _has_channels(node: Node, shape: Sequence[int], constants: Constants) -> bool:
    """Says whether all further inputs are constants with a number for each channel."""
    others = [constants.get(value) for value in node.inputs[1:]]
    return len(shape) >= 3 and all(constant is not None and constant.shape == tuple(shape[1:2]) for constant in others)


def _normalize(node: Node, shape: Sequence[int], constants: Constants) -> Shapes:
    axis, weight = node.attributes.get("axis", -1), constants.get(node.inputs[1])
    fits = weight is not None and -len(shape) <= axis < len(shape) and tuple(shape)[axis:] == weight.shape
    return [list(shape)] if fits else None


def _resize(node: Node, shape: Sequence[int], constants: Constants) -> Shapes:
    if {"axes", "keep_aspect_ratio_policy"} & node.attributes.keys() or len(node.inputs) < 3:
        return None
    scales = constants.get(node.inputs[2])
    if len(node.inputs) > 3 and node.inputs[3]:
        sizes = _read(node, 3, constants)
        if node.inputs[2] and (scales is None or scales.shape != (0,)):
            return None
    elif scales is None or scales.dtype != "float32" or scales.shape != (len(shape),):
        return None
    else:
        sizes = [floor(float(factor) * size) for factor, size in zip(scales.array, shape, strict=True)]
    if sizes is None or len(sizes) != len(shape) or min(sizes, default=0) < 1:
        return None
    return [sizes]


def _can_transpose(node: Node, shape: Sequence[int], constants: Constants) -> bool:
    weight, attributes = constants.get(node.inputs[1]), node.attributes
    axes = len(shape) - 2
    if weight is None or axes < 1 or len(weight.shape) != len(shape) or weight.shape[0] != shape[1]:
        return False
    if attributes.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in attributes:
        return False
    kernel, pads = list(attributes.get("kernel_shape", weight.shape[2:])), list(attributes.get("pads", [0] * 2 * axes))
    steps = [list(attributes.get(name, [1] * axes)) for name in ("strides", "dilations")]
    more = list(attributes.get("output_padding", [0] * axes))
    if kernel != list(weight.shape[2:]) or {len(numbers) for numbers in (*steps, more)} != {axes} or len(pads) != 2 * axes:
        return False
    group = int(attributes.get("group", 1))
    is_positive = bool(min(*shape, *steps[0], *steps[1], group) >= 1 and min(*pads, *more) >= 0)
    return is_positive and shape[1] % group == 0


def _can_split(node: Node, shape: Sequence[int], constants: Constants) -> bool:
    axis, count = node.attributes.get("axis", 0), len(node.outputs)
    if not -len(shape) <= axis < len(shape):
        return False
    if len(node.inputs) > 1 and node.inputs[1]:
        sizes = _read(node, 1, constants)
        is_whole = sizes is not None and len(sizes) == count and min(sizes) >= 0 and sum(sizes) == shape[axis]
        return is_whole and "num_outputs" not in node.attributes
    return shape[axis] % count == 0 and bool(node.attributes.get("num_outputs", count) == count)


def _can_pad(node: Node, shape: Sequence[int], constants: Constants) -> bool:
    pads = _read(node, 1, constants)
    return pads is not None and len(pads) == 2 * len(shape) > 0 and not any(node.inputs[3:])


def _can_move_depth(node: Node, shape: Sequence[int], constants: Constants) -> bool:
    side = int(node.attributes.get("blocksize", 0))
    return len(shape) == 4 and side >= 1 and shape[1] % (side * side) == 0


def _can_tile(node: Node, shape: Sequence[int], constants: Constants) -> bool:
    repeats = _read(node, 1, constants)
    return repeats is not None and len(repeats) == len(shape) and min(repeats, default=0) >= 0


def _read(node: Node, position: int, constants: Constants) -> list[int] | None:
    """Returns the elements of an input that is a constant list of integers."""
    constant = constants.get(node.inputs[position]) if position < len(node.inputs) else None
    if constant is None or constant.dtype not in ("int32", "int64") or len(constant.shape) != 1:
        return None
    numbers: list[int] = constant.array.tolist()
    return numbers


_RULES: Mapping[tuple[str, int], Callable[[Node, Sequence[int], Constants], Shapes]] = {
    **{("Slice", version): _slice for version in (10, 11, 13)},
    **{("Expand", version): _expand for version in (8, 13)},
    **{("Resize", version): _resize for version in (11, 13, 18, 19)},
    ("Gelu", 20): _keep,
    ("HardSwish", 14): _keep,
    ("HardSwish", 22): _keep,
    ("RMSNormalization", 23): _normalize,
    ("Swish", 24): _keep,
}

_CONDITIONS: Mapping[tuple[str, int], Callable[[Node, Sequence[int], Constants], bool]] = {
    **{("ConvTranspose", version): _can_transpose for version in (1, 11, 22)},
    **{("DepthToSpace", version): _can_move_depth for version in (1, 11, 13)},
    **{("InstanceNormalization", version): _has_channels for version in (6, 22)},
    **{("Pad", version): _can_pad for version in (11, 13, 18, 19, 21, 23, 24, 25)},
    **{("Split", version): _can_split for version in (13, 18)},
    **{("Tile", version): _can_tile for version in (6, 13)},
}
"""When onnx infers for an operator what the rule for symbols says, and finds no error."""


class _KnownValues:
    """What the rules for symbols ask of a node whose first input has this shape and whose others are constants."""

    def __init__(self, source: str, shape: Sequence[int], constants: Constants) -> None:
        self._source, self._shape, self._constants = source, tuple(shape), constants

    def read(self, value: str) -> Any:
        """Returns the elements of a constant."""
        constant = self._constants.get(value)
        return None if constant is None else constant.array

    def read_scales(self, value: str) -> Sequence[float]:
        """Returns the elements of a constant of floats."""
        scales: list[float] = self._constants[value].array.reshape(-1).tolist()
        return scales

    def find_shape(self, value: str) -> tuple[Any, ...]:
        """Returns a shape."""
        return self._shape if value == self._source else self._constants[value].shape
