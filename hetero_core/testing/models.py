"""Models for tests and for plugin authors: built on demand, seeded, nothing downloaded.

Two families. Light models are the topologies of well-known networks that the onnx package ships, with random weights in place of
its constant ones (with those every output is the same number, so that a swapped channel passes). Small models show one difficulty
each: control flow, recurrence, a batch size that is not known. Same name, same model, to the bit. onnx and numpy are imported when
a model is first built.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.errors import enumerate_choices, suggest

if TYPE_CHECKING:
    import numpy as np
    import onnx

_LIGHT_FILES = {
    "alexnet": "light_bvlc_alexnet.onnx",
    "densenet121": "light_densenet121.onnx",
    "inception_v1": "light_inception_v1.onnx",
    "inception_v2": "light_inception_v2.onnx",
    "resnet50": "light_resnet50.onnx",
    "shufflenet": "light_shufflenet.onnx",
    "squeezenet": "light_squeezenet.onnx",
    "vgg19": "light_vgg19.onnx",
    "zfnet512": "light_zfnet512.onnx",
}

LIGHT_MODELS: tuple[str, ...] = tuple(_LIGHT_FILES)
"""The names that `light_model` takes."""

SMALL_MODELS: tuple[str, ...] = ("if", "loop", "lstm", "dynamic_batch", "residual")
"""The names that `small_model` takes."""

SYMBOLIC_SIZE = 3
"""The size that `light_inputs` gives to a symbolic axis."""


def light_model(name: str, opset: int | None = 21) -> onnx.ModelProto:
    """Returns a well-known network for one image of (1, 3, 224, 224), with random weights and without its last Softmax.

    `opset` is what the model is converted to, at IR version 10; weights are then initializers only. None keeps the form of the
    file: opset 9 and IR version 3, every initializer listed among the inputs. Both forms carry the same weights, whose ranges keep
    activations near or below 1000: float16 holds them too. Cost: from 5 MB of weights and 0.1 s (squeezenet) to 575 MB and 8 s
    (vgg19).

    Raises: ValueError for a name that is not in `LIGHT_MODELS`.
    """
    import onnx
    import onnx.version_converter

    if name not in _LIGHT_FILES:
        raise ValueError(f"no light model '{name}'{suggest(name, LIGHT_MODELS) or ';'} there are {enumerate_choices(LIGHT_MODELS)}")
    model = onnx.load(Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / _LIGHT_FILES[name])
    graph = model.graph
    _drop_last_softmax(graph)
    weights = _random_weights(graph)
    listed = {initializer.name for initializer in graph.initializer}
    inputs = [value for value in graph.input if value.name not in listed]
    _replace(graph.input, inputs)
    if opset is not None:
        # The converter finds an initializer that is no input only from IR version 4 on. It copies the model: weights come later.
        model.ir_version = 10
        model = onnx.version_converter.convert_version(model, opset)
        graph = model.graph
    _replace(graph.node, [node for node in graph.node if node.op_type != "ConstantOfShape"])
    used = {value for node in graph.node for value in node.input}
    initializers = [
        initializer for initializer in graph.initializer if initializer.name in used and initializer.name not in weights
    ]
    _replace(graph.initializer, initializers)
    for value, array in weights.items():
        graph.initializer.append(onnx.numpy_helper.from_array(array, value))
    if opset is None:
        graph.input.extend(onnx.helper.make_tensor_value_info(i.name, i.data_type, i.dims) for i in graph.initializer)
    return model


def light_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns one random array for each input of a model of this file; initializers that are listed as inputs get none.

    Floats are normal with deviation 1, integers run from 1 to 5, symbolic axes have `SYMBOLIC_SIZE` elements.
    """
    import numpy as np
    import onnx

    generator = np.random.default_rng(seed)
    initializers = {initializer.name for initializer in model.graph.initializer}
    arrays: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name in initializers:
            continue
        tensor = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else SYMBOLIC_SIZE for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        drawn = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(1, 6, shape)
        # A bool is drawn as true for 4 and 5, so that seeds give both.
        arrays[value.name] = np.asarray(drawn > 3 if dtype.kind == "b" else drawn, dtype)
    return arrays


def small_model(name: str) -> onnx.ModelProto:
    """Returns the small model of a name of `SMALL_MODELS`. Raises: ValueError for any other name."""
    if name not in SMALL_MODELS:
        raise ValueError(f"no small model '{name}'{suggest(name, SMALL_MODELS) or ';'} there are {enumerate_choices(SMALL_MODELS)}")
    makers = (if_model, loop_model, lstm_model, dynamic_batch_model, residual_model)
    return dict(zip(SMALL_MODELS, makers, strict=True))[name]()


def if_model() -> onnx.ModelProto:
    """Returns If inside a chain: both branches capture a value that a node before it computed, and one a graph input as well."""
    return _parse_with_weights(
        """
        <ir_version: 10, opset_import: ["": 21]>
        if_model (bool condition, float[4, 8] x) => (float[4, 8] y) {
            [matmul] product = MatMul (x, weight)
            [leaky_relu] hidden = LeakyRelu <alpha = 0.1> (product)
            [choose] chosen = If (condition) <
                then_branch = when_true () => (float[4, 8] sum) { [then_add] sum = Add (hidden, x) },
                else_branch = when_false () => (float[4, 8] quotient) {
                    [else_scale] scaled = Mul (hidden, scale)
                    [else_tanh] quotient = Tanh (scaled)
                }
            >
            [sigmoid] y = Sigmoid (chosen)
        }
        """,
        {"weight": (8, 8), "scale": (8,)},
    )


def loop_model() -> onnx.ModelProto:
    """Returns Loop with a trip count that is an input, a carried state, a stacked output and a captured value.

    Outputs: the last state (4, 8), and `means` (trip_count, 4), one row for each turn.
    """
    return _parse_with_weights(
        """
        <ir_version: 10, opset_import: ["": 21]>
        loop_model (int64 trip_count, float[4, 8] x) => (float[4, 8] y, float[turns, 4] doubled) {
            [negate] shift = Neg (x)
            [repeat] y, means = Loop (trip_count, always, x) <
                body = turn (int64 index, bool go, float[4, 8] state) => (bool go_on, float[4, 8] next, float[4] mean) {
                    [body_matmul] product = MatMul (state, weight)
                    [body_add] moved = Add (product, shift)
                    [body_tanh] next = Tanh (moved)
                    [body_mean] mean = ReduceMean <keepdims = 0> (next, last_axis)
                    [body_go] go_on = Identity (go)
                }
            >
            [double] doubled = Add (means, means)
        }
        """,
        {"weight": (8, 8)},
        {"always": True, "last_axis": [1]},
    )


def lstm_model() -> onnx.ModelProto:
    """Returns a bidirectional LSTM with an initial state, and a projection behind it.

    Inputs: x (5 steps, batch 2, 6), the states (2 directions, batch 2, 4). Outputs: scores (5, 2, 3) and the last states.
    """
    return _parse_with_weights(
        """
        <ir_version: 10, opset_import: ["": 21]>
        lstm_model (float[5, 2, 6] x, float[2, 2, 4] initial_h, float[2, 2, 4] initial_c)
            => (float[5, 2, 3] scores, float[2, 2, 4] last_h, float[2, 2, 4] last_c)
        {
            [lstm] steps, last_h, last_c = LSTM <hidden_size = 4, direction = "bidirectional">
                (x, weight, recurrence, bias, , initial_h, initial_c)
            [transpose] together = Transpose <perm = [0, 2, 1, 3]> (steps)
            [reshape] joined = Reshape (together, joined_shape)
            [project] projected = MatMul (joined, projection)
            [shift] scores = Add (projected, projection_bias)
        }
        """,
        {"weight": (2, 16, 6), "recurrence": (2, 16, 4), "bias": (2, 32), "projection": (8, 3), "projection_bias": (3,)},
        {"joined_shape": [5, 2, 8]},
    )


def dynamic_batch_model() -> onnx.ModelProto:
    """Returns a small convolutional network whose batch size is symbolic: images (batch, 3, 16, 16) to scores (batch, 10).

    Its Reshape computes the batch size from the input's shape, so that it holds a shape-only part.
    """
    return _parse_with_weights(
        """
        <ir_version: 10, opset_import: ["": 21]>
        dynamic_batch_model (float[batch, 3, 16, 16] images) => (float[batch, 10] scores) {
            [conv1] c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (images, conv1_weight, conv1_bias)
            [relu1] r1 = Relu (c1)
            [pool1] p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
            [conv2] c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (p1, conv2_weight)
            [relu2] r2 = Relu (c2)
            [shape] sizes = Shape (images)
            [batch] batch_size = Slice (sizes, zero, one)
            [rows] rows = Concat <axis = 0> (batch_size, rest)
            [reshape] flat = Reshape (r2, rows)
            [gemm] scores = Gemm <transB = 1> (flat, gemm_weight, gemm_bias)
        }
        """,
        {
            "conv1_weight": (8, 3, 3, 3),
            "conv1_bias": (8,),
            "conv2_weight": (12, 8, 3, 3),
            "gemm_weight": (10, 192),
            "gemm_bias": (10,),
        },
        {"zero": [0], "one": [1], "rest": [-1]},
    )


def residual_model() -> onnx.ModelProto:
    """Returns a block with a residual sum, a gated branch and a concatenation: images (batch, 3, 8, 8) to probabilities (batch, 5)."""
    return _parse_with_weights(
        """
        <ir_version: 10, opset_import: ["": 21]>
        residual_model (float[batch, 3, 8, 8] images) => (float[batch, 5] probabilities) {
            [stem] s1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (images, stem_weight)
            [stem_relu] stem = Relu (s1)
            [left] l1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (stem, left_weight)
            [normalize] l2 = BatchNormalization (l1, scale, shift, mean, variance)
            [left_relu] l3 = Relu (l2)
            [right] r1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (stem, right_weight)
            [gate] r2 = Sigmoid (r1)
            [sum] l4 = Add (l3, stem)
            [product] r3 = Mul (r2, stem)
            [join] joined = Concat <axis = 1> (l4, r3)
            [pool] pooled = GlobalAveragePool (joined)
            [flatten] flat = Flatten (pooled)
            [gemm] scores = Gemm <transB = 1> (flat, gemm_weight, gemm_bias)
            [softmax] probabilities = Softmax (scores)
        }
        """,
        {
            "stem_weight": (6, 3, 3, 3),
            "left_weight": (6, 6, 3, 3),
            "right_weight": (6, 6, 3, 3),
            "gemm_weight": (5, 12),
            "gemm_bias": (5,),
        },
        {
            "scale": [0.5, 1.5, 1, 0.75, 1.25, 1],
            "shift": [0.1, -0.1, 0, 0.2, -0.2, 0],
            "mean": [0, 0.5, -0.5, 0.25, -0.25, 0],
            "variance": [1, 0.5, 1.5, 1.25, 0.75, 1],
        },
    )


def _parse_with_weights(
    text: str, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    """Returns the model of an ONNX text with a random initializer for each of `shapes` and the `constants` as they are."""
    import numpy as np
    import onnx.parser

    model = onnx.parser.parse_model(text)
    for name, shape in shapes.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(_draw(name, shape, "weight"), name))
    for name, value in ({} if constants is None else constants).items():
        array = np.array(value)
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(array.astype(np.float32) if array.dtype.kind == "f" else array, name)
        )
    onnx.checker.check_model(model, full_check=True)
    return model


def _drop_last_softmax(graph: onnx.GraphProto) -> None:
    """Removes the Softmax that makes the graph's output, if one does; the output keeps its name."""
    last = graph.node[-1]
    if last.op_type != "Softmax":
        return
    before = next(node for node in graph.node if last.input[0] in node.output)
    _replace(before.output, [*last.output, *before.output[1:]])
    del graph.node[-1]


def _random_weights(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Returns value name -> weights for each float initializer and ConstantOfShape that a node reads, in the order of the nodes."""
    import onnx

    initializers = {initializer.name: initializer for initializer in graph.initializer}
    shapes: dict[str, tuple[int, ...]] = {}
    for initializer in graph.initializer:
        if initializer.data_type == onnx.TensorProto.FLOAT:
            shapes[initializer.name] = tuple(initializer.dims)
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(int(size) for size in onnx.numpy_helper.to_array(initializers[node.input[0]]))
    roles = _weight_roles(graph)
    used = dict.fromkeys(value for node in graph.node for value in node.input if value in shapes)
    return {value: _draw(value, shapes[value], roles[value]) for value in used}


def _weight_roles(graph: onnx.GraphProto) -> dict[str, str]:
    """Returns value name -> what the value is to the node that reads it, looking through Unsqueeze and Reshape."""
    summed = {value for node in graph.node if node.op_type == "Sum" for value in node.input}
    roles: dict[str, str] = {}
    for node in reversed(graph.node):
        if node.op_type == "BatchNormalization":
            # Each addend of a residual sum gets half the scale, else values double from block to block.
            scale = "halved scale" if node.output[0] in summed else "scale"
            roles |= dict(zip(node.input[1:], (scale, "bias", "mean", "variance"), strict=True))
        elif node.op_type in ("Conv", "Gemm"):
            roles |= dict(zip(node.input[1:], ("weight", "bias"), strict=False))
        elif node.op_type in ("Mul", "Add"):
            roles |= dict.fromkeys(node.input, "scale" if node.op_type == "Mul" else "bias")
        elif node.op_type in ("Unsqueeze", "Reshape") and node.output[0] in roles:
            roles[node.input[0]] = roles[node.output[0]]
    return roles


def _draw(name: str, shape: tuple[int, ...], role: str) -> np.ndarray:
    """Returns float32 numbers that depend on the name, the shape and the role only.

    Weights are He-normal: deviation sqrt(2 / inputs of an output element), and sqrt(1 / inputs) where an output channel reads one
    input channel, since no Relu comes before such a Conv. Source: He et al. 2015, Delving deep into rectifiers.
    """
    import numpy as np

    generator = np.random.default_rng(zlib.crc32(name.encode()))
    if role in ("scale", "halved scale", "variance"):
        numbers = generator.uniform(0.5, 1.5, shape) * (0.5 if role == "halved scale" else 1.0)
        return np.asarray(numbers, np.float32)
    deviation = 0.1
    if role == "weight" and len(shape) > 1:
        deviation = math.sqrt((1 if shape[1] == 1 else 2) / math.prod(shape[1:]))
    return generator.standard_normal(shape, np.float32) * np.float32(deviation)


def _replace(repeated: Any, items: Sequence[Any]) -> None:
    """Replaces what a repeated protobuf field holds."""
    items = list(items)
    del repeated[:]
    repeated.extend(items)
