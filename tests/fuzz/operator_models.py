"""Random single-operator models from the operator's schema: any version, types, ranks, attributes and arity, valid or nearly valid."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

DOMAINS = ("", "ai.onnx.ml")
RANKS = (0, 1, 1, 2, 2, 3, 4, 4, 5)
ODD_RANKS = (7, 33, 64, 65)
SIZES = (0, 1, 1, 2, 2, 3, 4, 5)
INTEGERS = (-(1 << 63), -(1 << 31), -7, -2, -1, 0, 0, 1, 1, 2, 3, 4, 8, 64, 1 << 31, (1 << 63) - 1)
FLOATS = (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, float("inf"), float("nan"))
TEXTS = (
    *(
        "",
        "SAME_UPPER",
        "VALID",
        "NOTSET",
        "linear",
        "nearest",
        "cubic",
        "constant",
        "edge",
        "reflect",
        "wrap",
        "sum",
        "mean",
        "none",
    ),
    *(
        "ij,jk->ik",
        "i->",
        "forward",
        "reverse",
        "bidirectional",
        "Tanh",
        "Relu",
        "DCR",
        "CRD",
        "L2",
        "SOFTMAX",
        "LINEAR",
        "\0",
        "é",
    ),
)
NAMES = ("v", "", "a/b", "x y", "\0", "é", "..", "v" * 300, "'", '"', "{}", "%s", "\n")


@cache
def list_schemas() -> tuple[Any, ...]:
    """Returns every version of every operator, in a fixed order."""
    schemas = [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain in DOMAINS]
    return tuple(sorted(schemas, key=lambda schema: (schema.domain, schema.name, schema.since_version)))


def make_operator_model(random: Random) -> onnx.ModelProto:
    """Returns a model of a single operator, most likely with types that the operator supports."""
    schema = random.choice(list_schemas())
    inputs, initializers, names = [], [], []
    rank = random.choice(ODD_RANKS) if random.random() < 0.02 else random.choice(RANKS)
    shape = [random.choice(SIZES) for _ in range(rank)] if rank < 7 else [1] * rank
    types = {each.type_param_str: random.choice(sorted(each.allowed_type_strs)) for each in schema.type_constraints}
    for index in range(draw_count(random, schema.min_input, schema.max_input)):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)] if schema.inputs else None
        if random.random() < 0.06:
            names.append("")
            continue
        name = f"{random.choice(NAMES)}{index}" if random.random() < 0.1 else f"x{index}"
        names.append(name)
        text = "tensor(float)" if formal is None else types.get(formal.type_str, formal.type_str)
        own = shape if random.random() < 0.6 else [random.choice(SIZES) for _ in range(random.choice(RANKS))]
        if text.startswith("tensor(") and len(own) <= 64 and random.random() < 0.45:
            initializers.append(make_constant(random, name, text, own))
        else:
            inputs.append(make_input(name, text, own))
    outputs = [f"y{index}" for index in range(max(draw_count(random, schema.min_output, schema.max_output), 1))]
    node = onnx.helper.make_node(schema.name, names, outputs, domain=schema.domain)
    for name in sorted(schema.attributes):
        if schema.attributes[name].required or random.random() < 0.4:
            add_attribute(random, node, name, schema.attributes[name])
    graph = onnx.helper.make_graph(
        [node], "g", inputs, [onnx.helper.make_empty_tensor_value_info(name) for name in outputs], initializers
    )
    opsets = [onnx.helper.make_opsetid(schema.domain, schema.since_version)]
    if schema.domain:
        opsets.append(onnx.helper.make_opsetid("", 21))
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def draw_count(random: Random, least: int, most: int) -> int:
    """Returns a number of inputs or outputs; 10 % of the numbers violate the schema."""
    if random.random() < 0.1:
        return random.choice((0, max(least - 1, 0), min(most, 8) + 1))
    return random.randint(least, max(least, min(most, least + 3)))


def make_input(name: str, text: str, shape: list[int]) -> onnx.ValueInfoProto:
    """Returns an input of a type in the spelling of schemas."""
    inner, depth = text, 0
    while inner.startswith("seq("):
        inner, depth = inner[4:-1], depth + 1
    is_optional = inner.startswith("optional(")
    if is_optional:
        inner = inner[9:-1]
        if inner.startswith("seq("):
            inner, depth = inner[4:-1], depth + 1
    element = inner[7:-1] if inner.startswith("tensor(") else "float"
    proto = onnx.helper.make_tensor_type_proto(number_of_element(element), shape)
    for _ in range(depth):
        proto = onnx.helper.make_sequence_type_proto(proto)
    if is_optional:
        proto = onnx.helper.make_optional_type_proto(proto)
    return onnx.helper.make_value_info(name, proto)


def number_of_element(text: str) -> int:
    """Returns the ONNX number of an element type in the spelling of schemas."""
    return int(onnx.TensorProto.DataType.Value(text.upper()))


def make_constant(random: Random, name: str, text: str, shape: list[int]) -> onnx.TensorProto:
    """Returns a constant of small numbers, sometimes of the extremes of its type."""
    number = number_of_element(text[7:-1])
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    count = int(np.prod(shape))
    if number == onnx.TensorProto.STRING:
        return onnx.helper.make_tensor(name, number, shape, [random.choice(TEXTS).encode() for _ in range(count)])
    drawn = [random.choice((-2, -1, 0, 1, 1, 2, 3)) for _ in range(count)]
    if np.issubdtype(dtype, np.integer) and random.random() < 0.1:
        limits = np.iinfo(dtype)
        drawn = [random.choice((int(limits.min), int(limits.max), 1, 0)) for _ in range(count)]
    array = np.array([max(value, 0) for value in drawn] if np.issubdtype(dtype, np.unsignedinteger) else drawn, np.float64)
    if np.issubdtype(dtype, np.integer):
        array = np.array(drawn, object)
        if np.issubdtype(dtype, np.unsignedinteger):
            array = abs(array)
    with np.errstate(all="ignore"):
        return onnx.numpy_helper.from_array(array.astype(dtype).reshape(shape), name)


def add_attribute(random: Random, node: onnx.NodeProto, name: str, formal: Any) -> None:
    """Gives a node an attribute of the schema's kind, rarely of another kind."""
    kind = int(formal.type.value)
    if random.random() < 0.05:
        kind = random.choice((1, 2, 3, 4, 6, 7, 8))
    attribute = node.attribute.add(name=name, type=kind)
    match kind:
        case 1:
            attribute.f = random.choice(FLOATS)
        case 2:
            attribute.i = random.choice(INTEGERS)
        case 3:
            attribute.s = random.choice(TEXTS).encode()
        case 4:
            attribute.t.CopyFrom(make_constant(random, "t", "tensor(float)", [random.choice((0, 1, 2))]))
        case 5:
            body = make_operator_model(random).graph
            attribute.g.CopyFrom(body)
        case 6:
            attribute.floats.extend(random.choice(FLOATS) for _ in range(random.choice(SIZES)))
        case 7:
            attribute.ints.extend(random.choice(INTEGERS) for _ in range(random.choice(SIZES)))
        case 8:
            attribute.strings.extend(random.choice(TEXTS).encode() for _ in range(random.choice(SIZES)))
        case 13:
            attribute.tp.CopyFrom(onnx.helper.make_tensor_type_proto(1, [2]))
        case _:
            node.attribute.remove(attribute)
