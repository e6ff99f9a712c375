"""A device fails during a run: with HETERO_FALLBACK=NEXT its part continues on another device, and the request succeeds."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hetero_template.device import TemplateDevice, TemplateExecutable

from hetero_core import Core, Network, hookimpl
from hetero_core.contract import DeviceName, Done, Executable, Payload, RunContext
from hetero_core.errors import InferenceError
from hetero_core.kernels.program import compile_program
from hetero_core.network.writer import unpack_network
from hetero_core.reports.trace import list_events

SANDWICH = """g (float[4] x) => (float[4] y) { [first] a = Relu (x) [middle] b = Exp (a) [last] y = Neg (b) }"""
SIDES = """g (float[4] x) => (float[4] y) { [left] a = Relu (x) [right] b = Exp (x) [both] y = Mul (a, b) }"""
X = np.array([0.5, -1, 2, -3], np.float32)
NEXT = {"HETERO_FALLBACK": "NEXT", "PERF_COUNT": True}


def compute_sandwich() -> np.ndarray[Any, Any]:
    return -np.exp(np.maximum(X.astype(np.float64), 0))


class FragileExecutable(TemplateExecutable):
    """Computes as TEMPLATE does, in the separate memory of its device, until its device breaks."""

    def __init__(self, network: Network, device: FragileDevice) -> None:
        super().__init__(network, compile_program(network), memory=device.title)
        self._device = device

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        self._device.runs.append(tuple(node.name for node in self.network.nodes))
        if self._device.error is not None:
            # A new error each time, since an error keeps the frames of its traceback alive.
            raise type(self._device.error)(*self._device.error.args)
        return super().run(inputs, context)

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        if self._device.error is None:
            super().start(inputs, context, done)
        else:
            done(None, self._device.error)


class FragileDevice(TemplateDevice):
    """Raises `error`, once it is set, in every run; records the nodes of each run."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.title = title
        self.error: Exception | None = None
        self.runs: list[tuple[str, ...]] = []

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        return FragileExecutable(network, self)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        return FragileExecutable(unpack_network(payload.sections), self)


@pytest.fixture
def add_fragile(core: Core) -> Callable[[str], FragileDevice]:
    def add(name: str) -> FragileDevice:
        device = FragileDevice(name)
        core.register_plugin(name, device)
        return device

    return add


def split(operators: str, *devices: str) -> dict[str, Any]:
    """The configuration in which these devices refuse operators."""
    return {**NEXT, "DEVICE_PROPERTIES": {device: {"TEMPLATE_REFUSED_OPERATORS": operators} for device in devices}}


def test_wrong_index_is_the_callers_error_and_no_other_device_is_asked(
    core: Core, read: Callable[..., Network], add_fragile: Callable[[str], FragileDevice]
) -> None:
    """An engine that does not check indices returns numbers for it."""
    first, second = add_fragile("A"), add_fragile("B")
    loaded = core.load_network(read(SANDWICH), "HETERO:A,B", NEXT)
    first.error = IndexError("index 7 is out of bounds")
    with pytest.raises(InferenceError, match="index 7 is out of bounds"):
        loaded.infer({"x": X})
    assert second.runs == []


def test_part_of_a_failed_device_moves_to_the_next_device(
    core: Core, read: Callable[..., Network], add_fragile: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    first, middle = add_fragile("A"), add_fragile("B")
    loaded = core.load_network(read(SANDWICH), "HETERO:A,B,CPU", split("Exp", "A"))
    request = loaded.create_infer_request()
    np.testing.assert_allclose(request.infer({"x": X})["y"], compute_sandwich(), rtol=1e-6)
    assert request.profile is not None
    assert request.profile.fallbacks == ()
    middle.error = RuntimeError("the card is lost")
    with caplog.at_level(logging.WARNING):
        np.testing.assert_allclose(request.infer({"x": X})["y"], compute_sandwich(), rtol=1e-6)
    # Stages before the failure were not run again: two runs of the first part, two requests.
    assert [nodes for nodes in first.runs if nodes == ("first",)] == [("first",)] * 2
    (fallback,) = request.profile.fallbacks
    assert (fallback.path, fallback.device, fallback.target) == ((1,), "B", "HETERO:A,CPU")
    assert fallback.reason == "RuntimeError: the card is lost"
    assert "B failed: load on HETERO:A,CPU" in [event["name"] for event in list_events([request.profile])]
    assert "on B failed in a run: RuntimeError: the card is lost; it runs on HETERO:A,CPU from now on" in caplog.text
    assert {entry.device for entry in request.perf_counts if entry.node == "middle"} == {"CPU"}
    runs = len(middle.runs)
    for again in (request.infer, loaded.infer, loaded.create_infer_request().infer):
        np.testing.assert_allclose(again({"x": X})["y"], compute_sandwich(), rtol=1e-6)
    assert len(middle.runs) == runs
    assert request.profile.fallbacks == ()


def test_metrics_and_plan_name_the_new_device_and_the_reason(
    core: Core, read: Callable[..., Network], add_fragile: Callable[..., Any]
) -> None:
    add_fragile("A").error = RuntimeError("no power")
    loaded = core.load_network(read(SANDWICH), "HETERO:A,CPU", NEXT)
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A",)
    loaded.infer({"x": X})
    plan = loaded.get_metric("HETERO_PLAN")
    assert loaded.get_metric("EXECUTION_DEVICES") == ("CPU",)
    assert loaded.get_metric("HETERO_SUBGRAPHS") == (("CPU", ("first", "middle", "last")),)
    assert set(plan.device_of_node.values()) == {"CPU"}
    assert plan.refusals["middle"] == {"A": "failed in a run: RuntimeError: no power"}


def test_all_failing_devices_are_passed_over(core: Core, read: Callable[..., Network], add_fragile: Callable[..., Any]) -> None:
    for name in ("A", "B", "C"):
        add_fragile(name).error = RuntimeError(f"{name} is gone")
    loaded = core.load_network(read(SANDWICH), "HETERO:A,B,C,CPU", NEXT)
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_sandwich(), rtol=1e-6)
    assert loaded.get_metric("EXECUTION_DEVICES") == ("CPU",)


def test_strict_failure_stays_an_error_of_the_run(
    core: Core, read: Callable[..., Network], add_fragile: Callable[..., Any]
) -> None:
    add_fragile("A").error = RuntimeError("no power")
    loaded = core.load_network(read(SANDWICH), "HETERO:A,CPU")
    with pytest.raises(InferenceError, match="no power"):
        loaded.infer({"x": X})


def test_fault_of_the_inputs_is_raised_and_moves_nothing(core: Core, read: Callable[..., Network]) -> None:
    network = read("g (float[4] x, int64[1] sizes) => (float[n] y) { [shape] y = Reshape (x, sizes) }")
    loaded = core.load_network(network, "HETERO:TEMPLATE,CPU", NEXT)
    with pytest.raises(InferenceError, match="CPU was given the part and failed, too: "):
        loaded.infer({"x": X, "sizes": np.array([3])})
    assert loaded.get_metric("EXECUTION_DEVICES") == ("TEMPLATE",)
    assert loaded.infer({"x": X, "sizes": np.array([4])})["y"].tolist() == X.tolist()


def test_pinned_part_stays_and_the_error_says_so(core: Core, read: Callable[..., Network], add_fragile: Callable[..., Any]) -> None:
    add_fragile("A").error = RuntimeError("no power")
    loaded = core.load_network(read(SANDWICH).with_affinity({"middle": "A"}), "HETERO:A,CPU", NEXT)
    with pytest.raises(InferenceError, match="no power.*finds no other device for the part: node 'middle' is pinned to A"):
        loaded.infer({"x": X})


def test_last_device_of_the_list_fails_with_its_own_error(
    core: Core, read: Callable[..., Network], add_fragile: Callable[..., Any]
) -> None:
    add_fragile("A").error = RuntimeError("no power")
    loaded = core.load_network(read(SANDWICH), "HETERO:A", NEXT)
    with pytest.raises(InferenceError, match="no power.*no other device of HETERO:A is left"):
        loaded.infer({"x": X})


@pytest.mark.parametrize("breaks", ["before the export", "after the import"])
def test_exported_network_goes_on_elsewhere_too(
    core: Core, read: Callable[..., Network], add_fragile: Callable[..., Any], breaks: str
) -> None:
    device = add_fragile("A")
    loaded = core.load_network(read(SANDWICH), "HETERO:A,TEMPLATE", NEXT)
    error = RuntimeError("no power")
    if breaks == "before the export":
        device.error = error
        loaded.infer({"x": X})
    stream = io.BytesIO()
    loaded.export_network(stream)
    device.error = error
    imported = core.import_network(stream.getvalue(), "HETERO:A,TEMPLATE")
    np.testing.assert_allclose(imported.infer({"x": X})["y"], compute_sandwich(), rtol=1e-6)
    assert imported.get_metric("EXECUTION_DEVICES") == ("TEMPLATE",)


def test_started_requests_go_on_elsewhere(core: Core, read: Callable[..., Network], add_fragile: Callable[..., Any]) -> None:
    device = add_fragile("A")
    loaded = core.load_network(read(SANDWICH), "HETERO:A,CPU", NEXT)
    requests = [loaded.create_infer_request() for _ in range(4)]
    for request in requests:
        request.infer({"x": X})
    device.error = RuntimeError("no power")
    for request in requests:
        request.start_async({"x": X})
    for request in requests:
        assert request.wait(60)
        np.testing.assert_allclose(request.get_tensor("y"), compute_sandwich(), rtol=1e-6)
    assert loaded.get_metric("EXECUTION_DEVICES") == ("CPU",)


def test_parts_that_run_at_once_move_each_by_itself(
    core: Core, read: Callable[..., Network], add_fragile: Callable[..., Any]
) -> None:
    left, right = add_fragile("A"), add_fragile("B")
    loaded = core.load_network(read(SIDES), "HETERO:A,B,CPU", split("Exp", "A"))
    left.error, right.error = RuntimeError("no power"), RuntimeError("no light")
    expected = np.maximum(X.astype(np.float64), 0) * np.exp(X.astype(np.float64))
    for _ in range(2):
        np.testing.assert_allclose(loaded.infer({"x": X})["y"], expected, rtol=1e-6, atol=1e-7)
    assert loaded.get_metric("EXECUTION_DEVICES") == ("CPU",)


def test_network_with_a_substitute_needs_no_garbage_collector(
    core: Core, read: Callable[..., Network], add_fragile: Callable[..., Any]
) -> None:
    import gc
    import weakref

    add_fragile("A").error = RuntimeError("no power")
    loaded = core.load_network(read(SANDWICH), "HETERO:A,CPU", {"HETERO_FALLBACK": "NEXT"})
    loaded.infer({"x": X})
    guarded = weakref.ref(loaded.executable.stages[0].executable)  # type: ignore[attr-defined]  # HETERO's own executable
    gc.collect()
    gc.disable()
    try:
        del loaded
        assert guarded() is None
    finally:
        gc.enable()
