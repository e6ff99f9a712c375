"""Subgraph selection: which nodes are run together, and in which order the parts may run. The public door of the policies.

Pure functions on integers; imports no onnx. Under every policy, the parts together are without cycles, hold every node once, and
come out the same on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from hetero_core.network.topology import order_by_producers
from hetero_hetero.digraph import Digraph, OneOf, build_digraph, find_sources
from hetero_hetero.fewest import select_fewest
from hetero_hetero.largest_first import select_largest_first, select_literally
from hetero_hetero.levels import select_by_levels
from hetero_hetero.trace import SelectionLog

POLICIES: Mapping[str, Callable[[Digraph, SelectionLog], list[list[int]]]] = {
    "LARGEST_FIRST": select_largest_first,
    "LEVELS": select_by_levels,
    "FEWEST": select_fewest,
    "LITERAL": select_literally,
}
"""The policies; the first is the default. A policy returns subgraphs as lists of positions; of several that could be next, the first in
its list runs first. It tells the log which procedure selected them."""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Nodes that one device runs together, in topological order."""

    device: Hashable
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Selection:
    """The subgraphs in an order in which they can run, and how they were selected.

    `procedure_of_node` names for each node the procedure that selected its subgraph: LITERAL, CONTRACTED, LEVELS or FEWEST. `trace` is
    the text of the steps, empty if it was not asked for.
    """

    subgraphs: tuple[Subgraph, ...]
    procedure_of_node: Mapping[int, str]
    trace: str = ""


def select_subgraphs(
    predecessors: OneOf[Sequence[int]],
    device_of_node: OneOf[Hashable],
    priorities: Sequence[Hashable],
    policy: str = "LARGEST_FIRST",
    names: OneOf[str] | None = None,
) -> list[Subgraph]:
    """Returns the subgraphs in an order in which they can run; if several could be next, by their first nodes (not with FEWEST).

    predecessors: the nodes that feed each node, as a sequence or by key, in any numbering; an edge that is repeated counts once.
    LARGEST_FIRST and LEVELS give connected subgraphs. LEVELS is linear in nodes, edges and devices, and treats unconnected parts of
    the graph as if each were alone. So does LARGEST_FIRST until its steps are used up, which small parts use first; it selects the
    rest by levels. FEWEST gives as few subgraphs as it can, exactly so on two devices, and they may be disconnected.
    LITERAL follows the procedure of the design document at any size and contracts nothing. `names` stand for the numbers of the
    nodes in its error.
    Raises: AffinityError if subgraphs of LITERAL depend on each other in a circle.
    """
    return list(run_selection(predecessors, device_of_node, priorities, policy, names).subgraphs)


def run_selection(
    predecessors: OneOf[Sequence[int]],
    device_of_node: OneOf[Hashable],
    priorities: Sequence[Hashable],
    policy: str = "LARGEST_FIRST",
    names: OneOf[str] | None = None,
    *,
    traces: bool = False,
) -> Selection:
    """Returns the subgraphs as select_subgraphs does, their procedures and, if `traces`, the text of the steps."""
    graph = build_digraph(predecessors, device_of_node, priorities)
    log = SelectionLog(str if names is None else names.__getitem__, traces=traces)
    parts = [sorted(part) if len(part) > 1 else part for part in POLICIES[policy](graph, log)]
    order = order_by_producers(find_sources(graph, parts))
    assert len(order) == len(parts), "a policy gave parts that depend on each other in a circle"
    subgraphs = tuple(
        Subgraph(priorities[graph.device_of_position[parts[i][0]]], tuple(graph.index_of_position[place] for place in parts[i]))
        for i in order
    )
    text = log.text(policy, [(part.device, part.nodes) for part in subgraphs]) if traces else ""
    return Selection(subgraphs, log.procedure_of_node, text)
