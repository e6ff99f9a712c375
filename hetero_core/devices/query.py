"""Queries: the guide's steps for a plugin that transforms before it compiles, and the check of a plugin's answer.

`query_by_transform` answers in names of the network that was asked about: a name that a pass makes both supported and refused is
refused; a name that vanishes is supported. Inputs, outputs and constants have no device of their own: they follow their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hetero_core.contract import DeviceName, QueryResult, freeze_mapping
from hetero_core.errors import PluginError, UnsupportedNodesError
from hetero_core.network.graph import Network, Node

GENERAL_CURE = (
    "'hetero inspect MODEL' names the installed devices that take them: add one to a HETERO list, as in 'HETERO:GPU,CPU', or give the "
    "operator as an extension."
)
"""The advice for nodes that a device refuses."""
Refuse = Callable[[Node, Network], str | None]
"""Returns why the device cannot run a node of a transformed network, or None when it can."""


def query_by_transform(
    device: DeviceName, network: Network, transform: Callable[[Network], Network], refuse: Refuse
) -> QueryResult:
    """Returns the nodes that the device takes: transforms the network as loading does, and asks `refuse` about each node of the result.

    Source: the plugin guide's QueryNetwork, steps 1 to 7.
    """
    transformed = transform(network)
    reasons: dict[str, str] = {}
    for node in transformed.nodes:
        reason = refuse(node, transformed)
        if reason is None:
            continue
        for origin in node.origins:
            if origin in network.index_of_node:
                came_from = "" if origin == node.name else f" (it becomes part of {node.label})"
                reasons.setdefault(origin, reason + came_from)
    return answer_query(device, network, reasons)


def answer_query(device: DeviceName, network: Network, reasons: Mapping[str, str]) -> QueryResult:
    """Returns the answer of a device that takes all nodes but those with a reason."""
    label = str(device)
    return QueryResult(
        supported=freeze_mapping((node.name, label) for node in network.nodes if node.name not in reasons),
        refused=freeze_mapping((node.name, reasons[node.name]) for node in network.nodes if node.name in reasons),
    )


def require_all_supported(device: DeviceName, network: Network, result: QueryResult) -> None:
    """Raises UnsupportedNodesError that lists every refused node with its reason; to be called first when loading."""
    if not isinstance(result, QueryResult):
        raise PluginError(f"the query_network of {device} returned {type(result).__name__}; expected a QueryResult")
    if not result.refused:
        return
    refusals = {name: {str(device): reason} for name, reason in result.refused.items()}
    raise UnsupportedNodesError(
        describe_refusals(network, refusals, f"cannot load network '{network.name}' on {device}"), refusals, GENERAL_CURE
    )


def describe_refusals(network: Network, refusals: Mapping[str, Mapping[str, str]], headline: str) -> str:
    """Returns the headline and a line for each refused node and each device that refused it."""
    lines = [f"{headline}: {len(refusals)} of {len(network.nodes)} nodes are refused"]
    for name, reason_of_device in refusals.items():
        lines += [f"  node {network.node(name).label}, {device}: {reason}" for device, reason in reason_of_device.items()]
    return "\n".join(lines)


def check_query_result(result: Any, network: Network, *, blame: str) -> QueryResult:
    """Returns the result when it names every node of the network exactly once.

    Raises: PluginError with the names that are missing, unknown or repeated.
    """
    if not isinstance(result, QueryResult):
        raise PluginError(f"{blame} returned {type(result).__name__} from query_network; expected a QueryResult")
    for problem, names in (
        ("both takes and refuses", [name for name in result.supported if name in result.refused]),
        (
            "names nodes that the network does not have:",
            [n for n in (*result.supported, *result.refused) if n not in network.index_of_node],
        ),
        ("says nothing about", [n.name for n in network.nodes if n.name not in result.supported and n.name not in result.refused]),
        ("gives no reason for", [name for name, reason in result.refused.items() if not reason]),
    ):
        if names:
            shown = ", ".join(f"'{name}'" for name in names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
            raise PluginError(f"{blame} {problem} {shown} in query_network for network '{network.name}'")
    return result
