"""The batch axis behind an operator: a table lists the axes along which operators mix images; the shapes of the results do the rest.

The shapes are inferred with two sizes of the batch: the axis that follows them is the batch axis of the result. Axes count from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from hetero_core.network.graph import Network, Node
from hetero_core.network.operators import REFUSALS, SizedNode, broadcast_sizes, infer_sizes, is_unknown, open_size
from hetero_core.network.types import TensorType

SIZE = "size"
Axis = int | str | None
"""An axis, SIZE for a value made from the size of the batch, "size@i" for a shape that has it at place i, None for a value that is the same
for all images."""


def shape_with_size_at(place: int) -> str:
    """Returns the mark of a shape with the size of the batch at this place."""
    return f"{SIZE}@{place}"


def is_shape(axis: Axis) -> bool:
    """Says whether a value is such a shape."""
    return isinstance(axis, str) and axis != SIZE


def size_place(axis: Axis) -> int:
    """Returns the place of the size of the batch in such a shape."""
    assert isinstance(axis, str), "only a shape has the size at a place"
    return int(axis.partition("@")[2])


class MixedImages(Exception):  # carries the reason out of a rule
    """A node mixes images, or may mix them."""


def refuse(reason: str) -> NoReturn:
    """Raises MixedImages."""
    raise MixedImages(reason)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with the shapes, constants and batch axes of its values."""

    node: Node
    network: Network
    axes: Mapping[str, Axis]

    def axis(self, index: int) -> Axis:
        """Returns the batch axis of an input; None for an absent or constant input."""
        return self.axes.get(self.node.inputs[index]) if index < len(self.node.inputs) else None

    def shape(self, index: int) -> tuple[Any, ...]:
        """Returns the shape of an input. Raises: MixedImages if its rank is not known."""
        return self._shape_of(self.node.inputs[index])

    def output_shape(self, index: int = 0) -> tuple[Any, ...]:
        """Returns the shape of an output. Raises: as `shape`."""
        return self._shape_of(self.node.outputs[index])

    def _shape_of(self, value: str) -> tuple[Any, ...]:
        known = self.network.type_of(value)
        if not isinstance(known, TensorType) or known.shape is None:
            refuse(f"the rank of '{value}' is not known, so that its batch axis is not either")
        return known.shape

    def constant(self, index: int, attribute: str = "") -> list[int] | None:
        """Returns the integers of an input that is a constant, or of an attribute; None if there is neither."""
        if attribute and attribute in self.node.attributes:
            value = self.node.attributes[attribute]
            return [int(number) for number in value] if isinstance(value, tuple | list) else [int(value)]
        name = self.node.inputs[index] if 0 <= index < len(self.node.inputs) else ""
        if name in self.network.initializers:
            return [int(number) for number in self.network.initializers[name].array.reshape(-1)]
        return None

    def require_shared(self, *indices: int) -> None:
        """Raises MixedImages if any of these inputs has images."""
        for index in indices:
            if self.axis(index) is not None:
                refuse(f"its input '{self.node.inputs[index]}' has images, where it expects what is the same for all")

    def only_first(self) -> int:
        """Returns the batch axis of the first input; no further input may have images."""
        axis = self.axis(0)
        self.require_shared(*range(1, len(self.node.inputs)))
        if not isinstance(axis, int):
            refuse("its first input has no images, where another one has")
        return axis

    def listed_axes(self, index: int) -> list[int] | None:
        """Returns the axes that an input or the attribute `axes` lists, from 0 on; None if it lists no known axes."""
        listed = self.constant(index, "axes")
        rank = len(self.shape(0))
        return None if listed is None else [position % rank for position in listed]


Rule = Callable[[NodeView], "int | list[Axis] | None"]
"""Returns the batch axis of the outputs, or None if it follows from their shapes. Raises MixedImages with the reason."""
_BATCHES = (10007, 10009)
"""Two sizes of the batch, primes that no model has."""
_OTHER_SIZE = 20011
"""The size of an open axis of a value without images: no size of the batch."""
_LARGEST_READ_CONSTANT = 1024


def find_output_axes(view: NodeView) -> list[Axis]:
    """Returns the batch axis of each output of a node that reads images. Raises: MixedImages."""
    rule = RULES.get((view.node.domain, view.node.op_type))
    if rule is None or view.node.bodies:
        refuse("it is not known to keep images apart")
    axes = rule(view)
    if axes is None:
        return follow_shapes(view)
    return [axes] * len(view.node.outputs) if isinstance(axes, int) else axes


def follow_shapes(view: NodeView) -> list[Axis]:
    """Returns the axis of each output that has the size of the batch. Raises: MixedImages."""
    axes: list[Axis] = []
    for name, *shapes in zip(view.node.outputs, *(_infer_shapes(view, size) for size in _BATCHES), strict=False):
        pairs = enumerate(zip(*shapes, strict=True))
        changed = [(axis, sizes) for axis, sizes in pairs if not any(map(is_unknown, sizes)) and sizes[0] != sizes[1]]
        if name and [sizes for _, sizes in changed] != [_BATCHES]:
            refuse(f"its output '{name}' has no axis of its own for the images: it sums, cuts, joins or repeats them")
        axes.append(changed[0][0] if name else None)
    return axes


def _infer_shapes(view: NodeView, batch: int) -> Sequence[tuple[Any, ...]]:
    """Returns the shapes of the outputs for a size of the batch. Raises: MixedImages."""
    node, initializers = view.node, view.network.initializers
    shapes: list[tuple[Any, ...] | None] = []
    for index, name in enumerate(node.inputs):
        axis = view.axis(index)
        sizes: list[Any] = [size if isinstance(size, int) else open_size(size) for size in view.shape(index)] if name else []
        if axis is None:
            sizes = [_OTHER_SIZE if is_unknown(size) else size for size in sizes]
        shapes.append(tuple(batch if place == axis else size for place, size in enumerate(sizes)) if name else None)

    def read(name: str) -> list[Any] | None:
        constant = initializers.get(name)
        return None if constant is None or prod(constant.shape) > _LARGEST_READ_CONSTANT else constant.array.reshape(-1).tolist()

    try:
        if node.op_type in _ALIGNED.split() and "broadcast" not in node.attributes:
            return [broadcast_sizes(*(shape for shape in shapes if shape is not None))]
        return infer_sizes(SizedNode(node, shapes, read))
    except REFUSALS:
        refuse("it sums or broadcasts over the batch axis, or has a value of its own for each image")


def keep_first(view: NodeView) -> int:
    """Operators on (batch, ...) with weights."""
    axis = view.only_first()
    if axis != 0:
        refuse(f"it works on images on axis 0; here they are on axis {axis}")
    if view.node.attributes.get("training_mode", 0):
        refuse("it trains: its numbers are those of the whole batch")
    if view.node.op_type == "MaxPool" and len(view.node.writes) > 1:
        refuse("its indices count through the whole batch")
    return 0


def keep_rows(view: NodeView) -> int:
    """Operators of ai.onnx.ml on (batch, features)."""
    if keep_first(view) != 0 or len(view.shape(0)) != 2:
        refuse("its input is one image, not a batch of them")
    return 0


def follow(view: NodeView) -> None:
    """Operators that mix no images unless the shapes say so: elementwise operators, products, moves of axes."""


def follow_beside(index: int, attribute: str, default: int | None = None) -> Callable[[NodeView], None]:
    """Operators that work along listed axes: a mixture if the batch axis is among them. Without a default all axes are worked on."""

    def rule(view: NodeView) -> None:
        axis, listed = view.only_first(), view.constant(index, attribute)
        listed = [default] if listed is None and default is not None else listed
        if listed is None:
            refuse("it works along all axes, or along axes that are not known")
        if axis in [along % len(view.shape(0)) for along in listed]:
            refuse(f"it works along axis {axis}, on which the images lie")

    return rule


def follow_before(default: int) -> Callable[[NodeView], None]:
    """Operators that work on all axes from the attribute `axis` on, as LayerNormalization."""

    def rule(view: NodeView) -> None:
        axis, along = view.only_first(), int(view.node.attributes.get("axis", default)) % len(view.shape(0))
        if axis >= along:
            refuse(f"it works on all axes from {along} on, and the images lie on axis {axis}")

    return rule


def softmax(view: NodeView) -> None:
    """Softmax: along an axis since version 13, before on all axes from `axis` on."""
    (follow_beside(-1, "axis", -1) if view.node.since_version >= 13 else follow_before(1))(view)


def cut(view: NodeView) -> int:
    """Slice of the listed axes, or of the first axes."""
    axis = view.only_first()
    is_listed = "axes" in view.node.attributes or (len(view.node.inputs) > 3 and view.node.inputs[3])
    listed = view.listed_axes(3) if is_listed else list(range(len(view.constant(1, "starts") or view.shape(0))))
    if listed is None or axis in listed:
        refuse("it cuts the batch axis, or axes that are not known")
    return axis


def concat(view: NodeView) -> None:
    """Concat of images with images, except on the batch axis."""
    axes = {view.axis(index) for index in range(len(view.node.inputs))}
    if len(axes) != 1:
        refuse("it joins values with images and values without, or with images on other axes")
    if int(view.node.attributes.get("axis", 1)) % len(view.shape(0)) in axes:
        refuse("it joins along the batch axis")


def gather(view: NodeView) -> None:
    """Gather: the same rows of each image, or rows of a table for each."""
    data, indices = view.axis(0), view.axis(1)
    along = int(view.node.attributes.get("axis", 0)) % len(view.shape(0))
    if (data is None) == (indices is None) or data == along:
        refuse("it takes images by their place in the batch")


def multiply(view: NodeView) -> None:
    """MatMul and Gemm: a C or a zero point of several rows has a value for each image."""
    view.require_shared(*range(2, len(view.node.inputs)))
    if len(view.node.inputs) > 2 and view.node.inputs[2]:
        shape = view.shape(2)
        if view.node.op_type == "Gemm" and len(shape) == 2 and shape[0] != 1:
            refuse("C has a row for each image")
        if view.node.op_type != "Gemm" and shape not in ((), (1,)):
            refuse("it has a zero point for each row")


def resize(view: NodeView) -> int:
    """Resize, Upsample by constant scales, of which the batch's is 1."""
    axis = view.only_first()
    scales = view.constant(2 if view.node.op_type == "Resize" and view.node.since_version >= 11 else 1, "scales")
    if "axes" in view.node.attributes or not scales or scales[axis] != 1:
        refuse("it resizes the batch axis, or to sizes that are not relative to it")
    return axis


def pad(view: NodeView) -> int:
    """Pad except on the batch axis."""
    axis, pads = view.only_first(), view.constant(1, "pads")
    rank = len(view.shape(0))
    if pads is None or len(pads) != 2 * rank or pads[axis] or pads[rank + axis]:
        refuse("it pads the batch axis, or amounts that are not known")
    return axis


def reshape(view: NodeView) -> int:
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


def expand(view: NodeView) -> int:
    """Expand except on the batch axis."""
    before, after, axis = view.shape(0), view.output_shape(), view.axis(0)
    if not isinstance(axis, int):
        refuse("it repeats what has no images for each of them")
    place = len(after) - len(before) + axis
    target = view.constant(1)
    is_kept = target is not None and (place < len(after) - len(target) or target[place - (len(after) - len(target))] == 1)
    if not is_kept and not (isinstance(before[axis], str) and after[place] == before[axis]):
        refuse("it repeats images")
    return place


def quantize(view: NodeView) -> int:
    """QuantizeLinear, DequantizeLinear: a single scale, or a scale for each slice along an axis without images."""
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


_ALIGNED = """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu Clip
Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less
LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus
Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"""
_FIRST = """AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool
GroupNormalization InstanceNormalization LRN LpPool MaxPool QLinearConv SpaceToDepth"""
_REDUCED = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
_ROWS = """Binarizer Imputer LinearClassifier LinearRegressor Normalizer SVMClassifier SVMRegressor Scaler TreeEnsemble
TreeEnsembleClassifier TreeEnsembleRegressor"""
_OWN: Mapping[str, Rule] = {
    **dict.fromkeys(("ArgMax", "ArgMin", "Split"), follow_beside(-1, "axis", 0)),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), quantize),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), recur),
    **dict.fromkeys(("Gemm", "MatMul", "MatMulInteger"), multiply),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), softmax),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), follow_before(-1)),
    **dict.fromkeys(("LpNormalization", "TopK"), follow_beside(-1, "axis", -1)),
    **dict.fromkeys(("Resize", "Upsample"), resize),
    "Concat": concat,
    "CumSum": follow_beside(1, ""),
    "Expand": expand,
    "Gather": gather,
    "Pad": pad,
    "Reshape": reshape,
    "Slice": cut,
    "Squeeze": follow_beside(1, "axes"),
}
RULES: Mapping[tuple[str, str], Rule] = {
    **{("", name): follow for name in (*_ALIGNED.split(), "Dropout", "Flatten", "Tile", "Transpose", "Unsqueeze")},
    **{("", name): keep_first for name in _FIRST.split()},
    **{("", f"Reduce{name}"): follow_beside(1, "axes") for name in _REDUCED.split()},
    **{("ai.onnx.ml", name): keep_rows for name in _ROWS.split()},
    **{("", name): rule for name, rule in _OWN.items()},
}
