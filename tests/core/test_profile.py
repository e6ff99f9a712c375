"""The profile of a run: begin, subgraph and order of nodes and transfers, and the time in the queue. No duration is asserted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.contract import Done
from hetero_core.network.graph import Node
from hetero_core.profile import NodeTime, Profile, StageTime

DIAMOND = """g (float[2] x) => (float[2] y) {
    [first] a = Relu (x) [second] b = Abs (a) [near] c = Neg (b) [far] d = Exp (b) [join] e = Add (c, d) [tail] y = Abs (e) }"""
X = np.array([1, -2], np.float32)
ON = {"PERF_COUNT": True}


def end_of(time: NodeTime | StageTime) -> float:
    return time.begin + time.seconds


def profile_of(core: Core, network: Network, device: str, **config: Any) -> Profile:
    request = core.load_network(network, device, {**ON, **config}).create_infer_request()
    request.infer({"x": X})
    assert request.profile is not None
    return request.profile


def test_end_of_a_node_is_the_moment_it_is_recorded() -> None:
    profile = Profile("D")
    node = Node("n", "Relu", ("x",), ("y",), opset=17, since_version=14)
    before = perf_counter()
    profile.add(node, 0.5)
    after = perf_counter()
    profile.add(node, 0.5, begin=7.0)
    implicit, explicit = profile.entries
    assert before <= implicit.begin + 0.5 <= after
    assert (explicit.begin, explicit.seconds) == (7.0, 0.5)
    assert (implicit.thread, explicit.thread) == (threading.get_ident(), 0)


def test_parts_write_into_the_outer_profile_under_their_path() -> None:
    whole = Profile("OUTER")
    inner = whole.of_part("MIDDLE", 3).of_part("INNER", 1)
    inner.add_transfer("v", 24, 0.0, source="INNER", targets=("host",))
    inner.end_part(("v",), ("w",))
    (entry,), (stage,) = whole.entries, whole.stages
    assert (entry.path, entry.subgraph, entry.device, entry.nbytes) == ((3, 1), 3, "INNER", 24)
    assert (entry.source, entry.targets) == ("INNER", ("host",))
    assert (stage.path, stage.device, stage.reads, stage.writes) == ((3, 1), "INNER", ("v",), ("w",))
    assert whole.copied_bytes == inner.copied_bytes == 24


def test_nodes_lie_within_subgraphs_and_subgraphs_within_the_run(core: Core, read: Callable[..., Network]) -> None:
    profile = profile_of(core, read(DIAMOND).with_affinity({"far": "CPU"}), "HETERO:TEMPLATE,CPU")
    assert [(stage.path, stage.device) for stage in profile.stages] == [((0,), "TEMPLATE"), ((1,), "CPU"), ((2,), "TEMPLATE")]
    assert [stage.reads for stage in profile.stages] == [("x",), ("b",), ("c", "d")]
    assert [stage.writes for stage in profile.stages] == [("b", "c"), ("d",), ("y",)]
    assert [(entry.node, entry.path) for entry in profile.entries if not entry.targets] == [
        ("first", (0,)),
        ("second", (0,)),
        ("near", (0,)),
        ("far", (1,)),
        ("join", (2,)),
        ("tail", (2,)),
    ]
    assert profile.began is not None
    assert profile.ended is not None
    stage_of_path = {stage.path: stage for stage in profile.stages}
    for entry in profile.entries:
        if entry.targets:
            continue  # a transfer stands between two subgraphs
        stage = stage_of_path[entry.path]
        assert stage.begin <= entry.begin <= end_of(entry) <= end_of(stage)
    assert profile.requested <= profile.began <= profile.stages[0].begin
    assert end_of(profile.stages[-1]) <= profile.ended
    for times in (profile.entries, profile.stages):
        assert all(end_of(earlier) <= later.begin for earlier, later in pairwise(times))


def test_split_networks_inside_a_split_network_are_told_apart(core: Core, read: Callable[..., Network]) -> None:
    network = read(DIAMOND).with_affinity({"far": "CPU"})
    profile = profile_of(core, network, "HETERO:(HETERO:TEMPLATE,CPU),CPU", TEMPLATE_REFUSED_OPERATORS="Neg")
    assert [(entry.node, entry.path, entry.device, entry.subgraph) for entry in profile.entries if not entry.targets] == [
        ("first", (0, 0), "TEMPLATE", 0),
        ("second", (0, 0), "TEMPLATE", 0),
        ("near", (0, 1), "CPU", 0),
        ("far", (1,), "CPU", 1),
        ("join", (2, 0), "TEMPLATE", 2),
        ("tail", (2, 0), "TEMPLATE", 2),
    ]
    # An inner subgraph ends before its outer subgraph.
    assert [stage.path for stage in profile.stages] == [(0, 0), (0, 1), (0,), (1,), (2, 0), (2,)]
    device_of_path = {stage.path: stage.device for stage in profile.stages}
    assert device_of_path[2,] == "HETERO:TEMPLATE,CPU"


def test_request_leaves_the_queue_when_a_device_thread_is_free(
    core: Core, hand: Any, read: Callable[..., Network], feed: Callable[[float], dict[str, Any]]
) -> None:
    loaded = core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), "HAND", ON)
    requests = [loaded.create_infer_request() for _ in range(2)]
    # The device has a single stream, so the second run waits.
    for request in requests:
        request.start_async(feed(1))
    first = hand.next_run()
    last = requests[1].profile
    assert last is not None
    assert (last.began, last.queue_seconds) == (None, 0)
    released = perf_counter()
    first.end()
    hand.next_run().end()
    for request in requests:
        assert request.wait(60)
    assert last.began is not None
    assert last.ended is not None
    assert last.requested <= released <= last.began <= last.ended
    assert last.queue_seconds == last.began - last.requested >= released - last.requested


class SelfStarting(Executable):
    """Runs on its own thread; reports the begin of a run if `says_when`."""

    def __init__(self, network: Network, *, says_when: bool) -> None:
        self.inputs, self.outputs, self._says_when = network.inputs, network.outputs, says_when
        self.start = self._start
        self.free = threading.Event()

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return (inputs[0] * 2,)

    def _start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        def work() -> None:
            assert self.free.wait(60)
            if self._says_when and context.profile is not None:
                context.profile.begin_run()
            done(self.run(inputs, context), None)

        threading.Thread(target=work).start()


class SelfStartingDevice:
    def __init__(self, *, says_when: bool) -> None:
        self._says_when = says_when

    @hookimpl
    def query_network(self, device: Any, network: Network) -> QueryResult:
        return QueryResult({node.name: str(device) for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        return SelfStarting(network, says_when=self._says_when)


@pytest.mark.parametrize("says_when", [False, True])
def test_device_that_starts_runs_itself_may_say_when_one_began(core: Core, read: Callable[..., Network], says_when: bool) -> None:
    core.register_plugin("SELF", SelfStartingDevice(says_when=says_when))
    loaded = core.load_network(read("g (float[2] x) => (float[2] y) { y = Add(x, x) }"), "SELF", ON)
    request = loaded.create_infer_request()
    request.start_async({"x": X})
    told = perf_counter()
    assert isinstance(loaded.executable, SelfStarting)
    loaded.executable.free.set()
    assert request.wait(60)
    profile = request.profile
    assert profile is not None
    assert profile.began is not None
    assert profile.ended is not None
    assert (profile.began > told) is says_when
    assert profile.requested <= profile.began <= profile.ended
    assert profile.ended > told


def test_failed_run_has_an_end(core: Core, hand: Any, read: Callable[..., Network], feed: Callable[[float], Any]) -> None:
    loaded = core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), "HAND", ON)
    request = loaded.create_infer_request()
    request.start_async(feed(1))
    hand.next_run().end(OverflowError("no room"))
    with pytest.raises(Exception, match="no room"):
        request.wait(60)
    assert request.profile is not None
    assert request.profile.ended is not None


def test_there_is_no_profile_unless_it_is_asked_for(core: Core, read: Callable[..., Network]) -> None:
    request = core.load_network(read(DIAMOND), "HETERO:TEMPLATE,CPU").create_infer_request()
    assert request.profile is None
    request.infer({"x": X})
    assert request.profile is None
