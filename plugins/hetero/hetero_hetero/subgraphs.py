"""Subgraph selection: which nodes are run together, and in which order the parts may run. The public door of the policies.

Pure functions on integers; imports no onnx. Whatever the policy, the parts together are without cycles, hold every node once, and
come out the same on every run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from hetero_core.cyclic_garbage import pause_cycle_collection
from hetero_core.errors import AffinityError, ConfigValueError, enumerate_choices, suggest
from hetero_core.network.topology import find_cycle, order_by_producers
from hetero_core.records import record
from hetero_hetero.digraph import Digraph, OneOf, build_digraph
from hetero_hetero.fewest import select_fewest
from hetero_hetero.largest_first import select_largest_first
from hetero_hetero.levels import select_by_levels
from hetero_hetero.literal import select_uncontracted

POLICIES = {
    "LARGEST_FIRST": select_largest_first,
    "LEVELS": select_by_levels,
    "FEWEST": select_fewest,
    "LITERAL": select_uncontracted,
}
"""Name -> function from a graph to its subgraphs as lists of positions."""


@record(frozen=True, slots=True)
class Subgraph:
    """Nodes that one device runs together, in topological order."""

    device: Hashable
    nodes: tuple[int, ...]


def select_subgraphs(
    predecessors: OneOf[Sequence[int]],
    device_of_node: OneOf[Hashable],
    priorities: Sequence[Hashable],
    policy: str = "LARGEST_FIRST",
    names: OneOf[str] | None = None,
) -> list[Subgraph]:
    """Returns the subgraphs in an order in which they can run; where several could be next, by their first nodes (not with FEWEST).

    predecessors: the nodes that feed each node, as a sequence or by key, in any numbering; an edge that is repeated counts once.
    LARGEST_FIRST and LEVELS give connected subgraphs and treat unconnected parts of the graph as if each were alone. LEVELS is
    linear in nodes, edges and devices; LARGEST_FIRST is near-linear on networks and slower where short subgraphs meet edges over
    long distances.
    FEWEST gives as few subgraphs as it can, exactly so on two devices, and they may be disconnected.
    LITERAL follows the procedure of the design document at any size and contracts nothing, so its subgraphs may need each other; such
    a result is refused, and the message shows the circle. `names` stand for the numbers of the nodes in it.
    Raises: ConfigValueError for an unknown policy; InvalidNetworkError for a cycle and for an edge from an unknown node;
    AffinityError for a node without a device or with one that is not in `priorities`, for a device that is there twice, and for
    subgraphs of LITERAL that depend on each other. All are ValueErrors.
    """
    if policy not in POLICIES:
        raise ConfigValueError(
            f"there is no policy '{policy}' of subgraph selection{suggest(str(policy), POLICIES) or ';'} "
            f"expected one of {enumerate_choices(POLICIES)}"
        )
    with pause_cycle_collection():
        graph = build_digraph(predecessors, device_of_node, priorities)
        parts = [sorted(part) if len(part) > 1 else part for part in POLICIES[policy](graph)]
        if policy == "LITERAL":
            _refuse_circle(graph, parts, names)
        # Waves come in the order in which they run.
        order = range(len(parts)) if policy == "FEWEST" else order_parts(graph, parts)
        return [_name_nodes(graph, parts[i]) for i in order]


def _refuse_circle(graph: Digraph, parts: Sequence[Sequence[int]], names: OneOf[str] | None) -> None:
    """Raises AffinityError where parts depend on each other; the message names the nodes of each part of one circle."""
    sources = _find_sources(graph, parts)
    order = order_by_producers(sources)
    if len(order) < len(parts):
        circle = " -> ".join(_show_part(graph, parts[number], names) for number in find_cycle(sources, order))
        raise AffinityError(
            f"the policy LITERAL gives subgraphs that wait for each other: {circle}. The procedure looks at each subgraph alone; "
            "LARGEST_FIRST, the default, follows it and keeps the whole plan without circles"
        )


def _find_sources(graph: Digraph, parts: Sequence[Sequence[int]]) -> dict[int, set[int]]:
    """Returns for each part, by its index, the other parts that feed it."""
    part_of_position = {position: number for number, part in enumerate(parts) for position in part}
    return {
        number: {part_of_position[source] for position in part for source in graph.producers[position]} - {number}
        for number, part in enumerate(parts)
    }


_MOST_NODES_SHOWN = 6
"""The most nodes of one subgraph that a message names."""


def _show_part(graph: Digraph, part: Sequence[int], names: OneOf[str] | None) -> str:
    numbers = [graph.index_of_position[position] for position in part]
    shown = [str(number) if names is None else names[number] for number in numbers[:_MOST_NODES_SHOWN]]
    more = [f"and {len(numbers) - len(shown)} more"] if len(numbers) > len(shown) else []
    return f"{{{', '.join([*shown, *more])}}} on {graph.priorities[graph.device_of_position[part[0]]]}"


def order_parts(graph: Digraph, parts: Sequence[Sequence[int]]) -> list[int]:
    """Returns the indices of the parts so that each comes after those that feed it; among the ready ones, by first position."""
    rising = sorted(range(len(parts)), key=lambda number: parts[number][0])
    order = order_by_producers(_find_sources(graph, [parts[number] for number in rising]))
    assert len(order) == len(parts), "a policy gave parts that depend on each other in a circle"
    return [rising[rank] for rank in order]


def _name_nodes(graph: Digraph, part: Sequence[int]) -> Subgraph:
    """Returns the part in the caller's terms."""
    device = graph.priorities[graph.device_of_position[part[0]]]
    return Subgraph(device, tuple(graph.index_of_position[position] for position in part))
