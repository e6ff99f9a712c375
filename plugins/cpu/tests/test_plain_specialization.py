"""Networks specialized without onnx are those that onnx's inference gives: drawn nodes of every rule, and whole networks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.shape_inference
import pytest
from hetero_cpu.passes import transform_network
from hetero_cpu.planning import plain_specialization
from hetero_cpu.planning.plain_specialization import _CONDITIONS, _RULES, specialize_plainly
from hetero_cpu.planning.specialization import specialize_network
from hetero_tests.open_models import make_decoder, make_detector, make_encoder

from hetero_core import Core
from hetero_core.errors import HeteroError
from hetero_core.kernels.single_nodes import evaluate_node
from hetero_core.network.graph import Network
from hetero_core.network.type_protos import read_type

DRAWS = 80


def draw_node(draw: random.Random, op_type: str, version: int) -> tuple[list[int], dict[str, Any], dict[str, Any], list[str]]:
    """Returns the shape of x, constants, attributes and the names of the inputs; some of what is drawn is no valid node."""
    shape = [draw.choice((0, 1, 1, 2, 3, 5)) for _ in range(draw.randint(0, 4))]
    if op_type == "Slice":
        count = draw.randint(0, 3)
        ends = [draw.choice((-9, -6, -3, -1, 0, 1, 2, 4, 2**62)) for _ in range(count)]
        numbers = {"s": [draw.randint(-7, 7) for _ in range(count)], "e": ends}
        if draw.random() < 0.8:
            numbers["a"] = [draw.randint(-4, 4) for _ in range(count)]
            if draw.random() < 0.8:
                numbers["t"] = [draw.choice((-2, -1, 1, 1, 2, 3)) for _ in range(count)]
        return shape, {name: np.array(values, np.int64) for name, values in numbers.items()}, {}, ["x", *numbers]
    if op_type == "Expand":
        target = [draw.choice((size, size, 1, 2)) for size in shape[draw.randint(0, 1) :]]
        return shape, {"s": np.array([*[draw.randint(1, 3)] * draw.randint(0, 2), *target], np.int64)}, {}, ["x", "s"]
    if op_type == "Resize":
        attributes = {"axes": [0]} if draw.random() < 0.1 else {}
        if draw.random() < 0.5:
            # 10 times 0.7 as float32 is below 7, and 7 after rounding to float32.
            shape = [size * draw.choice((1, 10)) for size in shape]
            scales = [draw.choice((1.0, 2.0, 0.3, 0.7, 1.7, 1 / 3)) for _ in shape][: draw.choice((4, 4, 3))]
            return shape, {"f": np.array(scales, np.float32)}, attributes, ["x", "", "f"]
        sizes = [draw.choice((size, size * 2, 7)) for size in shape][: draw.choice((4, 4, 3))]
        # In version 11 roi and scales may be without elements, and not absent.
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
            attributes |= draw.choice(({"auto_pad": "SAME_UPPER"}, {"output_shape": [9] * axes}))
        weight = np.ones([shape[1] if draw.random() < 0.9 else 3, 3, *kernel], np.float32)
        return shape, {"w": weight}, {**attributes, "group": group}, ["x", "w"]
    if op_type == "DepthToSpace":
        return [1, draw.choice((4, 8, 9)), 2, 3][: draw.choice((4, 4, 4, 3))], {}, {"blocksize": draw.choice((1, 2, 2, 3))}, ["x"]
    if op_type == "Tile":
        repeats = [draw.randint(0, 3) for _ in shape][: draw.choice((4, 4, 3))]
        return shape, {"t": np.array(repeats, np.int64)}, {}, ["x", "t"]
    if op_type == "InstanceNormalization":
        count = (shape[1] if len(shape) > 1 else 1) if draw.random() < 0.9 else 3
        return shape, {"s": np.ones(count, np.float32), "b": np.ones(count, np.float32)}, {}, ["x", "s", "b"]
    if op_type == "Pad":
        pads = [draw.choice((0, 0, 1, 2, -1)) for _ in range(2 * len(shape) + draw.choice((0, 0, 0, 1)))]
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


def make_network(op_type: str, version: int, drawn: tuple[list[int], dict[str, Any], dict[str, Any], list[str]]) -> onnx.ModelProto:
    shape, constants, attributes, inputs = drawn
    outputs = ["r", "other"] if op_type == "Split" else ["r"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, inputs, outputs, **attributes), onnx.helper.make_node("Identity", ["r"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [f"d{axis}" for axis in range(len(shape))])],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)], ir_version=10)


def ask_onnx(model: onnx.ModelProto, shape: list[int]) -> Any:
    """Returns what onnx infers for x of this shape, None where it is an error."""
    model.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape))
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return None
    types = {info.name: info.type for info in (*inferred.graph.value_info, *inferred.graph.output)}
    return read_type(types["r"], "r") if "r" in types else None


def by_rules(network: Network, signature: Any) -> Network | None:
    """Returns what the rules give; None where they give up, or are not asked, as no size is open."""
    answers: list[Network | None] = []

    def note(*arguments: Any, **named: Any) -> Network | None:
        answers.append(specialize_plainly(*arguments, **named))
        return answers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_specialization, "specialize_plainly", note)
        specialize_network(network, signature, evaluate_node)
    return answers[0] if answers else None


def by_onnx(network: Network, signature: Any) -> Network:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_specialization, "specialize_plainly", lambda *_, **__: None)
        return specialize_network(network, signature, evaluate_node)


@pytest.mark.parametrize(("op_type", "version"), sorted({*_RULES, *_CONDITIONS}))
def test_types_of_drawn_nodes_are_those_that_onnx_infers(op_type: str, version: int) -> None:
    draw = random.Random(f"{op_type} {version}")
    answered = 0
    with Core() as core:
        for _ in range(DRAWS):
            drawn = draw_node(draw, op_type, version)
            model = make_network(op_type, version, drawn)
            try:
                network = core.read_network(model)
            except HeteroError:
                continue
            try:
                special = by_rules(network, (tuple(drawn[0]),))
            except HeteroError:
                special = None
            if special is None:
                continue
            expected = ask_onnx(model, drawn[0])
            assert expected is not None, (drawn, "onnx calls it an error")
            if None not in (getattr(expected, "shape", None) or (None,)):
                assert special.type_of("r") == expected, drawn
                answered += 1
    assert answered > DRAWS // 10


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (make_decoder, {"tokens": (1, 17)}),
        (make_encoder, {"tokens": (3, 29), "mask": (3, 29)}),
        (make_detector, {"image": (1, 3, 97, 130)}),
    ],
    ids=["decoder", "encoder", "detector"],
)
def test_whole_network_is_what_onnx_makes_of_it(make: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    with Core() as core:
        network = transform_network(core.read_network(make()))
    pasts = {spec.name: (1, spec.shape[1], 5, spec.shape[3]) for spec in network.inputs if spec.name not in shapes and spec.shape}
    signature = tuple({**shapes, **pasts}[spec.name] for spec in network.inputs)
    ours, theirs = by_rules(network, signature), by_onnx(network, signature)
    assert ours is not None
    assert [node.name for node in ours.nodes] == [node.name for node in theirs.nodes]
    assert {name: ours.type_of(name) for node in theirs.nodes for name in (*node.reads, *node.writes)} == {
        name: theirs.type_of(name) for node in theirs.nodes for name in (*node.reads, *node.writes)
    }
    assert ours.outputs == theirs.outputs
    assert ours.initializers.keys() == theirs.initializers.keys()
    for name, constant in ours.initializers.items():
        assert constant.shape == theirs.initializers[name].shape
        assert constant.dtype == theirs.initializers[name].dtype
