"""Models: whole networks on the device, compared with the outputs of the oracles."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip, find_broken_refusal, load_claimed
from hetero_core.conformance.oracles import make_model, require_expected
from hetero_core.devices.names import parse_device_name
from hetero_core.testing.models import SMALL_MODELS

if TYPE_CHECKING:
    from hetero_core.contract import QueryResult
    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork

LIGHT = ("squeezenet", "shufflenet")
"""Topologies of well-known networks, with random weights: chains of convolutions, and grouped convolutions with shuffled channels."""

DYNAMIC = ("dynamic_batch", "residual")
"""The models whose batch is symbolic."""
BATCHES = (1, 5, 2)


@cache
def list_model_checks() -> tuple[Check, ...]:
    """Returns a check for each model, and a second check for each model with a symbolic batch."""
    whole = [Check(f"models.{name}", "models", partial(check_model, name), shares_core=True) for name in (*SMALL_MODELS, *LIGHT)]
    batches = [
        Check(f"models.{name}_takes_any_batch", "models", partial(check_batches, name), shares_core=True) for name in DYNAMIC
    ]
    return (*whole, *batches)


def check_model(name: str, context: CheckContext) -> None:
    """The outputs of a network are those of the oracles; a partly supported network runs on the device and CPU."""
    network = context.core.read_network(make_model(name))
    result = context.query(network)
    if result.refused:
        problem = find_broken_refusal(context.core, network, context.device, result)
        if problem is not None:
            raise CheckFailed(problem)
    with _load(context, network, result) as loaded:
        require_expected(loaded, name, context.seed)


def check_batches(name: str, context: CheckContext) -> None:
    """A loaded network with a symbolic batch runs with several sizes in sequence."""
    network = context.core.read_network(make_model(name))
    with _load(context, network, context.query(network)) as loaded:
        for batch in BATCHES:
            require_expected(loaded, name, context.seed, batch=batch, what=f"batch {batch}")


def _load(context: CheckContext, network: Network, result: QueryResult) -> ExecutableNetwork:
    """Returns the network loaded on the device, or on it and a second device if the device takes only a part.

    Raises: Skip if the device takes no node, or no second device takes the rest.
    """
    if not result.refused:
        return load_claimed(context.core, network, context.device)
    first = next(iter(result.refused))
    refusal = (
        f"{len(result.refused)} of {len(network.nodes)} nodes are refused, {network.node(first).label}: {result.refused[first]}"
    )
    if not result.supported or "hetero" not in context.facts.capabilities:
        raise Skip(refusal)
    # CPU supports the most operators.
    partner = "CPU" if "CPU" in context.core.device_names and context.facts.name != "CPU" else context.reference
    tested = parse_device_name(context.device)
    device = f"HETERO:{f'({tested})' if tested.arguments else tested},{partner}"
    if context.core.query_network(network, device).refused:
        raise Skip(f"{refusal}; {partner} does not take the rest either")
    return context.core.load_network(network, device)
