"""Models: whole networks on the device, against what two oracles agree on."""

from __future__ import annotations

from functools import cache, partial

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip
from hetero_core.conformance.oracles import describe_difference, find_expected, make_model
from hetero_core.conformance.refusals import find_broken_refusal, load_claimed
from hetero_core.testing.models import SMALL_MODELS

LIGHT = ("squeezenet", "shufflenet")
"""Topologies of well-known networks, with random weights: chains of convolutions, and grouped ones that are shuffled."""

DYNAMIC = ("dynamic_batch", "residual")
"""The models whose batch is symbolic."""
BATCHES = (1, 5, 2)


@cache
def list_model_checks() -> tuple[Check, ...]:
    """Returns one check for each model, and one for each whose batch may change."""
    whole = [Check(f"models.{name}", "models", partial(check_model, name), shares_core=True) for name in (*SMALL_MODELS, *LIGHT)]
    batches = [
        Check(f"models.{name}_takes_any_batch", "models", partial(check_batches, name), shares_core=True) for name in DYNAMIC
    ]
    return (*whole, *batches)


def check_model(name: str, context: CheckContext) -> None:
    """The outputs of a whole network are those that two oracles agree on; a network that is not taken is refused as the query says."""
    network = context.core.read_network(make_model(name))
    result = context.core.query_network(network, context.device)
    if result.refused:
        problem = find_broken_refusal(context.core, network, context.device, result)
        if problem is not None:
            raise CheckFailed(problem)
        first = next(iter(result.refused))
        raise Skip(
            f"{len(result.refused)} of {len(network.nodes)} nodes are refused, {network.node(first).label}: {result.refused[first]}"
        )
    inputs, expected = find_expected(name, context.seed)
    with load_claimed(context.core, network, context.device) as loaded:
        difference = describe_difference(loaded.infer(inputs), expected)
    if difference is not None:
        raise CheckFailed(difference)


def check_batches(name: str, context: CheckContext) -> None:
    """One loaded network with a symbolic batch takes several sizes, one after the other."""
    network = context.core.read_network(make_model(name))
    if context.core.query_network(network, context.device).refused:
        raise Skip("the device does not take the whole network")
    with load_claimed(context.core, network, context.device) as loaded:
        for batch in BATCHES:
            inputs, expected = find_expected(name, context.seed, batch)
            difference = describe_difference(loaded.infer(inputs), expected)
            if difference is not None:
                raise CheckFailed(f"batch {batch}: {difference}")
