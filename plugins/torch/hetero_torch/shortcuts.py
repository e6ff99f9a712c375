"""Shorter calls for known shapes: PyTorch's own functions with the numbers that the table's functions work out in each run.

Each is right for inputs of the shapes that it was made for. What is not listed is called as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hetero_core.kernels.precision import normalize_axis
from hetero_core.network.graph import Node

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a run: slots that it reads and writes, slots that nobody reads later, and the node that it stands for."""

    function: Function
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    releases: tuple[int, ...]
    node: Node


def shorten_call(call: Call, arguments: Sequence[Any], results: Any) -> Call:
    """Returns a call for arguments of these shapes, whose results have the shapes of these."""
    make = _SHORTCUTS.get(call.node.op_type)
    if make is None or call.node.domain:
        return call
    shortcut = make(call, arguments, results)
    return call if shortcut is None else Call(*shortcut, call.targets, call.releases, call.node)


_Shortcut = tuple[Function, tuple[int, ...]] | None


def _call_with_shape(method: str) -> Callable[[Call, Sequence[Any], Any], _Shortcut]:
    """Returns a rule for what only gives the first tensor the shape of the result."""
    return lambda call, arguments, result: (methodcaller(method, tuple(result.shape)), call.sources[:1])


def _transpose(call: Call, arguments: Sequence[Any], result: Any) -> _Shortcut:
    perm = call.node.attributes.get("perm", tuple(reversed(range(result.ndim))))
    return methodcaller("permute", perm), call.sources


def _concatenate(call: Call, arguments: Sequence[Any], result: Any) -> _Shortcut:
    axis = call.node.attributes.get("axis", 1)
    return lambda *tensors: torch.cat(tensors, axis), call.sources


def _split(call: Call, arguments: Sequence[Any], results: Any) -> _Shortcut:
    axis = normalize_axis(call.node.attributes.get("axis", 0), arguments[0].ndim)
    return methodcaller("split", [part.shape[axis] for part in results], axis), call.sources[:1]


def _normalize_layer(call: Call, arguments: Sequence[Any], results: Any) -> _Shortcut:
    x, *parameters = arguments
    shape = x.shape[normalize_axis(call.node.attributes.get("axis", -1), x.ndim) :]
    if len(call.node.writes) > 1 or x.dtype != torch.float32:
        return None
    if any(values is not None and (values.dtype != x.dtype or values.shape != shape) for values in parameters):
        return None
    epsilon = call.node.attributes.get("epsilon", 1e-5)

    def normalize(x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.layer_norm(x, shape, scale, bias, epsilon)

    return normalize, call.sources


_SHORTCUTS: Mapping[str, Callable[[Call, Sequence[Any], Any], _Shortcut]] = {
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _call_with_shape("reshape")),
    "Concat": _concatenate,
    "Expand": _call_with_shape("expand"),
    "LayerNormalization": _normalize_layer,
    "Split": _split,
    "Transpose": _transpose,
}


def join_linear(calls: Sequence[Call], values: Sequence[Any], outputs: frozenset[int]) -> list[Call]:
    """Returns the calls with a product by constant weights and the sum with a constant bias right behind it as one call.

    `values` are the constants by slot.
    """
    readers = count_readers(calls, outputs)
    joined: list[Call] = []
    for call in calls:
        product = joined[-1] if joined else None
        linear = None if product is None else _find_linear(product, call, values, readers)
        if linear is not None:
            joined[-1] = linear
        else:
            joined.append(call)
    return joined


def count_readers(calls: Sequence[Call], outputs: frozenset[int]) -> Mapping[int, int]:
    """Returns how often each slot is read, by calls or as an output."""
    readers: dict[int, int] = dict.fromkeys(outputs, 1)
    for call in calls:
        for slot in call.sources:
            readers[slot] = readers.get(slot, 0) + 1
    return readers


def _find_linear(product: Call, sum_: Call, values: Sequence[Any], readers: Mapping[int, int]) -> Call | None:
    if (product.node.op_type, sum_.node.op_type) != ("MatMul", "Add") or product.function is not torch.matmul:
        return None
    (slot,) = product.targets
    if sum_.function is not torch.add or sum_.sources.count(slot) != 1 or readers[slot] != 1:
        return None
    weights = values[product.sources[1]]
    bias = values[sum_.sources[1 - sum_.sources.index(slot)]]
    if not _are_weights(weights, bias):
        return None
    turned = weights.t()

    def multiply(x: Tensor) -> Tensor:
        return functional.linear(x, turned, bias)

    return Call(multiply, product.sources[:1], sum_.targets, (*product.releases, *sum_.releases), sum_.node)


def _are_weights(weights: Any, bias: Any) -> bool:
    return (
        isinstance(weights, Tensor)
        and isinstance(bias, Tensor)
        and weights.ndim == 2
        and bias.ndim == 1
        and bias.shape[0] == weights.shape[1]
    )
