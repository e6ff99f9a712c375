"""Preprocessing of an input as nodes of the network, in front of the model: color, crop, layout, precision, resize, pad, mean, scale.

In this order, which is that of the Inference Engine's own preprocessing; its nodes stand in front of all other nodes, so that every
device runs them, a split may place them and a device may fuse them. Formula: y = (pad(resize(crop(x))) - mean) / scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.dtypes import FLOAT_DTYPES, numpy_dtype
from hetero_core.errors import InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.border import InputInfo, dtype_of_precision, precision_of_dtype
from hetero_core.network.graph import Network
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import Dimension, TensorType, ValueSpec, merge_types
from hetero_core.transforms.chains import Chain, check_conversion, find_model_layout, order_axes, read_layout, require_names, splice

CHANNELS_OF_COLOR: Mapping[str, tuple[int, tuple[int, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(("BGR->RGB", "RGB->BGR"), (3, (2, 1, 0))),
        **dict.fromkeys(("RGBX->RGB", "BGRX->BGR"), (4, (0, 1, 2))),
        **dict.fromkeys(("RGBX->BGR", "BGRX->RGB"), (4, (2, 1, 0))),
        **dict.fromkeys(("GRAY->RGB", "GRAY->BGR"), (1, (0, 0, 0))),
    }
)
"""Change of colors -> the channels that are given, and which of them each channel of the model is."""
PLANAR_COLORS = ("I420->BGR", "I420->RGB", "NV12->BGR", "NV12->RGB")
_RED, _GREEN, _BLUE = (1.164, 0.0, 1.596), (1.164, -0.391, -0.813), (1.164, 2.018, 0.0)
"""The shares of Y, U and V."""
Bounds = Mapping[int, tuple[int, int]]
"""Axis -> two numbers: begin and end of the crop, or the number of pixels padded before and after."""
_LETTERS = "DHW"
_PAD_MODES = ("constant", "reflect")


def add_preprocessing(network: Network, inputs: Mapping[str, InputInfo]) -> Network:
    """Returns the network that takes its inputs as they are described. Raises: InvalidNetworkError."""
    names = FreshNames(network)
    chains: list[Chain] = []
    specs = {spec.name: spec for spec in network.inputs}
    layouts = dict(network.border.layouts)
    require_names(network, "input", inputs, specs)
    for name, info in inputs.items():
        chain, layouts[name] = _describe_steps(network, specs[name], info, names)
        specs[name] = ValueSpec(name, chain.types[name])
        if chain.nodes:
            where = f"input '{name}' of network '{network.name}'"
            if name in network.names_of_outputs:
                raise InvalidNetworkError(
                    f"{where} is an output, too, and would be returned as it was given; take it out with with_outputs"
                )
            if name in network.border.defaults or any(state.input == name for state in network.border.states):
                raise InvalidNetworkError(
                    f"{where} has a value of its own, a default or a state, which is in the model's form; describe it before it gets one"
                )
            chain.rename_end(names.value(f"{name}/model"))
            chains.append(chain)
    border = replace(network.border, layouts=MappingProxyType(layouts))
    return splice(network, chains, [], inputs=tuple(specs.values()), border=border)


def _describe_steps(network: Network, spec: ValueSpec, info: InputInfo, names: FreshNames) -> tuple[Chain, str]:
    """Returns the steps from the described array to the input of the model, and the layout of the array.

    What computes does it in the model's type, or in float32 for a smaller float.
    """
    where = f"input '{spec.name}' of network '{network.name}'"
    target = spec.type
    if not isinstance(target, TensorType) or target.dtype is None:
        raise InvalidNetworkError(f"{where}: expected a tensor to describe, it is {target}")
    model_layout = find_model_layout(spec, network.border.layouts.get(spec.name), info.model_layout, where)
    layout = model_layout if info.layout is None else read_layout(info.layout, len(model_layout), where)
    order = order_axes(layout, model_layout, where)
    dtype = target.dtype if info.precision is None else dtype_of_precision(info.precision, where)
    color = (info.color or "").upper().replace(" ", "")
    if info.color is not None:
        _check_color(info.color, color, model_layout, target, where)
    crop, pad = _read_bounds(info.crop, "crop", layout, where), _read_bounds(info.pad, "pad", model_layout, where)
    inner = TensorType(target.dtype, _find_inner(target.shape or (), pad, info.pad_mode, where))
    shape = _find_given_shape(info, inner, layout, order, color, crop, where)
    chain = Chain(network, names, base=spec.name, value=spec.name, value_type=TensorType(dtype, shape))
    if color in CHANNELS_OF_COLOR:
        chain.gather(layout.index("C"), "channels", CHANNELS_OF_COLOR[color][1])
    elif color:
        _add_planar_colors(chain, color)
    _add_crop(chain, crop, where)
    chain.transpose(order)
    computes = info.mean is not None or info.scale is not None or info.resize not in (None, "nearest")
    if (computes or color in PLANAR_COLORS) and target.dtype not in FLOAT_DTYPES:
        raise InvalidNetworkError(
            f"{where}: mean, scale, interpolation and NV12 or I420 make fractions, and the model takes "
            f"{precision_of_dtype(target.dtype)}; expected a model with a float input"
        )
    check_conversion(chain.dtype, target.dtype, where)
    if computes:
        chain.cast("float64" if target.dtype == "float64" else "float32")
    if info.resize is not None:
        _bring_to_size(chain, info.resize, model_layout, inner.shape or (), where)
    _add_pad(chain, pad, info)
    for op_type, purpose, numbers in (("Sub", "mean", info.mean), ("Div", "scale", info.scale)):
        if numbers is not None:
            array = _read_numbers(numbers, purpose, model_layout, target.shape or (), where)
            chain.add(op_type, chain.hold(purpose, array.astype(numpy_dtype(chain.dtype))))
    chain.cast(target.dtype)
    if merge_types(chain.type, target) is None:
        raise _refuse_shape(shape, layout, target, f"it becomes {chain.type}", where)
    return chain, layout


def _check_color(said: str, color: str, layout: str, model_type: TensorType, where: str) -> None:
    known = (*CHANNELS_OF_COLOR, *PLANAR_COLORS)
    if color not in known:
        raise InvalidNetworkError(
            f"{where}: there is no change of colors '{said}'{suggest(color, known) or ';'} expected one of {enumerate_choices(known)}"
        )
    size = model_type.shape[layout.index("C")] if model_type.shape is not None and "C" in layout else None
    if "C" not in layout or (size not in (3, None) and not isinstance(size, str)):
        raise InvalidNetworkError(f"{where}: '{said}' needs 3 channels in the model's axis C; it takes {model_type} as {layout}")


def _find_given_shape(
    info: InputInfo, inner: TensorType, layout: str, order: tuple[int, ...], color: str, crop: Bounds, where: str
) -> tuple[Dimension, ...]:
    """Returns the shape of the array, in its layout: the stated shape, or the shape of the image; resize and crop open its axes."""
    assert inner.shape is not None
    model: list[Dimension] = [None] * len(order)
    for axis, source in enumerate(order):
        model[source] = inner.shape[axis]
    open_axes = {*crop, *(axis for axis, letter in enumerate(layout) if letter in "HW" and info.resize is not None)}
    if color in PLANAR_COLORS:
        image = (model[0], None if open_axes else model[1], model[2]) if len(model) == 4 else (None,) * 3
        return _find_plane(info.shape, image, layout, where)
    if color:
        model[layout.index("C")] = CHANNELS_OF_COLOR[color][0]
    known = [None if axis in open_axes else size for axis, size in enumerate(model)]
    given = known if info.shape is None else info.shape
    if len(given) != len(known):
        raise _refuse_shape(
            given, layout, TensorType(None, inner.shape), f"it has {len(given)} axes instead of {len(known)}", where
        )
    return tuple(expected if size is None else size for size, expected in zip(given, known, strict=True))


def _refuse_shape(shape: Sequence[Dimension], layout: str, model_type: TensorType, problem: str, where: str) -> InvalidNetworkError:
    return InvalidNetworkError(
        f"{where}: an array of shape {list(shape)} in layout {layout} does not fit the model's {model_type}: {problem}; "
        "resize='bilinear' would bring height and width to the model's".replace("unknown[", "[")
    )


def _read_numbers(
    numbers: float | Sequence[float], purpose: str, layout: str, shape: Sequence[Dimension], where: str
) -> np.ndarray[Any, Any]:
    """Returns a number, or a number for each channel, shaped to stand at axis C."""
    array = np.asarray(numbers, "float64")
    if not all(math.isfinite(number) for number in array.reshape(-1).tolist()) or (purpose == "scale" and not array.all()):
        limits = ", none of them 0" if purpose == "scale" else ""
        raise InvalidNetworkError(f"{where}: {purpose} is {numbers}; expected finite numbers{limits}")
    if array.ndim == 0:
        return array
    is_image = purpose == "mean" and array.ndim > 1 and len(shape) - array.ndim in (0, 1)
    if is_image and tuple(shape[-array.ndim :]) == array.shape:
        return array
    size = shape[layout.index("C")] if "C" in layout else None
    if array.ndim != 1 or (isinstance(size, int) and size != array.size) or "C" not in layout:
        raise InvalidNetworkError(
            f"{where}: {purpose} has the shape {list(array.shape)}; expected one number, or one for each channel of {layout} "
            f"{list(shape)}{', or an image of that shape' if purpose == 'mean' else ''}"
        )
    return array.reshape(-1, *(1,) * (len(layout) - layout.index("C") - 1))


# The part of an image that is used, and its place in a larger one.


def _read_bounds(bounds: Mapping[str, tuple[int, int]] | None, purpose: str, layout: str, where: str) -> Bounds:
    """Returns the numbers by axis of the layout. Raises: InvalidNetworkError for other letters and values that are no pairs of integers."""
    axes: dict[int, tuple[int, int]] = {}
    for letter, pair in (bounds or {}).items():
        known = [axis for axis in _LETTERS if axis in layout]
        if letter not in known:
            raise InvalidNetworkError(
                f"{where}: {purpose} has the axis '{letter}'; the axes that it can have in layout {layout} are {enumerate_choices(known)}"
            )
        numbers = tuple(pair)
        is_pair = len(numbers) == 2 and all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not is_pair or (purpose == "pad" and min(numbers) < 0):
            expected = "two numbers of pixels, 0 or more" if purpose == "pad" else "begin and end"
            raise InvalidNetworkError(f"{where}: {purpose} has {pair!r} for the axis {letter}; expected {expected}")
        axes[layout.index(letter)] = (numbers[0], numbers[1])
    return axes


def _add_crop(chain: Chain, crop: Bounds, where: str) -> None:
    """Adds a Slice; negative numbers count from the end. Raises: InvalidNetworkError if the crop is empty."""
    sizes = list(chain.shape)
    for axis, (begin, end) in crop.items():
        size = sizes[axis]
        sizes[axis] = end - begin if (begin >= 0) == (end > 0) and end > begin else None
        if isinstance(size, int):
            sizes[axis] = count = len(range(size)[begin:end])
            if not count or not -size <= begin < size or not -size < end <= size:
                raise InvalidNetworkError(f"{where}: crop takes {begin} to {end} out of {size} pixels")
    if crop:
        begins, ends = zip(*crop.values(), strict=True)
        named = {"begin": begins, "end": ends, "axes": tuple(crop)}
        bounds = [chain.hold(purpose, np.asarray(numbers, np.int64)) for purpose, numbers in named.items()]
        chain.add("Slice", *bounds, shape=tuple(sizes))


def _find_inner(shape: Sequence[Dimension], pad: Bounds, mode: str, where: str) -> tuple[Dimension, ...]:
    """Returns the shape of the image inside of the model's. Raises: InvalidNetworkError if that shape is too small, and for other modes."""
    if mode not in _PAD_MODES:
        raise InvalidNetworkError(f"{where}: there is no pad_mode {mode!r}; use one of {enumerate_choices(_PAD_MODES)}")
    inner = list(shape)
    for axis, (before, after) in pad.items():
        size = inner[axis]
        if isinstance(size, int):
            inner[axis] = rest = size - before - after
            if rest < 1:
                raise InvalidNetworkError(f"{where}: pad has {before} and {after} pixels; the model's axis has {size} in all")
            if mode == "reflect" and max(before, after) >= rest:
                raise InvalidNetworkError(
                    f"{where}: pad mirrors {before} and {after} pixels of {rest}; expected fewer than the image has"
                )
    return tuple(inner)


def _add_pad(chain: Chain, pad: Bounds, info: InputInfo) -> None:
    if pad:
        sides = [pad.get(axis, (0, 0))[side] for side in (0, 1) for axis in range(len(chain.shape))]
        inputs = [chain.hold("pads", np.asarray(sides, np.int64))]
        if info.pad_mode == "constant":
            inputs.append(chain.hold("pad_value", np.asarray(info.pad_value, numpy_dtype(chain.dtype))))
        chain.add("Pad", *inputs, attributes={"mode": info.pad_mode})


# Pictures of cameras in a plane of bytes, NV12 and I420. The plane is (N, 3/2 H, W, 1): the brightness of each pixel, then the two
# colors of each square of four pixels: alternating in NV12 (U, V, U, V, ...), in two blocks in I420 (all U, all V). Formula:
# R = 1.164 (Y - 16) + 1.596 (V - 128), G = 1.164 (Y - 16) - 0.813 (V - 128) - 0.391 (U - 128), B = 1.164 (Y - 16) + 2.018 (U - 128),
# within 0 and 255. Source: OpenVINO NV12toRGB-8, I420toRGB-8; ITU-R BT.601.


def _find_plane(
    shape: Sequence[Dimension] | None, image: tuple[Dimension, Dimension, Dimension], layout: str, where: str
) -> tuple[Dimension, int, int, int]:
    """Returns the shape of the plane: the given shape, else the shape for an image of (N, H, W).

    Raises: InvalidNetworkError unless it is the plane of a picture with a known and even height and width.
    """
    batch, height, width = image
    if shape is None and isinstance(height, int):
        shape = (batch, height * 3 // 2, width, 1)
    match tuple(shape or ()):
        case (count, int(rows), int(columns), 1) if layout == "NHWC" and rows % 3 == columns % 2 == 0:
            return count, rows, columns, 1
    raise InvalidNetworkError(
        f"{where}: NV12 and I420 are arrays in layout='NHWC' of the shape (N, 3/2 height, width, 1), height and width even and "
        f"known; got {list(shape or ())} in layout {layout}"
    )


def _add_planar_colors(chain: Chain, color: str) -> None:
    """Adds the steps from the plane to an image (N, H, W, 3) of floats."""
    rows, width = int(chain.shape[1] or 0), int(chain.shape[2] or 0)
    height = rows * 2 // 3
    chain.cast("float64" if chain.dtype == "float64" else "float32")
    plane = chain.value
    _add_crop(chain, {1: (0, height)}, "")
    brightness, chain.value = chain.value, plane
    _add_crop(chain, {1: (height, rows)}, "")
    if color.startswith("NV12"):
        _reshape(chain, (height // 2, width // 2, 2))
    else:
        _reshape(chain, (2, height // 2, width // 2))
        chain.transpose((0, 2, 3, 1))
    for axis, size in ((1, height), (2, width)):
        chain.gather(axis, f"squares{axis}", [pixel // 2 for pixel in range(size)])
    chain.add("Concat", begins=brightness, attributes={"axis": 3})
    dtype = chain.dtype
    chain.add("Sub", chain.hold("zero_of_colors", np.asarray((16, 128, 128), dtype)))
    channels = (_RED, _GREEN, _BLUE) if color.endswith("RGB") else (_BLUE, _GREEN, _RED)
    chain.add("MatMul", chain.hold("colors", np.asarray(channels, dtype).T.copy()))
    chain.add("Clip", chain.hold("darkest", np.asarray(0, dtype)), chain.hold("brightest", np.asarray(255, dtype)))


def _reshape(chain: Chain, image: tuple[int, ...]) -> None:
    # 0: the number of images as it is.
    chain.add("Reshape", chain.hold("squares", np.asarray([0, *image], "int64")))


# Height and width of an image brought to those of a model: nearest, bilinear, cubic, area. nearest and bilinear are Resize with half-pixel
# centers, as OpenVINO and ONNX Runtime have it. area is the mean over the part of the source that a target pixel covers, as OpenCV's
# INTER_AREA when it shrinks: a product with a matrix of weights for each axis. cubic is such a product, too, if sizes are known: of four
# pixels by Keys' kernel with a = -0.75, with the border repeated. Each is written in the opset of the network: Resize of named axes from
# 18 on, of all axes from 11 on, and before, as Resize knows no half-pixel centers, Gather for nearest and the product for bilinear.

_RESIZES = ("nearest", "bilinear", "cubic", "area")
_NAMES_AXES = 18
_LEAVES_OUT = 13
"""The first opset in which Resize may be without the inputs that are not used."""
_HAS_CENTERS = 11


def _bring_to_size(chain: Chain, mode: str, layout: str, model_shape: Sequence[Dimension], where: str) -> None:
    """Adds what brings axes H and W of the value, which is in the model's layout, to the model's sizes.

    Raises: InvalidNetworkError if the layout has no H and W, and if needed sizes are open.
    """
    if mode not in _RESIZES:
        raise InvalidNetworkError(
            f"{where}: there is no resize '{mode}'{suggest(mode, _RESIZES) or ';'} expected one of {enumerate_choices(_RESIZES)}"
        )
    if not {"H", "W"} <= set(layout):
        raise InvalidNetworkError(f"{where}: resize needs the axes H and W; the layout of the model is {layout}")
    axes = (layout.index("H"), layout.index("W"))
    sizes = [model_shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        raise InvalidNetworkError(
            f"{where}: the model's height and width are open ({', '.join(str(size) for size in sizes)}); give them sizes with with_shapes "
            "before the resize"
        )
    target = tuple(sizes[axes.index(axis)] if axis in axes else size for axis, size in enumerate(chain.shape))
    are_known = all(isinstance(chain.shape[axis], int) for axis in axes)
    if mode == "area" or (are_known and (mode == "cubic" or (mode == "bilinear" and chain.opset < _HAS_CENTERS))):
        _add_products(chain, mode, axes, target, where)
    elif mode == "nearest" and chain.opset < _HAS_CENTERS and are_known:
        for axis in axes:
            chain.gather(axis, f"pixels{axis}", find_nearest(int(chain.shape[axis] or 0), int(target[axis] or 0)))
    else:
        _add_resize(chain, mode, axes, target)


def _add_resize(chain: Chain, mode: str, axes: tuple[int, int], target: tuple[Dimension, ...]) -> None:
    attributes: dict[str, Any] = {"mode": "linear" if mode == "bilinear" else mode, "coordinate_transformation_mode": "half_pixel"}
    if mode == "nearest":
        attributes["nearest_mode"] = "round_prefer_floor"
    if chain.opset >= _NAMES_AXES:
        attributes["axes"] = axes
        sizes = chain.hold("sizes", np.asarray([target[axis] for axis in axes], "int64"))
    else:
        sizes = _compute_sizes(chain, target)
    unused = "" if chain.opset >= _LEAVES_OUT else chain.hold("unused", np.asarray([], "float32"))
    chain.add("Resize", unused, unused, sizes, shape=target, attributes=attributes)


def _compute_sizes(chain: Chain, target: tuple[Dimension, ...]) -> str:
    """Returns the value that holds the sizes of all axes; an open size is taken from the array."""
    known = np.asarray([size if isinstance(size, int) else 0 for size in target], "int64")
    if all(isinstance(size, int) for size in target):
        return chain.hold("sizes", known)
    value = chain.value
    chain.add("Shape")
    chain.add("Mul", chain.hold("open", np.asarray([not isinstance(size, int) for size in target], "int64")))
    chain.add("Add", chain.hold("sizes", known))
    sizes, chain.value = chain.value, value
    return sizes


def _add_products(chain: Chain, mode: str, axes: tuple[int, int], target: tuple[Dimension, ...], where: str) -> None:
    rank = len(target)
    source_sizes = [chain.shape[axis] for axis in axes]
    if not all(isinstance(size, int) and size > 0 for size in source_sizes):
        raise InvalidNetworkError(
            f"{where}: resize='area' needs the height and the width of the arrays, which are open; say them in shape, or take 'bilinear'"
        )
    # A product with a matrix works on the last two axes.
    order = (*(axis for axis in range(rank) if axis not in axes), *axes)
    chain.transpose(order)
    dtype = numpy_dtype(chain.dtype)
    weigh = {"area": weigh_area, "bilinear": weigh_bilinear, "cubic": weigh_cubic}[mode]
    pairs = zip(source_sizes, (target[axis] for axis in axes), strict=True)
    rows, columns = (weigh(int(size or 0), int(output or 0)).astype(dtype) for size, output in pairs)
    chain.add("MatMul", begins=chain.hold("rows", rows))
    chain.add("MatMul", chain.hold("columns", columns.T))
    chain.transpose(tuple(order.index(axis) for axis in range(rank)))


def weigh_area(size: int, output: int) -> np.ndarray[Any, Any]:
    """Returns float64 (output, size): the share of each source pixel in each target pixel, which covers size / output of them."""
    step = size / output
    begin = np.arange(output)[:, None] * step
    source = np.arange(size)[None, :]
    covered = np.minimum(begin + step, source + 1) - np.maximum(begin, source)
    shares: np.ndarray[Any, Any] = np.clip(covered, 0, None) / step
    return shares


def weigh_bilinear(size: int, output: int) -> np.ndarray[Any, Any]:
    """Returns float64 (output, size): the share of the two source pixels beside the center of each target pixel."""
    center = np.clip((np.arange(output) + 0.5) * (size / output) - 0.5, 0, size - 1)
    shares: np.ndarray[Any, Any] = np.clip(1 - np.abs(center[:, None] - np.arange(size)[None, :]), 0, None)
    return shares


def weigh_cubic(size: int, output: int) -> np.ndarray[Any, Any]:
    """Returns float64 (output, size): the share of the four source pixels around the center of each target pixel.

    Source: Keys 1981, Cubic convolution interpolation, with a = -0.75, as ONNX's Resize and OpenVINO's Interpolate have it.
    """
    a = -0.75
    center = (np.arange(output) + 0.5) * (size / output) - 0.5
    first = np.floor(center).astype(np.int64) - 1
    shares = np.zeros((output, size))
    for step in range(4):
        distance = np.abs(center - (first + step))
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((distance - 5) * distance + 8) * distance * a - 4 * a
        np.add.at(shares, (np.arange(output), np.clip(first + step, 0, size - 1)), np.where(distance <= 1, near, far))
    return shares


def find_nearest(size: int, output: int) -> np.ndarray[Any, Any]:
    """Returns int64 (output): the source pixel next to the center of each target pixel; of two at the same distance, the lower."""
    # The pixel's center less a half is ((2 i + 1) size - 2 output) / (2 output), rounded up in integers.
    nearest = -((2 * output - (2 * np.arange(output, dtype=np.int64) + 1) * size) // (2 * output))
    return np.clip(nearest, 0, size - 1)
