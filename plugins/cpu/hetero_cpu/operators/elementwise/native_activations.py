"""From nodes to the vector functions that kernels have: which Activation computes a node, or all of a group's epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan
from typing import Any

import numpy as np

from hetero_core.network.graph import Node
from hetero_cpu.machine.arithmetic import EMITTERS, Activation
from hetero_cpu.planning.recipe import Array

PLAIN = frozenset(
    {
        "Abs", "Ceil", "Erf", "Exp", "Floor", "HardSwish", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid",
        "Sign", "Softplus", "Softsign", "Sqrt", "Tanh",
    }
)  # fmt: skip
"""The functions that have neither numbers nor attributes."""
# Attributes that are numbers of the activation, in the order in which its function takes them. Source: the operators' pages of ONNX.
_NUMBERS: Mapping[str, Mapping[str, float]] = {
    "Celu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "Swish": {"alpha": 1.0},
    "ThresholdedRelu": {"alpha": 1.0},
}


def read_activation(node: Node, constants: Mapping[str, Array]) -> Activation | None:
    """Returns the function of its first input that a node is; None if it is none, or reads more that is computed."""
    if node.domain or any(name and name not in constants for name in node.inputs[1:]):
        return None
    reader = _READERS.get(node.op_type)
    activation = None if reader is None else reader(node, constants)
    if activation is None or activation.operator not in EMITTERS or any(isnan(number) for number in activation.numbers):
        return None
    return activation


def _read_plain(node: Node, constants: Mapping[str, Array]) -> Activation | None:
    return None if node.attributes or len(node.inputs) != 1 else Activation(node.op_type)


def _read_numbers(node: Node, constants: Mapping[str, Array]) -> Activation | None:
    defaults = _NUMBERS[node.op_type]
    if len(node.inputs) != 1 or not set(node.attributes) <= set(defaults):
        return None
    return Activation(node.op_type, tuple(_single(node.attributes.get(name, default)) for name, default in defaults.items()))


def _read_clip(node: Node, constants: Mapping[str, Array]) -> Activation | None:
    if any(name and constants[name].size != 1 for name in node.inputs[1:]) or not set(node.attributes) <= {"min", "max"}:
        return None
    return Activation("Clip", tuple(map(_single, _read_bounds(node, constants))))


def _read_bounds(node: Node, constants: Mapping[str, Array]) -> tuple[Any, Any]:
    """Returns the two bounds; those of float32 if they are absent. Source: ONNX Clip-6 has attributes, Clip-11 inputs."""
    limits = np.finfo(np.float32)
    if node.since_version < 11:
        return node.attributes.get("min", limits.min), node.attributes.get("max", limits.max)
    low, high = (*[constants[name].reshape(-1)[0] if name else None for name in node.inputs[1:3]], None, None)[:2]
    return limits.min if low is None else low, limits.max if high is None else high


def _read_gelu(node: Node, constants: Mapping[str, Array]) -> Activation | None:
    approximation = node.attributes.get("approximate", "none")
    if len(node.inputs) != 1 or approximation not in ("none", "tanh"):
        return None
    return Activation("Gelu" if approximation == "none" else "GeluTanh")


def _read_prelu(node: Node, constants: Mapping[str, Array]) -> Activation | None:
    # One slope for all elements is LeakyRelu's.
    slope = constants[node.inputs[1]]
    return Activation("LeakyRelu", (_single(slope.reshape(-1)[0]),)) if slope.size == 1 and slope.ndim <= 1 else None


def _read_power(node: Node, constants: Mapping[str, Array]) -> Activation | None:
    exponent = constants[node.inputs[1]]
    if exponent.size != 1 or exponent.ndim > 1:
        return None
    number = float(exponent.reshape(-1)[0])
    return Activation("Power", (number,)) if number in POWERS else None


def _single(number: object) -> float:
    # As the operators have it: attributes and bounds are float32.
    return float(np.float32(number))  # type: ignore[arg-type]  # attributes are numbers here


POWERS = frozenset({-2.0, -1.0, 1.0, 2.0, 3.0, 4.0})
"""Exponents that are made of products."""

_READERS: Mapping[str, Callable[[Node, Mapping[str, Array]], Activation | None]] = {
    **dict.fromkeys(sorted(PLAIN), _read_plain),
    **dict.fromkeys(_NUMBERS, _read_numbers),
    "Clip": _read_clip,
    "Gelu": _read_gelu,
    "PRelu": _read_prelu,
    "Pow": _read_power,
}
OPERATORS = frozenset(_READERS)
"""The operators that may be functions of one value."""
