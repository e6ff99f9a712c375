"""Well-known architectures with seeded random weights, hand-written in the form of exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hetero_core.errors import enumerate_choices, suggest
from hetero_tests.network_writer import NetworkWriter

if TYPE_CHECKING:
    import onnx

# MobileNetV2's stages: expansion, channels, blocks, first stride. Source: Sandler et al. 2018, table 2.
_MOBILENET_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2_model(batch: int = 1) -> onnx.ModelProto:
    """Returns MobileNetV2 for images of 224x224, its norms folded: images (batch, 3, 224, 224) to scores (batch, 1000)."""
    writer = NetworkWriter("mobilenet_v2")

    def add_conv(x: str, inputs: int, outputs: int, kernel: int, *, stride: int = 1, group: int = 1, is_last: bool = False) -> str:
        deviation = (1.0 if is_last else 2.0) ** 0.5 / (inputs // group * kernel * kernel) ** 0.5
        weight = writer.draw_weight(outputs, inputs // group, kernel, kernel, deviation=deviation * (0.5 if is_last else 1.0))
        pads = [kernel // 2] * 4
        bias = writer.draw_weight(outputs, deviation=0.1)
        y = writer.add_node("Conv", x, weight, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=group)
        return str(y if is_last else writer.add_node("Clip", y, low, high))

    low, high = writer.add_scalar(0.0), writer.add_scalar(6.0)
    x = add_conv(writer.add_input("images", (batch, 3, 224, 224)), 3, 32, 3, stride=2)
    channels = 32
    for expansion, outputs, blocks, first_stride in _MOBILENET_STAGES:
        for block in range(blocks):
            stride, wide = first_stride if block == 0 else 1, channels * expansion
            y = x if expansion == 1 else add_conv(x, channels, wide, 1)
            y = add_conv(y, wide, wide, 3, stride=stride, group=wide)
            y = add_conv(y, wide, outputs, 1, is_last=True)
            x = str(writer.add_node("Add", x, y)) if stride == 1 and channels == outputs else y
            channels = outputs
    x = writer.add_node("GlobalAveragePool", add_conv(x, channels, 1280, 1))
    weight, bias = writer.draw_weight(1280, 1000, deviation=1280**-0.5), writer.draw_weight(1000, deviation=0.1)
    writer.add_output(writer.add_node("Gemm", writer.add_node("Flatten", x), weight, bias), (batch, 1000))
    return writer.build_model()


def _add_attention(writer: NetworkWriter, x: str, batch: int, length: int, width: int, heads: int) -> str:
    """Adds self-attention of (batch, length, width) in the form of exporters."""
    size = width // heads

    def split(perm: list[int]) -> str:
        return str(
            writer.add_node(
                "Transpose", writer.add_reshape(writer.add_linear(x, width, width), (batch, length, heads, size)), perm=perm
            )
        )

    query, key, value = split([0, 2, 1, 3]), split([0, 2, 3, 1]), split([0, 2, 1, 3])
    scores = writer.add_node("Div", writer.add_node("MatMul", query, key), writer.add_scalar(size**0.5))
    mixed = writer.add_node("MatMul", writer.add_softmax(scores), value)
    joined = writer.add_reshape(writer.add_node("Transpose", mixed, perm=[0, 2, 1, 3]), (batch, length, width))
    return writer.add_linear(joined, width, width)


def vit_tiny_model(batch: int = 1, layers: int = 12) -> onnx.ModelProto:
    """Returns ViT-tiny with patches of 16: images (batch, 3, 224, 224) to scores (batch, 1000). Source: Touvron et al. 2021."""
    writer, width = NetworkWriter("vit_tiny"), 192
    images = writer.add_input("images", (batch, 3, 224, 224))
    patches = writer.add_node(
        "Conv", images, writer.draw_weight(width, 3, 16, 16), writer.draw_weight(width, deviation=0.1), strides=[16, 16]
    )
    rows = writer.add_node("Transpose", writer.add_reshape(patches, (batch, width, 196)), perm=[0, 2, 1])
    first = writer.add_node("Expand", writer.draw_weight(1, 1, width, deviation=0.1), writer.add_numbers(batch, 1, width))
    x = str(
        writer.add_node("Add", writer.add_node("Concat", first, rows, axis=1), writer.draw_weight(1, 197, width, deviation=0.1))
    )
    for _ in range(layers):
        x = str(writer.add_node("Add", x, _add_attention(writer, writer.add_layer_norm(x, width), batch, 197, width, 3)))
        hidden = writer.add_gelu(writer.add_linear(writer.add_layer_norm(x, width), width, 4 * width))
        x = str(writer.add_node("Add", x, writer.add_linear(hidden, 4 * width, width)))
    token = writer.add_node("Gather", writer.add_layer_norm(x, width), writer.add_index(0), axis=1)
    writer.add_output(writer.add_linear(token, width, 1000), (batch, 1000))
    return writer.build_model()


def bert_model(batch: int = 1, layers: int = 12, length: int = 128) -> onnx.ModelProto:
    """Returns BERT-base's encoder: embedded tokens (batch, length, 768) to states of the same shape. Source: Devlin et al. 2019."""
    writer, width = NetworkWriter("bert"), 768
    x = writer.add_input("states", (batch, length, width))
    for _ in range(layers):
        x = writer.add_layer_norm(writer.add_node("Add", _add_attention(writer, x, batch, length, width, 12), x), width)
        hidden = writer.add_gelu(writer.add_linear(x, width, 4 * width))
        x = writer.add_layer_norm(writer.add_node("Add", writer.add_linear(hidden, 4 * width, width), x), width)
    writer.add_output(x, (batch, length, width))
    return writer.build_model()


def gpt2_step_model(batch: int = 1, layers: int = 12, past: int = 128, words: int = 50257) -> onnx.ModelProto:
    """Returns a decoding step of GPT-2 small, with the keys and values of earlier tokens as inputs and outputs.

    token (batch, 1) int64 and past_key_i, past_value_i (batch, 12, past, 64) to logits (batch, 1, words) and present_*.
    """
    writer, width, heads = NetworkWriter("gpt2_step"), 768, 12
    size, table = width // heads, writer.draw_weight(words, width, deviation=0.02)
    tokens = writer.add_input("token", (batch, 1), dtype=7)
    x = str(writer.add_node("Add", writer.add_node("Gather", table, tokens), writer.draw_weight(1, 1, width, deviation=0.02)))
    present: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        joined = writer.add_linear(writer.add_layer_norm(x, width), width, 3 * width)
        parts = writer.add_node("Split", joined, writer.add_numbers(width, width, width), count=3, axis=2)
        query, key, value = (
            writer.add_node("Transpose", writer.add_reshape(part, (batch, 1, heads, size)), perm=[0, 2, 1, 3]) for part in parts
        )
        for role, fresh in (("key", key), ("value", value)):
            before = writer.add_input(f"past_{role}_{layer}", (batch, heads, past, size))
            cache = str(writer.add_node("Concat", before, fresh, axis=2))
            present[cache] = (batch, heads, past + 1, size)
        keys, values = list(present)[-2:]
        scores = writer.add_node("MatMul", query, writer.add_node("Transpose", keys, perm=[0, 1, 3, 2]))
        mixed = writer.add_node("MatMul", writer.add_softmax(writer.add_node("Div", scores, writer.add_scalar(size**0.5))), values)
        rows = writer.add_reshape(writer.add_node("Transpose", mixed, perm=[0, 2, 1, 3]), (batch, 1, width))
        x = str(writer.add_node("Add", x, writer.add_linear(rows, width, width)))
        hidden = writer.add_gelu(writer.add_linear(writer.add_layer_norm(x, width), width, 4 * width))
        x = str(writer.add_node("Add", x, writer.add_linear(hidden, 4 * width, width)))
    logits = writer.add_node("MatMul", writer.add_layer_norm(x, width), writer.add_node("Transpose", table, perm=[1, 0]))
    writer.add_output(logits, (batch, 1, words))
    writer.add_shapes(present)
    return writer.build_model()


def u_net_model(batch: int = 1, size: int = 256, width: int = 32) -> onnx.ModelProto:
    """Returns a U-Net of four levels: images (batch, 3, size, size) to masks (batch, 1, size, size). Source: Ronneberger et al. 2015."""
    writer = NetworkWriter("u_net")

    def add_block(x: str, inputs: int, outputs: int) -> str:
        for channels in (inputs, outputs):
            bias = writer.draw_weight(outputs, deviation=0.1)
            x = str(
                writer.add_node("Relu", writer.add_node("Conv", x, writer.draw_weight(outputs, channels, 3, 3), bias, pads=[1] * 4))
            )
        return x

    x, channels, skipped = writer.add_input("images", (batch, 3, size, size)), 3, []
    for level in range(4):
        x = add_block(x, channels, width << level)
        channels = width << level
        skipped.append(x)
        x = str(writer.add_node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    x = add_block(x, channels, width << 4)
    for level in reversed(range(4)):
        weight = writer.draw_weight(width << (level + 1), width << level, 2, 2, deviation=(width << (level + 1)) ** -0.5)
        raised = writer.add_node("ConvTranspose", x, weight, writer.draw_weight(width << level, deviation=0.1), strides=[2, 2])
        x = add_block(str(writer.add_node("Concat", skipped[level], raised, axis=1)), width << (level + 1), width << level)
    mask = writer.add_node("Conv", x, writer.draw_weight(1, width, 1, 1), writer.draw_weight(1, deviation=0.1))
    writer.add_output(writer.add_node("Sigmoid", mask), (batch, 1, size, size))
    return writer.build_model()


_BUILDERS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "bert": bert_model,
    "gpt2_step": gpt2_step_model,
    "mobilenet_v2": mobilenet_v2_model,
    "u_net": u_net_model,
    "vit_tiny": vit_tiny_model,
}
LARGER_MODELS: tuple[str, ...] = tuple(_BUILDERS)
"""The valid names for `larger_model`."""


def larger_model(name: str, batch: int = 1) -> onnx.ModelProto:
    """Returns a model of this file with its usual sizes.

    Raises: ValueError for a name that is not in `LARGER_MODELS`.
    """
    if name not in _BUILDERS:
        raise ValueError(f"no model '{name}'{suggest(name, LARGER_MODELS) or ';'} there are {enumerate_choices(LARGER_MODELS)}")
    return _BUILDERS[name](batch)
