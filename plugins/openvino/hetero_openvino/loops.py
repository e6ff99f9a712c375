"""Loops that the engine runs while it compiles: those that read nothing but constants.

OpenVINO 2026.4 computes ahead what depends on constants alone, a Loop with all its iterations, too; it knows no limit, and compiling cannot
be stopped. A few bytes of a model can ask for 2^63 iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from hetero_core.network.graph import Graph, Node
from hetero_core.transforms.constants import RANDOM_OPERATORS

MOST_ITERATIONS = 10_000


def find_endless_loops(graph: Graph, known: Set[str] = frozenset(), owner: str = "") -> Mapping[str, str]:
    """Returns why nodes are refused whose loops, or those in their bodies, the engine would run when it compiles; by name.

    `known` are the values around the graph that depend on constants alone; `owner` is the node of the network that the graph belongs to.
    """
    reasons: dict[str, str] = {}
    constant = {*known, *graph.initializers}
    for node in graph.nodes:
        name = owner or node.name
        for body in node.bodies.values():
            reasons.update(find_endless_loops(body, constant - {spec.name for spec in body.inputs}, name))
        if node.op_type in RANDOM_OPERATORS or not constant.issuperset(node.reads):
            continue
        constant.update(node.writes)
        if node.op_type == "Loop" and not node.domain and _may_be_long(node, graph):
            reasons[name] = f"OpenVINO runs a Loop of constants when it compiles, here with more than {MOST_ITERATIONS} iterations"
    return reasons


def _may_be_long(node: Node, graph: Graph) -> bool:
    count = graph.initializers.get(node.inputs[0])
    return count is None or count.array.size != 1 or int(count.array.reshape(-1)[0]) > MOST_ITERATIONS
