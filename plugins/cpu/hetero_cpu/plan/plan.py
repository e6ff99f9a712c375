"""A plan: steps in order, a place in the arena for each value, and the nodes that take most of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Network, Node
from hetero_core.network.operators import STANDARD_DOMAINS
from hetero_core.network.types import TensorType
from hetero_cpu.machine.calls import NativeCall
from hetero_cpu.operators.recipe import NO_HALO, Array, Cut, Halo, Recipe
from hetero_cpu.plan.passes import list_static_types
from hetero_cpu.symbols.arrays import invert_order, lay_in

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_cpu.machine.compiler import Kernel


_WITHOUT_PRODUCTS = frozenset(
    {
        "Abs", "Add", "And", "ArgMax", "ArgMin", "ArrayFeatureExtractor", "Binarizer", "Cast", "CastMap",
        "CategoryMapper", "Ceil", "Clip", "Compress", "Concat", "ConcatFromSequence", "ConstantOfShape", "Cos",
        "CumSum", "DictVectorizer", "Div", "Equal", "Exp", "Expand", "FeatureVectorizer", "Flatten", "Floor", "Gather",
        "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "Imputer", "IsInf", "IsNaN",
        "LabelEncoder", "Less", "LessOrEqual", "Log", "LogSoftmax", "Max", "Min", "Mod", "Mul", "Neg", "NonZero",
        "Normalizer", "Not", "OneHot", "OneHotEncoder", "Or", "Pad", "Pow", "Range", "Reciprocal", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceSum", "Reshape", "Round", "Scaler", "ScatterElements", "ScatterND",
        "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceLength", "Shape", "Sigmoid", "Sign", "Sin",
        "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "StringNormalizer", "Sub", "Tanh", "TfIdfVectorizer", "Tile",
        "Tokenizer", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where", "ZipMap",
    }
)  # fmt: skip
"""Operators that the toolkit computes without products of matrices."""


def may_multiply(node: Node) -> bool:
    """Says whether the toolkit may multiply matrices for a node, or run an extension that asks for its context."""
    return node.op_type not in _WITHOUT_PRODUCTS or node.domain not in (*STANDARD_DOMAINS, MICROSOFT)


@dataclass(frozen=True, slots=True)
class Block:
    """A value that has memory of its own. `order` are the axes from the slowest to the fastest."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: tuple[int, ...]
    halo: Halo = NO_HALO
    """Zeros around each image, for channels last."""

    @property
    def nbytes(self) -> int:
        """The bytes of the array and its halo."""
        return prod(self.padded_shape) * self.dtype.itemsize

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape with the halo."""
        if self.halo == NO_HALO:
            return self.shape
        batch, channels, height, width = self.shape
        return (batch, channels, self.halo.top + height + self.halo.bottom, self.halo.left + width + self.halo.right)

    def lay(self, memory: Array) -> Array:
        """Returns the array in the first bytes of `memory`."""
        shape, halo = self.padded_shape, self.halo
        laid: Array = lay_in(memory, [shape[axis] for axis in self.order], self.dtype).transpose(invert_order(self.order))
        if halo != NO_HALO:
            laid = laid[:, :, halo.top : halo.top + self.shape[2], halo.left : halo.left + self.shape[3]]
        return laid


def keep(array: Array) -> Array:
    """Returns the array: the place of a value that takes all memory of its source."""
    return array


def take_cut(array: Array, *, cut: Cut) -> Array:
    """Returns a part of an array."""
    return array[cut]


@dataclass(frozen=True, slots=True)
class Derived:
    """A value in the memory of its source: a view of that, or written there by a step."""

    source: str
    make: Callable[[Array], Array] = keep


@dataclass(frozen=True, slots=True)
class Foreign:
    """A node that the toolkit computes. A result is copied into its place, or passed on by name if it has no place."""

    program: Program
    reads: tuple[str, ...]
    placed: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step: a recipe or a foreign node, and the offset of its working memory."""

    node: Node
    work: Recipe | Foreign
    writes: tuple[str, ...]
    scratch_offset: int = 0
    clears: tuple[str, ...] = ()
    """The values with halos that are written before it."""
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The planned strides in bytes of the values that it reads and writes."""

    @property
    def scratch(self) -> int:
        """The bytes that it works in."""
        return self.work.scratch if isinstance(self.work, Recipe) else 0


@dataclass(frozen=True, slots=True)
class External:
    """The values that may lie in memory of the caller: inputs, and outputs by the first value of their block.

    Each of these blocks has a place in the arena for the whole run all the same, for arrays that do not fit.
    """

    inputs: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def roots(self) -> tuple[str, ...]:
        """The first values of their blocks, inputs first."""
        return (*self.inputs, *self.outputs.values())


@dataclass(frozen=True, eq=False)
class ExecutionPlan:
    """Steps, and where each value lies: a block at an offset, or derived from another value; a value without a place is passed by name."""

    steps: tuple[PlannedStep, ...]
    places: Mapping[str, Block | Derived]
    offsets: Mapping[str, int]
    constants: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    arena_bytes: int
    external: External = field(default_factory=External)

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The machine code that the steps call."""
        listed = [kernel for step in self.steps if isinstance(step.work, Recipe) for kernel in step.work.kernels]
        if any(step.clears for step in self.steps):
            from hetero_cpu.operators.images import CLEAR  # LLVM

            listed.append(CLEAR)
        return tuple(dict.fromkeys(listed))

    @property
    def native_count(self) -> int:
        """Number of steps that are machine code."""
        return sum(isinstance(step.work, Recipe) and bool(step.work.kernels) for step in self.steps)

    @property
    def foreign_count(self) -> int:
        """Number of steps that are calls of the toolkit."""
        return sum(isinstance(step.work, Foreign) for step in self.steps)

    @property
    def has_products(self) -> bool:
        """True if `may_multiply` holds for a call of the toolkit."""
        return any(isinstance(step.work, Foreign) and may_multiply(step.node) for step in self.steps)


def count_constant_bytes(plans: Iterable[ExecutionPlan], constants: Iterable[Array]) -> int:
    """Returns the bytes of the constants that plans hold as they are, and of further constants; shared memory counts once."""
    held = [*constants, *(array for plan in plans for array in plan.constants.values())]
    for plan in plans:
        held += [value for step in plan.steps if isinstance(step.work, Foreign) for value in step.work.program.values]
    roots = [_find_root(array) for array in held if isinstance(array, np.ndarray)]
    return sum({array.__array_interface__["data"][0]: array.nbytes for array in roots}.values())


def _find_root(array: Array) -> Array:
    """Returns the array whose memory an array is a view of."""
    return _find_root(array.base) if isinstance(array.base, np.ndarray) else array


def list_actions(calls: Iterable[Any], native: list[NativeCall]) -> list[Any]:
    """Returns functions as they are, and calls of machine code, appended to `native`, as ranges of it."""
    actions: list[Any] = []
    for call in calls:
        if callable(call):
            actions.append(call)
            continue
        place = len(native)
        native.append(call)
        if actions and isinstance(actions[-1], range):
            actions[-1] = range(actions[-1].start, place + 1)
        else:
            actions.append(range(place, place + 1))
    return actions


_LEAST_SECONDS = 2e-4
"""Seconds below which no node is slow."""
_NATIVE_PRODUCT, _NATIVE_ELEMENT = 3e-11, 5e-10
"""Seconds of machine code for a multiplication of a product, and for an element of other operators."""
_BLAS_PRODUCT, _LOOP_PRODUCT, _TOOLKIT_ELEMENT = 5e-11, 1e-9, 5e-9
"""Seconds of the toolkit: for a multiplication by BLAS, by a loop of NumPy as for integers, and for an element."""
_BLAS_TYPES = frozenset({"float32", "float64"})
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_TAKING = ("ArrayFeatureExtractor", "Gather", "Shape", "Size", "Slice")
"""Operators that read no more elements than they write."""


def list_slow_nodes(plan: ExecutionPlan, network: Network) -> tuple[Node, ...]:
    """Returns the nodes for which the toolkit takes longer than machine code would for the whole network: an estimate, linear in nodes.

    `network` is that of the plan, with the sizes of a run.
    """
    # Branches have plans of their own.
    foreign = [step.node for step in plan.steps if isinstance(step.work, Foreign) and step.node.op_type != "If"]
    if not foreign:
        return ()
    types = list_static_types(network)
    types.update({name: constant.type for name, constant in network.initializers.items()})
    whole = sum(estimate_seconds(node, types, _NATIVE_PRODUCT, _NATIVE_ELEMENT) for node in network.nodes)
    least = max(whole, _LEAST_SECONDS)
    slow = []
    for node in foreign:
        dtypes = {types[value].dtype for value in node.reads[:2] if value in types}
        product = _BLAS_PRODUCT if dtypes <= _BLAS_TYPES else _LOOP_PRODUCT
        if estimate_seconds(node, types, product, _TOOLKIT_ELEMENT) >= least:
            slow.append(node)
    return tuple(slow)


def estimate_seconds(node: Node, types: Mapping[str, TensorType], product: float, element: float) -> float:
    """Returns seconds of a node at these rates, 0 if its sizes are unknown."""
    shapes = [_read_shape(value, types) for value in node.reads]
    written = max((prod(_read_shape(value, types)) for value in node.writes), default=0)
    weights = [shape for shape in shapes if len(shape) > 1]
    if len(weights) > 1:
        if "ConvTranspose" in node.op_type:
            return product * prod(weights[0]) * prod(weights[1][1:])
        if "Conv" in node.op_type:
            return product * written * prod(weights[1][1:])
        if "MatMul" in node.op_type or "Gemm" in node.op_type:
            return product * written * weights[0][0 if node.attributes.get("transA") else -1]
        if node.op_type in _RECURRENT:
            return product * prod(weights[0][:2]) * sum(map(prod, weights[1:3]))
    reads = [] if node.op_type.startswith(_TAKING) else map(prod, shapes)
    return element * max([written, *reads])


def _read_shape(value: str, types: Mapping[str, TensorType]) -> tuple[int, ...]:
    known = types.get(value)
    return (0,) if known is None or known.shape is None else tuple(size for size in known.shape if isinstance(size, int))
