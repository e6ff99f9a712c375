"""Draws a graph by its seed: the family, the element type, the inputs, the operators and the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.graphs import arrangement, control, convolution, elementwise, image, integers, quantized, sequence
from hetero_core.conformance.graphs.builder import DrawnValue, GraphBuilder, NotApplicable

if TYPE_CHECKING:
    import onnx

VERSION = 1
"""Version of the drawing; another version draws other graphs from the same seeds."""
RUNS = 3
Operators = tuple[tuple[float, Callable[[GraphBuilder], None]], ...]


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """A model, its family, and the inputs of each run by name; open dimensions differ from run to run."""

    seed: int
    family: str
    model: onnx.ModelProto
    feeds: tuple[Mapping[str, Any], ...]


def draw_graph(seed: int) -> DrawnGraph:
    """Returns the graph of a seed, which is the same on every machine."""
    random = np.random.default_rng([VERSION, seed])
    family = str(random.choice(list(FAMILIES), p=_SHARES))
    builder = GraphBuilder(random, dtype=_draw_dtype(random, family), opset=int(random.choice([13, 17, 18, 21])))
    start, operators = FAMILIES[family]
    start(builder)
    grow(builder, operators, int(random.integers(3, 31)))
    outputs = choose_outputs(builder)
    model = build_model(builder, outputs, f"{family}_{seed}")
    return DrawnGraph(seed, family, model, tuple(_draw_feeds(builder, run) for run in range(RUNS)))


def grow(b: GraphBuilder, operators: Operators, count: int) -> None:
    """Adds nodes until there are `count`; if an operator finds no value to read, another operator is drawn."""
    weights = np.array([weight for weight, _ in operators])
    weights = weights / weights.sum()
    for _ in range(20 * count):
        if len(b.nodes) >= count:
            return
        before = len(b.nodes), len(b.values)
        try:
            operators[int(b.random.choice(len(operators), p=weights))][1](b)
        except NotApplicable:
            # Nodes added before NotApplicable was raised stay in the graph; unread values become outputs.
            assert (len(b.nodes), len(b.values)) >= before


def choose_outputs(b: GraphBuilder) -> list[DrawnValue]:
    """Returns the outputs: all unread values, at times also inner values and an input, in random order."""
    inputs = {value.name for value in b.inputs}
    results = [value for value in b.values if value.name not in inputs]
    outputs = [value for value in results if value.name not in b.readers]
    outputs += [value for value in results if value.name in b.readers and b.chance(0.06)]
    if b.chance(0.08):
        outputs.append(b.choose(*b.inputs))
    return [outputs[int(index)] for index in b.random.permutation(len(outputs))]


def build_model(b: GraphBuilder, outputs: list[DrawnValue], name: str) -> onnx.ModelProto:
    """Returns the model; open sizes of outputs are declared by name if known, else left out."""
    import onnx  # heavy
    from onnx import helper

    def declare(value: DrawnValue) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape)

    initializers = [onnx.numpy_helper.from_array(array, key) for key, array in b.initializers.items() if key in b.readers]
    graph = helper.make_graph(
        b.nodes, name, [declare(port) for port in b.inputs], [declare(port) for port in outputs], initializers
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", b.opset)], ir_version=8)


def _draw_dtype(random: np.random.Generator, family: str) -> str:
    if family in ("quantized", "integer"):
        return "float32"
    return str(random.choice(["float32", "float16", "float64"], p=[0.88, 0.07, 0.05]))


def _draw_feeds(b: GraphBuilder, run: int) -> dict[str, Any]:
    """Returns the inputs of one run; open dimensions have the sizes that the graph was drawn with, then others."""
    sizes = {name: size if run == 0 else int(b.random.integers(1, size + 3)) for name, size in b.sizes.items()}
    return {value.name: draw_input(b.random, value, sizes) for value in b.inputs}


def draw_input(random: np.random.Generator, value: DrawnValue, sizes: Mapping[str, int]) -> Any:
    """Returns an array for an input: normal numbers, or integers below its bound."""
    shape = tuple(size if isinstance(size, int) else sizes[size] for size in value.shape)
    if value.dtype == "bool":
        return random.random(shape) < 0.5
    if value.is_float:
        return random.standard_normal(shape).astype(value.dtype)
    high = int(value.bound)
    low = 0 if value.dtype.startswith("u") or value.dtype == "int64" else -high
    return random.integers(low, high, shape).astype(value.dtype)


def start_image(b: GraphBuilder) -> None:
    """Adds one to three images, often of the same height and width, at times with an open batch."""
    batch: int | str = b.choose(1, 1, 1, 2, 3)
    if b.chance(0.15):
        b.sizes["N"] = b.integer(1, 3)
        batch = "N"
    shape = image.draw_image(b, batch)
    b.add_input(b.dtype, shape)
    for _ in range(b.choose(0, 0, 1, 2)):
        other = (batch, b.choose(shape[1], *image.CHANNELS), *shape[2:]) if b.chance(0.7) else image.draw_image(b, batch)
        if b.count(other) <= 60_000:
            b.add_input(b.dtype, other)


def start_sequence(b: GraphBuilder) -> None:
    """Adds a sequence, at times with open batch and length, a second sequence of its shape or width, at times indices."""
    batch: int | str = b.choose(1, 1, 2, 3)
    length: int | str = b.choose(*sequence.LENGTHS)
    width = b.choose(*sequence.WIDTHS)
    if b.chance(0.3):
        b.sizes["L"] = int(length)
        length = "L"
        if b.chance(0.5):
            b.sizes["N"] = int(batch)
            batch = "N"
    shape = (batch, length, width) if b.chance(0.85) else (length, width)
    b.add_input(b.dtype, shape)
    if b.chance(0.4):
        b.add_input(b.dtype, shape if b.chance(0.5) else (*shape[:-1], b.choose(*sequence.WIDTHS)))
    if b.chance(0.3):
        b.add_input("int64", shape[:-1], bound=b.choose(2, 10, 50))


def start_quantized(b: GraphBuilder) -> None:
    """Adds an image or a sequence of float32, or of bytes."""
    (start_image if b.chance(0.6) else start_sequence)(b)
    if b.chance(0.4):
        shape = b.values[0].shape
        b.add_input(b.choose("uint8", "int8"), shape, bound=120)


def start_integer(b: GraphBuilder) -> None:
    """Adds integers of one to three dimensions, a second value of their shape, at times numbers of float32."""
    rank = b.integer(1, 3)
    shape: list[int | str] = [b.choose(1, 2, 3, 5, 8, 17, 33) for _ in range(rank)]
    if b.chance(0.25):
        b.sizes["N"] = int(shape[0])
        shape[0] = "N"
    dtype = b.choose("int32", "int64")
    b.add_input(dtype, shape, bound=b.choose(5, 20))
    if b.chance(0.7):
        b.add_input(dtype, shape, bound=9)
    if b.chance(0.5):
        b.add_input("float32", shape)


def start_mixed(b: GraphBuilder) -> None:
    """Adds the inputs of an image network and of a sequence network."""
    start_image(b)
    b.add_input(b.dtype, (b.choose(1, 2), b.choose(*sequence.LENGTHS), b.choose(*sequence.WIDTHS)))


def _scale(factor: float, operators: Operators) -> Operators:
    return tuple((factor * weight, operator) for weight, operator in operators)


_IMAGE = (*image.OPERATORS, *convolution.OPERATORS)
_COMMON = (*elementwise.OPERATORS, *_scale(0.4, control.OPERATORS))

FAMILIES: Mapping[str, tuple[Callable[[GraphBuilder], None], Operators]] = {
    "image": (start_image, (*_IMAGE, *elementwise.OPERATORS)),
    "sequence": (start_sequence, (*sequence.OPERATORS, *arrangement.OPERATORS, *_scale(0.5, _COMMON))),
    "quantized": (
        start_quantized,
        (
            *quantized.OPERATORS,
            *_scale(0.15, _IMAGE),
            *_scale(0.15, sequence.OPERATORS),
            *_scale(0.15, arrangement.OPERATORS),
            *_scale(0.2, _COMMON),
        ),
    ),
    "integer": (start_integer, (*integers.OPERATORS, *_scale(0.3, _COMMON), *_scale(0.1, arrangement.OPERATORS))),
    "mixed": (
        start_mixed,
        (
            *_IMAGE,
            *sequence.OPERATORS,
            *arrangement.OPERATORS,
            *_COMMON,
            *control.OPERATORS,
            *_scale(0.5, integers.OPERATORS),
            *_scale(0.5, quantized.OPERATORS),
        ),
    ),
}
"""Family -> the first steps of its graphs, and the operators that follow."""
_SHARES = [0.35, 0.3, 0.12, 0.08, 0.15]
