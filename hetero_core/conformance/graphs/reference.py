"""Expected outputs of a graph: the toolkit computes node by node in float64, with the uncertainty that rounding leaves.

Every floating-point constant and input is widened to float64. To learn how far rounding may move an output, the graph is computed again
with each result (and, where an operator adds up products, each operand) multiplied by 1 + u, u random within some units of the declared
type's precision: Monte Carlo arithmetic. The spread of the results is the error allowed to a right device. A number near a tie of Round,
ArgMax or a comparison falls to either side in some of these runs, so its spread, and the allowed error, is as large as the step.
Source: Parker 1997, Monte Carlo arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hetero_core.kernels.execution import Program, Step
from hetero_core.kernels.program import compile_program
from hetero_core.network.graph import Network, Node, iterate_graphs
from hetero_core.network.types import TensorType

UNIT: Mapping[str, float] = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-50}
"""The largest relative error of a rounding. The reference itself is float64, so the error of float64 is assumed to be larger than it is."""

_EXACT = frozenset(
    (  # noqa: SIM905  # a list of names reads better so
        "Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Concat "
        "Gather GatherElements GatherND ScatterND ScatterElements Expand Tile Pad Where "
        "Max Min Relu Neg Abs Clip MaxPool GlobalMaxPool DepthToSpace "
        "SpaceToDepth TopK Floor Ceil Round Sign Compress Trilu ReduceMax "
        "ReduceMin Dropout If Loop Scan Constant ConstantOfShape Shape Size "
        "NonZero ArgMax ArgMin OneHot ReverseSequence Equal Greater Less GreaterOrEqual "
        "LessOrEqual Not And Or Xor IsNaN IsInf Range Unique "
        "DequantizeLinear ThresholdedRelu "
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

    def move(self, array: Any, dtype: str | None) -> Any:
        """Returns the array with noise relative to each number; only floating-point arrays change."""
        return array * (1 + self._draw(array, dtype)) if self._moves(array, dtype) else array

    def shift(self, array: Any, dtype: str | None) -> Any:
        """Returns the array with absolute noise: each number is moved as far as 1.0 would be by `move`."""
        return array + self._draw(array, dtype) if self._moves(array, dtype) else array

    def _moves(self, array: Any, dtype: str | None) -> bool:
        return dtype in UNIT and self.units != 0 and _is_float(array)

    def _draw(self, array: Any, dtype: str | None) -> Any:
        return self.random.uniform(-1, 1, array.shape) * (self.units * UNIT[str(dtype)])


class Reference:
    """A network in float64."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._dtype_of = {
            name: value_type.dtype
            for graph in iterate_graphs(network)
            for name, value_type in graph.types.items()
            if isinstance(value_type, TensorType)
        }
        self._dtype_of |= {spec.name: spec.dtype for graph in iterate_graphs(network) for spec in (*graph.inputs, *graph.outputs)}
        self._dtype_of |= {
            name: constant.type.dtype
            for graph in iterate_graphs(network)
            for name, constant in graph.initializers.items()
            if isinstance(constant.type, TensorType)
        }
        self._program = compile_program(network)

    def compute(self, feeds: Mapping[str, Any], *, units: float = 0.0, draw: int = 0) -> tuple[Any, ...]:
        """Returns the outputs by position, floating-point ones in float64, with values moved by up to `units`."""
        program = self._widen(self._program, Noise(np.random.default_rng(draw), units))
        return program.run(tuple(widen(feeds[spec.name]) for spec in self.network.inputs))

    def _widen(self, program: Program, noise: Noise) -> Program:
        return replace(
            program,
            values=tuple(widen(value) for value in program.values),
            steps=tuple(self._widen_step(step, noise) for step in program.steps),
        )

    def _widen_step(self, step: Step, noise: Noise) -> Step:
        bodies = tuple(replace(body, program=self._widen(body.program, noise)) for body in step.bodies)
        return replace(step, function=partial(self._run, step, noise), bodies=bodies)

    def _run(self, step: Step, noise: Noise, *inputs: Any, **bodies: Any) -> Any:
        node = step.node
        results = self._call(step, self._move_operands(node, noise, inputs), bodies)
        if noise.units and node.op_type in _QUANTIZING:
            # Noise on a scale moves all elements together, but engines break ties per element.
            others = self._call(step, self._move_operands(node, noise, inputs), bodies)
            results = (np.where(noise.random.random(results[0].shape) < 0.5, results[0], others[0]), *results[1:])
        if node.op_type not in _EXACT:
            spread = noise.shift if node.op_type in _NEAR_ONE else noise.move
            results = tuple(
                spread(result, self._precision(node, name)) for result, name in zip(results, node.outputs, strict=False)
            )
        return results

    def _call(self, step: Step, inputs: tuple[Any, ...], bodies: Mapping[str, Any]) -> tuple[Any, ...]:
        results = step.function(*inputs, **bodies)
        return tuple(widen(result) for result in (results if isinstance(results, tuple) else (results,)))

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
