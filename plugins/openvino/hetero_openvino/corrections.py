"""Corrections of what the engine computes wrongly: operations of its model that are replaced before it is compiled.

Only those of the model itself; bodies of If, Loop and Scan stay as they are, and `known_errors` refuses what would be wrong there.
Found with OpenVINO 2026.4; an entry can go when a newer engine is right without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def correct_model(model: Any) -> None:
    """Replaces, in the engine's model, the operations that it computes wrongly."""
    from openvino import opset13  # the engine; loaded already

    for operation in model.get_ordered_ops():
        correct = _CORRECTIONS.get(operation.get_type_name())
        if correct is not None:
            correct(opset13, operation)


def _keep_infinities(opset: Any, operation: Any) -> None:
    """A maximum of nothing but -inf is the lowest float there, and of no elements, too: the accumulator begins at it.

    2 max(x / 2) has the same value everywhere else, down to the last bit of the smallest denormal, and the lowest float doubled is -inf.
    """
    dtype = operation.get_input_element_type(0)
    if not dtype.is_real():
        return
    half = opset.multiply(operation.input_value(0), opset.constant(0.5, dtype))
    reduce = opset.reduce_max if operation.get_type_name() == "ReduceMax" else opset.reduce_min
    reduced = reduce(half, operation.input_value(1), keep_dims=operation.get_attributes()["keep_dims"])
    _replace(operation, opset.multiply(reduced, opset.constant(2.0, dtype)), [half, reduced])


def _order_ties(opset: Any, operation: Any) -> None:
    """Among equal values the standard returns the lower index first; the frontend does not ask the engine for that."""
    attributes = operation.get_attributes()
    stable = opset.topk(
        operation.input_value(0),
        _bound_count(opset, operation, attributes["axis"]),
        attributes["axis"],
        attributes["mode"],
        "value" if attributes["sort"] == "none" else attributes["sort"],
        attributes["index_element_type"],
        stable=True,
    )
    _replace(operation, stable, [])


def _bound_count(opset: Any, operation: Any, axis: int) -> Any:
    """Returns how many values TopK returns, no more than there are: the engine reads beyond them, or ends the process."""
    values, count = operation.input_value(0), operation.input_value(1)
    shape = values.get_partial_shape()
    is_constant = count.get_node().get_type_name() == "Constant"
    if is_constant and shape.rank.is_static and shape[axis].is_static and count.get_node().data.item() <= shape[axis].get_length():
        return count
    dtype = count.get_element_type()
    sizes = opset.convert(opset.shape_of(values), dtype)
    size = opset.gather(sizes, opset.constant(axis, dtype), opset.constant(0, dtype))
    return opset.minimum(count, size)


def _keep_overlaps_at_threshold(opset: Any, operation: Any) -> None:
    """The standard drops boxes that overlap by more than the threshold; the engine those that overlap by as much, too.

    So its threshold becomes the next float or the one after it, and never 0.
    """
    threshold = operation.input_value(3)
    dtype = threshold.get_element_type()
    above = opset.multiply(threshold, opset.constant(1 + 2**-23, dtype))
    positive = opset.maximum(above, opset.constant(2**-100, dtype))
    for index, each in enumerate((above, positive)):
        each.set_friendly_name(f"{operation.get_friendly_name()}/{index}")
    operation.input(3).replace_source_output(positive.output(0))


def _end_where_it_begins(opset: Any, operation: Any) -> None:
    """A Range whose step leads away from its end has no elements; the engine counts as if it led there, and divides by a step of 0."""
    start, stop, step = (operation.input_value(index) for index in range(3))
    sources = (start, stop, step)
    # The frontend counts axes by a Range of its own, of several types; the standard's has one.
    is_own = len({source.get_element_type().get_type_name() for source in sources}) > 1
    if is_own or all(source.get_node().get_type_name() == "Constant" for source in sources):
        return
    zero = opset.constant(0, step.get_element_type())
    distance = opset.convert(opset.subtract(stop, start), step.get_element_type())
    leads_there = opset.logical_and(
        opset.equal(opset.greater(distance, zero), opset.greater(step, zero)), opset.not_equal(step, zero)
    )
    end = opset.select(leads_there, stop, start)
    moving = opset.select(opset.equal(step, zero), opset.constant(1, step.get_element_type()), step)
    operation.input(1).replace_source_output(end.output(0))
    operation.input(2).replace_source_output(moving.output(0))
    for index, each in enumerate((end, moving)):
        each.set_friendly_name(f"{operation.get_friendly_name()}/{index}")


def _keep_slopes_last(opset: Any, operation: Any) -> None:
    """The standard broadcasts slopes of one dimension along the last axis; the engine takes them for those of the channels."""
    slopes = operation.input_value(1)
    rank = slopes.get_partial_shape().rank
    if rank.is_static and rank.get_length() == 1:
        raised = opset.unsqueeze(slopes, opset.constant(0, np.int64))
        raised.set_friendly_name(f"{operation.get_friendly_name()}/0")
        operation.input(1).replace_source_output(raised.output(0))


def _replace(operation: Any, last: Any, before: list[Any]) -> None:
    """Puts new operations into the place of one; their names begin with its own, by which profiles find its node."""
    from openvino.utils import replace_node  # the engine; loaded already

    name = operation.get_friendly_name()
    last.set_friendly_name(name)
    for index, each in enumerate(before):
        each.set_friendly_name(f"{name}/{index}")
    replace_node(operation, last)


_CORRECTIONS: dict[str, Callable[[Any, Any], None]] = {
    "NonMaxSuppression": _keep_overlaps_at_threshold,
    "PRelu": _keep_slopes_last,
    "Range": _end_where_it_begins,
    "ReduceMax": _keep_infinities,
    "ReduceMin": _keep_infinities,
    "TopK": _order_ties,
}
