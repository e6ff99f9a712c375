"""Passes that fuse the written-out forms of a normalization: LayerNormalization, RMSNormalization.

All are float32. The result is an ONNX operator of the version that introduced it.
"""

from __future__ import annotations

from functools import partial

from hetero_core.network.graph import Network, Node
from hetero_core.transforms.matching import (
    AnyValue,
    Constant,
    ConstantNumber,
    Found,
    Op,
    Pattern,
    Rule,
    fuse_patterns,
    one_of,
    op,
    read_axes,
    read_shape,
)

_X, _SCALE, _BIAS = AnyValue("x"), Constant("scale"), Constant("bias")


def _reduces_last_axis(network: Network, node: Node) -> bool:
    shape = read_shape(network, node.inputs[0])
    is_whole = not node.attributes.get("keepdims", 1) or node.attributes.get("noop_with_empty_axes", 0)
    return not is_whole and shape is not None and read_axes(network, node) in ((-1,), (len(shape) - 1,))


def _mean(value: Pattern) -> Op:
    return Op("ReduceMean", (value,), _reduces_last_axis)


def _mean_square(value: Pattern) -> Pattern:
    return one_of(_mean(op("Pow", value, ConstantNumber(2.0))), _mean(op("Mul", value, value)))


def _divide_by_root(value: Pattern, variance: Pattern) -> tuple[Pattern, Pattern]:
    """Returns the forms of value / sqrt(variance + epsilon), and of the inverse root."""
    shifted = op("Add", variance, ConstantNumber(name="epsilon"))
    root = one_of(op("Sqrt", shifted), op("Pow", shifted, ConstantNumber(0.5)))
    inverse = one_of(op("Reciprocal", root), op("Div", ConstantNumber(1.0), root), op("Pow", shifted, ConstantNumber(-0.5)))
    return one_of(op("Div", value, root), op("Mul", value, inverse)), inverse


_CENTERED = op("Sub", _X, _mean(_X))
_NORMALIZED, _INVERSE = _divide_by_root(_CENTERED, _mean_square(_CENTERED))
_FACTOR = op("Mul", _INVERSE, _SCALE)
_SCALED = one_of(op("Mul", _NORMALIZED, _SCALE), op("Mul", _CENTERED, _FACTOR))
_BIASED = op("Add", op("Mul", _X, _FACTOR), op("Sub", _BIAS, op("Mul", _mean(_X), _FACTOR)))
_LAYER = one_of(op("Add", _SCALED, _BIAS), _BIASED)
_RMS_NORMALIZED, _RMS_INVERSE = _divide_by_root(_X, _mean_square(_X))
_RMS = one_of(op("Mul", _RMS_NORMALIZED, _SCALE), op("Mul", _X, op("Mul", _RMS_INVERSE, _SCALE)))


def fuse_layer_normalization(network: Network) -> Network:
    """Returns the network with (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias over the last axis as a
    LayerNormalization node.

    The bias may be absent. TensorFlow's order, x * factor + (bias - mean * factor), counts, too.
    """
    build = partial(_build_normalization, "LayerNormalization", 17)
    return fuse_patterns(fuse_patterns(network, [Rule(_LAYER, build)]), [Rule(_SCALED, build)])


def fuse_rms_normalization(network: Network) -> Network:
    """Returns the network with x / sqrt(mean(x^2) + epsilon) * scale over the last axis as an RMSNormalization node."""
    return fuse_patterns(network, [Rule(_RMS, partial(_build_normalization, "RMSNormalization", 23))])


def _build_normalization(op_type: str, since: int, network: Network, match: Found, node: Node) -> Node | None:
    """Returns the node if scale and bias have a number for each element of the last axis."""
    parameters = tuple(match.values[name] for name in ("scale", "bias") if name in match.values)
    shape = read_shape(network, match.values["x"])
    output_shape = read_shape(network, node.writes[0])
    if not shape or output_shape is None or len(output_shape) != len(shape):
        return None
    if any(network.initializers[name].shape != shape[-1:] for name in parameters):
        return None
    attributes = {"axis": -1, "epsilon": match.numbers["epsilon"]}
    return Node(node.name, op_type, (match.values["x"], *parameters), node.outputs, "", since, since, attributes)
