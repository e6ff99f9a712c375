"""Traces of real runs follow the rules of the trace format, so viewers draw slices, tracks and arrows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from hetero_core import Core, Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.network.graph import Node
from hetero_core.profile import Profile
from hetero_core.reports.trace import format_events, list_events, profiles_to_trace
from hetero_core.runtime.queue import AsyncInferQueue

BRANCHES = "g (float[2] x) => (float[2] y) { a = Relu(x) b = Abs(a) c = Neg(a) d = Relu(b) e = Relu(c) y = Add(d, e) }"
X = np.array([1, -2], np.float32)
ON = {"PERF_COUNT": True}
OPERATORS: Mapping[str, Callable[..., Any]] = {"Relu": lambda v: np.maximum(v, 0), "Abs": np.abs, "Neg": np.negative, "Add": np.add}

Event = dict[str, Any]


def check_events(text: str) -> list[Event]:
    """Checks the events of a trace against the format and returns them, with times in whole nanoseconds."""
    document = json.loads(text)
    assert set(document) == {"traceEvents", "displayTimeUnit"}
    events: list[Event] = document["traceEvents"]
    assert {event["ph"] for event in events} <= {"M", "X", "s", "f"}
    for event in events:
        for field in ("ts", "dur"):
            if field in event:
                event[field] = round(event[field] * 1000)
    timed = [event for event in events if event["ph"] != "M"]
    assert all("ts" not in event for event in events if event["ph"] == "M")
    assert all(earlier["ts"] <= later["ts"] for earlier, later in pairwise(timed))
    check_names(events)
    stack_of_track = check_nesting([event for event in timed if event["ph"] == "X"])
    check_arrows([event for event in timed if event["ph"] in "sf"], stack_of_track)
    return events


def check_names(events: Sequence[Event]) -> None:
    """Asserts that each process and each track with an event has exactly one name."""
    named = [(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"]
    assert len(named) == len(set(named))
    for event in events:
        if event["ph"] == "M":
            continue
        assert ("process_name", event["pid"], 0) in named
        assert ("thread_name", event["pid"], event["tid"]) in named


def check_nesting(slices: Sequence[Event]) -> dict[tuple[int, int], list[Event]]:
    """Asserts that slices of a track are nested or disjoint, and returns the slices by (process, track)."""
    tracks: dict[tuple[int, int], list[Event]] = {}
    for event in slices:
        assert event["dur"] >= 0
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in tracks.values():
        open_slices: list[Event] = []
        for event in events:
            while open_slices and open_slices[-1]["ts"] + open_slices[-1]["dur"] <= event["ts"]:
                open_slices.pop()
            if open_slices:
                assert event["ts"] + event["dur"] <= open_slices[-1]["ts"] + open_slices[-1]["dur"], (event, open_slices[-1])
            open_slices.append(event)
    return tracks


def check_arrows(ends: Sequence[Event], tracks: Mapping[tuple[int, int], Sequence[Event]]) -> None:
    """Asserts that each arrow has a start and a later finish, both inside a slice of their tracks."""
    starts = {event["id"]: event for event in ends if event["ph"] == "s"}
    finishes = {event["id"]: event for event in ends if event["ph"] == "f"}
    assert len(starts) + len(finishes) == len(ends)
    assert set(starts) == set(finishes)
    for number, finish in finishes.items():
        start = starts[number]
        assert start["ts"] <= finish["ts"]
        assert (start["name"], start["cat"], finish["bp"]) == (finish["name"], finish["cat"], "e")
    for event in ends:
        around = [each for each in tracks[event["pid"], event["tid"]] if each["ts"] <= event["ts"] < each["ts"] + each["dur"]]
        assert around, event


def list_arrows(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Returns the names of the outermost device or transfer slices at both ends of each arrow."""

    def find(end: Event) -> str:
        around = [
            event
            for event in events
            if event["ph"] == "X"
            and (event["pid"], event["tid"]) == (end["pid"], end["tid"])
            and event["ts"] <= end["ts"] < event["ts"] + event["dur"]
        ]
        return str(min(around, key=lambda event: (event["ts"], -event["dur"]))["name"])

    finish_of_arrow = {event["id"]: event for event in events if event["ph"] == "f"}
    return sorted((find(event), find(finish_of_arrow[event["id"]])) for event in events if event["ph"] == "s")


def list_slices(events: Sequence[Event], process: str) -> list[Event]:
    (number,) = [
        event["pid"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name" and event["args"]["name"] == process
    ]
    return [event for event in events if event["ph"] == "X" and event["pid"] == number]


def list_processes(events: Sequence[Event]) -> list[str]:
    return [event["args"]["name"] for event in events if event["name"] == "process_name"]


class Meeting:
    """A device that calls `before()` before each node and records the time of the node."""

    def __init__(self, before: Callable[[], object] = lambda: None, *, is_late: bool = False) -> None:
        self.before, self.is_late = before, is_late

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"HOLDS_INTERPRETER_LOCK": False, "RANGE_FOR_ASYNC_INFER_REQUESTS": (1, 4, 1)}

    @hookimpl
    def query_network(self, device: Any, network: Network) -> QueryResult:
        return QueryResult({node.name: str(device) for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        return MeetingExecutable(network, self)


def spin(seconds: float) -> None:
    """Keeps the processor busy for `seconds`."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


class MeetingExecutable(Executable):
    def __init__(self, network: Network, device: Meeting) -> None:
        self.inputs, self.outputs, self._network, self._device = network.inputs, network.outputs, network, device

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        values = {spec.name: value for spec, value in zip(self.inputs, inputs, strict=True)}
        times = []
        for node in self._network.nodes:
            began = perf_counter()
            self._device.before()
            values[node.outputs[0]] = OPERATORS[node.op_type](*(values[name] for name in node.inputs))
            times.append((node, perf_counter() - began))
            if context.profile is not None and not self._device.is_late:
                context.profile.add(*times[-1])
        for node, seconds in times if self._device.is_late and context.profile is not None else ():
            context.profile.add(node, seconds)
        return tuple(values[spec.name] for spec in self.outputs)


def load_branches(core: Core, read: Callable[..., Network], first: Meeting, second: Meeting) -> Any:
    """Loads a network with the branches b-d on M1 and c-e on M2, between a and y on CPU."""
    core.register_plugin("M1", first)
    core.register_plugin("M2", second)
    network = read(BRANCHES)
    a, b, c, d, e, y = (node.name for node in network.nodes)
    pins = {a: "CPU", y: "CPU", b: "M1", d: "M1", c: "M2", e: "M2"}
    return core.load_network(network.with_affinity(pins), "HETERO:M1,M2,CPU", ON)


def test_branches_on_two_devices_overlap_in_the_trace(core: Core, read: Callable[..., Network]) -> None:
    barrier = threading.Barrier(2, timeout=900)
    request = load_branches(core, read, Meeting(barrier.wait), Meeting(barrier.wait)).create_infer_request()
    assert request.infer({"x": X})["y"].tolist() == [1, 0]
    events = check_events(profiles_to_trace([request.profile]))
    assert list_processes(events)[0] == "requests"
    assert sorted(list_processes(events)) == ["CPU", "M1", "M2", "requests"]
    (first,) = [each for each in list_slices(events, "M1") if each["cat"] == "subgraph"]
    (second,) = [each for each in list_slices(events, "M2") if each["cat"] == "subgraph"]
    # Each branch waits for the second branch, so their times overlap.
    assert max(first["ts"], second["ts"]) < min(first["ts"] + first["dur"], second["ts"] + second["dur"])
    assert first["args"]["reads"] == ["a"]
    nodes = {each["name"]: each["args"]["operator"] for each in list_slices(events, "M1") if each["cat"] == "node"}
    assert nodes == {"Abs_1": "Abs-13", "Relu_3": "Relu-14"}
    path_of = {each["args"]["device"]: each["name"] for each in (first, second)}
    start, end = (each["name"] for each in list_slices(events, "CPU") if each["cat"] == "subgraph")
    assert list_arrows(events) == sorted(
        [(start, path_of["M1"]), (start, path_of["M2"]), (path_of["M1"], end), (path_of["M2"], end)]
    )


def test_overlapping_requests_have_tracks_of_their_own(core: Core, read: Callable[..., Network]) -> None:
    barrier = threading.Barrier(2, timeout=900)
    core.register_plugin("M1", Meeting(barrier.wait))
    loaded = core.load_network(read("g (float[2] x) => (float[2] y) { a = Relu(x) y = Abs(a) }"), "M1", {**ON, "NUM_STREAMS": 2})
    profiles: list[Profile] = []
    with AsyncInferQueue(loaded, 2) as queue:
        queue.set_callback(lambda request, _: profiles.append(request.profile))
        for _ in range(6):
            queue.start_async({"x": X})
    events = check_events(profiles_to_trace(profiles))
    slices = list_slices(events, "M1")
    assert len([each for each in slices if each["cat"] == "subgraph"]) == 6
    # Nodes of two requests wait for each other, so there are two tracks; at most two requests run at once.
    assert {each["tid"] for each in slices} == {1, 2}
    tracks = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == slices[0]["pid"]
    }
    assert tracks == {1: "M1", 2: "M1 (2)"}
    requests = list_slices(events, "requests")
    assert sorted(each["name"] for each in requests if each["cat"] == "request") == [f"request {index}" for index in range(6)]
    assert len([each for each in requests if each["name"] == "queue wait"]) == 6


def test_several_requests_of_a_split_network_are_a_sound_trace(core: Core, read: Callable[..., Network]) -> None:
    loaded = load_branches(core, read, Meeting(), Meeting())
    profiles: list[Profile] = []
    with AsyncInferQueue(loaded, 4) as queue:
        queue.set_callback(lambda request, _: profiles.append(request.profile))
        for _ in range(20):
            queue.start_async({"x": X})
    events = check_events(profiles_to_trace(profiles))
    assert len([event for event in events if event["ph"] == "s"]) == 80
    for process in ("M1", "M2"):
        stages = [each for each in list_slices(events, process) if each["cat"] == "subgraph"]
        assert sorted(each["args"]["request"] for each in stages) == list(range(20))


def test_arrows_lead_over_the_transfers(core: Core, read: Callable[..., Network]) -> None:
    text = "g (float[2] x) => (float[2] y) { a = Relu(x) b = Abs(a) y = Relu(b) }"
    request = core.load_network(
        read(text), "HETERO:TEMPLATE,CPU", {**ON, "TEMPLATE_REFUSED_OPERATORS": "Abs"}
    ).create_infer_request()
    assert request.infer({"x": X})["y"].tolist() == [1, 0]
    assert request.profile is not None
    events = check_events(profiles_to_trace([request.profile]))
    transfers = list_slices(events, "transfers")
    assert [(each["name"], each["args"]["bytes"], each["args"]["source"], each["args"]["targets"]) for each in transfers] == [
        ("x", 8, "host", ["TEMPLATE"]),
        ("a", 8, "TEMPLATE", ["CPU"]),
        ("b", 8, "CPU", ["TEMPLATE"]),
        ("y", 8, "TEMPLATE", ["host"]),
    ]
    assert list_arrows(events) == sorted(
        [
            ("x", "subgraph 0"),
            ("subgraph 0", "a"),
            ("a", "subgraph 1"),
            ("subgraph 1", "b"),
            ("b", "subgraph 2"),
            ("subgraph 2", "y"),
        ]
    )


def test_split_inside_a_split_is_drawn_on_both_levels(core: Core, read: Callable[..., Network]) -> None:
    network = read("g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) c = Exp(b) y = Relu(c) }").with_affinity(
        {"Exp_2": "CPU"}
    )
    device = "HETERO:(HETERO:TEMPLATE,CPU),CPU"
    request = core.load_network(network, device, {**ON, "TEMPLATE_REFUSED_OPERATORS": "Neg"}).create_infer_request()
    request.infer({"x": X})
    assert request.profile is not None
    events = check_events(profiles_to_trace([request.profile]))
    assert [each["name"] for each in list_slices(events, "HETERO:TEMPLATE,CPU")] == ["subgraph 0", "subgraph 2"]
    assert [each["name"] for each in list_slices(events, "TEMPLATE") if each["cat"] == "subgraph"] == [
        "subgraph 0/0",
        "subgraph 2/0",
    ]
    # Arrows lead over the transfers to and from the memory of TEMPLATE, in the inner and in the outer split.
    arrows = list_arrows(events)
    assert {("subgraph 0/0", "a"), ("a", "subgraph 0/1"), ("subgraph 0", "subgraph 1"), ("subgraph 2/0", "y")} <= set(arrows)


def test_whole_network_is_a_slice_with_its_nodes(core: Core, read: Callable[..., Network]) -> None:
    request = core.load_network(read(BRANCHES), "CPU", ON).create_infer_request()
    request.infer({"x": X})
    assert request.profile is not None
    whole, *nodes = list_slices(check_events(profiles_to_trace([request.profile])), "CPU")
    assert (whole["name"], whole["cat"]) == ("network", "subgraph")
    assert [each["name"] for each in nodes] == [entry.node for entry in request.perf_counts]


def test_times_recorded_after_the_run_are_laid_out_in_order(core: Core, read: Callable[..., Network]) -> None:
    # Each node takes far longer than the recording of its time, so the recorded times overlap.
    core.register_plugin("M1", Meeting(partial(spin, 0.001), is_late=True))
    request = core.load_network(read(BRANCHES), "M1", ON).create_infer_request()
    request.infer({"x": X})
    assert request.profile is not None
    whole, *nodes = list_slices(check_events(profiles_to_trace([request.profile])), "M1")
    assert [each["name"] for each in nodes] == ["Relu_0", "Abs_1", "Neg_2", "Relu_3", "Relu_4", "Add_5"]
    assert {each["tid"] for each in nodes} == {whole["tid"]}
    assert {each["args"]["moment"] for each in nodes} == {"not known; laid out in order"}


def test_parallel_nodes_of_one_subgraph_have_tracks_of_their_own() -> None:
    profile = Profile("D")
    profile.begin_run()
    assert profile.began is not None
    node = Node("n", "Relu", ("x",), ("y",), opset=17, since_version=14)
    for begin in (0.0, 0.5, 0.75):
        profile.add(node, 1.0, begin=profile.began + begin)
    profile.add(node, 1.0, begin=profile.began + 1.0)
    profile.end_run()
    slices = list_slices(check_events(profiles_to_trace([profile])), "D")
    assert [each["tid"] for each in slices] == [1, 1, 2, 3, 1]


def test_run_that_was_cancelled_before_it_began_is_a_wait(
    core: Core, hand: Any, by_hand: Any, read: Callable[..., Network]
) -> None:
    profile = Profile("D")
    (request, wait) = list_slices(check_events(profiles_to_trace([profile])), "requests")
    assert (request["name"], wait["name"]) == ("request 0", "queue wait")


def test_traces_of_several_processes_join(core: Core, read: Callable[..., Network]) -> None:
    lists = []
    for index, device in enumerate(("CPU", "HETERO:TEMPLATE,CPU")):
        network = read(BRANCHES).with_affinity({"op:Neg": "CPU"} if index else {})
        request = core.load_network(network, device, ON).create_infer_request()
        request.infer({"x": X})
        assert request.profile is not None
        lists.append(list_events([request.profile], title=f"{device}: ", first_process=1 + 1000 * index))
    events = check_events(format_events([event for each in lists for event in each]))
    assert list_processes(events)[:2] == ["CPU: requests", "CPU: CPU"]
    assert "HETERO:TEMPLATE,CPU: TEMPLATE" in list_processes(events)


def test_names_that_no_text_may_hold_are_still_json() -> None:
    profile = Profile("D")
    profile.add(Node('\ud800"\\\n', "Relu", ("x",), ("y",), opset=17, since_version=14), 0.0)
    profile.begin_run()
    profile.end_run()
    text = profiles_to_trace([profile])
    assert text.isascii()
    check_events(text)
