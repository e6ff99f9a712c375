"""The steps of a loaded network, in one form for every device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hetero_core.devices.provenance import call_plugin
from hetero_core.errors import PluginError
from hetero_core.executed import ExecutedNode, join_executed
from hetero_core.network.graph import Network
from hetero_core.profile import Profile

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork


def list_executed(network: ExecutableNetwork, origins: tuple[str, ...] = ()) -> tuple[ExecutedNode, ...]:
    """Returns the steps in order; one for the whole where the device does not tell, which stands for `origins`. Raises: PluginError."""
    blame = f"device {network.device}"
    nodes = call_plugin(network.executable.executed_nodes, blame=blame, where="executed_nodes")
    if nodes is None:
        whole = ExecutedNode(
            network.name,
            "Network",
            origins,
            tuple(spec.name for spec in network.all_inputs),
            tuple(spec.name for spec in network.all_outputs),
            types=tuple(spec.type for spec in network.all_outputs),
        )
        return (whole,)
    if not isinstance(nodes, tuple) or not all(isinstance(node, ExecutedNode) for node in nodes):
        raise PluginError(f"{blame} returned {type(nodes).__name__} from executed_nodes; expected a tuple of ExecutedNode, or None")
    return nodes


def describe_executed(network: ExecutableNetwork, profile: Profile | None) -> Network:
    """Returns the executed graph of a loaded network, with the times of one run where its profile is given."""
    nodes = list_executed(network)
    own = str(network.device)
    placed = [node if node.device else replace(node, device=own) for node in nodes]
    return join_executed(network.name, network.all_inputs, network.all_outputs, placed, profile)
