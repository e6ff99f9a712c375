"""Corrections: operations that the engine computes wrongly are replaced in its model, bodies included, before it is compiled.

Found with OpenVINO 2026.4; an entry can go when a newer engine is right without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_openvino.engine import import_own_names


def correct_model(model: Any) -> None:
    """Replaces, in the engine's model and its bodies, the operations that it computes wrongly."""
    from openvino import opset13  # the engine; loaded already

    for operation in model.get_ordered_ops():
        kind = operation.get_type_name()
        bodies = [operation.get_then_body(), operation.get_else_body()] if kind == "If" else []
        if kind in ("Loop", "TensorIterator"):
            bodies = [operation.get_function()]
        for body in bodies:
            correct_model(body)
        correct = _CORRECTIONS.get(kind)
        if correct is not None:
            correct(opset13, operation)


def _keep_infinities(opset: Any, operation: Any) -> None:
    """The engine returns the lowest float for a maximum of only -inf, and of no elements: its accumulator begins at the lowest
    float.

    2 max(x / 2) has the same value everywhere else, down to the last bit of the smallest denormal, and the lowest float doubled is -inf.
    """
    dtype = operation.get_input_element_type(0)
    if not dtype.is_real():
        _keep_reduced_axes(opset, operation)
        return
    half = opset.multiply(operation.input_value(0), opset.constant(0.5, dtype))
    reduce = opset.reduce_max if operation.get_type_name() == "ReduceMax" else opset.reduce_min
    reduced = reduce(half, operation.input_value(1), keep_dims=True)
    doubled = opset.multiply(reduced, opset.constant(2.0, dtype))
    if operation.get_attributes()["keep_dims"]:
        _replace(operation, doubled, [half, reduced])
    else:
        _replace(operation, opset.squeeze(doubled, operation.input_value(1)), [half, reduced, doubled])


def _order_ties(opset: Any, operation: Any) -> None:
    """The standard returns the lower index first among equal values; the frontend does not request this order from the engine."""
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
    """Returns the k of a TopK, limited to the number of elements: the engine reads beyond them, or ends the process."""
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
    """Raises the threshold by one or two floats, never to 0: the engine also drops boxes that overlap by exactly the threshold."""
    threshold = operation.input_value(3)
    dtype = threshold.get_element_type()
    above = opset.multiply(threshold, opset.constant(1 + 2**-23, dtype))
    positive = opset.maximum(above, opset.constant(2**-100, dtype))
    for index, each in enumerate((above, positive)):
        each.set_friendly_name(f"{operation.get_friendly_name()}/{index}")
    operation.input(3).replace_source_output(positive.output(0))


def _end_where_it_begins(opset: Any, operation: Any) -> None:
    """If the step of a Range leads away from its end, the Range has no elements; the engine counts elements as if the step led to
    the end, and divides by a step of 0.
    """
    start, stop, step = (operation.input_value(index) for index in range(3))
    sources = (start, stop, step)
    # The frontend also counts axes by a Range with inputs of several types; ONNX allows a single type.
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


def _keep_reduced_axes(opset: Any, operation: Any) -> None:
    """Lets a Reduce keep its axes, drops them by a Squeeze, and passes a Reshape before the Reduce over.

    If a size is 1, the engine drops a Reshape or Transpose behind a Reduce without kept axes, as if it restored these axes. It moves a
    Reshape that only inserts sizes of 1 behind the Reduce, and then miscounts negative axes and repeats kept axes.
    """
    keeps = operation.get_attributes()["keep_dims"]
    axes = _find_axes(operation)
    if axes is None:
        if not keeps:
            reduced = _reduce(opset, operation, operation.input_value(0), operation.input_value(1))
            _replace(operation, opset.squeeze(reduced, operation.input_value(1)), [reduced])
        return
    if operation.input_value(0).get_partial_shape().is_static and all(operation.get_input_shape(0)[axis] == 1 for axis in axes):
        _reshape_instead(opset, operation)
        return
    source, moved = _pass_reshapes(operation.input_value(0), axes)
    if keeps and moved == axes and source == operation.input_value(0) and min(_read_axes(operation), default=0) >= 0:
        return
    reduced = _reduce(opset, operation, source, opset.constant(moved, np.int64))
    operations = [reduced]
    if source != operation.input_value(0):
        shape = [1 if axis in axes else size for axis, size in enumerate(operation.get_input_shape(0))]
        operations.append(opset.reshape(reduced, opset.constant(shape, np.int64), special_zero=False))
    if not keeps:
        operations.append(opset.squeeze(operations[-1], opset.constant(axes, np.int64)))
    _replace(operation, operations[-1], operations[:-1])


def _reduce(opset: Any, operation: Any, source: Any, axes: Any) -> Any:
    return getattr(opset, _REDUCTIONS[operation.get_type_name()])(source, axes, keep_dims=True)


def _reshape_instead(opset: Any, operation: Any) -> None:
    """A reduction of sizes of 1 is its input in another shape; L1 and L2 make an absolute value of it."""
    source, before = operation.input_value(0), []
    if operation.get_type_name() in ("ReduceL1", "ReduceL2"):
        before.append(opset.absolute(source))
        source = before[0]
    shape = opset.constant(list(operation.get_output_shape(0)), np.int64)
    _replace(operation, opset.reshape(source, shape, special_zero=False), before)


def _read_axes(operation: Any) -> list[int]:
    return [int(axis) for axis in operation.input_value(1).get_node().data.flatten()]


def _find_axes(operation: Any) -> list[int] | None:
    rank = operation.input_value(0).get_partial_shape().rank
    if operation.input_value(1).get_node().get_type_name() != "Constant" or rank.is_dynamic:
        return None
    return sorted({axis % rank.get_length() for axis in _read_axes(operation)}) if rank.get_length() else None


def _pass_reshapes(source: Any, axes: list[int]) -> tuple[Any, list[int]]:
    """Returns the value before all operations that only insert or remove sizes of 1, and the reduced axes of that value."""
    node = source.get_node()
    while node.get_type_name() in ("Reshape", "Unsqueeze", "Squeeze"):
        if node.input_value(0).get_partial_shape().is_dynamic or source.get_partial_shape().is_dynamic:
            break
        before, after = list(node.get_input_shape(0)), list(source.get_shape())
        if [size for size in before if size != 1] != [size for size in after if size != 1]:
            break
        lasting = [axis for axis, size in enumerate(before) if size != 1]
        behind = [axis for axis, size in enumerate(after) if size != 1]
        axes = [own for own, axis in zip(lasting, behind, strict=True) if axis in axes]
        source = node.input_value(0)
        node = source.get_node()
    return source, axes


def _truncate_quotients(opset: Any, operation: Any) -> None:
    """The frontend requests that quotients of integers are rounded down; the engine's folding does so, its kernel does not."""
    operation.set_attribute("m_pythondiv", False)


def _pad_empty(opset: Any, operation: Any) -> None:
    """Pads the input of a recurrent layer of open length or batch to at least a step and a row, and cuts its results.

    For a length or batch of 0 the engine returns unwritten memory, or divides by 0. The frontend turns X, (length, batch, width), to
    (batch, length, width), and takes the lengths and the default states from the sizes of that.
    """
    turned = operation.input_value(0)
    shape = turned.get_partial_shape()
    turn = turned.get_node()
    if turn.get_type_name() != "Transpose" or not (shape[0].is_dynamic or shape[1].is_dynamic):
        return
    source = turn.input_value(0)
    sizes = opset.shape_of(source)
    lacking = opset.maximum(opset.subtract(opset.constant([1, 1, 0], np.int64), sizes), opset.constant([0], np.int64))
    nothing = opset.constant([0, 0, 0], np.int64)
    turn.input(0).replace_source_output(opset.pad(source, nothing, lacking, "constant", 0.0).output(0))
    length, batch = (opset.gather(sizes, opset.constant([axis], np.int64), opset.constant(0, np.int64)) for axis in (0, 1))
    rows = opset.gather(lacking, opset.constant([1, 2, 2], np.int64), opset.constant(0, np.int64))
    states = range(1, 3 if operation.get_type_name() == "LSTMSequence" else 2)
    for index in states:
        state = operation.input_value(index)
        if state.get_node().get_type_name() != "Broadcast":
            operation.input(index).replace_source_output(opset.pad(state, nothing, rows, "constant", 0.0).output(0))
    zeros, ones, rows_axis = (opset.constant(value, np.int64) for value in ([0], [1], [0]))
    is_still = opset.equal(length, zeros)
    for index in (0, *states):
        output = operation.output(index)
        readers = list(output.get_target_inputs())
        if index == 0:
            steps = opset.concat([batch, length], 0)
            cut = opset.slice(
                output, opset.constant([0, 0], np.int64), steps, opset.constant([1, 1], np.int64), opset.constant([0, 2], np.int64)
            )
        else:
            last = opset.select(is_still, operation.input_value(index), output)
            cut = opset.slice(last, zeros, batch, ones, rows_axis)
        cut.set_friendly_name(f"{operation.get_friendly_name()}/{index}")
        for reader in readers:
            reader.replace_source_output(cut.output(0))


def _fold_scales(opset: Any, operation: Any) -> None:
    """Dequantizes weights ahead if their scales differ along the summed axis: the engine applies such scales to the columns."""
    transposed = operation.get_attributes()
    for index, is_transposed in enumerate((transposed["transpose_a"], transposed["transpose_b"])):
        weight = operation.input_value(index)
        shape = weight.get_partial_shape()
        if shape.is_dynamic or len(shape) < 2:
            continue
        rank = len(shape)
        summed = rank - 1 if is_transposed == bool(index) else rank - 2
        if _is_dequantized(weight) and not _suits_columns(weight, summed, index, rank):
            operation.input(index).replace_source_output(_fold(opset, weight).output(0))


def _fold_gathered_scales(opset: Any, operation: Any) -> None:
    """Dequantizes a table ahead if scales differ within a row: the engine applies them to the rows, and reads beyond them."""
    table = operation.input_value(0)
    shape = table.get_partial_shape()
    if shape.is_static and len(shape) >= 1 and _is_dequantized(table) and not _suits_columns(table, len(shape) - 1, 1, len(shape)):
        operation.input(0).replace_source_output(_fold(opset, table).output(0))


_DEQUANTIZING = ("Convert", "Divide", "Multiply", "Reshape", "Squeeze", "Subtract", "Transpose", "Unsqueeze")


def _is_dequantized(weight: Any) -> bool:
    """Says whether a value is made of constants alone, by a product or quotient of a cast integer."""
    waiting, kinds, has_integers = [weight.get_node()], set(), False
    while waiting:
        node = waiting.pop()
        kind = node.get_type_name()
        if kind == "Constant":
            has_integers = has_integers or not node.get_element_type().is_real()
            continue
        if kind not in _DEQUANTIZING:
            return False
        kinds.add(kind)
        waiting += [
            value.get_node()
            for value in node.input_values()[: 1 if kind in ("Reshape", "Squeeze", "Transpose", "Unsqueeze") else 2]
        ]
    return has_integers and bool(kinds & {"Multiply", "Divide"})


def _suits_columns(weight: Any, summed: int, index: int, rank: int) -> bool:
    """Says whether a weight has a single scale, or scales of columns: then the engine is right, and keeps the weight packed."""
    node, axis = weight.get_node(), summed
    while node.get_type_name() in ("Convert", "Transpose"):
        if node.get_type_name() == "Transpose":
            axis = int(node.input_value(1).get_node().data.reshape(-1)[axis])
        node = node.input_value(0).get_node()
    is_grouped = node.get_type_name() == "Reshape"
    if is_grouped:
        # Blocks along the summed axis: (blocks, elements of a block) beside the columns; all elements of a block share a scale.
        before, after = list(node.get_input_shape(0)), list(node.get_output_shape(0))
        if len(before) != 3 or len(after) != 2 or before[axis] * before[axis + 1] != after[axis]:
            return False
        axis += 1
        node = node.input_value(0).get_node()
    scales = []
    while node.get_type_name() in ("Multiply", "Subtract"):
        sides = [value.get_node() for value in node.input_values()]
        are_scales = list(map(_is_scale, sides))
        if sum(are_scales) != 1:
            return False
        scales.append(list(sides[are_scales.index(True)].get_output_shape(0)))
        node = sides[are_scales.index(False)]
    if node.get_type_name() != "Convert":
        return False
    inner = len(node.get_output_shape(0))
    aligned = [[1] * (inner - len(sizes)) + sizes for sizes in scales]
    if all(size == 1 for sizes in aligned for size in sizes):
        return True
    return index == 1 and rank == 2 and inner == (3 if is_grouped else 2) and all(sizes[axis] == 1 for sizes in aligned)


def _is_scale(node: Any) -> bool:
    """Says whether a node is a constant, or one integer; several cast integers are weights or zero points."""
    while node.get_type_name() in ("Reshape", "Unsqueeze"):
        node = node.input_value(0).get_node()
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
        return node.get_type_name() == "Constant" and len(node.get_output_shape(0)) == 0
    return bool(node.get_type_name() == "Constant")


def _fold(opset: Any, value: Any) -> Any:
    """Returns a constant of the value of a constant expression; the engine computes it, right without a product behind it."""
    engine = import_own_names()
    dtype = value.get_element_type()
    array = engine.Core().compile_model(
        engine.Model([opset.convert(value, "f32")], []), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )([])[0]
    return opset.constant(array, dtype)


def _gather_channel(opset: Any, operation: Any) -> None:
    """Repeats a single channel by a Gather, in place of Concat, Expand or Tile, which are wrong there if channels are last."""
    source = operation.input_value(0)
    shape = source.get_partial_shape()
    if shape.rank.is_dynamic or shape.rank.get_length() < 4 or shape[1].is_dynamic or shape[1].get_length() != 1:
        return
    rank = shape.rank.get_length()
    places = _place_copies(opset, operation, rank)
    if places is None:
        return
    channels = opset.gather(source, places, opset.constant(1, np.int64))
    if operation.get_type_name() == "Concat":
        _replace(operation, channels, [places])
        return
    for index, each in enumerate((places, channels)):
        each.set_friendly_name(f"{operation.get_friendly_name()}/{index}")
    operation.input(0).replace_source_output(channels.output(0))
    if operation.get_type_name() == "Tile":
        repeats = operation.input_value(1)
        length = repeats.get_partial_shape()[0].get_length()
        is_channel = np.arange(length) == length + 1 - rank
        kept_repeats = opset.select(opset.constant(is_channel), opset.constant(1, repeats.get_element_type()), repeats)
        kept_repeats.set_friendly_name(f"{operation.get_friendly_name()}/2")
        operation.input(1).replace_source_output(kept_repeats.output(0))


def _place_copies(opset: Any, operation: Any, rank: int) -> Any:
    """Returns a 0 for each copy that an operation makes of its only channel; None if it makes no copies."""
    kind = operation.get_type_name()
    if kind == "Concat":
        sources = {(each.get_node().get_friendly_name(), each.get_index()) for each in operation.input_values()}
        count = operation.get_input_size()
        return (
            opset.constant([0] * count, np.int64) if len(sources) == 1 < count and operation.get_attributes()["axis"] == 1 else None
        )
    sizes = operation.input_value(1)
    length = sizes.get_partial_shape()
    if length.is_dynamic or not rank - 1 <= length[0].get_length() <= rank:
        return None
    position = length[0].get_length() - (rank - 1)
    if sizes.get_node().get_type_name() == "Constant":
        count = int(sizes.get_node().data[position])
        return opset.constant([0] * count, np.int64) if count > 1 else None
    size = opset.gather(sizes, opset.constant([position], np.int64), opset.constant(0, np.int64))
    return opset.broadcast(opset.constant(0, np.int64), size)


def _replace(operation: Any, last: Any, before: list[Any]) -> None:
    """Replaces an operation by several operations. Their names begin with its name, so that profiles find its node."""
    from openvino.utils import replace_node  # the engine; loaded already

    name = operation.get_friendly_name()
    last.set_friendly_name(name)
    for index, each in enumerate(before):
        each.set_friendly_name(f"{name}/{index}")
    replace_node(operation, last)


_REDUCTIONS: Mapping[str, str] = MappingProxyType(
    {
        **{f"Reduce{name}": f"reduce_{name.lower()}" for name in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum")},
        **{f"ReduceLogical{name}": f"reduce_logical_{name.lower()}" for name in ("And", "Or")},
    }
)
"""The engine's reductions, and the functions that make them."""

_CORRECTIONS: dict[str, Callable[[Any, Any], None]] = {
    **dict.fromkeys(("GRUSequence", "LSTMSequence", "RNNSequence"), _pad_empty),
    "Divide": _truncate_quotients,
    "Gather": _fold_gathered_scales,
    "MatMul": _fold_scales,
    "Broadcast": _gather_channel,
    "Concat": _gather_channel,
    "NonMaxSuppression": _keep_overlaps_at_threshold,
    "Range": _end_where_it_begins,
    **dict.fromkeys(_REDUCTIONS, _keep_reduced_axes),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), _keep_infinities),
    "Tile": _gather_channel,
    "TopK": _order_ties,
}
