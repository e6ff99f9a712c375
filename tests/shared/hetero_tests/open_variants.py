"""Further models with open sizes and random weights: U-Nets of several kinds, and a decoder with learned positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from hetero_tests.open_models import VOCABULARY, Builder

Activate = Callable[[Builder, str], str]


def swish(b: Builder, x: str) -> str:
    """Adds x * sigmoid(x)."""
    return b.add("Mul", x, b.add("Sigmoid", x))


def relu(b: Builder, x: str) -> str:
    """Adds a Relu."""
    return b.add("Relu", x)


def _convolve(b: Builder, x: str, channels: int, outputs: int, kernel: int = 3) -> str:
    weight = b.add("Mul", b.weight(outputs, channels, kernel, kernel), b.constant(1 / kernel, np.float32))
    return b.add("Conv", x, weight, b.weight(outputs), pads=[kernel // 2] * 4)


def _normalize_batch(b: Builder, x: str, count: int) -> str:
    return b.add("BatchNormalization", x, *(b.weight(count) for _ in range(3)), b.constant(np.ones(count, np.float32)))


def _normalize_groups(b: Builder, x: str, count: int, groups: int = 8) -> str:
    """Adds a group normalization in the form of exporters: reshapes groups into channels, and back."""
    ones, zeros = (b.constant(np.full(groups, number, np.float32)) for number in (1, 0))
    flat = b.add("InstanceNormalization", b.add("Reshape", x, b.constant([0, groups, -1])), ones, zeros)
    normed = b.add("Reshape", flat, b.add("Shape", x))
    return b.add("Add", b.add("Mul", normed, b.weight(count, 1, 1)), b.weight(count, 1, 1))


_NORMS = {"batch": _normalize_batch, "group": _normalize_groups}


def make_unet(
    *, width: int = 16, depth: int = 4, activate: Activate = relu, norm: str = "batch", grow: str = "transposed", channels: int = 1
) -> onnx.ModelProto:
    """Returns a U-Net with two convolutions at each level; height and width must be multiples of 2 ** depth.

    `norm`: "batch", "group" or ""; `grow`: "transposed" for a ConvTranspose, or a mode of Resize.
    """
    b = Builder(1)

    def compute_level(x: str, inputs: int, outputs: int) -> str:
        for own in (inputs, outputs):
            x = _convolve(b, x, own, outputs)
            x = activate(b, _NORMS[norm](b, x, outputs) if norm else x)
        return x

    x, count, skips = compute_level("image", channels, width), width, []
    for _ in range(depth):
        skips.append(x)
        x = compute_level(b.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), count, 2 * count)
        count *= 2
    for skip in reversed(skips):
        if grow == "transposed":
            grown = b.add("ConvTranspose", x, b.weight(count, count // 2, 2, 2), b.weight(count // 2), strides=[2, 2])
        else:
            floor = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} if grow == "nearest" else {}
            grown = b.add("Resize", x, "", b.constant(np.array([1, 1, 2, 2], np.float32)), mode=grow, **floor)
        both = count if grow == "transposed" else count + count // 2
        x = compute_level(b.add("Concat", skip, grown, axis=1), both, count // 2)
        count //= 2
    b.add("Softmax", _convolve(b, x, count, 3, 1), axis=1, name="classes")
    image: tuple[int, list[object]] = (TensorProto.FLOAT, ["batch", channels, "height", "width"])
    return b.finish({"image": image}, {"classes": ["batch", 3, "height", "width"]})


def _normalize(b: Builder, x: str, width: int) -> str:
    return b.add("LayerNormalization", x, b.weight(width), b.weight(width), axis=-1)


def make_gpt(*, layers: int = 4, width: int = 384, heads: int = 6, longest: int = 512) -> onnx.ModelProto:
    """Returns a decoder with a joint projection for queries, keys and values before a `Split`. Inputs and outputs as in `make_decoder`."""
    b, depth = Builder(4), width // heads
    batch, steps, past = b.size("tokens", 0), b.size("tokens", 1), b.size("past_key_0", 2)
    begin, end = (b.add("Squeeze", value, b.constant([0])) for value in (past, b.add("Add", past, steps)))
    queries, keys = b.add("Range", begin, end, b.constant(1)), b.add("Range", b.constant(0), end, b.constant(1))
    allowed = b.add("LessOrEqual", keys, b.add("Unsqueeze", queries, b.constant([1])))
    mask = b.add("Where", allowed, b.constant(0.0, np.float32), b.constant(-1e9, np.float32))
    x = b.add("Gather", b.weight(VOCABULARY, width), "tokens")
    x = b.add("Add", x, b.add("Gather", b.weight(longest, width), queries))
    inputs: dict[str, tuple[int, list[object]]] = {"tokens": (TensorProto.INT64, ["batch", "steps"])}
    outputs: dict[str, list[object]] = {"logits": ["batch", "steps", VOCABULARY]}
    for layer in range(layers):
        packed = b.add("Add", b.add("MatMul", _normalize(b, x, width), b.weight(width, 3 * width)), b.weight(3 * width))
        names = [f"{part}_{layer}" for part in ("query", "key", "value")]
        b.add_node(helper.make_node("Split", [packed, b.constant([width] * 3)], names, name=f"split_{layer}", axis=-1))
        parts = {name: b.add("Transpose", b.reshape(name, batch, steps, heads, depth), perm=[0, 2, 1, 3]) for name in names}
        for name in names[1:]:
            inputs[f"past_{name}"] = (TensorProto.FLOAT, ["batch", heads, "past", depth])
            outputs[f"present_{name}"] = ["batch", heads, "total", depth]
            parts[name] = b.add("Concat", f"past_{name}", parts[name], axis=2, name=f"present_{name}")
        query, key, value = parts.values()
        scores = b.add("MatMul", query, b.add("Transpose", key, perm=[0, 1, 3, 2]))
        scores = b.add("Add", b.add("Div", scores, b.constant(np.sqrt(depth), np.float32)), mask)
        mixed = b.add("Transpose", b.add("MatMul", b.add("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        flat = b.reshape(mixed, batch, steps, width)
        x = b.add("Add", x, b.add("Add", b.add("MatMul", flat, b.weight(width, width)), b.weight(width)))
        inner = b.add("Add", b.add("MatMul", _normalize(b, x, width), b.weight(width, 4 * width)), b.weight(4 * width))
        gate = b.add("Mul", inner, b.add("Sigmoid", b.add("Mul", inner, b.constant(1.702, np.float32))))
        x = b.add("Add", x, b.add("Add", b.add("MatMul", gate, b.weight(4 * width, width)), b.weight(width)))
    b.add("MatMul", _normalize(b, x, width), b.weight(width, VOCABULARY), name="logits")
    return b.finish(inputs, outputs)
