"""Refusals: checks that loading refuses the same nodes as the query, for the same reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hetero_core.conformance.check import CheckContext, CheckFailed, Skip
from hetero_core.errors import UnsupportedNodesError

if TYPE_CHECKING:
    from hetero_core.contract import QueryResult
    from hetero_core.core import Core
    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork


def find_broken_refusal(core: Core, network: Network, device: str, result: QueryResult) -> str | None:
    """Returns the difference between the refusals of load and query; None if nodes and reasons are the same."""
    try:
        core.load_network(network, device).close()
    except UnsupportedNodesError as error:
        return _compare(result, error)
    except Exception as error:  # noqa: BLE001  # a device may raise anything; the error is the result
        return f"load_network of a refused network raised {type(error).__name__}: {error}; expected UnsupportedNodesError"
    return f"load_network loads it, though query_network refuses {sorted(result.refused)}"


def _compare(result: QueryResult, error: UnsupportedNodesError) -> str | None:
    if sorted(error.refusals) != sorted(result.refused):
        return f"query_network refuses {sorted(result.refused)}, load_network {sorted(error.refusals)}"
    for name, reason in result.refused.items():
        # A composed device has a reason from each of its devices.
        reasons = error.refusals[name].values()
        if not reasons or not all(part in reason for part in reasons):
            return f"node '{name}': query_network says {reason!r}, load_network says {' and '.join(map(repr, reasons))}"
    return None


def load_claimed(core: Core, network: Network, device: str) -> ExecutableNetwork:
    """Returns the loaded network; the query must have claimed all its nodes. Raises: CheckFailed if the load refuses it."""
    try:
        return core.load_network(network, device)
    except UnsupportedNodesError as error:
        raise CheckFailed(f"claimed by query, refused by load: {error}") from error


def load_each(context: CheckContext, networks: Mapping[str, Network]) -> Iterator[tuple[str, ExecutableNetwork]]:
    """Yields each network that the device claims, loaded, with its name. Raises: Skip if the device claims no network."""
    claimed = {name: network for name, network in networks.items() if not context.query(network).refused}
    if not claimed:
        raise Skip(f"the device takes none of {', '.join(networks)} in the networks of this check")
    for name, network in claimed.items():
        with load_claimed(context.core, network, context.device) as loaded:
            yield name, loaded
