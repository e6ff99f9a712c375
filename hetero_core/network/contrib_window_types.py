"""Types of what ONNX Runtime's own convolutions and poolings make, and its operators on images and axes. Imports nothing heavy."""

from __future__ import annotations

from hetero_core.network.contrib_shapes import (
    InputTypes,
    Rule,
    Shape,
    Size,
    dtype_at,
    integer_of,
    integers_at,
    shape_at,
    size_at,
)
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType


def _slide(node: Node, sizes: tuple[Size, ...], kernel: tuple[Size, ...]) -> tuple[Size, ...]:
    """Returns the sizes of what windows make."""
    rank = len(sizes)
    ones = (1,) * rank
    strides, dilations = integers_at(node, "strides") or ones, integers_at(node, "dilations") or ones
    pads = integers_at(node, "pads") or (0,) * (2 * rank)
    auto = node.attributes.get("auto_pad", "NOTSET")
    if not len(strides) == len(dilations) == len(kernel) == rank or len(pads) != 2 * rank:
        return (None,) * rank
    counts: list[Size] = []
    for axis, (size, taps, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        if not isinstance(size, int) or not isinstance(taps, int) or stride < 1:
            counts.append(None)
        elif str(auto).startswith("SAME"):
            counts.append(-(-size // stride))
        else:
            begin, end = (pads[axis], pads[axis + rank]) if auto == "NOTSET" else (0, 0)
            room = size + begin + end - (taps - 1) * dilation - 1
            count = (-(-room // stride) if integer_of(node, "ceil_mode") else room // stride) + 1
            hangs = bool(integer_of(node, "ceil_mode")) and (count - 1) * stride >= size + begin
            counts.append(count - hangs)
    return tuple(counts)


def _arrange(shape: Shape, last: bool) -> Shape:
    """Returns (batch, channels, *sizes) of a shape that has its channels last."""
    return shape if shape is None or not last else (shape[0], shape[-1], *shape[1:-1])


def _restore(batch: Size, channels: Size, sizes: tuple[Size, ...], last: bool) -> tuple[Size, ...]:
    return (batch, *sizes, channels) if last else (batch, channels, *sizes)


def _pool(*, always_last: bool) -> Rule:
    def rule(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
        last = always_last or bool(integer_of(node, "channels_last"))
        shape, kernel = _arrange(shape_at(types, 0), last), integers_at(node, "kernel_shape")
        if shape is None or kernel is None:
            return (TensorType(dtype_at(types, 0)),)
        return (TensorType(dtype_at(types, 0), _restore(shape[0], shape[1], _slide(node, shape[2:], kernel), last)),)

    return rule


def _pool_globally(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    last = bool(integer_of(node, "channels_last"))
    shape = _arrange(shape_at(types, 0), last)
    if shape is None:
        return (TensorType(dtype_at(types, 0)),)
    return (TensorType(dtype_at(types, 0), _restore(shape[0], shape[1], (1,) * (len(shape) - 2), last)),)


def _convolve(weight: int, dtype: int) -> Rule:
    def rule(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
        last = bool(integer_of(node, "channels_last"))
        shape, weights = _arrange(shape_at(types, 0), last), shape_at(types, weight)
        if shape is None or weights is None:
            return (TensorType(dtype_at(types, dtype)),)
        sizes = _slide(node, shape[2:], weights[2:])
        return (TensorType(dtype_at(types, dtype), _restore(shape[0], weights[0], sizes, last)),)

    return rule


def _transpose_convolve(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    shape, channels = shape_at(types, 0), size_at(shape_at(types, 1), 1)
    if shape is None:
        return (TensorType(dtype_at(types, 0)),)
    outputs = channels * integer_of(node, "group", 1) if isinstance(channels, int) else None
    return (TensorType(dtype_at(types, 0), (shape[0], outputs, *(None,) * (len(shape) - 2))),)


def _crop_and_resize(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    return (TensorType(dtype_at(types, 0), (size_at(shape_at(types, 1), 0), size_at(shape_at(types, 0), 1), None, None)),)


def _sample_grid(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    x, grid = shape_at(types, 0), shape_at(types, 1)
    sizes = (None, None) if grid is None else grid[1:-1]
    return (TensorType(dtype_at(types, 0), (size_at(x, 0), size_at(x, 1), *sizes)),)


def _keep_rank(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    shape = shape_at(types, 0)
    return (TensorType(dtype_at(types, 0), None if shape is None else (None,) * len(shape)),)


def _expand_dims(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    shape = shape_at(types, 0)
    return (TensorType(dtype_at(types, 0), None if shape is None else (None,) * (len(shape) + 1)),)


def _gather_nd(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    shape, indices = shape_at(types, 0), shape_at(types, 1)
    depth = size_at(indices, -1)
    if shape is None or indices is None or not isinstance(depth, int):
        return (TensorType(dtype_at(types, 0)),)
    return (TensorType(dtype_at(types, 0), (*indices[:-1], *shape[depth:])),)


def _unfold(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    shape, axis = shape_at(types, 0), integer_of(node, "dim", -1)
    if shape is None:
        return (TensorType(dtype_at(types, 0)),)
    axis, size = axis % max(len(shape), 1), integer_of(node, "size")
    length = shape[axis]
    count = (length - size) // max(integer_of(node, "step", 1), 1) + 1 if isinstance(length, int) else None
    sizes = tuple(count if place == axis else each for place, each in enumerate(shape))
    return (TensorType(dtype_at(types, 0), (*sizes, size)),)


def _pack(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    return (TensorType(dtype_at(types, 0), (None,)),)


def _unique(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    return TensorType(dtype_at(types, 0), (None,)), TensorType("int64", shape_at(types, 0)), TensorType("int64", (None,))


def _warp(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    return (TensorType("int32", (2, None)),)


def _embed_words(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    words = shape_at(types, 0)
    return (TensorType("float32", None if words is None else (*words[:-1], size_at(shape_at(types, 1), 0))),)


def _hash(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    return (TensorType("uint32" if integer_of(node, "positive", 1) else "int32", shape_at(types, 0)),)


def _append(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    """BifurcationDetector: how many tokens are appended is known at run time."""
    return TensorType("int64", (None,)), TensorType("int64", ())


WINDOW_RULES: dict[str, Rule] = {
    "QLinearAveragePool": _pool(always_last=False),
    "NhwcMaxPool": _pool(always_last=True),
    "MaxpoolWithMask": _pool(always_last=False),
    "QLinearGlobalAveragePool": _pool_globally,
    "QLinearConv": _convolve(3, 7),
    "FusedConv": _convolve(1, 0),
    "ConvTransposeWithDynamicPads": _transpose_convolve,
    "CropAndResize": _crop_and_resize,
    "GridSample": _sample_grid,
    "Pad": _keep_rank,
    "ExpandDims": _expand_dims,
    "GatherND": _gather_nd,
    "UnfoldTensor": _unfold,
    "Range": _pack,
    "Unique": _unique,
    "DynamicTimeWarping": _warp,
    "WordConvEmbedding": _embed_words,
    "MurmurHash3": _hash,
    "BifurcationDetector": _append,
    "NGramRepeatBlock": lambda node, types: (types[1] if len(types) > 1 else None,),
}
