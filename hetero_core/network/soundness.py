"""Soundness of a graph: names that are text, exactly one source for each value, axes that exist. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_core.errors import InvalidNetworkError, NetworkReadError
from hetero_core.network.border import Border
from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import LARGEST_RANK, ValueSpec, merge_types


def check_text(*texts: object) -> None:
    """Refuses names that are not UTF-8, which protobuf gives as bytes. Raises: NetworkReadError."""
    try:
        "".join(texts)  # type: ignore[arg-type]  # the error is the check
    except TypeError:
        name = next(text for text in texts if not isinstance(text, str))
        raise NetworkReadError(f"a name in the model is not UTF-8: {name!r}; the model is damaged. Export it again.") from None


def check_axes(node: Node) -> None:
    """Refuses a node that names an axis which no tensor has, or more inputs or outputs than it has: inference counts up to them.

    Raises: InvalidNetworkError.
    """
    if not node.attributes or node.domain:
        return
    limits = {"axis": (-LARGEST_RANK, LARGEST_RANK), "batch_dims": (0, LARGEST_RANK), "num_scan_inputs": (0, len(node.inputs))}
    if node.op_type == "Split":
        limits["num_outputs"] = (len(node.outputs),) * 2
    for name, (least, most) in limits.items():
        number = node.attributes.get(name, least)
        if isinstance(number, int) and not least <= number <= most:
            raise InvalidNetworkError(
                f"node {node.label} has {name} {number}; expected one from {least} to {most}. Correct the attribute, or export the model "
                "again."
            )


def check_single_assignment(graph: Graph) -> None:
    """Refuses a value with two sources in a scope."""
    sources = [(spec.name, f"input '{spec.name}'") for spec in graph.inputs]
    sources += [(name, f"constant '{name}'") for name in graph.initializers]
    sources += [(value, f"node {node.label}") for node in graph.nodes for value in node.writes]
    source_of_value: dict[str, str] = {}
    for value, source in sources:
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
                    f"node {node.label} reads value '{value}', which nothing produces; the model is incomplete. "
                    "Connect it, or export the model again."
                )
    for spec in graph.outputs:
        if spec.name not in known:
            raise InvalidNetworkError(
                f"output '{spec.name}' is produced by nothing; the model is incomplete. Connect it, or export the model again."
            )


def find_contradiction(border: Border, inputs: Sequence[ValueSpec], outputs: Sequence[ValueSpec]) -> str | None:
    """Returns the contradiction between a border and inputs and outputs, or None: other tools may have changed a file."""
    spec_of_input, spec_of_output = {spec.name: spec for spec in inputs}, {spec.name: spec for spec in outputs}
    tied = [name for state in border.states for name in (f"output {state.output}", f"input {state.input}")]
    if len(set(tied)) < len(tied):
        return "an input or an output is tied twice"
    for state in border.states:
        source, target = spec_of_input.get(state.input), spec_of_output.get(state.output)
        if source is None or target is None:
            return f"output '{state.output}' is tied to input '{state.input}', and one of them is not there"
        if merge_types(source.type, target.type) is None or merge_types(source.type, state.initial.type) is None:
            return f"output {target} and the first value {state.initial.type} are tied to input {source}"
    for name, constant in border.defaults.items():
        if name not in spec_of_input or merge_types(spec_of_input[name].type, constant.type) is None:
            return f"the default of input '{name}' is {constant.type}, which the input does not take"
    for name, layout in border.layouts.items():
        spec = spec_of_input.get(name, spec_of_output.get(name))
        if spec is not None and spec.shape is not None and len(layout) != len(spec.shape):
            return f"the layout of {spec} is '{layout}'"
    return None
