"""A pass that writes ONNX Runtime's operators of language models as operators of ONNX, for which CPU has steps.

```text
SkipLayerNormalization, SkipSimplifiedLayerNormalization ──> Add, LayerNormalization or RMSNormalization
BiasGelu, FastGelu, Gelu, QuickGelu                      ──> Add, Gelu or Swish
RotaryEmbedding                                          ──> Gather of both tables, Slice, Concat, Mul, Add
MultiHeadAttention                                       ──> Add, Reshape, Transpose, Concat of the caches, Attention
Attention, QAttention                                    ──> MatMul or MatMulIntegerToFloat, then the same without caches
```

A node stays if its floats are not float32, or has an input, output or attribute that is not listed here: the toolkit runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Network, Node
from hetero_core.transforms.matching import read_shape
from hetero_cpu.transforms.writer import Writer, rewrite_operators

Angles = tuple[str, str, int]
"""Cosines and signed sines of the elements of heads, (batch or 1, 1, steps, turned), and how many elements are turned."""


def find_angles(writer: Writer, tables: Sequence[str], positions: str, *axes: int) -> Angles | None:
    """Returns the angles at positions, with further `axes`, for both elements of each pair; None unless the tables are constant."""
    constants = [writer.constants.get(name) for name in tables]
    if any(own is None or own.dtype != "float32" or len(own.shape) != 2 or not own.shape[1] for own in constants):
        return None
    cos, sin = (own.array for own in constants if own is not None)
    # The sines of the first elements are negative.
    wide, places = [np.concatenate([cos, cos], axis=1), np.concatenate([-sin, sin], axis=1)], writer.add_integers(*axes)
    gathered = [writer.add("Gather", writer.add_constant(table), positions, axis=0) for table in wide]
    return writer.add("Unsqueeze", gathered[0], places), writer.add("Unsqueeze", gathered[1], places), wide[0].shape[1]


def turn_heads(writer: Writer, x: str, angles: Angles, size: int, output: str = "") -> str:
    """Returns heads (batch, heads, steps, size) with the first elements turned in pairs of their halves."""
    cosines, sines, turned = angles
    half, last = turned // 2, writer.add_integers(3)
    zero, middle, end = (writer.add_integers(number) for number in (0, half, turned))
    low, high = (writer.add("Slice", x, *bounds, last) for bounds in ((zero, middle), (middle, end)))
    whole = x if turned == size else writer.add("Slice", x, zero, end, last)
    swapped = writer.add("Mul", writer.add("Concat", high, low, axis=3), sines)
    first = writer.add("Add", writer.add("Mul", whole, cosines), swapped, output="" if turned < size else output)
    if turned == size:
        return first
    return writer.add("Concat", first, writer.add("Slice", x, end, writer.add_integers(size), last), axis=3, output=output)


def express_in_onnx(network: Network) -> Network:
    """Returns the network with the listed operators as operators of ONNX."""
    return rewrite_operators(network, {(MICROSOFT, op_type): _express for op_type in _REWRITERS})


def _express(network: Network, node: Node, writer: Writer) -> bool:
    floats = [value for place, value in enumerate(node.inputs) if value and place not in _INTEGERS.get(node.op_type, ())]
    return all(writer.dtype(value) == "float32" for value in floats) and _REWRITERS[node.op_type](network, node, writer)


def read_input(node: Node, index: int) -> str:
    """Returns an input of a node; an empty name if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else ""


def _normalize_skip(network: Network, node: Node, writer: Writer) -> bool:
    is_simplified = node.op_type == "SkipSimplifiedLayerNormalization"
    beta, bias = ("", read_input(node, 3)) if is_simplified else (read_input(node, 3), read_input(node, 4))
    if any(node.outputs[1:3]):
        return False
    sum_output = node.outputs[3] if len(node.outputs) > 3 else ""
    total = writer.add("Add", node.inputs[0], node.inputs[1], output="" if bias else sum_output)
    if bias:
        total = writer.add("Add", total, bias, output=sum_output)
    inputs = (total, node.inputs[2], *filter(None, [beta]))
    op_type = "RMSNormalization" if is_simplified else "LayerNormalization"
    epsilon = float(node.attributes.get("epsilon", 1e-12))
    writer.add(op_type, *inputs, output=node.outputs[0], axis=-1, epsilon=epsilon)
    return True


def _activate(network: Network, node: Node, writer: Writer) -> bool:
    bias, x = read_input(node, 1), node.inputs[0]
    if bias:
        shape, bias_shape = read_shape(network, x), read_shape(network, bias)
        if not shape or not isinstance(shape[-1], int) or bias_shape != shape[-1:]:
            return False
        x = writer.add("Add", x, bias)
    if node.op_type == "QuickGelu":
        writer.add("Swish", x, output=node.outputs[0], alpha=float(node.attributes.get("alpha", 1.702)))
    else:
        writer.add("Gelu", x, output=node.outputs[0], approximate="tanh" if node.op_type == "FastGelu" else "none")
    return True


def _rotate(network: Network, node: Node, writer: Writer) -> bool:
    attributes, shape, positions = node.attributes, read_shape(network, node.inputs[0]), writer.shape(node.inputs[1])
    if attributes.get("interleaved", 0) or shape is None or positions is None or len(positions) != 2:
        return False
    angles, size = find_angles(writer, node.inputs[2:4], node.inputs[1], 1), shape[-1]
    if angles is None or not isinstance(size, int):
        return False
    turned, width = angles[2], size
    if len(shape) == 3:
        heads = int(attributes.get("num_heads", 0)) if attributes.get("rotary_embedding_dim", 0) else width // turned
        if not heads or width % heads:
            return False
        size = width // heads
    if turned > size:
        return False
    if len(shape) == 4:
        turn_heads(writer, node.inputs[0], angles, size, node.outputs[0])
    else:
        rotated = turn_heads(writer, writer.lay_heads(node.inputs[0], width // size, size), angles, size)
        writer.join_heads(rotated, width, node.outputs[0])
    return True


def _attend(network: Network, node: Node, writer: Writer) -> bool:
    heads = int(node.attributes.get("num_heads", 0))
    bias, padding, mask = (read_input(node, index) for index in (3, 4, 5))
    pasts, presents = [read_input(node, index) for index in (6, 7)], [*node.outputs[1:3], "", ""][:2]
    shapes = [read_shape(network, value) for value in node.inputs[:3]]
    if padding or any(node.inputs[8:]) or any(node.outputs[3:]) or node.attributes.get("unidirectional", 0) or not heads:
        return False
    if any(shape is None or len(shape) != 3 for shape in shapes) or len(node.inputs) < 3:
        return False
    if any(pasts) != all(pasts) or (any(presents) and not any(pasts)):
        return False
    widths = [shape[2] for shape in shapes if shape is not None]
    if any(not isinstance(width, int) or width % heads for width in widths):
        return False
    sizes = [int(width) // heads for width in widths]  # type: ignore[arg-type]  # they are integers, as was asked
    parts: list[str] = list(node.inputs[:3])
    if bias:
        if read_shape(network, bias) != (sum(sizes) * heads,):
            return False
        pieces = writer.split(bias, tuple(size * heads for size in sizes), 0)
        parts = [writer.add("Add", part, piece) for part, piece in zip(parts, pieces, strict=True)]
    query, *joined = (writer.lay_heads(part, heads, size) for part, size in zip(parts, sizes, strict=True))
    for index, (past, present) in enumerate(zip(pasts, presents, strict=True)):
        if past:
            joined[index] = writer.add("Concat", past, joined[index], axis=2, output=present)
    scale = float(node.attributes.get("scale", 0.0)) or 1 / sqrt(sizes[0])
    mixed = writer.add("Attention", query, *joined, *filter(None, [mask]), scale=scale)
    writer.join_heads(mixed, sizes[2] * heads, node.outputs[0])
    return True


def _project(network: Network, node: Node, writer: Writer) -> bool:
    """Attention and QAttention: the product of query, key and value in one, and its attention to itself."""
    is_quantized = node.op_type == "QAttention"
    heads, x, weight, bias = int(node.attributes.get("num_heads", 0)), *node.inputs[:2], read_input(node, 2)
    mask, past, added = (read_input(node, place) for place in ((5, 8, 9) if is_quantized else (3, 4, 5)))
    constant, mask_shape = network.initializers.get(weight), writer.shape(mask) if mask else ()
    sizes = tuple(node.attributes.get("qkv_hidden_sizes", ()))
    if past or added or any(node.outputs[1:]) or any(node.attributes.get(name, 0) for name in ("do_rotary", "unidirectional")):
        return False
    if constant is None or len(constant.shape) != 2 or not heads or not bias or mask_shape is None or len(mask_shape) > 2:
        return False
    widths = sizes or (constant.shape[1] // 3,) * 3
    if len(widths) != 3 or sum(widths) != constant.shape[1] or any(width % heads for width in widths):
        return False
    # A single axis may hold the ends of rows alone, or the beginnings behind them.
    if len(mask_shape) == 1 and mask_shape != (writer.shape(x) or ("",))[:1]:
        return False
    if is_quantized:
        scales, zeros = node.inputs[3:5], (read_input(node, 6), read_input(node, 7))
        projected = writer.add("MatMulIntegerToFloat", x, weight, *scales, *zeros, bias)
    else:
        projected = writer.add("Add", writer.add("MatMul", x, weight), bias)
    parts = [
        writer.lay_heads(part, heads, width // heads)
        for part, width in zip(writer.split(projected, widths, 2), widths, strict=True)
    ]
    masks = []
    if mask:
        zero, low = (
            writer.add_constant(np.array(x, np.float32)) for x in (0.0, node.attributes.get("mask_filter_value", -10000.0))
        )
        if len(mask_shape) == 2:
            allowed = writer.add("Greater", mask, writer.add_constant(np.array(0, np.int32)))
        else:
            scalars = [writer.add_constant(np.array(x, np.int64)) for x in (0, 1)]
            steps = writer.add("Gather", writer.add("Shape", x), scalars[1], axis=0)
            ends = writer.add("Unsqueeze", writer.add("Cast", mask, to=7), writer.add_integers(1))
            allowed = writer.add("Greater", ends, writer.add("Range", scalars[0], steps, scalars[1]))
        masks = [writer.add("Unsqueeze", writer.add("Where", allowed, zero, low), writer.add_integers(1, 2))]
    scale = float(node.attributes.get("scale", 0.0)) or 1 / sqrt(widths[0] // heads)
    writer.join_heads(writer.add("Attention", *parts, *masks, scale=scale), widths[2], node.outputs[0])
    return True


_INTEGERS = {"Attention": (3,), "QAttention": (0, 1, 5, 6, 7), "RotaryEmbedding": (1,)}
"""The places of inputs that are no floats."""
_REWRITERS = {
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _normalize_skip),
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), _activate),
    "RotaryEmbedding": _rotate,
    "MultiHeadAttention": _attend,
    **dict.fromkeys(("Attention", "QAttention"), _project),
}
