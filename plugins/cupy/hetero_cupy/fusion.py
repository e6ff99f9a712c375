"""Fusion: neighbouring elementwise operators on floats become one generated CUDA kernel, which computes in float32.

Data flow: nodes -> a tree of operators over the inputs -> statements of CUDA C++ (`write_kernel`, a pure function) -> a function of
arrays, compiled by the card when it is first called. A tree is a tuple (operator, parameters, arguments); an argument is another tree or
the number of an input. Imports no array library.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from hashlib import sha256
from typing import Any

from hetero_core.dtypes import dtype_of_numpy, dtype_of_onnx, numpy_dtype
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_core.records import record
from hetero_core.transforms.rewrite import fuse_pairs
from hetero_cupy.conversions import CONVERSIONS, ROUNDING, SMALL, STORAGE, write_load, write_store
from hetero_cupy.runtime import Card
from hetero_cupy.value_types import find_shaped_type

FUSED = ("hetero.gpu", "Fused")
"""Domain and operator of a fused node; no model can bring one, since it has no kernel and no schema."""

Tree = Any
_MOST_INPUTS = 16
_MOST_OPERATORS = 32

PREAMBLE = """
__device__ inline float hetero_relu(float x) { return x > 0.0f || x != x ? x : 0.0f; }
__device__ inline float hetero_sigmoid(float x) { float e = expf(-fabsf(x)); return (x < 0.0f ? e : 1.0f) / (1.0f + e); }
__device__ inline float hetero_leaky(float x, float alpha) { return x < 0.0f ? x * alpha : x; }
__device__ inline float hetero_clip(float x, float least, float most) { float y = x < least ? least : x; return y > most ? most : y; }
__device__ inline float hetero_gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
"""
"""Functions that the statements call. NaN goes through each of them, as in the kernels that they stand for."""


@record(frozen=True, slots=True)
class _Rule:
    """The CUDA text of an operator: a template over its arguments and attributes, and the attributes with their defaults."""

    template: str
    arguments: int
    attributes: Mapping[str, float] = field(default_factory=dict)
    since: int = 1


_RULES: Mapping[str, _Rule] = {
    "Abs": _Rule("fabsf({0})", 1),
    "Add": _Rule("({0} + {1})", 2, since=7),
    "Cast": _Rule("{0}", 1),
    "Ceil": _Rule("ceilf({0})", 1),
    "Clip": _Rule("hetero_clip({0}, {min}, {max})", 1, {"min": -3.4028234663852886e38, "max": 3.4028234663852886e38}),
    "Div": _Rule("({0} / {1})", 2, since=7),
    "Erf": _Rule("erff({0})", 1),
    "Exp": _Rule("expf({0})", 1),
    "Floor": _Rule("floorf({0})", 1),
    "Gelu": _Rule("hetero_gelu({0})", 1),
    "HardSigmoid": _Rule("hetero_clip({alpha} * {0} + {beta}, 0.0f, 1.0f)", 1, {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": _Rule("({0} * hetero_clip({0} / 6.0f + 0.5f, 0.0f, 1.0f))", 1),
    "LeakyRelu": _Rule("hetero_leaky({0}, {alpha})", 1, {"alpha": 0.01}),
    "Log": _Rule("logf({0})", 1),
    "Mul": _Rule("({0} * {1})", 2, since=7),
    "Neg": _Rule("(-{0})", 1),
    "Reciprocal": _Rule("(1.0f / {0})", 1),
    "Relu": _Rule("hetero_relu({0})", 1),
    "Sigmoid": _Rule("hetero_sigmoid({0})", 1),
    "Sqrt": _Rule("sqrtf({0})", 1),
    "Sub": _Rule("({0} - {1})", 2, since=7),
    "Tanh": _Rule("tanhf({0})", 1),
}


@record(frozen=True, slots=True)
class KernelText:
    """A kernel as text: its name, declarations as "float32 x0", statements, and the functions that these call.

    16-bit floats are declared as "uint16", their bits; `dtypes` are those of the inputs and of the output.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str
    dtypes: tuple[str, ...]
    preamble: str = CONVERSIONS + ROUNDING + PREAMBLE


def fuse_elementwise(network: Network) -> Network:
    """Returns the network with fused nodes; a value that is read twice, leaves the network or is broadcast later stays a value."""

    type_of = partial(find_shaped_type, network)

    def fuse(first: Node, second: Node) -> Node | None:
        trees = _plant(first, type_of), _plant(second, type_of)
        types = type_of(first.outputs[0]), type_of(second.outputs[0])
        if trees[0] is None or trees[1] is None or types[0] is None or types[1] is None or types[0].shape != types[1].shape:
            return None
        if trees[0][0] == "Cast" and types[0].dtype in SMALL:
            return None  # its readers need the rounded value
        return _join(first, second, trees=(trees[0], trees[1]), dtype=str(types[1].dtype))

    return fuse_pairs(network, fuse)


def _plant(node: Node, type_of: Callable[[str], TensorType | None]) -> Tree | None:
    """Returns the tree of a node over its own inputs, None where it cannot be fused."""
    if (node.domain, node.op_type) == FUSED:
        return node.attributes["tree"]
    rule = None if node.domain else _RULES.get(node.op_type)
    if rule is None or len(node.inputs) != rule.arguments or node.since_version < rule.since:
        return None
    if node.op_type == "Cast":
        if node.attributes.keys() != {"to"} or dtype_of_onnx(node.attributes["to"]) not in STORAGE:
            return None
    elif not node.attributes.keys() <= rule.attributes.keys():
        return None
    types = [type_of(value) for value in (*node.inputs, *node.outputs)]
    if not all(operand_type is not None and operand_type.dtype in STORAGE for operand_type in types):
        return None
    if node.op_type == "Clip" and len(node.attributes) < 2 and types[0] is not None and types[0].dtype in SMALL:
        return None  # an absent bound is the limit of the type, which the toolkit knows
    parameters = tuple(float(node.attributes.get(name, default)) for name, default in rule.attributes.items())
    if not all(math.isfinite(parameter) for parameter in parameters):
        return None
    return node.op_type, parameters, tuple(range(rule.arguments))


def _join(first: Node, second: Node, *, trees: tuple[Tree, Tree], dtype: str) -> Node | None:
    value, (inner, outer) = first.outputs[0], trees
    inputs = tuple(dict.fromkeys((*first.inputs, *(name for name in second.inputs if name != value))))
    own = _renumber(inner, [inputs.index(name) for name in first.inputs])
    places = [own if name == value else inputs.index(name) for name in second.inputs]
    tree = _renumber(outer, places)
    if len(inputs) > _MOST_INPUTS or len(_list_trees(tree)) > _MOST_OPERATORS:
        return None
    return replace(
        second,
        op_type=FUSED[1],
        domain=FUSED[0],
        inputs=inputs,
        since_version=1,
        opset=1,
        attributes={"tree": tree, "dtype": dtype},
    )


def _renumber(tree: Tree, places: list[Any]) -> Tree:
    """Returns the tree with what stands at `places` for the numbers of its inputs."""
    if isinstance(tree, int):
        return places[tree]
    operator, parameters, arguments = tree
    return operator, parameters, tuple(_renumber(argument, places) for argument in arguments)


def _list_trees(tree: Tree) -> list[Tree]:
    """Returns all operators of a tree, each distinct one once, arguments first."""
    trees: dict[Tree, None] = {}

    def visit(subtree: Tree) -> None:
        if isinstance(subtree, int) or subtree in trees:
            return
        for argument in subtree[2]:
            visit(argument)
        trees[subtree] = None

    visit(tree)
    return list(trees)


def write_kernel(tree: Tree, dtypes: tuple[str, ...]) -> KernelText:
    """Returns the kernel of a tree: one statement for each operator, what occurs twice computed once. The same tree, the same text.

    `dtypes` are those of the inputs, then that of the output.
    """
    names: dict[Tree, str] = {}
    *sources, result_dtype = dtypes
    statements = [f"float v{index} = {write_load(dtype, f'x{index}')};" for index, dtype in enumerate(sources)]
    for index, subtree in enumerate(_list_trees(tree)):
        operator, parameters, arguments = subtree
        rule = _RULES[operator]
        written = [f"v{argument}" if isinstance(argument, int) else names[argument] for argument in arguments]
        values = {name: write_number(value) for name, value in zip(rule.attributes, parameters, strict=True)}
        names[subtree] = f"t{index}"
        statements.append(f"float t{index} = {rule.template.format(*written, **values)};")
    statements.append(f"y0 = {write_store(result_dtype, names[tree])};")
    body = "\n".join(statements)
    name = f"hetero_fused_{sha256(f'{dtypes}{body}'.encode()).hexdigest()[:12]}"
    inputs = tuple(f"{_declare(dtype)} x{index}" for index, dtype in enumerate(sources))
    return KernelText(name, inputs, (f"{_declare(result_dtype)} y0",), body, dtypes)


def _declare(dtype: str) -> str:
    return "uint16" if dtype in SMALL else dtype


def write_number(value: float) -> str:
    """Returns a finite number as a float literal of C."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    text = repr(rounded)
    return f"{text}f" if "e" in text or "." in text else f"{text}.0f"


class FusedOperator:
    """Runs fused nodes on a card; compiles each tree once for each set of types."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._compiled: dict[tuple[Tree, tuple[str, ...]], Callable[..., Any]] = {}

    def function(self, *inputs: Any, tree: Tree, dtype: str) -> Any:
        """Returns the value of the tree in an element type."""
        dtypes = (*(str(dtype_of_numpy(array.dtype)) for array in inputs), dtype)
        compiled = self._compiled.get((tree, dtypes))
        if compiled is None:
            text = write_kernel(tree, dtypes)
            # Two threads may both compile it; one result stays.
            compiled = self._card.compile_elementwise(text.name, text.inputs, text.outputs, text.body, text.preamble)
            self._compiled[tree, dtypes] = compiled
        y = compiled(*(array.view("uint16") if name in SMALL else array for array, name in zip(inputs, dtypes, strict=False)))
        for array in inputs:
            if array.shape == y.shape and array.flags.c_contiguous:
                self._card.allow_in_place(y, array)
        return y.view(numpy_dtype(dtype)) if dtype in SMALL else y
