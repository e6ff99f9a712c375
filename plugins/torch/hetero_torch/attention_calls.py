"""Attention that stands as single products in the calls of a run, as networks of open sizes have it: one call of PyTorch's own.

The pass of the toolkit finds it where sizes are known at load; here they are known always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hetero_torch.shortcuts import Call, count_readers

_RANK = 4


def join_attention(
    calls: Sequence[Call], values: Sequence[Any], outputs: frozenset[int], shapes: Mapping[int, tuple[int, ...]]
) -> list[Call]:
    """Returns the calls with softmax(c q (d k)^T) v as one call, where nobody else reads what lies between; c and d are numbers.

    `values` are the constants by slot. Scores with a mask are left: a query that sees no key is NaN there, and zero in PyTorch's call.
    """
    readers = count_readers(calls, outputs)
    maker = {slot: index for index, call in enumerate(calls) for slot in call.targets if readers.get(slot, 0) == 1}
    removed: set[int] = set()
    joined: dict[int, Call] = {}
    for index, call in enumerate(calls):
        chain = _find_chain(call, calls, values, maker, shapes)
        if chain is None:
            continue
        removed.update(chain.inner)
        releases = [slot for place in (*sorted(chain.inner), index) for slot in calls[place].releases]
        joined[index] = Call(_attend_by(chain.scale), chain.sources, call.targets, tuple(dict.fromkeys(releases)), call.node)
    return [joined.get(index, call) for index, call in enumerate(calls) if index not in removed]


@dataclass(slots=True)
class _AttentionChain:
    """The calls of one attention behind its last product: their positions, the slots of q, k and v, and the scale."""

    inner: list[int]
    sources: tuple[int, ...] = ()
    scale: float = 1.0


def _find_chain(
    call: Call, calls: Sequence[Call], values: Sequence[Any], maker: Mapping[int, int], shapes: Mapping[int, tuple[int, ...]]
) -> _AttentionChain | None:
    if call.function is not torch.matmul:
        return None
    softmax = maker.get(call.sources[0])
    if softmax is None or calls[softmax].node.op_type != "Softmax" or calls[softmax].node.since_version < 13:
        return None
    product = maker.get(calls[softmax].sources[0])
    axis = calls[softmax].node.attributes.get("axis", -1)
    if product is None or calls[product].function is not torch.matmul or axis not in (-1, _RANK - 1):
        return None
    parts = [shapes.get(slot, ()) for slot in (*calls[product].sources, call.sources[1])]
    if any(len(shape) != _RANK or shape[:2] != parts[0][:2] for shape in parts):
        return None
    chain = _AttentionChain([softmax, product])
    query = _pass_factors(calls[product].sources[0], chain, calls, values, maker)
    key = _pass_factors(calls[product].sources[1], chain, calls, values, maker)
    turn = maker.get(key)
    if turn is None or calls[turn].node.op_type != "Transpose" or calls[turn].node.attributes.get("perm") != (0, 1, 3, 2):
        return None
    chain.inner.append(turn)
    inner = _pass_factors(calls[turn].sources[0], chain, calls, values, maker)
    chain.sources = (query, inner, call.sources[1])
    return chain


def _pass_factors(slot: int, chain: _AttentionChain, calls: Sequence[Call], values: Sequence[Any], maker: Mapping[int, int]) -> int:
    """Returns the slot before products with numbers, which go into the scale."""
    while (place := maker.get(slot)) is not None and calls[place].function is torch.mul:
        sources = calls[place].sources
        number = next((values[source] for source in sources if _is_number(values[source])), None)
        if number is None:
            break
        chain.scale *= float(number)
        chain.inner.append(place)
        slot = next(source for source in sources if values[source] is not number)
    return slot


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and value.ndim <= _RANK and value.dtype == torch.float32


def _attend_by(scale: float) -> Any:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=scale)

    return attend
