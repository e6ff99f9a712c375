"""From the values of a network to the ports of the engine's model, which renames and drops values, and passes inputs to outputs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from hetero_core.errors import LoadError
from hetero_core.network.graph import Network

Passes = dict[int, int]
"""Index of an output -> index of the input with the same value."""


@dataclass(frozen=True)
class Ports:
    """Ports of inputs and outputs; None for an input that nothing in the engine's model reads, and for an output that is an input.

    `passed` maps such an output to its input, `parameters` the name of a parameter of the model to its input.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    passed: Passes
    parameters: dict[str, int]

    def pack(self) -> bytes:
        """Returns the ports as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, content: bytes) -> Ports:
        """Returns the ports of `pack`. Raises: ValueError, KeyError, TypeError."""
        fields = json.loads(content)
        passed = {int(output): source for output, source in fields["passed"].items()}
        return cls(tuple(fields["inputs"]), tuple(fields["outputs"]), passed, fields["parameters"])


def assign_ports(model: Any, network: Network) -> Ports:
    """Returns the ports of the engine's model, and removes the outputs that are inputs from it.

    OpenVINO 2026.4 does not write an output that is an input (Dropout in inference, Max of a single value), nor further copies of that
    input.

    Raises: LoadError when a parameter of the model is no input of the network.
    """
    index_of_parameter: dict[str, int] = {}
    port_of_input: dict[int, int] = {}
    for port, parameter in enumerate(model.get_parameters()):
        name = _find_input(sorted(parameter.output(0).get_names()), network)
        if name is None:
            raise LoadError(
                f"OpenVINO made '{parameter.get_friendly_name()}' an input of network '{network.name}', which it is not"
            )
        port_of_input[network.index_of_input[name]] = port
        index_of_parameter[parameter.get_friendly_name()] = network.index_of_input[name]
    count = len(network.outputs)
    ports = Ports(
        tuple(port_of_input.get(index) for index in range(len(network.inputs))), tuple(range(count)), {}, index_of_parameter
    )
    sources = [result.input_value(0).get_node() for result in model.get_results()]
    names = [source.get_friendly_name() if source.get_type_name() == "Parameter" else None for source in sources]
    return _take_out(model, ports, names)


def take_out_copies(model: Any, ports: Ports, compiled: Any) -> Ports:
    """Returns the ports without the outputs that became inputs when a model was compiled, and takes those out of the model.

    The compiler removes nodes that change nothing, as a Cast to the type that is there. OpenVINO 2026.4 then copies the input to the
    output; if sizes are open and the output has its own memory, it reads an input of an earlier run, which may be freed.
    """
    sources = {
        result.get_friendly_name(): _name_input(result.input_value(0).get_node())
        for result in compiled.get_runtime_model().get_results()
    }
    return _take_out(model, ports, [sources.get(result.get_friendly_name()) for result in model.get_results()])


def _take_out(model: Any, ports: Ports, parameters: list[str | None]) -> Ports:
    """Removes the results that are parameters; `parameters` has a parameter's name for each result, None for a computed result."""
    passed = dict(ports.passed)
    outputs: list[int | None] = list(ports.outputs)
    results = list(model.get_results())
    remaining = 0
    for index, port in enumerate(ports.outputs):
        if port is None:
            continue
        name = parameters[port]
        if name is None:
            outputs[index] = remaining
            remaining += 1
        else:
            passed[index] = ports.parameters[name]
            outputs[index] = None
            model.remove_result(results[port])
    return replace(ports, outputs=tuple(outputs), passed=passed)


def _name_input(operation: Any) -> str | None:
    """Returns the name of a compiled operation that is an input of the model; None for any other operation."""
    information = operation.get_rt_info()
    is_input = "layerType" in information and information["layerType"].value == "Input"
    return operation.get_friendly_name() if is_input else None


def _find_input(names: list[str], network: Network) -> str | None:
    """Returns the input of a parameter, which has the input's name or, renamed by the engine, the name of a value that copies the input."""
    for name in names:
        # A node that copies a value copies its first input.
        while name not in network.index_of_input and (node := network.find_producer(name)) is not None and node.inputs:
            name = node.inputs[0]
        if name in network.index_of_input:
            return name
    return None
