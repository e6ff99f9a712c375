"""What an executable asks of passes, planner and toolkit: they are imported when something is planned, which an import of a blob is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_core.network.graph import Network, Node
    from hetero_cpu.planning.plan import ExecutionPlan
    from hetero_cpu.planning.signature import Signature
    from hetero_cpu.planning.weights import PackedWeights


def specialize(network: Network, signature: Signature) -> Network:
    """Returns the network for one set of input shapes."""
    from hetero_core.kernels.program import evaluate_node
    from hetero_cpu.planning.specialization import specialize_network

    return specialize_network(network, signature, evaluate_node)


def join(network: Network) -> Network:
    """Returns a network whose shapes are known, after the passes that need to know them."""
    from hetero_cpu.passes import join_network

    return join_network(network)


def build_plan(
    network: Network, weights: PackedWeights, extensions: Mapping[tuple[str, str], Any], **options: Any
) -> ExecutionPlan:
    """Returns the plan of a network, as the planner makes it with these options."""
    from hetero_cpu.planning import planner

    return planner.build_plan(network, weights, extensions, **options)


def compile_toolkit(network: Network, extensions: Mapping[tuple[str, str], Any]) -> Program:
    """Returns the network as the toolkit runs it, node by node, with the names that a profile shows."""
    from hetero_core.kernels.program import compile_program

    return compile_program(replace(network, nodes=name_nodes(network)), extensions=extensions)


def name_nodes(network: Network) -> tuple[Node, ...]:
    """Returns the nodes of a network, each under the joined names of the nodes of the model that it was made of."""
    from hetero_cpu.planning.fusion import Group

    return tuple([Group(node).name_profile() for node in network.nodes])
