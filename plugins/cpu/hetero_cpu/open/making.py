"""From a network and an example of its input shapes to the plan of a class of sizes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from hetero_core.network.graph import Network
from hetero_cpu.open.network import Signature, expose_late, open_network
from hetero_cpu.open.plan import OpenPlan
from hetero_cpu.open.tabulating import tabulate_plan
from hetero_cpu.open.terms import NotOpenError
from hetero_cpu.passes import join_open_network
from hetero_cpu.planning.planner import build_plan
from hetero_cpu.planning.weights import PackedWeights

if TYPE_CHECKING:
    from hetero_cpu.machine.compiler import Kernel

logger = logging.getLogger(__name__)


def make_open_plan(
    network: Network,
    signature: Signature,
    example: Network,
    *,
    weights: PackedWeights,
    extensions: Mapping[tuple[str, str], Any],
    workers: int,
    begin_packing: Callable[[], None] = lambda: None,
) -> Generator[Kernel, None, OpenPlan | None]:
    """Yields the kernels of the plan of a class that input shapes belong to, then packs its weights and returns it.

    Returns None if there is no plan, or if it holds for these shapes alone. `example`: the network as it was specialized for the shapes.
    `begin_packing` is called when the consumer has taken all kernels.
    """
    try:
        opened = open_network(network, signature, example)
        joined, late = expose_late(join_open_network(opened.network, opened.scope))
        plan = build_plan(joined, weights, extensions, workers=workers, scope=opened.scope)
        yield from plan.kernels
        begin_packing()
        # Binding packs one weight after the other.
        weights.pack_all(workers)
        open_plan = tabulate_plan(plan, opened, late)
    except (NotOpenError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        # A step that asks of its arrays what those with open sizes cannot tell: each set of sizes is planned alone then.
        logger.info("network '%s' is planned for each set of sizes: %s: %s", network.name, type(error).__name__, error)
        return None
    if open_plan.sizes.is_single or open_plan.match(signature) is None:
        logger.info("network '%s': what was planned holds for the sizes %s alone", network.name, signature)
        return None
    return open_plan
