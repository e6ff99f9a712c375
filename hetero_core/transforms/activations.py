"""Passes that fuse the written-out forms of an activation: Gelu, Swish, HardSwish, HardSigmoid.

All are float32. The result is an ONNX operator of the version that introduced it.
"""

from __future__ import annotations

from math import isclose, pi, sqrt
from typing import Any

from hetero_core.network.graph import Network, Node
from hetero_core.transforms.matching import (
    AnyValue,
    Build,
    ConstantNumber,
    Found,
    OneOf,
    Op,
    Pattern,
    Rule,
    fuse_patterns,
    multiply_three,
    one_of,
    op,
    read_number,
    read_shape,
)

_SINCE = {"Gelu": 20, "HardSigmoid": 6, "HardSwish": 14, "Swish": 24}
_X = AnyValue("x")


def _make(op_type: str, **attributes: Any) -> Build:
    """Returns the builder of the operator on x; it refuses a result that a number of a higher rank has widened."""

    def build(network: Network, match: Found, node: Node) -> Node | None:
        x, since = match.values["x"], _SINCE[op_type]
        shape, result_shape = read_shape(network, x), read_shape(network, node.writes[0])
        if shape is None or result_shape is None or len(shape) != len(result_shape):
            return None
        return Node(node.name, op_type, (x,), node.outputs, "", since, since, {**attributes, **match.numbers})

    return build


def _halve_product(shifted: Pattern) -> OneOf:
    """Returns the forms of x * shifted / 2."""
    two = ConstantNumber(2.0)
    return one_of(
        multiply_three(_X, ConstantNumber(0.5), shifted),
        op("Div", op("Mul", _X, shifted), two),
        op("Mul", op("Div", _X, two), shifted),
        op("Mul", _X, op("Div", shifted, two)),
    )


_SCALED = one_of(op("Div", _X, ConstantNumber(sqrt(2))), op("Mul", _X, ConstantNumber(sqrt(0.5))))
_BY_ERF = _halve_product(op("Add", op("Erf", _SCALED), ConstantNumber(1.0)))
_SQUARE = one_of(op("Mul", _X, _X), op("Pow", _X, ConstantNumber(2.0)))
_CUBE = one_of(op("Pow", _X, ConstantNumber(3.0)), op("Mul", _X, _SQUARE))
_SMALL, _ROOT = ConstantNumber(0.044715), ConstantNumber(sqrt(2 / pi))
_INNER = one_of(
    op("Mul", _ROOT, op("Add", _X, op("Mul", _SMALL, _CUBE))),
    op("Mul", _ROOT, op("Add", _X, multiply_three(_X, _SMALL, _SQUARE))),
    multiply_three(
        _X, _ROOT, op("Add", ConstantNumber(1.0), one_of(op("Mul", _SMALL, _SQUARE), op("Mul", _X, op("Mul", _X, _SMALL))))
    ),
)
_BY_TANH = _halve_product(op("Add", op("Tanh", _INNER), ConstantNumber(1.0)))


def fuse_gelu(network: Network) -> Network:
    """Returns the network with x (1 + erf(x / sqrt 2)) / 2 and its approximation by tanh as a Gelu node; factors may have any order."""
    return fuse_patterns(network, [Rule(_BY_ERF, _make("Gelu")), Rule(_BY_TANH, _make("Gelu", approximate="tanh"))])


_SWISH = one_of(
    op("Mul", _X, op("Sigmoid", _X)),
    op("Mul", _X, op("Sigmoid", op("Mul", _X, ConstantNumber(name="alpha")))),
    op("Div", _X, op("Add", ConstantNumber(1.0), op("Exp", op("Neg", _X)))),
)


def fuse_swish(network: Network) -> Network:
    """Returns the network with x * sigmoid(alpha x) as a Swish node; the sigmoid may be written as 1 / (1 + exp(-x))."""
    return fuse_patterns(network, [Rule(_SWISH, _make("Swish", alpha=1.0))])


def _clips_to_six(network: Network, node: Node) -> bool:
    """Says whether a Clip has the bounds 0 and 6. Source: ONNX Clip-6 has attributes, Clip-11 inputs."""
    if node.since_version < 11:
        return node.since_version >= 6 and (node.attributes.get("min"), node.attributes.get("max")) == (0.0, 6.0)
    return len(node.inputs) == 3 and [read_number(network, value) for value in node.inputs[1:]] == [0.0, 6.0]


def _is_sixth(network: Network, node: Node) -> bool:
    alpha, beta = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    return isclose(alpha, 1 / 6, rel_tol=1e-5) and isclose(beta, 0.5, rel_tol=1e-5)


_MOVED = op("Add", _X, ConstantNumber(3.0))
_CLIPPED = one_of(
    Op("Clip", (_MOVED,), _clips_to_six),
    op("Min", op("Max", _MOVED, ConstantNumber(0.0)), ConstantNumber(6.0)),
    op("Max", op("Min", _MOVED, ConstantNumber(6.0)), ConstantNumber(0.0)),
)
_SIX, _SIXTH = ConstantNumber(6.0), ConstantNumber(1 / 6)


_HARD_SWISH = one_of(
    op("Div", op("Mul", _X, _CLIPPED), _SIX),
    op("Mul", _X, op("Div", _CLIPPED, _SIX)),
    op("Mul", op("Div", _X, _SIX), _CLIPPED),
    multiply_three(_X, _CLIPPED, _SIXTH),
    op("Mul", _X, Op("HardSigmoid", (_X,), _is_sixth)),
)
_HARD_SIGMOID = one_of(op("Div", _CLIPPED, _SIX), op("Mul", _CLIPPED, _SIXTH))


def fuse_hard_swish(network: Network) -> Network:
    """Returns the network with x * clip(x + 3, 0, 6) / 6 as a HardSwish node, and a lone clip(x + 3, 0, 6) / 6 as a HardSigmoid node."""
    fused = fuse_patterns(network, [Rule(_HARD_SWISH, _make("HardSwish"))])
    return fuse_patterns(fused, [Rule(_HARD_SIGMOID, _make("HardSigmoid", alpha=1 / 6, beta=0.5))])
