"""Order and reachability of nodes: pure functions on graphs and on integers.

An edge runs from the producer of a value to every node that reads it, as input or in a body. Imports neither onnx nor NumPy.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import Graph, Network, Node


def predecessors_of_nodes(network: Network) -> list[tuple[int, ...]]:
    """Returns for each node the positions of the nodes whose values it reads or captures, ascending, without repeats."""
    producer = network.index_of_producer
    return [tuple(sorted({producer[value] for value in node.reads if value in producer})) for node in network.nodes]


def sort_topologically(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Returns the nodes with producers before consumers; among those that are free to stand next, the earliest in `nodes`.

    Nodes that are in order already come back as they were. Cost: linear for these, else n log n.

    Raises: InvalidNetworkError that names the nodes of one cycle.
    """
    producer = {value: index for index, node in enumerate(nodes) for value in node.writes}
    if all(producer.get(value, -1) < index for index, node in enumerate(nodes) for value in node.reads):
        return tuple(nodes)
    predecessors = [{producer[value] for value in node.reads if value in producer} for node in nodes]
    successors: list[list[int]] = [[] for _ in nodes]
    for index, before in enumerate(predecessors):
        for source in before:
            successors[source].append(index)
    waiting = [len(before) for before in predecessors]
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for target in successors[index]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, target)
    if len(order) < len(nodes):
        _refuse_cycle(nodes, predecessors, set(order))
    return tuple(nodes[index] for index in order)


def _refuse_cycle(nodes: Sequence[Node], predecessors: Sequence[set[int]], ordered: set[int]) -> None:
    """Walks back along nodes that could not be ordered until one comes twice."""
    index = next(index for index in range(len(nodes)) if index not in ordered)
    seen: dict[int, int] = {}
    walk: list[int] = []
    while index not in seen:
        seen[index] = len(walk)
        walk.append(index)
        index = min(source for source in predecessors[index] if source not in ordered)
    cycle = [*walk[seen[index] :], index]
    path = " -> ".join(nodes[step].label for step in reversed(cycle))
    raise InvalidNetworkError(f"the graph is cyclic: {path}. An ONNX graph has no cycles; use Loop for iteration.")


def find_free_values(graph: Graph) -> tuple[str, ...]:
    """Returns the values that a body reads and does not define, each once, in the order of reading; outputs come last."""
    defined = {spec.name for spec in graph.inputs} | set(graph.initializers) | set(graph.index_of_producer)
    free: dict[str, None] = {}
    for node in graph.nodes:
        free.update((value, None) for value in node.reads if value not in defined)
    free.update((spec.name, None) for spec in graph.outputs if spec.name and spec.name not in defined)
    return tuple(free)
