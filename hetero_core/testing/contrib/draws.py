"""Draws of random cases of all contrib operators of ONNX Runtime: attributes, shapes, element types, absent inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from hetero_core.testing.contrib.case import ContribCase

Item = TypeVar("Item")


class Generator(np.random.Generator):
    """NumPy's generator with further methods that draw the parts of cases."""

    def choose(self, items: Sequence[Item]) -> Item:
        """Returns a random item."""
        return items[int(self.integers(len(items)))]

    def flip(self) -> bool:
        """Returns True half of the time."""
        return bool(self.integers(2))

    def integer(self, low: int, high: int | None = None) -> int:
        """Returns an integer in [low, high), or in [0, low) without `high`."""
        return int(self.integers(low, high))

    def sizes(self, rank: int, largest: int = 6) -> tuple[int, ...]:
        """Returns sizes from 1 on."""
        return tuple(int(size) for size in self.integers(1, largest + 1, rank))

    def floats(self, *sizes: int, scale: float = 1.0, dtype: Any = np.float32) -> Any:
        """Returns normally distributed values."""
        return np.asarray(self.standard_normal(sizes) * scale).astype(dtype)

    def numbers(self, dtype: Any, *sizes: int) -> Any:
        """Returns values from the whole range of an integer type."""
        limits = np.iinfo(dtype)
        return np.asarray(self.integers(limits.min, limits.max + 1, sizes)).astype(dtype)

    def scales(self, *sizes: int) -> Any:
        """Returns scales from 0.005 to 0.1; a scalar if no sizes are given."""
        return np.asarray(self.uniform(0.005, 0.1, sizes)).astype(np.float32)

    def quantized(self, dtype: Any, *sizes: int) -> tuple[Any, Any, Any]:
        """Returns a quantized tensor, its scale and its zero point."""
        return self.numbers(dtype, *sizes), self.scales(), self.numbers(dtype)

    def constants(self, *inputs: int) -> frozenset[int]:
        """Returns these inputs, to become constants of the model, half of the time; else an empty set."""
        return frozenset(inputs) if self.flip() else frozenset()

    def byte_type(self) -> Any:
        """Returns int8 or uint8."""
        return self.choose((np.int8, np.uint8))

    def broadcastable(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns a shape that broadcasts to this shape."""
        trailing = shape[int(self.integers(len(shape) + 1)) :]
        return tuple(1 if self.integers(4) == 0 else size for size in trailing)

    def maybe(self, item: Item) -> Item | None:
        """Returns the item half of the time, else None."""
        return item if self.flip() else None

    def bit(self) -> int:
        """Returns 0 or 1."""
        return self.integer(2)

    def number(self, low: float, high: float) -> float:
        """Returns a number that float32 can hold."""
        return float(np.float32(self.uniform(low, high)))

    def counts(self, low: int, high: int, count: int) -> tuple[int, ...]:
        """Returns integers in [low, high)."""
        return tuple(int(number) for number in self.integers(low, high, count))

    def ints(self, low: Any, high: Any = None, size: Any = None, *, dtype: Any) -> Any:
        """Returns an array of integers in [low, high)."""
        return np.asarray(self.integers(low, high, size), dtype)

    def float_type(self) -> Any:
        """Returns float32 or float16."""
        return self.choose((np.float32, np.float16))


Draw = Callable[[Generator, str], ContribCase]
"""Draws a case of the operator of this name; equal states of the generator give equal cases."""
DRAWS: dict[str, Draw] = {}
"""Operator -> its draw."""


def draws(*op_types: str) -> Callable[[Draw], Draw]:
    """Returns a decorator that enters a function into DRAWS as the draw of these operators."""

    def enter(draw: Draw) -> Draw:
        DRAWS.update(dict.fromkeys(op_types, draw))
        return draw

    return enter


# Operators on quantized values, elementwise and concatenating


@draws("QLinearAdd", "QLinearMul")
def _draw_binary(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.byte_type()
    shape = rng.choose((rng.sizes(rng.integer(1, 4), 9), (97,), (2, 64)))
    other = rng.broadcastable(shape)
    shapes = (shape, other) if rng.flip() else (other, shape)
    zeros = [rng.numbers(dtype) for _ in range(3)]
    result = np.float32(rng.scales() * rng.choose((1, 8)))
    inputs = (
        rng.numbers(dtype, *shapes[0]),
        rng.scales(),
        zeros[0],
        rng.numbers(dtype, *shapes[1]),
        rng.scales(),
        zeros[1],
        np.asarray(result),
        zeros[2],
    )
    return ContribCase(op_type, inputs, constants=rng.constants(6, 7))


@draws("QLinearLeakyRelu", "QLinearSigmoid")
def _draw_unary(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.byte_type()
    zeros = [rng.maybe(rng.numbers(dtype)) for _ in range(2)]
    attributes = {"alpha": float(rng.uniform(0.01, 0.5))} if op_type == "QLinearLeakyRelu" else {}
    y_scale = np.asarray(rng.scales() if attributes else rng.uniform(1 / 300, 1 / 100), np.float32)
    inputs = (rng.numbers(dtype, *rng.sizes(3, 8)), rng.scales(), zeros[0], y_scale, zeros[1])
    return ContribCase(op_type, inputs, attributes)


@draws("QLinearSoftmax")
def _draw_qlinear_softmax(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.byte_type()
    rank = rng.integer(1, 5)
    attributes = {"opset": rng.choose((11, 13)), "axis": rng.integer(-rank, rank)}
    zero = np.asarray(np.iinfo(dtype).min if rng.flip() else 0, dtype)
    y_scale = np.asarray(rng.choose((1 / 256, 1 / 255, 1 / 128)), np.float32)
    if dtype == np.int8 and zero == 0:
        y_scale = np.asarray(1 / 127, np.float32)
    elif zero != np.iinfo(dtype).min or dtype == np.int8:
        y_scale = np.asarray(1 / 255, np.float32)
    inputs = (rng.numbers(dtype, *rng.sizes(rank, 8)), rng.scales(), rng.numbers(dtype), y_scale, zero)
    return ContribCase(op_type, inputs, attributes)


@draws("QLinearWhere")
def _draw_qlinear_where(rng: Generator, op_type: str) -> ContribCase:
    dtype, shape = rng.byte_type(), rng.sizes(3)
    tensors = [rng.numbers(dtype, *rng.broadcastable(shape)) for _ in range(2)]
    scales = [rng.scales() for _ in range(3)]
    zeros = [rng.numbers(dtype) for _ in range(3)]
    if rng.flip():
        scales[2], zeros[2] = scales[0], zeros[0]
    inputs = (
        np.asarray(rng.integers(0, 2, shape), bool),
        tensors[0],
        scales[0],
        zeros[0],
        tensors[1],
        scales[1],
        zeros[1],
        scales[2],
        zeros[2],
    )
    return ContribCase(op_type, inputs)


@draws("QLinearConcat")
def _draw_qlinear_concat(rng: Generator, op_type: str) -> ContribCase:
    dtype, rank = rng.byte_type(), rng.integer(1, 4)
    shape, axis = rng.sizes(rank), rng.integer(-rank, rank)
    inputs: list[Any] = [rng.scales(), rng.numbers(dtype)]
    for _ in range(rng.integer(1, 4)):
        sizes = list(shape)
        sizes[axis] = rng.integer(1, 5)
        is_alike = rng.integers(4) == 0
        inputs += [rng.numbers(dtype, *sizes), *(inputs[:2] if is_alike else (rng.scales(), rng.numbers(dtype)))]
    constants = frozenset(range(len(inputs))) - frozenset(range(2, len(inputs), 3)) if rng.flip() else frozenset()
    return ContribCase(op_type, tuple(inputs), {"axis": axis}, constants=constants)


def _quantized_zero(rng: Generator, dtype: Any, sizes: tuple[int, ...]) -> Any:
    if np.dtype(dtype) in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)):
        low = -8 if np.dtype(dtype) == np.dtype(ml_dtypes.int4) else 0
        return np.asarray(rng.integers(low, low + 16, sizes)).astype(dtype)
    return rng.numbers(dtype, *sizes)


_TARGETS = (np.int8, np.uint8, np.int16, np.uint16)


@draws("QuantizeLinear")
def _draw_quantize_linear(rng: Generator, op_type: str) -> ContribCase:
    dtype, rank = rng.choose(_TARGETS), rng.integer(1, 4)
    shape, axis = rng.sizes(rank), rng.integer(-rank, rank)
    sizes = (shape[axis],) if rng.flip() else ()
    x = rng.floats(*shape, scale=5 if dtype in (np.int8, np.uint8) else 900)
    if rng.flip():
        return ContribCase(op_type, (x, rng.scales(*sizes), _quantized_zero(rng, dtype, sizes)), {"axis": axis})
    return ContribCase(op_type, (x, rng.scales()))


@draws("DequantizeLinear")
def _draw_dequantize_linear(rng: Generator, op_type: str) -> ContribCase:
    dtype, rank = rng.choose((*_TARGETS, np.int32, ml_dtypes.int4, ml_dtypes.uint4)), rng.integer(1, 4)
    shape, axis = rng.sizes(rank), rng.integer(-rank, rank)
    sizes = (shape[axis],) if rng.flip() else ()
    x = _quantized_zero(rng, dtype, shape)
    zero = None if dtype == np.int32 or rng.flip() else _quantized_zero(rng, dtype, sizes)
    packed = frozenset({0, 2}) if dtype in (ml_dtypes.int4, ml_dtypes.uint4) else frozenset()
    return ContribCase(op_type, (x, rng.scales(*sizes), zero), {"axis": axis}, constants=packed)


# Windows over quantized images and products of quantized matrices


def draw_windows(rng: Generator, rank: int, *, dilates: bool) -> dict[str, Any]:
    """Returns attributes of a convolution or a pooling over sizes of at least 7."""
    kernel = list(rng.counts(1, 4, rank))
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if rng.flip():
        attributes["strides"] = list(rng.counts(1, 4, rank))
    if dilates and rng.flip():
        attributes["dilations"] = list(rng.counts(1, 3, rank))
    padding = rng.integers(3)
    if padding == 0:
        attributes["pads"] = [rng.integer(0, size) for size in kernel * 2]
    elif padding == 1:
        attributes["auto_pad"] = rng.choose(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return attributes


def _lay(shape: tuple[int, ...], is_last: bool) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if is_last else shape


@draws("QLinearAveragePool")
def _draw_qlinear_average_pool(rng: Generator, op_type: str) -> ContribCase:
    dtype, rank, is_last = rng.byte_type(), rng.integer(1, 4), rng.flip()
    attributes = draw_windows(rng, rank, dilates=False)
    attributes |= {"channels_last": int(is_last), "count_include_pad": rng.bit()}
    if "auto_pad" not in attributes and rng.flip():
        attributes["ceil_mode"] = 1
    shape = _lay((2, 3, *rng.counts(7, 10, rank)), is_last)
    inputs = (*rng.quantized(dtype, *shape), rng.scales(), rng.numbers(dtype))
    return ContribCase(op_type, inputs, attributes)


@draws("QLinearGlobalAveragePool")
def _draw_qlinear_global_average_pool(rng: Generator, op_type: str) -> ContribCase:
    dtype, is_last = rng.byte_type(), rng.flip()
    shape = _lay((2, rng.integer(1, 20), *rng.counts(1, 9, 2)), is_last)
    inputs = (*rng.quantized(dtype, *shape), rng.scales(), rng.numbers(dtype))
    return ContribCase(op_type, inputs, {"channels_last": int(is_last)})


@draws("QLinearConv")
def _draw_qlinear_conv(rng: Generator, op_type: str) -> ContribCase:
    dtype, rank, is_last = rng.byte_type(), rng.integer(1, 3), rng.flip()
    weights = np.int8 if dtype == np.int8 else rng.byte_type()
    attributes = draw_windows(rng, rank, dilates=True)
    group, outputs, channels = rng.choose(((1, 4, 3), (2, 4, 3), (3, 3, 1)))
    attributes |= {"group": group, "channels_last": int(is_last)}
    sizes = (outputs,) if rng.flip() else ()
    shape = _lay((2, group * channels, *rng.counts(7, 10, rank)), is_last)
    w = rng.numbers(weights, outputs, channels, *attributes["kernel_shape"])
    zero = np.zeros(sizes, weights) if weights == np.int8 or sizes else rng.numbers(weights)
    bias = rng.maybe(rng.ints(-9999, 9999, outputs, dtype=np.int32))
    inputs = (
        *rng.quantized(dtype, *shape),
        w,
        rng.scales(*sizes),
        zero,
        np.asarray(rng.scales() * 20, np.float32),
        rng.numbers(dtype),
        bias,
    )
    return ContribCase(op_type, inputs, attributes, constants=rng.constants(3, 4, 5, 8))


@draws("NhwcMaxPool")
def _draw_nhwc_max_pool(rng: Generator, op_type: str) -> ContribCase:
    attributes = draw_windows(rng, 2, dilates=True)
    if "auto_pad" not in attributes and rng.flip():
        attributes["ceil_mode"] = 1
    return ContribCase(op_type, (rng.numbers(rng.byte_type(), 2, 8, 9, 3),), attributes)


def _draw_types(rng: Generator) -> tuple[Any, Any]:
    bytes_type = rng.byte_type()
    return bytes_type, np.int8 if bytes_type == np.int8 else rng.byte_type()


def _draw_matrices(rng: Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rows, depth, columns = rng.counts(1, 20, 3)
    lead = rng.choose(((), (2,), (2, 3)))
    return (*lead, rows, depth), rng.choose(((depth, columns), (*lead, depth, columns)))


@draws("MatMulIntegerToFloat")
def _draw_mat_mul_integer_to_float(rng: Generator, op_type: str) -> ContribCase:
    left, right = _draw_types(rng)
    a, b = _draw_matrices(rng)
    sizes = (b[-1],) if rng.flip() and len(b) == 2 else ()
    inputs = (
        rng.numbers(left, *a),
        rng.numbers(right, *b),
        rng.scales(),
        rng.scales(*sizes),
        rng.maybe(rng.numbers(left)),
        rng.maybe(rng.numbers(right, *sizes)),
        rng.maybe(rng.floats(b[-1])),
    )
    return ContribCase(op_type, inputs, constants=rng.constants(1, 3))


@draws("DynamicQuantizeMatMul")
def _draw_dynamic_quantize_mat_mul(rng: Generator, op_type: str) -> ContribCase:
    right = rng.byte_type()
    a, b = _draw_matrices(rng)
    sizes = (b[-1],) if rng.flip() and len(b) == 2 else ()
    x = rng.floats(*a) if rng.integers(8) else np.zeros(a, np.float32)
    inputs = (
        x + rng.choose((0, 0, 3, -3)).__float__() if x.any() else x,
        rng.numbers(right, *b),
        rng.scales(*sizes),
        rng.maybe(rng.numbers(right, *sizes)),
        rng.maybe(rng.floats(b[-1])),
    )
    inputs = (np.asarray(inputs[0], np.float32), *inputs[1:])
    return ContribCase(op_type, inputs, constants=rng.constants(1, 2))


@draws("MatMulInteger16")
def _draw_mat_mul_integer16(rng: Generator, op_type: str) -> ContribCase:
    a, b = _draw_matrices(rng)
    return ContribCase(op_type, (rng.numbers(np.int16, *a) // 64, rng.numbers(np.int16, *b) // 64))


@draws("QGemm")
def _draw_qgemm(rng: Generator, op_type: str) -> ContribCase:
    left, right = _draw_types(rng)
    rows, depth, columns = rng.counts(1, 20, 3)
    turns = (rng.bit(), rng.bit())
    a = (depth, rows) if turns[0] else (rows, depth)
    b = (columns, depth) if turns[1] else (depth, columns)
    sizes = (columns,) if rng.flip() else ()
    c_shape = rng.choose(((), (columns,), (1, columns), (rows, columns), (rows, 1)))
    c = rng.maybe(rng.ints(-9999, 9999, c_shape, dtype=np.int32))
    is_quantized = rng.flip()
    inputs = (
        rng.numbers(left, *a),
        rng.scales(),
        rng.numbers(left),
        rng.numbers(right, *b),
        rng.scales(*sizes),
        rng.numbers(right, *sizes),
        c,
        np.asarray(rng.scales() * 20, np.float32) if is_quantized else None,
        rng.numbers(left) if is_quantized else None,
    )
    attributes = {"transA": turns[0], "transB": turns[1], "alpha": float(np.float32(rng.choose((1.0, 0.7, 2.0))))}
    return ContribCase(op_type, inputs, attributes)


# Normalizations, activations and products with fused operators, and operators of ONNX's own domain

_EPSILON = 1e-5


@draws("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _draw_skip(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.choose((np.float32, np.float32, np.float16))
    batch, steps, hidden = rng.sizes(3)
    hidden = rng.choose((hidden, 16, 64))
    shape = (batch, steps, hidden)
    skip = rng.choose((shape, (1, steps, hidden), (steps, hidden)))
    optional = [rng.maybe(rng.floats(hidden, dtype=dtype)) for _ in range(2)]
    inputs = (
        rng.floats(*shape, dtype=dtype),
        rng.floats(*skip, dtype=dtype),
        rng.floats(hidden, dtype=dtype),
        *(optional if op_type == "SkipLayerNormalization" else optional[:1]),
    )
    outputs = (True, False, False, True) if rng.flip() else (True,)
    return ContribCase(op_type, inputs, {"epsilon": _EPSILON}, outputs)


@draws("SimplifiedLayerNormalization")
def _draw_simplified_layer_normalization(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.choose((np.float32, np.float64, np.float16))
    shape = rng.sizes(3)
    axis = rng.integer(-3, 3)
    inputs = (rng.floats(*shape, dtype=dtype), rng.floats(*shape[axis:], dtype=dtype))
    return ContribCase(op_type, inputs, {"axis": axis, "epsilon": _EPSILON}, (True, rng.flip()), domain="")


@draws("LayerNormalization")
def _draw_layer_normalization(rng: Generator, op_type: str) -> ContribCase:
    # Without float64: ONNX computes its statistics in float32, ONNX Runtime in float64.
    dtype = rng.float_type()
    shape = rng.sizes(3)
    axis = rng.integer(-3, 3)
    bias = rng.maybe(rng.floats(*shape[axis:], dtype=dtype))
    inputs = (rng.floats(*shape, dtype=dtype), rng.floats(*shape[axis:], dtype=dtype), bias)
    attributes = {"axis": axis, "epsilon": _EPSILON}
    outputs = (True, rng.flip(), rng.flip())
    return ContribCase(op_type, inputs, attributes, outputs, domain="", opset=rng.integer(9, 17))


@draws("MeanVarianceNormalization")
def _draw_mean_variance_normalization(rng: Generator, op_type: str) -> ContribCase:
    attributes = {name: rng.bit() for name in ("across_channels", "normalize_variance")}
    inputs = (rng.floats(*rng.sizes(4)),)
    return ContribCase(op_type, inputs, attributes, domain="", opset=8)


@draws("ThresholdedRelu")
def _draw_thresholded_relu(rng: Generator, op_type: str) -> ContribCase:
    attributes = {"alpha": rng.number(0.2, 2)}
    return ContribCase(op_type, (rng.floats(*rng.sizes(3)),), attributes, domain="", opset=9)


def _draw_ids(rng: Generator, count: int, *sizes: int) -> Any:
    return rng.ints(0, count, sizes, dtype=np.int32)


@draws("EmbedLayerNormalization")
def _draw_embed_layer_normalization(rng: Generator, op_type: str) -> ContribCase:
    batch, steps = rng.sizes(2)
    hidden, has_segments = rng.choose((8, 16)), rng.flip()
    positions = rng.choose((None, _draw_ids(rng, 9, batch, steps), _draw_ids(rng, 9, 1, steps)))
    inputs = (
        _draw_ids(rng, 20, batch, steps),
        _draw_ids(rng, 2, batch, steps) if has_segments else None,
        rng.floats(20, hidden),
        rng.floats(9, hidden),
        rng.floats(2, hidden) if has_segments else None,
        rng.floats(hidden),
        rng.floats(hidden),
        rng.maybe(_draw_ids(rng, 2, batch, steps)),
        positions,
    )
    return ContribCase(op_type, inputs, {"epsilon": _EPSILON}, rng.choose(((True, True), (True, True, True))))


@draws("QEmbedLayerNormalization")
def _draw_qembed_layer_normalization(rng: Generator, op_type: str) -> ContribCase:
    batch, steps = rng.sizes(2)
    hidden, has_segments, dtype = 16, rng.flip(), rng.choose((np.int8, np.uint8))
    tables = [rng.numbers(dtype, *shape) for shape in ((20, hidden), (9, hidden), (2, hidden), (hidden,), (hidden,))]
    scales, zeros = [rng.scales() for _ in range(5)], [rng.numbers(dtype) for _ in range(5)]
    segments = _draw_ids(rng, 2, batch, steps)
    if not has_segments:
        tables[2] = scales[2] = zeros[2] = segments = None
    mask = rng.maybe(_draw_ids(rng, 2, batch, steps))
    inputs = (_draw_ids(rng, 20, batch, steps), segments, *tables, mask, *scales, *zeros)
    return ContribCase(op_type, inputs, {"epsilon": _EPSILON}, (True, True))


@draws("BiasGelu", "FastGelu", "Gelu", "QuickGelu")
def _draw_activation(rng: Generator, op_type: str) -> ContribCase:
    shape = (*rng.sizes(2), 16)
    inputs: tuple[Any, ...] = (rng.floats(*shape, scale=3),)
    if op_type == "BiasGelu" or (op_type == "FastGelu" and rng.flip()):
        inputs = (*inputs, rng.floats(16))
    attributes = {"alpha": rng.number(0.5, 2)} if op_type == "QuickGelu" and rng.flip() else {}
    return ContribCase(op_type, inputs, attributes)


@draws("ScaledSiLU")
def _draw_scaled_si_lu(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.float_type()
    scale = rng.maybe(np.asarray(rng.uniform(0.5, 2), rng.float_type()))
    return ContribCase(op_type, (rng.floats(*rng.sizes(3), dtype=dtype), scale), {"alpha": 0.5})


@draws("FusedMatMul", "TransposeMatMul")
def _draw_product(rng: Generator, op_type: str) -> ContribCase:
    dtype = np.float64 if op_type == "FusedMatMul" and rng.integers(4) == 0 else np.float32
    rows, depth, columns = rng.sizes(3, 9)
    lead = rng.choose(((), (2,), (2, 3)))
    turns = [rng.bit(), rng.bit()]
    moves = [rng.bit(), rng.bit()] if op_type == "FusedMatMul" and lead else [0, 0]
    shapes = [_turned(lead, rows, depth, turns[0], moves[0]), _turned(lead, depth, columns, turns[1], moves[1])]
    attributes: dict[str, Any] = {"transA": turns[0], "transB": turns[1], "alpha": rng.number(0.1, 2)}
    if any(moves):
        attributes |= {"transBatchA": moves[0], "transBatchB": moves[1]}
    return ContribCase(op_type, tuple(rng.floats(*shape, dtype=dtype) for shape in shapes), attributes)


def _turned(lead: tuple[int, ...], rows: int, columns: int, swaps: int, moves: int) -> tuple[int, ...]:
    shape = (*lead, columns, rows) if swaps else (*lead, rows, columns)
    return (shape[-2], *shape[:-2], shape[-1]) if moves else shape


_GEMM: Mapping[str, dict[str, float]] = {
    "": {},
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "LeakyRelu": {"activation_alpha": 0.25},
    "Elu": {"activation_alpha": 0.5},
    "HardSigmoid": {"activation_alpha": 0.25, "activation_beta": 0.5},
    "ThresholdedRelu": {"activation_alpha": 0.75},
    "Celu": {"activation_alpha": 0.75},
    "ParametricSoftplus": {"activation_alpha": 0.5, "activation_beta": 1.25},
    "ScaledTanh": {"activation_alpha": 0.5, "activation_beta": 1.25},
}


@draws("FusedGemm")
def _draw_fused_gemm(rng: Generator, op_type: str) -> ContribCase:
    rows, depth, columns = rng.sizes(3, 9)
    turns = (rng.bit(), rng.bit())
    name = rng.choose(tuple(_GEMM)[1:])
    shapes = ((depth, rows) if turns[0] else (rows, depth), (columns, depth) if turns[1] else (depth, columns))
    c = rng.maybe(rng.floats(*rng.choose(((columns,), (1, columns), (rows, columns), (rows, 1)))))
    attributes = {"transA": turns[0], "transB": turns[1], "alpha": 0.5, "beta": 2.0, "activation": name, **_GEMM[name]}
    return ContribCase(op_type, (*(rng.floats(*shape) for shape in shapes), c), attributes)


@draws("FusedConv")
def _draw_fused_conv(rng: Generator, op_type: str) -> ContribCase:
    rank = rng.integer(1, 3)
    attributes = draw_windows(rng, rank, dilates=True)
    attributes.pop("auto_pad", None)
    group, outputs, channels = rng.choose(((1, 4, 3), (2, 4, 3), (3, 3, 1)))
    name, parameters = rng.choose(
        (
            *(("Relu", ()), ("Tanh", ()), ("Sigmoid", ()), ("HardSwish", ())),
            *(("LeakyRelu", (0.25,)), ("Clip", (-0.5, 0.75)), ("HardSigmoid", (0.25, 0.5))),
        )
    )
    attributes |= {"group": group, "activation": name} | ({"activation_params": list(parameters)} if parameters else {})
    x = rng.floats(2, group * channels, *rng.counts(7, 10, rank))
    w = rng.floats(outputs, channels, *attributes["kernel_shape"])
    return ContribCase(op_type, (x, w, rng.maybe(rng.floats(outputs))), attributes)


@draws("ConvTransposeWithDynamicPads")
def _draw_conv_transpose_with_dynamic_pads(rng: Generator, op_type: str) -> ContribCase:
    group, kernel = rng.choose((1, 2)), list(rng.counts(2, 4, 2))
    attributes = {"group": group, "kernel_shape": kernel, "strides": list(rng.counts(1, 3, 2))}
    inputs = (
        rng.floats(2, 2 * group, 5, 6),
        rng.floats(2 * group, 3, *kernel),
        rng.ints(0, 2, 4, dtype=np.int64),
        rng.maybe(rng.floats(3 * group)),
    )
    return ContribCase(op_type, inputs, attributes)


@draws("BranchwiseRMSNorm")
def _draw_branchwise_rmsnorm(rng: Generator, op_type: str) -> ContribCase:
    dtype, branches, size = rng.float_type(), rng.integer(1, 5), rng.choose((4, 8))
    is_flat = rng.flip()
    scale_shape = rng.choose((None, (branches * size,), (branches, size), (size,)))
    shape = (2, 3, branches * size) if is_flat else (2, 3, branches, size)
    scale = None if scale_shape is None else rng.floats(*scale_shape, dtype=rng.float_type())
    return ContribCase(op_type, (rng.floats(*shape, dtype=dtype), scale), {"num_branches": branches} if is_flat else {})


@draws("GatedRMSNorm")
def _draw_gated_rmsnorm(rng: Generator, op_type: str) -> ContribCase:
    dtype, heads, size = rng.float_type(), rng.integer(1, 4), rng.choose((4, 8))
    x, gate = (rng.floats(2, 3, heads * size, dtype=dtype) for _ in range(2))
    attributes = {"activation": rng.choose(("silu", "swish", "sigmoid")), "epsilon": _EPSILON}
    return ContribCase(op_type, (x, rng.floats(size, dtype=dtype), gate), attributes)


@draws("EngramGate")
def _draw_engram_gate(rng: Generator, op_type: str) -> ContribCase:
    dtype, streams, size = rng.float_type(), rng.integer(1, 4), rng.choose((4, 8))
    key, query = (rng.floats(2, 3, streams, size, dtype=dtype) for _ in range(2))
    scales = [rng.floats(streams, size, dtype=dtype) for _ in range(3)]
    has_norm = rng.flip()
    inputs = (key, query, rng.floats(2, 3, size, dtype=dtype), *scales[: 3 if has_norm else 2])
    return ContribCase(op_type, inputs, {}, (True, True) if has_norm else (True,))


@draws("HyperConnectionPreMix")
def _draw_hyper_connection_pre_mix(rng: Generator, op_type: str) -> ContribCase:
    dtype, branches, size, is_flat = rng.float_type(), rng.integer(1, 5), 8, rng.flip()
    gates = [(2, 3, branches), (2, 3, branches, 1), (2, 3, branches, size), *([(2, 3, branches * size)] if is_flat else [])]
    shape = (2, 3, branches * size) if is_flat else (2, 3, branches, size)
    attributes: dict[str, Any] = {"reduction_scale": 0.5} | ({"num_branches": branches} if is_flat else {})
    gate = rng.floats(*rng.choose(gates), dtype=rng.float_type())
    return ContribCase(op_type, (rng.floats(*shape, dtype=dtype), gate), attributes)


@draws("HyperConnectionPostMix")
def _draw_hyper_connection_post_mix(rng: Generator, op_type: str) -> ContribCase:
    dtype, mixed, branches, size = rng.float_type(), rng.float_type(), 3, 8
    is_flat = rng.flip()
    shape = (2, 3, branches * size) if is_flat else (2, 3, branches, size)
    gate = rng.floats(*rng.choose(((2, 3, branches), (2, 3, branches, 1), (2, 3, branches, size))), dtype=mixed)
    mix = rng.maybe(rng.floats(2, 3, branches, branches, dtype=mixed))
    inputs = (rng.floats(*shape, dtype=dtype), rng.floats(2, 3, size, dtype=dtype), gate, mix)
    return ContribCase(op_type, inputs, {"num_branches": branches} if is_flat else {})


@draws("GatedAdd")
def _draw_gated_add(rng: Generator, op_type: str) -> ContribCase:
    dtype, shape = rng.float_type(), rng.sizes(3)
    x, y = (rng.floats(*shape, dtype=dtype) for _ in range(2))
    return ContribCase(op_type, (x, y, rng.floats(*shape[:-1], 1, dtype=dtype)))


# Operators on axes, images and tokens, and operators in ONNX's own domain that only ONNX Runtime supports

_TYPES = (np.float32, np.float64, np.int64, np.int32, np.uint8, np.int8)


def _draw_any(rng: Generator, *sizes: int) -> Any:
    dtype = rng.choose(_TYPES)
    return rng.floats(*sizes, dtype=dtype) if np.dtype(dtype).kind == "f" else rng.numbers(dtype, *sizes)


@draws("ExpandDims")
def _draw_expand_dims(rng: Generator, op_type: str) -> ContribCase:
    rank = rng.integer(1, 4)
    return ContribCase(op_type, (_draw_any(rng, *rng.sizes(rank)), rng.ints(-rank - 1, rank + 1, dtype=np.int32)))


@draws("GatherND")
def _draw_gather_nd(rng: Generator, op_type: str) -> ContribCase:
    shape = (4, 5, 3)
    depth = rng.integer(1, 4)
    columns = [rng.integers(-size, size, (2, 3)) for size in shape[:depth]]
    return ContribCase(op_type, (_draw_any(rng, *shape), np.stack(columns, axis=-1).astype(rng.choose((np.int32, np.int64)))))


@draws("Trilu")
def _draw_trilu(rng: Generator, op_type: str) -> ContribCase:
    x = _draw_any(rng, *rng.sizes(rng.integer(2, 4)))
    x = x.astype(rng.choose((np.float32, np.float64, np.int64)))
    return ContribCase(op_type, (x, rng.maybe(rng.ints(-4, 5, dtype=np.int64))), {"upper": rng.bit()})


@draws("UnfoldTensor")
def _draw_unfold_tensor(rng: Generator, op_type: str) -> ContribCase:
    rank = rng.integer(1, 4)
    shape = rng.counts(4, 8, rank)
    dtype = rng.choose((np.float32, np.float64, np.int32, np.int64))
    attributes = {"dim": rng.integer(-rank, rank), "size": rng.integer(1, 5), "step": rng.integer(1, 4)}
    return ContribCase(op_type, (rng.floats(*shape, scale=9, dtype=dtype),), attributes)


@draws("CDist")
def _draw_cdist(rng: Generator, op_type: str) -> ContribCase:
    dtype, (rows, others, size) = rng.choose((np.float32, np.float64)), rng.sizes(3, 9)
    inputs = (rng.floats(rows, size, dtype=dtype), rng.floats(others, size, dtype=dtype))
    return ContribCase(op_type, inputs, {"metric": rng.choose(("euclidean", "sqeuclidean"))}, tolerance=1e-3)


@draws("Inverse")
def _draw_inverse(rng: Generator, op_type: str) -> ContribCase:
    size, dtype = rng.integer(1, 6), rng.choose((np.float32, np.float64, np.float16))
    x = rng.standard_normal((*rng.choose(((), (3,), (2, 2))), size, size)) + 4 * size * np.eye(size)
    return ContribCase(op_type, (x.astype(dtype),), tolerance=1e-3)


@draws("Range")
def _draw_range(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.choose((np.int16, np.int32, np.int64, np.float32, np.float64))
    start, limit = (np.asarray(value, dtype) for value in (rng.integers(-5, 5), rng.integers(6, 20)))
    delta = rng.choose((None, np.asarray(2, dtype), np.asarray(-1, dtype)))
    values = (limit, start, delta) if delta is not None and delta < 0 else (start, limit, delta)
    is_vector = rng.flip()
    return ContribCase(op_type, tuple(value if value is None or not is_vector else value.reshape(1) for value in values))


@draws("Pad")
def _draw_pad(rng: Generator, op_type: str) -> ContribCase:
    rank = rng.integer(1, 4)
    pads = rng.ints(0, 3, 2 * rank, dtype=np.int64)
    value = np.asarray(rng.standard_normal(), np.float32)
    x = rng.floats(*rng.counts(3, 6, rank))
    pads = pads.reshape(rng.choose(((2 * rank,), (1, 2 * rank))))
    values = rng.choose((None, value, value.reshape(1)))
    return ContribCase(op_type, (x, pads, values), {"mode": rng.choose(("constant", "edge", "reflect"))})


@draws("Unique")
def _draw_unique(rng: Generator, op_type: str) -> ContribCase:
    return ContribCase(op_type, (rng.ints(0, 6, rng.integer(1, 12), dtype=np.float32),), {}, (True, True, True))


@draws("DynamicTimeWarping")
def _draw_dynamic_time_warping(rng: Generator, op_type: str) -> ContribCase:
    shape = rng.sizes(2, 9)
    return ContribCase(op_type, (rng.floats(*rng.choose((shape, (1, *shape)))),))


@draws("CropAndResize")
def _draw_crop_and_resize(rng: Generator, op_type: str) -> ContribCase:
    count = rng.integer(1, 5)
    corners = rng.uniform(-0.2, 1.2, (count, 4))
    inputs = (
        rng.floats(2, 3, 7, 9),
        corners.astype(np.float32),
        rng.ints(0, 2, count, dtype=np.int32),
        rng.ints(1, 6, 2, dtype=np.int32),
    )
    attributes = {"mode": rng.choose(("bilinear", "nearest")), "extrapolation_value": float(np.float32(rng.standard_normal()))}
    return ContribCase(op_type, inputs, attributes)


@draws("GridSample")
def _draw_grid_sample(rng: Generator, op_type: str) -> ContribCase:
    attributes = {
        "mode": rng.choose(("bilinear", "nearest", "bicubic")),
        "align_corners": rng.bit(),
        "padding_mode": rng.choose(("zeros", "border", "reflection")),
    }
    grid = rng.uniform(-1.3, 1.3, (2, 4, 5, 2)).astype(np.float32)
    return ContribCase(op_type, (rng.floats(2, 3, 6, 7), grid), attributes)


@draws("MaxpoolWithMask")
def _draw_maxpool_with_mask(rng: Generator, op_type: str) -> ContribCase:
    rank = rng.integer(1, 4)
    attributes = draw_windows(rng, rank, dilates=False)
    shape = (2, 3, *rng.counts(7, 10, rank))
    mask = np.asarray(rng.integers(0, 4, (1, 1, *shape[2:])) > 0, np.int32)
    return ContribCase(op_type, (rng.floats(*shape), mask), attributes)


@draws("WordConvEmbedding")
def _draw_word_conv_embedding(rng: Generator, op_type: str) -> ContribCase:
    words, letters, size, filters, window = rng.integer(1, 4), rng.integer(4, 9), 5, 6, rng.integer(1, 4)
    ids = rng.ints(1, 20, (words, letters), dtype=np.int32)
    for word in ids:
        word[rng.integer(1, letters + 1) :] = 0
    inputs = (ids, rng.floats(filters, 1, window, size), rng.floats(filters), rng.floats(20, size))
    return ContribCase(op_type, inputs, {})


@draws("NGramRepeatBlock")
def _draw_ngram_repeat_block(rng: Generator, op_type: str) -> ContribCase:
    ids = np.asarray(rng.integers(0, 4, (3, rng.integer(1, 12))), np.int64)
    return ContribCase(op_type, (ids, rng.floats(3, 5)), {"ngram_size": rng.integer(1, 5)})


@draws("BifurcationDetector")
def _draw_bifurcation_detector(rng: Generator, op_type: str) -> ContribCase:
    source = rng.ints(0, 5, rng.integer(4, 12), dtype=np.int64)
    start = int(rng.integers(0, len(source)))
    current = rng.ints(0, 5, rng.integer(1, 6), dtype=np.int64)
    predicted = rng.ints(0, 5, len(source) + 1 - start, dtype=np.int64)
    share = int(rng.integers(0, len(source) - start + 1))
    predicted[:share] = source[start : start + share]
    least = rng.integer(1, 3)
    attributes = {"min_ngram_size": least, "max_ngram_size": least + rng.integer(0, 3)}
    inputs = (source, current, np.asarray(start, np.int64), rng.maybe(predicted))
    return ContribCase(op_type, inputs, attributes, (True, True))


@draws("MurmurHash3")
def _draw_murmur_hash3(rng: Generator, op_type: str) -> ContribCase:
    kind, shape = rng.choose((np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64, object)), rng.sizes(2)
    if kind is object:
        texts = ["".join(chr(97 + int(code)) for code in rng.integers(0, 26, rng.integer(0, 9))) for _ in range(np.prod(shape))]
        x = np.asarray(texts, object).reshape(shape)
    else:
        x = rng.floats(*shape, dtype=kind) if np.dtype(kind).kind == "f" else rng.numbers(np.int32, *shape).astype(kind)
    return ContribCase(op_type, (x,), {"positive": rng.bit(), "seed": rng.integer(0, 9)})


@draws("Tokenizer")
def _draw_tokenizer(rng: Generator, op_type: str) -> ContribCase:
    letters = list("ab ,")
    texts = ["".join(rng.choose(letters) for _ in range(rng.integer(1, 9))) for _ in range(4)]
    attributes: dict[str, Any] = {"mark": 0, "mincharnum": rng.integer(1, 3), "pad_value": "#"}
    attributes |= rng.choose(({"separators": [" "]}, {"separators": [" ", ","]}, {"separators": [""]}, {"tokenexp": "[a-b]+"}))
    attributes["mincharnum"] = 1 if attributes.get("separators") == [""] else attributes["mincharnum"]
    return ContribCase(op_type, (np.asarray(texts, object).reshape(rng.choose(((4,), (2, 2)))),), attributes)


@draws("NGramHashMapping")
def _draw_ngram_hash_mapping(rng: Generator, op_type: str) -> ContribCase:
    dtype, reach, heads = rng.choose((np.int32, np.int64)), rng.integer(1, 4), rng.integer(1, 3)
    batch, steps = rng.sizes(2)
    has_eos = rng.flip()
    inputs = (
        rng.ints(0, 9, (batch, steps), dtype=dtype),
        np.asarray(rng.integers(1, 2**20, reach + 1) * 2 + 1, dtype),
        rng.ints(3, 99, reach * heads, dtype=dtype),
        rng.maybe(rng.ints(0, 9, (batch, reach), dtype=dtype)),
        rng.maybe(rng.ints(0, 99, reach * heads, dtype=dtype)),
        np.asarray(2, dtype) if has_eos else None,
        rng.maybe(np.sort(rng.ints(0, 3, (batch, steps), dtype=np.int32), axis=1)),
    )
    attributes = {"pad_id": 0, "n_head_per_ngram": heads, "max_ngram_size": reach + 1, "reset_on_eos": rng.bit()}
    return ContribCase(op_type, inputs, attributes, (True, True))


_LEGACY = {
    "Affine": ("alpha", "beta"), "Scale": ("scale",), "ScaledTanh": ("alpha", "beta"), "ParametricSoftplus": ("alpha", "beta")
}  # fmt: skip
"""Operator of ONNX's own domain up to opset 9 -> its attributes."""


@draws(*_LEGACY)
def _draw_legacy(rng: Generator, op_type: str) -> ContribCase:
    attributes = {name: rng.number(0.2, 2) for name in _LEGACY[op_type]}
    return ContribCase(op_type, (rng.floats(*rng.sizes(3)),), attributes, domain="", opset=9)


@draws("ImageScaler")
def _draw_image_scaler(rng: Generator, op_type: str) -> ContribCase:
    attributes = {"scale": 0.5, "bias": [0.5, -1.0, 0.25]}
    return ContribCase(op_type, (rng.floats(2, 3, 4, 5),), attributes, domain="", opset=9)


@draws("Crop")
def _draw_crop(rng: Generator, op_type: str) -> ContribCase:
    attributes = {"border": list(rng.counts(0, 3, 4))} | ({"scale": [2, 3]} if rng.flip() else {})
    return ContribCase(op_type, (rng.floats(2, 3, 7, 8),), attributes, domain="", opset=9)


@draws("DynamicSlice")
def _draw_dynamic_slice(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.choose((np.int32, np.int64))
    bounds = [rng.ints(*limits, 3, dtype=dtype) for limits in ((-3, 2), (2, 9))]
    axes = rng.choose((None, np.asarray([0, 1, 2], dtype), np.asarray([2, 0, 1], dtype)))
    return ContribCase(op_type, (_draw_any(rng, 5, 6, 7), *bounds, axes), domain="", opset=9)


# Weights quantized in blocks, and mixtures of experts


@draws("MatMulNBits")
def _draw_mat_mul_nbits(rng: Generator, op_type: str) -> ContribCase:
    bits, size = rng.choose((2, 4, 8)), rng.choose((16, 32, 64))
    depth, columns = rng.integer(1, 130), rng.integer(1, 40)
    blocks = -(-depth // size)
    dtype = rng.choose((np.float32, np.float32, np.float16))
    lead = rng.choose(((1,), (3,), (2, 3)))
    zeros = rng.choose(
        (
            None,
            rng.numbers(np.uint8, columns, -(-blocks * bits // 8)),
            None if bits == 8 else rng.floats(columns, blocks, scale=4, dtype=dtype),
        )
    )
    inputs = (
        rng.floats(*lead, depth, dtype=dtype),
        rng.numbers(np.uint8, columns, blocks, size * bits // 8),
        rng.scales(columns, blocks).astype(dtype),
        zeros,
        None,
        rng.maybe(rng.floats(columns, dtype=dtype)),
    )
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": size}
    return ContribCase(op_type, inputs, attributes, constants=rng.constants(1, 2, 3), tolerance=1e-3)


@draws("MatMulBnb4")
def _draw_mat_mul_bnb4(rng: Generator, op_type: str) -> ContribCase:
    size, depth, columns = rng.choose((16, 32, 64)), rng.integer(1, 70), rng.integer(1, 20)
    count = depth * columns
    inputs = (
        rng.floats(*rng.choose(((3,), (2, 3))), depth),
        rng.numbers(np.uint8, (count + 1) // 2),
        rng.scales(-(-count // size)),
    )
    return ContribCase(
        "MatMulBnb4", inputs, {"K": depth, "N": columns, "block_size": size, "quant_type": rng.bit()}, tolerance=1e-3
    )


@draws("MatMulFpQ4")
def _draw_mat_mul_fp_q4(rng: Generator, op_type: str) -> ContribCase:
    kind, columns, size = rng.integer(2), rng.integer(1, 9), 32
    blocks = rng.integer(1, 4)
    depth = blocks * size
    cells = [rng.scales(columns, blocks, 1).view(np.uint8)]
    if kind == 1:
        cells.append(rng.ints(0, 16, (columns, blocks, 1), dtype=np.uint8))
    blob = np.concatenate([*cells, rng.numbers(np.uint8, columns, blocks, size // 2)], axis=-1).reshape(-1)
    inputs = (rng.floats(3, depth), blob, np.asarray([depth, columns], np.int64))
    return ContribCase(op_type, inputs, {"blk_quant_type": kind}, constants=frozenset({1, 2}), tolerance=1e-3)


@draws("GatherBlockQuantized")
def _draw_gather_block_quantized(rng: Generator, op_type: str) -> ContribCase:
    indices = np.asarray(rng.integers(-6, 6, rng.choose(((), (3,), (2, 3)))), rng.choose((np.int32, np.int64)))
    target = rng.float_type()
    if rng.flip():
        bits, size = rng.choose((4, 8)), rng.choose((16, 32))
        blocks = rng.integer(1, 4)
        x = rng.numbers(np.uint8, 6, blocks * size * bits // 8)
        zeros = rng.maybe(rng.numbers(np.uint8, 6, -(-blocks * bits // 8)))
        inputs = (x, indices, rng.scales(6, blocks).astype(target), zeros)
        attributes = {"bits": bits, "block_size": size, "gather_axis": 0, "quantize_axis": 1}
        return ContribCase(op_type, inputs, attributes, constants=frozenset({0, 2, 3}))
    dtype = rng.choose((ml_dtypes.int4, ml_dtypes.uint4))
    low = -8 if dtype is ml_dtypes.int4 else 0
    axis = rng.integer(3)
    shape, quantized = [6, 6, 6], rng.choose(tuple({0, 1, 2} - {axis}))
    shape[quantized] = 40
    scales = [*shape]
    scales[quantized] = 3
    x, zeros = (np.asarray(rng.integers(low, low + 16, sizes)).astype(dtype) for sizes in (shape, scales))
    inputs = (x, indices, rng.scales(*scales).astype(target), rng.maybe(zeros))
    attributes = {"block_size": 16, "gather_axis": axis, "quantize_axis": quantized}
    return ContribCase(op_type, inputs, attributes, constants=frozenset({0, 2, 3}))


_PACKED = {0: (1, 4), 1: (1, 2), 2: (32, 18), 6: (32, 22), 8: (32, 34), 13: (256, 176), 14: (256, 210), 20: (32, 18), 30: (1, 2)}


@draws("GatherPacked")
def _draw_gather_packed(rng: Generator, op_type: str) -> ContribCase:
    kind = rng.choose(tuple(_PACKED))
    size, count = _PACKED[kind]
    blocks = rng.integer(1, 3) * (32 // size if size == 1 else 1)
    rows = rng.numbers(np.uint8, 5, blocks, count)
    if size == 1:
        kinds = {0: np.float32, 1: np.float16, 30: ml_dtypes.bfloat16}
        rows = rng.floats(5, blocks, 1, dtype=kinds[kind]).view(np.uint8)
    else:
        # The positions of the scales in a block.
        for place in {13: (0, 2), 14: (208,)}.get(kind, (0,)):
            rows[..., place : place + 2] = rng.scales(5, blocks, 1).astype(np.float16).view(np.uint8)
    indices = np.asarray(rng.integers(-2, 8, rng.choose(((), (3,), (2, 3)))), rng.choose((np.int32, np.int64)))
    attributes = {"packed_type": kind, "K": blocks * size, "output_dtype": rng.choose((1, 10))}
    return ContribCase(op_type, (rows.reshape((5, -1)), indices), attributes)


def _draw_attributes(rng: Generator) -> dict[str, Any]:
    name = rng.choose(("relu", "gelu", "silu", "identity", "swiglu"))
    attributes: dict[str, Any] = {"activation_type": name, "k": rng.integer(1, 4), "normalize_routing_weights": rng.bit()}
    if name == "swiglu":
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.5, "activation_beta": 1.0}
        if rng.flip():
            attributes["swiglu_limit"] = 0.75
    return attributes


@draws("MoE")
def _draw_mo_e(rng: Generator, op_type: str) -> ContribCase:
    attributes, experts, hidden, inner = _draw_attributes(rng), 5, 8, 12
    outer = inner * (2 if attributes["activation_type"] == "swiglu" else 1)
    lead = rng.choose(((6,), (2, 3)))
    inputs = (
        rng.floats(*lead, hidden),
        rng.floats(6, experts),
        rng.floats(experts, outer, hidden),
        rng.maybe(rng.floats(experts, outer)),
        rng.floats(experts, hidden, inner),
        rng.maybe(rng.floats(experts, hidden)),
    )
    return ContribCase(op_type, inputs, attributes)


@draws("QMoE")
def _draw_qmo_e(rng: Generator, op_type: str) -> ContribCase:
    attributes, experts, hidden, inner = _draw_attributes(rng), 4, 32, 64
    bits = rng.choose((4, 8))
    outer = inner * (2 if attributes["activation_type"] == "swiglu" else 1)
    size = rng.choose((0, 16, 32)) if bits == 4 else 0
    attributes |= {"expert_weight_bits": bits, "weights_prepacked": 0} | ({"block_size": size} if size else {})
    lead = rng.choose(((6,), (2, 3)))
    scales = [(experts, rows, depth // size) if size else (experts, rows) for rows, depth in ((outer, hidden), (hidden, inner))]
    inputs: tuple[Any, ...] = (
        rng.floats(*lead, hidden),
        rng.floats(6, experts),
        rng.numbers(np.uint8, experts, outer, hidden * bits // 8),
        rng.scales(*scales[0]),
        rng.maybe(rng.floats(experts, outer)),
        rng.numbers(np.uint8, experts, hidden, inner * bits // 8),
        rng.scales(*scales[1]),
        rng.maybe(rng.floats(experts, hidden)),
    )
    if rng.flip():
        rows = [
            (experts, -(-rows * bits // 8)) if not size else (experts, rows, -(-(depth // size) * bits // 8))
            for rows, depth in ((outer, hidden), (hidden, inner))
        ]
        inputs = (*inputs, None, None, None, *(rng.numbers(np.uint8, *sizes) for sizes in rows))
        if rng.flip():
            inputs = (*inputs, None, np.asarray(rng.uniform(0.1, 1, (6, experts)), np.float32))
    return ContribCase(op_type, inputs, attributes, tolerance=1e-2 if bits == 8 else 1e-3)


@draws("MoEGroupRouter")
def _draw_mo_egroup_router(rng: Generator, op_type: str) -> ContribCase:
    groups, dtype = rng.choose((1, 2, 4)), rng.float_type()
    logits, bias = rng.floats(*rng.choose(((6,), (2, 3))), 8, dtype=dtype), rng.floats(8, scale=0.1)
    if rng.integers(3) == 0:
        return ContribCase(op_type, (logits, bias), {"top_k": 2}, (False, True, True))
    attributes = {"top_k": 2, "n_group": groups, "topk_group": rng.integer(1, groups + 1), "group_topk": rng.integer(1, 3)}
    return ContribCase(op_type, (logits, bias), attributes)


# Attention, its caches and masks, and rotations

_MASKED = 4e-3
"""In a row with all keys masked, 10,000 is subtracted from each score, which leaves a resolution of about a thousandth."""


def _draw_mask(rng: Generator, batch: int, queries: int, keys: int) -> Any:
    """Returns None, or a mask in a form that ONNX Runtime's CPU kernels take."""
    kind = rng.integer(5)
    if kind == 0:
        return None
    if kind == 1:
        return rng.ints(1, keys + 1, batch, dtype=np.int32)
    if kind == 2:
        ends = rng.integers(1, keys + 1, batch)
        return np.concatenate([ends, rng.integers(0, ends)]).astype(np.int32)
    mask = rng.ints(0, 2, (batch, keys) if kind == 3 else (batch, queries, keys), dtype=np.int32)
    mask[..., 0] = 1
    return mask


def _draw_bias(rng: Generator, batch: int, heads: int, queries: int, keys: int, *, dtype: Any = np.float32) -> Any:
    """Returns the bias of the attention scores, either separate for each batch and head or shared."""
    return rng.floats(rng.choose((1, batch)), rng.choose((1, heads)), queries, keys, dtype=dtype)


@draws("Attention")
def _draw_attention(rng: Generator, op_type: str) -> ContribCase:
    batch, steps, heads, size, width = (int(value) for value in rng.integers((1, 1, 1, 2, 4), (4, 7, 4, 6, 12)))
    before = rng.integer(0, 5) if rng.flip() else 0
    own = not before and rng.flip()
    v_size = size + 2 if own else size
    columns = heads * (2 * size + v_size)
    keys = before + steps
    bias = _draw_bias(rng, batch, heads, steps, keys) if rng.integers(3) == 0 and not before else None
    inputs = (
        rng.floats(batch, steps, width),
        rng.floats(width, columns),
        rng.maybe(rng.floats(columns)),
        _draw_mask(rng, batch, steps, keys),
        rng.floats(2, batch, heads, before, size) if before else None,
        bias,
    )
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": rng.bit()}
    if own:
        attributes["qkv_hidden_sizes"] = [heads * size, heads * size, heads * v_size]
    if rng.flip():
        attributes |= {"scale": 0.25, "mask_filter_value": -5000.0}
    asks = bool(before) or (not own and rng.flip())
    return ContribCase(op_type, inputs, attributes, (True, True) if asks else (True,), tolerance=_MASKED)


@draws("QAttention")
def _draw_qattention(rng: Generator, op_type: str) -> ContribCase:
    batch, steps, heads, size, width = (int(value) for value in rng.integers((1, 1, 1, 2, 4), (4, 7, 4, 6, 12)))
    before = rng.integer(1, 5) if rng.flip() else 0
    columns, dtype = 3 * heads * size, rng.choose((np.int8, np.uint8))
    sizes = (columns,) if rng.flip() else ()
    inputs = (
        rng.numbers(np.uint8, batch, steps, width),
        rng.numbers(dtype, width, columns),
        rng.floats(columns),
        np.asarray(rng.scales() / 8),
        rng.scales(*sizes),
        _draw_mask(rng, batch, steps, before + steps),
        rng.maybe(rng.numbers(np.uint8)),
        rng.maybe(rng.numbers(dtype, *sizes)),
        rng.floats(2, batch, heads, before, size) if before else None,
    )
    attributes = {"num_heads": heads, "unidirectional": rng.bit()}
    return ContribCase(op_type, inputs, attributes, (True, True) if before else (True,), tolerance=_MASKED)


@draws("MultiHeadAttention")
def _draw_multi_head_attention(rng: Generator, op_type: str) -> ContribCase:
    batch, steps, others, heads, size = (int(value) for value in rng.integers((1, 1, 1, 1, 2), (4, 7, 7, 4, 6)))
    kind = rng.choose(("self", "cross", "cached", "encoder"))
    others = steps if kind in ("self", "cached") else others
    before = rng.integer(1, 5) if kind == "cached" else 0
    v_size = size + 2 if kind in ("self", "cross") and rng.flip() else size
    keys = before + others
    if kind == "encoder":
        key, value = rng.floats(batch, heads, others, size), rng.floats(batch, heads, others, size)
    else:
        key, value = rng.floats(batch, others, heads * size), rng.floats(batch, others, heads * v_size)
    past = (None, None)
    if before:
        past = (rng.floats(batch, heads, before, size), rng.floats(batch, heads, before, size))
    bias = rng.floats(heads * (2 * size + v_size)) if rng.flip() and kind != "encoder" else None
    mask = rng.choose((None, rng.ints(0, 2, (batch, keys), dtype=np.int32), rng.ints(1, keys + 1, batch, dtype=np.int32)))
    mask = None if mask is not None and mask.ndim == 1 and before else mask
    added = _draw_bias(rng, batch, heads, steps, keys) if rng.integers(3) == 0 else None
    inputs = (rng.floats(batch, steps, heads * size), key, value, bias, mask, added, *past)
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": int(kind in ("self", "cached") and rng.flip())}
    if rng.flip():
        attributes |= {"scale": 0.25, "mask_filter_value": -5000.0}
    return ContribCase(op_type, inputs, attributes, (True, True, True) if before else (True,), tolerance=_MASKED)


@draws("DecoderMaskedMultiHeadAttention")
def _draw_decoder_masked_multi_head_attention(rng: Generator, op_type: str) -> ContribCase:
    batch, others, heads, size = (int(value) for value in rng.integers((1, 1, 1, 2), (4, 7, 4, 6)))
    query = rng.floats(batch, 1, heads * size)
    attributes: dict[str, Any] = {"num_heads": heads} | ({"scale": 0.25} if rng.flip() else {})
    key, value = (rng.floats(batch, heads, others, size) for _ in range(2))
    mask = rng.maybe(rng.ints(0, 2, (batch, others), dtype=np.int32))
    bias = rng.maybe(rng.floats(3 * heads * size))
    return ContribCase(op_type, (query, key, value, mask, *(None,) * 6, bias), attributes)


def _draw_caches(rng: Generator, length: int, half: int, dtype: Any) -> tuple[Any, Any]:
    angles = rng.uniform(-3, 3, (length, half))
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


@draws("GroupQueryAttention")
def _draw_group_query_attention(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.choose((np.float32, np.float32, np.float16))
    batch, groups, repeats, size = rng.integer(1, 4), rng.integer(1, 3), rng.integer(1, 4), rng.choose((16, 32))
    heads, is_prompt = groups * repeats, rng.flip()
    if is_prompt:
        steps = total = rng.integer(2, 8)
        counts = np.full(batch, total)
        past: tuple[Any, Any] = (None, None)
    else:
        before, room = rng.integer(1, 8), rng.choose((0, 0, 5))
        steps = 1 if batch > 1 else rng.integer(1, 4)
        total = before + steps
        counts = rng.integers(steps + 1, total + 1, batch) if steps == 1 else np.full(batch, total)
        counts[0] = total
        past = tuple(rng.floats(batch, groups, before + room, size, dtype=dtype) for _ in range(2))
    does_rotate = rng.flip()
    caches = _draw_caches(rng, 16, size // 2, dtype) if does_rotate else (None, None)
    if rng.integers(3) == 0:
        query, key, value = rng.floats(batch, steps, (heads + 2 * groups) * size, dtype=dtype), None, None
    else:
        query = rng.floats(batch, steps, heads * size, dtype=dtype)
        key, value = (rng.floats(batch, steps, groups * size, dtype=dtype) for _ in range(2))
    added = _draw_bias(rng, batch, heads, steps, total, dtype=dtype) if rng.integers(4) == 0 else None
    sink = rng.floats(heads, dtype=dtype) if rng.integers(4) == 0 else None
    positions = (
        np.asarray(counts[:, None] - steps + np.arange(steps)[None], np.int64) if does_rotate and rng.integers(4) == 0 else None
    )
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups}
    if does_rotate:
        attributes |= {"do_rotary": 1, "rotary_interleaved": rng.bit()}
    if rng.integers(3) == 0:
        attributes["local_window_size"] = rng.integer(1, 6)
    if rng.integers(3) == 0:
        attributes["softcap"] = 5.0
    if rng.integers(3) == 0:
        attributes["scale"] = 0.25
    if sink is None and rng.integers(4) == 0:
        attributes["smooth_softmax"] = 1
    inputs = (
        query,
        key,
        value,
        *past,
        np.asarray(counts - 1, np.int32),
        np.asarray(total, np.int32),
        *caches,
        positions,
        added,
        sink,
    )
    return ContribCase(op_type, inputs, attributes, (True, True, True))


@draws("SparseAttention")
def _draw_sparse_attention(rng: Generator, op_type: str) -> ContribCase:
    batch, groups, repeats, size, block = rng.integer(1, 3), rng.integer(1, 3), rng.integer(1, 3), 16, 16
    heads, blocks, length = groups * repeats, 3, 48
    is_prompt = rng.flip()
    steps = rng.integer(2, 40) if is_prompt else 1
    total = steps if is_prompt else rng.integer(2, 48)
    layouts = 1 if heads % 2 else rng.choose((1, 2))
    masks = [np.tril(rng.integers(0, 2, (blocks, blocks))) | np.eye(blocks, dtype=np.int64) for _ in range(layouts)]
    rows = np.stack([np.concatenate([[0], np.cumsum(mask.sum(axis=1))]) for mask in masks]).astype(np.int32)
    columns = np.full((layouts, int(rows.max())), -1, np.int32)
    for index, mask in enumerate(masks):
        places = np.nonzero(mask)[1]
        columns[index, : len(places)] = places
    query = rng.floats(batch, steps, heads * size)
    key, value = (rng.floats(batch, steps, groups * size) for _ in range(2))
    past = [rng.floats(batch, groups, length, size) for _ in range(2)]
    does_rotate = rng.flip()
    caches = _draw_caches(rng, 64, size // 2, np.float32) if does_rotate else ()
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups, "sparse_block_size": block}
    if does_rotate:
        attributes |= {"do_rotary": 1, "rotary_interleaved": rng.bit()}
    inputs = (query, key, value, *past, rows, columns, np.asarray(total, np.int32), np.full(batch, total, np.int32), *caches)
    return ContribCase(op_type, inputs, attributes, (True, True, True), aliases=((1, 3), (2, 4)))


@draws("RotaryEmbedding")
def _draw_rotary_embedding(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.float_type()
    batch, steps, heads, size = rng.integer(1, 4), rng.integer(1, 6), rng.integer(1, 4), 8
    is_part = rng.flip()
    turned = 4 if is_part else size
    positions = rng.choose((rng.ints(0, 20 - steps, 1, dtype=np.int64), rng.ints(0, 20, (batch, steps), dtype=np.int64)))
    x = rng.floats(*rng.choose(((batch, steps, heads * size), (batch, heads, steps, size))), dtype=dtype)
    attributes: dict[str, Any] = {"interleaved": rng.bit()}
    if is_part:
        attributes |= {"rotary_embedding_dim": turned, "num_heads": heads}
    return ContribCase(op_type, (x, positions, *_draw_caches(rng, 20, turned // 2, dtype)), attributes)


@draws("MRotaryEmbedding")
def _draw_mrotary_embedding(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.float_type()
    batch, steps, heads, size = rng.integer(1, 4), rng.integer(1, 6), rng.integer(1, 4), 16
    is_part = rng.flip()
    turned = 12 if is_part else size
    half, layout = turned // 2, rng.bit()
    sections = (
        [half - 2 * (half // 3), half // 3, half // 3] if layout else rng.choose(([half - 3, 2, 1], [half, 0, 0], [1, 2, half - 3]))
    )
    x = rng.floats(*rng.choose(((batch, steps, heads * size), (batch, heads, steps, size))), dtype=dtype)
    attributes: dict[str, Any] = {"interleaved": rng.bit(), "mrope_layout": layout, "mrope_section": sections, "num_heads": heads}
    if is_part:
        attributes |= {"rotary_embedding_dim": turned}
    positions = rng.ints(0, 20, (3, batch, steps), dtype=np.int64)
    return ContribCase(op_type, (x, positions, *_draw_caches(rng, 20, half, dtype)), attributes)


# LSTMs, linear attention, convolutions with a state, and packed sequences

_STEP = 1e-2
"""A hidden state on the border between two codes of 8 bits falls to either side by the last bit of a sigmoid."""


def _draw_states(rng: Generator, directions: int, batch: int, size: int) -> tuple[Any, Any]:
    return tuple(rng.maybe(rng.floats(directions, batch, size)) for _ in range(2))  # type: ignore[return-value]


def _draw_lstm_attributes(rng: Generator, size: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"hidden_size": size, "direction": rng.choose(("forward", "reverse", "bidirectional"))}
    if rng.integers(4) == 0:
        attributes["clip"] = 0.75
    if rng.integers(4) == 0:
        attributes["input_forget"] = 1
    if rng.integers(4) == 0:
        names = ["Sigmoid", "Tanh", "Relu"]
        attributes["activations"] = names * (2 if attributes["direction"] == "bidirectional" else 1)
    return attributes


@draws("DynamicQuantizeLSTM")
def _draw_dynamic_quantize_lstm(rng: Generator, op_type: str) -> ContribCase:
    steps, batch, width, size = (int(value) for value in rng.integers((1, 1, 2, 2), (6, 4, 8, 6)))
    attributes = _draw_lstm_attributes(rng, size)
    directions, dtype = 2 if attributes["direction"] == "bidirectional" else 1, rng.choose((np.int8, np.uint8))
    sizes = (directions, 4 * size) if rng.flip() else (directions,)
    zeros = [np.full(sizes, 0 if dtype == np.int8 else rng.integers(256), dtype) for _ in range(2)]
    lengths = rng.maybe(rng.ints(1, steps + 1, batch, dtype=np.int32))
    inputs = (
        rng.floats(steps, batch, width),
        rng.numbers(dtype, directions, width, 4 * size),
        rng.numbers(dtype, directions, size, 4 * size),
        rng.maybe(rng.floats(directions, 8 * size)),
        lengths,
        *_draw_states(rng, directions, batch, size),
        rng.floats(directions, 3 * size) if rng.integers(3) == 0 else None,
        rng.scales(*sizes) / 10,
        zeros[0],
        rng.scales(*sizes) / 10,
        zeros[1],
    )
    constants = frozenset({1, 2, 8, 9, 10, 11})
    return ContribCase(op_type, inputs, attributes, (True, True, True), constants, tolerance=_STEP)


@draws("AttnLSTM")
def _draw_attn_lstm(rng: Generator, op_type: str) -> ContribCase:
    steps, batch, width, size, memory, depth, inner = (
        int(value) for value in rng.integers((1, 1, 2, 2, 1, 2, 2), (6, 4, 6, 5, 6, 5, 5))
    )
    attributes = _draw_lstm_attributes(rng, size)
    directions, has_layer = 2 if attributes["direction"] == "bidirectional" else 1, rng.flip()
    attended = 3 if has_layer else depth
    lengths = rng.maybe(rng.ints(1, steps + 1, batch, dtype=np.int32))
    inputs = (
        rng.floats(steps, batch, width),
        rng.floats(directions, 4 * size, width + attended),
        rng.floats(directions, 4 * size, size),
        rng.maybe(rng.floats(directions, 8 * size)),
        lengths,
        *_draw_states(rng, directions, batch, size),
        rng.floats(directions, 3 * size) if rng.integers(3) == 0 else None,
        rng.floats(directions, size, inner),
        rng.floats(directions, depth, inner),
        rng.floats(directions, inner),
        rng.floats(batch, memory, depth),
        rng.maybe(rng.ints(1, memory + 1, batch, dtype=np.int32)),
        rng.floats(directions, depth + size, attended) if has_layer else None,
    )
    return ContribCase(op_type, inputs, attributes, (True, True, True), tolerance=1e-3)


def _normalized(x: Any) -> Any:
    return (x / np.sqrt((x.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))).astype(x.dtype)


@draws("LinearAttention")
def _draw_linear_attention(rng: Generator, op_type: str) -> ContribCase:
    batch, steps, size, v_size = rng.integer(1, 3), rng.integer(1, 6), rng.choose((4, 8)), rng.choose((4, 6))
    heads, groups = rng.choose(((2, 2), (4, 2), (1, 1), (2, 4)))
    rule = rng.choose(("linear", "gated", "delta", "gated_delta"))
    state = (batch, groups, size, v_size)
    past = rng.maybe(rng.floats(*state))
    width = groups * (size if rng.flip() else 1)
    decay = -np.abs(rng.floats(batch, steps, width)) if rule.startswith("gated") else None
    beta = rng.uniform(0, 1, (batch, steps, groups if rng.flip() else 1)).astype(np.float32) if rule.endswith("delta") else None
    key = _normalized(rng.floats(batch, steps, groups, size)).reshape((batch, steps, groups * size))
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": rule}
    attributes |= {"scale": 0.5} if rng.flip() else {}
    inputs = (rng.floats(batch, steps, heads * size), key, rng.floats(batch, steps, groups * v_size), past, decay, beta)
    return ContribCase(op_type, inputs, attributes, (True, True), tolerance=1e-3)


@draws("GatedDeltaNet")
def _draw_gated_delta_net(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.choose((np.float32, np.float32, np.float16))
    heads, repeats, size, v_size = rng.integer(1, 3), rng.integer(1, 3), rng.choose((4, 8)), rng.choose((4, 6))
    lengths = rng.integers(1, 4, rng.integer(1, 4))
    tokens, batch, wide = int(lengths.sum()), len(lengths), heads * repeats
    rule = rng.choose(("linear", "gated", "delta", "gated_delta"))
    is_gated, is_delta = rule.startswith("gated"), rule.endswith("delta")
    gate = rng.choose(("none", "softplus", "sigmoid")) if is_gated else "none"
    width = (size,) if rng.flip() else ()
    raw = rng.floats(tokens, wide, *width)
    inputs = (
        rng.floats(tokens, heads, size, dtype=dtype),
        rng.floats(tokens, heads, size, dtype=dtype),
        rng.floats(tokens, wide, v_size, dtype=dtype),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        (raw if gate != "none" else -np.abs(raw)) if is_gated else None,
        rng.uniform(0, 1, (tokens, wide)).astype(np.float32) if is_delta else None,
        rng.floats(batch, wide, v_size, size),
        rng.floats(wide) if gate != "none" else None,
        rng.floats(wide) if gate != "none" else None,
    )
    attributes: dict[str, Any] = {"update_rule": rule, "gate_activation": gate, "qk_l2_norm": 1}
    if is_delta and rng.flip():
        attributes["beta_activation"] = "sigmoid"
    return ContribCase(op_type, inputs, attributes, (True, True), tolerance=1e-3)


@draws("LinearAttentionGate")
def _draw_linear_attention_gate(rng: Generator, op_type: str) -> ContribCase:
    dtype, heads, has_rate = rng.float_type(), rng.integer(1, 5), rng.flip()
    a, b = (rng.floats(2, 3, heads, dtype=dtype) for _ in range(2))
    inputs = (a, rng.floats(heads), -np.abs(rng.floats(heads)), b if has_rate else None)
    return ContribCase(op_type, inputs, {}, (True, True) if has_rate else (True,))


@draws("CausalConvWithState")
def _draw_causal_conv_with_state(rng: Generator, op_type: str) -> ContribCase:
    batch, channels, steps, taps, dilation = (int(value) for value in rng.integers((1, 1, 1, 1, 1), (3, 6, 6, 5, 3)))
    is_last = rng.flip()
    reach = (taps - 1) * dilation
    slot = (batch, reach, channels) if is_last else (batch, channels, reach)
    past = rng.maybe(rng.floats(*slot))
    attributes: dict[str, Any] = {
        "activation": rng.choose(("none", "silu", "swish")),
        "dilation": dilation,
        "channels_last": int(is_last),
    }
    x = rng.floats(*((batch, steps, channels) if is_last else (batch, channels, steps)))
    inputs = (x, rng.floats(channels, 1, taps), rng.maybe(rng.floats(channels)), past)
    return ContribCase(op_type, inputs, attributes, (True, True))


@draws("VarlenCausalConvWithState")
def _draw_varlen_causal_conv_with_state(rng: Generator, op_type: str) -> ContribCase:
    dtype = rng.float_type()
    channels, taps, dilation = (int(value) for value in rng.integers((1, 1, 1), (6, 5, 3)))
    lengths = rng.integers(1, 5, rng.integer(1, 4))
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    capacity = rng.choose((0, 0, 3))
    counts = rng.ints(0, 5, len(lengths), dtype=np.int32) if capacity else None
    inputs = (
        rng.floats(int(bounds[-1]), channels, dtype=dtype),
        rng.floats(channels, 1, taps, dtype=dtype),
        bounds,
        rng.maybe(rng.floats(channels, dtype=dtype)),
        rng.floats(len(lengths), channels, (taps - 1) * dilation, dtype=dtype),
        counts,
    )
    attributes: dict[str, Any] = {"activation": rng.choose(("none", "silu", "swish")), "dilation": dilation}
    attributes |= {"state_update_capacity": capacity} if capacity else {}
    return ContribCase(op_type, inputs, attributes, (True, True, True) if capacity else (True, True))


@draws("VarlenNGramHashMapping")
def _draw_varlen_ngram_hash_mapping(rng: Generator, op_type: str) -> ContribCase:
    dtype, reach, heads = rng.choose((np.int32, np.int64)), rng.integer(1, 4), rng.integer(1, 3)
    lengths = rng.integers(1, 5, rng.integer(1, 4))
    bounds, batch = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), len(lengths)
    tokens, capacity, has_segments = int(bounds[-1]), rng.choose((0, 0, 3)), rng.flip()
    past = rng.maybe(rng.ints(0, 9, (batch, reach), dtype=dtype))
    segments = np.sort(rng.ints(0, 3, tokens, dtype=np.int32)) if has_segments else None
    past_segments = np.zeros((batch, reach), np.int32) if has_segments and past is not None else None
    inputs = (
        rng.ints(0, 9, tokens, dtype=dtype),
        np.asarray(rng.integers(1, 2**20, reach + 1) * 2 + 1, dtype),
        rng.ints(3, 99, reach * heads, dtype=dtype),
        bounds,
        past,
        rng.maybe(rng.ints(0, 99, reach * heads, dtype=dtype)),
        rng.maybe(np.asarray(2, dtype)),
        segments,
        past_segments,
        rng.ints(0, 5, batch, dtype=np.int32) if capacity else None,
    )
    attributes: dict[str, Any] = {"pad_id": 0, "n_head_per_ngram": heads, "max_ngram_size": reach + 1, "reset_on_eos": rng.bit()}
    attributes |= {"state_update_capacity": capacity} if capacity else {}
    return ContribCase(op_type, inputs, attributes, (True, True, has_segments, bool(capacity)))
