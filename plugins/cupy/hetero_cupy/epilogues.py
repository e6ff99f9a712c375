"""Epilogues: a product, its bias and its activation as one node, which a library computes in one kernel where it can.

ReLU is exact. The library's GELU is the form with tanh, up to 5e-4 from the one with erf: it stands for the latter in 16 bits alone,
where a result of size 1 is rounded by as much. Imports no array library.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hetero_core.kernels.operators.activations import gelu
from hetero_core.kernels.precision import Array, narrow, widen
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_core.transforms.rewrite import fuse_pairs
from hetero_cupy.conversions import SMALL
from hetero_cupy.operators import DOMAIN
from hetero_cupy.runtime import Card

LINEAR = (DOMAIN, "Linear")


def fuse_epilogues(network: Network) -> Network:
    """Returns the network with products by a constant matrix, the bias behind them and the activation behind that as one node each."""
    return fuse_pairs(fuse_pairs(network, lambda first, second: _fuse_bias(network, first, second)), _make_fuse_activation(network))


def _fuse_bias(network: Network, first: Node, second: Node) -> Node | None:
    is_sum = (second.domain, second.op_type) == ("", "Add") and second.since_version >= 7
    if not is_sum or first.domain != DOMAIN or len(first.inputs) != 2:
        return None
    if first.op_type not in ("MatMul", "Gemm") or first.attributes.get("alpha", 1.0) != 1.0:
        return None
    weight = network.initializers.get(first.inputs[1])
    name = next((name for name in second.inputs if name != first.outputs[0]), "")
    bias = network.initializers.get(name)
    if weight is None or bias is None or len(weight.shape) != 2:
        return None
    turned = int(first.attributes.get("transB", 0))
    if tuple(bias.shape) != (weight.shape[0 if turned else 1],) or bias.dtype != weight.dtype:
        return None
    attributes = {"transA": int(first.attributes.get("transA", 0)), "transB": turned}
    return replace(
        second, domain=DOMAIN, op_type=LINEAR[1], inputs=(*first.inputs, name), attributes=attributes, opset=1, since_version=1
    )


def _make_fuse_activation(network: Network) -> Any:
    def fuse(first: Node, second: Node) -> Node | None:
        if (first.domain, first.op_type) != LINEAR or "activation" in first.attributes or second.domain:
            return None
        output_type = network.type_of(second.outputs[0])
        is_gelu = second.op_type == "Gelu" and (
            second.attributes.get("approximate", "none") == "tanh"
            or (isinstance(output_type, TensorType) and output_type.dtype in SMALL)
        )
        if second.op_type != "Relu" and not is_gelu:
            return None
        attributes = {**first.attributes, "activation": second.op_type, "approximate": second.attributes.get("approximate", "none")}
        return replace(first, name=second.name, outputs=second.outputs, attributes=attributes)

    return fuse


class LinearOperator:
    """Runs such nodes on a card: by the library, or by a product and formulas behind it."""

    def __init__(self, card: Card, products: Any, *, uses_tf32: bool) -> None:
        self._card = card
        self._products = products
        self._uses_tf32 = uses_tf32

    def function(
        self,
        a: Array,
        b: Array,
        bias: Array,
        *,
        activation: str = "",
        approximate: str = "none",
        transA: int = 0,  # noqa: N803  # ONNX's name
        transB: int = 0,  # noqa: N803  # ONNX's name
    ) -> Array:
        """Returns activation(A @ B + bias). Sums are float32, the result is rounded once, or once more behind the product."""
        a, b = a.T if transA else a, b.T if transB else b
        if self._products is not None:
            product = self._products.multiply(a, b, bias, activation=activation, uses_tf32=self._uses_tf32)
            if product is not None:
                return product
        xp, y = self._card.xp, self._card.multiply(a, b, uses_tf32=self._uses_tf32)
        wide = widen(y) + widen(bias)
        if activation == "Relu":
            wide = xp.maximum(wide, xp.zeros((), dtype=wide.dtype))
        elif activation == "Gelu":
            wide = gelu(xp, wide, approximate=approximate)
        return narrow(wide, y.dtype)
