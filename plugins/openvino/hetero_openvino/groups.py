"""Convolutions of the channels of one value, concatenated: the engine makes one convolution with groups of them, whatever their order.

That is right where a Split along the channels has one convolution for each output, concatenated along the channels in the same order. In
another order, of some outputs alone or along another axis the values are wrong, or the engine fails to compile. OpenVINO 2026.4.1, no case:
float32[1,3,18,12] split in three, each convolved by [2,1,3,3], the second result before the first.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

_CHANNELS = 1


def part_channels_by_gather(opset: Any, concat: Any) -> None:
    """Lets the convolutions that a Concat reads take their parts by Gathers, of which the engine makes no groups.

    A constant or an input of the model beside a convolution keeps the engine from making a group.
    """
    readers = [_pass_identities(each).get_node() for each in concat.input_values()]
    convolutions = {each.get_friendly_name(): each for each in readers if each.get_type_name() == "Convolution"}
    is_stopped = any(not each.get_input_size() for each in readers)
    if not is_stopped and any(each.get_type_name() != "Convolution" for each in readers):
        return
    if not is_stopped and _is_in_order(concat, [_pass_identities(each.input_value(0)) for each in readers]):
        return
    for convolution in convolutions.values():
        part = _pass_identities(convolution.input_value(0))
        place = _find_place(part, convolution.get_input_partial_shape(1)[_CHANNELS].get_length())
        if place is None:
            continue
        axis, first, width = place
        operations = [opset.constant(np.arange(first, first + width), np.int64), opset.constant(axis, np.int64)]
        operations.append(opset.gather(part.get_node().input_value(0), *operations))
        for index, each in enumerate(operations):
            each.set_friendly_name(f"{convolution.get_friendly_name()}/{index}")
        convolution.input(0).replace_source_output(operations[-1].output(0))


def _is_in_order(concat: Any, parts: list[Any]) -> bool:
    """Says whether the parts are all outputs of one Split along the channels, in order, and so are joined."""
    split = parts[0].get_node()
    if split.get_type_name() not in ("Split", "VariadicSplit") or concat.get_attributes()["axis"] != _CHANNELS:
        return False
    names = {part.get_node().get_friendly_name() for part in parts}
    return len(names) == 1 and [part.get_index() for part in parts] == list(range(split.get_output_size()))


def _find_place(part: Any, channels: int) -> tuple[int, int, int] | None:
    """Returns the axis, the first index and the width of a part of a value; None if the value is no part or depends on the run."""
    node = part.get_node()
    kind = node.get_type_name()
    if kind not in ("Slice", "Split", "VariadicSplit"):
        return None
    values = [_read_constant(each) for each in node.input_values()[1:]]
    axes = (*values, [0])[3] if kind == "Slice" else values[0]
    if axes is None or len(axes) != 1:
        return None
    axis = axes[0] % part.get_partial_shape().rank.get_length()
    size = part.get_partial_shape()[axis]
    width = channels if axis == _CHANNELS else None if size.is_dynamic else size.get_length()
    if width is None:
        return None
    first = part.get_index() * width if kind == "Split" else _find_first(node, kind, part.get_index(), axis, values)
    return None if first is None else (axis, first, width)


def _find_first(node: Any, kind: str, index: int, axis: int, values: list[list[int] | None]) -> int | None:
    if kind == "VariadicSplit":
        return None if values[1] is None else [0, *accumulate(values[1])][index]
    firsts, _, steps = values[:3]
    if firsts is None or steps != [1]:
        return None
    size = node.get_input_partial_shape(0)[axis]
    if firsts[0] < 0:
        return None if size.is_dynamic else firsts[0] + size.get_length()
    return firsts[0]


def _pass_identities(value: Any) -> Any:
    while value.get_node().get_type_name() == "Identity":
        value = value.get_node().input_value(0)
    return value


def _read_constant(value: Any) -> list[int] | None:
    node = value.get_node()
    if node.get_type_name() == "Broadcast":
        # The frontend's steps if a Slice has no `steps`: a 1 for each axis, and here there is one axis.
        node = node.input_value(0).get_node()
    return np.atleast_1d(node.data).tolist() if node.get_type_name() == "Constant" else None
