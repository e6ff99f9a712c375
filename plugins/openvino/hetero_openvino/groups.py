"""Convolutions of the channels of one value, concatenated: the engine makes one convolution with groups of them, whatever their order.

That is right where a Split along the channels has one convolution for each output, concatenated along the channels in the same order. In
another order, of some outputs alone or along another axis the values are wrong, or the engine fails to compile. OpenVINO 2026.4.1, no case:
float32[1,3,18,12] split in three, each convolved by [2,1,3,3], the second result before the first.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from hetero_core.network.graph import Graph, Node

_CHANNELS = 1
_PASSING = frozenset({"Dropout", "Identity"})
_PARTING = frozenset({"Slice", "Split"})


def part_channels_by_gather(opset: Any, concat: Any) -> None:
    """Lets the convolutions that a Concat reads take their channels by Gathers, of which the engine makes no groups."""
    readers = [_pass_identities(each).get_node() for each in concat.input_values()]
    if any(each.get_type_name() != "Convolution" for each in readers):
        return
    if _is_in_order(concat, [_pass_identities(each.input_value(0)) for each in readers]):
        return
    convolutions = {each.get_friendly_name(): each for each in readers}
    for convolution in convolutions.values():
        part, width = _pass_identities(convolution.input_value(0)), convolution.get_input_partial_shape(1)[1].get_length()
        first = _find_first_channel(part, width)
        if first is None:
            continue
        places = opset.constant(np.arange(first, first + width), np.int64)
        axis = opset.constant(_CHANNELS, np.int64)
        channels = opset.gather(part.get_node().input_value(0), places, axis)
        for index, each in enumerate((places, axis, channels)):
            each.set_friendly_name(f"{convolution.get_friendly_name()}/{index}")
        convolution.input(0).replace_source_output(channels.output(0))


def _is_in_order(concat: Any, parts: list[Any]) -> bool:
    """Says whether the parts are all outputs of one Split along the channels, in order, and so are joined."""
    split = parts[0].get_node()
    if split.get_type_name() not in ("Split", "VariadicSplit") or concat.get_attributes()["axis"] != _CHANNELS:
        return False
    names = {part.get_node().get_friendly_name() for part in parts}
    return len(names) == 1 and [part.get_index() for part in parts] == list(range(split.get_output_size()))


def _find_first_channel(part: Any, width: int) -> int | None:
    """Returns the first channel of a part, `width` channels wide, of a value; None where it is none, or comes with the run."""
    node = part.get_node()
    kind = node.get_type_name()
    if kind not in ("Slice", "Split", "VariadicSplit"):
        return None
    values = [_read_constant(each) for each in node.input_values()[1:]]
    if kind == "Slice":
        firsts, _, steps, axes = (*values, [0])[:4]
        return _count_from_front(node, firsts[0]) if axes == [_CHANNELS] and steps == [1] and firsts is not None else None
    if values[0] != [_CHANNELS]:
        return None
    if kind == "Split":
        return part.get_index() * width
    return None if values[1] is None else [0, *accumulate(values[1])][part.get_index()]


def _pass_identities(value: Any) -> Any:
    while value.get_node().get_type_name() == "Identity":
        value = value.get_node().input_value(0)
    return value


def _read_constant(value: Any) -> list[int] | None:
    node = value.get_node()
    if node.get_type_name() == "Broadcast":
        # The frontend's steps where a Slice names none: a 1 for each axis, and here there is one axis.
        node = node.input_value(0).get_node()
    return np.atleast_1d(node.data).tolist() if node.get_type_name() == "Constant" else None


def _count_from_front(node: Any, first: int) -> int | None:
    channels = node.get_input_partial_shape(0)[_CHANNELS]
    if first >= 0:
        return first
    return None if channels.is_dynamic else first + channels.get_length()


def find_group_error(node: Node, graph: Graph, *, in_body: bool = False) -> str | None:
    """Returns why a Concat is refused: in a body nothing is put right, and neither is where the parts of a Split come with the run."""
    convolutions = {_find_producer(value, graph) for value in node.inputs}
    if any(each is None or each.op_type != "Conv" for each in convolutions):
        return None
    parting = {_find_producer(each.inputs[0], graph) for each in convolutions if each is not None}
    if any(each is None or each.op_type not in _PARTING for each in parting):
        return None
    sizes = {value for each in parting if each is not None for value in each.inputs[1:] if value}
    if in_body or not sizes <= graph.initializers.keys():
        return "OpenVINO makes one convolution with groups of what this Concat reads, and not always the right one"
    return None


def _find_producer(value: str, graph: Graph) -> Node | None:
    while (index := graph.index_of_producer.get(value)) is not None:
        producer = graph.nodes[index]
        if producer.op_type not in _PASSING:
            return producer
        value = producer.inputs[0]
    return None
