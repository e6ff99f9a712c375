"""Networks of open sizes whose kernels are shipped: layers as image networks and sequence networks have them, and whole networks.

They are there for the kernels that their plans name, so many layers read the same input, and few of them are large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from attention import LENGTHS, draw_attention, draw_cached_attention, make_attention, make_cached_attention
from hetero_tests.open_models import Builder, make_decoder, make_detector, make_encoder
from layers import Feeds, Layers

Activate = Callable[[Builder, str], str]

VECTOR = 16
"""Elements of the longest vector: outputs that are a multiple of it are full vectors on all processors."""
IMAGES = ((7, 9), (20, 24), (48, 56), (120, 136))
"""Heights and widths on both sides of the limits from which on other kernels pay."""
DEPTH = 64


def _function(op_type: str, **attributes: Any) -> Activate:
    return lambda b, x: b.add(op_type, x, **attributes)


def _clip(b: Builder, x: str) -> str:
    return b.add("Clip", x, b.constant(0.0, np.float32), b.constant(6.0, np.float32))


def _swish(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Sigmoid", x))


def _gelu(b: Builder, x: str) -> str:
    erf = b.add("Add", b.add("Erf", b.add("Div", x, b.constant(np.sqrt(2), np.float32))), b.constant(1.0, np.float32))
    return b.add("Mul", b.add("Mul", x, erf), b.constant(0.5, np.float32))


def _gelu_tanh(b: Builder, x: str) -> str:
    cube = b.add("Mul", b.add("Pow", x, b.constant(3.0, np.float32)), b.constant(0.044715, np.float32))
    inner = b.add("Mul", b.add("Add", x, cube), b.constant(np.sqrt(2 / np.pi), np.float32))
    outer = b.add("Add", b.add("Tanh", inner), b.constant(1.0, np.float32))
    return b.add("Mul", b.add("Mul", x, outer), b.constant(0.5, np.float32))


def _mish(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Tanh", b.add("Softplus", x)))


def _nothing(b: Builder, x: str) -> str:
    return x


FREQUENT: Sequence[Activate] = (_nothing, _function("Relu"))
OF_IMAGES: Sequence[Activate] = (
    _clip,
    _swish,
    _function("HardSwish"),
    _function("LeakyRelu", alpha=0.01),
    _function("LeakyRelu", alpha=0.1),
    _function("LeakyRelu", alpha=0.2),
    _function("Sigmoid"),
    _function("Elu"),
    _function("Tanh"),
)
OF_HEADS: Sequence[Activate] = (_function("Sigmoid"), _function("Tanh"))
OF_GATES: Sequence[Activate] = (
    *FREQUENT,
    _swish,
    _function("HardSwish"),
    _function("Sigmoid"),
    _function("HardSigmoid", alpha=1 / 6),
    _function("Tanh"),
    _gelu,
)
OF_SEQUENCES: Sequence[Activate] = (_gelu, _gelu_tanh, _swish)
OFTEN = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 240, 256, 320, 384)
"""Numbers of outputs that layers with the other functions have."""


def _convolve(b: Builder, x: str, channels: int, outputs: int, kernel: int = 3, stride: int = 1, group: int = 1) -> str:
    weight, bias = b.weight(outputs, channels // group, kernel, kernel), b.weight(outputs)
    pads = [kernel // 2] * 4
    return b.add("Conv", x, weight, bias, pads=pads, strides=[stride, stride], group=group, kernel_shape=[kernel, kernel])


def _make_convolutions(
    activate: Activate, kernels: Sequence[tuple[int, int]], outputs: Sequence[int], *, adds: bool
) -> onnx.ModelProto:
    channels = 32
    layers = Layers({"x": ["batch", 3, "height", "width"]})
    b = layers.builder
    x = b.add("Relu", _convolve(b, "x", 3, channels))
    for kernel, stride in kernels:
        for count in outputs:
            y = _convolve(b, x, channels, count, kernel, stride)
            layers.end(activate(b, y), 4)
            if adds:
                other = b.add("Relu", _convolve(b, x, channels, count, 1, stride))
                layers.end(activate(b, b.add("Add", _convolve(b, x, channels, count, kernel, stride), other)), 4)
    return layers.finish()


def _make_depthwise(activate: Activate) -> onnx.ModelProto:
    layers = Layers({"x": ["batch", 3, "height", "width"]})
    b = layers.builder
    for channels in (32, 24):
        x = b.add("Relu", _convolve(b, "x", 3, channels))
        for kernel in (3, 5, 7):
            for stride in (1, 2):
                layers.end(activate(b, _convolve(b, x, channels, channels, kernel, stride, channels)), 4)
        # Images without zeros around them: what stands between such layers is computed with channels last.
        other = b.add("Relu", _convolve(b, "x", 3, channels))
        turned = b.add(
            "LayerNormalization", b.add("Transpose", other, perm=[0, 2, 3, 1]), b.weight(channels), b.weight(channels), axis=-1
        )
        back = b.add("Transpose", b.add("MatMul", turned, b.weight(channels, channels)), perm=[0, 3, 1, 2])
        for kernel in (3, 5, 7):
            for value in (other, b.add("Add", other, back)):
                layers.end(activate(b, _convolve(b, value, channels, channels, kernel, 1, channels)), 4)
    return layers.finish()


def _make_others(batch: int | str) -> onnx.ModelProto:
    """Poolings, resizes, concatenations and what else stands between convolutions."""
    layers = Layers({"x": [batch, 3, "height", "width"]})
    b, channels = layers.builder, 32
    first = b.add("Relu", _convolve(b, "x", 3, channels))
    for count in (channels, 24):
        x = first if count == channels else b.add("Relu", _convolve(b, first, channels, count))
        for kernel, pad in ((2, 0), (3, 1), (5, 2)):
            for stride in (1, 2):
                attributes: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
                layers.end(b.add("MaxPool", x, **attributes), 4)
                if kernel < 5:
                    layers.end(b.add("AveragePool", x, **attributes), 4)
        layers.end(b.add("GlobalAveragePool", x), 4)
        layers.end(b.add("GlobalMaxPool", x), 4)
        scales = b.constant(np.array([1, 1, 2, 2], np.float32))
        for mode in ("nearest", "linear"):
            for place in ("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"):
                floor = {"nearest_mode": "floor"} if mode == "nearest" else {}
                grown = b.add("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=place, **floor)
                layers.end(_convolve(b, b.add("Concat", grown, grown, axis=1), 2 * count, count), 4)
        for outputs in (*_multiples(14), 8, 20, 24, 40):
            grown = b.add("ConvTranspose", x, b.weight(count, outputs, 2, 2), b.weight(outputs), strides=[2, 2])
            layers.end(grown, 4)
            layers.end(b.add("Relu", grown), 4)
        layers.end(_convolve(b, x, count, count, group=count // 8), 4)
        squeezed = b.add("Relu", _convolve(b, b.add("GlobalAveragePool", x), count, 8, 1))
        for activate in OF_GATES[4:6]:
            gate = activate(b, _convolve(b, squeezed, 8, count, 1))
            layers.end(_convolve(b, b.add("Mul", x, gate), count, count), 4)
        layers.end(b.add("Add", x, b.add("Neg", x)), 4)
        layers.end(b.add("Transpose", x, perm=[0, 2, 3, 1]), 4)
        layers.end(b.add("Softmax", x, axis=1), 4)
        for op_type in ("Sigmoid", "Tanh"):
            layers.end(b.add(op_type, b.add("Transpose", x, perm=[0, 2, 3, 1])), 4)
            layers.end(b.add(op_type, b.reshape(x, b.size(x, 0), -1)), 2)
    return layers.finish()


def _make_gates(activate: Activate) -> onnx.ModelProto:
    """One pixel of each image: what stands behind a global pooling."""
    layers = Layers({"x": ["batch", 3, "height", "width"]})
    b = layers.builder
    x = b.add("GlobalAveragePool", b.add("Relu", _convolve(b, "x", 3, 64)))
    flat = b.add("Flatten", x)
    for outputs in (8, 10, 24, 40, *_multiples(13, 16, 20, 24, 30, 60), 1000) if activate in FREQUENT else OFTEN:
        layers.end(activate(b, _convolve(b, x, 64, outputs, 1)), 4)
        layers.end(activate(b, b.add("Gemm", flat, b.weight(64, outputs), b.weight(outputs))), 2)
    return layers.finish()


def _normalize_groups(b: Builder, x: str, count: int, groups: int = 8) -> str:
    flat = b.add("Reshape", x, b.constant([0, groups, -1]))
    ones, zeros = (b.constant(np.full(groups, number, np.float32)) for number in (1, 0))
    normed = b.add("Reshape", b.add("InstanceNormalization", flat, ones, zeros), b.add("Shape", x))
    return b.add("Add", b.add("Mul", normed, b.weight(count, 1, 1)), b.weight(count, 1, 1))


def _make_normalizations() -> onnx.ModelProto:
    layers = Layers({"x": ["batch", 3, "height", "width"]})
    b, count = layers.builder, 32
    x = b.add("Relu", _convolve(b, "x", 3, count))
    for activate in (*FREQUENT, *OF_IMAGES, _gelu, _mish):
        normed = b.add("InstanceNormalization", _convolve(b, x, count, count), b.weight(count), b.weight(count))
        grouped = _normalize_groups(b, _convolve(b, x, count, count), count)
        scaled = [b.weight(count), b.weight(count), b.weight(count), b.constant(np.ones(count, np.float32))]
        added = b.add("Add", _normalize_groups(b, _convolve(b, x, count, count), count), x)
        affine = b.add("BatchNormalization", b.add("Concat", x, x, axis=1), *[b.constant(np.ones(2 * count, np.float32))] * 4)
        affine_of_sum = b.add("BatchNormalization", b.add("Add", x, _normalize_groups(b, x, count)), *scaled)
        for value in (normed, grouped, added, affine_of_sum):
            layers.end(_convolve(b, activate(b, value), count, count), 4)
        layers.end(_convolve(b, activate(b, affine), 2 * count, count), 4)
    return layers.finish()


def _make_functions() -> onnx.ModelProto:
    """Functions that stand alone, as behind a ConvTranspose or where a parameter belongs to each channel."""
    layers = Layers({"x": ["batch", 3, "height", "width"]})
    b, count = layers.builder, 32
    x = b.add("Relu", _convolve(b, "x", 3, count))
    slopes = [b.constant(np.full(shape, 0.25, np.float32)) for shape in ((1, 1, 1), (count, 1, 1))]
    for activate in (*OF_IMAGES, _gelu, _mish):
        grown = b.add("ConvTranspose", x, b.weight(count, count, 2, 2), b.weight(count), strides=[2, 2])
        layers.end(activate(b, grown), 4)
        layers.end(activate(b, b.add("Concat", x, x, axis=1)), 4)
    number = b.constant(0.3, np.float32)
    pooled = b.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for op_type in ("Add", "Sub", "Mul", "Div"):
        layers.end(b.add(op_type, pooled, number), 4)
        layers.end(b.add(op_type, number, pooled), 4)
        layers.end(b.add(op_type, pooled, b.weight(count, 1, 1)), 4)
        layers.end(b.add(op_type, b.weight(count, 1, 1), pooled), 4)
    for slope in slopes:
        layers.end(b.add("PRelu", _convolve(b, x, count, count), slope), 4)
        layers.end(b.add("PRelu", b.add("Add", _convolve(b, x, count, count), x), slope), 4)
    return layers.finish()


def _make_products(activate: Activate, outputs: Sequence[int], *, adds: bool) -> onnx.ModelProto:
    depth = DEPTH
    layers = Layers({"x": ["batch", "length", depth]})
    b = layers.builder
    x = b.add("LayerNormalization", "x", b.weight(depth), b.weight(depth), axis=-1)
    for count in outputs:
        product = b.add("MatMul", x, b.weight(depth, count))
        layers.end(activate(b, b.add("Add", product, b.weight(count))), 3)
        if adds:
            other = b.add("MatMul", x, b.weight(depth, count))
            layers.end(other, 3)
            layers.end(activate(b, b.add("Add", b.add("MatMul", x, b.weight(depth, count)), other)), 3)
    return layers.finish()


def _make_rows() -> onnx.ModelProto:
    """What normalizations are written out as: rows beside one number for each, in either order."""
    layers = Layers({"x": ["batch", "length", DEPTH]})
    b = layers.builder
    for op_type in ("Add", "Sub", "Mul", "Div"):
        mean = b.add("ReduceMean", "x", axes=[-1], keepdims=1)
        layers.end(b.add(op_type, "x", mean), 3)
        layers.end(b.add(op_type, mean, "x"), 3)
        layers.end(b.add(op_type, b.weight(DEPTH), b.add("Softmax", "x")), 3)
        layers.end(b.add(op_type, b.add("Softmax", "x"), b.weight(DEPTH)), 3)
    return layers.finish()


def _multiples(last: int, *more: int) -> list[int]:
    return [VECTOR * count for count in (*range(1, last + 1), *more)]


def _draw_images() -> Iterator[Feeds]:
    for batch in (1, 3):
        for height, width in IMAGES:
            yield {"x": np.zeros((batch, 3, height, width), np.float32)}


def _draw_rows() -> Iterator[Feeds]:
    for batch in (1, 3):
        for length in LENGTHS:
            yield {"x": np.zeros((batch, length, DEPTH), np.float32)}


def _draw_encoder(model: onnx.ModelProto) -> Iterator[Feeds]:
    for batch in (1, 4):
        for length in (5, 20, 100):
            tokens = np.ones((batch, length), np.int64)
            yield {value.name: tokens for value in model.graph.input}


def _draw_decoder(model: onnx.ModelProto) -> Iterator[Feeds]:
    """A prompt, and tokens behind it."""
    for batch in (1, 2):
        for past, steps in ((0, 20), (20, 1), (21, 1), (0, 150), (150, 1), (151, 1), (150, 5), (0, 5)):
            feeds: Feeds = {}
            for value in model.graph.input:
                sizes = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
                is_tokens = len(sizes) == 2
                shape = (batch, steps) if is_tokens else (batch, sizes[1], past, sizes[3])
                feeds[value.name] = np.zeros(shape, np.int64 if is_tokens else np.float32)
            yield feeds


def _list_layers() -> Iterator[tuple[str, onnx.ModelProto, Iterator[Feeds]]]:
    for number, activate in enumerate(FREQUENT):
        kernels = ((1, 1), (3, 1), (3, 2), (5, 1), (7, 2))
        multiples = _multiples(14, 16, 24, 32)
        yield f"convolutions {number}", _make_convolutions(activate, kernels, multiples, adds=True), _draw_images()
        odd = _make_convolutions(activate, ((1, 1), (3, 1)), (1, 2, 3, 4, 8, 21, 24, 40, 72, 80), adds=True)
        yield f"convolutions of odd outputs {number}", odd, _draw_images()
        products = _make_products(activate, _multiples(24, 32, 36, 48, 64), adds=True)
        yield f"products {number}", products, _draw_rows()
    for number, activate in enumerate(OF_IMAGES):
        yield (
            f"functions of images {number}",
            _make_convolutions(activate, ((1, 1), (3, 1), (3, 2)), OFTEN, adds=False),
            _draw_images(),
        )
    for number, activate in enumerate(OF_HEADS):
        yield (
            f"heads of images {number}",
            _make_convolutions(activate, ((1, 1), (3, 1)), (1, 2, 3, 4, 8, 21), adds=False),
            _draw_images(),
        )
    for number, activate in enumerate(OF_GATES):
        yield f"gates {number}", _make_gates(activate), _draw_images()
    yield "normalizations", _make_normalizations(), _draw_images()
    yield "functions alone", _make_functions(), _draw_images()
    for depth in (16, 32, 48, 64, 80, 96, 128):
        for mask in ("nothing", "keys", "past", "floats", "chosen"):
            attention = make_attention(depth, 2, mask)
            yield f"attention of {depth}, mask {mask}", attention, draw_attention(attention)
        for group in range(1, 9) if depth in (64, 128) else (1, 2, 4):
            cached = make_cached_attention(depth, group)
            yield f"cached attention of {depth}, {group} heads share", cached, draw_cached_attention(cached)
    for number, activate in enumerate((*FREQUENT, *OF_IMAGES[:3])):
        yield f"depthwise {number}", _make_depthwise(activate), _draw_images()
    for number, activate in enumerate(OF_SEQUENCES):
        yield (
            f"functions of sequences {number}",
            _make_products(activate, _multiples(24, 32, 36, 48, 64)[-13:], adds=False),
            _draw_rows(),
        )
    yield "rows", _make_rows(), _draw_rows()
    yield "products of odd outputs", _make_products(_nothing, (1, 2, 3, 5, 8, 24, 1000), adds=False), _draw_rows()
    for batch in (1, "batch"):
        yield f"other layers, batch {batch}", _make_others(batch), (feeds for feeds in _draw_images() if len(feeds["x"]) == 1)


def _list_whole() -> Iterator[tuple[str, onnx.ModelProto, Callable[[], Iterator[Feeds]]]]:
    for width, heads, key_heads in ((256, 4, 4), (512, 8, 2), (768, 12, 4), (320, 4, 4), (384, 4, 4), (256, 2, 1)):
        decoder = make_decoder(layers=1, width=width, heads=heads, key_heads=key_heads)
        yield f"decoder of {width}, {heads} heads", decoder, partial(_draw_decoder, decoder)
    for width, heads in ((256, 4), (256, 8), (384, 12), (512, 8), (768, 12), (320, 4), (256, 2)):
        encoder = make_encoder(layers=1, width=width, heads=heads)
        yield f"encoder of {width}, {heads} heads", encoder, partial(_draw_encoder, encoder)
    for width in (8, 16, 24, 32, 48, 64):
        detector = make_detector(width=width)
        yield f"detector of {width}", detector, lambda: ({"image": feeds["x"]} for feeds in _draw_images())


def list_networks() -> Iterator[tuple[str, onnx.ModelProto, int, Iterator[Feeds]]]:
    """Yields networks: a title, the model, a number of threads, and inputs to run it with."""
    for title, model, inputs in _list_layers():
        # The first sizes are the example of a class, which reaches above a limit or below it.
        in_order = list(inputs)
        yield f"{title}, small sizes first", model, 1, iter(in_order)
        yield f"{title}, large sizes first", model, 1, reversed(in_order)
    for title, model, draw in _list_whole():
        for threads in (1, 2):
            yield f"{title}, {threads} threads", model, threads, draw()
