"""A network for one set of input shapes in one sweep, without onnx: what follows from shapes is computed, types of the rest are inferred.

onnx's inference takes a network as a message, many times where shapes are computed in the network. This asks the rules that infer what
onnx does, node by node, and has no answer for a network with one node that has no rule; all errors are onnx's to find, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hetero_core.network.graph import Network, Node
from hetero_core.network.inference import rebuild_graph
from hetero_core.network.initializers import Initializer
from hetero_core.network.plain_types import infer_plain_node, says_no_more
from hetero_core.network.types import TensorType, ValueSpec, ValueType
from hetero_core.transforms.constants import Evaluate, drop_unread, fold_node

Types = Mapping[str, ValueType]
Constants = Mapping[str, Initializer]
IsKept = Callable[[Node, Network], bool]


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
    """Returns the type of what a node makes whose numbers are constants, by rules for sizes that are all known."""
    rule = None if node.domain else _RULES.get((node.op_type, node.since_version))
    first = types.get(node.inputs[0]) if node.inputs else None
    if rule is None or not isinstance(first, TensorType) or first.shape is None or first.dtype is None:
        return None
    if any(not isinstance(size, int) for size in first.shape) or len(node.outputs) != 1:
        return None
    shape = rule(node, [size for size in first.shape if isinstance(size, int)], constants)
    return None if shape is None else {node.outputs[0]: TensorType(first.dtype, tuple(shape))}


def _slice(node: Node, shape: Sequence[int], constants: Constants) -> list[int] | None:
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
    return sizes


def _expand(node: Node, shape: Sequence[int], constants: Constants) -> list[int] | None:
    target = _read(node, 1, constants)
    if target is None or min(target, default=1) < 1:
        return None
    rank = max(len(shape), len(target))
    pairs = zip([1] * (rank - len(shape)) + list(shape), [1] * (rank - len(target)) + list(target), strict=True)
    sizes = [size if other == 1 else other if size in (1, other) else None for size, other in pairs]
    return None if None in sizes else [size for size in sizes if size is not None]


def _keep(node: Node, shape: Sequence[int], constants: Constants) -> list[int] | None:
    return list(shape)


def _normalize(node: Node, shape: Sequence[int], constants: Constants) -> list[int] | None:
    axis, weight = node.attributes.get("axis", -1), constants.get(node.inputs[1])
    fits = weight is not None and -len(shape) <= axis < len(shape) and tuple(shape)[axis:] == weight.shape
    return list(shape) if fits else None


def _resize(node: Node, shape: Sequence[int], constants: Constants) -> list[int] | None:
    sizes = _read(node, 3, constants)
    scales = constants.get(node.inputs[2]) if sizes is not None else None
    if sizes is None or (node.inputs[2] if scales is None else scales.shape != (0,)):
        return None
    if len(sizes) != len(shape) or min(sizes, default=0) < 1:
        return None
    return None if {"axes", "keep_aspect_ratio_policy"} & node.attributes.keys() else sizes


def _read(node: Node, position: int, constants: Constants) -> list[int] | None:
    """Returns the elements of an input that is a constant list of integers."""
    constant = constants.get(node.inputs[position]) if position < len(node.inputs) else None
    if constant is None or constant.dtype not in ("int32", "int64") or len(constant.shape) != 1:
        return None
    numbers: list[int] = constant.array.tolist()
    return numbers


_RULES: Mapping[tuple[str, int], Callable[[Node, Sequence[int], Constants], list[int] | None]] = {
    **{("Slice", version): _slice for version in (10, 11, 13)},
    **{("Expand", version): _expand for version in (8, 13)},
    **{("Resize", version): _resize for version in (11, 13, 18, 19)},
    ("Gelu", 20): _keep,
    ("HardSwish", 14): _keep,
    ("HardSwish", 22): _keep,
    ("RMSNormalization", 23): _normalize,
    ("Swish", 24): _keep,
}
