"""The table of kernels: the toolkit's, with PyTorch's own functions for products, windows, normalization, attention and single elements.

A function gets the node's inputs by position, None for an absent input, and its attributes by name, with the toolkit's names and defaults.
All further kernels of the toolkit run with NumPy on the host, which is the processor's own memory; accelerators refuse their nodes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pkgutil import iter_modules
from typing import Any, TypeVar

import numpy as np
import torch

from hetero_core.engines.known_errors import find_error
from hetero_core.errors import enumerate_choices
from hetero_core.kernels.registry import NO_EXTENSIONS, TOOLKIT, Dtypes, KernelRecord, find_refusals
from hetero_core.kernels.tables import KernelTable
from hetero_core.network.graph import EMPTY, Graph, Node
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

_MOVING = (
    "Concat DepthToSpace Expand Flatten Identity If Loop Reshape Scan Shape Size SpaceToDepth Split Squeeze Transpose Unsqueeze"
)
TENSOR_KERNELS = frozenset(_MOVING.split())
"""Operators that only move elements, or call bodies: the toolkit's kernels run on tensors."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A function of PyTorch. `dtypes` are the types of its first input; with `widens` halves are computed in float32 and rounded once.

    `choices` limits attributes, and `outputs` the number of outputs, as in a declaration of the toolkit, beyond the toolkit's own limits.
    """

    function: Callable[..., Any]
    dtypes: Dtypes
    widens: bool
    refuse: Refuse | None
    choices: Mapping[str, tuple[Any, ...]]
    outputs: int | None


_TABLE: dict[tuple[str, int], Operator] = {}


def operator(
    op_type: str,
    *since: int,
    dtypes: Dtypes = DTYPES,
    widens: bool = False,
    refuse: Refuse | None = None,
    choices: Mapping[str, tuple[Any, ...]] = EMPTY,
    outputs: int | None = None,
) -> Callable[[Function], Function]:
    """Registers a function for versions of an operator; without versions, for every version of the toolkit."""

    def register(function: Function) -> Function:
        for version in since or (0,):
            assert (op_type, version) not in _TABLE, f"two functions for {op_type}-{version}"
            _TABLE[op_type, version] = Operator(function, dtypes, widens, refuse, choices, outputs)
        return function

    return register


@cache
def read_table() -> Mapping[tuple[str, int], Operator]:
    """Returns the whole table; version 0 stands for all versions of the toolkit."""
    for module in iter_modules(operators.__path__):
        importlib.import_module(f"{operators.__name__}.{module.name}")
    return _TABLE


def find_operator(node: Node) -> Operator | None:
    """Returns PyTorch's function for a node, None if the toolkit's kernel runs."""
    if node.domain:
        return None
    table = read_table()
    return table.get((node.op_type, node.since_version)) or table.get((node.op_type, 0))


class TorchTable(KernelTable):
    """The toolkit's kernels as a program of this device binds them: on tensors by PyTorch, on arrays of the host by the toolkit."""

    def find(self, node: Node) -> KernelRecord | None:
        """Returns the kernel of a node."""
        key = (node.domain, node.op_type, node.since_version)
        if key not in self._entries and (record := TOOLKIT.find(node)) is not None:
            self._entries[key] = _adapt(record, node)
        return super().find(node)


TORCH_KERNELS = TorchTable(base=TOOLKIT)


def _adapt(record: KernelRecord, node: Node) -> KernelRecord:
    own = find_operator(node)
    if own is not None:
        more = record.dtypes[1:] if isinstance(record.dtypes, tuple) else (record.dtypes,)
        return replace(
            record,
            function=_dispatch(_widen(own.function) if own.widens else own.function, record.function),
            dtypes=(own.dtypes & record.dtypes_of_input(0), *more),
            choices={**record.choices, **own.choices},
            outputs=record.outputs if own.outputs is None else own.outputs,
        )
    if node.op_type == "Size" and not node.domain:
        return replace(record, function=_count_elements)
    if node.domain or node.op_type not in TENSOR_KERNELS:
        return replace(record, runs_on_host=True)
    return record


def _dispatch(function: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that calls PyTorch's function; arithmetic on shapes, which runs with NumPy, calls the toolkit's."""

    def compute(xp: Any, *inputs: Any, **attributes: Any) -> Any:
        return kernel(np, *inputs, **attributes) if xp is np else function(*inputs, **attributes)

    return compute


def _count_elements(xp: Any, x: Any) -> Any:
    """Returns the number of elements; `size` of a tensor is a method. Source: ONNX Size-25."""
    return np.asarray(x.numel() if isinstance(x, torch.Tensor) else x.size, np.int64)


_HALVES = (torch.float16, torch.bfloat16)


def _widen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that computes halves in float32 and rounds its results once."""

    def compute(*inputs: Any, **attributes: Any) -> Any:
        half = next((x.dtype for x in inputs if isinstance(x, torch.Tensor) and x.dtype in _HALVES), None)
        if half is None:
            return function(*inputs, **attributes)
        wide = (x.float() if isinstance(x, torch.Tensor) and x.dtype in _HALVES else x for x in inputs)
        results = function(*wide, **attributes)
        if isinstance(results, tuple):
            return tuple(x.to(half) if x.dtype == torch.float32 else x for x in results)
        return results.to(half) if results.dtype == torch.float32 else results

    return compute


def find_torch_refusals(
    network: Graph, *, dtypes: Dtypes, shares_memory: bool, extensions: Mapping[tuple[str, str], Any] = NO_EXTENSIONS
) -> dict[str, str]:
    """Returns node name -> reason for each node of the root graph that this device does not run.

    `dtypes` are the element types of the place; with `shares_memory` its tensors lie in the host's memory, and NumPy computes on them.
    `extensions` are custom operators, functions on arrays of the host.
    """

    def check(node: Node, graph: Graph) -> str | None:
        # An output without readers may be of unknown type.
        values = (name for name in (*node.reads, *node.writes) if name in node.reads or graph.type_of(name) is not None)
        faults = ((name, _refuse_type(graph.type_of(name), dtypes)) for name in values)
        reason = next((f"value '{name}' of {node.operator} {fault}" for name, fault in faults if fault is not None), None)
        if reason is not None or (node.domain, node.op_type) in extensions:
            return reason
        own = find_operator(node)
        if own is not None:
            types = [graph.type_of(name) if name else None for name in node.inputs]
            return None if own.refuse is None else own.refuse(node, types)
        record = TOOLKIT.find(node)
        # Bodies compute on tensors, so that a kernel with bodies cannot run on the host.
        runs_on_host = shares_memory and record is not None and not record.bodies
        is_claimed = runs_on_host or (not node.domain and node.op_type in TENSOR_KERNELS)
        return None if is_claimed else f"there is no function of PyTorch for {node.operator}; HETERO:TORCH,CPU runs it on CPU"

    reasons = {node.name: reason for node in network.nodes if (reason := find_error(node, network, check)) is not None}
    return reasons | find_refusals(network, extensions=extensions, dtypes=dtypes, table=TORCH_KERNELS)


def _refuse_type(value_type: ValueType | None, dtypes: Dtypes) -> str | None:
    if value_type is None:
        return "has no type that is known before it runs"
    if not isinstance(value_type, TensorType):
        return f"is {value_type}; this device has tensors alone"
    if value_type.dtype is None:
        return "has no element type that is known before it runs"
    return None if value_type.dtype in dtypes else f"has dtype {value_type.dtype}; this device has {enumerate_choices(dtypes)}"
