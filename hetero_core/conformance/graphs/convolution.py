"""Operators that compute on images: convolutions, pooling, normalization, excitation, classifiers; float (batch, channels, h, w)."""

from __future__ import annotations

import math

from hetero_core.conformance.graphs.arrangement import reduce
from hetero_core.conformance.graphs.builder import LARGEST_WORK, DrawnValue, GraphBuilder, NotApplicable
from hetero_core.conformance.graphs.image import CHANNELS, pick_image


def grow_conv(b: GraphBuilder) -> None:
    """Adds a convolution: plain, 1x1, grouped, depthwise, strided, dilated, with pads on any side."""
    x, batch, channels, height, width = pick_image(b)
    group = 1
    if b.chance(0.3):
        group = b.choose(*[size for size in (channels, 2, 4, 8) if channels % size == 0] or [1])
    outputs = b.choose(*CHANNELS) if group == 1 else group * b.choose(1, 1, 2, 4)
    if group == channels and b.chance(0.7):
        outputs = channels
    kernel = b.choose((1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (1, 3), (3, 1), (2, 2), (7, 7))
    stride = b.choose((1, 1), (1, 1), (2, 2), (1, 2), (3, 3))
    dilation = b.choose((1, 1), (1, 1), (1, 1), (2, 2))
    pads = _draw_pads(b, kernel)
    spatial = _slide((height, width), kernel, stride, dilation, pads)
    work = b.count((batch, outputs, *spatial)) * channels // group * math.prod(kernel)
    if work > LARGEST_WORK:
        raise NotApplicable
    fan = channels // group * math.prod(kernel)
    weight = b.weight(outputs, channels // group, *kernel, deviation=1 / math.sqrt(fan))
    read: list[DrawnValue | str] = [x, weight]
    if b.chance(0.6):
        read.append(b.weight(outputs, deviation=0.3))
    windows = {"kernel_shape": kernel, "strides": stride, "dilations": dilation, "pads": pads}
    _follow(b, b.add("Conv", read, (batch, outputs, *spatial), bound=x.bound + 1, group=group, **windows))


def _follow(b: GraphBuilder, y: DrawnValue) -> None:
    """Adds operators that often follow a convolution and may be fused with it."""
    if b.chance(0.25):
        y = _normalize(b, y)
    if b.chance(0.3):
        others = [value for value in b.values if value.shape == y.shape and value.dtype == y.dtype and value is not y]
        if others:
            other = b.choose(*others)
            y = b.add("Add", b.choose([y, other], [other, y]), y.shape, bound=y.bound + other.bound)
    if b.chance(0.5):
        b.add(b.choose("Relu", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "HardSigmoid"), [y], y.shape, bound=y.bound)


def _normalize(b: GraphBuilder, x: DrawnValue) -> DrawnValue:
    channels = int(x.shape[1])
    scale, shift, mean = (b.weight(channels, deviation=0.3, mean=offset) for offset in (1, 0, 0))
    variance = b.constant((b.random.random(channels) + 0.5).astype(x.dtype))
    return b.add("BatchNormalization", [x, scale, shift, mean, variance], x.shape, bound=2 * x.bound, epsilon=1e-5)


def grow_batch_norm(b: GraphBuilder) -> None:
    """Adds a batch normalization that stands alone."""
    _normalize(b, pick_image(b)[0])


def grow_transposed(b: GraphBuilder) -> None:
    """Adds a transposed convolution."""
    x, batch, channels, height, width = pick_image(b)
    outputs = b.choose(1, 3, 8, 9, 16, 32)
    kernel, stride = b.choose(
        ((2, 2), (2, 2)), ((3, 3), (2, 2)), ((3, 3), (1, 1)), ((4, 4), (2, 2)), ((1, 1), (1, 1)), ((2, 2), (3, 3))
    )
    pad = b.choose(0, 0, 1) if kernel[0] > 2 else 0
    extra = b.integer(0, stride[0] - 1) if b.chance(0.3) else 0
    spatial = [(size - 1) * stride[0] + kernel[0] - 2 * pad + extra for size in (height, width)]
    group = 2 if channels % 2 == 0 and b.chance(0.2) else 1
    if min(spatial) < 1 or b.count((batch, channels, height, width)) * outputs * math.prod(kernel) > LARGEST_WORK:
        raise NotApplicable
    weight = b.weight(channels, outputs, *kernel, deviation=1 / math.sqrt(channels * math.prod(kernel) / math.prod(stride) / group))
    read: list[DrawnValue | str] = [x, weight, b.weight(outputs * group, deviation=0.3)] if b.chance(0.6) else [x, weight]
    y = b.add(
        "ConvTranspose", read, (batch, outputs * group, *spatial), bound=x.bound + 1,
        kernel_shape=kernel, strides=stride, pads=[pad] * 4, output_padding=[extra] * 2, group=group,
    )  # fmt: skip
    _follow(b, y)


def grow_pool(b: GraphBuilder) -> None:
    """Adds a pooling over windows, or over the whole image."""
    x, batch, channels, height, width = pick_image(b)
    if b.chance(0.2):
        b.add(b.choose("GlobalAveragePool", "GlobalMaxPool"), [x], (batch, channels, 1, 1), bound=x.bound)
        return
    kernel = b.choose((2, 2), (2, 2), (3, 3), (3, 3), (1, 2), (5, 5), (1, 1))
    stride = b.choose((1, 1), (2, 2), (2, 2), (1, 2), (3, 3))
    pads = [b.integer(0, (size - 1) // 2) for size in (*kernel, *kernel)] if b.chance(0.6) else [0] * 4
    ceil_mode = int(b.chance(0.25))
    spatial = _slide((height, width), kernel, stride, (1, 1), pads, ceil_mode=ceil_mode)
    operator = b.choose("MaxPool", "AveragePool")
    # Implementations of ceil_mode differ if a window begins in the padding behind the image.
    if ceil_mode and any(
        (out - 1) * step >= size + pads[axis]
        for axis, (out, step, size) in enumerate(zip(spatial, stride, (height, width), strict=True))
    ):
        raise NotApplicable
    include = int(b.chance(0.4)) if operator == "AveragePool" and not ceil_mode else None
    windows = {"kernel_shape": kernel, "strides": stride, "pads": pads, "ceil_mode": ceil_mode, "count_include_pad": include}
    b.add(operator, [x], (batch, channels, *spatial), bound=x.bound, **windows)


def grow_excitation(b: GraphBuilder) -> None:
    """Adds a squeeze and excitation: the image times a number for each channel that is computed from it."""
    x, batch, channels, _, _ = pick_image(b)
    inner = max(1, channels // b.choose(2, 4))
    squeezed: DrawnValue = b.add("GlobalAveragePool", [x], (batch, channels, 1, 1), bound=x.bound)
    if b.chance(0.3):
        squeezed = reduce(b, "ReduceMean", x, [2, 3], keep=True)
    for index, (sources, outputs) in enumerate(((channels, inner), (inner, channels))):
        weight = b.weight(outputs, sources, 1, 1, deviation=sources**-0.5)
        squeezed = b.add("Conv", [squeezed, weight, b.weight(outputs)], (batch, outputs, 1, 1), bound=x.bound + 1)
        squeezed = b.add(b.choose("Sigmoid", "HardSigmoid") if index else "Relu", [squeezed], squeezed.shape, bound=1)
    b.add("Mul", b.choose([x, squeezed], [squeezed, x]), x.shape, bound=x.bound)


def grow_instance_norm(b: GraphBuilder) -> None:
    """Adds a normalization that is not folded: InstanceNormalization, LRN, LpNormalization."""
    x, _, channels, height, width = pick_image(b)
    match b.choose("instance", "instance", "lrn", "lp"):
        case "instance" if height * width > 3:
            scale, shift = b.weight(channels, mean=1, deviation=0.3), b.weight(channels)
            b.add("InstanceNormalization", [x, scale, shift], x.shape, epsilon=1e-2)
        case "lrn":
            b.add("LRN", [x], x.shape, bound=x.bound, size=b.choose(3, 5), alpha=1e-2, beta=0.75, bias=1.0)
        case _:
            squared = b.add("Add", [x, b.scalar(0.5)], x.shape, bound=x.bound)
            b.add("LpNormalization", [squared], x.shape, bound=1, axis=1, p=2)


def grow_head(b: GraphBuilder) -> None:
    """Adds a classifier: Flatten or Reshape, then Gemm."""
    x, batch, channels, height, width = pick_image(b)
    size, outputs = channels * height * width, b.choose(1, 5, 10, 16, 17, 33)
    if size > 8192:
        raise NotApplicable
    if b.chance(0.5):
        flat = b.add("Flatten", [x], (batch, size), bound=x.bound, axis=1)
    else:
        flat = b.add("Reshape", [x, b.numbers(0, -1)], (batch, size), bound=x.bound)
    turned = int(b.chance(0.5))
    weight = b.weight(*((outputs, size) if turned else (size, outputs)), deviation=size**-0.5)
    b.add("Gemm", [flat, weight, b.weight(outputs)], (batch, outputs), bound=x.bound + 1, transB=turned)


def _draw_pads(b: GraphBuilder, kernel: tuple[int, int]) -> list[int]:
    match b.choose("same", "same", "none", "any"):
        case "same":
            half = [size // 2 for size in kernel]
            return [*half, *half]
        case "any":
            return [b.integer(0, size - 1) for size in (*kernel, *kernel)]
    return [0] * 4


def _slide(
    sizes: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pads: list[int],
    *,
    ceil_mode: int = 0,
) -> tuple[int, int]:
    """Returns height and width of the output of windows over an image. Raises: NotApplicable if no window fits."""
    spatial = []
    for axis in range(2):
        room = sizes[axis] + pads[axis] + pads[axis + 2] - (dilation[axis] * (kernel[axis] - 1) + 1)
        if room < 0:
            raise NotApplicable
        spatial.append((-(-room // stride[axis]) if ceil_mode else room // stride[axis]) + 1)
    return spatial[0], spatial[1]


OPERATORS = (
    (8.0, grow_conv),
    (1.0, grow_batch_norm),
    (1.0, grow_transposed),
    (4.0, grow_pool),
    (1.0, grow_excitation),
    (1.0, grow_instance_norm),
    (0.6, grow_head),
)
"""Each operator with its weight."""
