"""The expected outputs of a graph, and the judgement of a device's outputs: each element has to be within the bounds that rounding allows.

The toolkit computes node by node in float64: every floating-point constant and input is widened. To learn how far rounding may move an
output, the graph is computed again with each result (and, where an operator adds up products, each operand) multiplied by 1 + u, u random
within some units of the declared type's precision: Monte Carlo arithmetic. The spread of the results is the error allowed to a right
device. A number near a tie of Round, ArgMax or a comparison falls to either side in some of these runs, so its spread, and the allowed
error, is as large as the step. Source: Parker 1997, Monte Carlo arithmetic.

An element may be off by LENIENCE times the spread of the reference under noise, and by SLACK roundings of the largest number beside it.
If an element is outside, the reference is computed again, with more noise and many draws, to find numbers near ties before the output
is called wrong. If ONNX Runtime without optimizations is installed and disagrees with the reference in the same way, the case is
disputed: an oracle is wrong, not the device. ONNX Runtime is not used for products of bytes if it saturates them on this processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx

from hetero_core.dtypes import numpy_dtype
from hetero_core.kernels.execution import Program, Step
from hetero_core.kernels.program import compile_program
from hetero_core.network.graph import Network, Node, iterate_graphs
from hetero_core.network.types import TensorType
from hetero_core.network.writer import network_to_bytes
from hetero_core.testing.compare import measure_differences
from hetero_core.testing.reference_session import is_exact_reference, open_reference_session

UNIT: Mapping[str, float] = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-50}
"""The largest relative error of a rounding. The reference itself is float64, so the error of float64 is assumed to be larger than it is."""

_EXACT = frozenset(
    (  # noqa: SIM905  # a list of names reads better so
        "Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Concat Gather GatherElements GatherND ScatterND ScatterElements "
        "Expand Tile Pad Where Max Min Relu Neg Abs Clip MaxPool GlobalMaxPool DepthToSpace SpaceToDepth TopK Floor Ceil Round Sign "
        "Compress Trilu ReduceMax ReduceMin Dropout If Loop Scan Constant ConstantOfShape Shape Size NonZero ArgMax ArgMin OneHot "
        "ReverseSequence Equal Greater Less GreaterOrEqual LessOrEqual Not And Or Xor IsNaN IsInf Range Unique DequantizeLinear "
        "ThresholdedRelu"
    ).split()
)
"""Operators that return numbers that they read, or numbers that follow from them without rounding."""
_ACCURATE = frozenset(("Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Cast", "LeakyRelu", "PRelu"))
"""Operators with a single rounding; all others also get their operands moved."""

_QUANTIZING = frozenset(("QuantizeLinear", "QLinearConv", "QLinearMatMul", "DynamicQuantizeLinear"))
"""Operators whose first result is rounded to bytes."""
_NEAR_ONE = frozenset(("Erf",))
"""Operators that engines approximate to some units of 1, however small the result: OpenVINO's Erf is off by 4.4e-7 beside 0."""
_WITH_NUMBERS = frozenset(
    ("LeakyRelu", "Elu", "Celu", "Selu", "HardSigmoid", "ThresholdedRelu", "LRN", "Gemm", "BatchNormalization")
)
"""Operators that have floating-point attributes, also where they are left out."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise on values: up to `units` of their type's precision, drawn from `random`."""

    random: np.random.Generator
    units: float

    def move(self, array: Any, dtype: str | None, *, is_absolute: bool = False) -> Any:
        """Returns the array with noise relative to each number, or as far as 1.0 is moved; only floating-point arrays change."""
        if dtype is None or dtype not in UNIT or self.units == 0 or not _is_float(array):
            return array
        noise = self.random.uniform(-1, 1, array.shape) * (self.units * UNIT[dtype])
        return array + noise if is_absolute else array * (1 + noise)


class Reference:
    """A network in float64."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._dtype_of: dict[str, str | None] = {}
        for graph in iterate_graphs(network):
            types = {**graph.types, **{spec.name: spec.type for spec in (*graph.inputs, *graph.outputs)}}
            types |= {name: constant.type for name, constant in graph.initializers.items()}
            self._dtype_of |= {name: each.dtype for name, each in types.items() if isinstance(each, TensorType)}
        self._program = compile_program(network)

    def compute(self, feeds: Mapping[str, Any], *, units: float = 0.0, draw: int = 0) -> tuple[Any, ...]:
        """Returns the outputs by position, floating-point ones in float64, with values moved by up to `units`."""
        program = self._widen(self._program, Noise(np.random.default_rng(draw), units))
        return program.run(tuple(widen(feeds[spec.name]) for spec in self.network.inputs))

    def _widen(self, program: Program, noise: Noise) -> Program:
        def widen_step(step: Step) -> Step:
            bodies = tuple(replace(body, program=self._widen(body.program, noise)) for body in step.bodies)
            return replace(step, function=partial(self._run, step, noise), bodies=bodies)

        return replace(program, values=tuple(map(widen, program.values)), steps=tuple(map(widen_step, program.steps)))

    def _run(self, step: Step, noise: Noise, *inputs: Any, **bodies: Any) -> Any:
        node = step.node

        def compute() -> tuple[Any, ...]:
            results = step.function(*self._move_operands(node, noise, inputs), **bodies)
            return tuple(map(widen, results if isinstance(results, tuple) else (results,)))

        results = compute()
        if noise.units and node.op_type in _QUANTIZING:
            # Noise on a scale moves all elements together, but engines break ties per element.
            others = compute()
            results = (np.where(noise.random.random(results[0].shape) < 0.5, results[0], others[0]), *results[1:])
        if node.op_type in _EXACT:
            return results
        return tuple(
            noise.move(result, self._precision(node, name), is_absolute=node.op_type in _NEAR_ONE)
            for result, name in zip(results, node.outputs, strict=False)
        )

    def _move_operands(self, node: Node, noise: Noise, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if node.op_type in _EXACT or node.op_type in _ACCURATE:
            return inputs
        # The scales of Resize determine the output size, so they get no noise.
        count = 1 if node.op_type == "Resize" else len(inputs)
        moved = (noise.move(value, self._precision(node, name)) for value, name in zip(inputs[:count], node.inputs, strict=False))
        return (*moved, *inputs[count:])

    def _precision(self, node: Node, name: str) -> str | None:
        """Returns the type that determines the precision of a value.

        Attributes are float32 in nodes of any type, and the mean of a LayerNormalization is float32 unless `stash_type` is set.
        """
        dtype = self._dtype_of.get(name)
        is_single = node.op_type in ("LayerNormalization", *_WITH_NUMBERS) or any(
            isinstance(attribute, float) for attribute in node.attributes.values()
        )
        return "float32" if dtype == "float64" and is_single else dtype


def widen(value: Any) -> Any:
    """Returns floating-point arrays in float64, lists item by item, everything else as it is."""
    if isinstance(value, list):
        return [widen(element) for element in value]
    return np.asarray(value).astype(np.float64) if _is_float(value) else value


def _is_float(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and (dtype.kind == "f" or dtype.name == "bfloat16")


FIRST_UNITS, FIRST_DRAWS, FIRST_LENIENCE = 4.0, 2, 16.0
SECOND_UNITS, SECOND_DRAWS, SECOND_LENIENCE = 64.0, 24, 8.0
SECOND_UNITS_OF_HALF = 8.0
"""A device may compute float16 in float32, or round after each operator; in neither case it is off by more."""
STRAYS = 4
SLACK: Mapping[str, float] = {"float32": 64.0, "float16": 8.0, "bfloat16": 8.0, "float64": 256.0}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The reference's value of an output, and the allowed distance of each element from it.

    `strays` is the number of elements of a draw outside the bounds of all other draws, `farthest` their largest distance. STRAYS times as
    many may be outside in a device's output. Strays only occur if inner numbers near ties were rounded.
    """

    exact: Any
    allowed: Any
    strays: int = 0
    farthest: float = 0.0


class Expectation:
    """The expected outputs of a network for some inputs, computed once, when first needed."""

    def __init__(self, network: Network, feeds: Mapping[str, Any], *, reference: Reference | None = None) -> None:
        """`reference` is an existing Reference of this network; by default it is made here."""
        self._network = network
        self._feeds = feeds
        self._reference = Reference(network) if reference is None else reference

    @cached_property
    def _first(self) -> list[Bounds]:
        return self._bound(FIRST_UNITS, FIRST_DRAWS, FIRST_LENIENCE)

    @cached_property
    def _second(self) -> list[Bounds]:
        has_half = any(spec.dtype == "float16" for spec in (*self._network.inputs, *self._network.outputs))
        return self._bound(SECOND_UNITS_OF_HALF if has_half else SECOND_UNITS, SECOND_DRAWS, SECOND_LENIENCE)

    @cached_property
    def _engine(self) -> list[Any] | None:
        return run_engine(network_to_bytes(self._network), self._feeds)

    def _bound(self, units: float, draws: int, lenience: float) -> list[Bounds]:
        exact = self._reference.compute(self._feeds)
        moved = [self._reference.compute(self._feeds, units=units, draw=draw + 1) for draw in range(draws)]
        return [
            _bound_output(
                value, [measure_differences(outputs[index], value) for outputs in moved], lenience, _slack(value, spec.dtype)
            )
            for index, (value, spec) in enumerate(zip(exact, self._network.outputs, strict=True))
        ]

    def describe_fault(self, outputs: Sequence[Any]) -> str | None:
        """Returns a description of the first wrong output of a device, None if all outputs are right."""
        return None if self._judge(outputs, self._first) is None else self._judge(outputs, self._second)

    def make_presets(self) -> dict[str, Any]:
        """Returns an array with arbitrary numbers for each output, to be filled by a run; outputs that are inputs have no array."""
        return {
            spec.name: np.full(target.exact.shape, 3, numpy_dtype(spec.dtype or "float32"))
            for spec, target in zip(self._network.outputs, self._first, strict=True)
            if spec.name not in self._network.index_of_input
        }

    def describe_dispute(self) -> str | None:
        """Returns the first disagreement of ONNX Runtime with the reference; None if they agree or it is no oracle for the network."""
        return None if self._engine is None else self.describe_fault(self._engine)

    def _judge(self, outputs: Sequence[Any], bounds: Sequence[Bounds]) -> str | None:
        judged = zip(outputs, bounds, self._network.outputs, strict=True)
        faults = (describe(np.asarray(value), bound, spec.name, spec.dtype or "") for value, bound, spec in judged)
        return next((fault for fault in faults if fault is not None), None)


def _bound_output(exact: Any, distances: Sequence[Any], lenience: float, slack: float) -> Bounds:
    largest = np.zeros(exact.shape)
    second = np.zeros(exact.shape)
    for distance in distances:
        second = np.maximum(second, np.minimum(largest, distance))
        largest = np.maximum(largest, distance)
    strays = 0
    if len(distances) > 2:
        for distance in distances:
            others = np.where(distance >= largest, second, largest)
            strays = max(strays, int((distance > lenience * others + slack).sum()))
    farthest = float(largest.max(initial=0.0))
    return Bounds(exact, lenience * largest + slack, strays, lenience * farthest + slack)


def describe(value: Any, bound: Bounds, name: str, dtype: str) -> str | None:
    """Returns the first and the largest violation of an output's bounds, or None."""
    if value.shape != bound.exact.shape:
        return f"output '{name}': expected shape {list(bound.exact.shape)}, got {list(value.shape)}"
    if value.dtype.name != dtype:
        return f"output '{name}': expected element type {dtype}, got {value.dtype.name}"
    distance = measure_differences(value, bound.exact)
    wrong = distance > bound.allowed
    if not wrong.any() or (wrong.sum() <= STRAYS * bound.strays and float(distance.max()) <= bound.farthest):
        return None
    excess = np.where(wrong, distance, -1)
    index = np.unravel_index(int(np.argmax(excess)), excess.shape)
    place = [int(axis) for axis in index]
    return (
        f"output '{name}': {int(wrong.sum())} of {wrong.size} elements of {dtype} {list(value.shape)} are wrong, most at {place}: "
        f"expected {bound.exact[index]!s}, got {value[index]!s}, off by {distance[index]:.3g} where {bound.allowed[index]:.3g} may be"
    )


def _slack(exact: Any, dtype: str | None) -> float:
    if dtype is None or dtype not in UNIT:
        return 0.0
    sizes = np.abs(exact[np.isfinite(exact)])
    return SLACK[dtype] * UNIT[dtype] * float(sizes.max(initial=0.0)) + float(np.finfo(dtype).tiny)


def run_engine(model: bytes, feeds: Mapping[str, Any]) -> list[Any] | None:
    """Returns the outputs of ONNX Runtime without optimizations.

    None if it is not installed, refuses the model, or does not multiply the model's bytes exactly on this processor.
    """
    if find_spec("onnxruntime") is None or not is_exact_reference(onnx.load_from_string(model)):
        return None
    try:
        return list(open_reference_session(model).run(None, dict(feeds)))
    except Exception as error:  # ONNX Runtime's errors have no common class; other errors are raised again
        if type(error).__module__.startswith("onnxruntime"):
            return None
        raise
