"""Graphs: a random network for each seed, run on the device in several ways and compared with a float64 computation.

Check i of the level draws the graph of seed SEED + i; SEED is the seed of the run. So `--seed 517 --cases 1` repeats a failure of seed
517.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip
from hetero_core.conformance.graphs.attempt import DISPUTED, REFUSED, WRONG, Subject, try_graph

if TYPE_CHECKING:
    from hetero_core.conformance.graphs.attempt import GraphOutcome

CASES = 30
"""Number of graphs that are drawn by default."""


@cache
def list_graph_checks(cases: int = CASES) -> tuple[Check, ...]:
    """Returns one check for each graph."""
    return tuple(Check(f"graphs.graph_{index}", "graphs", partial(check_graph, index), shares_core=True) for index in range(cases))


def check_graph(index: int, context: CheckContext) -> GraphOutcome:
    """A random network of at least 3 nodes gives the outputs of its float64 computation: in three runs of a request, with one thread and
    two, with preset outputs, imported, and split at random over this device and the reference."""
    subject = Subject(
        context.device, context.reference if "hetero" in context.facts.capabilities else "", "export" in context.facts.capabilities
    )
    outcome = try_graph(context.core, subject, context.seed + index)
    if outcome.status == WRONG:
        raise CheckFailed(outcome.describe())
    if outcome.status in (REFUSED, DISPUTED):
        raise Skip(outcome.reason)
    return outcome
