"""Functions and arithmetic of elements, alone or in chains, by machine code: one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan

import numpy as np

from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType
from hetero_cpu.machine.arithmetic import EMITTERS, Activation, emit_activations
from hetero_cpu.machine.calls import Array, NativeCall
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.groups import PRODUCTS, Extra, Group
from hetero_cpu.operators.recipe import Recipe, Site, lies_channels_last, order_axes
from hetero_cpu.operators.rows import RowWalk, call_rows, cut_rows, find_kinds
from hetero_cpu.operators.weights import PackedWeights, pack_affine
from hetero_cpu.symbols.arrays import broadcast_shapes, lay_empty
from hetero_cpu.symbols.sizes import is_open, is_same_shape

# Vectors of a row that are loaded before the first is written; fewer for long expressions, which would take long to compile.
_UNROLLED = 4
_UNROLLED_LONG = 2
_LONG = frozenset(
    {"Celu", "Cos", "Elu", "Erf", "Exp", "Gelu", "GeluTanh", "Log", "Mish", "Selu", "Sigmoid", "Sin", "Softplus", "Swish", "Tanh"}
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A function of earlier values: operand k of 0 or more is the k-th operand of the expression, -1 - k the result of instruction k."""

    operator: str
    operands: tuple[int, ...]
    numbers: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        operands = "".join(f"o{operand}" if operand >= 0 else f"t{-1 - operand}" for operand in self.operands)
        return f"{Activation(self.operator, self.numbers).name}{operands}"


@dataclass(frozen=True, slots=True)
class Expression:
    """Instructions, the last of which is the result, and the kind of each operand; without instructions it is the first operand.

    Operands of the kind "b" are bytes, and so is the result if it `is_narrow`.
    """

    kinds: str
    instructions: tuple[Instruction, ...]
    is_narrow: bool = False

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        return f"{self.kinds}_{'_'.join(instruction.name for instruction in self.instructions)}{'_b' * self.is_narrow}"

    def find_other(self) -> int | None:
        """Returns the place of the first full operand behind the first; None without a second full operand."""
        return next((place for place, kind in enumerate(self.kinds) if place and kind in "vb"), None)

    @property
    def kind_of_other(self) -> str:
        """The kind of that operand, and of an addend without it."""
        place = self.find_other()
        return "v" if place is None else self.kinds[place]


PLAIN_EXPRESSION = Expression("v", ())


WHOLE = 1.5 * 2**23
"""Added to a number of up to 2^22, it rounds it, ties to even, and leaves it in the lowest bits."""


def _limit(a: Floats, b: Floats) -> Floats:
    low = 0.0 - b
    return (a > low).choose(a, low).at_most(255.0 - b)


COMBINERS: Mapping[str, Callable[..., Floats]] = {
    "Add": lambda code, a, b: a + b,
    "Sub": lambda code, a, b: a - b,
    "Mul": lambda code, a, b: a * b,
    "Div": lambda code, a, b: a / b,
    # A NaN of either side stays.
    "Max": lambda code, a, b: b.is_nan().choose(b, a.at_least(b)),
    "Min": lambda code, a, b: b.is_nan().choose(b, a.at_most(b)),
    "PRelu": lambda code, a, b: (a < 0.0).choose(a * b, a),
    "MultiplyAdd": lambda code, a, b, c: code.multiply_add(a, b, c),
    # Of a quantization: limit(round(a)) to -b .. 255 - b, of NaN -b; this as the lowest byte less b; and that of whole numbers.
    "Limit": lambda code, a, b: (_limit(a, b) + WHOLE) - WHOLE,
    "LimitNarrow": lambda code, a, b: (_limit(a, b) + WHOLE) + b,
    "LimitWhole": lambda code, a, b: _limit(a, b) + WHOLE,
    "Narrow": lambda code, a, b: (a + b) + WHOLE,
}
"""Functions of two or three vectors."""


def make_elementwise(expression: Expression) -> Kernel:
    """Returns the kernel of an expression; its row is that of `row_walk`, with the result before the operands."""
    return Kernel(f"elementwise_{expression.name}", partial(_emit, expression=expression))


def _emit(name: str, width: int, expression: Expression) -> Code:
    code, kinds = Code(name, 3, width), dict(enumerate(expression.kinds))
    # The result is array 0, operand k is array k + 1.
    walk = RowWalk(code, len(kinds) + 1)
    constants = {k: code.spread(code.load_scalar(walk.addresses[k + 1])) for k, kind in kinds.items() if kind == "s"}
    long = sum(instruction.operator in _LONG for instruction in expression.instructions)
    together = _UNROLLED if long == 0 else _UNROLLED_LONG if long < _UNROLLED else 1
    with walk.visit([0, *(k + 1 for k, kind in kinds.items() if kind != "s")]) as (addresses, length):
        fixed = constants | {k: code.spread(code.load_scalar(addresses[k + 1])) for k, kind in kinds.items() if kind == "r"}

        def compute(start: Number, vectors: int, mask: Mask | None) -> None:
            places = [start + vector * width for vector in range(vectors)]
            loaded = [
                {k: load_operand(code, kind, addresses[k + 1], place, mask) for k, kind in kinds.items() if kind in "vb"}
                for place in places
            ]
            results = [emit_expression(code, expression, fixed | operands) for operands in loaded]  # called inside the walk
            for place, result in zip(places, results, strict=True):
                store_result(code, expression, addresses[0], place, result, mask)  # as above

        unrolled, full = length - length % (width * together), length - length % width
        with code.loop(0, unrolled, width * together) as i:
            compute(i, together, None)
        with code.loop(unrolled, full, width) as i:
            compute(i, 1, None)
        with code.when(full < length):
            compute(full, 1, code.mask_first(length - full))
    return code.finish()


def load_operand(code: Code, kind: str, address: Number, element: Number | int, mask: Mask | None) -> Floats:
    """Returns a vector of an operand of the kind "v" or "b", from an element on."""
    if kind == "b":
        return code.load_bytes(address + element, code.width, mask=mask)
    return code.load(address + element * FLOAT_BYTES, mask=mask)


def store_result(
    code: Code, expression: Expression, address: Number, element: Number | int, value: Floats, mask: Mask | None
) -> None:
    """Writes a vector of the result of an expression, from an element on."""
    if expression.is_narrow:
        code.store_whole(address + element, value, "lowest", mask=mask)
    else:
        code.store(address + element * FLOAT_BYTES, value, mask=mask)


def emit_expression(code: Code, expression: Expression, operands: Mapping[int, Floats]) -> Floats:
    """Returns the result of an expression for one vector of each operand."""
    results: list[Floats] = []
    for instruction in expression.instructions:
        values = [operands[operand] if operand >= 0 else results[-1 - operand] for operand in instruction.operands]
        function = COMBINERS[instruction.operator] if instruction.operator in COMBINERS else EMITTERS[instruction.operator]
        results.append(function(code, *values, *instruction.numbers))
    return results[-1] if results else operands[0]


def store_product(
    code: Code,
    expression: Expression,
    activations: tuple[Activation, ...],
    vectors: Sequence[Floats],
    result: Floats,
    *,
    y: Number,
    added: Number | None,
    element: Number | int,
    mask: Mask | None,
) -> None:
    """Writes a vector of a product: the activations of it and its addend, if any; or an expression of constants, in order, and of both."""
    other = None if added is None else load_operand(code, expression.kind_of_other, added, element, mask)
    other_place, constants = expression.find_other(), iter(vectors)
    if other is not None and other_place is None:
        result = result + other
    operands = {0: emit_activations(code, activations, result)}
    if other is not None and other_place is not None:
        operands[other_place] = other
    operands |= {place: next(constants) for place, kind in enumerate(expression.kinds) if kind in "cs"}
    store_result(code, expression, y, element, emit_expression(code, expression, operands), mask)


PLAIN = frozenset(
    {
        "Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid",
        "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh",
    }
)  # fmt: skip
"""The functions that have neither numbers nor attributes."""
# Attributes that are numbers of the activation, in the order in which its function takes them. Source: the operators' pages of ONNX.
_NUMBERS: Mapping[str, Mapping[str, float]] = {
    "Celu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "Swish": {"alpha": 1.0},
    "ThresholdedRelu": {"alpha": 1.0},
}


POWERS = frozenset({-2.0, -1.0, 1.0, 2.0, 3.0, 4.0})
"""Exponents that are made of products."""
OPERATORS = PLAIN | frozenset(_NUMBERS) | {"Clip", "Gelu", "PRelu", "Pow"}
"""The operators that may be functions of one value."""


def read_activation(node: Node, constants: Mapping[str, Array]) -> Activation | None:
    """Returns the function of its first input that a node is; None for other nodes, or if it reads further computed values."""
    if node.domain or node.op_type not in OPERATORS or any(name and name not in constants for name in node.inputs[1:]):
        return None
    activation = _read_function(node, [constants[name] if name else None for name in node.inputs[1:]])
    return None if activation is None or any(map(isnan, activation.numbers)) else activation


def _read_function(node: Node, operands: Sequence[Array | None]) -> Activation | None:
    operator, attributes = node.op_type, node.attributes
    if any(operand is not None and operand.size != 1 for operand in operands):
        return None
    numbers = [None if operand is None else operand.reshape(-1)[0] for operand in operands]
    if operator == "Clip":
        # Absent bounds are those of float32. Source: ONNX Clip-6 has attributes, Clip-11 inputs.
        limits = np.finfo(np.float32)
        bounds = [attributes.get("min"), attributes.get("max")] if node.since_version < 11 else [*numbers, None, None]
        low, high = (limit if bound is None else bound for bound, limit in zip(bounds, (limits.min, limits.max), strict=False))
        return Activation("Clip", (_single(low), _single(high))) if set(attributes) <= {"min", "max"} else None
    if operator in ("PRelu", "Pow"):
        operand = operands[0]
        if operand is None or operand.ndim > 1 or (operator == "Pow" and float(operand.item()) not in POWERS):
            return None
        # A single slope for all elements is LeakyRelu's.
        return (
            Activation("LeakyRelu", (_single(numbers[0]),))
            if operator == "PRelu"
            else Activation("Power", (float(operand.item()),))
        )
    if operator == "Gelu":
        function = {"none": "Gelu", "tanh": "GeluTanh"}.get(attributes.get("approximate", "none"))
        return None if function is None or operands else Activation(function)
    defaults = _NUMBERS.get(operator, {})
    if operands or not set(attributes) <= set(defaults):
        return None
    return Activation(operator, tuple(_single(attributes.get(name, default)) for name, default in defaults.items()))


def _single(number: object) -> float:
    # As the operators have it: attributes and bounds are float32.
    return float(np.float32(number))  # type: ignore[arg-type]  # attributes are numbers here


# Operators of two inputs or more, each with the version since which it broadcasts as NumPy does.
_BINARY: Mapping[str, int] = {"Add": 7, "Sub": 7, "Mul": 7, "Div": 7, "PRelu": 7, "Max": 8, "Min": 8, "Sum": 8}
_OF_TWO = frozenset({"Add", "Sub", "Mul", "Div", "PRelu"})
# More would compile slowly, and need more registers than there are.
_MOST_NODES, _MOST_OPERANDS = 24, 8

ELEMENTWISE = OPERATORS | frozenset(_BINARY) | {"BatchNormalization", "MultiplyAdd"}
"""The operators that may be part of an expression."""


@dataclass(slots=True, eq=False)
class ExpressionReader:
    """Reads nodes in order: `operands` are values of the plan by name, or constants; `instructions` the operations on them."""

    constants: Mapping[str, Array]
    weights: PackedWeights
    ranks: Mapping[str, int]
    """The ranks of values, which BatchNormalization asks for."""
    operands: list[str | Array] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    """The operands and results by the names of their values."""
    shifts: Mapping[str, float] = field(default_factory=dict)
    """Those of a `Site`."""

    @classmethod
    def of_site(cls, site: Site, product: str = "") -> ExpressionReader:
        """Returns the reader of the expression of a group, or of what is behind its `product`."""
        values = (value for node in site.group.members for value in node.reads if value in site.types)
        ranks = {value: len(site.types[value].shape or ()) for value in values}
        begin: tuple[list[str | Array], dict[str, int]] = ([product], {product: 0}) if product else ([], {})
        return cls(site.constants, site.weights, ranks, begin[0], known=begin[1], shifts=site.shifts)

    def finish(self, kinds: str, result: str) -> Expression:
        """Returns the expression of a value, with the kind of each operand so far."""
        if result not in self.shifts:
            return Expression(kinds, tuple(self.instructions))
        last = self.instructions[-1]
        shift = np.array(self.shifts[result], np.float32)
        if last.operator == "Limit" and (shift == 0 or self._holds(last.operands[1], shift)):
            self._add("LimitNarrow" if shift else "LimitWhole", last.operands)
            return Expression(kinds, tuple(self.instructions), is_narrow=True)
        self._add("Narrow", (-len(self.instructions), self._refer_constant(shift)))
        return Expression(f"{kinds}s", tuple(self.instructions), is_narrow=True)

    def read_node(self, node: Node) -> bool:
        """Adds a node; returns whether it could be read."""
        if node.domain or len(node.writes) != 1:
            return False
        if node.op_type == "BatchNormalization":
            return self._read_batch_normalization(node)
        if node.op_type == "MultiplyAdd":
            self.known[node.outputs[0]] = self._add("MultiplyAdd", tuple(map(self._refer, node.inputs)))
            return True
        if node.op_type in _BINARY and not (node.op_type == "PRelu" and read_activation(node, self.constants)):
            return self._read_binary(node)
        activation = read_activation(node, self.constants)
        if activation is None:
            return False
        self.known[node.outputs[0]] = self._add(activation.operator, (self._refer(node.inputs[0]),), activation.numbers)
        return True

    def _read_binary(self, node: Node) -> bool:
        count = len(node.inputs)
        fits = count == 2 if node.op_type in _OF_TWO else count >= 2
        if not fits or node.attributes or node.since_version < _BINARY[node.op_type]:
            return False
        operator = "Add" if node.op_type == "Sum" else node.op_type
        result = self._refer(node.inputs[0])
        for value in node.inputs[1:]:
            result = self._add(operator, (result, self._refer(value)))
        self.known[node.outputs[0]] = result
        return True

    def _read_batch_normalization(self, node: Node) -> bool:
        """Reads a scale and a shift for each channel, made of the parameters in float64."""
        parameters = tuple(self.constants[name] for name in node.inputs[1:5] if name in self.constants)
        rank = self.ranks.get(node.inputs[0], 0)
        if len(parameters) != 4 or node.since_version < 9 or node.attributes.get("training_mode", 0) or rank < 2:
            return False
        if any(parameter.dtype != np.float32 or parameter.ndim != 1 for parameter in parameters):
            return False
        if len({parameter.size for parameter in parameters}) != 1:
            return False  # the toolkit's kernel says what is wrong
        epsilon = float(node.attributes.get("epsilon", 1e-5))

        packed = self.weights.pack(parameters, ("affine", epsilon), partial(pack_affine, epsilon=epsilon))
        scale, shift = (vector.reshape(-1, *[1] * (rank - 2)) for vector in packed)
        operands = (self._refer(node.inputs[0]), self._refer_constant(scale), self._refer_constant(shift))
        self.known[node.outputs[0]] = self._add("MultiplyAdd", operands)
        return True

    def _add(self, operator: str, operands: tuple[int, ...], numbers: tuple[float, ...] = ()) -> int:
        limited = self._find_limited(operands) if operator == "Sub" else None
        if limited is not None:
            operator, operands = "Limit", limited
        self.instructions.append(Instruction(operator, operands, numbers))
        return -len(self.instructions)

    def _find_limited(self, operands: tuple[int, ...]) -> tuple[int, int] | None:
        """Returns x and c if the operands are limit(round(x) + c) to bytes and c, as the pass `compute_integers` writes a quantization."""
        place, number = operands
        for operator, numbers in (("Clip", (0.0, 255.0)), ("ThresholdedRelu", (0.0,)), ("Add", ()), ("Round", ())):
            maker = self.instructions[-1 - place] if place < 0 else None
            if maker is None or (maker.operator, maker.numbers) != (operator, numbers):
                return None
            if operator == "Add":
                constant = self.operands[number] if number >= 0 <= maker.operands[1] else ""
                if isinstance(constant, str) or constant.size != 1 or not self._holds(maker.operands[1], constant):
                    return None
            place = maker.operands[0]
        return place, number

    def _holds(self, place: int, number: Array) -> bool:
        operand = self.operands[place] if place >= 0 else ""
        return not isinstance(operand, str) and bool((operand == number).all())

    def _refer(self, value: str) -> int:
        if value not in self.known:
            self.known[value] = len(self.operands)
            self.operands.append(self.constants.get(value, value))
            if value in self.shifts:
                shift = self._refer_constant(np.array(self.shifts[value], np.float32))
                self.known[value] = self._add("Sub", (self.known[value], shift))
        return self.known[value]

    def _refer_constant(self, array: Array) -> int:
        self.operands.append(array)
        return len(self.operands) - 1


def join_chains(
    groups: Sequence[Group], graph: Graph, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> tuple[Group, ...]:
    """Returns the groups, joined if they are a single expression, in an order in which they can run.

    A joined group takes the place of its last node.
    """
    chains: list[Group | None] = []
    position_of_value: dict[str, int] = {}
    for group in groups:
        chain = group
        if _is_link(group, types, constants):
            chain = _join(group, chains, position_of_value, graph, types)
        position_of_value.update(dict.fromkeys(filter(None, chain.outputs), len(chains)))
        chains.append(chain)
    return tuple([chain for chain in chains if chain is not None])


def join_products(groups: Sequence[Group], graph: Graph, takes_expression: Callable[[Node], bool]) -> tuple[Group, ...]:
    """Returns the groups with the expressions joined to the products of which only they read the result, in an order to run in."""
    joined: list[Group | None] = []
    position_of_value: dict[str, int] = {}
    for group in groups:
        if group.node.op_type in PRODUCTS and takes_expression(group.node):
            position_of_value[group.outputs[0]] = len(joined)
        elif group.node.op_type in ELEMENTWISE:
            inside = set(group.members)
            positions = [
                position_of_value[value]
                for value in group.reads
                if value in position_of_value
                and value not in graph.names_of_outputs
                and all(graph.nodes[index] in inside for index in graph.index_of_consumers[value])
            ]
            # Of several products the last takes the expression: the others are computed by then.
            product = joined[max(positions)] if positions else None
            if product is not None:
                joined[max(positions)] = None
                extras = tuple([Extra(node) for node in group.members])
                group = Group(product.node, (*product.epilogue, *extras), len(extras))
        joined.append(group)
    return tuple([group for group in joined if group is not None])


def _join(
    chain: Group, chains: list[Group | None], position_of_value: Mapping[str, int], graph: Graph, types: Mapping[str, TensorType]
) -> Group:
    """Returns the chain with those before it that only it reads; they leave `chains`."""
    result_type, pending = types[chain.outputs[0]], list(chain.reads)
    while pending:
        value = pending.pop(0)
        position = position_of_value.get(value)
        maker = None if position is None else chains[position]
        # A chain that begins with an operator of expressions is an expression.
        if position is None or maker is None or maker.node.op_type not in ELEMENTWISE:
            continue
        if types.get(value) != result_type or value in graph.names_of_outputs or not _is_read_inside(value, chain, graph):
            continue
        joined = Group(maker.node, (*maker.epilogue, *[Extra(node) for node in chain.members]))
        if len(joined.members) > _MOST_NODES or not _may_hold(joined.reads, types):
            continue
        chains[position], chain = None, joined
        # A value that was refused before may now be read only inside.
        pending = list(chain.reads)
    return chain


def _is_read_inside(value: str, chain: Group, graph: Graph) -> bool:
    """Says whether only nodes of a chain read a value."""
    readers = graph.index_of_consumers.get(value, ())
    return len(readers) == 1 or all(any(graph.nodes[index] is node for node in chain.members) for index in readers)


def _may_hold(operands: Sequence[str], types: Mapping[str, TensorType]) -> bool:
    """Says whether an expression may have these operands; a single number is loaded once."""
    # The sizes of a result may be known without those of an operand, as of a maximum of x[?] and c[5].
    shapes = [types[value].shape or () if value in types else None for value in operands]
    if None in shapes:
        return False
    return sum([any(is_open(size) or size != 1 for size in shape or ()) for shape in shapes]) <= _MOST_OPERANDS


def _is_link(group: Group, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> bool:
    """Says whether a group is a single node that an expression may hold."""
    node = group.node
    if group.epilogue or node.op_type not in ELEMENTWISE or node.domain or len(node.writes) != 1 or node.bodies:
        return False
    if any(value not in types or types[value].dtype != "float32" for value in (*node.reads, *node.writes)):
        return False
    ranks = {value: len(types[value].shape or ()) for value in (*node.reads, *node.writes)}
    return ExpressionReader(constants, PackedWeights(), ranks).read_node(node)


_MOST_OPERANDS_OF_NODE = 64


def plan_native_expression(site: Site) -> Recipe | None:
    """Returns the recipe of a node or a chain of them: the result has the memory layout of an operand of its shape."""
    reader, output = ExpressionReader.of_site(site), site.group.outputs[0]
    if not all(reader.read_node(node) for node in site.group.members):
        return None
    values = tuple(operand for operand in reader.operands if isinstance(operand, str))
    arrays = [site.prototypes[operand] if isinstance(operand, str) else operand for operand in reader.operands]
    shape = site.output_shape()
    # NumPy 2 broadcasts shapes of up to 32 dimensions. A Sum of thousands would be code of megabytes.
    if len(shape) > 32 or len(arrays) > _MOST_OPERANDS_OF_NODE:
        return None
    if not all(site.holds_numbers(each) if isinstance(each, str) else each.dtype == np.float32 for each in reader.operands):
        return None
    if 0 in shape or broadcast_shapes(*(a.shape for a in arrays)) != shape:
        return None
    full = [value for value in values if is_same_shape(site.shape(value), shape)]
    is_last = any(lies_channels_last(site.prototypes[operand]) for operand in full)
    order = order_axes(len(shape), is_channels_last=is_last)
    prototype = lay_empty(shape, np.dtype(np.uint8 if output in site.shifts else np.float32), order)
    kinds = find_kinds(arrays, prototype)
    # A halo adds no axes to the rows of an image.
    if kinds is None or (len(shape) > 4 and cut_rows(prototype, arrays) is None):
        return None
    letters = "".join(kind if array.dtype == np.float32 else "b" for kind, array in zip(kinds, arrays, strict=True))
    if any(letter == "b" and kind != "v" for letter, kind in zip(letters, kinds, strict=True)):
        return None
    kernel = make_elementwise(reader.finish(letters, output))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        y, remaining = writes[0], iter(reads)
        operands = [next(remaining) if isinstance(operand, str) else operand for operand in reader.operands]
        return [call_rows(kernel, cut_rows(y, operands), [y, *operands], workers=site.workers)]

    def may_overwrite(value: str) -> bool:
        # Another operand in the same memory would be read after it was written over.
        own, others = site.prototypes[value], [site.prototypes[other] for other in values if other != value]
        return value in full and lies_channels_last(own) == is_last and not any(np.may_share_memory(own, other) for other in others)

    overwrites = tuple(index for index, value in enumerate(values) if may_overwrite(value))
    return Recipe(values, bind, is_channels_last=is_last, overwrites=overwrites, kernels=(kernel,))
