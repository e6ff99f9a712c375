"""Images and operators that rearrange them: concatenations, slices, splits, resizing, padding, shuffles; float (batch, channels, h, w)."""

from __future__ import annotations

import numpy as np

from hetero_core.conformance.graphs.builder import DrawnValue, GraphBuilder, NotApplicable, Size

CHANNELS = (1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 80, 96, 128)
SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 17, 20, 28, 32, 40)
EDGES = (16_384, 55_000, 65_536, 75_000, 120_000, 131_072, 186_000, 205_000, 262_144)
"""Bytes around which the memory of a plan changes its form: the sizes of values are drawn on both sides."""


def draw_image(b: GraphBuilder, batch: Size) -> tuple[Size, ...]:
    """Returns the shape of an image; half of the time its size in bytes is close to an element of EDGES."""
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


def pick_image(b: GraphBuilder) -> tuple[DrawnValue, Size, int, int, int]:
    """Returns an image and its four sizes; only the batch may be open."""
    x = b.pick_ranked(4, bound=300, closed_from=1)
    batch, channels, height, width = x.shape
    return x, batch, int(channels), int(height), int(width)


def grow_concat(b: GraphBuilder) -> None:
    """Adds a concatenation along channels or sides of two to four images, some of them at times the same."""
    x, batch, *_ = pick_image(b)
    axis = b.choose(1, 1, 1, 1, 2, 3)
    partners = [
        value
        for value in b.values
        if value.dtype == x.dtype
        and value.rank == 4
        and all(value.shape[i] == x.shape[i] for i in range(4) if i != axis)
        and isinstance(value.shape[axis], int)
    ]
    read = [x, *(b.choose(*partners) for _ in range(b.integer(1, 3)))]
    size, bound = sum(int(value.shape[axis]) for value in read), max(value.bound for value in read)
    if b.chance(0.15) and isinstance(batch, int):
        extra = b.integer(1, 3)
        array = b.random.standard_normal([int(side) for side in x.with_size(axis, extra)]).astype(x.dtype)
        b.add("Concat", [*read, b.constant(array)], x.with_size(axis, size + extra), bound=bound, axis=axis)
        return
    order = [read[int(index)] for index in b.random.permutation(len(read))]
    b.add("Concat", order, x.with_size(axis, size), bound=bound, axis=axis if b.chance(0.8) else axis - 4)


def grow_slice(b: GraphBuilder) -> None:
    """Adds a slice along one or two axes, at times with steps or backwards."""
    x = pick_image(b)[0]
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
    x = pick_image(b)[0]
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
    shapes = [x.with_size(axis, piece) for piece in pieces]
    b.add_many("Split", [x, b.numbers(*pieces)], shapes, bound=x.bound, axis=axis)


def grow_resize(b: GraphBuilder) -> None:
    """Adds a Resize by whole factors or to sizes."""
    x, batch, channels, height, width = pick_image(b)
    mode = b.choose("nearest", "nearest", "linear")
    form = b.choose("asymmetric", "half_pixel", "align_corners" if mode == "linear" else "asymmetric")
    factors = [b.choose(1, 2, 2, 3), b.choose(1, 2, 2, 3)]
    spatial = [height * factors[0], width * factors[1]]
    if b.chance(0.7) or form == "half_pixel":
        read: list[DrawnValue | str] = [x, "", b.constant(np.array([1, 1, *factors], np.float32))]
    elif isinstance(batch, int):
        read = [x, "", "", b.numbers(batch, channels, *spatial)]
    else:
        raise NotApplicable
    nearest = b.choose("floor", "round_prefer_floor") if mode == "nearest" else None
    modes = {"mode": mode, "coordinate_transformation_mode": form, "nearest_mode": nearest}
    b.add("Resize", read, (batch, channels, *spatial), bound=x.bound, **modes)


def grow_pad(b: GraphBuilder) -> None:
    """Adds a Pad, which a device may fuse into a following convolution or pooling."""
    x, batch, channels, height, width = pick_image(b)
    mode = b.choose("constant", "constant", "constant", "reflect", "edge")
    before = [0, 0, b.integer(0, 2), b.integer(0, 2)]
    pads = [*before, 0, b.choose(0, 0, 1) if mode == "constant" else 0, b.integer(0, 2), b.integer(0, 2)]
    if mode == "reflect" and min(height, width) < 4:
        raise NotApplicable
    read: list[DrawnValue | str] = [x, b.numbers(*pads)]
    if mode == "constant" and b.chance(0.4):
        read.append(b.scalar(b.choose(0, 0, -1.5)))
    sizes = (batch, channels + pads[1] + pads[5], height + pads[2] + pads[6], width + pads[3] + pads[7])
    b.add("Pad", read, sizes, bound=x.bound, mode=mode)


def grow_shuffle(b: GraphBuilder) -> None:
    """Adds a rearrangement of channels and pixels: shuffled groups, DepthToSpace, SpaceToDepth."""
    x, batch, channels, height, width = pick_image(b)
    match b.choose("groups", "depth", "space"):
        case "groups":
            groups = b.choose(*[size for size in (2, 3, 4, 8) if channels % size == 0] or [1])
            split = (batch, groups, channels // groups, height, width)
            y = b.add("Reshape", [x, b.numbers(0, *(int(size) for size in split[1:]))], split, bound=x.bound)
            turned = b.add(
                "Transpose", [y], (batch, channels // groups, groups, height, width), bound=x.bound, perm=[0, 2, 1, 3, 4]
            )
            b.add("Reshape", [turned, b.numbers(0, channels, height, width)], x.shape, bound=x.bound)
        case "depth" if channels % 4 == 0:
            shape = (batch, channels // 4, 2 * height, 2 * width)
            b.add("DepthToSpace", [x], shape, bound=x.bound, blocksize=2, mode=b.choose("DCR", "CRD"))
        case "space" if height % 2 == 0 and width % 2 == 0:
            b.add("SpaceToDepth", [x], (batch, 4 * channels, height // 2, width // 2), bound=x.bound, blocksize=2)
        case _:
            raise NotApplicable


OPERATORS = (
    (5.0, grow_concat),
    (2.0, grow_slice),
    (2.0, grow_split),
    (1.0, grow_resize),
    (1.0, grow_pad),
    (1.0, grow_shuffle),
)
"""Each operator with its weight."""
