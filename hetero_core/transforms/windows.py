"""Nodes that onnx's inference lets pass although they cannot run: channels, windows, element counts, sizes of recurrence.

`find_misfit` looks at what the types say; an open size speaks against nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import Dimension, shape_of

_NORMS = frozenset({"BatchNormalization", "InstanceNormalization"})
_RECURRENT = frozenset({"RNN", "GRU", "LSTM"})


def find_misfit(node: Node, network: Network) -> str | None:
    """Returns why the node cannot take its inputs by their types, or None where nothing speaks against it."""
    if node.domain or not node.inputs:
        return None
    data = shape_of(network.type_of(node.inputs[0]))
    if data is None:
        return None
    if node.op_type == "Reshape":
        return _compare_counts(node, network, data)
    if node.op_type in _RECURRENT:
        return _compare_recurrence(node, network, data)
    return _compare_channels(node, network, data) or _compare_windows(node, network, data)


def _compare_channels(node: Node, network: Network, data: Sequence[Dimension]) -> str | None:
    weight = shape_of(network.type_of(node.inputs[1])) if len(node.inputs) > 1 else None
    if not weight or len(data) < 2:
        return None
    expected: Dimension = None
    if node.op_type == "Conv" and len(weight) > 1 and isinstance(weight[1], int):
        expected = weight[1] * int(node.attributes.get("group", 1))
    elif node.op_type == "ConvTranspose" or node.op_type in _NORMS:
        expected = weight[0]
    if not isinstance(expected, int) or not isinstance(data[1], int) or data[1] == expected:
        return None
    return f"its input '{node.inputs[0]}' has {data[1]} channels, its weights '{node.inputs[1]}' are for {expected}"


def _compare_windows(node: Node, network: Network, data: Sequence[Dimension]) -> str | None:
    """A window that is larger than its padded input fits nowhere."""
    kernel: Sequence[Dimension] | None = node.attributes.get("kernel_shape")
    if kernel is None and node.op_type == "Conv" and len(node.inputs) > 1:
        kernel = (shape_of(network.type_of(node.inputs[1])) or ())[2:]
    if not kernel or node.op_type == "ConvTranspose" or node.op_type == "MaxUnpool" or len(data) != len(kernel) + 2:
        return None
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    count = len(kernel)
    pads = node.attributes.get("pads", (0,) * 2 * count)
    dilations = node.attributes.get("dilations", (1,) * count)
    if len(pads) != 2 * count or len(dilations) != count:
        return f"it has {len(pads)} pads and {len(dilations)} dilations for a window over {count} axes"
    for axis, (size, window) in enumerate(zip(data[2:], kernel, strict=True)):
        if not isinstance(size, int) or not isinstance(window, int):
            continue
        reach = (window - 1) * dilations[axis] + 1
        if size + pads[axis] + pads[axis + count] < reach:
            return f"its window reaches over {reach} elements, its input '{node.inputs[0]}' has {size} on axis {axis + 2}"
    return None


def _compare_counts(node: Node, network: Network, data: Sequence[Dimension]) -> str | None:
    """Reshape by a constant: as many elements as before, or a whole number of times where -1 takes the rest."""
    constant = network.initializers.get(node.inputs[1]) if len(node.inputs) > 1 else None
    sizes = [size for size in data if isinstance(size, int)]
    if constant is None or len(sizes) < len(data):
        return None
    keeps_zero = bool(node.attributes.get("allowzero", 0))
    target = [int(size) for size in constant.array.reshape(-1)]
    if not keeps_zero:
        target = [sizes[axis] if size == 0 and axis < len(sizes) else size for axis, size in enumerate(target)]
    if keeps_zero and -1 in target and 0 in target:
        return f"its shape {target} has both -1 and 0, which leaves the size of -1 open where allowzero is 1"
    fixed = prod(size for size in target if size != -1)
    if prod(sizes) == fixed or (-1 in target and fixed and prod(sizes) % fixed == 0):
        return None
    return (
        f"its input '{node.inputs[0]}' has the shape {sizes}, {prod(sizes)} elements, which cannot become {constant.array.tolist()}"
    )


def _compare_recurrence(node: Node, network: Network, data: Sequence[Dimension]) -> str | None:
    weight = shape_of(network.type_of(node.inputs[1])) if len(node.inputs) > 1 else None
    if weight and len(data) == 3 and _differ(data[2], weight[-1]):
        return f"its input '{node.inputs[0]}' has {data[2]} features, its weights '{node.inputs[1]}' are for {weight[-1]}"
    recurrence = shape_of(network.type_of(node.inputs[2])) if len(node.inputs) > 2 else None
    if not weight or not recurrence or len(data) != 3:
        return None
    is_batch_first = bool(node.attributes.get("layout", 0))
    expected = (data[0], weight[0], recurrence[-1]) if is_batch_first else (weight[0], data[1], recurrence[-1])
    for value in node.inputs[5:7]:
        state = shape_of(network.type_of(value)) if value else None
        if state and (len(state) != 3 or any(map(_differ, state, expected))):
            return f"its state '{value}' has the shape {list(state)}, its other inputs are for {list(expected)}"
    return None


def _differ(size: Dimension, other: Dimension) -> bool:
    return isinstance(size, int) and isinstance(other, int) and size != other
