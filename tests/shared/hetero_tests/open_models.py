"""Models with open sizes and random weights: a decoder with a growing cache in the form of exporters, an encoder and a detector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY = 1000


class Builder:
    """Collects nodes and random weights of a model. Methods that add a value return its name."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._count = 0

    def weight(self, *shape: int) -> str:
        """Adds a random matrix or vector."""
        scale = 1 / np.sqrt(shape[0]) if len(shape) > 1 else 1
        return self.constant((self._random.standard_normal(shape) * scale).astype(np.float32))

    def constant(self, array: object, dtype: type = np.int64) -> str:
        """Adds a constant: an array with its own element type, numbers as `dtype`."""
        self._count += 1
        name = f"constant_{self._count}"
        held = array if isinstance(array, np.ndarray) else np.array(array, dtype)
        self._weights.append(numpy_helper.from_array(held, name))
        return name

    def add(self, op_type: str, *inputs: str, name: str = "", others: Sequence[str] = (), **attributes: object) -> str:
        """Adds a node, and returns the name of its first output; `others` are further outputs."""
        self._count += 1
        output = name or f"{op_type}_{self._count}"
        self._nodes.append(helper.make_node(op_type, inputs, [output, *others], name=f"node_{self._count}", **attributes))
        return output

    def add_node(self, node: onnx.NodeProto) -> None:
        """Adds a finished node, which may have several outputs."""
        self._nodes.append(node)

    def size(self, value: str, axis: int) -> str:
        """Adds nodes that compute a size of a value, as int64 of shape (1,)."""
        return self.add("Gather", self.add("Shape", value), self.constant([axis]), axis=0)

    def reshape(self, value: str, *parts: str | int) -> str:
        """Adds a Reshape of a value to a shape of constant and computed sizes."""
        sizes = [part if isinstance(part, str) else self.constant([part]) for part in parts]
        return self.add("Reshape", value, self.add("Concat", *sizes, axis=0))

    def finish(self, inputs: dict[str, tuple[int, list[object]]], outputs: dict[str, list[object]]) -> onnx.ModelProto:
        """Returns the model; inputs with element type and shape, outputs of float32 with their shape."""
        graph = helper.make_graph(
            self._nodes,
            "open_model",
            [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            self._weights,
        )
        opsets = [helper.make_opsetid("", 17)]
        if any(node.domain for node in self._nodes):
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _normalize(b: Builder, x: str, width: int) -> str:
    square = b.add("Mul", x, x)
    mean = b.add("ReduceMean", square, axes=[-1], keepdims=1)
    root = b.add("Sqrt", b.add("Add", mean, b.constant(1e-5, np.float32)))
    return b.add("Mul", b.add("Div", x, root), b.weight(width))


def _rotate(b: Builder, x: str, cos: str, sin: str, depth: int) -> str:
    half, last = depth // 2, 1 << 62
    low = b.add("Slice", x, b.constant([0]), b.constant([half]), b.constant([3]))
    high = b.add("Slice", x, b.constant([half]), b.constant([last]), b.constant([3]))
    turned = b.add("Concat", b.add("Neg", high), low, axis=-1)
    return b.add("Add", b.add("Mul", x, cos), b.add("Mul", turned, sin))


def make_decoder(*, layers: int = 6, width: int = 512, heads: int = 8, key_heads: int = 2, longest: int = 1024) -> onnx.ModelProto:
    """Returns a decoder. Inputs: tokens, past keys and values. Outputs: logits, and past keys and values extended by the new tokens."""
    b, depth, groups = Builder(), width // heads, heads // key_heads
    batch, steps = b.size("tokens", 0), b.size("tokens", 1)
    past = b.size("past_key_0", 2)
    total = b.add("Add", past, steps)
    zero, step = b.constant(0), b.constant(1)
    begin, end = (b.add("Squeeze", value, b.constant([0])) for value in (past, total))
    queries, keys = b.add("Range", begin, end, step), b.add("Range", zero, end, step)
    allowed = b.add("LessOrEqual", keys, b.add("Unsqueeze", queries, b.constant([1])))
    mask = b.add("Where", allowed, b.constant(0.0, np.float32), b.constant(-1e9, np.float32))
    angles = np.outer(np.arange(longest), 10000.0 ** (-np.arange(0, depth, 2) / depth))
    tables = [np.concatenate([f(angles), f(angles)], axis=1).astype(np.float32) for f in (np.cos, np.sin)]
    cos, sin = (b.add("Unsqueeze", b.add("Gather", b.constant(t), queries), b.constant([0, 1])) for t in tables)
    x = b.add("Gather", b.weight(VOCABULARY, width), "tokens")
    inputs: dict[str, tuple[int, list[object]]] = {"tokens": (TensorProto.INT64, ["batch", "steps"])}
    outputs: dict[str, list[object]] = {"logits": ["batch", "steps", VOCABULARY]}
    for layer in range(layers):
        normed = _normalize(b, x, width)
        parts = {}
        for part, count in (("query", heads), ("key", key_heads), ("value", key_heads)):
            flat = b.add("MatMul", normed, b.weight(width, count * depth))
            parts[part] = b.add("Transpose", b.reshape(flat, batch, steps, count, depth), perm=[0, 2, 1, 3])
        query, key = (_rotate(b, parts[part], cos, sin, depth) for part in ("query", "key"))
        joined = {}
        for part, new in (("key", key), ("value", parts["value"])):
            name = f"past_{part}_{layer}"
            inputs[name] = (TensorProto.FLOAT, ["batch", key_heads, "past", depth])
            outputs[f"present_{part}_{layer}"] = ["batch", key_heads, "total", depth]
            present = b.add("Concat", name, new, axis=2, name=f"present_{part}_{layer}")
            wide = b.add("Unsqueeze", present, b.constant([2]))
            shape = b.add("Concat", batch, b.constant([key_heads, groups]), total, b.constant([depth]), axis=0)
            joined[part] = b.reshape(b.add("Expand", wide, shape), batch, heads, total, depth)
        scores = b.add("MatMul", query, b.add("Transpose", joined["key"], perm=[0, 1, 3, 2]))
        scaled = b.add("Add", b.add("Div", scores, b.constant(np.sqrt(depth), np.float32)), mask)
        mixed = b.add("MatMul", b.add("Softmax", scaled, axis=-1), joined["value"])
        flat = b.reshape(b.add("Transpose", mixed, perm=[0, 2, 1, 3]), batch, steps, width)
        x = b.add("Add", x, b.add("MatMul", flat, b.weight(width, width)))
        normed, inner = _normalize(b, x, width), width * 11 // 4
        gate = b.add("MatMul", normed, b.weight(width, inner))
        active = b.add("Mul", gate, b.add("Sigmoid", gate))
        wide = b.add("Mul", active, b.add("MatMul", normed, b.weight(width, inner)))
        x = b.add("Add", x, b.add("MatMul", wide, b.weight(inner, width)))
    b.add("MatMul", _normalize(b, x, width), b.weight(width, VOCABULARY), name="logits")
    return b.finish(inputs, outputs)


def make_encoder(*, layers: int = 6, width: int = 256, heads: int = 4, longest: int = 512) -> onnx.ModelProto:
    """Returns an encoder of tokens with a mask of valid tokens; batch and length are open."""
    b, depth = Builder(), width // heads
    batch, length = b.size("tokens", 0), b.size("tokens", 1)
    positions = b.add("Range", b.constant(0), b.add("Squeeze", length, b.constant([0])), b.constant(1))
    x = b.add("Add", b.add("Gather", b.weight(VOCABULARY, width), "tokens"), b.add("Gather", b.weight(longest, width), positions))
    counted = b.add("Cast", b.add("Unsqueeze", "mask", b.constant([1, 2])), to=TensorProto.FLOAT)
    bias = b.add("Mul", b.add("Sub", b.constant(1.0, np.float32), counted), b.constant(-1e4, np.float32))
    for _ in range(layers):
        parts = []
        for _part in range(3):
            flat = b.add("Add", b.add("MatMul", x, b.weight(width, width)), b.weight(width))
            parts.append(b.add("Transpose", b.reshape(flat, batch, length, heads, depth), perm=[0, 2, 1, 3]))
        query, key, value = parts
        scores = b.add("MatMul", query, b.add("Transpose", key, perm=[0, 1, 3, 2]))
        scaled = b.add("Add", b.add("Div", scores, b.constant(np.sqrt(depth), np.float32)), bias)
        mixed = b.add("MatMul", b.add("Softmax", scaled, axis=-1), value)
        flat = b.reshape(b.add("Transpose", mixed, perm=[0, 2, 1, 3]), batch, length, width)
        x = b.add("Add", x, b.add("Add", b.add("MatMul", flat, b.weight(width, width)), b.weight(width)))
        x = b.add("LayerNormalization", x, b.weight(width), b.weight(width), axis=-1)
        wide = b.add("Add", b.add("MatMul", x, b.weight(width, 4 * width)), b.weight(4 * width))
        erf = b.add("Add", b.add("Erf", b.add("Div", wide, b.constant(np.sqrt(2), np.float32))), b.constant(1.0, np.float32))
        active = b.add("Mul", b.add("Mul", wide, erf), b.constant(0.5, np.float32))
        x = b.add("Add", x, b.add("Add", b.add("MatMul", active, b.weight(4 * width, width)), b.weight(width)))
        x = b.add("LayerNormalization", x, b.weight(width), b.weight(width), axis=-1)
    b.add("MatMul", x, b.weight(width, 32), name="scores")
    tokens: tuple[int, list[object]] = (TensorProto.INT64, ["batch", "length"])
    return b.finish({"tokens": tokens, "mask": tokens}, {"scores": ["batch", "length", 32]})


def make_detector(*, width: int = 16, depth: int = 3, classes: int = 8) -> onnx.ModelProto:
    """Returns a U-Net with boxes from each of its upper levels; batch, height and width are open.

    Resize enlarges an image to the size of the skip connection that it is concatenated with, computed by `Shape`.
    """
    b = Builder()

    def convolve(x: str, channels: int, outputs: int, *, kernel: int = 3, stride: int = 1, group: int = 1) -> str:
        weight = b.add("Mul", b.weight(outputs, channels // group, kernel, kernel), b.constant(1 / kernel, np.float32))
        pads = [kernel // 2] * 4
        convolution = b.add("Conv", x, weight, b.weight(outputs), pads=pads, strides=[stride, stride], group=group)
        return b.add("Relu", convolution)

    x, skips, channels = convolve("image", 3, width), [], width
    for level in range(depth):
        skips.append((x, channels))
        # Alternates pooling and strided convolution, because networks use both.
        x = b.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]) if level % 2 else convolve(x, channels, channels, stride=2)
        x = convolve(convolve(x, channels, channels, group=channels), channels, 2 * channels, kernel=1)
        x = b.add("Add", x, convolve(x, 2 * channels, 2 * channels))
        channels *= 2
    boxes = []
    batch = b.size("image", 0)
    for skip, beside in reversed(skips):
        head = b.add("Slice", b.add("Shape", x), b.constant([0]), b.constant([2]), b.constant([0]))
        sizes = b.add(
            "Concat", head, b.add("Slice", b.add("Shape", skip), b.constant([2]), b.constant([4]), b.constant([0])), axis=0
        )
        attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        grown = b.add("Resize", x, "", "", sizes, **attributes)
        x = convolve(b.add("Concat", grown, skip, axis=1), channels + beside, beside)
        channels = beside
        scores = b.add("Conv", x, b.weight(classes, channels, 1, 1), b.weight(classes))
        boxes.append(b.reshape(b.add("Transpose", scores, perm=[0, 2, 3, 1]), batch, -1, classes))
    b.add("Sigmoid", b.add("Concat", *boxes, axis=1), name="boxes")
    image: tuple[int, list[object]] = (TensorProto.FLOAT, ["batch", 3, "height", "width"])
    return b.finish({"image": image}, {"boxes": ["batch", "places", classes]})
