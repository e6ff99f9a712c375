"""Fusion: neighbouring elementwise operators on float32 become one generated CUDA kernel.

Data flow: nodes -> a tree of operators over the inputs -> statements of CUDA C++ (`write_kernel`, a pure function) -> a function of
arrays, compiled by the card when it is first called. A tree is a tuple (operator, parameters, arguments); an argument is another tree or
the number of an input. Imports no array library.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType, ValueType
from hetero_core.transforms.rewrite import fuse_pairs
from hetero_cupy.runtime import Card

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
"""
"""Functions that the statements call. NaN goes through each of them, as in the kernels that they stand for."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """How an operator is written: a template over its arguments and attributes, and the attributes with their defaults."""

    template: str
    arguments: int
    attributes: Mapping[str, float] = field(default_factory=dict)
    since: int = 1


_RULES: Mapping[str, _Rule] = {
    "Abs": _Rule("fabsf({0})", 1),
    "Add": _Rule("({0} + {1})", 2, since=7),
    "Ceil": _Rule("ceilf({0})", 1),
    "Clip": _Rule("hetero_clip({0}, {min}, {max})", 1, {"min": -3.4028234663852886e38, "max": 3.4028234663852886e38}),
    "Div": _Rule("({0} / {1})", 2, since=7),
    "Exp": _Rule("expf({0})", 1),
    "Floor": _Rule("floorf({0})", 1),
    "HardSigmoid": _Rule("hetero_clip({alpha} * {0} + {beta}, 0.0f, 1.0f)", 1, {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": _Rule("({0} * hetero_clip({0} / 6.0f + 0.5f, 0.0f, 1.0f))", 1),
    "LeakyRelu": _Rule("hetero_leaky({0}, {alpha})", 1, {"alpha": 0.01}),
    "Mul": _Rule("({0} * {1})", 2, since=7),
    "Neg": _Rule("(-{0})", 1),
    "Reciprocal": _Rule("(1.0f / {0})", 1),
    "Relu": _Rule("hetero_relu({0})", 1),
    "Sigmoid": _Rule("hetero_sigmoid({0})", 1),
    "Sqrt": _Rule("sqrtf({0})", 1),
    "Sub": _Rule("({0} - {1})", 2, since=7),
    "Tanh": _Rule("tanhf({0})", 1),
}


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel as text: its name, declarations as "float32 x0", statements, and the functions that these call."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str
    preamble: str = PREAMBLE


def fuse_elementwise(network: Network) -> Network:
    """Returns the network with fused nodes; a value that is read twice, leaves the network or is broadcast later stays a value."""

    def type_of(value: str) -> ValueType | None:
        return network.initializers[value].type if value in network.initializers else network.type_of(value)

    def fuse(first: Node, second: Node) -> Node | None:
        trees = _plant(first, type_of), _plant(second, type_of)
        if trees[0] is None or trees[1] is None or type_of(first.outputs[0]) != type_of(second.outputs[0]):
            return None
        return _join(first, second, trees[0], trees[1])

    return fuse_pairs(network, fuse)


def _plant(node: Node, type_of: Callable[[str], ValueType | None]) -> Tree | None:
    """Returns the tree of a node over its own inputs, None where it cannot be fused."""
    if (node.domain, node.op_type) == FUSED:
        return node.attributes["tree"]
    rule = None if node.domain else _RULES.get(node.op_type)
    if rule is None or len(node.inputs) != rule.arguments or node.since_version < rule.since:
        return None
    if not node.attributes.keys() <= rule.attributes.keys():
        return None
    types = [type_of(value) for value in (*node.inputs, *node.outputs)]
    if not all(isinstance(found, TensorType) and found.dtype == "float32" and found.shape is not None for found in types):
        return None
    parameters = tuple(float(node.attributes.get(name, default)) for name, default in rule.attributes.items())
    if not all(math.isfinite(parameter) for parameter in parameters):
        return None
    return node.op_type, parameters, tuple(range(rule.arguments))


def _join(first: Node, second: Node, inner: Tree, outer: Tree) -> Node | None:
    value = first.outputs[0]
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
        attributes={"tree": tree},
    )


def _renumber(tree: Tree, places: list[Any]) -> Tree:
    """Returns the tree with what stands at `places` for the numbers of its inputs."""
    if isinstance(tree, int):
        return places[tree]
    operator, parameters, arguments = tree
    return operator, parameters, tuple(_renumber(argument, places) for argument in arguments)


def _list_trees(tree: Tree) -> list[Tree]:
    """Returns all operators of a tree, each distinct one once, arguments first."""
    found: dict[Tree, None] = {}

    def visit(one: Tree) -> None:
        if isinstance(one, int) or one in found:
            return
        for argument in one[2]:
            visit(argument)
        found[one] = None

    visit(tree)
    return list(found)


def write_kernel(tree: Tree, input_count: int) -> KernelText:
    """Returns the kernel of a tree: one statement for each operator, what occurs twice computed once. The same tree, the same text."""
    names: dict[Tree, str] = {}
    statements = []
    for index, one in enumerate(_list_trees(tree)):
        operator, parameters, arguments = one
        rule = _RULES[operator]
        written = [f"x{argument}" if isinstance(argument, int) else names[argument] for argument in arguments]
        values = {name: write_number(value) for name, value in zip(rule.attributes, parameters, strict=True)}
        names[one] = f"t{index}"
        statements.append(f"float t{index} = {rule.template.format(*written, **values)};")
    statements.append(f"y0 = {names[tree]};")
    body = "\n".join(statements)
    name = f"hetero_fused_{sha256(body.encode()).hexdigest()[:12]}"
    return KernelText(name, tuple(f"float32 x{index}" for index in range(input_count)), ("float32 y0",), body)


def write_number(value: float) -> str:
    """Returns a finite number as a float literal of C."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    text = repr(rounded)
    return f"{text}f" if "e" in text or "." in text else f"{text}.0f"


def write_module(text: KernelText) -> str:
    """Returns a whole CUDA module with the kernel over `count` elements of arrays of one shape; what compilers of CUDA can check."""
    inputs = [declaration.split()[1] for declaration in text.inputs]
    arguments = ", ".join([*(f"const float* {name}_" for name in inputs), "float* y0_", "long long count"])
    loads = "\n".join(f"    const float {name} = {name}_[i];" for name in inputs)
    body = "\n".join(f"    {line}" for line in text.body.splitlines())
    return (
        f'{text.preamble}\nextern "C" __global__ void {text.name}({arguments}) {{\n'
        "  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {\n"
        f"{loads}\n    float y0;\n{body}\n    y0_[i] = y0;\n  }}\n}}\n"
    )


class FusedOperator:
    """What runs fused nodes on a card; compiles each tree once."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._compiled: dict[tuple[Tree, int], Callable[..., Any]] = {}

    def function(self, *inputs: Any, tree: Tree) -> Any:
        """Returns the value of the tree."""
        key = tree, len(inputs)
        compiled = self._compiled.get(key)
        if compiled is None:
            text = write_kernel(tree, len(inputs))
            # Two threads may both compile it; one result stays.
            compiled = self._card.compile_elementwise(text.name, text.inputs, text.outputs, text.body, text.preamble)
            self._compiled[key] = compiled
        return compiled(*inputs)
