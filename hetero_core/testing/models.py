"""Models for tests and for plugin authors: built on demand, seeded, nothing downloaded.

There are two families. Light models are the topologies of well-known networks that the onnx package ships, with random weights in
place of its constant weights, with which all outputs are equal and a swapped channel passes. Small models each show a single
difficulty: control flow, recurrence, an unknown batch size. A model of a given name is always the same, bit for bit. onnx is
imported when a model is first built.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.errors import enumerate_choices, suggest

if TYPE_CHECKING:
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

_RANDOM_WEIGHTS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "if": {"weight": (8, 8), "scale": (8,)},
    "loop": {"weight": (8, 8)},
    "lstm": {"weight": (2, 16, 6), "recurrence": (2, 16, 4), "bias": (2, 32), "projection": (8, 3), "projection_bias": (3,)},
    "dynamic_batch": {
        "conv1_weight": (8, 3, 3, 3),
        "conv1_bias": (8,),
        "conv2_weight": (12, 8, 3, 3),
        "gemm_weight": (10, 192),
        "gemm_bias": (10,),
    },
    "residual": {
        "stem_weight": (6, 3, 3, 3),
        "left_weight": (6, 6, 3, 3),
        "right_weight": (6, 6, 3, 3),
        "gemm_weight": (5, 12),
        "gemm_bias": (5,),
    },
}
"""Shapes of the random weights of each small model."""
_CONSTANTS: Mapping[str, Mapping[str, Any]] = {
    "loop": {"always": True, "last_axis": [1]},
    "lstm": {"joined_shape": [5, 2, 8]},
    "dynamic_batch": {"zero": [0], "one": [1], "rest": [-1]},
    "residual": {
        "scale": [0.5, 1.5, 1, 0.75, 1.25, 1],
        "shift": [0.1, -0.1, 0, 0.2, -0.2, 0],
        "mean": [0, 0.5, -0.5, 0.25, -0.25, 0],
        "variance": [1, 0.5, 1.5, 1.25, 0.75, 1],
    },
}
"""The remaining constants of small models."""

SYMBOLIC_SIZE = 3
"""The size that `light_inputs` gives to a symbolic axis."""


def light_model(name: str, opset: int = 21) -> onnx.ModelProto:
    """Returns a well-known network for an image of (1, 3, 224, 224), with random weights and without its last Softmax.

    The model is converted to `opset`, at IR version 10; weights are then initializers only. Their ranges keep activations near or below
    1000, so that activations fit into float16. Cost: from 5 MB of weights and 0.1 s (squeezenet) to 575 MB and 8 s (vgg19).

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
    _replace(graph.input, [value for value in graph.input if value.name not in listed])
    # The converter finds initializers that are not inputs only from IR version 4 on. It copies the model, so weights are added later.
    model.ir_version = 10
    model = onnx.version_converter.convert_version(model, opset)
    graph = model.graph
    _replace(graph.node, [node for node in graph.node if node.op_type != "ConstantOfShape"])
    used = {value for node in graph.node for value in node.input} - weights.keys()
    _replace(graph.initializer, [initializer for initializer in graph.initializer if initializer.name in used])
    for value, array in weights.items():
        graph.initializer.append(onnx.numpy_helper.from_array(array, value))
    return model


def light_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns a random array for each input of a model of this file.

    Floats are normal with deviation 1, integers run from 1 to 5, symbolic axes have `SYMBOLIC_SIZE` elements.
    """
    import onnx

    generator = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else SYMBOLIC_SIZE for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        drawn = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(1, 6, shape)
        # A bool is True for 4 and 5, so that both values occur among the seeds.
        arrays[value.name] = np.asarray(drawn > 3 if dtype.kind == "b" else drawn, dtype)
    return arrays


def small_model(name: str) -> onnx.ModelProto:
    """Returns the small model of a name in `SMALL_MODELS`; its text is `small_models/<name>.onnxtxt`.

    Raises: ValueError for any other name.
    """
    import onnx.parser

    if name not in SMALL_MODELS:
        raise ValueError(f"no small model '{name}'{suggest(name, SMALL_MODELS) or ';'} there are {enumerate_choices(SMALL_MODELS)}")
    text = (Path(__file__).parent / "small_models" / f"{name}.onnxtxt").read_text(encoding="utf-8")
    model = onnx.parser.parse_model(text)
    arrays = {key: _draw(key, shape, "weight") for key, shape in _RANDOM_WEIGHTS[name].items()}
    arrays |= {key: np.array(value) for key, value in _CONSTANTS.get(name, {}).items()}
    for key, array in arrays.items():
        single = array.astype(np.float32) if array.dtype.kind == "f" else array
        model.graph.initializer.append(onnx.numpy_helper.from_array(single, key))
    onnx.checker.check_model(model, full_check=True)
    return model


if_model = partial(small_model, "if")
loop_model = partial(small_model, "loop")
lstm_model = partial(small_model, "lstm")
dynamic_batch_model = partial(small_model, "dynamic_batch")
residual_model = partial(small_model, "residual")


def _drop_last_softmax(graph: onnx.GraphProto) -> None:
    """Removes a Softmax at the end of the graph; the output keeps its name."""
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
    shapes = {each.name: tuple(each.dims) for each in graph.initializer if each.data_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(int(size) for size in onnx.numpy_helper.to_array(initializers[node.input[0]]))
    roles = _weight_roles(graph)
    used = dict.fromkeys(value for node in graph.node for value in node.input if value in shapes)
    return {value: _draw(value, shapes[value], roles[value]) for value in used}


def _weight_roles(graph: onnx.GraphProto) -> dict[str, str]:
    """Returns value name -> role of the value in the node that reads it, looking through Unsqueeze and Reshape."""
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

    Weights are He-normal: deviation sqrt(2 / inputs of an output element), or sqrt(1 / inputs) if an output channel reads a single
    input channel, since no Relu comes before such a Conv. Source: He et al. 2015, Delving deep into rectifiers.
    """
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    if role in ("scale", "halved scale", "variance"):
        numbers = generator.uniform(0.5, 1.5, shape) * (0.5 if role == "halved scale" else 1.0)
        return np.asarray(numbers, np.float32)
    deviation = 0.1
    if role == "weight" and len(shape) > 1:
        deviation = math.sqrt((1 if shape[1] == 1 else 2) / math.prod(shape[1:]))
    return generator.standard_normal(shape, np.float32) * np.float32(deviation)


def _replace(repeated: Any, items: Sequence[Any]) -> None:
    """Replaces the contents of a repeated protobuf field."""
    del repeated[:]
    repeated.extend(items)
