"""Operators of image networks: convolutions, pooling, concatenations, pieces, resizing, normalization; float (batch, channels, h, w)."""

from __future__ import annotations

import math

import numpy as np

from hetero_core.testing.graphs.builder import LARGEST_WORK, GraphBuilder, NotApplicable, Size, Value

CHANNELS = (1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 80, 96, 128)
SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 17, 20, 28, 32, 40)
EDGES = (16_384, 55_000, 65_536, 75_000, 120_000, 131_072, 186_000, 205_000, 262_144)
"""Bytes around which the memory of a plan changes its form: the sizes of values are drawn on both sides."""


def draw_image(b: GraphBuilder, batch: Size) -> tuple[Size, ...]:
    """Returns the shape of an image, every other time one whose bytes lie beside one of the EDGES."""
    height = b.choose(*SIDES)
    width = height if b.chance(0.6) else b.choose(*SIDES)
    channels = b.choose(*CHANNELS)
    if b.chance(0.5):
        row = 4 * height * width * b.size(batch)
        channels = max(1, b.choose(*EDGES) // row + b.integer(-1, 1))
        channels = min(channels, 400)
    while channels > 1 and b.count((batch, channels, height, width)) > 60_000:
        channels //= 2
    return batch, channels, height, width


def _pick(b: GraphBuilder) -> tuple[Value, Size, int, int, int]:
    """Returns an image and its four sizes, of which the batch alone may be open."""
    x = b.pick(
        lambda value: value.dtype == b.dtype and value.rank == 4 and all(isinstance(size, int) for size in value.shape[1:]) and value.bound < 300
    )
    batch, channels, height, width = x.shape
    return x, batch, int(channels), int(height), int(width)


def grow_conv(b: GraphBuilder) -> None:
    """Adds a convolution: plain, 1x1, grouped, depthwise, strided, dilated, with pads on any side."""
    x, batch, channels, height, width = _pick(b)
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
    read: list[Value | str] = [x, weight]
    if b.chance(0.6):
        read.append(b.weight(outputs, deviation=0.3))
    y = b.add(
        "Conv", read, (batch, outputs, *spatial), bound=x.bound + 1, kernel_shape=kernel, strides=stride, dilations=dilation, pads=pads, group=group
    )
    _follow(b, y)


def _follow(b: GraphBuilder, y: Value) -> None:
    """Adds what often stands behind a convolution and may be fused with it."""
    if b.chance(0.25):
        y = _normalize(b, y)
    if b.chance(0.3):
        others = [one for one in b.values if one.shape == y.shape and one.dtype == y.dtype and one is not y]
        if others:
            other = b.choose(*others)
            y = b.add("Add", b.choose([y, other], [other, y]), y.shape, bound=y.bound + other.bound)
    if b.chance(0.5):
        b.add(b.choose("Relu", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "HardSigmoid"), [y], y.shape, bound=y.bound)


def _normalize(b: GraphBuilder, x: Value) -> Value:
    channels = int(x.shape[1])
    scale, shift, mean = (b.weight(channels, deviation=0.3, mean=offset) for offset in (1, 0, 0))
    variance = b.constant((b.random.random(channels) + 0.5).astype(x.dtype))
    return b.add("BatchNormalization", [x, scale, shift, mean, variance], x.shape, bound=2 * x.bound, epsilon=1e-5)


def grow_batch_norm(b: GraphBuilder) -> None:
    """Adds a batch normalization that stands alone."""
    _normalize(b, _pick(b)[0])


def grow_transposed(b: GraphBuilder) -> None:
    """Adds a transposed convolution."""
    x, batch, channels, height, width = _pick(b)
    outputs = b.choose(1, 3, 8, 9, 16, 32)
    kernel, stride = b.choose(((2, 2), (2, 2)), ((3, 3), (2, 2)), ((3, 3), (1, 1)), ((4, 4), (2, 2)), ((1, 1), (1, 1)), ((2, 2), (3, 3)))
    pad = b.choose(0, 0, 1) if kernel[0] > 2 else 0
    extra = b.integer(0, stride[0] - 1) if b.chance(0.3) else 0
    spatial = [(size - 1) * stride[0] + kernel[0] - 2 * pad + extra for size in (height, width)]
    group = 2 if channels % 2 == 0 and b.chance(0.2) else 1
    if min(spatial) < 1 or b.count((batch, channels, height, width)) * outputs * math.prod(kernel) > LARGEST_WORK:
        raise NotApplicable
    weight = b.weight(channels, outputs, *kernel, deviation=1 / math.sqrt(channels * math.prod(kernel) / math.prod(stride) / group))
    read: list[Value | str] = [x, weight, b.weight(outputs * group, deviation=0.3)] if b.chance(0.6) else [x, weight]
    y = b.add(
        "ConvTranspose", read, (batch, outputs * group, *spatial), bound=x.bound + 1,
        kernel_shape=kernel, strides=stride, pads=[pad] * 4, output_padding=[extra] * 2, group=group,
    )  # fmt: skip
    _follow(b, y)


def grow_pool(b: GraphBuilder) -> None:
    """Adds a pooling over windows, or over the whole image."""
    x, batch, channels, height, width = _pick(b)
    if b.chance(0.2):
        b.add(b.choose("GlobalAveragePool", "GlobalMaxPool"), [x], (batch, channels, 1, 1), bound=x.bound)
        return
    kernel = b.choose((2, 2), (2, 2), (3, 3), (3, 3), (1, 2), (5, 5), (1, 1))
    stride = b.choose((1, 1), (2, 2), (2, 2), (1, 2), (3, 3))
    pads = [b.integer(0, (size - 1) // 2) for size in (*kernel, *kernel)] if b.chance(0.6) else [0] * 4
    ceil_mode = int(b.chance(0.25))
    spatial = _slide((height, width), kernel, stride, (1, 1), pads, ceil_mode=ceil_mode)
    operator = b.choose("MaxPool", "AveragePool")
    # A window that begins in the padding behind the image is where implementations of ceil_mode differ.
    if ceil_mode and any((out - 1) * step >= size + pads[axis] for axis, (out, step, size) in enumerate(zip(spatial, stride, (height, width), strict=True))):
        raise NotApplicable
    include = int(b.chance(0.4)) if operator == "AveragePool" and not ceil_mode else None
    b.add(operator, [x], (batch, channels, *spatial), bound=x.bound, kernel_shape=kernel, strides=stride, pads=pads, ceil_mode=ceil_mode, count_include_pad=include)


def grow_concat(b: GraphBuilder) -> None:
    """Adds a concatenation along channels or sides of two to four images, some of them at times the same."""
    x, batch, _, height, width = _pick(b)
    axis = b.choose(1, 1, 1, 1, 2, 3)
    partners = [
        one
        for one in b.values
        if one.dtype == x.dtype and one.rank == 4 and all(one.shape[i] == x.shape[i] for i in range(4) if i != axis) and isinstance(one.shape[axis], int)
    ]
    read = [x, *(b.choose(*partners) for _ in range(b.integer(1, 3)))]
    if b.chance(0.15):
        shape = [size if isinstance(size, int) else 1 for size in x.shape]
        if isinstance(batch, int):
            shape[axis] = b.integer(1, 3)
            array = b.random.standard_normal(shape).astype(x.dtype)
            joined: list[Value | str] = [*read, b.constant(array)]
            sizes = list(x.shape)
            sizes[axis] = sum(int(one.shape[axis]) for one in read) + shape[axis]
            b.add("Concat", joined, sizes, bound=max(one.bound for one in read), axis=axis)
            return
    order = [read[int(index)] for index in b.random.permutation(len(read))]
    sizes = list(x.shape)
    sizes[axis] = sum(int(one.shape[axis]) for one in read)
    b.add("Concat", order, sizes, bound=max(one.bound for one in read), axis=axis if b.chance(0.8) else axis - 4)


def grow_slice(b: GraphBuilder) -> None:
    """Adds a slice along one or two axes, at times with steps or backwards."""
    x = _pick(b)[0]
    axes = b.choose([1], [1], [2], [3], [2, 3])
    starts, ends, steps, sizes = [], [], [], list(x.shape)
    for axis in axes:
        size = int(x.shape[axis])
        start = b.integer(0, size - 1)
        stop = b.integer(start + 1, size)
        step = b.choose(1, 1, 1, 2)
        sizes[axis] = -(-(stop - start) // step)
        if b.chance(0.1):
            starts.append(stop - 1)
            ends.append(start - 1 - size)
            steps.append(-step)
        else:
            starts.append(start)
            ends.append(stop if stop < size else b.choose(size, 2**31 - 1))
            steps.append(step)
    b.add("Slice", [x, b.numbers(*starts), b.numbers(*ends), b.numbers(*axes), b.numbers(*steps)], sizes, bound=x.bound)


def grow_split(b: GraphBuilder) -> None:
    """Adds a split into two or three pieces along the channels or a side."""
    x = _pick(b)[0]
    axis = b.choose(1, 1, 1, 2, 3)
    size = int(x.shape[axis])
    count = b.integer(2, 3)
    if size < count:
        raise NotApplicable
    if b.chance(0.5) and size % count == 0:
        pieces = [size // count] * count
    else:
        cuts = sorted(int(cut) + 1 for cut in b.random.choice(size - 1, count - 1, replace=False))
        pieces = [high - low for low, high in zip([0, *cuts], [*cuts, size], strict=True)]
    shapes = [(*x.shape[:axis], piece, *x.shape[axis + 1 :]) for piece in pieces]
    b.add_many("Split", [x, b.numbers(*pieces)], shapes, bound=x.bound, axis=axis)


def grow_resize(b: GraphBuilder) -> None:
    """Adds a Resize by whole factors or to sizes."""
    x, batch, channels, height, width = _pick(b)
    mode = b.choose("nearest", "nearest", "linear")
    form = b.choose("asymmetric", "half_pixel", "align_corners" if mode == "linear" else "asymmetric")
    factors = [b.choose(1, 2, 2, 3), b.choose(1, 2, 2, 3)]
    if b.chance(0.7) or form == "half_pixel":
        scales = b.constant(np.array([1, 1, *factors], np.float32))
        read = [x, "", scales]
        spatial = [height * factors[0], width * factors[1]]
    else:
        if not isinstance(batch, int):
            raise NotApplicable
        spatial = [height * factors[0], width * factors[1]]
        read = [x, "", "", b.numbers(batch, channels, *spatial)]
    nearest = b.choose("floor", "round_prefer_floor") if mode == "nearest" else None
    b.add("Resize", read, (batch, channels, *spatial), bound=x.bound, mode=mode, coordinate_transformation_mode=form, nearest_mode=nearest)


def grow_pad(b: GraphBuilder) -> None:
    """Adds a Pad; a convolution or pooling behind it may take it in."""
    x, batch, channels, height, width = _pick(b)
    mode = b.choose("constant", "constant", "constant", "reflect", "edge")
    pads = [0, 0, b.integer(0, 2), b.integer(0, 2), 0, b.choose(0, 0, 1) if mode == "constant" else 0, b.integer(0, 2), b.integer(0, 2)]
    if mode == "reflect" and min(height, width) < 4:
        raise NotApplicable
    read: list[Value | str] = [x, b.numbers(*pads)]
    if mode == "constant" and b.chance(0.4):
        read.append(b.scalar(b.choose(0, 0, -1.5)))
    sizes = (batch, channels + pads[1] + pads[5], height + pads[2] + pads[6], width + pads[3] + pads[7])
    b.add("Pad", read, sizes, bound=x.bound, mode=mode)


def grow_shuffle(b: GraphBuilder) -> None:
    """Adds a rearrangement of channels and pixels: shuffled groups, DepthToSpace, SpaceToDepth."""
    x, batch, channels, height, width = _pick(b)
    match b.choose("groups", "depth", "space"):
        case "groups":
            groups = b.choose(*[size for size in (2, 3, 4, 8) if channels % size == 0] or [1])
            split = (batch, groups, channels // groups, height, width)
            y = b.add("Reshape", [x, b.numbers(0, *(int(size) for size in split[1:]))], split, bound=x.bound)
            turned = b.add("Transpose", [y], (batch, channels // groups, groups, height, width), bound=x.bound, perm=[0, 2, 1, 3, 4])
            b.add("Reshape", [turned, b.numbers(0, channels, height, width)], x.shape, bound=x.bound)
        case "depth" if channels % 4 == 0:
            shape = (batch, channels // 4, 2 * height, 2 * width)
            b.add("DepthToSpace", [x], shape, bound=x.bound, blocksize=2, mode=b.choose("DCR", "CRD"))
        case "space" if height % 2 == 0 and width % 2 == 0:
            b.add("SpaceToDepth", [x], (batch, 4 * channels, height // 2, width // 2), bound=x.bound, blocksize=2)
        case _:
            raise NotApplicable


def grow_excitation(b: GraphBuilder) -> None:
    """Adds a squeeze and excitation: the image times a number for each channel that is computed from it."""
    x, batch, channels, _, _ = _pick(b)
    inner = max(1, channels // b.choose(2, 4))
    squeezed: Value = b.add("GlobalAveragePool", [x], (batch, channels, 1, 1), bound=x.bound)
    if b.chance(0.3):
        axes = {"axes": [2, 3]} if b.opset < 18 else {}
        read: list[Value | str] = [x] if b.opset < 18 else [x, b.numbers(2, 3)]
        squeezed = b.add("ReduceMean", read, (batch, channels, 1, 1), bound=x.bound, keepdims=1, **axes)
    for index, (sources, outputs) in enumerate(((channels, inner), (inner, channels))):
        weight = b.weight(outputs, sources, 1, 1, deviation=sources**-0.5)
        squeezed = b.add("Conv", [squeezed, weight, b.weight(outputs)], (batch, outputs, 1, 1), bound=x.bound + 1)
        squeezed = b.add(b.choose("Sigmoid", "HardSigmoid") if index else "Relu", [squeezed], squeezed.shape, bound=1)
    b.add("Mul", b.choose([x, squeezed], [squeezed, x]), x.shape, bound=x.bound)


def grow_instance_norm(b: GraphBuilder) -> None:
    """Adds a normalization that is not folded: InstanceNormalization, LRN, LpNormalization."""
    x, _, channels, height, width = _pick(b)
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
    x, batch, channels, height, width = _pick(b)
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


def _slide(sizes: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], pads: list[int], *, ceil_mode: int = 0) -> tuple[int, int]:
    """Returns the sizes of what windows make of an image. Raises: NotApplicable where no window fits."""
    spatial = []
    for axis in range(2):
        room = sizes[axis] + pads[axis] + pads[axis + 2] - (dilation[axis] * (kernel[axis] - 1) + 1)
        if room < 0:
            raise NotApplicable
        spatial.append((-(-room // stride[axis]) if ceil_mode else room // stride[axis]) + 1)
    return spatial[0], spatial[1]


OPERATORS = (
    (8, grow_conv), (1, grow_batch_norm), (1, grow_transposed), (4, grow_pool), (5, grow_concat), (2, grow_slice), (2, grow_split),
    (1, grow_resize), (1, grow_pad), (1, grow_shuffle), (1, grow_excitation), (1, grow_instance_norm), (0.6, grow_head),
)  # fmt: skip
"""Each operator with its weight."""
