"""GraphBuilder: a random model that grows node by node. Each new node is computed at once for the inputs of all runs.

So the shape, the element type and the numbers of every value are known, and a node that cannot be computed is not added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper

from hetero_core.errors import HeteroError
from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network

RUNS = 3
"""Runs of a graph, each with inputs of its own; open dimensions differ from run to run."""
LARGEST_BYTES = 400_000
"""No value of a graph is larger: twice the largest size at which the memory of a plan is known to change its form."""
LARGEST_WORK = 12_000_000
"""The largest number of multiplications of a node."""
LARGEST_NUMBER = {"float16": 1e3, "float32": 1e5, "float64": 1e5, "int32": 1e6, "int64": 1e6}
"""Element type -> the largest magnitude of a value; larger numbers would overflow, or lose the digits of the others, in a few nodes."""
FLOATS = ("float32", "float16", "float64")


class NotApplicable(Exception):  # not an error: another operator is drawn instead
    """The graph has no value that the operator could read, or the node cannot be computed."""


@dataclass(frozen=True, eq=False)
class DrawnValue:
    """A value of the graph, with its array in each run."""

    name: str
    arrays: tuple[Any, ...]

    @property
    def dtype(self) -> str:
        """The element type."""
        return str(self.arrays[0].dtype.name)

    @cached_property
    def shape(self) -> tuple[int | None, ...]:
        """The sizes; None for an open size, which differs between runs."""
        return tuple(
            sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*(array.shape for array in self.arrays), strict=True)
        )

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @cached_property
    def bound(self) -> float:
        """The largest magnitude of its numbers in any run."""
        return max(float(np.abs(array.astype(np.float64)).max(initial=0)) for array in self.arrays)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes. Raises: NotApplicable if one is open."""
        return tuple(map(self.size, range(self.rank)))

    def size(self, axis: int) -> int:
        """Returns the size of an axis. Raises: NotApplicable if the axis does not exist or is open."""
        if not -self.rank <= axis < self.rank or (size := self.shape[axis]) is None:
            raise NotApplicable
        return size


Operand = Any
"""An input of a node: a DrawnValue, "" for an absent input, or a constant: an array, a Python number, which gets the graph's
floating-point type, or a tuple of int64, such as axes and shapes."""


class GraphBuilder:
    """A growing graph; `values` are the values that operators may read, in order of creation."""

    def __init__(self, random: np.random.Generator, *, dtype: str, opset: int) -> None:
        self.random = random
        self.dtype = dtype
        self.opset = opset
        self.values: list[DrawnValue] = []
        self.inputs: list[DrawnValue] = []
        self.initializers: dict[str, Any] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.reads: set[str] = set()
        self._names = 0
        self._open_sizes: dict[str, list[int]] = {}
        self._declared: dict[str, Sequence[int | str]] = {}

    # Values and nodes

    def name(self, prefix: str) -> str:
        """Returns a new name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def open_size(self, name: str, size: int) -> str:
        """Declares an open size, which is `size` in the first run and random in the others; returns its name."""
        self._open_sizes[name] = [size, *(self.integer(1, size + 2) for _ in range(RUNS - 1))]
        return name

    def add_input(self, dtype: str, shape: Sequence[int | str], *, bound: int = 3) -> DrawnValue:
        """Adds an input: normal numbers, or integers below the bound, negative ones only of int32 and int8."""
        arrays = []
        for run in range(RUNS):
            sizes = tuple(self._open_sizes[size][run] if isinstance(size, str) else size for size in shape)
            low = -bound if dtype in ("int32", "int8") else 0
            drawn = self.random.standard_normal(sizes) if dtype in FLOATS else self.random.integers(low, bound, sizes)
            arrays.append(np.asarray(drawn).astype(dtype))
        value = DrawnValue(self.name("x"), tuple(arrays))
        self._declared[value.name] = shape
        self.inputs.append(value)
        self.values.append(value)
        return value

    def weight(self, *shape: int, deviation: float = 1.0, mean: float = 0.0) -> Any:
        """Returns normally distributed numbers of the graph's floating-point type."""
        return np.asarray(self.random.standard_normal(shape) * deviation + mean, self.dtype)

    def node(self, op_type: str, *inputs: Operand, **attributes: Any) -> DrawnValue:
        """Adds a node with one output and returns the output. Raises: NotApplicable."""
        return self.nodes_outputs(op_type, inputs, 1, **attributes)[0]

    def nodes_outputs(
        self, op_type: str, inputs: Sequence[Operand], count: int, *, captures: Sequence[DrawnValue] = (), **attributes: Any
    ) -> tuple[DrawnValue, ...]:
        """Adds a node and returns its outputs; `captures` are the values that its bodies read.

        Raises: NotApplicable if the node cannot be computed, or if an output is too large or not finite.
        """
        constants, names = {}, []
        for operand in inputs:
            if isinstance(operand, DrawnValue | str):
                names.append(operand if isinstance(operand, str) else operand.name)
                continue
            names.append(self.name("c"))
            is_number = isinstance(operand, int | float)
            constants[names[-1]] = np.asarray(
                operand, self.dtype if is_number else np.int64 if isinstance(operand, tuple) else None
            )
        results = [self.name("v") for _ in range(count)]
        attributes = {name: value for name, value in attributes.items() if value is not None}
        node = helper.make_node(op_type, names, results, name=self.name("n"), **attributes)
        read = {operand.name: operand for operand in (*inputs, *captures) if isinstance(operand, DrawnValue)}
        outputs = self._compute(node, list(read.values()), constants)
        for output in outputs:
            largest = LARGEST_NUMBER.get(output.dtype, 255)
            if max(array.nbytes for array in output.arrays) > LARGEST_BYTES or not output.bound <= largest:
                raise NotApplicable
        self.initializers |= constants
        self.nodes.append(node)
        self.reads |= read.keys()
        self.values += outputs
        return outputs

    def _compute(self, node: onnx.NodeProto, operands: list[DrawnValue], constants: dict[str, Any]) -> tuple[DrawnValue, ...]:
        """Returns the outputs of a node that the toolkit computes for each run."""
        try:
            program = compile_program(read_network(self.make_model([node], operands, node.output, constants, "node")))
            with np.errstate(all="ignore"):
                runs = [program.run(tuple(operand.arrays[run] for operand in operands)) for run in range(RUNS)]
        except (HeteroError, ValueError, IndexError) as error:
            raise NotApplicable from error
        return tuple(
            DrawnValue(name, tuple(np.asarray(array) for array in arrays))
            for name, arrays in zip(node.output, zip(*runs, strict=True), strict=True)
        )

    def make_model(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Sequence[DrawnValue],
        outputs: Sequence[DrawnValue | str],
        constants: dict[str, Any],
        name: str,
    ) -> onnx.ModelProto:
        """Returns a model of these nodes; only inputs of the graph have names for open sizes, and outputs given by name have no type."""

        def declare(value: DrawnValue | str) -> onnx.ValueInfoProto:
            if isinstance(value, str):
                return onnx.ValueInfoProto(name=value)
            dtype = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
            return helper.make_tensor_value_info(value.name, dtype, self._declared.get(value.name, value.shape))

        initializers = [onnx.numpy_helper.from_array(array, key) for key, array in constants.items()]
        graph = helper.make_graph(nodes, name, list(map(declare, inputs)), list(map(declare, outputs)), initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    # Choices

    def chance(self, probability: float) -> bool:
        """Returns True with this probability."""
        return bool(self.random.random() < probability)

    def choose(self, *choices: Any) -> Any:
        """Returns a random choice."""
        return choices[self.integer(0, len(choices) - 1)]

    def shuffle(self, *items: Any) -> list[Any]:
        """Returns the items in random order."""
        return [items[int(index)] for index in self.random.permutation(len(items))]

    def integer(self, low: int, high: int) -> int:
        """Returns a number from low to high, both included."""
        return int(self.random.integers(low, high + 1))

    def divisor(self, number: int, *divisors: int) -> int:
        """Returns one of the divisors that divide the number. Raises: NotApplicable."""
        fitting = [divisor for divisor in divisors if number % divisor == 0]
        if not fitting:
            raise NotApplicable
        return int(self.choose(*fitting))

    def require_work(self, work: float) -> None:
        """Raises NotApplicable for more multiplications than one node may have."""
        if work > LARGEST_WORK:
            raise NotApplicable

    def pick(self, suits: Callable[[DrawnValue], bool]) -> DrawnValue:
        """Returns a suitable value, preferring the newest and values not read so far. Raises: NotApplicable."""
        suited = [value for value in self.values if suits(value)]
        if not suited:
            raise NotApplicable
        draw = self.random.random()
        unread = [value for value in suited if value.name not in self.reads]
        pool = unread if draw < 0.35 and unread else suited[-3:] if draw < 0.7 else suited
        return pool[self.integer(0, len(pool) - 1)]

    def pick_float(self, *ranks: int, bound: float = 1e3) -> DrawnValue:
        """Returns a value of the graph's floating-point type, of these ranks if any are given. Raises: NotApplicable."""
        return self.pick(lambda value: value.dtype == self.dtype and value.bound <= bound and (not ranks or value.rank in ranks))

    def pick_like(self, value: DrawnValue) -> DrawnValue:
        """Returns a value of the same type and shape, at times `value` itself."""
        return self.pick(lambda other: (other.dtype, other.shape) == (value.dtype, value.shape))

    def pick_broadcast(self, value: DrawnValue) -> Operand:
        """Returns an operand that broadcasts to a value: a value of the graph, or weights for some of the value's axes."""
        others = [other for other in self.values if other is not value and other.dtype == value.dtype and other.rank <= value.rank]
        fitting = [
            other
            for other in others
            if all(size in (1, wide) for size, wide in zip(other.shape[::-1], value.shape[::-1], strict=False))
        ]
        if fitting and self.chance(0.4):
            return self.choose(*fitting)
        first = self.integer(0, value.rank)
        return self.weight(*(size if size is not None and self.chance(0.6) else 1 for size in value.shape[first:]))
