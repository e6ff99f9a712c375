"""From the values of a network to the ports of the engine's model: what it renames, drops, and passes from an input to an output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hetero_core.errors import LoadError
from hetero_core.network.graph import Network

Passes = dict[int, int]
"""Index of an output -> index of the input that it is, value for value."""


@dataclass(frozen=True)
class Ports:
    """Where values go in and come out; None for an input that nothing in the engine's model reads, and for an output that is an input.

    `passed` says which input such an output is.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    passed: Passes


def assign_ports(model: Any, network: Network) -> Ports:
    """Returns the ports of the engine's model, and takes out of it the outputs that are inputs.

    OpenVINO 2026.4 does not write an output that is an input (a Dropout that infers, a Max of one value), nor then other outputs that are
    copies of that input.

    Raises: LoadError when a parameter of the model is no input of the network.
    """
    index_of_input = {spec.name: index for index, spec in enumerate(network.inputs)}
    index_of_parameter: dict[str, int] = {}
    port_of_input: dict[int, int] = {}
    for port, parameter in enumerate(model.get_parameters()):
        name = _find_input(sorted(parameter.output(0).get_names()), network)
        if name is None:
            raise LoadError(
                f"OpenVINO made '{parameter.get_friendly_name()}' an input of network '{network.name}', which it is not"
            )
        port_of_input[index_of_input[name]] = port
        index_of_parameter[parameter.get_friendly_name()] = index_of_input[name]
    outputs: list[int | None] = []
    passed: Passes = {}
    kept = 0
    for index, result in enumerate(list(model.get_results())):
        source = result.input_value(0).get_node()
        if source.get_type_name() == "Parameter":
            passed[index] = index_of_parameter[source.get_friendly_name()]
            outputs.append(None)
            model.remove_result(result)
        else:
            outputs.append(kept)
            kept += 1
    return Ports(tuple(port_of_input.get(index) for index in range(len(network.inputs))), tuple(outputs), passed)


def _find_input(names: list[str], network: Network) -> str | None:
    """Returns the input whose names a parameter has: its own, or, as the engine renames it then, those of nodes that pass it on."""
    for name in names:
        seen: set[str] = set()
        while name not in network.index_of_input:
            index = network.index_of_producer.get(name)
            if index is None or name in seen or not network.nodes[index].inputs:
                break
            seen.add(name)
            # What passes a value on does so with its first input.
            name = network.nodes[index].inputs[0]
        else:
            return name
    return None
