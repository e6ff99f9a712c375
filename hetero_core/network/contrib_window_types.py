"""Types of what ONNX Runtime's own convolutions and poolings make, and its operators on images and axes. Imports nothing heavy."""

from __future__ import annotations

from hetero_core.network.contrib_shapes import Rule, Shape, Size, TypedNode, Types, same_as, size_at
from hetero_core.network.types import TensorType


def _slide(node: TypedNode, sizes: tuple[Size, ...], kernel: tuple[Size, ...]) -> tuple[Size, ...]:
    """Returns the sizes of what windows make."""
    rank = len(sizes)
    ones = (1,) * rank
    strides, dilations = node.integers("strides") or ones, node.integers("dilations") or ones
    pads = node.integers("pads") or (0,) * (2 * rank)
    auto = node.node.attributes.get("auto_pad", "NOTSET")
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
            count = (-(-room // stride) if node.integer("ceil_mode") else room // stride) + 1
            hangs = bool(node.integer("ceil_mode")) and (count - 1) * stride >= size + begin
            counts.append(count - hangs)
    return tuple(counts)


def _arrange(shape: Shape, last: bool) -> Shape:
    """Returns (batch, channels, *sizes) of a shape that has its channels last."""
    return shape if shape is None or not last else (shape[0], shape[-1], *shape[1:-1])


def _restore(batch: Size, channels: Size, sizes: tuple[Size, ...], last: bool) -> tuple[Size, ...]:
    return (batch, *sizes, channels) if last else (batch, channels, *sizes)


def _pool(*, always_last: bool) -> Rule:
    def rule(node: TypedNode) -> TensorType:
        last = always_last or bool(node.integer("channels_last"))
        shape, kernel = _arrange(node.shape(0), last), node.integers("kernel_shape")
        if shape is None or kernel is None:
            return TensorType(node.dtype(0))
        return TensorType(node.dtype(0), _restore(shape[0], shape[1], _slide(node, shape[2:], kernel), last))

    return rule


def _pool_globally(node: TypedNode) -> TensorType:
    last = bool(node.integer("channels_last"))
    shape = _arrange(node.shape(0), last)
    if shape is None:
        return TensorType(node.dtype(0))
    return TensorType(node.dtype(0), _restore(shape[0], shape[1], (1,) * (len(shape) - 2), last))


def _convolve(weight: int, dtype: int) -> Rule:
    def rule(node: TypedNode) -> TensorType:
        last = bool(node.integer("channels_last"))
        shape, weights = _arrange(node.shape(0), last), node.shape(weight)
        if shape is None or weights is None:
            return TensorType(node.dtype(dtype))
        sizes = _slide(node, shape[2:], weights[2:])
        return TensorType(node.dtype(dtype), _restore(shape[0], weights[0], sizes, last))

    return rule


def _transpose_convolve(node: TypedNode) -> TensorType:
    shape, channels = node.shape(0), node.size(1, 1)
    if shape is None:
        return TensorType(node.dtype(0))
    outputs = channels * node.integer("group", 1) if isinstance(channels, int) else None
    return TensorType(node.dtype(0), (shape[0], outputs, *(None,) * (len(shape) - 2)))


def _sample_grid(node: TypedNode) -> TensorType:
    x, grid = node.shape(0), node.shape(1)
    sizes = (None, None) if grid is None else grid[1:-1]
    return TensorType(node.dtype(0), (size_at(x, 0), size_at(x, 1), *sizes))


def _gather_nd(node: TypedNode) -> TensorType:
    shape, indices = node.shape(0), node.shape(1)
    depth = size_at(indices, -1)
    if shape is None or indices is None or not isinstance(depth, int):
        return TensorType(node.dtype(0))
    return TensorType(node.dtype(0), (*indices[:-1], *shape[depth:]))


def _unfold(node: TypedNode) -> TensorType:
    shape, axis = node.shape(0), node.integer("dim", -1)
    if shape is None:
        return TensorType(node.dtype(0))
    axis, size = axis % max(len(shape), 1), node.integer("size")
    length = shape[axis]
    count = (length - size) // max(node.integer("step", 1), 1) + 1 if isinstance(length, int) else None
    sizes = tuple(count if place == axis else each for place, each in enumerate(shape))
    return TensorType(node.dtype(0), (*sizes, size))


def _unique(node: TypedNode) -> Types:
    return TensorType(node.dtype(0), (None,)), TensorType("int64", node.shape(0)), TensorType("int64", (None,))


WINDOW_RULES: dict[str, Rule] = {
    "QLinearAveragePool": _pool(always_last=False),
    "NhwcMaxPool": _pool(always_last=True),
    "MaxpoolWithMask": _pool(always_last=False),
    "QLinearGlobalAveragePool": _pool_globally,
    "QLinearConv": _convolve(3, 7),
    "FusedConv": _convolve(1, 0),
    "ConvTransposeWithDynamicPads": _transpose_convolve,
    "CropAndResize": lambda node: TensorType(node.dtype(0), (node.size(1, 0), node.size(0, 1), None, None)),
    "GridSample": _sample_grid,
    "Pad": lambda node: TensorType(node.dtype(0), node.open_shape(0)),
    "ExpandDims": lambda node: TensorType(node.dtype(0), node.open_shape(0, 1)),
    "GatherND": _gather_nd,
    "UnfoldTensor": _unfold,
    "Range": lambda node: TensorType(node.dtype(0), (None,)),
    "Unique": _unique,
    "DynamicTimeWarping": lambda node: TensorType("int32", (2, None)),
    "WordConvEmbedding": lambda node: TensorType("float32", node.shape_with_last(0, node.size(1, 0))),
    "MurmurHash3": lambda node: TensorType("uint32" if node.integer("positive", 1) else "int32", node.shape(0)),
    # How many tokens are appended is known at run time.
    "BifurcationDetector": lambda node: (TensorType("int64", (None,)), TensorType("int64", ())),
    "NGramRepeatBlock": same_as(1),
}
