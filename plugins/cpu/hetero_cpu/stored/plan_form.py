"""The form of a captured plan that was read from a file: types, counts, places, and that its arrays lie within the arena.

What a plan makes machine code do is not checked here: the file is trusted as the code itself is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from hetero_cpu.stored.captured_plan import ARENA, CapturedCall, CapturedPlan, View, name_block

_LIMIT = 1 << 63


def check_form(captured: CapturedPlan, places: Collection[str]) -> None:
    """Raises ValueError with the reason where a plan could not be bound to an arena and the areas of these places."""
    _require(_is_count(captured.arena_bytes), f"its arena has {captured.arena_bytes!r} bytes")
    _require(isinstance(captured.name, str), "its name is no text")
    for name in (*captured.inputs, *captured.outputs):
        _require(isinstance(name, str), f"it has a value {name!r}")
    for name in captured.outputs:
        _require(name in captured.values, f"its output '{name}' lies nowhere")
    _check_views(captured.values, captured.arena_bytes)
    _check_outside(captured)
    own_places = {ARENA, *places, *map(name_block, captured.outside.roots)}
    for node, calls in captured.steps:
        texts = (node.name, node.op_type, node.domain, *node.origins)
        _require(all(isinstance(text, str) for text in texts), f"it has a node {node.name!r}")
        _require(_is_count(node.opset) and _is_count(node.since_version), f"node '{node.name}' has no version")
        for call in calls:
            _check_call(call, own_places)


def _check_outside(captured: CapturedPlan) -> None:
    """Requires what lies outside to be inputs and outputs, each all of a block in C order: a run gives other memory of this size."""
    outside, values = captured.outside, captured.values
    is_known = set(outside.inputs) <= set(captured.inputs) and set(outside.outputs) <= set(captured.outputs)
    _require(is_known and set(outside.roots) <= set(values), f"what lies outside is {outside}")
    for value, root in (*zip(outside.inputs, outside.inputs, strict=True), *outside.outputs.items()):
        view, block = values[value], values[root]
        sizes = [prod(own.shape) * np.dtype(own.dtype).itemsize for own in (view, block)]
        is_whole = sizes[0] == sizes[1] and view.offset == block.offset and _is_dense(view) and _is_dense(block)
        _require(is_whole, f"value '{value}' lies outside, and is not all of the block of '{root}'")


def _is_dense(view: View) -> bool:
    """Says whether the elements lie side by side in C order."""
    expected = np.dtype(view.dtype).itemsize
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _check_views(views: Mapping[str, View], arena_bytes: int) -> None:
    for name, view in views.items():
        counts = (view.offset, *view.shape)
        is_whole = _are_integers((*counts, *view.strides)) and min(counts) >= 0 and len(view.shape) == len(view.strides)
        _require(is_whole and isinstance(view.dtype, str), f"value '{name}' lies at {view}")
        element = np.dtype(view.dtype)
        _require(not element.hasobject and element.fields is None, f"value '{name}' has elements {view.dtype!r}")
        reaches = (
            [stride * (size - 1) for stride, size in zip(view.strides, view.shape, strict=True)] if 0 not in view.shape else []
        )
        first = view.offset + sum(reach for reach in reaches if reach < 0)
        last = view.offset + sum(reach for reach in reaches if reach > 0) + element.itemsize * (0 not in view.shape)
        _require(first >= 0 and last <= arena_bytes, f"value '{name}' lies at {view}, outside of the arena")


def _check_call(call: CapturedCall, places: Collection[str]) -> None:
    _require(isinstance(call.kernel, str), f"it calls {call.kernel!r}")
    _require(_are_integers(call.numbers), f"a number for '{call.kernel}' is none of 64 bits")
    _require(_is_count(call.chunks) and call.chunks > 0, f"it calls '{call.kernel}' in {call.chunks!r} chunks")
    positions = [position for position, _ in call.addresses]
    is_whole = _are_integers(positions) and len(set(positions)) == len(positions)
    _require(is_whole and set(positions) <= set(range(len(call.numbers))), f"an address for '{call.kernel}' is none of its numbers")
    for _, place in call.addresses:
        _require(isinstance(place, str) and place in places, f"an address for '{call.kernel}' lies in {place!r}")


def _are_integers(values: Iterable[Any]) -> bool:
    return all(type(value) is int and -_LIMIT <= value < _LIMIT for value in values)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LIMIT


def _require(is_right: bool, fault: str) -> None:
    if not is_right:
        raise ValueError(fault if len(fault) <= 300 else f"{fault[:300]} ...")
