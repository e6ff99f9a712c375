"""The table of operators: ONNX's operator and version -> the function of PyTorch that computes it, and why a node has none.

An operator is one function of the node's inputs by position, absent ones as None, and of its attributes by name, with the toolkit's
names and defaults. What the toolkit's own kernel does not take, as an unknown attribute or another element type, its table refuses, which
also says which inputs come as arrays of the host. This table adds what PyTorch does not compute as ONNX says.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import iter_modules
from typing import Any, TypeVar

from hetero_core.errors import enumerate_choices
from hetero_core.kernels.registry import NO_EXTENSIONS, Dtypes, find_refusals
from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType, ValueType
from hetero_torch import operators
from hetero_torch.arrays import DTYPES

Types = Sequence[ValueType | None]
Refuse = Callable[[Node, Types], str | None]
Function = TypeVar("Function", bound=Callable[..., Any])

HALVES = frozenset({"float16", "bfloat16"})
FLOATS = frozenset({"float32", "float64"}) | HALVES
SINGLE = HALVES | {"float32"}
"""The floats that are computed in float32."""
SIGNED = frozenset({"int8", "int16", "int32", "int64"})
NUMBERS = FLOATS | SIGNED | {"uint8"}

_MOVING = "Concat DepthToSpace Flatten Identity If Loop Scan Shape Size SpaceToDepth Split Squeeze Unsqueeze"
TOOLKIT = frozenset(_MOVING.split())
"""Operators whose kernels of the toolkit only move elements, or call bodies: they run on tensors as they are."""

_IN_FLOAT64 = frozenset({"ConvInteger", "MatMulInteger"})
"""Operators on integers that are computed in float64."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One function. `dtypes` are the types of its first input; `widens` says that halves are computed in float32 and rounded once.

    One that `is_placed` is told in the keyword `place` where to make its tensors, as none of its inputs says so.
    """

    function: Callable[..., Any]
    dtypes: Dtypes
    widens: bool
    is_placed: bool
    refuse: Refuse | None


_TABLE: dict[tuple[str, int], Operator] = {}


def operator(
    op_type: str, *since: int, dtypes: Dtypes = DTYPES, widens: bool = False, is_placed: bool = False, refuse: Refuse | None = None
) -> Callable[[Function], Function]:
    """Registers a function for versions of an operator, or for all that the toolkit has where none is named."""

    def register(function: Function) -> Function:
        for version in since or (0,):
            assert (op_type, version) not in _TABLE, f"two functions for {op_type}-{version}"
            _TABLE[op_type, version] = Operator(function, dtypes, widens, is_placed, refuse)
        return function

    return register


@cache
def read_table() -> Mapping[tuple[str, int], Operator]:
    """Returns the whole table; version 0 stands for all versions of the toolkit."""
    for module in iter_modules(operators.__path__):
        importlib.import_module(f"{operators.__name__}.{module.name}")
    return _TABLE


def find_operator(node: Node) -> Operator | None:
    """Returns the operator of a node, None if there is no function for it or the toolkit's kernel runs."""
    if node.domain:
        return None
    table = read_table()
    return table.get((node.op_type, node.since_version)) or table.get((node.op_type, 0))


def find_torch_refusals(
    network: Graph, *, dtypes: Dtypes, extensions: Mapping[tuple[str, str], Any] = NO_EXTENSIONS
) -> dict[str, str]:
    """Returns node name -> reason for each node of the root graph that this device does not run.

    `dtypes` are the element types of the place; `extensions` are custom operators, functions on arrays of the host.
    """
    reasons = find_refusals(network, extensions=extensions, dtypes=dtypes)
    for node in network.nodes:
        if node.name not in reasons:
            reason = _refuse_node(node, network, {}, dtypes, extensions)
            if reason is not None:
                reasons[node.name] = reason
    return reasons


def _refuse_node(
    node: Node, graph: Graph, outer: Mapping[str, ValueType], dtypes: Dtypes, extensions: Mapping[tuple[str, str], Any]
) -> str | None:
    known = {**outer, **graph.types, **{name: constant.type for name, constant in graph.initializers.items()}}
    types = [known.get(name) if name else None for name in node.inputs]
    for name in (*node.reads, *node.writes):
        reason = _refuse_type(known.get(name), dtypes)
        if reason is not None and not (name in node.writes and known.get(name) is None):
            return f"value '{name}' of {node.operator} {reason}"
    own = None
    if (node.domain, node.op_type) not in extensions:
        own = _refuse_operator(node, types, dtypes)
    return own or next(
        (
            f"node '{inner.name}' in {attribute} of {node.operator}: {reason}"
            for attribute, body in node.bodies.items()
            for inner in body.nodes
            if (reason := _refuse_node(inner, body, known, dtypes, extensions)) is not None
        ),
        None,
    )


def _refuse_type(value_type: ValueType | None, dtypes: Dtypes) -> str | None:
    if value_type is None:
        return "has no type that is known before it runs"
    if not isinstance(value_type, TensorType):
        return f"is {value_type}; this device has tensors alone"
    if value_type.dtype is None:
        return "has no element type that is known before it runs"
    return None if value_type.dtype in dtypes else f"has dtype {value_type.dtype}; this device has {enumerate_choices(dtypes)}"


def _refuse_operator(node: Node, types: Types, dtypes: Dtypes) -> str | None:
    if node.op_type in _IN_FLOAT64 and not node.domain and "float64" not in dtypes:
        return f"{node.operator} is computed in float64, which this device does not have"
    own = find_operator(node)
    if own is None:
        is_shared = not node.domain and node.op_type in TOOLKIT
        return None if is_shared else f"there is no function of PyTorch for {node.operator}"
    dtype = dtype_of(types, 0)
    if dtype is not None and dtype not in own.dtypes:
        return f"input '{node.inputs[0]}' of {node.operator} has dtype {dtype}; implemented: {enumerate_choices(own.dtypes)}"
    return None if own.refuse is None else own.refuse(node, types)


def dtype_of(types: Types, index: int) -> str | None:
    """Returns the element type of an input, None if the input is absent."""
    value_type = types[index] if index < len(types) else None
    return value_type.dtype if isinstance(value_type, TensorType) else None


def rank_of(types: Types, index: int) -> int | None:
    """Returns the rank of an input, None if it is not known."""
    value_type = types[index] if index < len(types) else None
    return None if not isinstance(value_type, TensorType) or value_type.shape is None else len(value_type.shape)


def refuse_attributes(**allowed: tuple[Any, ...]) -> Refuse:
    """Returns a check that refuses an attribute that is set to another value than these."""

    def refuse(node: Node, types: Types) -> str | None:
        for name, values in allowed.items():
            if name in node.attributes and node.attributes[name] not in values:
                listed = enumerate_choices(str(value) for value in values)
                return f"attribute '{name}' of {node.operator} is {node.attributes[name]!r}; implemented: {listed}"
        return None

    return refuse


def refuse_outputs(count: int) -> Refuse:
    """Returns a check that refuses outputs from this position on."""

    def refuse(node: Node, types: Types) -> str | None:
        return f"output '{node.outputs[count]}' of {node.operator} is not implemented" if any(node.outputs[count:]) else None

    return refuse


def refuse_any(*checks: Refuse) -> Refuse:
    """Returns a check that refuses what one of these does."""
    return lambda node, types: next((reason for check in checks if (reason := check(node, types)) is not None), None)
