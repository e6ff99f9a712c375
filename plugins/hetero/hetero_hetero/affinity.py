"""Affinity: which device each node goes to, from pins and from what the devices say, in order of priority.

Each device is asked about the network of what is left. When the split is known, each device is asked once more about each part as it
will be compiled; what it refuses then goes to the next device, and the split is made anew. A device is never asked twice for a node that
it has refused, so this ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_core.core import Core
from hetero_core.devices.names import parse_device_name
from hetero_core.errors import AffinityError, InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.graph import Network
from hetero_core.network.topology import predecessors_of_nodes
from hetero_hetero.parts import cut_part, without_pins
from hetero_hetero.subgraphs import Subgraph, select_subgraphs


@dataclass(slots=True)
class Assignment:
    """The device of each node that a device takes, in order of the nodes, and the subgraphs that follow from it.

    `refusals` maps node -> device -> reason for every no that was heard; `refused` are the nodes that nobody takes.
    """

    priorities: tuple[str, ...]
    pins: Mapping[str, str]
    device_of_node: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, dict[str, str]] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    subgraphs: tuple[Subgraph, ...] = ()


def assign_devices(core: Core, network: Network, configs: Mapping[str, Mapping[str, Any]], *, policy: str) -> Assignment:
    """Returns the assignment of a network to the devices that `configs` maps to their configuration, in order of priority.

    Raises: AffinityError for a pin to a device outside the list; InvalidNetworkError where a cut meets a value without type.
    """
    assignment = Assignment(tuple(configs), resolve_affinity(network, tuple(configs)))
    while True:
        left = _ask_in_order(core, network, assignment, configs)
        assignment.device_of_node = {n.name: assignment.device_of_node[n.name] for n in network.nodes if n.name in assignment.device_of_node}
        if left:
            assignment.refused = tuple(left)
            return assignment
        assignment.subgraphs = _select(network, assignment, policy)
        if not _ask_about_parts(core, network, assignment, configs):
            return assignment


def resolve_affinity(network: Network, priorities: Sequence[str]) -> dict[str, str]:
    """Returns the network's pins with canonical device names.

    Raises: AffinityError for a device that is not in the list.
    """
    pins = {}
    for name, device in network.affinity.items():
        canonical = str(parse_device_name(device))
        if canonical not in priorities:
            hint = suggest(canonical, priorities) or ";"
            raise AffinityError(
                f"node {network.node(name).label} is pinned to {device}, which is not in the list{hint} the list is "
                f"{enumerate_choices(priorities)}"
            )
        pins[name] = canonical
    return pins


def _ask_in_order(core: Core, network: Network, assignment: Assignment, configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Assigns what has no device yet; returns the nodes that nobody takes."""
    left = [node.name for node in network.nodes if node.name not in assignment.device_of_node]
    for device, config in configs.items():
        asked = [name for name in left if _may_take(assignment, name, device)]
        if not asked:
            continue
        for name, reason in _query(core, network, asked, device, config).items():
            if reason is None:
                assignment.device_of_node[name] = device
            else:
                assignment.refusals.setdefault(name, {})[device] = reason
        left = [name for name in left if name not in assignment.device_of_node]
    return left


def _may_take(assignment: Assignment, name: str, device: str) -> bool:
    return assignment.pins.get(name, device) == device and device not in assignment.refusals.get(name, {})


def _query(core: Core, network: Network, names: Iterable[str], device: str, config: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns for each node None where the device takes it, and the reason where it does not."""
    wanted = tuple(names)
    result = core.query_network(_find_part(network, wanted), device, config)
    return {name: result.refused.get(name) for name in wanted}


def _find_part(network: Network, names: tuple[str, ...]) -> Network:
    """Returns the network of these nodes; the whole one where a value of unknown type makes that no network of its own.

    A plan that really has to cut there fails when its stages are cut, with the values listed.
    """
    if len(names) == len(network.nodes):
        return without_pins(network)
    try:
        return cut_part(network, names)
    except InvalidNetworkError:
        return without_pins(network)


def _select(network: Network, assignment: Assignment, policy: str) -> tuple[Subgraph, ...]:
    devices = [assignment.device_of_node[node.name] for node in network.nodes]
    return tuple(select_subgraphs(predecessors_of_nodes(network), devices, assignment.priorities, policy=policy))


def _ask_about_parts(core: Core, network: Network, assignment: Assignment, configs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Takes their device from the nodes that it refuses as part of a subgraph; says whether there were any."""
    has_refusals = False
    for subgraph in assignment.subgraphs:
        names = [network.nodes[index].name for index in subgraph.nodes]
        if len(names) == len(network.nodes):
            continue  # the whole network was asked about before
        device = str(subgraph.device)
        for name, reason in _query(core, network, names, device, configs[device]).items():
            if reason is not None:
                assignment.refusals.setdefault(name, {})[device] = f"{reason} (asked as part of a subgraph of {len(names)} nodes)"
                del assignment.device_of_node[name]
                has_refusals = True
    return has_refusals
