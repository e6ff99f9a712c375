"""A pass that joins chains of arithmetic with scalar constants: factors are multiplied, summands added.

Numbers are joined in float64 and rounded once. Only float32 and float64 are touched, and only if the joined number is a normal float.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.rewrite import fuse_pairs

_DTYPES = ("float32", "float64")
_OPERATORS = frozenset({"Add", "Div", "Mul", "Sub"})
_SINCE = 7
_OPSET = 14


@dataclass(frozen=True, slots=True)
class _Scalar:
    """The arithmetic of a node: times or plus a number. `rank` is that of the constant, which may widen the result."""

    source: str
    is_factor: bool
    number: float
    rank: int
    dtype: str


def fold_scalars(network: Network) -> Network:
    """Returns the network with each chain of Mul and Div by single numbers as a Mul, of Add and Sub as an Add."""
    if sum(prod(constant.shape) == 1 for constant in network.initializers.values()) < 2:
        return network
    names = FreshNames(network)
    constants = dict(network.initializers)

    def fuse(first: Node, second: Node) -> Node | None:
        if first.op_type not in _OPERATORS or second.op_type not in _OPERATORS:
            return None
        factor, other = (_read_scalar(node, network, constants) for node in (first, second))
        if factor is None or other is None or other.source != first.outputs[0] or factor.dtype != other.dtype:
            return None
        if factor.is_factor != other.is_factor:
            return None
        number = factor.number * other.number if factor.is_factor else factor.number + other.number
        limits = np.finfo(factor.dtype)
        if not (number == 0 and not factor.is_factor) and not float(limits.tiny) <= abs(number) <= float(limits.max):
            return None
        name = names.value(f"{second.outputs[0]}/number")
        constants[name] = Initializer.of_array(np.full((1,) * max(factor.rank, other.rank), number, factor.dtype))
        op_type = "Mul" if factor.is_factor else "Add"
        return Node(second.name, op_type, (factor.source, name), second.outputs, "", _OPSET, _OPSET)

    fused = fuse_pairs(network, fuse)
    return network if fused is network else drop_unread(replace(fused, initializers=MappingProxyType(constants)))


def _read_scalar(node: Node, network: Network, constants: dict[str, Initializer]) -> _Scalar | None:
    if node.op_type not in _OPERATORS or node.domain or len(node.inputs) != 2 or node.since_version < _SINCE:
        return None
    orders = [node.inputs] if node.op_type in ("Div", "Sub") else [node.inputs, node.inputs[::-1]]
    for source, name in orders:
        constant, source_type = constants.get(name), network.type_of(source)
        if constant is None or constant.dtype not in _DTYPES or constant.array.size != 1 or source in constants:
            continue
        if not isinstance(source_type, TensorType) or source_type.dtype != constant.dtype:
            continue
        number = float(constant.array.reshape(-1)[0])
        if node.op_type == "Div":
            number = 1 / number if number else 0.0
        elif node.op_type == "Sub":
            number = -number
        return _Scalar(source, node.op_type in ("Mul", "Div"), number, len(constant.shape), constant.dtype)
    return None
