"""Mutations of a model's nodes, as by a careless exporter: missing inputs, swapped attributes, odd ranks, calls, odd names."""

from __future__ import annotations

from random import Random

import onnx
import onnx.helper
import onnx.numpy_helper
from operator_models import INTEGERS, NAMES, SIZES, TEXTS, list_schemas, make_operator_model


def mutate_nodes(random: Random, content: bytes) -> bytes:
    """Returns the model with up to three changed nodes or values."""
    model = onnx.ModelProto.FromString(content)
    for _ in range(random.choice((1, 1, 2, 3))):
        if model.graph.node:
            random.choice(CHANGES)(random, model)
    return model.SerializeToString(deterministic=True)


def drop_input(random: Random, model: onnx.ModelProto) -> None:
    """Removes an input of a node, all inputs, or the name of an input."""
    node = random.choice(model.graph.node)
    if not node.input:
        return
    match random.randrange(4):
        case 0:
            del node.input[:]
        case 1:
            del node.input[-1]
        case 2:
            node.input[random.randrange(len(node.input))] = ""
        case _:
            del node.input[random.randrange(len(node.input))]


def add_input(random: Random, model: onnx.ModelProto) -> None:
    """Gives a node an additional input, or replaces an input by another value of the graph."""
    node = random.choice(model.graph.node)
    known = [*(value.name for value in model.graph.input), *(tensor.name for tensor in model.graph.initializer)]
    if known and node.input and random.random() < 0.6:
        node.input[random.randrange(len(node.input))] = random.choice(known)
    elif known:
        node.input.append(random.choice(known))


def swap_attributes(random: Random, model: onnx.ModelProto) -> None:
    """Replaces the attributes of a node by those of another node, removes an attribute, or changes a number in it."""
    node = random.choice(model.graph.node)
    match random.randrange(3):
        case 0:
            donor = random.choice(model.graph.node)
            attributes = [onnx.AttributeProto.FromString(each.SerializeToString()) for each in donor.attribute]
            del node.attribute[:]
            node.attribute.extend(attributes)
        case 1 if node.attribute:
            del node.attribute[random.randrange(len(node.attribute))]
        case _ if node.attribute:
            attribute = random.choice(node.attribute)
            if attribute.ints:
                attribute.ints[random.randrange(len(attribute.ints))] = random.choice(INTEGERS)
            elif attribute.HasField("i"):
                attribute.i = random.choice(INTEGERS)
            elif attribute.HasField("s"):
                attribute.s = random.choice(TEXTS).encode()


def swap_operator(random: Random, model: onnx.ModelProto) -> None:
    """Replaces the operator of a node."""
    schema = random.choice(list_schemas())
    node = random.choice(model.graph.node)
    node.op_type, node.domain = schema.name, schema.domain


def change_rank(random: Random, model: onnx.ModelProto) -> None:
    """Declares a random rank and shape for an input of the graph."""
    if not model.graph.input:
        return
    proto = random.choice(model.graph.input).type
    if proto.HasField("tensor_type"):
        del proto.tensor_type.shape.dim[:]
        rank = random.choice((0, 1, 2, 3, 4, 5, 6, 9, 64, 65))
        for _ in range(rank):
            proto.tensor_type.shape.dim.add(dim_value=random.choice(SIZES) if rank < 9 else 1)


def change_constant(random: Random, model: onnx.ModelProto) -> None:
    """Sets an element of a constant to an extreme value, or makes the constant empty."""
    if not model.graph.initializer:
        return
    tensor = random.choice(model.graph.initializer)
    if tensor.data_location == tensor.EXTERNAL or tensor.data_type in (0, tensor.STRING):
        return
    try:
        array = onnx.numpy_helper.to_array(tensor).copy()
    except (ValueError, TypeError):
        return
    if random.random() < 0.2:
        array = array.reshape(-1)[:0]
    elif array.size and array.dtype.kind == "i":
        array.reshape(-1)[random.randrange(array.size)] = random.choice((-1, 0, 1, -(1 << (8 * array.itemsize - 1))))
    elif array.size and array.dtype.kind == "f":
        array.reshape(-1)[random.randrange(array.size)] = random.choice(
            (0.0, float("inf"), float("nan"), 1e30 if array.itemsize > 2 else 1)
        )
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def wrap_in_function(random: Random, model: onnx.ModelProto) -> None:
    """Moves a node into a function of the model, and replaces the node by a call."""
    node = random.choice(model.graph.node)
    if any(attribute.HasField("g") for attribute in node.attribute):
        return
    name = f"F{len(model.functions)}"
    inner = onnx.NodeProto.FromString(node.SerializeToString())
    inputs, outputs = [f"a{index}" for index in range(len(node.input))], [f"b{index}" for index in range(len(node.output))]
    del inner.input[:], inner.output[:]
    inner.input.extend(formal if actual else "" for formal, actual in zip(inputs, node.input, strict=True))
    inner.output.extend(formal if actual else "" for formal, actual in zip(outputs, node.output, strict=True))
    model.functions.append(onnx.helper.make_function("local.f", name, inputs, outputs, [inner], model.opset_import))
    if all(entry.domain != "local.f" for entry in model.opset_import):
        model.opset_import.add(domain="local.f", version=1)
    node.op_type, node.domain = name, "local.f"
    del node.attribute[:]


def rename_value(random: Random, model: onnx.ModelProto) -> None:
    """Renames a value everywhere in the root graph."""
    names = [value for node in model.graph.node for value in (*node.input, *node.output) if value]
    if not names:
        return
    old, new = random.choice(names), random.choice(NAMES) + random.choice(("", "1"))
    for node in model.graph.node:
        for values in (node.input, node.output):
            for index, value in enumerate(values):
                if value == old:
                    values[index] = new
    for entry in (*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer):
        if entry.name == old:
            entry.name = new


def append_operator(random: Random, model: onnx.ModelProto) -> None:
    """Appends a random operator after a value of the graph."""
    drawn = make_operator_model(random)
    values = [value for node in model.graph.node for value in node.output if value]
    (node,) = drawn.graph.node
    if not values or not node.input:
        return
    number = len(model.graph.node)
    renamed = {tensor.name: f"c{number}_{index}" for index, tensor in enumerate(drawn.graph.initializer)}
    for tensor in drawn.graph.initializer:
        tensor.name = renamed[tensor.name]
        model.graph.initializer.append(tensor)
    for index, value in enumerate(node.input):
        node.input[index] = renamed.get(value, random.choice(values) if value else "")
    for index in range(len(node.output)):
        node.output[index] = f"o{number}_{index}"
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.output[index]))
    model.graph.node.append(node)


CHANGES = (
    drop_input,
    drop_input,
    add_input,
    swap_attributes,
    swap_attributes,
    swap_operator,
    change_rank,
    change_constant,
    change_constant,
    wrap_in_function,
    rename_value,
    append_operator,
    append_operator,
)
