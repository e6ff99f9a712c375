"""The functions of a model: which one a node calls, what the call costs to expand, and what its formal names mean in the network.

Imports no onnx at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_core.errors import InvalidNetworkError
from hetero_core.limits import ReadBudget
from hetero_core.network.attributes import GRAPH
from hetero_core.network.scopes import OPSET_DOMAIN, FunctionKey, NodeScope, normal_domain

if TYPE_CHECKING:
    import onnx


class FunctionLibrary:
    """The functions of one model by what a call names: domain, name and overload."""

    def __init__(self, model: onnx.ModelProto, budget: ReadBudget) -> None:
        self._functions = {key_of_function(function): function for function in model.functions}
        self._budget = budget
        self._sizes: dict[FunctionKey, tuple[int, int]] = {}

    def find(self, domain: str, op_type: str, proto: onnx.NodeProto) -> onnx.FunctionProto | None:
        """Returns the function that a node calls; None where it is an operator."""
        return self._functions.get((domain, op_type, proto.overload)) if self._functions else None

    def __bool__(self) -> bool:
        """Says whether there is any function."""
        return bool(self._functions)

    def take_room(self, function: onnx.FunctionProto, path: str, owner: str, scope: NodeScope) -> None:
        """Takes what a call is expanded to off the budget: nodes, and the bytes of names and attributes."""
        key = key_of_function(function)
        is_repeated = key in self._sizes
        if not is_repeated:
            self._sizes[key] = function.ByteSize(), len(function.node) + sum(map(count_inner_nodes, function.node))
        nbytes, nodes = self._sizes[key]
        self._budget.check_depth(scope.depth + 1, owner)
        if key[0] == OPSET_DOMAIN:
            return
        self._budget.take_nodes(nodes, owner)
        # A node has a name of its own and one for each value that it makes, most often one. Of attributes the first call makes no more
        # than there are in the file.
        self._budget.take_memory((nbytes if is_repeated else 0) + 2 * nodes * len(path), owner)


def key_of_function(function: onnx.FunctionProto) -> FunctionKey:
    """Returns what a call names: domain, name and overload."""
    return normal_domain(function.domain), function.name, function.overload


def check_recursion(key: FunctionKey, scope: NodeScope, owner: str) -> None:
    """Raises InvalidNetworkError for a function that is called while it is expanded."""
    if key in scope.calls:
        walk = " -> ".join(f"{domain}:{op_type}" for domain, op_type, _ in (*scope.calls, key))
        raise InvalidNetworkError(
            f"{owner} is a call of a function by itself: {walk}. ONNX functions do not recurse. Use Loop, or write the calls out."
        )


def count_inner_nodes(proto: onnx.NodeProto) -> int:
    """Returns how many nodes stand in the bodies of a node, at any depth."""
    return sum(
        len(attribute.g.node) + sum(map(count_inner_nodes, attribute.g.node))
        for attribute in proto.attribute
        if attribute.type == GRAPH
    )


def bind_call(
    proto: onnx.NodeProto, function: onnx.FunctionProto, scope: NodeScope, owner: str
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Returns the values of a call, formal name -> actual name, and the outputs (formal, actual) that need a copy.

    A copy is needed where a function returns one of its inputs, or one value twice.

    Raises: InvalidNetworkError when the call passes more than the function takes.
    """
    for kind, passed, formal in (("inputs", proto.input, function.input), ("outputs", proto.output, function.output)):
        if len(passed) > len(formal):
            raise InvalidNetworkError(
                f"{owner} has {len(passed)} {kind}; its function '{function.name}' takes {len(formal)}. Correct the call."
            )
    values = dict.fromkeys(function.input, "")
    values.update(zip(function.input, (scope.value(name) for name in proto.input), strict=False))
    copies: list[tuple[str, str]] = []
    for formal, actual in zip(function.output, (scope.value(name) for name in proto.output), strict=False):
        if actual and formal in values:
            copies.append((formal, actual))
        elif actual:
            values[formal] = actual
    return values, copies
