"""Random nodes, valid and invalid, for the tests of `hetero_core.network.operators`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from hetero_core.network.operators import OPERATORS, Operator

SIZES = (1, 1, 2, 3, 4, "N")
LISTED = ("Reshape", "Squeeze", "Unsqueeze", *(name for name in OPERATORS if name.startswith("Reduce")))
"""The operators with a list of numbers as second input."""
WITH_CONSTANTS = (
    *("ConvTranspose", "DepthToSpace", "Expand", "InstanceNormalization", "Pad", "RMSNormalization", "Resize", "Slice"),
    *("SpaceToDepth", "Split", "Tile"),
)
"""The operators with random but compatible constants as further inputs."""
UNDRAWN = (
    *("Attention", "BitShift", "ConstantOfShape", "DynamicQuantizeLinear", "GRU", "GroupNormalization", "LRN", "LSTM", "OneHot"),
    *("QLinearConv", "QLinearMatMul", "RNN", "Range", "TopK", "Upsample"),
)
"""The operators with requirements that the random draws do not meet."""
WINDOWS = ("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")


def list_versions(operators: Mapping[str, Operator]) -> list[tuple[str, int]]:
    """Returns the operators of ONNX's default domain, each with the versions that its rules cover."""
    return sorted(
        (schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and schema.name in operators and schema.since_version >= operators[schema.name].since
    )


def draw_shape(draw: random.Random, least: int = 0, most: int = 4) -> list[int | str]:
    return [draw.choice(SIZES) for _ in range(draw.randint(least, most))]


def draw_shapes(draw: random.Random, op_type: str, count: int, attributes: dict[str, Any]) -> list[list[Any]]:
    """Returns input shapes, mostly compatible with each other."""
    if op_type in WINDOWS:
        image = [draw.choice((1, 2, "N")), draw.choice((2, 4)), *[draw.choice((3, 5, 8)) for _ in range(draw.choice((1, 2, 2, 3)))]]
        group = attributes.get("group", 1)
        weight = [4, max(image[1] // group, 1), *attributes.get("kernel_shape", [draw.choice((1, 2, 3)) for _ in image[2:]])]
        return [image, weight, [4]][:count]
    base = draw_shape(draw)
    if op_type in ("MatMul", "Gemm"):
        first: Any
        m, k, n = (draw.choice((2, 3, "N")) for _ in range(3))
        first, second = ([k, m] if attributes.get("transA") else [m, k]), ([n, k] if attributes.get("transB") else [k, n])
        batch = draw_shape(draw, 0, 2) if op_type == "MatMul" else []
        first_input: list[Any] = draw.choice(([*batch, *first], [k])) if op_type == "MatMul" else first
        return [first_input, second, [1]][:count]
    if op_type == "Einsum":
        sizes = {letter: draw.choice((1, 2, 3, "N")) for letter in "ijkl"}
        terms = ["".join(draw.sample("ijkl", draw.randint(0, 3))) for _ in range(count)]
        letters = sorted(set("".join(terms)))
        output = draw.choice(("", "->" + "".join(draw.sample(letters, draw.randint(0, len(letters))))))
        attributes["equation"] = ",".join(terms) + output
        return [[sizes[letter] for letter in term] for term in terms]
    if op_type == "BatchNormalization":
        base = [*draw_shape(draw, 1, 1), draw.choice((2, 3)), *draw_shape(draw)]
        return [base, *[[base[1]]] * (count - 1)]
    if op_type == "Concat":
        return [
            [draw.choice((1, 2, 3)) if axis == abs(attributes.get("axis", 0)) else size for axis, size in enumerate(base)]
            for _ in range(count)
        ]
    if op_type in ("Gather", "LayerNormalization", "Dropout"):
        return [base, *[draw_shape(draw, 0, 2) for _ in range(count - 1)]]
    further = [[draw.choice((size, size, 1)) for size in base[draw.randint(0, 1) :]] for _ in range(count - 1)]
    return [base, *further]


def draw_attributes(draw: random.Random, schema: Any) -> dict[str, Any]:
    rank = draw.choice((1, 2, 2, 3))
    values: dict[str, Any] = {
        "axis": draw.randint(-3, 3),
        "axes": [draw.randint(-2, 3) for _ in range(draw.randint(1, 2))],
        "perm": draw.sample(range(rank), rank),
        "kernel_shape": [draw.randint(1, 3) for _ in range(rank)],
        "strides": [draw.randint(1, 2) for _ in range(rank)],
        "dilations": [draw.randint(1, 2) for _ in range(rank)],
        "pads": [draw.randint(-1 if draw.random() < 0.1 else 0, 2) for _ in range(2 * rank)],
        "auto_pad": draw.choice(("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")),
        "group": draw.choice((1, 1, 2)),
        "to": draw.randint(1, 13),
        **{name: draw.randint(0, 1) for name in ("keepdims", "ceil_mode", "transA", "transB", "allowzero")},
        **{name: draw.randint(0, 1) for name in ("noop_with_empty_axes", "training_mode")},
    }
    if schema.name.endswith("Pool"):
        # A pooling that rounds up ignores a window that covers only padding.
        values["pads"] = [min(pad, size - 1) for pad, size in zip(values["pads"], values["kernel_shape"] * 2, strict=True)]
    if schema.since_version < 11:
        values |= {"axis": abs(values["axis"]), "axes": [abs(axis) for axis in values["axes"]]}
    chosen = {name for name, each in schema.attributes.items() if each.required or draw.random() < 0.5}
    return {name: value for name, value in values.items() if name in chosen}


def draw_model(draw: random.Random, op_type: str, since: int) -> onnx.ModelProto:
    """Returns a model of a single node with the outputs y and z."""
    if op_type in WITH_CONSTANTS:
        return _draw_model_with_constants(draw, op_type, since)
    schema = onnx.defs.get_schema(op_type, since, "")
    attributes = draw_attributes(draw, schema)
    count = draw.randint(schema.min_input, min(schema.max_input, schema.min_input + 2))
    shapes = draw_shapes(draw, op_type, count, attributes)
    dtype = onnx.TensorProto.BOOL if op_type in ("And", "Or", "Xor") else draw.choice((1, 1, 1, 11, 7))
    dtypes = [dtype if draw.random() < 0.97 else onnx.TensorProto.INT64 for _ in shapes]
    if op_type == "Gather":
        dtypes[1:] = [onnx.TensorProto.INT64]
    if op_type == "Where":
        dtypes[0] = onnx.TensorProto.BOOL
    constants = []
    if op_type in LISTED and count > 1 and draw.random() < 0.9:
        numbers = (-1, 0, 1, 2, 3, 4, 6) if op_type == "Reshape" else (-2, -1, 0, 1, 2)
        listed = np.array([draw.choice(numbers) for _ in range(draw.randint(0, 3))], np.int64)
        constants.append(onnx.numpy_helper.from_array(listed, "x1"))
    names = [f"x{index}" for index in range(len(shapes))]
    inputs = [onnx.helper.make_tensor_value_info(*each) for each in zip(names, dtypes, shapes, strict=True)]
    outputs = ["y", draw.choice(("z", ""))] if schema.max_output == 2 and draw.random() < 0.3 else ["y"]
    node = onnx.helper.make_node(op_type, names, outputs, name="n", **attributes)
    inputs = [each for each in inputs if each.name not in [constant.name for constant in constants]]
    graph = onnx.helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs if name], constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", since)], ir_version=8)


def _draw_constants(draw: random.Random, op_type: str, version: int) -> tuple[list[int], dict[str, Any], dict[str, Any], list[str]]:
    """Returns the shape of x, the constants, the attributes and the input names."""
    weight: Any
    shape = [draw.choice((0, 1, 1, 2, 3, 5)) for _ in range(draw.randint(0, 4))]
    attributes: dict[str, Any]
    if op_type == "Slice":
        count = draw.randint(int(version < 10), 3)
        ends = [draw.choice((-9, -6, -3, -1, 0, 1, 2, 4, 2**62)) for _ in range(count)]
        starts = [draw.randint(-7, 7) for _ in range(count)]
        if version < 10:
            listed = {"axes": [draw.randint(0, 4) for _ in range(count)]} if draw.random() < 0.8 else {}
            return shape, {}, {"starts": starts, "ends": ends, **listed}, ["x"]
        numbers = {"s": starts, "e": ends}
        if draw.random() < 0.8:
            numbers["a"] = [draw.randint(-4, 4) for _ in range(count)]
            if draw.random() < 0.8:
                numbers["t"] = [draw.choice((-2, -1, 1, 1, 2, 3)) for _ in range(count)]
        return shape, {name: np.array(values, np.int64) for name, values in numbers.items()}, {}, ["x", *numbers]
    if op_type == "Expand":
        target = [draw.choice((size, size, 1, 2)) for size in shape[draw.randint(0, 1) :]]
        return shape, {"s": np.array([*[draw.randint(1, 3)] * draw.randint(0, 2), *target], np.int64)}, {}, ["x", "s"]
    if op_type == "Resize":
        attributes = {"axes": [0]} if draw.random() < 0.1 and version > 10 else {}
        if draw.random() < 0.5 or version == 10:
            # Not 0.7: 10 times float32(0.7) is 7 after rounding to float32, as engines and our rule have it; onnx cuts off to 6.
            shape = [size * draw.choice((1, 10)) for size in shape]
            scales = [draw.choice((1.0, 2.0, 0.3, 0.6, 1.7, 1 / 3)) for _ in shape][: draw.choice((4, 4, 3))]
            return shape, {"f": np.array(scales, np.float32)}, attributes, ["x", "f"] if version == 10 else ["x", "", "f"]
        sizes = [draw.choice((size, size * 2, 7)) for size in shape][: draw.choice((4, 4, 3))]
        # In version 11 roi and scales may be empty but not absent.
        without = {"f": np.zeros(0, np.float32)} if version == 11 else {}
        absent = "f" if version == 11 else ""
        return shape, {"s": np.array(sizes, np.int64), **without}, attributes, ["x", absent, absent, "s"]
    if op_type == "RMSNormalization":
        axis = draw.randint(-3, 3)
        weight = shape[axis:] if draw.random() < 0.8 else [draw.choice((1, 2))]
        return shape, {"w": np.ones(weight, np.float32)}, {"axis": axis}, ["x", "w"]
    if op_type == "ConvTranspose":
        axes = draw.randint(1, 2)
        shape = [draw.randint(1, 2), draw.choice((2, 4)), *(draw.randint(1, 6) for _ in range(axes))]
        group, kernel = draw.choice((1, 1, 2)), [draw.randint(1, 4) for _ in range(axes)]
        choices = {"strides": (1, 2, 3), "dilations": (1, 2), "output_padding": (0, 1), "kernel_shape": kernel}
        attributes = {
            name: kernel if values is kernel else [draw.choice(values) for _ in range(axes)]
            for name, values in choices.items()
            if draw.random() < 0.5
        }
        if draw.random() < 0.5:
            attributes["pads"] = [draw.randint(0, 2) for _ in range(2 * axes)]
        if draw.random() < 0.2:
            name, value = draw.choice((("auto_pad", "SAME_UPPER"), ("output_shape", [9] * axes)))
            attributes[name] = value
        weights = np.ones([shape[1] if draw.random() < 0.9 else 3, 3, *kernel], np.float32)
        return shape, {"w": weights}, {**attributes, "group": group}, ["x", "w"]
    if op_type.endswith(("ToSpace", "ToDepth")):
        return (
            [1, draw.choice((4, 8, 9)), 2, draw.choice((3, 4))][: draw.choice((4, 4, 4, 3))],
            {},
            {"blocksize": draw.choice((1, 2, 2, 3))},
            ["x"],
        )
    if op_type == "Tile":
        repeats = [draw.randint(0, 3) for _ in shape][: draw.choice((4, 4, 3))]
        return shape, {"t": np.array(repeats, np.int64)}, {}, ["x", "t"]
    if op_type == "InstanceNormalization":
        count = (shape[1] if len(shape) > 1 else 1) if draw.random() < 0.9 else 3
        return shape, {"s": np.ones(count, np.float32), "b": np.ones(count, np.float32)}, {}, ["x", "s", "b"]
    if op_type == "Pad":
        pads = [draw.choice((0, 0, 1, 2, -1)) for _ in range(2 * len(shape) + draw.choice((0, 0, 0, 1)))]
        if version < 11:
            return shape, {}, {"pads": pads or [0, 0]}, ["x"]
        return shape, {"p": np.array(pads, np.int64)}, {}, ["x", "p"]
    if op_type == "Split":
        axis = draw.randint(-2, 2)
        size = shape[axis] if -len(shape) <= axis < len(shape) else 2
        attributes = {"axis": axis} if draw.random() < 0.8 or version >= 18 else {}
        if draw.random() < 0.6:
            first = draw.randint(0, size)
            return shape, {"s": np.array([first, size - first + draw.choice((0, 0, 0, 1))], np.int64)}, attributes, ["x", "s"]
        return shape, {}, {**attributes, **({"num_outputs": 2} if version >= 18 else {})}, ["x"]
    return shape, {}, {}, ["x"]


def _draw_model_with_constants(draw: random.Random, op_type: str, since: int) -> onnx.ModelProto:
    shape, constants, attributes, inputs = _draw_constants(draw, op_type, since)
    outputs = ["y", "z"] if op_type == "Split" else ["y"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, inputs, outputs, name="n", **attributes)],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", since)], ir_version=8)
