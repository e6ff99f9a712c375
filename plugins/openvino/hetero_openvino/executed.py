"""The executed graph of the engine: layers with their kernels, layouts and times, and the nodes that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hetero_core.executed import ExecutedNode
from hetero_core.network.graph import Network, Node
from hetero_core.profile import Profile

Port = tuple[str, int]
"""An output of a layer: the layer's name, and the index."""


def list_layers(model: Any, network: Network) -> tuple[ExecutedNode, ...]:
    """Returns the layers in order, named as in profiles.

    Outputs of the network, and values of a layer that stands for nodes, have their own names; the rest is named after the layer.
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
        info = _read_information(layer)
        nodes = _find_nodes(info, network)
        for port in ports:
            value_of_port.setdefault(port, _name_value(nodes[-1].writes if nodes else (), port, value_of_port.values()))
        outputs = tuple(map(value_of_port.__getitem__, ports))
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


def record_layers(request: Any, compiled: Any, network: Network, profile: Profile, began: float, ended: float) -> None:
    """Adds the times of the layers; a fused layer stands under the names of all its nodes. `compiled` is None after a close.

    The engine tells the mean of each layer over all runs so far, in whole microseconds. If the means add up to more than the time of this
    run, all are shortened by the same factor.
    """
    layers = () if compiled is None else compiled.get_runtime_model().get_ordered_ops()
    nodes_of_layer = {layer.get_friendly_name(): _find_nodes(_read_information(layer), network) for layer in layers}
    entries = [
        entry
        for entry in request.profiling_info
        if str(entry.status).endswith("EXECUTED") and entry.node_type not in ("Parameter", "Result", "Constant")
    ]
    # The engine tells no points in time: layers are placed in their order, up to the end of the run.
    total = sum(entry.real_time.total_seconds() for entry in entries)
    share = min(1.0, (ended - began) / total) if total else 1.0
    begin = ended - share * total
    for entry in entries:
        seconds = share * entry.real_time.total_seconds()
        nodes = nodes_of_layer.get(entry.node_name) or [Node(entry.node_name, entry.node_type, (), ())]
        joined = Node(" + ".join(node.name for node in nodes), "+".join(node.op_type for node in nodes), (), ())
        profile.add(nodes[0] if len(nodes) == 1 else joined, seconds, begin=begin)
        begin += seconds


def _read_information(layer: Any) -> dict[str, str]:
    return {key: str(value.value) for key, value in layer.get_rt_info().items() if hasattr(value, "value")}


def _find_nodes(information: Mapping[str, str], network: Network) -> list[Node]:
    """Returns the network's nodes in a layer; empty for a layer of the engine's own, such as a change of layout.

    An operation has the name of its node or of the output that it makes. Several operations of a node have names that begin with its name.
    """
    indices = set()
    for name in information.get("originalLayersNames", "").split(","):
        candidates = (name, name.rpartition("/")[0])
        positions = (network.index_of_node.get(each, network.index_of_producer.get(each)) for each in candidates)
        indices.add(next((index for index in positions if index is not None), None))
    return [network.nodes[index] for index in sorted(index for index in indices if index is not None)]


def _name_outputs(layers: Iterable[Any], network: Network) -> dict[Port, str]:
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
