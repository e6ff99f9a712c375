"""The executed graph of the engine, as the core's steps: layers with their kernels, layouts and the nodes that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hetero_core.executed import ExecutedNode
from hetero_core.network.graph import Network

Port = tuple[str, int]
"""An output of a layer: the layer's name, and the index."""


def list_layers(model: Any, network: Network, find_node: Callable[[str], int | None]) -> tuple[ExecutedNode, ...]:
    """Returns the layers in order, named as in profiles; `find_node` gives the index of the node that an operation comes from.

    Outputs of the network have their names, and so have values of a layer that stands for nodes; others are named after their layer.
    """
    ordered = model.get_ordered_ops()
    value_of_port = _name_outputs(ordered, network)
    layers = []
    for layer in ordered:
        kind, title = layer.get_type_name(), layer.get_friendly_name()
        if kind == "Result":
            continue
        ports = [(title, place) for place in range(len(layer.outputs()))]
        if kind in ("Parameter", "Constant"):
            value_of_port.update((port, title) for port in ports)
            continue
        info = {key: str(value.value) for key, value in layer.get_rt_info().items() if hasattr(value, "value")}
        indices = {index for name in info.get("originalLayersNames", "").split(",") if (index := find_node(name)) is not None}
        nodes = [network.nodes[index] for index in sorted(indices)]
        for port in ports:
            value_of_port.setdefault(port, _name_value(nodes[-1].writes if nodes else (), port, value_of_port.values()))
        outputs = tuple(value_of_port[port] for port in ports)
        layers.append(
            ExecutedNode(
                " + ".join(node.name for node in nodes) or title,
                info.get("layerType", kind),
                tuple(node.name for node in nodes),
                tuple(value_of_port[port] for port in map(_find_source, layer.inputs())),
                outputs,
                info.get("primitiveType", ""),
                tuple(info.get("outputLayouts", "").split(",")),
                tuple(map(network.types.get, outputs)),
            )
        )
    return tuple(layers)


def _name_outputs(layers: Iterable[Any], network: Network) -> dict[Port, str]:
    """Returns the ports that the outputs of the network are read from."""
    names: dict[Port, str] = {}
    for layer in layers:
        value = layer.get_friendly_name().partition("/sink_port_")[0]
        if layer.get_type_name() == "Result" and value in network.names_of_outputs:
            names[_find_source(layer.inputs()[0])] = value
    return names


def _find_source(port: Any) -> Port:
    source = port.get_source_output()
    return source.get_node().get_friendly_name(), source.get_index()


def _name_value(writes: tuple[str, ...], port: Port, used_names: Iterable[str]) -> str:
    value = writes[port[1]] if port[1] < len(writes) else ""
    return value if value and value not in used_names else f"{port[0]}:{port[1]}"
