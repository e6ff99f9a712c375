"""Moves: nodes that would be better off on another device than the first that takes them. Proposals only; nobody is asked here.

Pure functions on a network and an assignment. A move leads only to devices that have not refused the node, and never back to one that
it has left, so moves end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hetero_core.network.graph import Network
from hetero_hetero.assignment import Assignment
from hetero_hetero.subgraphs import Subgraph


@dataclass(frozen=True, slots=True)
class Move:
    """Nodes that go to a device together or not at all, and why."""

    names: tuple[str, ...]
    device: str
    reason: str


def propose_unit_moves(network: Network, units: Sequence[Sequence[int]], assignment: Assignment) -> list[Move]:
    """Returns moves that bring each unit that is on several devices to the first one that may take all of it."""
    moves = []
    for unit in units:
        names = tuple(network.nodes[index].name for index in unit)
        is_divided = len({assignment.device_of_node[name] for name in names}) > 1
        candidates = assignment.priorities if is_divided else ()
        device = next((candidate for candidate in candidates if _may_hold(assignment, names, candidate)), None)
        if device is not None:
            reason = f"moved to {device}: it takes all of the quantized unit {', '.join(names)}"
            moves.append(Move(names, device, reason))
    return moves


def _may_hold(assignment: Assignment, names: Iterable[str], device: str) -> bool:
    """Says whether all of the nodes are on a device or may move there."""
    return all(assignment.device_of_node[name] == device or assignment.may_move(name, device) for name in names)


def propose_shape_moves(network: Network, shape_nodes: Sequence[int], assignment: Assignment) -> list[Move]:
    """Returns moves that bring shape nodes to the device of all that read their results.

    A node moves to a device only if all its inputs are there or move there, too; so a move removes boundary values and makes none.
    """
    device_of_index = [assignment.device_of_node[node.name] for node in network.nodes]
    staying: set[int] = set()
    while True:
        goals = _follow_readers(network, shape_nodes, device_of_index, assignment, staying)
        stuck = _find_stuck(network, goals, device_of_index)
        if not stuck:
            break
        staying.update(stuck)
    moves = []
    for device in assignment.priorities:
        names = tuple(network.nodes[index].name for index in shape_nodes if goals.get(index) == device)
        if names:
            moves.append(Move(names, device, f"moved to {device}: only nodes there read the shape that is computed here"))
    return moves


def _follow_readers(
    network: Network, shape_nodes: Sequence[int], device_of_index: Sequence[str], assignment: Assignment, staying: set[int]
) -> dict[int, str]:
    """Returns shape node -> the one device where all of its readers are or go, for those that may go there."""
    goals: dict[int, str] = {}
    for index in reversed(shape_nodes):
        node = network.nodes[index]
        readers = (reader for value in node.writes for reader in network.index_of_consumers[value])
        devices = {goals.get(reader, device_of_index[reader]) for reader in readers} if index not in staying else set()
        device = devices.pop() if len(devices) == 1 else device_of_index[index]
        if device != device_of_index[index] and assignment.may_move(node.name, device):
            goals[index] = device
    return goals


def _find_stuck(network: Network, goals: Mapping[int, str], device_of_index: Sequence[str]) -> list[int]:
    """Returns the nodes that would read something at their goal that is not there otherwise."""
    going = dict(goals)
    stuck = []
    for index in sorted(goals):
        if not all(_is_at_hand(network, value, goals[index], going, device_of_index) for value in network.nodes[index].reads):
            del going[index]
            stuck.append(index)
    return stuck


def _is_at_hand(network: Network, value: str, device: str, going: Mapping[int, str], device_of_index: Sequence[str]) -> bool:
    """Says whether a value is made on a device, moves there with its producer, or is read there by a node that stays."""
    producer = network.index_of_producer.get(value)
    if producer is None or going.get(producer, device_of_index[producer]) == device:
        return True
    return any(reader not in going and device_of_index[reader] == device for reader in network.index_of_consumers[value])


def propose_folds(
    network: Network, subgraphs: Sequence[Subgraph], predecessors: Sequence[Sequence[int]], assignment: Assignment, *, smallest: int
) -> list[Move]:
    """Returns moves of subgraphs with fewer than `smallest` nodes to the device of a neighbour, the largest that may take them.

    A subgraph with a pinned node stays.
    """
    neighbours = _find_neighbours(subgraphs, predecessors)
    moves = []
    for number, subgraph in enumerate(subgraphs):
        names = tuple(network.nodes[index].name for index in subgraph.nodes)
        if len(names) >= smallest or any(name in assignment.pins for name in names):
            continue
        around = sorted(neighbours[number], key=lambda neighbour: (-len(subgraphs[neighbour].nodes), neighbour))
        devices = [str(subgraphs[neighbour].device) for neighbour in around if subgraphs[neighbour].device != subgraph.device]
        device = next((candidate for candidate in devices if _may_hold(assignment, names, candidate)), None)
        if device is not None:
            nodes = "1 node" if len(names) == 1 else f"{len(names)} nodes"
            reason = f"folded to {device}: subgraph of {nodes} is below HETERO_MIN_SUBGRAPH_SIZE={smallest}"
            moves.append(Move(names, device, reason))
    return moves


def _find_neighbours(subgraphs: Sequence[Subgraph], predecessors: Sequence[Sequence[int]]) -> list[set[int]]:
    """Returns for each subgraph those that share a value with it."""
    home = {index: number for number, subgraph in enumerate(subgraphs) for index in subgraph.nodes}
    neighbours: list[set[int]] = [set() for _ in subgraphs]
    for index, sources in enumerate(predecessors):
        for source in sources:
            if home[source] != home[index]:
                neighbours[home[source]].add(home[index])
                neighbours[home[index]].add(home[source])
    return neighbours
