"""The types of operators that onnx does not know.

A package announces a function in the entry-point group `hetero_core.operator_types`. It is imported when a network first has an operator
that neither onnx nor an extension knows, and is asked about each such node: `infer(node, input_types)` returns the types of the outputs
in order, or None for an operator that it does not know. An input type is None if it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from hetero_core.contract import Extension
from hetero_core.devices.provenance import load_entry_point, read_identity
from hetero_core.errors import HeteroError, PluginError
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueType

InferTypes = Callable[[Node, tuple[ValueType | None, ...]], "Sequence[ValueType] | None"]


class OperatorTypes:
    """Infers the types of custom operators for a Core. Safe for threads."""

    def __init__(self, extensions: Mapping[tuple[str, str], Extension], entry_points: Sequence[Any]) -> None:
        self._extensions = extensions
        self._entry_points = entry_points

    @cached_property
    def _functions(self) -> list[tuple[str, InferTypes]]:
        functions = []
        for entry_point in self._entry_points:
            blame = f"'{entry_point.name}' of {' '.join(read_identity(entry_point.dist)).strip()}, which tells types of operators,"
            functions.append((blame, load_entry_point(entry_point, blame, cure="; mend or uninstall it")))
        return functions

    def infer(self, node: Node, input_types: tuple[ValueType | None, ...]) -> Sequence[ValueType] | None:
        """Returns the types of a node's outputs; None for an unknown operator.

        Raises: PluginError if the function of a package cannot be imported or fails; errors of an extension's own function.
        """
        extension = self._extensions.get((node.domain, node.op_type))
        if extension is not None:
            return extension.infer_types(input_types, node.attributes)
        for blame, function in self._functions:
            try:
                types = function(node, input_types)
            except HeteroError:
                raise
            except Exception as error:  # a plugin's rule may raise anything
                raise PluginError(
                    f"{blame} fails at node {node.label} with {type(error).__name__}: {error}; mend or uninstall it"
                ) from error
            if types is not None:
                return types
        return None
