"""Order and reachability of nodes: pure functions on graphs and on integers.

An edge runs from the producer of a value to every node that reads it, as input or in a body. Imports neither onnx nor NumPy.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import Graph, Network, Node


def predecessors_of_nodes(network: Network) -> list[tuple[int, ...]]:
    """Returns for each node the positions of the producers of the values that it reads or captures, ascending, without repeats."""
    producer = network.index_of_producer
    return [tuple(sorted({producer[value] for value in node.reads if value in producer})) for node in network.nodes]


def sort_topologically(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Returns the nodes with producers before consumers; among those that are free to stand next, the earliest in `nodes`.

    Nodes that are in order already come back as they were. Cost: linear for these, else n log n.

    Raises: InvalidNetworkError that names the nodes of a cycle.
    """
    producer = {value: index for index, node in enumerate(nodes) for value in node.writes}
    if all(producer.get(value, -1) < index for index, node in enumerate(nodes) for value in node.reads):
        return tuple(nodes)
    predecessors = [{producer[value] for value in node.reads if value in producer} for node in nodes]
    producers = dict(enumerate(predecessors))
    order = order_by_producers(producers)
    if len(order) < len(nodes):
        path = " -> ".join(nodes[index].label for index in find_cycle(producers, order))
        raise InvalidNetworkError(f"the graph is cyclic: {path}. An ONNX graph has no cycles; use Loop for iteration.")
    return tuple(nodes[index] for index in order)


def order_by_producers(producers: Mapping[int, Collection[int]]) -> list[int]:
    """Returns the keys so that producers come first; among those that are ready, the smallest. Nodes on and behind a cycle are left out."""
    consumers: dict[int, list[int]] = {index: [] for index in producers}
    missing = {}
    for index in sorted(producers):
        sources = set(producers[index])
        missing[index] = len(sources)
        for source in sources:
            consumers[source].append(index)
    ready = [index for index, count in missing.items() if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for consumer in consumers[index]:
            missing[consumer] -= 1
            if not missing[consumer]:
                heapq.heappush(ready, consumer)
    return order


def find_cycle(producers: Mapping[int, Collection[int]], order: Sequence[int]) -> list[int]:
    """Returns the keys of a cycle along its edges, the first again at the end; `order` are the keys outside of cycles."""
    stuck = producers.keys() - set(order)
    index = min(stuck)
    seen: dict[int, int] = {}
    walk: list[int] = []
    while index not in seen:
        seen[index] = len(walk)
        walk.append(index)
        index = min(source for source in producers[index] if source in stuck)
    return [*walk[seen[index] :], index][::-1]


def find_free_values(graph: Graph) -> tuple[str, ...]:
    """Returns the values that a body reads and does not define, each once, in the order of reading; outputs come last."""
    defined = {spec.name for spec in graph.inputs} | set(graph.initializers) | set(graph.index_of_producer)
    free: dict[str, None] = {}
    for node in graph.nodes:
        free.update((value, None) for value in node.reads if value not in defined)
    free.update((spec.name, None) for spec in graph.outputs if spec.name and spec.name not in defined)
    return tuple(free)
