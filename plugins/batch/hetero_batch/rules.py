"""Rules for the batch axis, by operator: a table of rules, each a few lines; an operator without one mixes images.

A rule returns the axis of each output, or raises MixedImages with the reason. Axes count from 0. Source: the shapes in ONNX's
operator specifications.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from hetero_batch.views import Axis, MixedImages, NodeView, refuse
from hetero_core.network.graph import Node


def keep_aligned(view: NodeView) -> Axis:
    """Elementwise operators with broadcasting: axes are aligned at the last one."""
    rank = max(len(view.shape(index)) for index, name in enumerate(view.node.inputs) if name)
    return _align(view, [index for index, name in enumerate(view.node.inputs) if name], rank, drop=0)


def _align(view: NodeView, indices: Sequence[int], rank: int, *, drop: int) -> int:
    """Returns the common axis of inputs that broadcast, with the last `drop` axes of each left out."""
    places = set()
    for index in indices:
        axis = view.axis(index)
        if isinstance(axis, int):
            if axis >= len(view.shape(index)) - drop:
                refuse("it sums or broadcasts over the batch axis")
            places.add(rank - len(view.shape(index)) + axis)
    if len(places) != 1:
        refuse(f"its inputs have their images on different axes: {', '.join(map(str, sorted(places)))}")
    (place,) = places
    for index in indices:
        if view.axis(index) is None:
            own = place - (rank - len(view.shape(index)))
            if own >= 0 and view.shape(index)[own] != 1:
                refuse(f"its input '{view.node.inputs[index]}' has a value of its own for each image, and no images")
    return place


def keep_first(view: NodeView) -> Axis:
    """Operators on (batch, ...) with weights."""
    axis = view.only_first()
    if axis != 0:
        refuse(f"it works on images on axis 0; here they are on axis {axis}")
    if view.node.attributes.get("training_mode", 0):
        refuse("it trains: its numbers are those of the whole batch")
    if view.node.op_type == "MaxPool" and len(view.node.writes) > 1:
        refuse("its indices count through the whole batch")
    return 0


def resize(view: NodeView) -> Axis:
    """Resize, Upsample by constant scales, of which the first is 1."""
    axis = view.only_first()
    scales = view.constant(2 if view.node.op_type == "Resize" and view.node.since_version >= 11 else 1, "scales")
    if "axes" in view.node.attributes or not scales or scales[axis] != 1:
        refuse("it resizes the batch axis, or to sizes that are not relative to it")
    return axis


def multiply(view: NodeView) -> Axis:
    """MatMul: rows of the left factor, or stacks of both."""
    left, right = len(view.shape(0)), len(view.shape(1))
    view.require_shared(*range(2, len(view.node.inputs)))
    rank = max(left, right)
    if left < 2 or right < 2:
        refuse("a factor is a vector")
    if len(view.node.inputs) > 2 and view.node.inputs[2] and view.shape(2) not in ((), (1,)):
        refuse("it has a zero point for each row")
    if view.axis(0) == left - 2:
        view.require_shared(1)
        if right > 2:
            refuse("each row is multiplied with several matrices")
        return left - 2
    return _align(view, [0, 1], rank, drop=2)


def gemm(view: NodeView) -> Axis:
    """Gemm: rows of an A that is not transposed."""
    if view.node.attributes.get("transA", 0) or keep_first(view) != 0:
        refuse("A is transposed")
    if len(view.node.inputs) > 2 and view.node.inputs[2] and len(view.shape(2)) == 2 and view.shape(2)[0] != 1:
        refuse("C has a row for each image")
    return 0


def keep_except(default: int, *, index: int = -1, attribute: str = "axis") -> Callable[[NodeView], Axis]:
    """Operators that work along one axis, as Softmax: any but the batch's."""

    def rule(view: NodeView) -> Axis:
        axis, listed = view.only_first(), view.constant(index, attribute)
        along = (default if listed is None else listed[0]) % len(view.shape(0))
        if index >= 0 and listed is None:
            refuse("the axis that it works on is not a constant")
        if along == axis:
            refuse(f"it works along axis {along}, on which the images lie")
        return axis

    return rule


def keep_behind(default: Callable[[Node], int]) -> Callable[[NodeView], Axis]:
    """Operators that work on all axes from one on, as LayerNormalization."""

    def rule(view: NodeView) -> Axis:
        axis = view.only_first()
        along = int(view.node.attributes.get("axis", default(view.node))) % len(view.shape(0))
        if axis >= along:
            refuse(f"it works on all axes from {along} on, and the images lie on axis {axis}")
        return axis

    return rule


def softmax(view: NodeView) -> Axis:
    """Softmax: along one axis since version 13, on all from one on before."""
    return keep_except(-1)(view) if view.node.since_version >= 13 else keep_behind(lambda _: 1)(view)


def reduce(view: NodeView) -> Axis:
    """Reductions over listed axes; the batch's is none of them."""
    axis, listed = view.only_first(), view.listed_axes(1)
    if not listed or axis in listed:
        refuse("it reduces the batch axis" if listed and axis in listed else "it reduces all axes, or ones that are not known")
    return axis if view.node.attributes.get("keepdims", 1) else axis - sum(reduced < axis for reduced in listed)


def arg_reduce(view: NodeView) -> Axis:
    """ArgMax, ArgMin."""
    axis, along = view.only_first(), int(view.node.attributes.get("axis", 0)) % len(view.shape(0))
    if along == axis:
        refuse("it looks along the batch axis")
    return axis if view.node.attributes.get("keepdims", 1) else axis - (along < axis)


def concat(view: NodeView) -> Axis:
    """Concat of images with images, on another axis."""
    axes = {view.axis(index) for index in range(len(view.node.inputs))}
    if len(axes) != 1:
        refuse("it joins values with images and values without, or with images on other axes")
    (axis,) = axes
    along = int(view.node.attributes.get("axis", 1)) % len(view.shape(0))
    if along == axis:
        refuse("it joins along the batch axis")
    return axis


def cut(view: NodeView) -> Axis:
    """Slice: listed axes, none of them the batch's."""
    axis = view.only_first()
    is_listed = "axes" in view.node.attributes or (len(view.node.inputs) > 3 and view.node.inputs[3])
    listed = view.listed_axes(3) if is_listed else list(range(len(view.constant(1, "starts") or view.shape(0))))
    if listed is None or axis in listed:
        refuse("it cuts the batch axis, or axes that are not known")
    return axis


def gather(view: NodeView) -> Axis:
    """Gather: the same rows of each image, or rows of one table for each."""
    data, indices = view.axis(0), view.axis(1)
    along = int(view.node.attributes.get("axis", 0)) % len(view.shape(0))
    if isinstance(data, int) and indices is None and data != along:
        return data if data < along else data + len(view.shape(1)) - 1
    if data is None and isinstance(indices, int):
        return along + indices
    raise MixedImages("it takes images by their place in the batch")


def transpose(view: NodeView) -> Axis:
    """Transpose moves the axis."""
    axis, rank = view.only_first(), len(view.shape(0))
    perm = view.constant(-1, "perm") or list(reversed(range(rank)))
    return perm.index(axis)


def flatten(view: NodeView) -> Axis:
    """Flatten behind the batch axis."""
    if keep_first(view) != 0 or int(view.node.attributes.get("axis", 1)) != 1:
        refuse("it joins the batch axis with another one")
    return 0


def squeeze(view: NodeView) -> Axis:
    """Squeeze of listed axes."""
    axis, listed = view.only_first(), view.listed_axes(1)
    if listed is None or axis in listed:
        refuse("it drops the batch axis, or every axis of size 1")
    return axis - sum(removed < axis for removed in listed)


def unsqueeze(view: NodeView) -> Axis:
    """Unsqueeze puts axes in front of, or behind, the batch's."""
    axis, listed = view.only_first(), view.constant(1, "axes")
    if listed is None:
        refuse("the axes that it adds are not constants")
    rank = len(view.shape(0)) + len(listed)
    added = {position % rank for position in listed}
    return [place for place in range(rank) if place not in added][axis]


def reshape(view: NodeView) -> Axis:
    """Reshape that leaves the batch axis in front alone."""
    before, axis = view.shape(0), view.axis(0)
    if axis != 0:
        refuse("it reshapes a value whose images do not lie on axis 0")
    target = view.constant(1, "shape")
    if target is None:
        after = view.output_shape()
        if after and isinstance(before[0], str) and after[0] == before[0] and before[0] not in after[1:]:
            return 0
        refuse("the shape that it makes is not known to keep the batch axis")
    if not target:
        refuse("it drops the batch axis")
    rest, known = [size for size in target[1:] if size > 0], [size for size in before[1:] if isinstance(size, int)]
    is_same = len(rest) == len(target) - 1 and len(known) == len(before) - 1 and prod(rest) == prod(known)
    if (target[0] == 0 and not view.node.attributes.get("allowzero", 0)) or target[0] == before[0]:
        return 0
    if target[0] == -1 and is_same:
        return 0
    raise MixedImages("it joins the batch axis with another one")


def expand(view: NodeView) -> Axis:
    """Expand of other axes than the batch's."""
    before, after, axis = view.shape(0), view.output_shape(), view.axis(0)
    if not isinstance(axis, int):
        refuse("it repeats what has no images for each of them")
    place = len(after) - len(before) + axis
    target = view.constant(1)
    is_kept = target is not None and (place < len(after) - len(target) or target[place - (len(after) - len(target))] == 1)
    if not is_kept and not (isinstance(before[axis], str) and after[place] == before[axis]):
        refuse("it repeats images")
    return place


def pad(view: NodeView) -> Axis:
    """Pad of other axes."""
    axis, pads = view.only_first(), view.constant(1, "pads")
    rank = len(view.shape(0))
    if pads is None or len(pads) != 2 * rank or pads[axis] or pads[rank + axis]:
        refuse("it pads the batch axis, or amounts that are not known")
    return axis


def tile(view: NodeView) -> Axis:
    """Tile of other axes."""
    axis, repeats = view.only_first(), view.constant(1)
    if repeats is None or repeats[axis] != 1:
        refuse("it repeats the batch axis, or amounts that are not known")
    return axis


def quantize(view: NodeView) -> Axis:
    """QuantizeLinear, DequantizeLinear: one scale, or one for each slice along another axis."""
    axis = view.only_first()
    if view.shape(1) not in ((), (1,)) and int(view.node.attributes.get("axis", 1)) % len(view.shape(0)) == axis:
        refuse("it has a scale for each image")
    return axis


def recur(view: NodeView) -> list[Axis]:
    """LSTM, GRU, RNN: (steps, batch, ...), states (directions, batch, ...)."""
    if view.node.attributes.get("layout", 0):
        refuse("its layout 1 is not known here")
    expected = {0: 1, 4: 0, 5: 1, 6: 1}
    for index in range(len(view.node.inputs)):
        if not view.node.inputs[index]:
            continue
        if index not in expected:
            view.require_shared(index)
        elif view.axis(index) != expected[index]:
            refuse(f"its input '{view.node.inputs[index]}' has its images on axis {view.axis(index)}, not {expected[index]}")
    axes: list[Axis] = [2, 1, 1]
    return axes[: len(view.node.outputs)]


def keep_rows(view: NodeView) -> Axis:
    """Operators of ai.onnx.ml on (batch, features)."""
    if keep_first(view) != 0 or len(view.shape(0)) != 2:
        refuse("its input is one image, not a batch of them")
    return 0


_ALIGNED = """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu Clip
Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less
LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus
Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"""
_FIRST = """AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool
GroupNormalization InstanceNormalization LRN LpPool MaxPool QLinearConv SpaceToDepth"""
_REDUCED = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
_ROWS = """Binarizer Imputer LinearClassifier LinearRegressor Normalizer SVMClassifier SVMRegressor Scaler TreeEnsemble
TreeEnsembleClassifier TreeEnsembleRegressor"""


def _for_all(
    names: str, rule: Callable[[NodeView], Axis], domain: str = "", prefix: str = ""
) -> Iterator[tuple[tuple[str, str], Any]]:
    return (((domain, f"{prefix}{name}"), rule) for name in names.split())


RULES: Mapping[tuple[str, str], Callable[[NodeView], Axis | list[Axis]]] = {
    **dict(_for_all(_ALIGNED, keep_aligned)),
    **dict(_for_all(_FIRST, keep_first)),
    **dict(_for_all(_REDUCED, reduce, prefix="Reduce")),
    **dict(_for_all(_ROWS, keep_rows, domain="ai.onnx.ml")),
    ("", "ArgMax"): arg_reduce,
    ("", "ArgMin"): arg_reduce,
    ("", "Concat"): concat,
    ("", "CumSum"): keep_except(0, index=1, attribute=""),
    ("", "DequantizeLinear"): quantize,
    ("", "Dropout"): NodeView.only_first,
    ("", "Expand"): expand,
    ("", "Flatten"): flatten,
    ("", "GRU"): recur,
    ("", "Gather"): gather,
    ("", "Gemm"): gemm,
    ("", "Hardmax"): softmax,
    ("", "LSTM"): recur,
    ("", "LayerNormalization"): keep_behind(lambda _: -1),
    ("", "LogSoftmax"): softmax,
    ("", "LpNormalization"): keep_except(-1),
    ("", "MatMul"): multiply,
    ("", "MatMulInteger"): multiply,
    ("", "Pad"): pad,
    ("", "QuantizeLinear"): quantize,
    ("", "RMSNormalization"): keep_behind(lambda _: -1),
    ("", "RNN"): recur,
    ("", "Reshape"): reshape,
    ("", "Resize"): resize,
    ("", "Slice"): cut,
    ("", "Softmax"): softmax,
    ("", "Split"): keep_except(0),
    ("", "Squeeze"): squeeze,
    ("", "Tile"): tile,
    ("", "TopK"): keep_except(-1),
    ("", "Transpose"): transpose,
    ("", "Unsqueeze"): unsqueeze,
    ("", "Upsample"): resize,
}
