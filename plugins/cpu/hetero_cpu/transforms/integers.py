"""A pass that replaces quantized operators by float32 operators on whole numbers, which are exact below 2^24.

```text
x ── QuantizeLinear ──> q - zero point ── Conv on whole numbers ──> sum ── scale, round, limit ──> q - zero point ── ...
```

A quantized tensor is held as float32 numbers q - zero point; its bytes are made only if another node reads them. A float that is a
multiple of such numbers is held as numbers and factor until a node asks for the float. The weights of a product bound all
of its partial sums; if they may reach 2^24, the depth is cut into pieces. Nodes that are not recognized stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from hetero_core.dtypes import onnx_of_dtype
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import Dimension, TensorType
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.copies import eliminate_copies
from hetero_cpu.transforms.microsoft import read_input
from hetero_cpu.transforms.writer import Array, Writer, derive_constant

Shape = tuple[Dimension, ...] | None

EXACT = 1 << 24
"""float32 holds each whole number up to this one."""
_LARGEST_SUM = 1 << 31
_MOST_PIECES = 16

_LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A tensor of integers: the sum of `parts`, float32 values, is its elements less `zero`. Or float32, such a sum times `factor`.

    `zero` is a number, or the name of a scalar that a run computes. `ranges`: the limits of the elements less `zero`, for each extreme
    zero point. `factor` broadcasts over the sum, whose `dtype` is empty then unless its elements are codes of few bits.
    """

    parts: tuple[str, ...]
    zero: int | str = 0
    dtype: str = ""
    ranges: tuple[tuple[int, int], ...] = ()
    factor: Array | None = None
    is_positive: bool = False


@dataclass(frozen=True, slots=True)
class Weight:
    """Constant integers less their zero points, of which a product is made; `scale` is a number, or one for each index of `axis`."""

    name: str
    constant: Initializer
    zero: Array
    scale: Array
    axis: int = 0
    is_turned: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole numbers."""
        return self.constant.shape[::-1] if self.is_turned else self.constant.shape

    def read(self, dtype: Any = np.float32) -> Array:
        """Returns the whole numbers, which float32 holds if they are those of a product."""
        array = self.constant.array
        numbers: Array = (array.astype(np.int8) if array.dtype.kind == "V" else array).astype(dtype)
        if self.zero.any():
            numbers -= self.zero.astype(dtype)
        return numbers.T if self.is_turned else numbers

    def dequantize(self) -> Initializer:
        """Returns the float32 numbers that the integers stand for, made on first use."""
        scale = self.scale if self.scale.size == 1 else _along(self.scale, self.axis, len(self.shape))
        return derive_constant(self.constant, lambda _: self.read(np.int32).astype(np.float32) * scale, self.shape)


def _along(values: Array, axis: int, rank: int) -> Array:
    """Returns a vector shaped to broadcast along an axis; a single number without axes."""
    return values.reshape(()) if values.size == 1 else values.reshape((-1, *(1,) * (rank - axis - 1)))


def is_weight_of_product(node: Node, network: Network) -> bool:
    """Says whether a DequantizeLinear makes weights of a product, which may read them turned: their integers are to stay."""
    readers = _list_readers(node.outputs[0], network)
    turned = [each for reader in readers if reader.op_type == "Transpose" for each in _list_readers(reader.outputs[0], network)]
    return any(reader.op_type in _PRODUCTS and not reader.domain for reader in (*readers, *turned))


def _list_readers(value: str, network: Network) -> list[Node]:
    return [network.nodes[index] for index in network.index_of_consumers.get(value, ())]


def compute_integers(network: Network) -> Network:
    """Returns the network with its quantized operators as float32 operators on whole numbers; linear, and reads all quantized weights."""
    rewriter = _Rewriter(network)
    for node in network.nodes:
        rewriter.label = node.name
        rewriter.add_node(node)
    rewritten = rewriter.finish()
    return network if rewritten is None else drop_unread(eliminate_copies(rewritten))


class _Rewriter(Writer):
    """The network as far as it is rewritten. A rule takes a node and returns whether it has made the node's outputs."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.held: dict[str, Numbers] = {}
        self.weights: dict[str, Weight] = {}
        self.pending: dict[str, tuple[str, ...]] = {}
        """The origins of values of the network that exist as codes or multiples alone."""
        self.absorbed: dict[str, tuple[str, ...]] = {}
        """Those of values without a node of their own, whose origins go to their readers."""
        self.known: dict[tuple[Any, ...], str] = {}
        """Constants by their contents, and codes by their zero point."""
        self.is_changed = False

    # The walk.

    def add_node(self, node: Node) -> None:
        absorbed = [origin for value in node.inputs for origin in self.absorbed.get(value, ())]
        self.origins = tuple(dict.fromkeys((*absorbed, *node.origins)))
        count = len(self.nodes)
        rule = _RULES.get((node.domain, node.op_type))
        if rule is not None and all(node.inputs[:1]) and len(node.writes) and rule(self, node):
            self.is_changed = True
            if len(self.nodes) == count:
                self.absorbed.update(dict.fromkeys(node.writes, self.origins))
            return
        for value in node.reads:
            self.make(value)
        weight = self.weights.get(node.outputs[0]) if node.outputs else None
        if weight is not None and node.op_type == "DequantizeLinear":
            self.constants[node.outputs[0]] = weight.dequantize()
        else:
            self.nodes.append(node)

    def finish(self) -> Network | None:
        """Returns the rewritten network; None if nothing was recognized."""
        for spec in self.network.outputs:
            self.make(spec.name)
        return self.write_network() if self.is_changed or self.weights else None

    def make(self, value: str) -> None:
        """Makes a value of the network that exists as codes or as a multiple."""
        if value not in self.pending:
            return
        codes, origins, self.origins = self.held[value], self.origins, self.pending.pop(value)
        parts = codes.parts
        if codes.factor is not None:
            self.rescale(parts[0], codes.factor, is_sum=not codes.dtype, output=value)
        else:
            if len(parts) == 1 and codes.zero != 0:
                parts = (self.add("Add", parts[0], self.read_float(codes.zero)),)
            self.sum_integers(parts, codes.dtype, value)
        self.origins = origins

    def sum_integers(self, parts: Sequence[str], dtype: str, output: str = "") -> str:
        """Returns the sum of whole numbers as integers."""
        total, *others = (self.cast(part, dtype, "" if len(parts) > 1 else output) for part in parts)
        for place, other in enumerate(others, 2):
            total = self.add("Add", total, other, output=output if place == len(parts) else "")
        return total

    def cast(self, value: str, dtype: str, output: str = "") -> str:
        return self.add("Cast", value, output=output, to=onnx_of_dtype(dtype))

    def add_like(self, node: Node, *inputs: str) -> str:
        """Adds a node of the same operator and attributes with other inputs and returns its output."""
        name, result = self.names.node(f"{self.label}/{node.op_type}"), self.name(node.op_type)
        self.nodes.append(replace(node, name=name, inputs=inputs, outputs=(result,), origins=self.origins, original_name=None))
        self.types[result] = TensorType("float32", self.shape(node.outputs[0]))
        return result

    # What is known of values.

    def constant(self, value: str, *dtypes: str) -> Array | None:
        """Returns a constant of one of these element types, by default float32."""
        constant = self.constants.get(value)
        return None if constant is None or constant.dtype not in (dtypes or ("float32",)) else constant.array

    def scale(self, value: str) -> Array | None:
        """Returns a constant scale of a whole tensor, as float32 without axes; None if it is no positive number."""
        scale = self.constant(value)
        is_fit = scale is not None and scale.size == 1 and np.isfinite(scale).all() and bool((scale > 0).all())
        return scale.reshape(()) if scale is not None and is_fit else None

    def zero(self, value: str) -> int | str | None:
        """Returns a zero point: a number, or the name of a scalar that is computed; None if it has several elements."""
        if not value:
            return 0
        constant = self.constants.get(value)
        if constant is not None:
            is_number = constant.array.size == 1 and constant.dtype in (*_LIMITS, "int32")
            return int(constant.array.reshape(-1)[0]) if is_number else None
        return value if self.shape(value) in ((), (1,)) and self.dtype(value) in _LIMITS else None

    def number(self, values: Any, dtype: Any = np.float32) -> str:
        """Returns the name of a constant; equal constants have the same name."""
        array = np.asarray(values, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.known:
            self.known[key] = self.hold(Initializer.of_array(array), self.names.value("integers/number"))
        return self.known[key]

    def read_float(self, zero: int | str) -> str:
        """Returns the name of a zero point as float32."""
        if isinstance(zero, int):
            return self.number(zero)
        codes = self.center(zero, 0)
        assert codes is not None
        return codes.parts[0]

    def center(self, value: str, zero: int | str | None) -> Numbers | None:
        """Returns the elements of a value less a zero point, in a single part; None for types that float32 does not hold."""
        if zero is None or (value not in self.held and self.dtype(value) not in _LIMITS):
            return None
        codes = self.held.get(value)
        if codes is None:
            dtype, constant = self.dtype(value), self.constants.get(value)
            numbers = self.cast(value, "float32") if constant is None else self.number(constant.array)
            codes = self.held[value] = Numbers((numbers,), 0, dtype, (_LIMITS[dtype],))
        if len(codes.parts) > 1:
            if (value, "sum", "") not in self.known:
                self.known[value, "sum", ""] = self.join(codes.parts)
            codes = replace(codes, parts=(self.known[value, "sum", ""],))
        if codes.zero == zero:
            return codes
        (numbers,) = codes.parts
        key, moved = (value, zero), codes.zero - zero if isinstance(codes.zero, int) and isinstance(zero, int) else None
        if key not in self.known and moved is not None:
            self.known[key] = self.add("Add", numbers, self.number(moved))
        elif key not in self.known:
            if codes.zero != 0:
                numbers = self.add("Add", numbers, self.read_float(codes.zero))
            self.known[key] = self.add("Sub", numbers, self.read_float(zero)) if zero != 0 else numbers
        ranges = (
            _open_ranges(codes.dtype, zero) if moved is None else tuple((low + moved, high + moved) for low, high in codes.ranges)
        )
        return Numbers((self.known[key],), zero, codes.dtype, ranges)

    def keep(self, value: str, numbers: Numbers) -> bool:
        """Notes the numbers that a value of the network stands for, which a later reader may ask for."""
        self.held[value] = numbers
        self.pending[value] = self.origins
        return True

    # Products.

    def join(self, parts: Sequence[str]) -> str:
        """Returns the sum of whole numbers, rounded once to float32."""
        if len(parts) <= 2:
            return self.add("Add", *parts) if len(parts) == 2 else parts[0]
        return self.cast(self.sum_integers(parts, "int32"), "float32")

    def multiply(self, node: Node, x: Numbers, weight: Weight, bias: Array | None = None) -> tuple[tuple[str, ...], int] | None:
        """Returns the parts of a product of whole numbers and the bound of its sum; None if it may be too large.

        `node` is a product of floats with the attributes and the output of the product. bias: whole numbers, one for each output.
        """
        rank = len(weight.shape)
        if weight.constant.dtype not in ("int8", "uint8") or rank < 2 or (rank != 2 and "Conv" not in node.op_type):
            return None
        numbers = weight.read(np.int16)
        is_turned = node.op_type == "Conv" or bool(node.attributes.get("transB", 0))
        outputs, depth = (0, 1) if is_turned else (1, 0)
        group = int(node.attributes.get("group", 1))
        limit = EXACT - (0 if bias is None else int(np.abs(bias).max(initial=0)))
        bounds = _cut_depth(numbers, x.ranges, depth, outputs, limit, is_single=group > 1) if numbers.size else None
        if bounds is None:
            return None
        cuts, largest = zip(*bounds, strict=True)
        if group > 1 and node.op_type == "ConvTranspose":
            largest = tuple(np.tile(bound, group) for bound in largest)
        if bias is not None and bias.shape != largest[0].shape:
            return None
        total: Array = np.sum(largest, axis=0) + (0 if bias is None else np.abs(bias))
        if total.max(initial=0) >= _LARGEST_SUM:
            return None
        parts = []
        axis = 1 if "Conv" in node.op_type else -1
        for index, cut in enumerate(cuts):
            source = x.parts[0] if len(cuts) == 1 else self.cut(x.parts[0], axis, cut[depth])
            inputs = [source, self.hold_weight(weight, cut)]
            if bias is not None and index == 0:
                inputs.append(self.number(bias))
            parts.append(self.add_like(node, *inputs))
        return tuple(parts), int(total.max(initial=0))

    def multiply_computed(self, node: Node, a: Numbers, b: Numbers) -> tuple[tuple[str, ...], int] | None:
        """Returns the parts of a matrix product of computed whole numbers and the bound of its sum; None if it may be too large."""
        left = self.shape(node.inputs[0])
        depth = left[-1] if left and len(left) >= 2 else None
        if not isinstance(depth, int) or len(self.shape(node.inputs[1]) or ()) < 2:
            return None
        term = max(max(abs(low), abs(high)) for low, high in a.ranges) * max(max(abs(low), abs(high)) for low, high in b.ranges)
        count = -(-depth * term // (EXACT - 1))
        if count > _MOST_PIECES or depth * term >= _LARGEST_SUM:
            return None
        cuts = _split(depth, -(-depth // ((EXACT - 1) // term))) if count > 1 else []
        sides = [(self.cut(a.parts[0], -1, cut), self.cut(b.parts[0], -2, cut)) for cut in cuts] or [(a.parts[0], b.parts[0])]
        return tuple(self.add_like(node, *pair) for pair in sides), depth * term

    def cut(self, numbers: str, axis: int, part: slice) -> str:
        """Returns a part of numbers."""
        bounds = (self.number([number], np.int64) for number in (part.start, part.stop, axis))
        return self.add("Slice", numbers, *bounds)

    def hold_weight(self, weight: Weight, cut: tuple[slice, ...]) -> str:
        """Returns the name of a part of the whole numbers of a weight, as float32, which are made on first use."""
        key = (weight.name, weight.is_turned, weight.zero.tobytes(), *((each.start, each.stop) for each in cut))
        if key not in self.known:
            shape = tuple(part.stop - part.start for part in cut)
            numbers = derive_constant(weight.constant, lambda _: np.ascontiguousarray(weight.read()[cut]), shape)
            self.known[key] = self.hold(numbers, self.names.value(f"{weight.name}/numbers"))
        return self.known[key]

    def read_weight(self, value: str, zero_point: str, scale: Array, axis: int) -> Weight | None:
        """Returns constant integers with constant zero points and scales, a number or one for each index of an axis."""
        constant = self.constants.get(value)
        if constant is None or constant.dtype not in (*_LIMITS, "int4", "uint4", "int32"):
            return None
        zero = self.constant(zero_point, constant.dtype) if zero_point else np.zeros((), np.int32)
        if zero is None or max(zero.ndim, scale.ndim) > 1:
            return None
        rank, size = len(constant.shape), max(zero.size, scale.size)
        axis %= max(rank, 1)
        if (size != 1 and (rank == 0 or constant.shape[axis] != size)) or not {zero.size, scale.size} <= {1, size}:
            return None
        wide = (zero.astype(np.int8) if zero.dtype.kind == "V" else zero).astype(np.int32)
        return Weight(value, constant, _along(wide, axis, rank), scale.reshape(-1) if scale.size != 1 else scale.reshape(()), axis)

    # Rounding.

    def rescale(self, total: str, factor: Array, summand: Any = 0, *, is_sum: bool = True, output: str = "") -> str:
        """Returns total * factor + summand, rounded once. No pass folds the factor of a sum into the weights, which stay whole."""
        if not is_sum:
            return self.add("Mul", total, self.number(factor), output=output)
        return self.add("MultiplyAdd", total, self.number(factor), self.number(summand), output=output)

    def saturate(self, value: str, zero: int | str, dtype: str, *, is_positive: bool = False) -> Numbers:
        """Returns round(value) + zero limited to a type, less zero; the type of a computed zero is uint8.

        ThresholdedRelu makes NaN the lowest number, as the toolkit does.
        """
        low, high = _LIMITS[dtype]
        rounded, shift = self.add("Round", value), self.read_float(zero if isinstance(zero, str) else zero - low)
        if zero != low:
            rounded = self.add("Add", rounded, shift)
        positive = self.add("ThresholdedRelu", rounded, alpha=0.0)
        limited = self.add("Clip", positive, self.number(0), self.number(high - low))
        if zero != low:
            limited = self.add("Sub", limited, shift)
        ranges = [(max(least, 0) if is_positive else least, most) for least, most in _open_ranges(dtype, zero)]
        return Numbers((limited,), zero, dtype, tuple(ranges))

    def target(self, value: str, default: str) -> tuple[int, str] | None:
        """Returns a constant zero point of a result and its type."""
        zero, dtype = self.zero(value), self.dtype(value) if value else default
        return (zero, dtype) if isinstance(zero, int) and dtype in _LIMITS else None


def _open_ranges(dtype: str, zero: int | str) -> tuple[tuple[int, int], ...]:
    low, high = _LIMITS[dtype]
    return ((0, high - low), (low - high, 0)) if isinstance(zero, str) else ((low - zero, high - zero),)


def _bound(numbers: Array, ranges: Iterable[tuple[int, int]], outputs: int) -> Array:
    """Returns a bound of all partial sums of each output: numbers that are multiplied by elements within one of the ranges."""
    axes = tuple(axis for axis in range(numbers.ndim) if axis != outputs)
    # Numbers of at most 2^8; NumPy adds up int32 twice as fast as int64.
    dtype = np.int32 if numbers.size < numbers.shape[outputs] << 23 else np.int64
    above = np.maximum(numbers, 0).sum(axis=axes, dtype=dtype).astype(np.int64)
    below = above - numbers.sum(axis=axes, dtype=dtype)
    limits = [(max(high, 0), max(-low, 0)) for low, high in ranges]
    sums = [(up * above + down * below, up * below + down * above) for up, down in limits]
    largest: Array = np.max(sums, axis=(0, 1))
    return largest


def _split(size: int, count: int) -> list[slice]:
    """Returns a number of ranges that cover a size, equal ones as far as possible."""
    edges = [size * index // count for index in range(count + 1)]
    return [slice(begin, end) for begin, end in pairwise(edges)]


def _cut_depth(
    numbers: Array, ranges: tuple[tuple[int, int], ...], depth: int, outputs: int, limit: int, *, is_single: bool
) -> list[tuple[tuple[slice, ...], Array]] | None:
    """Returns the cuts of weights into the fewest parts along the depth whose sums are below a limit, each with the bound of its sums;
    None if more parts would be needed.
    """
    whole = [slice(0, size) for size in numbers.shape]
    for count in range(1, 2 if is_single else min(_MOST_PIECES, numbers.shape[depth]) + 1):
        cuts = [(*whole[:depth], part, *whole[depth + 1 :]) for part in _split(numbers.shape[depth], count)]
        bounds = [(cut, _bound(numbers[cut], ranges, outputs)) for cut in cuts]
        if all(bound.max(initial=0) < limit for _, bound in bounds):
            return bounds
    return None


# The rules: ONNX's operators that quantize and dequantize.


def _quantize(state: _Rewriter, node: Node) -> bool:
    """y = limit(round(x / scale) + zero)."""
    value, scale = node.inputs[0], state.scale(read_input(node, 1))
    default = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16"}.get(node.attributes.get("output_dtype", 0) or 2, "")
    target = state.target(read_input(node, 2), default)
    if scale is None or target is None or node.attributes.get("block_size", 0) or node.attributes.get("precision", 0) not in (0, 1):
        return False
    if state.dtype(value) != "float32" or value in state.constants:
        return False
    (zero, dtype), scaled = target, state.held.get(value)
    if scaled is None or scaled.factor is None:
        quotient = state.add("Div", value, state.number(scale))
        maker = state.network.find_producer(value)
        is_positive = maker is not None and maker.op_type == "Relu"
        return state.keep(node.outputs[0], state.saturate(quotient, zero, dtype, is_positive=is_positive))
    if scaled.zero == zero and scaled.dtype == dtype and scaled.factor.size == 1 and scaled.factor == scale:
        return state.keep(node.outputs[0], replace(scaled, factor=None))
    quotient = state.rescale(scaled.parts[0], scaled.factor / scale, is_sum=not scaled.dtype)
    return state.keep(node.outputs[0], state.saturate(quotient, zero, dtype, is_positive=scaled.is_positive))


def _dequantize(state: _Rewriter, node: Node) -> bool:
    """y = (x - zero) * scale. The integers of a constant are noted for products."""
    value, output = node.inputs[0], node.outputs[0]
    if node.attributes.get("block_size", 0) or node.attributes.get("output_dtype", 0) not in (0, 1):
        return False
    if value in state.constants:
        scales = state.constant(read_input(node, 1))
        weight = (
            None if scales is None else state.read_weight(value, read_input(node, 2), scales, int(node.attributes.get("axis", 1)))
        )
        if weight is not None:
            state.weights[output] = weight
        return False
    if state.dtype(read_input(node, 1)) != "float32" or (state.dtype(value) not in _LIMITS and value not in state.pending):
        return False
    scale, is_scalar = state.scale(node.inputs[1]), state.shape(node.inputs[1]) in ((), (1,))
    codes = state.center(value, state.zero(read_input(node, 2))) if is_scalar else None
    if codes is None or (scale is None and node.inputs[1] in state.constants):
        return False
    if scale is None:
        state.add("Mul", codes.parts[0], node.inputs[1], output=output)
        return True
    return state.keep(output, replace(codes, dtype=codes.dtype if codes.dtype in _LIMITS else "", factor=scale))


def _turn(state: _Rewriter, node: Node) -> bool:
    """Passes on codes; a turned matrix of weights is noted for products."""
    weight = state.weights.get(node.inputs[0])
    if weight is not None and len(weight.constant.shape) == 2 and tuple(node.attributes.get("perm", (1, 0))) == (1, 0):
        state.weights[node.outputs[0]] = replace(weight, axis=1 - weight.axis, is_turned=not weight.is_turned)
        return False
    return _move(state, node)


def _quantize_dynamically(state: _Rewriter, node: Node) -> bool:
    """Source: ONNX DynamicQuantizeLinear-11; the scale of zeros is 1, as in the toolkit."""
    value = node.inputs[0]
    y, y_scale, y_zero = (*node.outputs, "", "")[:3]
    shape = state.shape(value)
    if state.dtype(value) != "float32" or shape is None or 0 in shape:
        return False
    state.make(value)
    zero, full = state.number(0), state.number(255)
    low = state.add("Min", state.add("ReduceMin", value, keepdims=0), zero)
    high = state.add("Max", state.add("ReduceMax", value, keepdims=0), zero)
    step = state.add("Div", state.add("Sub", high, low), full)
    missing = state.add("Sub", state.number(1), state.add("Sign", step))
    scale = state.add("Add", step, missing, output=y_scale)
    offset = state.add("Neg", state.add("Div", low, scale))
    zero_point = state.add("Round", state.add("Clip", offset, zero, full))
    name = y_zero or state.names.value(f"{y}/zero")
    state.types[name] = TensorType("uint8", ())
    state.keep(name, Numbers((zero_point,), 0, "uint8", ((0, 255),)))
    quotient = state.add("Div", value, scale)
    return state.keep(y, state.saturate(quotient, name, "uint8"))


def _convert(state: _Rewriter, node: Node) -> bool:
    """Cast of integers to float32."""
    value = node.inputs[0]
    if value not in state.pending or state.held[value].factor is not None or node.attributes.get("to") != onnx_of_dtype("float32"):
        return False
    plain = state.center(value, 0)
    assert plain is not None
    state.add("Identity", plain.parts[0], output=node.outputs[0])
    return True


# Products of dequantized values.


def _multiply_scaled(state: _Rewriter, node: Node) -> bool:
    """The product of multiples, as a multiple of an exact product; a bias of floats is added behind."""
    x, output = state.held.get(node.inputs[0]), node.outputs[0]
    weight, right = state.weights.get(read_input(node, 1)), state.held.get(read_input(node, 1))
    if x is None or x.factor is None or x.dtype not in ("int8", "uint8") or x.factor.size != 1:
        return False
    if weight is None:
        if node.op_type != "MatMul" or right is None or right.factor is None or not right.dtype or right.factor.size != 1:
            return False
        computed = state.multiply_computed(node, x, right)
        if computed is None:
            return False
        total = state.join(computed[0])
        return state.keep(output, Numbers((total,), factor=x.factor * right.factor))
    outputs = 0 if node.op_type == "Conv" or node.attributes.get("transB", 0) else 1
    group = int(node.attributes.get("group", 1))
    if weight.scale.size > 1 and (weight.axis != outputs or (group > 1 and outputs == 1)):
        return False
    if any(node.attributes.get(name, 1) != 1 for name in ("alpha", "beta")) or node.attributes.get("transA", 0):
        return False
    factor = x.factor * weight.scale
    bias = _read_bias(state, read_input(node, 2), factor)
    if bias is None:
        return False
    whole, floats = bias
    product = state.multiply(node, x, weight, whole)
    if product is None:
        return False
    axes = len(weight.shape)
    total, spread = state.join(product[0]), _along(factor, 1, axes)
    if floats is None:
        return state.keep(output, Numbers((total,), factor=spread))
    state.rescale(total, spread, _along(floats, 1, axes), output=output)
    return True


def _read_bias(state: _Rewriter, value: str, factor: Array) -> tuple[Array | None, Array | None] | None:
    """Returns a bias as whole numbers of steps of `factor`, or else as floats; None if it is computed or no vector."""
    if not value:
        return None, None
    weight = state.weights.get(value)
    if weight is None:
        floats = state.constant(value)
        return None if floats is None or floats.size != max(floats.shape, default=1) else (None, floats.reshape(-1))
    numbers = weight.read(np.int32)
    if numbers.size != max(numbers.shape, default=1):
        return None
    if np.allclose(weight.scale, factor, rtol=1e-5, atol=0) and (factor.size == 1 or numbers.size == factor.size):
        return numbers.reshape(-1).astype(np.int64), None
    return None, (numbers.astype(np.float32).reshape(-1) * weight.scale.reshape(-1))


# Operators that pass on numbers.


def _move(state: _Rewriter, node: Node) -> bool:
    """The operator moves or picks elements of its first input: it moves numbers, and their zero point and factor stay."""
    value = node.inputs[0]
    numbers = state.held.get(value)
    if numbers is None or (numbers.factor is None and value not in state.pending):
        return False
    if node.op_type == "MaxPool" and len(node.writes) > 1:
        return False
    # A Resize picks elements unless it mixes them, or fills in others.
    mode, places = (node.attributes.get(name) for name in ("mode", "coordinate_transformation_mode"))
    if node.op_type == "Resize" and (mode not in (None, "nearest") or places == "tf_crop_and_resize"):
        return False
    if len(numbers.parts) > 1 or numbers.dtype == "int32" or (numbers.factor is not None and numbers.factor.size != 1):
        return False
    for other in node.inputs[1:]:
        state.make(other)
    names = tuple(state.names.value(f"{name}/{node.op_type}") if name else "" for name in node.outputs)
    state.nodes.append(replace(node, inputs=(*numbers.parts, *node.inputs[1:]), outputs=names, origins=state.origins))
    for name, output in zip(names, node.outputs, strict=True):
        if output:
            state.types[name] = TensorType("float32", state.shape(output))
            state.keep(output, replace(numbers, parts=(name,)))
    return True


def _take_factor_out(state: _Rewriter, node: Node) -> bool:
    """Multiplies behind a mean, or behind a Relu if the factors are positive, in place of before it; says whether it did."""
    scaled, is_relu = state.held.get(node.inputs[0]), node.op_type == "Relu"
    if scaled is None or scaled.factor is None or not (np.all(scaled.factor > 0) if is_relu else scaled.factor.size == 1):
        return False
    result = state.add_like(node, *scaled.parts, *node.inputs[1:])
    return state.keep(node.outputs[0], Numbers((result,), factor=scaled.factor, is_positive=scaled.is_positive or is_relu))


def _concatenate(state: _Rewriter, node: Node) -> bool:
    """Joins numbers that have the same zero point and factor."""
    if any(value not in state.pending for value in node.inputs):
        return False
    held = [state.held[value] for value in node.inputs]
    if any(len(own.parts) > 1 or (own.factor is not None and own.factor.size > 1) for own in held):
        return False
    first, are_alike = held[0], held[0].dtype in _LIMITS and len({(own.zero, own.dtype) for own in held}) == 1
    factors = {None if own.factor is None else float(own.factor) for own in held}
    if len(factors) > 1 or (first.factor is None and not are_alike):
        return False
    joined = state.add_like(node, *(own.parts[0] for own in held))
    is_positive = all(own.is_positive for own in held)
    numbers = Numbers((joined,), factor=first.factor, is_positive=is_positive)
    if are_alike:
        numbers = replace(numbers, zero=first.zero, dtype=first.dtype, ranges=_open_ranges(first.dtype, first.zero))
    return state.keep(node.outputs[0], numbers)


# Products of integers, and the operators on quantized tensors of ONNX and of ONNX Runtime, by the rules of other operators.


def _keep_integers(state: _Rewriter, node: Node) -> bool:
    """ConvInteger and MatMulInteger: the exact sums, as int32."""
    x, w, x_zero, w_zero = (read_input(node, place) for place in range(4))
    op_type, codes = node.op_type.removesuffix("Integer"), state.center(x, state.zero(x_zero))
    if codes is None or codes.dtype not in ("int8", "uint8"):
        return False
    product = state.make_node(op_type, (x, w), node.outputs, node.attributes)
    if w in state.constants:
        weight = state.read_weight(w, w_zero, np.ones((), np.float32), 0 if op_type == "Conv" else 1)
        sums = None if weight is None else state.multiply(product, codes, weight)
    else:
        right = state.center(w, state.zero(w_zero)) if op_type == "MatMul" else None
        if right is None or right.dtype not in ("int8", "uint8"):
            return False
        sums = state.multiply_computed(product, codes, right)
    return sums is not None and state.keep(node.outputs[0], Numbers(sums[0], 0, "int32", ((-sums[1], sums[1]),)))


def _multiply_to_float(state: _Rewriter, node: Node) -> bool:
    """MatMulIntegerToFloat of ONNX Runtime: the exact product times a_scale * b_scale, plus bias."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (read_input(node, place) for place in range(7))
    vector = state.shape(b_scale)
    if b not in state.constants or state.shape(a_scale) not in ((), (1,)) or vector is None or len(vector) > 1:
        return False
    product = state.build("MatMulInteger", a, b, a_zero, b_zero)
    if not _keep_integers(state, product):
        return False
    total = state.write("Cast", product.outputs[0], to=onnx_of_dtype("float32"))
    scale = state.write("Mul", a_scale, b_scale)
    scaled = state.write("Mul", total, scale, output="" if bias else node.outputs[0])
    if bias:
        state.write("Add", scaled, bias, output=node.outputs[0])
    return True


def _multiply_dynamically(state: _Rewriter, node: Node) -> bool:
    """DynamicQuantizeMatMul of ONNX Runtime: DynamicQuantizeLinear, then MatMulIntegerToFloat."""
    x, b, b_scale, b_zero, bias = (read_input(node, place) for place in range(5))
    codes, scale, zero = (state.names.value(f"{node.outputs[0]}/{name}") for name in ("codes", "scale", "zero"))
    state.types.update({codes: TensorType("uint8", state.shape(x)), scale: TensorType("float32", ())})
    if not _quantize_dynamically(state, replace(node, inputs=(x,), outputs=(codes, scale, zero))):
        return False
    return _multiply_to_float(state, replace(node, inputs=(codes, b, scale, b_scale, zero, b_zero, bias)))


_QUANTIZED: Mapping[str, tuple[str, tuple[int, ...], int]] = {
    "QGemm": ("Gemm", (0, 3), 7),
    "QLinearAdd": ("Add", (0, 3), 6),
    "QLinearAveragePool": ("AveragePool", (0,), 3),
    "QLinearConcat": ("Concat", (), 0),
    "QLinearConv": ("Conv", (0, 3), 6),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": ("LeakyRelu", (0,), 3),
    "QLinearMatMul": ("MatMul", (0, 3), 6),
    "QLinearMul": ("Mul", (0, 3), 6),
    "QLinearSigmoid": ("Sigmoid", (0,), 3),
    "QLinearSoftmax": ("Softmax", (0,), 3),
    "QLinearWhere": ("Where", (1, 4), 7),
}
"""The operator of floats; the places of the operands, behind each its scale and zero point; the place of the result's scale."""
_BIASES = {"QGemm": 6, "QLinearConv": 8}


def _compute_quantized(state: _Rewriter, node: Node) -> bool:
    """An operator on quantized tensors: the operator of floats between DequantizeLinear and QuantizeLinear."""
    op_type, places, result = _QUANTIZED[node.op_type]
    places, output = places or tuple(range(2, len(node.inputs), 3)), node.outputs[0]
    scale, attributes = read_input(node, result), _read_attributes(node, state.shape(output))
    target = state.target(read_input(node, result + 1), state.dtype(node.inputs[places[0]]))
    is_float = node.op_type == "QGemm" and not scale
    if attributes is None or target is None or (state.scale(scale) is None and not is_float):
        return False
    factor = np.float32(attributes.pop("alpha", 1)) if op_type == "Gemm" else np.float32(1)
    axis = 0 if op_type == "Conv" or attributes.get("transB", 0) else 1
    operands = []
    for place in places:
        operand = _dequantize_operand(state, node, place, axis, factor if place == 0 else np.float32(1))
        if operand is None:
            return False
        operands.append(operand)
    steps = scale, state.number(target[0], target[1])
    if op_type == "Concat":
        # Bytes that have a scale and a zero point in common are joined as they are.
        codes = [state.write("QuantizeLinear", value, *steps) for value in operands]
        state.write("Concat", *codes, output=output, **attributes)
        return True
    inputs = [*node.inputs[: places[0]], *operands]
    bias = read_input(node, _BIASES.get(node.op_type, len(node.inputs)))
    if bias:
        inputs.append(_dequantize_bias(state, bias, inputs[0], inputs[1], axis))
    value = state.build(op_type, *inputs, output=output if is_float else "", **attributes)
    if op_type not in _PRODUCTS:
        state.add_node(value)
    elif (bias and not inputs[2]) or not _multiply_scaled(state, value):
        return False
    if not is_float:
        state.write("QuantizeLinear", value.outputs[0], *steps, output=output)
    return True


def _read_attributes(node: Node, shape: Shape) -> dict[str, Any] | None:
    """Returns the attributes of the operator of floats; None if it differs."""
    attributes = dict(node.attributes)
    if attributes.pop("channels_last", 0):
        return None
    is_plain = attributes.get("auto_pad", "NOTSET") == "NOTSET" and not attributes.get("ceil_mode", 0)
    if node.op_type == "QLinearAveragePool" and not is_plain:
        return None
    if node.op_type == "QLinearSoftmax":
        is_late = attributes.pop("opset", 0) >= 13
        axis = attributes.setdefault("axis", -1 if is_late else 1)
        # An early Softmax normalizes all axes from `axis` on.
        if not is_late and (shape is None or axis % len(shape) != len(shape) - 1):
            return None
    return attributes


def _dequantize_operand(state: _Rewriter, node: Node, place: int, axis: int, factor: Any) -> str | None:
    """Returns the floats of an operand, times a factor; of constants there may be a scale or a zero point for each index of an axis."""
    x, scale, zero = (read_input(node, index) for index in range(place, place + 3))
    scales, zeros = state.constant(scale), state.constant(zero, *_LIMITS) if zero else np.zeros(1, state.dtype(x) or None)
    if scales is None or zeros is None or max(scales.ndim, zeros.ndim) > 1:
        return None
    if max(scales.size, zeros.size) == 1:
        scales, zeros = scales.reshape(()), zeros.reshape(())
    elif x not in state.constants:
        return None
    scales, zeros = np.broadcast_arrays(scales * factor, zeros)
    numbers = state.number(scales), state.number(zeros, zeros.dtype)
    return state.write("DequantizeLinear", x, *numbers, axis=axis)


def _dequantize_bias(state: _Rewriter, value: str, x: str, w: str, axis: int) -> str:
    """Returns the bias as floats, along an axis of w; its scale is that of x times that of w. Returns "" if the scales are unknown."""
    bias, scaled, weight = state.constant(value, "int32"), state.held.get(x), state.weights.get(w)
    if bias is None or scaled is None or scaled.factor is None or weight is None:
        return ""
    outputs = weight.constant.shape[axis]
    if bias.shape not in ((), (1,), (outputs,), (1, outputs)):
        return ""
    bias, steps = (np.broadcast_to(array.reshape(-1), (outputs,)) for array in (bias, scaled.factor * weight.scale))
    numbers = state.number(bias, np.int32), state.number(steps)
    return state.write("DequantizeLinear", *numbers, axis=0)


Rule = Callable[[_Rewriter, Node], bool]

_MOVING = (
    *("DepthToSpace", "Expand", "Flatten", "Gather", "GlobalMaxPool", "MaxPool", "Reshape", "Resize", "Slice", "SpaceToDepth"),
    *("Split", "Squeeze", "Tile", "Unsqueeze"),
)
_RULES: Mapping[tuple[str, str], Rule] = {
    **{(domain, "QuantizeLinear"): _quantize for domain in ("", MICROSOFT)},
    **{(domain, "DequantizeLinear"): _dequantize for domain in ("", MICROSOFT)},
    **{("", op_type): _multiply_scaled for op_type in _PRODUCTS},
    **{("", op_type): _move for op_type in _MOVING},
    **{("", op_type): _take_factor_out for op_type in ("AveragePool", "GlobalAveragePool", "ReduceMean", "Relu")},
    **{("", op_type): _keep_integers for op_type in ("ConvInteger", "MatMulInteger")},
    **{(domain, op_type): _compute_quantized for op_type in _QUANTIZED for domain in ("", MICROSOFT)},
    ("", "Cast"): _convert,
    ("", "Concat"): _concatenate,
    ("", "DynamicQuantizeLinear"): _quantize_dynamically,
    ("", "Transpose"): _turn,
    (MICROSOFT, "DynamicQuantizeMatMul"): _multiply_dynamically,
    (MICROSOFT, "MatMulIntegerToFloat"): _multiply_to_float,
}
