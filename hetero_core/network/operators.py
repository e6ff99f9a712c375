"""The table of ONNX's operators: the sizes and the element types of their outputs, by ONNX's text.

A rule of sizes is a function of the sizes of the inputs. A size is an integer, an `OpenSize`, or a symbol of a device: any object
with integer arithmetic and comparisons. So the same rule serves the types of a network at read, a network of fixed sizes, and a
plan for a class of sizes. A rule checks plain numbers, and raises `UnknownError` if it cannot tell a shape, or if onnx may see an
error in the node; then onnx is asked, or the sizes of an example hold. Imports nothing heavy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from math import floor, prod
from typing import Any, NoReturn

import numpy as np

from hetero_core.dtypes import dtype_of_numpy, dtype_of_onnx
from hetero_core.network.graph import Node

Shape = tuple[Any, ...]
DTypes = Sequence[str | None]


class UnknownError(Exception):
    """A rule cannot tell the shape or the element type of a result."""


class OpenAxesError(UnknownError):
    """The axes that a node lists are not known; its argument is how many there are."""


REFUSALS = (UnknownError, ArithmeticError, IndexError, KeyError, TypeError, ValueError)
"""The exceptions of a rule for a node of which it cannot tell, or that contradicts itself."""


class OpenSize:
    """A size that no number is known of: a product of names and a number, exact as long as it is only copied, multiplied and divided.

    Any other arithmetic makes a size with a new name of its own; an order raises UnknownError.
    """

    __slots__ = ("factor", "names")

    def __init__(self, *names: str, factor: int = 1) -> None:
        self.names, self.factor = names, factor

    @property
    def name(self) -> str | None:
        """The name of a size that the model names; None for any other size."""
        is_name = self.factor == 1 and len(self.names) == 1 and not self.names[0].startswith(_NAMELESS)
        return self.names[0] if is_name else None

    def __eq__(self, other: object) -> bool:
        if self.is_same(other):
            return True
        if isinstance(other, int) and other < 0:
            return False
        raise UnknownError(self.names)

    def __hash__(self) -> int:
        return hash((self.names, self.factor))

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, OpenSize):
            return OpenSize(*sorted(self.names + other.names), factor=self.factor * other.factor)
        return OpenSize(*self.names, factor=self.factor * int(other)) if other else 0

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        removed, divisor = (Counter(other.names), other.factor) if isinstance(other, OpenSize) else (Counter(), int(other))
        names = Counter(self.names)
        if not removed <= names or self.factor % divisor:
            return open_size()
        rest = sorted((names - removed).elements())
        return OpenSize(*rest, factor=self.factor // divisor) if rest else self.factor // divisor

    def __add__(self, other: Any) -> Any:
        return self if not isinstance(other, OpenSize) and other == 0 else open_size()

    __radd__ = __add__
    __sub__ = __add__

    def is_same(self, other: Any) -> bool:
        """Says whether another size is known to be the same."""
        return isinstance(other, OpenSize) and (self.names, self.factor) == (other.names, other.factor)

    def _lose(self, *_: Any) -> OpenSize:
        return open_size()

    def _refuse(self, *_: Any) -> NoReturn:
        raise UnknownError(self.names)

    __rsub__ = __neg__ = __abs__ = __rfloordiv__ = __mod__ = __rmod__ = _lose
    __lt__ = __le__ = __gt__ = __ge__ = __index__ = __int__ = __bool__ = _refuse


_NAMELESS = "\0"
_numbers = count()


def open_size(dimension: str | None = None) -> OpenSize:
    """Returns the size of a dimension that is no number."""
    return OpenSize(f"{_NAMELESS}{next(_numbers)}" if dimension is None else dimension)


def is_unknown(size: Any) -> bool:
    """Says whether a size is an `OpenSize`."""
    return type(size) is OpenSize


def open_sizes(count: int) -> Shape:
    """Returns the sizes of so many dimensions that are no numbers."""
    return tuple(open_size() for _ in range(count))


@dataclass(frozen=True, slots=True, eq=False)
class SizedNode:
    """A node with the shapes of its inputs (None: absent or unknown), as rules ask for them.

    `read` returns the elements of a value by name, in order, if it holds a few known numbers, else None.
    """

    node: Node
    shapes: Sequence[Shape | None]
    read: Callable[[str], Sequence[Any] | None]

    def shape(self, index: int = 0) -> Shape:
        """Returns the shape of an input. Raises: UnknownError."""
        shape = self.shapes[index]
        if shape is None:
            raise UnknownError(self.node.op_type)
        return shape

    def has(self, index: int) -> bool:
        """Says whether an optional input is present."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an attribute."""
        return self.node.attributes.get(name, default)

    def numbers(self, index: int, attribute: str = "") -> list[Any] | None:
        """Returns the integers of an attribute or of an input with a single axis; None if both are absent. Raises: UnknownError."""
        if attribute and attribute in self.node.attributes:
            return list(self.node.attributes[attribute])
        if not self.has(index):
            return None
        elements, shape = self.read(self.node.inputs[index]), self.shapes[index]
        if elements is None or (shape is not None and len(shape) != 1):
            raise UnknownError(self.node.op_type)
        return list(elements)

    def require_numbers(self, index: int, attribute: str = "") -> list[Any]:
        """Returns the result of `numbers`. Raises: UnknownError, also if it is None."""
        numbers = self.numbers(index, attribute)
        if numbers is None:
            raise UnknownError(self.node.op_type)
        return numbers

    def number(self, index: int) -> Any:
        """Returns the only element of an input. Raises: UnknownError."""
        elements = self.read(self.node.inputs[index])
        if elements is None or len(elements) != 1:
            raise UnknownError(self.node.op_type)
        return elements[0]

    def axis(self, default: int | None = None, rank: int | None = None) -> int:
        """Returns the attribute `axis`, counted from the front of the first input, or of so many axes. Raises: UnknownError."""
        axis = self.get("axis", default)
        require(isinstance(axis, int))
        return self._place(axis, len(self.shape()) if rank is None else rank)

    def axes(self, index: int, rank: int) -> list[int] | None:
        """Returns the axes that an input or the attribute `axes` lists, counted from the front; None if it is absent."""
        listed = self.numbers(index, "axes")
        if listed is None:
            return None
        if any(map(is_unknown, listed)):
            raise OpenAxesError(len(listed))
        axes = [self._place(int(axis), rank) for axis in listed]
        require(len(set(axes)) == len(axes))
        return axes

    def _place(self, axis: int, rank: int) -> int:
        # Squeeze and Unsqueeze of version 1 have no negative axes, which engines take all the same.
        counts_back = not 1 <= self.node.since_version < 11 or self.node.op_type in ("Squeeze", "Unsqueeze")
        require((-rank if counts_back else 0) <= axis < rank)
        return axis % rank


Rule = Callable[[SizedNode], Sequence[Shape]]
"""Returns the shapes of the outputs."""
TypeRule = Callable[[Node, DTypes], str | None]
"""Returns the element type of an output."""
Along = Callable[[SizedNode], Sequence[Sequence[int]]]
"""Returns for each input the axes along which places depend on one another, though the sizes of the outputs do not show it.

An input behind the last entry is read whole for every element.
"""


Source = int | str | TypeRule | tuple[int | str, ...]
"""The source of an element type: an input, a name, "@" and the attribute that states it, the first present of several, or a rule."""


@dataclass(frozen=True, slots=True)
class Operator:
    """All that is known of the results of an operator; it holds from version `since` on. `dtypes` has a source for each output, the last
    of which holds for all further outputs; `along` is None if no axis is known to keep places apart.
    """

    since: int
    sizes: Rule
    dtypes: tuple[Source, ...]
    along: Along | None = None

    def infer_dtypes(self, node: Node, dtypes: DTypes) -> list[str | None]:
        """Returns the element types of the outputs of a node. Raises: those of `REFUSALS`."""
        if len(node.outputs) == 1:
            return [_read_source(self.dtypes[0], node, dtypes)]
        sources = self.dtypes + self.dtypes[-1:] * (len(node.outputs) - len(self.dtypes))
        return [_read_source(source, node, dtypes) for source, _ in zip(sources, node.outputs, strict=False)]


def define(since: int, sizes: Rule, *dtypes: Source, along: Along | None = None) -> Operator:
    """Returns the operator with these rules."""
    return Operator(since, sizes, dtypes, along)


def name_operators(rows: Mapping[str, Operator]) -> dict[str, Operator]:
    """Returns the operators by name; a key of `rows` has the names, separated by spaces, of all operators with the same rules."""
    return {name: operator for names, operator in rows.items() for name in names.split()}


def _read_source(source: Source, node: Node, dtypes: DTypes) -> str | None:
    if callable(source):
        return source(node, dtypes)
    for choice in source if isinstance(source, tuple) else (source,):
        if isinstance(choice, int):
            if choice < len(node.inputs) and node.inputs[choice]:
                return dtypes[choice]
        elif not choice.startswith("@"):
            return choice
        else:
            stated = node.attributes.get(choice[1:])
            if isinstance(stated, int | str) and stated:  # Cast-1 has a name
                return dtype_of_onnx(stated)
    return None


def infer_sizes(node: SizedNode) -> Sequence[Shape]:
    """Returns the shapes of the outputs of a node. Raises: those of `REFUSALS`."""
    operator = OPERATORS.get(node.node.op_type) if node.node.domain in STANDARD_DOMAINS else None
    if operator is None or node.node.since_version < operator.since:
        raise UnknownError(node.node.op_type)
    shapes = operator.sizes(node)
    require(not any(node.node.outputs[len(shapes) :]))
    return shapes


def require(condition: bool) -> None:
    """Raises UnknownError unless the condition holds."""
    if not condition:
        raise UnknownError


def may_agree(size: Any, other: Any) -> bool:
    """Says whether two sizes may be equal: two numbers if they are, open sizes always."""
    return type(size) is not int or type(other) is not int or size == other


def _is(size: Any, number: int) -> bool:
    """Says whether a size is known to be a number."""
    return type(size) is not OpenSize and size == number


def _is_number_below(size: Any, limit: int) -> bool:
    return type(size) is int and size < limit


def _put(shape: Shape, axis: int, *sizes: Any) -> Shape:
    """Returns the shape with these sizes in place of that of an axis."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def broadcast_sizes(*shapes: Shape) -> Shape:
    """Returns the shape to which shapes broadcast. Raises: ValueError."""
    first = shapes[0]
    if all(shape is first for shape in shapes):
        return first
    result: list[Any] = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        size: Any = 1
        for other in sizes:
            if other is size:
                continue
            if type(other) is OpenSize or type(size) is OpenSize:
                size = other if _is(size, 1) else size if _is(other, 1) else _meet(size, other)
            elif other == 1:
                continue
            elif size == 1:
                size = other
            elif other != size:
                raise ValueError("shapes that do not broadcast")
        result.append(size)
    return tuple(reversed(result))


def _prefer_known(size: Any, other: Any) -> Any:
    """Returns the better known of two equal sizes."""
    return other if is_unknown(size) and (not is_unknown(other) or size.name is None) else size


def _meet(size: Any, other: Any) -> Any:
    """Returns the size that joins two descriptions of the same size."""
    if type(size) is not OpenSize or type(other) is not OpenSize:
        return other if type(size) is OpenSize else size
    return size if size.is_same(other) else open_size()


# Element by element.


def keep(*positions: int) -> Rule:
    """Returns the rule of outputs with the shapes of these inputs, by default an output with that of the first."""
    return lambda node: [node.shape(position) for position in positions or (0,)]


def _keep_along(node: SizedNode) -> Sequence[Shape]:
    node.axis(-1 if node.node.since_version >= 13 else 1)
    return [node.shape()]


def normalize_layer(node: SizedNode) -> Sequence[Shape]:
    """LayerNormalization with the mean and the inverse deviation."""
    shape = node.shape()
    axis = node.axis(-1)
    statistic = (*shape[:axis], *(1,) * (len(shape) - axis))
    return [shape, statistic, statistic]


def _normalize_root(node: SizedNode) -> Sequence[Shape]:
    shape, weight = node.shape(), node.shape(1)
    rest = shape[node.axis(-1) :]
    require(len(rest) == len(weight) and all(map(may_agree, rest, weight)))
    return [shape]


def _normalize_channels(node: SizedNode) -> Sequence[Shape]:
    """BatchNormalization, InstanceNormalization: all further inputs have a number for each channel."""
    shape, least = node.shape(), 2 if node.node.op_type == "BatchNormalization" else 3
    others = [node.shape(index) for index in range(1, len(node.shapes))]
    require(len(shape) >= least and not node.get("training_mode", 0))
    require(all(len(other) == 1 and may_agree(other[0], shape[1]) for other in others))
    return [shape]


def _drop_out(node: SizedNode) -> Sequence[Shape]:
    shape = node.shape()
    require(all(not node.has(index) or node.shape(index) == () for index in range(1, len(node.shapes))))
    require(len(node.node.outputs) == 1 or node.node.since_version >= 10)
    return [shape, shape]


def broadcast(*operands: int) -> Rule:
    """Returns the rule of an output to which these inputs broadcast, by default all."""
    return lambda node: [broadcast_sizes(*(node.shape(index) for index in operands or range(len(node.shapes))))]


# Products and windows.


def multiply_shapes(left: Shape, right: Shape) -> Shape:
    """Returns the shape of a matrix product with NumPy's rules. Raises: UnknownError."""
    require(bool(left and right))
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    require(may_agree(left[-1], right[-2] if len(right) > 1 else right[0]))
    return (*broadcast_sizes(left[:-2], right[:-2]), *rows, *columns)


def multiply(first: int = 0, second: int = 1) -> Rule:
    """Returns the rule of products of these inputs."""
    return lambda node: [multiply_shapes(node.shape(first), node.shape(second))]


def read_equation(node: Node) -> tuple[tuple[str, ...], str]:
    """Returns the letters of each input of an `Einsum`, and of its output. Raises: UnknownError for ellipses."""
    source, arrow, output = str(node.attributes.get("equation", "")).replace(" ", "").partition("->")
    if not arrow:
        output = "".join(sorted(letter for letter in set(source) - {","} if source.count(letter) == 1))
    terms = tuple(source.split(","))
    require(len(terms) == len(node.inputs) and all(not term or term.isalpha() for term in (*terms, output)))
    return terms, output


def _contract(node: SizedNode) -> Sequence[Shape]:
    terms, output = read_equation(node.node)
    sizes: dict[str, Shape] = {}
    for index, term in enumerate(terms):
        require(len(term) == len(node.shape(index)))
        for letter, size in zip(term, node.shape(index), strict=True):
            sizes[letter] = broadcast_sizes(sizes.get(letter, (size,)), (size,))
    return [tuple(sizes[letter][0] for letter in output)]


def gemm(first: int = 0, second: int = 1) -> Rule:
    """Returns the rule of products of matrices, each perhaps transposed."""

    def rule(node: SizedNode) -> Sequence[Shape]:
        left, right = node.shape(first), node.shape(second)
        require(len(left) == len(right) == 2)
        rows, inner = left[::-1] if node.get("transA", 0) else left
        other, columns = right[::-1] if node.get("transB", 0) else right
        require(may_agree(inner, other))
        return [(rows, columns)]

    return rule


def _convolve(first: int = 0, second: int = 1) -> Rule:
    """Returns the rule of convolutions of these inputs, image and filters."""

    def rule(node: SizedNode) -> Sequence[Shape]:
        shape, weight = node.shape(first), node.shape(second)
        require(len(shape) == len(weight) >= 3 and may_agree(shape[1], weight[1] * node.get("group", 1)))
        kernel = node.get("kernel_shape") or weight[2:]
        require(all(map(may_agree, kernel, weight[2:])))
        return [(shape[0], weight[0], *slide_window(node, shape[2:], kernel))]

    return rule


def _pool(node: SizedNode) -> Sequence[Shape]:
    shape = node.shape()
    require(len(shape) >= 3 and (len(node.node.outputs) == 1 or node.node.since_version >= 8))
    # onnx has no dilations of AveragePool before version 19, and ignores them.
    require(node.node.op_type != "AveragePool" or "dilations" not in node.node.attributes or node.node.since_version >= 19)
    pooled = (*shape[:2], *slide_window(node, shape[2:], node.node.attributes["kernel_shape"]))
    return [pooled, pooled]


def slide_window(node: SizedNode, sizes: Shape, kernel: Sequence[Any]) -> Shape:
    """Returns the sizes that a window leaves, by the node's attributes. Raises: UnknownError, ValueError."""
    pads, strides, dilations = (node.get(name) for name in ("pads", "strides", "dilations"))
    auto_pad = node.get("auto_pad", "NOTSET")
    require(not any(_is_number_below(size, 1) for size in (*sizes, *kernel)) and not any(pad < 0 for pad in pads or ()))
    require((auto_pad == "NOTSET" or not any(pads or ())) and len(pads or sizes * 2) == 2 * len(sizes))
    require(auto_pad in ("NOTSET", "VALID") or pads is None)
    open_axes = [is_unknown(size) or is_unknown(length) for size, length in zip(sizes, kernel, strict=True)]
    counts = count_windows(
        tuple(_LONG if is_open else size for size, is_open in zip(sizes, open_axes, strict=True)),
        tuple(1 if is_unknown(length) else length for length in kernel),
        auto_pad=auto_pad,
        pads=pads,
        strides=strides,
        dilations=dilations,
        ceil_mode=node.get("ceil_mode", 0),
    )[1]
    return tuple(
        count if not is_open else size if count == _LONG and length == 1 else open_size()
        for size, length, count, is_open in zip(sizes, kernel, counts, open_axes, strict=True)
    )


_LONG = 1 << 30
"""The size that stands for an open size."""


def count_windows(
    sizes: Shape,
    kernel: Shape,
    *,
    auto_pad: str = "NOTSET",
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    ceil_mode: int = 0,
) -> tuple[tuple[tuple[Any, Any], ...], Shape]:
    """Returns the pads (begin, end) of each axis, and how many windows of a convolution or a pooling there are along it.

    SAME pads make ceil(size / stride) outputs, the odd element goes to the end (UPPER) or the begin (LOWER). With `ceil_mode` a
    last window may hang over the padded end, but no window starts there; it may be the only window.

    Raises: ValueError when no window fits. Source: ONNX Conv-22, MaxPool-22.
    """
    rank = len(sizes)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    if min((*kernel, *strides, *dilations), default=1) < 1:
        raise ValueError(f"a window of {kernel} with strides {strides} and dilations {dilations}: each has to be at least 1")
    extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    resolved = _resolve_pads(sizes, extents, strides, auto_pad, pads)
    counts = []
    for size, extent, stride, (begin, end) in zip(sizes, extents, strides, resolved, strict=True):
        room = size + begin + end - extent
        count = (-(-room // stride) if ceil_mode else room // stride) + 1
        if count < 1:
            raise ValueError(f"a window of {extent} does not fit an axis of {size} padded by {begin} and {end}")
        if ceil_mode and (count - 1) * stride >= size + begin:
            count -= 1
        counts.append(count)
    return resolved, tuple(counts)


def _resolve_pads(
    sizes: Shape, extents: Sequence[Any], strides: Sequence[int], auto_pad: str, pads: Sequence[int] | None
) -> tuple[tuple[Any, Any], ...]:
    rank = len(sizes)
    if auto_pad == "VALID" or (auto_pad == "NOTSET" and not pads):
        return ((0, 0),) * rank
    if auto_pad == "NOTSET" and pads:
        if len(pads) != 2 * rank:
            raise ValueError(f"pads {list(pads)} of a window over {rank} axes: expected {2 * rank} of them")
        return tuple(zip(pads[:rank], pads[rank:], strict=True))
    resolved = []
    for size, extent, stride in zip(sizes, extents, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        small, large = total // 2, total - total // 2
        resolved.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return tuple(resolved)


def _convolve_transposed(node: SizedNode) -> Sequence[Shape]:
    shape, weight = node.shape(0), node.shape(1)
    axes, group = len(shape) - 2, int(node.get("group", 1))
    require(axes >= 1 and len(weight) == len(shape) and may_agree(weight[0], shape[1]))
    auto_pad, listed = node.get("auto_pad", "NOTSET"), node.get("output_shape")
    kernel, pads = node.get("kernel_shape") or weight[2:], node.get("pads") or (0,) * (2 * axes)
    strides, dilations, more = (
        node.get(name) or (default,) * axes for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    require(all(map(may_agree, kernel, weight[2:])) and len(pads) == 2 * axes)
    require(len(kernel) == len(strides) == len(dilations) == len(more) == axes)
    require(min(*strides, *dilations, group) >= 1 and min(*pads, *more) >= 0)
    require(not any(_is_number_below(size, 1) for size in shape) and (type(shape[1]) is not int or shape[1] % group == 0))
    if listed is not None:
        require(len(listed) == axes)
        return [(shape[0], weight[1] * group, *listed)]
    extents = [(length - 1) * dilation + 1 for length, dilation in zip(kernel, dilations, strict=True)]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        # Stride times as many elements as are read, if the windows reach them.
        gaps = [max(stride - extent - further, 0) for stride, extent, further in zip(strides, extents, more, strict=True)]
        sizes = [size * strides[axis] - gaps[axis] for axis, size in enumerate(shape[2:])]
    else:
        pads = (0,) * (2 * axes) if auto_pad == "VALID" else pads
        sizes = [
            (size - 1) * strides[axis] + more[axis] + extents[axis] - pads[axis] - pads[axis + axes]
            for axis, size in enumerate(shape[2:])
        ]
    return [(shape[0], weight[1] * group, *sizes)]


def _pool_all(node: SizedNode) -> Sequence[Shape]:
    require(len(node.shape()) >= 3)
    return [(*node.shape()[:2], *[1] * (len(node.shape()) - 2))]


def _move_depth(node: SizedNode) -> Sequence[Shape]:
    batch, channels, height, width = node.shape()
    side = int(node.node.attributes["blocksize"])
    if node.node.op_type == "DepthToSpace":
        require(side >= 1 and (type(channels) is not int or channels % (side * side) == 0))
        return [(batch, channels // (side * side), height * side, width * side)]
    require(side >= 1 and not any(type(size) is int and size % side for size in (height, width)))
    return [(batch, channels * side * side, height // side, width // side)]


def _resize(node: SizedNode) -> Sequence[Shape]:
    shape = node.shape()
    axes = [axis % len(shape) for axis in node.get("axes", range(len(shape)))]
    require(node.get("keep_aspect_ratio_policy", "stretch") == "stretch")
    place = 2 if node.node.op_type == "Resize" and node.node.since_version >= 11 else 1
    if node.has(3):
        require(not node.has(2) or node.shape(2) == (0,))
        given = node.require_numbers(3)
    else:
        scales = node.require_numbers(place, "scales")
        given = [_scale(shape[axis], float(scale)) for axis, scale in zip(axes, scales, strict=True)]
    require(len(given) == len(axes) == len({*axes}) > 0 and not any(_is_number_below(size, 1) for size in given))
    sizes = dict(zip(axes, given, strict=True))
    return [tuple(sizes.get(axis, size) for axis, size in enumerate(shape))]


def scale_size(size: int, scale: float) -> int:
    """Returns the size of a scaled axis: the product is rounded to float32 and cut off, so that 10 x 0.9 is 9, and 9 x (15 / 9) is 15.

    The standard cuts off the exact product, which is below the size that was meant if the scale was rounded down. Source: ONNX Runtime.
    """
    with np.errstate(over="ignore"):
        return floor(np.float32(size) * np.float32(scale))


def _scale(size: Any, scale: float) -> Any:
    """Returns a size times a scale; of a size that is no number only if the scale or its inverse is a whole number that float32 holds."""
    if type(size) is int:
        return scale_size(size, scale)
    if is_unknown(size):
        return size if scale == 1 else open_size()
    if scale >= 1 and scale == int(scale):
        return size * int(scale)
    if scale > 0 and 1 / scale == int(1 / scale) and int(1 / scale) & (int(1 / scale) - 1) == 0:
        return size // int(1 / scale)
    raise UnknownError("Resize")


# Moving elements.


def _concatenate(node: SizedNode) -> Sequence[Shape]:
    shapes = [node.shape(index) for index in range(len(node.shapes))]
    first = shapes[0]
    axis = node.axis()
    for shape in shapes[1:]:
        require(len(shape) == len(first))
        require(all(place == axis or may_agree(*sizes) for place, sizes in enumerate(zip(first, shape, strict=True))))
        first = tuple(map(_prefer_known, first, shape))
    return [_put(first, axis, sum(shape[axis] for shape in shapes))]


def _split(node: SizedNode) -> Sequence[Shape]:
    shape, count = node.shape(), len(node.node.outputs)
    axis, parts = node.axis(0), node.numbers(1, "split")
    if parts is not None and len(parts) != count and any(map(is_unknown, parts)):
        parts = list(open_sizes(count))
    if parts is None:
        require(node.get("num_outputs", count) == count and (type(shape[axis]) is not int or shape[axis] % count == 0))
        size = -(-shape[axis] // count)
        parts = [size] * (count - 1)
        parts.append(shape[axis] - size * (count - 1))
    else:
        require("num_outputs" not in node.node.attributes and len(parts) == count)
        require(not any(_is_number_below(part, 0) for part in parts) and may_agree(sum(parts), shape[axis]))
    return [_put(shape, axis, part) for part in parts]


def _flatten(node: SizedNode) -> Sequence[Shape]:
    shape, axis = node.shape(), node.get("axis", 1)
    require((0 if node.node.since_version < 11 else -len(shape)) <= axis <= len(shape))
    axis += len(shape) if axis < 0 else 0
    return [(prod(shape[:axis]), prod(shape[axis:]))]


def _transpose(node: SizedNode) -> Sequence[Shape]:
    shape = node.shape()
    order = node.get("perm") or tuple(range(len(shape)))[::-1]
    require(bool(shape) and sorted(order) == list(range(len(shape))))
    return [tuple(shape[axis] for axis in order)]


def _reshape(node: SizedNode) -> Sequence[Shape]:
    shape, target = node.shape(), node.require_numbers(1)
    allows_zero = bool(node.get("allowzero", 0))
    require(not any(_is_number_below(size, -1) for size in target))
    copied = [axis for axis, size in enumerate(target) if not allows_zero and _is(size, 0)]
    sizes = [shape[axis] if axis in copied else size for axis, size in enumerate(target)]
    holes = [axis for axis, size in enumerate(sizes) if _is(size, -1)]
    if holes:
        require(len(holes) == 1 and not (allows_zero and any(_is(size, 0) for size in target)))
        # An axis that is copied may be empty; the others' sizes follow without it.
        rest = prod(size for axis, size in enumerate(shape) if axis not in copied)
        sizes[holes[0]] = rest // prod(size for axis, size in enumerate(target) if axis not in (*copied, *holes))
    elements, whole = prod(sizes), prod(shape)
    require(is_unknown(elements) or is_unknown(whole) or elements == whole)
    return [tuple(sizes)]


def _squeeze(node: SizedNode) -> Sequence[Shape]:
    shape = node.shape()
    try:
        axes = node.axes(1, len(shape))
    except OpenAxesError as error:
        return [open_sizes(len(shape) - error.args[0])]
    if axes is None:
        require(not any(map(is_unknown, shape)))
        return [tuple(size for size in shape if size != 1)]
    # Of axes that are not in order older versions of the rule in onnx drop some.
    require(axes == sorted(axes) and all(may_agree(shape[axis], 1) for axis in axes))
    return [tuple(size for axis, size in enumerate(shape) if axis not in axes)]


def _unsqueeze(node: SizedNode) -> Sequence[Shape]:
    shape = node.shape()
    rank = len(shape) + len(node.require_numbers(1, "axes"))
    try:
        axes, sizes = node.axes(1, rank) or (), iter(shape)
    except OpenAxesError:
        return [open_sizes(rank)]
    return [tuple(1 if axis in axes else next(sizes) for axis in range(rank))]


def _reduce(node: SizedNode) -> Sequence[Shape]:
    shape = node.shape()
    keeps = bool(node.get("keepdims", 1))
    try:
        axes = node.axes(1, len(shape))
    except OpenAxesError as error:
        return [open_sizes(len(shape) - (0 if keeps else error.args[0]))]
    if not axes:
        if node.get("noop_with_empty_axes", 0):
            return [shape]
        axes = list(range(len(shape)))
    return [tuple(1 if axis in axes else size for axis, size in enumerate(shape) if keeps or axis not in axes)]


def _gather_slices(node: SizedNode) -> Sequence[Shape]:
    *places, depth = node.shape(1)
    return [(*places, *node.shape()[int(node.get("batch_dims", 0)) + int(depth) :])]


def _slice(node: SizedNode) -> Sequence[Shape]:
    sizes = list(node.shape())
    if any(map(is_unknown, (*(node.numbers(3, "axes") or ()), *(node.numbers(4) or ())))):
        return [open_sizes(len(sizes))]
    for axis, start, end, step in read_slices(node, len(sizes)):
        size = sizes[axis]
        if any(map(is_unknown, (start, end, size))):
            is_whole = (
                _is(start, 0) and step == 1 and ((type(end) is int and end >= _LONG) or (is_unknown(end) and end.is_same(size)))
            )
            sizes[axis] = size if is_whole else open_size()
            continue
        require(step > 0 or (not (_is_number_below(start, -size) if type(size) is int else False) and size != 0))
        begin, stop = clip_slice(start, end, size, step)
        count = -((begin - stop) // step) if step > 0 else -((stop - begin) // -step)
        sizes[axis] = 0 if count < 0 else count
    return [tuple(sizes)]


def read_slices(node: SizedNode, rank: int) -> list[tuple[int, Any, Any, int]]:
    """Returns the axis, begin, end and step of each slice. Raises: UnknownError."""
    starts, ends = node.require_numbers(1, "starts"), node.require_numbers(2, "ends")
    axes, steps = node.numbers(3, "axes"), node.numbers(4)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else [int(step) for step in steps]
    require(rank > 0 and all(-rank <= axis < rank for axis in axes) and len({axis % rank for axis in axes}) == len(axes))
    require(0 not in steps)
    return [(int(axis) % rank, start, end, step) for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)]


def clip_slice(start: Any, end: Any, size: Any, step: int) -> tuple[Any, Any]:
    """Returns the begin and the end of a slice, as Python reads them."""
    low, high = (0, size) if step > 0 else (-1, size - 1)

    def clip(place: Any) -> Any:
        place = place + size if place < 0 else place
        return low if place < low else high if place > high else place

    return clip(start), clip(end)


def _expand(node: SizedNode) -> Sequence[Shape]:
    target = node.require_numbers(1)
    require(not any(_is_number_below(size, 1) for size in target))
    return [broadcast_sizes(node.shape(), tuple(target))]


def _tile(node: SizedNode) -> Sequence[Shape]:
    repeats = node.require_numbers(1)
    require(not any(_is_number_below(times, 0) for times in repeats))
    return [tuple(size * times for size, times in zip(node.shape(), repeats, strict=True))]


def _pad(node: SizedNode) -> Sequence[Shape]:
    shape, pads = node.shape(), node.require_numbers(1, "pads")
    require(not node.has(3) and len(pads) == 2 * len(shape) > 0)
    return [tuple(pads[axis] + size + pads[axis + len(shape)] for axis, size in enumerate(shape))]


def _mark_ones(node: SizedNode) -> Sequence[Shape]:
    axis = node.axis(-1, len(node.shape()) + 1)
    return [(*node.shape()[:axis], node.number(1), *node.shape()[axis:])]


# Shapes, and values made from shapes.


def read_part(node: Node) -> slice:
    """Returns which sizes `Shape` gives."""
    return slice(int(node.attributes.get("start", 0)), node.attributes.get("end"))


def _range(node: SizedNode) -> Sequence[Shape]:
    numbers = (node.number(index) for index in range(3))
    begin, end, step = (int(number) if type(number) is float and number.is_integer() else number for number in numbers)
    if any(map(is_unknown, (begin, end, step))):
        return [(end if _is(begin, 0) and _is(step, 1) else open_size(),)]
    require(not any(type(number) is float for number in (begin, end, step)))
    step = int(step)
    count = -((begin - end) // step) if step > 0 else -((end - begin) // -step)
    return [(count if count > 0 else 0,)]


# Sequences of steps.


def _recur(node: SizedNode) -> Sequence[Shape]:
    shape, recurrence = node.shape(), node.shape(2)
    stacked, _, hidden = recurrence
    directions = 2 if node.get("direction") == "bidirectional" else 1
    require(may_agree(stacked, directions) and may_agree(node.get("hidden_size", hidden), hidden))
    require(may_agree(shape[-1], node.shape(1)[-1]))
    if node.get("layout", 0):
        batch, steps, _ = shape
        whole, last = (batch, steps, directions, hidden), (batch, directions, hidden)
    else:
        steps, batch, _ = shape
        whole, last = (steps, directions, batch, hidden), (directions, batch, hidden)
    states = [node.shape(index) for index in (5, 6) if node.has(index)]
    require(not node.has(4) or may_agree(node.shape(4)[0], batch))
    require(all(len(state) == 3 and all(map(may_agree, state, last)) for state in states))
    return [whole, last, last]


def _attend(node: SizedNode) -> Sequence[Shape]:
    heads = [node.get(name) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    is_projected = len(node.shape()) == 3
    q, k, v = (_part_heads(node.shape(index), count) for index, count in enumerate(heads))
    joined = []
    for position, fresh in ((4, k), (5, v)):
        past = node.shape(position) if node.has(position) else None
        joined.append(fresh if past is None else (*fresh[:2], past[2] + fresh[2], fresh[3]))
    output = (q[0], q[2], q[1] * v[3]) if is_projected else (*q[:3], v[3])
    return [output, *joined, (*q[:3], joined[0][2])]


def _part_heads(shape: Shape, heads: Any) -> Shape:
    """Returns (batch, heads, steps, head size) of a query, key or value, which may also be (batch, steps, heads * head size)."""
    if len(shape) == 4:
        return shape
    require(len(shape) == 3 and isinstance(heads, int) and heads > 0)
    return (shape[0], heads, shape[1], shape[2] // heads)


# Axes along which places depend on one another.


def _keep_apart(node: SizedNode) -> Sequence[Sequence[int]]:
    """Elementwise operators, and those that join or move axes as their sizes show."""
    return [()] * len(node.shapes)


def _along_all_but_first(node: SizedNode) -> Sequence[Sequence[int]]:
    return [range(1, len(node.shape()))]


def _along_axis(default: int) -> Along:
    return lambda node: [[node.axis(default)]]


def _along_axes_from(default: int) -> Along:
    return lambda node: [range(node.axis(default), len(node.shape()))]


def _along_softmax(node: SizedNode) -> Sequence[Sequence[int]]:
    return (_along_axis(-1) if node.node.since_version >= 13 else _along_axes_from(1))(node)


def _along_listed(node: SizedNode) -> Sequence[Sequence[int]]:
    rank = len(node.shape())
    return [node.axes(1, rank) or range(rank)]


def _along_slices(node: SizedNode) -> Sequence[Sequence[int]]:
    """A slice from the first element on with a step of 1 is whole or shows in the size."""
    return [[axis for axis, start, _, step in read_slices(node, len(node.shape())) if step != 1 or not _is(start, 0)]]


def _along_pads(node: SizedNode) -> Sequence[Sequence[int]]:
    rank, pads = len(node.shape()), node.require_numbers(1, "pads")
    return [[axis for axis in range(rank) if not (_is(pads[axis], 0) and _is(pads[axis + rank], 0))]]


def _along_products(node: SizedNode) -> Sequence[Sequence[int]]:
    """MatMul, Gemm, MatMulInteger; a C or a zero point of several rows has numbers of its own for each row."""
    extra = node.shape(2) if node.has(2) else ()
    require((extra[:-1] if node.node.op_type == "Gemm" else extra) in ((), (1,)))
    return [(), ()]


def _along_scales(node: SizedNode) -> Sequence[Sequence[int]]:
    shape, scale = node.shape(), node.shape(1)
    return [() if scale in ((), (1,)) else range(len(shape)) if len(scale) > 1 else [node.axis(1)]]


# Element types.


def _single(dtypes: DTypes) -> str | None:
    """Returns the element type that all known types agree on."""
    known = {dtype for dtype in dtypes if dtype is not None}
    require(len(known) <= 1)
    return next(iter(known), None)


def _alike(node: Node, dtypes: DTypes) -> str | None:
    """All inputs have the type of the output."""
    return _single(dtypes)


def _paired(node: Node, dtypes: DTypes) -> str | None:
    """The first two inputs have the type of the output."""
    return _single(dtypes[:2])


def _compared(node: Node, dtypes: DTypes) -> str | None:
    _single(dtypes)
    return "bool"


# The table.

_KEPT_SINCE = {
    1: "BitwiseNot Identity Shrink Softplus Softsign",
    6: "Abs Ceil Clip Elu Exp Floor HardSigmoid LeakyRelu Log Neg Reciprocal Relu Selu Sigmoid Sqrt Tanh",
    7: "Acos Asin Atan Cos Sin Tan",
    9: "Acosh Asinh Atanh Cosh Erf Sign Sinh",
    10: "ThresholdedRelu",
    11: "Round",
    12: "Celu",
    14: "HardSwish",
    18: "Mish",
    20: "Gelu",
    24: "Swish",
}
"""The operators with an output of the type of their first input, from these versions on."""
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

KEPT_RANKS = frozenset({"Pad", "Slice", "Split", "Tile"})
"""The operators with an output of the rank of their first input."""

STANDARD_DOMAINS = ("", "ai.onnx.ml")
"""The domains of ONNX; no operator of one has the name of an operator of the other."""


def _dequantize_types(node: Node, dtypes: DTypes) -> str | None:
    return "float32" if node.since_version < 19 else _read_source(("@output_dtype", 1), node, dtypes)


def _score(targets: str) -> Rule:
    """Returns the rule of a model with so many scores for each row, the number in an attribute; a vector is a row."""
    return lambda node: [(*(node.shape()[:-1] or (1,)), node.get(targets, 1))]


def _classify(node: SizedNode) -> list[Shape]:
    rows = node.shape()[0] if len(node.shape()) > 1 else 1
    return [(rows,), (rows, max(len(node.get(name, ())) for name in _CLASS_LABELS))]


def _relabel_types(node: Node, dtypes: DTypes) -> str | None:
    """Returns the type of the labels: that of the values, or the other of two if a table is read both ways."""
    if node.op_type == "CategoryMapper" or node.since_version == 1:
        return "int64" if dtypes[0] == "string" else "string"
    return next((dtype for name, dtype in _LABEL_TYPES.items() if node.attributes.get(name)), None)


_LABEL_TYPES = {"values_strings": "string", "values_int64s": "int64", "values_floats": "float32"}
_CLASS_LABELS = ("classlabels_int64s", "classlabels_ints", "classlabels_strings")

_ROWS = {
    **{names: define(since, keep(), 0, along=_keep_apart) for since, names in _KEPT_SINCE.items()},
    "Binarizer Imputer MeanVarianceNormalization ReverseSequence ScatterElements ScatterND Trilu": define(1, keep(), 0),
    "GroupNormalization LRN": define(1, keep(), 0, along=_along_all_but_first),
    "CumSum": define(1, keep(), 0, along=lambda node: [[int(node.number(1)) % len(node.shape())]]),
    "Hardmax": define(1, keep(), 0, along=_along_softmax),
    "LpNormalization": define(1, keep(), 0, along=_along_axis(-1)),
    "IsInf IsNaN Not": define(1, keep(), "bool", along=_keep_apart),
    "CastLike": define(15, keep(), 1),
    "DequantizeLinear": define(10, keep(), _dequantize_types, along=_along_scales),
    "Bernoulli EyeLike RandomNormalLike RandomUniformLike": define(1, keep(), ("@dtype", 0)),
    "QuantizeLinear": define(10, keep(), (2, "@output_dtype", "uint8"), along=_along_scales),
    "Add Sub Mul Div": define(7, broadcast(), _alike, along=_keep_apart),
    "Max Min Sum Mean": define(8, broadcast(), _alike, along=_keep_apart),
    "And Or Xor Equal Greater Less": define(7, broadcast(), _compared, along=_keep_apart),
    "GreaterOrEqual LessOrEqual": define(12, broadcast(), _compared, along=_keep_apart),
    "BitShift BitwiseAnd BitwiseOr BitwiseXor Mod": define(10, broadcast(), _alike, along=_keep_apart),
    "Softmax LogSoftmax": define(1, _keep_along, 0, along=_along_softmax),
    **{f"Reduce{name}": define(1, _reduce, 0, along=_along_listed) for name in _REDUCTIONS},
    "ArgMax ArgMin": define(
        1,
        lambda node: [_put(node.shape(), node.axis(0), *((1,) if node.get("keepdims", 1) else ()))],
        "int64",
        along=_along_axis(0),
    ),
    # The batch of the lengths and states is that of the input.
    "GRU LSTM RNN": define(
        7, _recur, 0, along=lambda node: [[1 if node.get("layout", 0) else 0], range(3), range(3), range(2), (), (), ()]
    ),
    "GlobalAveragePool GlobalLpPool GlobalMaxPool": define(1, _pool_all, 0, along=_along_all_but_first),
    "Attention": define(23, _attend, 0, 1, 2),
    "AveragePool": define(1, _pool, 0, along=_along_all_but_first),
    "BatchNormalization": define(7, _normalize_channels, 0, along=_along_all_but_first),
    "Cast": define(6, keep(), "@to", along=_keep_apart),
    "Concat": define(4, _concatenate, _alike, along=_keep_apart),
    "ConstantOfShape": define(
        9,
        lambda node: [tuple(node.numbers(0) or ())],
        lambda node, dtypes: dtype_of_numpy(node.attributes["value"].dtype) if "value" in node.attributes else "float32",
    ),
    "Conv": define(1, _convolve(), 0, along=_along_all_but_first),
    "ConvInteger": define(10, _convolve(), "int32", along=_along_all_but_first),
    "ConvTranspose": define(1, _convolve_transposed, 0, along=_along_all_but_first),
    "DepthToSpace SpaceToDepth": define(1, _move_depth, 0, along=_along_all_but_first),
    "Dropout": define(7, _drop_out, 0, "bool", along=_keep_apart),
    "DynamicQuantizeLinear": define(11, lambda node: [node.shape(), (), ()], "uint8", "float32", "uint8"),
    "Einsum": define(12, _contract, 0),
    "Expand": define(8, _expand, 0, along=_keep_apart),
    "Flatten": define(1, _flatten, 0, along=_keep_apart),
    "Gather": define(
        1, lambda node: [_put(node.shape(), node.axis(0), *node.shape(1))], 0, along=lambda node: [[node.axis(0)], ()]
    ),
    "GatherElements": define(11, lambda node: [node.shape(1)], 0),
    "GatherND": define(11, _gather_slices, 0),
    "Gemm": define(7, gemm(), _paired, along=_along_products),
    "GridSample": define(16, lambda node: [(*node.shape(0)[:2], *node.shape(1)[1:-1])], 0),
    "InstanceNormalization": define(6, _normalize_channels, 0, along=_along_all_but_first),
    "LpPool": define(2, _pool, 0, along=_along_all_but_first),
    "LayerNormalization": define(17, normalize_layer, 0, "float32", along=_along_axes_from(-1)),
    "MatMul": define(1, multiply(), _paired, along=_along_products),
    "MatMulInteger": define(10, multiply(), "int32", along=_along_products),
    # The indices of MaxPool count through the whole input.
    "MaxPool": define(1, _pool, 0, "int64", along=lambda node: [range(0 if len(node.node.writes) > 1 else 1, len(node.shape()))]),
    "OneHot": define(9, _mark_ones, 2),
    "MultiplyAdd": define(0, broadcast(), 0),
    "PRelu Pow": define(7, broadcast(), 0, along=_keep_apart),
    "Pad": define(2, _pad, 0, along=_along_pads),
    "QLinearConv": define(10, _convolve(0, 3), 7, along=_along_all_but_first),
    "QLinearMatMul": define(10, multiply(0, 3), 7),
    "RMSNormalization": define(23, _normalize_root, 0, along=_along_axes_from(-1)),
    "Range": define(11, _range, 0),
    "Reshape": define(5, _reshape, 0, along=_along_all_but_first),
    "Resize": define(10, _resize, 0, along=lambda node: [()]),
    "SimplifiedLayerNormalization": define(0, normalize_layer, 1, "float32"),
    "Shape": define(1, lambda node: [(len(node.shape()[read_part(node.node)]),)], "int64"),
    "Size": define(1, lambda node: [()], "int64"),
    "Slice": define(1, _slice, 0, along=_along_slices),
    "Split": define(2, _split, 0, along=_along_axis(0)),
    "Squeeze": define(1, _squeeze, 0, along=_along_listed),
    "Tile": define(6, _tile, 0, along=_keep_apart),
    "TopK": define(10, lambda node: [_put(node.shape(), node.axis(-1), node.number(1))] * 2, 0, "int64", along=_along_axis(-1)),
    "Transpose": define(1, _transpose, 0, along=_keep_apart),
    "Unsqueeze": define(1, _unsqueeze, 0, along=_keep_apart),
    "Upsample": define(7, _resize, 0, along=lambda node: [()]),
    "Where": define(9, broadcast(), lambda node, dtypes: _single(dtypes[1:]), along=_keep_apart),
    "LinearClassifier TreeEnsembleClassifier": define(
        1, _classify, lambda node, dtypes: "string" if node.attributes.get("classlabels_strings") else "int64", "float32"
    ),
    "CategoryMapper LabelEncoder": define(1, keep(), _relabel_types),
    "ArrayFeatureExtractor": define(1, lambda node: [(*(node.shape()[:-1] or (1,)), prod(node.shape(1)))], 0),
    "FeatureVectorizer": define(
        1, lambda node: [(node.shape()[0] if len(node.shape()) > 1 else 1, sum(node.get("inputdimensions")))], "float32"
    ),
    "CouplePairs": define(0, lambda node: [(node.shape()[0], node.get("classes"))], 0),
    "OneHotEncoder": define(
        1, lambda node: [(*node.shape(), len(node.get("cats_int64s", ()) or node.get("cats_strings", ())))], "float32"
    ),
    "LinearRegressor SVMRegressor": define(1, _score("targets"), "float32"),
    "Normalizer Scaler": define(1, keep(), "float32"),
    "TreeEnsemble": define(5, _score("n_targets"), 0),
    "TreeEnsembleRegressor": define(1, _score("n_targets"), "float32"),
}
OPERATORS: Mapping[str, Operator] = name_operators(_ROWS)
"""The operators of ONNX's two domains that have a rule."""
