"""The nodes that a value is made by, as far back as it passes through nodes of some kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hetero_core.network.graph import Graph, Node


def walk_producers(value: str, graph: Graph, passes: Callable[[Node], bool]) -> Iterator[Node]:
    """Yields the producer of a value first, then, behind each node that passes, the producers of its inputs."""
    waiting, seen = [value], {value}
    while waiting:
        node = graph.find_producer(waiting.pop())
        if node is None:
            continue
        yield node
        if passes(node):
            fresh = [source for source in node.reads if source not in seen]
            seen.update(fresh)
            waiting += fresh
