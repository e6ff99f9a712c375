"""Runs drawn graphs on a device, from a seed to an outcome, and the checks of the level "graphs", which also campaigns use.

Check i of the level draws the graph of seed SEED + i; SEED is the seed of the run. So `--seed 517 --cases 1` repeats a failure of seed
517.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, Any

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip
from hetero_core.conformance.graphs.drawing import DrawnGraph, draw_graph
from hetero_core.conformance.graphs.shrinking import shrink, write_text
from hetero_core.conformance.graphs.trial import Failure, Trial, Way
from hetero_core.conformance.refusals import find_broken_refusal
from hetero_core.devices.names import parse_device_name, split_device_list

if TYPE_CHECKING:
    from hetero_core.contract import QueryResult
    from hetero_core.core import Core
    from hetero_core.network.graph import Network

CASES = 30
"""Number of graphs that the level draws by default."""
RIGHT, REFUSED, DISPUTED, WRONG = "right", "refused", "disputed", "wrong"


@dataclass(frozen=True, slots=True)
class Subject:
    """The device under trial: its configuration, whether it can export, and the second device of splits (empty if there is none)."""

    device: str
    reference: str = ""
    exports: bool = False
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GraphOutcome:
    """The result of a device on a graph. `smallest` is the smallest failing network, if the graph fails."""

    seed: int
    family: str
    status: str
    reason: str = ""
    smallest: Network | None = None

    def describe(self) -> str:
        """Returns the reason, with the smallest failing network as text."""
        return self.reason if self.smallest is None else f"{self.reason}\n{write_text(self.smallest)}"


def try_graph(core: Core, subject: Subject, seed: int, *, shrinks: bool = True) -> GraphOutcome:
    """Returns the outcome of a seed's graph on a device.

    A graph that the device refuses in part runs only split over the device and the reference. The outcome is DISPUTED if ONNX Runtime
    without optimizations and the toolkit in float64 do not agree.
    """
    drawn = draw_graph(seed)
    network = core.read_network(drawn.model)
    result = core.query_network(network, subject.device)
    ways = [] if result.refused else _list_whole(core, subject)
    ways += _list_splits(core, subject, network, seed)
    if result.refused:
        problem = find_broken_refusal(core, network, subject.device, result)
        if problem is not None:
            return GraphOutcome(seed, drawn.family, WRONG, problem, network)
    if not ways:
        return _refuse(drawn, network, result)
    trial = Trial(network, drawn.feeds)
    dispute = trial.find_dispute()
    if dispute is not None:
        return GraphOutcome(seed, drawn.family, DISPUTED, f"the oracles do not agree: {dispute}")
    failure = trial.find_failure(core, ways)
    if failure is not None:
        return _conclude(core, drawn, trial, failure, shrinks=shrinks)
    return _refuse(drawn, network, result) if result.refused else GraphOutcome(seed, drawn.family, RIGHT)


def _refuse(drawn: DrawnGraph, network: Network, result: QueryResult) -> GraphOutcome:
    first, reason = next(iter(result.refused.items()))
    return GraphOutcome(drawn.seed, drawn.family, REFUSED, f"{network.node(first).label}: {reason}")


def _conclude(core: Core, drawn: DrawnGraph, trial: Trial, failure: Failure, *, shrinks: bool) -> GraphOutcome:
    network = trial.network
    if shrinks:
        network, failure = shrink(core, trial, failure)
    pins = {name: device for name, device in failure.way.pins.items() if name in network.index_of_node}
    placed = f", with {pins}" if pins else ""
    reason = f"seed {drawn.seed}, {drawn.family}, on {failure.way.device} ({failure.way.name}{placed}): {failure.text}"
    return GraphOutcome(drawn.seed, drawn.family, WRONG, reason, network)


def _list_whole(core: Core, subject: Subject) -> list[Way]:
    """Returns the ways to run a graph on the device alone: one and two threads if it has the key, preset outputs, an import."""
    config = dict(subject.config or {})
    has_threads = "INFERENCE_NUM_THREADS" in core.config_keys(subject.device)
    single, double = ({**config, "INFERENCE_NUM_THREADS": count} if has_threads else config for count in (1, 2))
    ways = [
        Way("one thread", subject.device, single, is_exported=subject.exports),
        Way("two threads, preset outputs", subject.device, double, is_preset=True),
    ]
    return [*ways, Way("imported", subject.device, single, is_imported=True)] if subject.exports else ways


def _list_splits(core: Core, subject: Subject, network: Network, seed: int) -> list[Way]:
    """Returns the ways to run a graph split at random; empty without a second device, or if both devices refuse a node."""
    listed = parse_device_name(subject.device)
    if listed.name == "HETERO":
        device, children = subject.device, split_device_list(listed.arguments)
    elif subject.reference:
        tested = f"({subject.device})" if ":" in subject.device else subject.device
        device, children = f"HETERO:{tested},{subject.reference}", (subject.device, subject.reference)
    else:
        return []
    pins = draw_pins(core, network, children, Random(f"{seed} split"))
    if not pins:
        return []
    config = dict(subject.config or {})
    split = Way("split", device, config, pins=pins, is_exported=subject.exports)
    return [split, Way("split, imported, preset outputs", device, config, True, subject.exports, pins)]


def draw_pins(core: Core, network: Network, devices: Sequence[str], random: Random) -> dict[str, str]:
    """Returns a device for each node, drawn among the devices that take the node; empty if all devices refuse a node."""
    claims = {device: core.query_network(network, device).supported for device in devices}
    pins = {}
    for node in network.nodes:
        able = [device for device in devices if node.name in claims[device]]
        if not able:
            return {}
        pins[node.name] = random.choice(able)
    return pins


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
