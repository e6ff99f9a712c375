"""Runs drawn graphs on a device, from a seed to an outcome, and the checks of the level "graphs", which also campaigns use.

Check i of the level draws the graph of seed SEED + i; SEED is the seed of the run. So `--seed 517 --cases 1` repeats a failure of seed
517.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip, name_pair, require_refusal
from hetero_core.conformance.graphs.drawing import draw_graph
from hetero_core.conformance.graphs.judgement import Expectation, Reference
from hetero_core.conformance.samples import export_bytes
from hetero_core.debugging.divergence import expose_values
from hetero_core.debugging.reduction import reduce_network
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.errors import HeteroError, UnsupportedNodesError
from hetero_core.kernels.program import compile_program
from hetero_core.network.writer import network_to_proto

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork

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
class Way:
    """A way to run a graph. `pins` of a split name a device for each node; with `is_imported` the network is exported and imported."""

    name: str
    device: str
    config: Mapping[str, Any] = field(default_factory=dict)
    is_preset: bool = False
    is_imported: bool = False
    pins: Mapping[str, str] = field(default_factory=dict)


Failure = tuple[Way, str]
"""A way to run a graph, and the failure that it showed."""


class Trial:
    """A network with the inputs of its runs, and the expected outputs of each."""

    def __init__(self, network: Network, feeds: Sequence[Mapping[str, Any]]) -> None:
        self.network = network
        self.feeds = [{spec.name: feed[spec.name] for spec in network.inputs} for feed in feeds]
        reference = Reference(network)
        self.expectations = [Expectation(network, feed, reference=reference) for feed in self.feeds]

    def find_failure(self, core: Core, ways: Sequence[Way]) -> Failure | None:
        """Returns the first failure among these ways, or None."""
        for way in ways:
            try:
                with self._load(core, way) as loaded:
                    text = self._run(loaded, way)
            except UnsupportedNodesError as error:
                # The query covers the whole network; a device may take a node as part of a fusion and refuse it alone in a split.
                text = None if way.pins else f"{type(error).__name__}: {error}"
            except Exception as error:  # noqa: BLE001  # a device may raise anything; the error is the failure
                text = f"{type(error).__name__}: {error}"
            if text is not None:
                return way, text
        return None

    def find_dispute(self) -> str | None:
        """Returns the first disagreement of ONNX Runtime and the reference about a run, or None."""
        disputes = (expectation.describe_dispute() for expectation in self.expectations)
        return next((text for text in disputes if text is not None), None)

    def _load(self, core: Core, way: Way) -> ExecutableNetwork:
        """Returns the network loaded for this way."""
        network = self.network
        if way.pins:
            network = network.with_affinity({name: device for name, device in way.pins.items() if name in network.index_of_node})
        loaded = core.load_network(network, way.device, dict(way.config))
        if not way.is_imported:
            return loaded
        with loaded:
            blob = export_bytes(loaded)
        return core.import_network(blob, way.device)

    def _run(self, loaded: ExecutableNetwork, way: Way) -> str | None:
        request = loaded.create_infer_request()
        for run, (feed, expectation) in enumerate(zip(self.feeds, self.expectations, strict=True)):
            inputs = {name: array.copy() for name, array in feed.items()}
            presets = expectation.make_presets() if way.is_preset else {}
            for name, array in presets.items():
                request.set_tensor(name, array)
            outputs = request.infer(inputs)
            fault = expectation.describe_fault(list(outputs.values()))
            written = [name for name, array in inputs.items() if array.tobytes() != feed[name].tobytes()]
            others = [name for name, array in presets.items() if array.size and not np.shares_memory(array, outputs[name])]
            faults = [fault] if fault is not None else []
            faults += [f"input '{name}' was written to" for name in written]
            faults += [f"output '{name}' is not the array that was set for it" for name in others]
            if faults:
                return f"run {run + 1}: {faults[0]}"
        return None


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


def try_graph(core: Core, subject: Subject, seed: int) -> GraphOutcome:
    """Returns the outcome of a seed's graph on a device.

    A graph that the device refuses in part runs only split over the device and the reference. The outcome is DISPUTED if ONNX Runtime
    without optimizations and the toolkit in float64 do not agree.
    """
    drawn = draw_graph(seed)
    network = core.read_network(drawn.model)
    result = core.query_network(network, subject.device)
    conclude = partial(GraphOutcome, seed, drawn.family)
    try:
        refusal = require_refusal(core, network, subject.device, result) if result.refused else ""
    except CheckFailed as failed:
        return conclude(WRONG, str(failed), network)
    ways = [] if refusal else _list_whole(core, subject)
    ways += _list_splits(core, subject, network, seed)
    trial = Trial(network, drawn.feeds)
    dispute = trial.find_dispute() if ways else None
    if dispute is not None:
        return conclude(DISPUTED, f"the oracles do not agree: {dispute}")
    failure = trial.find_failure(core, ways)
    if failure is None:
        return conclude(REFUSED if refusal else RIGHT, refusal)
    way = failure[0]
    smallest, text = shrink(core, trial, failure)
    pins = {name: device for name, device in way.pins.items() if name in smallest.index_of_node}
    placed = f", with {pins}" if pins else ""
    return conclude(WRONG, f"seed {seed}, {drawn.family}, on {way.device} ({way.name}{placed}): {text}", smallest)


def _list_whole(core: Core, subject: Subject) -> list[Way]:
    """Returns the ways to run a graph on the device alone: one and two threads if it has the key, preset outputs, an import."""
    config = dict(subject.config or {})
    has_threads = "INFERENCE_NUM_THREADS" in core.config_keys(subject.device)
    single, double = ({**config, "INFERENCE_NUM_THREADS": count} if has_threads else config for count in (1, 2))
    ways = [
        Way("one thread", subject.device, single),
        Way("two threads, preset outputs", subject.device, double, is_preset=True),
    ]
    return [*ways, Way("imported", subject.device, single, is_imported=True)] if subject.exports else ways


def _list_splits(core: Core, subject: Subject, network: Network, seed: int) -> list[Way]:
    """Returns the ways to run a graph split at random; empty without a second device, or if both devices refuse a node."""
    listed = parse_device_name(subject.device)
    if listed.name == "HETERO":
        device, children = subject.device, split_device_list(listed.arguments)
    elif subject.reference:
        device, children = name_pair(subject.device, subject.reference), (subject.device, subject.reference)
    else:
        return []
    claims = {child: core.query_network(network, child).supported for child in children}
    able = {node.name: [child for child in children if node.name in claims[child]] for node in network.nodes}
    if not all(able.values()):
        return []
    random = Random(f"{seed} split")
    pins = {name: random.choice(takers) for name, takers in able.items()}
    config = dict(subject.config or {})
    return [
        Way("split", device, config, pins=pins),
        Way("split, imported, preset outputs", device, config, True, subject.exports, pins),
    ]


@cache
def list_graph_checks(cases: int = CASES) -> tuple[Check, ...]:
    """Returns a check for each graph."""
    return tuple(Check(f"graphs.graph_{index}", "graphs", partial(check_graph, index), shares_core=True) for index in range(cases))


def check_graph(index: int, context: CheckContext) -> GraphOutcome:
    """A random network of at least 3 nodes gives the outputs of its float64 computation: in three runs of a request, with one thread and
    two, with preset outputs, imported, and split at random over this device and the reference."""
    capabilities = context.facts.capabilities
    subject = Subject(context.device, context.reference if "hetero" in capabilities else "", "export" in capabilities)
    outcome = try_graph(context.core, subject, context.seed + index)
    if outcome.status == WRONG:
        raise CheckFailed(outcome.describe())
    if outcome.status in (REFUSED, DISPUTED):
        raise Skip(outcome.reason)
    return outcome


MOST_NUMBERS = 16
"""Constants of more elements are written as inputs."""


def shrink(core: Core, trial: Trial, failure: Failure) -> tuple[Network, str]:
    """Returns the smallest part that fails when run the same way, with the text of its failure.

    Values that cross from the rest of the graph into the part become inputs, with the values that the toolkit computed.
    """
    way, latest = failure
    recorded = [record_values(trial.network, feed) for feed in trial.feeds]

    def fails(part: Network) -> bool:
        nonlocal latest
        if part is trial.network:
            return True
        text = find_failure(core, part, recorded, way)
        if text is None or _kind(text) != _kind(latest):
            return False
        latest = text
        return True

    return reduce_network(trial.network, fails), latest


def find_failure(core: Core, part: Network, recorded: Sequence[Mapping[str, Any]], way: Way) -> str | None:
    """Returns the failure of a part that is run in this way; None if it passes or cannot be run."""
    if any(spec.name not in values for values in recorded for spec in part.inputs):
        return None
    try:
        trial = Trial(part, recorded)
        failure = None if trial.find_dispute() is not None else trial.find_failure(core, [way])
    except HeteroError:
        return None
    return None if failure is None else failure[1]


def record_values(network: Network, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every inner value of a run by the toolkit, and the inputs."""
    exposed = expose_values(network)
    outputs = compile_program(exposed).run(tuple(feed[spec.name] for spec in exposed.inputs))
    values = {spec.name: value for spec, value in zip(exposed.outputs, outputs, strict=True) if isinstance(value, np.ndarray)}
    return {**values, **feed}


def _kind(text: str) -> str:
    """Returns the kind of a failure without place and size: a wrong number, or the class of an error."""
    head = text.split(":", 1)[0]
    return head if head.isidentifier() else "wrong"


def write_text(network: Network) -> str:
    """Returns a network as ONNX text, without its larger constants, which are replaced by inputs."""
    model = network_to_proto(network)
    for constant in [constant for constant in model.graph.initializer if math.prod(constant.dims) > MOST_NUMBERS]:
        model.graph.initializer.remove(constant)
        model.graph.input.append(onnx.helper.make_tensor_value_info(constant.name, constant.data_type, constant.dims))
    return str(onnx.printer.to_text(model))
