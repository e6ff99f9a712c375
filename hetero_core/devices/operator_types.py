"""Types of operators that onnx does not know: those of the user's extensions, and those that an installed package can tell.

A package announces a function in the entry-point group `hetero_core.operator_types`. It is imported when a network first has an operator
that neither onnx nor an extension knows, and is asked about each such node: `infer(node, input_types)` returns the types of the outputs
in order, or None for an operator that it does not know. A type of an input is None where it is not known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetero_core.contract import Extension
from hetero_core.devices.blame import call_plugin
from hetero_core.devices.provenance import read_identity
from hetero_core.errors import HeteroError, PluginError
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueType

OPERATOR_TYPES_GROUP = "hetero_core.operator_types"
InferTypes = Callable[[Node, tuple[ValueType | None, ...]], "Sequence[ValueType] | None"]


class OperatorTypes:
    """Infers the types of custom operators for one Core. Safe for threads."""

    def __init__(self, extensions: Mapping[tuple[str, str], Extension], entry_points: Sequence[Any]) -> None:
        self._extensions = extensions
        self._entry_points = entry_points
        self._lock = threading.Lock()
        self._functions: list[tuple[str, InferTypes]] | None = None

    @property
    def knows_some(self) -> bool:
        """Whether an extension or a plugin may know the types of an operator."""
        return bool(self._extensions or self._entry_points)

    def infer(self, node: Node, input_types: tuple[ValueType | None, ...]) -> Sequence[ValueType] | None:
        """Returns the types of a node's outputs; None where nobody knows the operator.

        Raises: PluginError for a package whose function cannot be imported or fails; what an extension raises.
        """
        extension = self._extensions.get((node.domain, node.op_type))
        if extension is not None:
            return extension.infer_types(input_types, node.attributes)
        for blame, function in self._load():
            types = _ask(blame, function, node, input_types)
            if types is not None:
                return types
        return None

    def _load(self) -> list[tuple[str, InferTypes]]:
        with self._lock:
            if self._functions is None:
                self._functions = [_import(entry_point) for entry_point in self._entry_points]
            return self._functions


def _import(entry_point: Any) -> tuple[str, InferTypes]:
    blame = f"'{entry_point.name}' of {' '.join(read_identity(entry_point.dist)).strip()}, which tells types of operators,"
    try:
        function: InferTypes = entry_point.load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{blame} cannot be imported from '{entry_point.value}': {type(error).__name__}: {error}; mend or uninstall it"
        ) from error
    return blame, function


def _ask(blame: str, function: InferTypes, node: Node, input_types: tuple[ValueType | None, ...]) -> Sequence[ValueType] | None:
    try:
        return call_plugin(lambda: function(node, input_types), blame=blame, where=f"its answer about node {node.label}")
    except HeteroError:
        raise
    except Exception as error:  # a plugin's rule may raise anything
        raise PluginError(
            f"{blame} fails at node {node.label} with {type(error).__name__}: {error}; mend or uninstall it"
        ) from error
