"""Whether a graph is one: names that are text, for every value a source, and one only, ranks that can be. Imports nothing heavy."""

from __future__ import annotations

from hetero_core.errors import InvalidNetworkError, NetworkReadError
from hetero_core.network.graph import Graph, Node
from hetero_core.network.topology import find_free_values
from hetero_core.network.types import TensorType


def check_text(*texts: object) -> None:
    """Refuses names that are not UTF-8, which protobuf gives as bytes.

    Raises: NetworkReadError.
    """
    for text in texts:
        if not isinstance(text, str):
            raise NetworkReadError(f"a name in the model is not UTF-8: {text!r}; the model is damaged.")


_INPUT_THAT_GIVES_RANK = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1}
"""The inputs whose number of elements is the rank of the output."""
_LARGEST_RANK = 1024
"""Far above what any device runs; onnx makes a message for each dimension, of which a few bytes in a file can ask for 2**31."""


def check_ranks(graph: Graph) -> None:
    """Refuses a node whose output would have an absurd number of dimensions by the type of the input that holds its shape.

    Raises: InvalidNetworkError.
    """
    for node in graph.nodes:
        index = _INPUT_THAT_GIVES_RANK.get(node.op_type, len(node.inputs))
        found = None if node.domain or index >= len(node.inputs) else graph.types.get(node.inputs[index])
        if isinstance(found, TensorType) and found.shape and isinstance(found.shape[0], int) and found.shape[0] > _LARGEST_RANK:
            raise InvalidNetworkError(
                f"node {node.label} reads a shape of {found.shape[0]} dimensions from '{node.inputs[index]}': {found}; expected "
                f"{_LARGEST_RANK} at most. The model is damaged or was written wrongly."
            )


def check_single_assignment(graph: Graph) -> None:
    """Refuses a value with two sources in one scope."""
    source_of_value: dict[str, str] = {}
    for spec in graph.inputs:
        _claim(source_of_value, spec.name, f"input '{spec.name}'")
    for name in graph.initializers:
        _claim(source_of_value, name, f"constant '{name}'")
    for node in graph.nodes:
        for value in node.writes:
            _claim(source_of_value, value, f"node {node.label}")


def _claim(source_of_value: dict[str, str], value: str, source: str) -> None:
    if value in source_of_value:
        raise InvalidNetworkError(
            f"value '{value}' has two sources, {source_of_value[value]} and {source}; a value has one. Rename one of them."
        )
    source_of_value[value] = source


def check_everything_is_produced(graph: Graph) -> None:
    """Refuses a value that is read, by a node or as an output, and has no source."""
    known = {spec.name for spec in graph.inputs} | set(graph.initializers) | set(graph.index_of_producer)
    for node in graph.nodes:
        for value in node.reads:
            if value not in known:
                raise InvalidNetworkError(
                    f"{_find_reader(node, value)} reads value '{value}', which nothing produces; the model is incomplete."
                )
    for spec in graph.outputs:
        if spec.name not in known:
            raise InvalidNetworkError(f"output '{spec.name}' is produced by nothing; the model is incomplete.")


def _find_reader(node: Node, value: str) -> str:
    """Returns the node that reads a value, looking into bodies for the innermost one."""
    for key, body in node.bodies.items():
        for inner in body.nodes:
            if value in inner.reads and value in find_free_values(body):
                return f"{_find_reader(inner, value)}, in body '{key}' of node {node.label},"
    return f"node {node.label}"
