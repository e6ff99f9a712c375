"""Draws a graph by its seed: the family, the element type, the inputs, the operators and the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.graphs.builder import RUNS, DrawnValue, GraphBuilder, NotApplicable
from hetero_core.conformance.graphs.operators import (
    ARRANGEMENT,
    CONTROL,
    ELEMENTWISE,
    IMAGE,
    INTEGER,
    QUANTIZED,
    SEQUENCE,
    WIDTHS,
    Operators,
)

if TYPE_CHECKING:
    import onnx

VERSION = 2
"""Version of the drawing; another version draws other graphs from the same seeds."""
LENGTHS = (*range(1, 18), 20, 24, 27, 28, 29, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 67)
SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 17, 20, 28, 32, 40)
EDGES = (16_384, 55_000, 65_536, 75_000, 120_000, 131_072, 186_000, 205_000, 262_144)
"""Bytes around which the memory of a plan changes its form: the sizes of images are drawn on both sides."""


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """A model, its family, and the inputs of each run by name; open dimensions differ from run to run."""

    seed: int
    family: str
    model: onnx.ModelProto
    feeds: tuple[Mapping[str, Any], ...]


def draw_graph(seed: int) -> DrawnGraph:
    """Returns the graph of a seed."""
    random = np.random.default_rng([VERSION, seed])
    family = str(random.choice(list(FAMILIES), p=_SHARES))
    is_bytes = family in ("quantized", "integer")
    dtype = "float32" if is_bytes else str(random.choice(["float32", "float16", "float64"], p=[0.85, 0.08, 0.07]))
    b = GraphBuilder(random, dtype=dtype, opset=int(random.choice([13, 17, 18, 21])))
    start, operators = FAMILIES[family]
    start(b)
    grow(b, operators, int(random.integers(3, 31)))
    read = {name for node in b.nodes for name in node.input}
    constants = {name: array for name, array in b.initializers.items() if name in read}
    model = b.make_model(b.nodes, b.inputs, choose_outputs(b), constants, f"{family}_{seed}")
    return DrawnGraph(seed, family, model, tuple({value.name: value.arrays[run] for value in b.inputs} for run in range(RUNS)))


def grow(b: GraphBuilder, operators: Operators, count: int) -> None:
    """Adds nodes until there are `count`; if an operator finds no value to read, another operator is drawn."""
    weights = np.array([weight for weight, _ in operators])
    for _ in range(20 * count):
        if len(b.nodes) >= count:
            return
        try:
            operators[int(b.random.choice(len(operators), p=weights / weights.sum()))][1](b)
        except NotApplicable:
            continue  # nodes that were added before stay in the graph; their unread values become outputs


def choose_outputs(b: GraphBuilder) -> list[DrawnValue]:
    """Returns the outputs: all unread values, at times also inner values and an input, in random order."""
    results = [value for value in b.values if value not in b.inputs]
    outputs = [value for value in results if value.name not in b.reads or b.chance(0.06)]
    if b.chance(0.08):
        outputs.append(b.choose(*b.inputs))
    return b.shuffle(*outputs)


def start_image(b: GraphBuilder) -> None:
    """Adds one to three images, often of the same height and width, at times with an open batch."""
    first = b.choose(1, 1, 1, 2, 3)
    batch = b.open_size("N", first) if b.chance(0.15) else first
    channels, *sides = _draw_image(b, first)
    b.add_input(b.dtype, (batch, channels, *sides))
    for _ in range(b.choose(0, 0, 1, 2)):
        shape = (b.choose(channels, *WIDTHS), *sides) if b.chance(0.7) else _draw_image(b, first)
        if first * np.prod(shape) <= 60_000:
            b.add_input(b.dtype, (batch, *shape))


def _draw_image(b: GraphBuilder, batch: int) -> tuple[int, int, int]:
    """Returns channels, height and width; half of the time the size in bytes is close to an element of EDGES."""
    height = b.choose(*SIDES)
    width = height if b.chance(0.6) else b.choose(*SIDES)
    pixels = batch * height * width
    channels = b.choose(*WIDTHS)
    if b.chance(0.5):
        channels = min(400, max(1, b.choose(*EDGES) // (4 * pixels) + b.integer(-1, 1)))
    return min(channels, max(1, 60_000 // pixels)), height, width


def start_sequence(b: GraphBuilder) -> None:
    """Adds a sequence, at times with open batch and length, a second sequence of its shape or width, at times indices."""
    batch, length, width = b.choose(1, 1, 2, 3), b.choose(*LENGTHS), b.choose(*WIDTHS)
    if b.chance(0.3):
        length = b.open_size("L", length)
        batch = b.open_size("N", batch) if b.chance(0.5) else batch
    shape = (batch, length, width) if b.chance(0.85) else (length, width)
    b.add_input(b.dtype, shape)
    if b.chance(0.4):
        b.add_input(b.dtype, shape if b.chance(0.5) else (*shape[:-1], b.choose(*WIDTHS)))
    if b.chance(0.3):
        b.add_input("int64", shape[:-1], bound=b.choose(2, 10, 50))


def start_quantized(b: GraphBuilder) -> None:
    """Adds an image or a sequence of float32, and at times bytes."""
    (start_image if b.chance(0.6) else start_sequence)(b)
    if b.chance(0.4):
        b.add_input(b.choose("uint8", "int8"), [size or 1 for size in b.values[0].shape], bound=120)


def start_integer(b: GraphBuilder) -> None:
    """Adds integers of one to three dimensions, a second value of their shape, at times numbers of float32."""
    shape: list[int | str] = [b.choose(1, 2, 3, 5, 8, 17, 33) for _ in range(b.integer(1, 3))]
    if b.chance(0.25):
        shape[0] = b.open_size("N", int(shape[0]))
    dtype = b.choose("int32", "int64")
    b.add_input(dtype, shape, bound=b.choose(5, 20))
    if b.chance(0.7):
        b.add_input(dtype, shape, bound=9)
    if b.chance(0.5):
        b.add_input("float32", shape)


def start_mixed(b: GraphBuilder) -> None:
    """Adds the inputs of an image network and of a sequence network."""
    start_image(b)
    b.add_input(b.dtype, (b.choose(1, 2), b.choose(*LENGTHS), b.choose(*WIDTHS)))


def _scale(factor: float, *operators: tuple[float, Callable[[GraphBuilder], object]]) -> Operators:
    return tuple((factor * weight, operator) for weight, operator in operators)


_COMMON = (*ELEMENTWISE, *_scale(0.4, *CONTROL))
_QUANTIZED_BESIDE = (*_scale(0.15, *IMAGE, *SEQUENCE, *ARRANGEMENT), *_scale(0.2, *_COMMON))
_MIXED = (*IMAGE, *SEQUENCE, *ARRANGEMENT, *_COMMON, *CONTROL, *_scale(0.5, *INTEGER, *QUANTIZED))

FAMILIES: Mapping[str, tuple[Callable[[GraphBuilder], None], Operators]] = {
    "image": (start_image, (*IMAGE, *ELEMENTWISE)),
    "sequence": (start_sequence, (*SEQUENCE, *ARRANGEMENT, *_scale(0.5, *_COMMON))),
    "quantized": (start_quantized, (*QUANTIZED, *_QUANTIZED_BESIDE)),
    "integer": (start_integer, (*INTEGER, *_scale(0.3, *_COMMON, *ARRANGEMENT))),
    "mixed": (start_mixed, _MIXED),
}
"""Family -> the first steps of its graphs, and the operators that follow with their weights."""
_SHARES = [0.35, 0.3, 0.12, 0.08, 0.15]
