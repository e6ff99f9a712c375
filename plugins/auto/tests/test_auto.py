"""AUTO: the chosen device, the interim device, and failures."""

from __future__ import annotations

import gc
import io
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_auto.candidates import find_precision
from hetero_auto.measuring import Requests, read_choice, write_choice
from hetero_auto.pool import Member
from hetero_auto.startup import may_repeat_network

from hetero_core import Core, ExecutableNetwork, Extension, Network, hookimpl
from hetero_core.composing.runs import is_ready, warm_up
from hetero_core.errors import (
    ClosedError,
    ConfigKeyError,
    DeviceNameError,
    DeviceUnavailableError,
    InferenceError,
    InputNameError,
    LoadError,
    RequestCancelledError,
    UnsupportedNodesError,
)
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueSpec
from hetero_core.runtime.queue import AsyncInferQueue
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

LIMIT = 60
Feed = Callable[[float], dict[str, Any]]
AT_ONCE = {"ENABLE_STARTUP_FALLBACK": False}


class NoDevice:
    @hookimpl
    def create_device(self) -> object:
        raise DeviceUnavailableError("no driver")


def test_first_device_that_takes_the_whole_network_is_chosen(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    add_device("A").refused = ("Add",)
    second, third = add_device("B"), add_device("C")
    loaded = core.load_network(network, "AUTO:A,B,C", AT_ONCE)
    assert loaded.infer(feed(2))["y"].tolist() == [6]
    assert loaded.get_metric("EXECUTION_DEVICES") == ("B",)
    assert (second.loads, third.loads) == (1, 0)


def test_network_refused_by_all_devices_names_all_reasons(core: Core, add_device: Any, network: Network) -> None:
    add_device("A").refused = add_device("B").refused = ("Add",)
    with pytest.raises(UnsupportedNodesError, match="A: no kernel; B: no kernel"):
        core.load_network(network, "AUTO:A,B")


@pytest.mark.parametrize(("dtype", "expected"), [("float", "A"), ("float16", "B")])
def test_device_of_the_networks_precision_comes_first(core: Core, add_device: Any, dtype: str, expected: str) -> None:
    add_device("A")
    add_device("B").capabilities = ("FP16", "FP32")
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({dtype}[2] x) => ({dtype}[2] y) {{ y = Add (x, x) }}'
    loaded = core.load_network(onnx.parser.parse_model(text), "AUTO:A,B", AT_ONCE)
    assert loaded.get_metric("EXECUTION_DEVICES") == (expected,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g (float[2] x) => (float[2] y) { y = Add (x, x) }", "FP32"),
        ("g (float[2] x) => (double[2] y) <double[3] w = {1, 2, 3}> { y = Cast <to = 11> (x) }", "FP64"),
        ("g (uint8[2] x, float s) => (float[2] y) { y = DequantizeLinear (x, s) }", "INT8"),
        ("g (int64[2] x) => (int64[2] y) { y = Add (x, x) }", "FP32"),
    ],
)
def test_precision_of_a_network(core: Core, text: str, expected: str) -> None:
    assert find_precision(core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))) == expected


@pytest.mark.parametrize(("device", "expected"), [("AUTO", "A"), ("AUTO:-A", "B"), ("AUTO:-B,-A", None)])
def test_auto_without_a_list_takes_all_installed_devices(
    core: Core, add_device: Any, network: Network, device: str, expected: str | None
) -> None:
    for name in core.device_names:
        if name not in ("AUTO", "HETERO"):
            core.unregister_plugin(name)
    core.register_plugin("NONE", NoDevice())
    add_device("B")
    add_device("A")
    if expected is None:
        with pytest.raises(DeviceNameError, match="has no devices to choose from"):
            core.load_network(network, device)
        return
    assert core.load_network(network, device, AT_ONCE).get_metric("EXECUTION_DEVICES") == (expected,)


class Package:
    """A package that declares the kind of its device and counts creations; without hardware its device is unavailable."""

    def __init__(self, kind: str, device: object = None) -> None:
        self.kind, self.device, self.created = kind, device, 0
        self.quick_weights: float | None = None

    @hookimpl
    def create_device(self) -> object:
        self.created += 1
        if self.device is None:
            raise DeviceUnavailableError("no driver")
        return self.device


def test_auto_without_a_list_creates_devices_one_by_one(
    core: Core, network: Network, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in core.device_names:
        if name not in ("AUTO", "HETERO"):
            core.unregister_plugin(name)
    broken, first = Package("accelerator"), Package("engine", PlainDevice())
    second, host, slow = (
        Package("engine", PlainDevice()),
        Package("processor", PlainDevice()),
        Package("interpreter", PlainDevice()),
    )
    packages = {"ENGINE2": second, "CARD": broken, "SLOW": slow, "HOST": host, "ENGINE1": first}
    for name, package in packages.items():
        core.register_plugin(name, package)
    assert core.load_network(network, config=AT_ONCE).infer(feed(1))["y"].tolist() == [3]
    assert {name: package.created for name, package in packages.items() if package.created} == {"CARD": 1, "ENGINE1": 1}
    loaded = core.load_network(network, config={"AUTO_MEASURE": False})
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert loaded.get_metric("EXECUTION_DEVICES") == ("ENGINE1",)
    assert (host.created, second.created, slow.created) == (1, 0, 0)
    measured = core.load_network(network)
    measured.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert (host.created, second.created, slow.created) == (1, 1, 0)
    excluded = core.load_network(network, "AUTO:-ENGINE1,-CARD", AT_ONCE)
    assert excluded.get_metric("EXECUTION_DEVICES") == ("ENGINE2",)
    with pytest.raises(ConfigKeyError, match="SCRIPT_LEVEL"):
        core.load_network(network, "AUTO", {"SCRIPT_LEVEL": 3})


class WholeDevice(PlainDevice):
    def find_refusal(self, node: Node, network: Network) -> str | None:
        return None


@pytest.mark.parametrize(("weights", "answers"), [(8, "HOST"), (9, "ENGINE2")])
def test_many_quantized_weights_are_answered_by_a_device_that_promises_it(
    core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: int, answers: str
) -> None:
    """HOST would answer, as it is a processor; it promises a quick answer up to 8 weights, and ENGINE2 for all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hetero_auto.startup._UNASKED_SECONDS", LIMIT)
    for name in core.device_names:
        if name != "AUTO":
            core.unregister_plugin(name)
    packages = {
        name: Package(kind, WholeDevice()) for name, kind in (("HOST", "processor"), *((f"ENGINE{i}", "engine") for i in (1, 2, 3)))
    }
    packages["HOST"].quick_weights, packages["ENGINE2"].quick_weights = 8, float("inf")
    for name, package in packages.items():
        core.register_plugin(name, package)
    values = ", ".join(["1"] * weights)
    text = (
        f"g (float[2] x) => (float[2] y, int8[{weights}] z) <int8[{weights}] w = {{{values}}}> {{ y = Neg (x) z = Identity (w) }}"
    )
    loaded = core.load_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))
    assert loaded.get_metric("EXECUTION_DEVICES") == (answers,)
    assert [name for name, package in packages.items() if package.created] == [answers]
    loaded.close()


def test_hint_reaches_devices_that_have_it_without_a_list(core: Core, network: Network) -> None:
    loaded = core.load_network(network, "AUTO:-GPU", {**AT_ONCE, "INFERENCE_PRECISION_HINT": "f32"})
    assert loaded.get_config("INFERENCE_PRECISION_HINT") == "f32"


def test_unavailable_device_is_skipped_with_a_warning(
    core: Core, add_device: Any, network: Network, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    core.register_plugin("NONE", NoDevice())
    add_device("A")
    with caplog.at_level(logging.WARNING):
        loaded = core.load_network(network, "AUTO:NONE,A")
        assert loaded.infer(feed(1))["y"].tolist() == [3]
        loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert "AUTO:NONE,A goes on without NONE" in caplog.text
    assert "no driver" in caplog.text
    with pytest.raises(DeviceUnavailableError, match="no device of its list is: NONE: .*no driver"):
        core.load_network(network, "AUTO:NONE")


def test_extension_goes_to_the_devices_that_work(core: Core) -> None:
    core.register_plugin("NONE", NoDevice())
    double = Extension("com.acme", "Double", 1, lambda x: 2 * x, lambda types, attributes: types)
    with pytest.raises(DeviceUnavailableError, match="no driver"):
        core.add_extension(double, "AUTO:NONE")
    core.add_extension(double, "AUTO:NONE,TEMPLATE")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.acme": 1]> g (float[2] x) => (float[2] y) { y = com.acme.Double(x) }'
    )
    loaded = core.load_network(model, "AUTO:NONE,TEMPLATE")
    assert loaded.infer({"x": np.ones(2, np.float32)})["y"].tolist() == [2, 2]


@pytest.mark.parametrize("device", ["AUTO:A,B,-A", "AUTO:-A,A,B"])
def test_device_that_a_list_names_and_excludes_is_left_out(core: Core, network: Network, add_device: Any, device: str) -> None:
    add_device("A"), add_device("B")
    assert core.load_network(network, device, AT_ONCE).get_metric("EXECUTION_DEVICES") == ("B",)
    with pytest.raises(DeviceNameError, match="AUTO:A,-A has no devices to choose from"):
        core.load_network(network, "AUTO:A,-A")


def test_list_with_everything_excluded_is_refused(core: Core, network: Network) -> None:
    everything = ",".join(f"-{name}" for name in core.device_names if name != "AUTO")
    with pytest.raises(DeviceNameError, match="has no devices to choose from"):
        core.load_network(network, f"AUTO:{everything}")


def test_quick_device_serves_until_the_chosen_device_is_loaded(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    chosen, quick = add_device("CHOSEN"), add_device("QUICK")
    chosen.load_gate.clear()
    loaded = core.load_network(network, "AUTO:CHOSEN,QUICK", {"PERF_COUNT": True})
    queue = AsyncInferQueue(loaded, 6)
    answers: dict[int, float] = {}
    devices: dict[int, str] = {}

    def keep(request: Any, number: int) -> None:
        answers[number] = float(request.get_tensor("y")[0])
        devices[number] = request.profile.stages[0].device

    queue.set_callback(keep)
    for number in range(600):
        if number == 200:
            assert loaded.get_metric("EXECUTION_DEVICES") == ("QUICK",)
            chosen.load_gate.set()
        if number == 400:
            loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
        queue.start_async(feed(number), number)
    queue.wait_all()
    assert answers == {number: 3.0 * number for number in range(600)}
    assert {devices[number] for number in range(200 - 6)} == {"QUICK"}
    assert {devices[number] for number in range(400, 600)} == {"CHOSEN"}
    assert loaded.get_metric("EXECUTION_DEVICES") == ("CHOSEN",)
    assert (quick.closed, chosen.closed) == (1, 0)
    assert sum(loaded.get_metric("REQUESTS_OF_DEVICES").values()) == 600


def take_over(core: Core, devices: tuple[Any, Any], network: Any, feed: Feed, **config: Any) -> tuple[Any, Any]:
    """Returns the loaded network, and a request that still runs on the quick device, which is held, when the chosen device takes
    over."""
    chosen, quick = devices
    chosen.load_gate.clear()
    quick.gate.clear()
    loaded = core.load_network(network, "AUTO:CHOSEN,QUICK", config)
    request = loaded.create_infer_request()
    request.start_async(feed(4))
    assert quick.entered.acquire(timeout=LIMIT)
    chosen.load_gate.set()
    loaded.executable.wait_until_settled()
    return loaded, request


def test_request_on_a_slow_device_is_answered_by_the_chosen_device(
    core: Core, add_device: Any, network: Network, feed: Feed
) -> None:
    chosen, quick = devices = add_device("CHOSEN"), add_device("QUICK")
    loaded, request = take_over(core, devices, network, feed)
    assert request.wait(LIMIT)
    assert request.get_tensor("y").tolist() == [12]
    assert request.infer(feed(2))["y"].tolist() == [6]
    assert loaded.infer(feed(1))["y"].tolist() == [3]
    assert (quick.closed, quick.runs, chosen.runs) == (0, [4], [4, 2, 1])
    quick.gate.set()
    core.close()
    assert (quick.closed, chosen.closed) == (1, 1)


def test_waiting_caller_is_answered_by_the_chosen_device(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    chosen, quick = add_device("CHOSEN"), add_device("QUICK")
    chosen.load_gate.clear()
    quick.gate.clear()
    loaded = core.load_network(network, "AUTO:CHOSEN,QUICK")
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(loaded.infer(feed(4))["y"].tolist()))
    caller.start()
    assert quick.entered.acquire(timeout=LIMIT)
    chosen.load_gate.set()
    caller.join(LIMIT)
    assert answers == [[12]]
    quick.gate.set()


def test_slower_device_reads_no_input_that_the_caller_has_changed(core: Core, add_device: Any, network: Network) -> None:
    devices = add_device("CHOSEN"), add_device("QUICK")
    x = np.array([4], np.float32)
    seen: list[float] = []
    read, run = threading.Event(), PlainExecutable.run

    def look(executable: Any, inputs: Any, context: Any) -> Any:
        seen.append(float(inputs[0][0]))
        if len(seen) == 2:
            read.set()
        return run(executable, inputs, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainExecutable, "run", look)
        _, request = take_over(core, devices, network, lambda _: {"x": x})
        assert request.wait(LIMIT)
        x[:] = 99
        devices[1].gate.set()
        assert read.wait(LIMIT)
    assert seen == [4, 4]


IF = "y = If (c) <then_branch = t () => (float[n] a) {{ {} }}, else_branch = e () => (float[n] b) {{ b = Identity (x) }}>"


@pytest.mark.parametrize(
    ("nodes", "may_repeat"),
    [
        ("y = Add (x, x)", True),
        ("y = Dropout (x)", True),
        ("y = Dropout (x, , c)", False),
        ("y = RandomNormalLike (x)", False),
        ("y = Bernoulli (x)", False),
        ("y = com.microsoft.Gelu (x)", True),
        ("y = own.Count (x)", False),
        (IF.format("a = Add (x, x)"), True),
        (IF.format("a = RandomUniformLike (x)"), False),
        (IF.format("a = own.Count (x)"), False),
    ],
)
def test_network_without_draws_and_user_code_may_be_repeated(core: Core, nodes: str, may_repeat: bool) -> None:
    opsets = '"": 17, "com.microsoft": 1, "own": 1'
    text = f"<ir_version: 8, opset_import: [{opsets}]> g (float[n] x, bool c) => (float[n] y) {{ {nodes} }}"
    assert may_repeat_network(core.read_network(onnx.parser.parse_model(text))) is may_repeat


@pytest.mark.parametrize(
    ("config", "outputs"), [({"PERF_COUNT": True}, {}), ({"MEMORY_LIMIT": 1 << 30}, {}), ({}, {"y": np.zeros(1, np.float32)})]
)
def test_run_that_may_not_be_repeated_ends_on_the_quick_device(
    core: Core, add_device: Any, network: Network, feed: Feed, config: Any, outputs: Any
) -> None:
    chosen, quick = add_device("CHOSEN"), add_device("QUICK")
    chosen.load_gate.clear()
    quick.gate.clear()
    loaded = core.load_network(network, "AUTO:CHOSEN,QUICK", config)
    request = loaded.create_infer_request()
    for name, array in outputs.items():
        request.set_tensor(name, array)
    request.start_async(feed(4))
    assert quick.entered.acquire(timeout=LIMIT)
    chosen.load_gate.set()
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert loaded.infer(feed(1))["y"].tolist() == [3]
    assert quick.closed == 0
    quick.gate.set()
    assert request.wait(LIMIT)
    assert request.get_tensor("y").tolist() == [12]
    assert (quick.closed, quick.runs, chosen.runs) == (1, [4], [1])


def test_error_of_the_chosen_device_leaves_the_quick_answer(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    chosen, quick = devices = add_device("CHOSEN"), add_device("QUICK")
    chosen.poison = 4.0
    _, request = take_over(core, devices, network, feed, ENABLE_RUNTIME_FALLBACK=False)
    assert chosen.entered.acquire(timeout=LIMIT)
    quick.gate.set()
    assert request.wait(LIMIT)
    assert request.get_tensor("y").tolist() == [12]


def test_first_error_is_raised_if_both_devices_fail(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    chosen, quick = devices = add_device("CHOSEN"), add_device("QUICK")
    chosen.poison = quick.poison = 4.0
    _, request = take_over(core, devices, network, feed, ENABLE_RUNTIME_FALLBACK=False)
    assert chosen.entered.acquire(timeout=LIMIT)
    quick.gate.set()
    with pytest.raises(InferenceError, match="the driver fell over"):
        request.wait(LIMIT)


def test_cancelled_request_is_not_repeated_after_its_end(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    chosen, quick = add_device("CHOSEN"), add_device("QUICK")
    chosen.load_gate.clear()
    quick.gate.clear()
    loaded = core.load_network(network, "AUTO:CHOSEN,QUICK")
    request = loaded.create_infer_request()
    request.start_async(feed(4))
    assert quick.entered.acquire(timeout=LIMIT)
    request.cancel()
    quick.gate.set()
    with pytest.raises(RequestCancelledError):
        request.wait(LIMIT)
    assert request.infer(feed(1))["y"].tolist() == [3]
    chosen.load_gate.set()
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert chosen.runs == []


def test_no_take_over_is_lost_in_any_order_of_threads(
    core: Core, add_device: Any, network: Network, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quick device answers nothing: each request, from before, during or after the change, is answered by the chosen device."""
    monkeypatch.setattr("hetero_auto.startup._UNASKED_SECONDS", 0)
    monkeypatch.setattr("hetero_auto.startup._FIRST_SECONDS", 0)
    # Not the times of the rounds before: they are nearly equal.
    monkeypatch.setattr("hetero_auto.candidates.Candidates.find_quick", lambda self: "QUICK")
    add_device("CHOSEN")
    quick = add_device("QUICK")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(50):
            quick.gate.clear()
            loaded = core.load_network(network, "AUTO:CHOSEN,QUICK")
            requests = [loaded.create_infer_request() for _ in range(8)]
            for number, request in enumerate(requests):
                request.start_async(feed(number))
            assert loaded.infer(feed(8))["y"].tolist() == [24]
            for number, request in enumerate(requests):
                assert request.wait(LIMIT), "a request was lost"
                assert request.get_tensor("y").tolist() == [3 * number]
            quick.gate.set()
            loaded.close()
    finally:
        sys.setswitchinterval(interval)
    core.close()
    assert (quick.loads, quick.closed) == (50, 50)


def test_chosen_device_is_loaded_after_the_first_answer(
    core: Core, add_device: Any, network: Network, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero_auto.startup._UNASKED_SECONDS", LIMIT)
    monkeypatch.setattr("hetero_auto.startup._FIRST_SECONDS", LIMIT)
    chosen, quick = add_device("CHOSEN"), add_device("QUICK")
    quick.gate.clear()
    loaded = core.load_network(network, "AUTO:CHOSEN,QUICK")
    request = loaded.create_infer_request()
    request.start_async(feed(4))
    assert quick.entered.acquire(timeout=LIMIT)
    assert not chosen.load_entered.is_set()
    quick.gate.set()
    assert request.wait(LIMIT)
    assert chosen.load_entered.wait(LIMIT)
    assert request.get_tensor("y").tolist() == [12]


def test_quick_device_stays_if_the_chosen_device_fails_to_load(
    core: Core, add_device: Any, network: Network, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    add_device("CHOSEN").load_error = LoadError("no memory")
    add_device("QUICK")
    with caplog.at_level(logging.WARNING):
        loaded = core.load_network(network, "AUTO:CHOSEN,QUICK")
        loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert loaded.infer(feed(1))["y"].tolist() == [3]
    assert "goes on without CHOSEN, which failed to load the network: no memory" in caplog.text


def test_last_error_is_raised_if_no_device_can_load(core: Core, add_device: Any, network: Network) -> None:
    add_device("A").load_error = LoadError("no memory in A")
    add_device("B").load_error = LoadError("no memory in B")
    for config in ({}, AT_ONCE, {**AT_ONCE, "AUTO_MEASURE": True}, {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"}):
        with pytest.raises(LoadError, match="no memory"):
            core.load_network(network, "AUTO:A,B", config)


def test_wrong_index_is_the_callers_error_and_no_other_device_is_asked(
    core: Core, add_device: Any, network: Network, feed: Feed
) -> None:
    """An engine that does not check indices returns numbers for it."""
    first, second = add_device("A"), add_device("B")

    def look_up() -> object:
        return [3][first.runs[-1] > 5]

    first.work = look_up
    loaded = core.load_network(network, "AUTO:A,B", AT_ONCE)
    for _ in range(4):
        assert loaded.infer(feed(1))["y"].tolist() == [3]
        with pytest.raises(InferenceError, match="IndexError: list index out of range"):
            loaded.infer(feed(7))
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A",)
    assert second.loads == 0


def test_next_device_takes_over_if_a_run_fails(
    core: Core, add_device: Any, network: Network, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = add_device("A"), add_device("B")
    first.fails_from = 3
    loaded = core.load_network(network, "AUTO:A,B", AT_ONCE)
    with caplog.at_level(logging.WARNING):
        for number in range(10):
            assert loaded.infer(feed(number))["y"].tolist() == [3 * number]
    assert "A failed in a run; the next device is loaded" in caplog.text
    assert "goes on without A, which failed 2 times in a row where B did not" in caplog.text
    assert loaded.get_metric("EXECUTION_DEVICES") == ("B",)
    assert loaded.get_metric("REQUESTS_OF_DEVICES") == {"A": 3, "B": 7}
    assert second.loads == 1


def test_quick_device_comes_back_when_the_chosen_device_fails(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    chosen, quick = add_device("CHOSEN"), add_device("QUICK")
    loaded = core.load_network(network, "AUTO:CHOSEN,QUICK")
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    chosen.fails_from = 0
    assert loaded.infer(feed(1))["y"].tolist() == [3]
    assert quick.loads == 2


def test_failure_is_raised_without_the_fallback(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    add_device("A").fails_from = 0
    second = add_device("B")
    loaded = core.load_network(network, "AUTO:A,B", {**AT_ONCE, "ENABLE_RUNTIME_FALLBACK": False})
    with pytest.raises(InferenceError, match="the driver fell over"):
        loaded.infer(feed(1))
    assert second.loads == 0


@pytest.mark.parametrize("starts_early", [False, True])
def test_fastest_device_is_chosen_by_measurement(
    core: Core, add_device: Any, network: Network, feed: Feed, monkeypatch: pytest.MonkeyPatch, starts_early: bool
) -> None:
    now = 0.0

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("hetero_auto.measuring.perf_counter", lambda: now)
    for name, seconds in (("A", 3e-3), ("B", 1e-3), ("C", 2e-3)):
        add_device(name).work = lambda seconds=seconds: work(seconds)
    config = {"AUTO_MEASURE": "YES", "ENABLE_STARTUP_FALLBACK": starts_early}
    loaded = core.load_network(network, "AUTO:A,B,C", config)
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert loaded.get_metric("EXECUTION_DEVICES") == ("B",)
    assert loaded.infer(feed(1))["y"].tolist() == [3]


def test_devices_are_compared_on_a_request_of_now(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    """The first request of a language model, a prompt, differs from the tokens behind it."""
    challenger, quick = add_device("A"), add_device("B")
    challenger.load_gate.clear()
    loaded = core.load_network(network, "AUTO:A,B", {"AUTO_MEASURE": "YES"})
    loaded.infer(feed(1))
    assert challenger.load_entered.wait(LIMIT)
    loaded.infer(feed(2))
    challenger.load_gate.set()
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert set(challenger.runs) == {2}
    assert quick.runs[:3] == [1, 2, 2]


@pytest.mark.parametrize(
    ("sizes", "expected"), [((100, 1), "B"), ((1, 100), "B"), ((100, *[1] * 10), "A"), ((*[1] * 10, 100), "A")]
)
def test_devices_are_compared_on_the_mix_of_sizes(
    core: Core, add_device: Any, network: Network, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], expected: str
) -> None:
    """A takes 1 ms for a row and 10 for a hundred, B takes 2 and 5. B is faster for equal shares, A for ten single rows to one hundred."""
    now = 0.0

    def work(device: Any, seconds: dict[float, float]) -> None:
        nonlocal now
        now += seconds[device.runs[-1]]

    monkeypatch.setattr("hetero_auto.measuring.perf_counter", lambda: now)
    challenger, quick = add_device("A"), add_device("B")
    challenger.work = lambda: work(challenger, {1: 1e-3, 100: 10e-3})
    quick.work = lambda: work(quick, {1: 2e-3, 100: 5e-3})
    challenger.load_gate.clear()
    loaded = core.load_network(network, "AUTO:A,B", {"AUTO_MEASURE": "YES"})
    for rows in (100, *sizes):
        loaded.infer({"x": np.full(rows, rows, np.float32)})
        assert challenger.load_entered.wait(LIMIT)
    challenger.load_gate.set()
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert loaded.get_metric("EXECUTION_DEVICES") == (expected,)


@pytest.mark.parametrize(("sizes", "expected"), [((*[1] * 9, 100), "A"), ((1, 100) * 5, "B")])
def test_request_behind_another_size_counts_apart(
    core: Core, add_device: Any, network: Network, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], expected: str
) -> None:
    """A takes 5 ms behind a request of another size, and 1 ms behind one of the same size; B takes 2 ms."""
    now = 0.0

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("hetero_auto.measuring.perf_counter", lambda: now)
    challenger, quick = add_device("A"), add_device("B")
    challenger.work = lambda: work(1e-3 if len(set(challenger.runs[-2:])) == 1 else 5e-3)
    quick.work = lambda: work(2e-3)
    challenger.load_gate.clear()
    loaded = core.load_network(network, "AUTO:A,B", {"AUTO_MEASURE": "YES"})
    for rows in (100, *sizes):
        loaded.infer({"x": np.full(rows, rows, np.float32)})
        assert challenger.load_entered.wait(LIMIT)
    challenger.load_gate.set()
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert loaded.get_metric("EXECUTION_DEVICES") == (expected,)


def test_device_that_recovers_from_another_size_is_timed_behind_that(
    core: Core, add_device: Any, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A takes 3 ms for each of the first three rows behind a hundred, and 1 ms for the others; B takes 2 ms."""
    now = 0.0

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("hetero_auto.measuring.perf_counter", lambda: now)
    challenger, quick = add_device("A"), add_device("B")
    challenger.work = lambda: work(3e-3 if 100 in challenger.runs[-4:] else 1e-3)
    quick.work = lambda: work(2e-3)
    challenger.load_gate.clear()
    loaded = core.load_network(network, "AUTO:A,B", {"AUTO_MEASURE": "YES"})
    for rows in (100, *[1] * 40, 100):
        loaded.infer({"x": np.full(rows, rows, np.float32)})
        assert challenger.load_entered.wait(LIMIT)
    challenger.load_gate.set()
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A",)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([9], [(1, 0, 9)]),
        ([9, 9, 9], [(1, 0, 9)]),
        ([128, 1], [(1, 0, 1)]),
        ([128, 1, 1, 3], [(1, 0, 1)]),
        ([128, 1, 2, 3, 128], [(0, 1 / 4, 128), (1 / 2, 1 / 4, 1)]),
        ([9, 9, 9, 128], [(2 / 3, 0, 9), (0, 1 / 3, 128)]),
        ([128, 4, 15, 16, 63], [(1 / 4, 1 / 4, 4), (1 / 4, 1 / 4, 16)]),
    ],
)
def test_shares_of_sizes_leave_out_a_first_request(lengths: list[int], expected: list[tuple[float, float, int]]) -> None:
    requests = Requests()
    for length in lengths:
        requests.note((np.zeros(length), np.zeros(2)), repeats=False)
    mix = requests.find_mix(["x"], [ValueSpec("x", TensorType("float32", (None,)))])
    assert [(share, changes, inputs["x"].size) for share, changes, inputs in mix] == expected
    assert requests.elements == lengths[0] + 2


def test_requests_wait_for_a_sample_and_are_not_lost(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    challenger, quick = add_device("A"), add_device("B")
    challenger.load_gate.clear()
    loaded = core.load_network(network, "AUTO:A,B", {"AUTO_MEASURE": "YES"})
    pool: Any = loaded.executable.pool  # type: ignore[attr-defined]  # AUTO's own
    request = loaded.create_infer_request()
    with pool.hold(LIMIT):
        request.start_async(feed(1))
        assert not request.wait(0.05)
        assert quick.runs == []
    assert request.wait(LIMIT)
    assert request.get_tensor("y").tolist() == [3]
    with pool.hold(0.01):
        assert loaded.infer(feed(2))["y"].tolist() == [6]


def test_disturbed_samples_do_not_decide_between_close_devices(
    core: Core, add_device: Any, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A takes 1 ms and B 1.2; other work slows the first runs of A, the first two of which are not timed."""
    now, slowdowns = 0.0, iter([3.0, 3.0, 3.0, 2.5, 2.1, 1.8, 1.6, 1.45, 1.3])
    first, second = add_device("A"), add_device("B")

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("hetero_auto.measuring.perf_counter", lambda: now)
    first.work = lambda: work(1e-3 * next(slowdowns, 1))
    second.work = lambda: work(1.2e-3)
    loaded = core.load_network(network, "AUTO:A,B", {**AT_ONCE, "AUTO_MEASURE": "YES"})
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A",)


def test_device_is_timed_with_the_kernels_that_it_goes_on_with(
    core: Core, add_device: Any, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    first, second = add_device("A"), add_device("B")
    first.compiles_until = 10

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("hetero_auto.measuring.perf_counter", lambda: now)
    first.work = lambda: work(9e-3 if len(first.runs) <= first.compiles_until else 1e-3)
    second.work = lambda: work(2e-3)
    loaded = core.load_network(network, "AUTO:A,B", {**AT_ONCE, "AUTO_MEASURE": "YES"})
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A",)


def test_device_whose_kernels_are_ready_between_two_samples_is_timed_again(
    core: Core, add_device: Any, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A is ready with its fourth run, the second one that is timed, and B is far faster than its runs until then."""
    now = 0.0
    first, second = add_device("A"), add_device("B")
    first.compiles_until = 4

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("hetero_auto.measuring.perf_counter", lambda: now)
    first.work = lambda: work(0.5 if len(first.runs) <= first.compiles_until else 1e-3)
    second.work = lambda: work(2e-3)
    loaded = core.load_network(network, "AUTO:A,B", {**AT_ONCE, "AUTO_MEASURE": "YES"})
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A",)


def test_device_that_orders_further_kernels_is_run_until_they_are_ready(
    core: Core, add_device: Any, network: Network, feed: Feed
) -> None:
    """As a plan for a prompt is ready, and the first run of a token orders another one."""
    device = add_device("A")
    device.compiles_until = 2

    def order() -> None:
        if len(device.runs) == 3:
            device.compiles_until = 6

    device.work = order
    loaded = core.load_network(network, "A")
    warm_up(loaded, lambda: loaded.infer(feed(1)), LIMIT)
    assert is_ready(loaded)
    assert len(device.runs) >= 6


def test_all_devices_work_with_cumulative_throughput(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    first, second = add_device("A"), add_device("B")
    loaded = core.load_network(network, "AUTO:A,B", {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT", "SCHEDULE_POLICY": "ROUND_ROBIN"})
    for number in range(4):
        assert loaded.infer(feed(number))["y"].tolist() == [3 * number]
    assert (first.runs, second.runs) == ([0, 2], [1, 3])
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A", "B")


def test_exported_network_holds_the_chosen_device(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    add_device("A")
    add_device("B")
    blob = io.BytesIO()
    core.load_network(network, "AUTO:A,B").export_network(blob)
    loaded = core.import_network(blob.getvalue(), "AUTO")
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A",)
    assert loaded.infer(feed(5))["y"].tolist() == [15]
    again = io.BytesIO()
    loaded.export_network(again)
    assert core.import_network(again.getvalue(), "AUTO").infer(feed(5))["y"].tolist() == [15]


def test_key_of_a_device_reaches_it(core: Core, add_device: Any, network: Network) -> None:
    device = add_device("A")
    core.load_network(network, "AUTO:A", {"SCRIPT_LEVEL": 3})
    assert device.configs[0]["SCRIPT_LEVEL"] == 3


def test_closed_core_has_waited_for_the_device_that_was_loading(add_device: Any, core: Core, network: Network) -> None:
    chosen, _ = add_device("CHOSEN"), add_device("QUICK")
    chosen.load_gate.clear()
    core.load_network(network, "AUTO:CHOSEN,QUICK")
    gc.collect()
    # The load must have begun: closing the Core cancels a load that has not.
    assert chosen.load_entered.wait(LIMIT)
    loads_when_closed = []
    closing = threading.Thread(target=lambda: (core.close(), loads_when_closed.append(chosen.loads)))
    closing.start()
    chosen.load_gate.set()
    closing.join(LIMIT)
    assert loads_when_closed == [1]


def test_chosen_device_gets_runs_without_the_pool(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    device = add_device("A")
    add_device("B")
    loaded = core.load_network(network, "AUTO:A,B", AT_ONCE)
    pool: Any = loaded.executable.pool  # type: ignore[attr-defined]  # AUTO's own
    request = loaded.create_infer_request()
    queue = AsyncInferQueue(loaded, 2)
    for number in range(4):
        assert loaded.infer(feed(number))["y"].tolist() == [3 * number]
        assert request.infer(feed(number))["y"].tolist() == [3 * number]
        queue.start_async(feed(number))
    queue.wait_all()
    assert loaded.get_metric("REQUESTS_OF_DEVICES") == {"A": 12}
    assert pool.served == {"A": 0}
    device.poison = 5
    request.start_async(feed(5))
    assert request.wait(LIMIT)
    assert request.get_tensor("y").tolist() == [15]
    assert loaded.get_metric("REQUESTS_OF_DEVICES") == {"A": 12, "B": 1}
    with pytest.raises(InputNameError, match="'z'"):
        loaded.infer({"z": np.zeros(1, np.float32)})
    loaded.close()
    with pytest.raises(ClosedError, match="is closed; load it again"):
        loaded.infer(feed(1))


STEPS = (
    "load of the first",
    "run on the first",
    "load of the second",
    "run on the second",
    "load of the third",
    "run on the third",
)


@pytest.mark.parametrize("error", [None, OSError("the driver fell over"), MemoryError("no room"), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("step", STEPS)
def test_no_take_over_is_lost_by_a_fault_of_a_device(
    core: Core, add_device: Any, network: Network, feed: Feed, step: str, error: BaseException | None
) -> None:
    """At each step a device is late (None) or raises, once; every request is answered, and a device that works has the last."""
    faults = threading.Semaphore(1)
    devices = {"third": add_device("C"), "second": add_device("B"), "first": add_device("A")}
    slow, late = threading.Event(), threading.Event()
    # By order of speed the third is the best device, and the first the worst.
    devices["first"].work = lambda: slow.wait(0.02)
    devices["second"].work = lambda: slow.wait(0.005)
    kind, _, name = step.partition(" of the " if "load" in step else " on the ")
    device = devices[name]

    def fail() -> None:
        if faults.acquire(blocking=False):
            if error is not None:
                raise error
            late.wait(0.3)

    work = device.work
    if kind == "run":
        device.work = lambda: (work(), fail())
    else:
        device.before_load = fail
    loaded = core.load_network(network, "AUTO:C,B,A", {"AUTO_MEASURE": True})
    requests = [loaded.create_infer_request() for _ in range(6)]
    for number, request in enumerate(requests):
        request.start_async(feed(number))
    for number, request in enumerate(requests):
        assert request.wait(LIMIT), "a request was lost"
        assert request.get_tensor("y").tolist() == [3 * number]
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert loaded.infer(feed(7))["y"].tolist() == [21]
    (serving,) = loaded.get_metric("EXECUTION_DEVICES")
    assert serving == "C" or (error is not None and name == "third" and serving == "B")


@pytest.mark.parametrize("step", ["query of B", "load of B", "run of B", "run of A"])
def test_device_that_hangs_costs_no_take_over(
    core: Core,
    add_device: Any,
    network: Network,
    feed: Feed,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
) -> None:
    """A serves at first, and C is the fastest. A hangs in the first run that is measured, after it has answered a request."""
    monkeypatch.setattr("hetero_auto.startup._LOAD_SECONDS", 0.5)
    monkeypatch.setattr("hetero_auto.startup._RUN_SECONDS", 4.0)
    fastest, second, first = add_device("C"), add_device("B"), add_device("A")
    pause, end = threading.Event(), threading.Event()
    second.work = lambda: pause.wait(0.01)
    first.work = lambda: pause.wait(0.02)
    if step == "query of B":
        second.before_query = lambda: end.wait(LIMIT)
    elif step == "load of B":
        second.before_load = lambda: end.wait(LIMIT)
    else:
        device = first if step == "run of A" else second
        device.work = lambda: end.wait(LIMIT) if len(device.runs) > (device is first) else None
    loaded = core.load_network(network, "AUTO:C,B,A", {"AUTO_MEASURE": True})
    assert loaded.infer(feed(2))["y"].tolist() == [6]
    try:
        loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
        assert loaded.get_metric("EXECUTION_DEVICES") == ("C",)
        assert loaded.infer(feed(3))["y"].tolist() == [9]
        loaded.close()
        assert fastest.closed == 1
    finally:
        end.set()
    hanging = step[-1]
    reason = {
        "query": "which has not answered whether it takes the network",
        "load": f"which failed to load the network: device {hanging} has not loaded it within 0.5 s",
        "run": "whose measurement has not ended",
    }[step.split()[0]]
    assert f"goes on without {hanging}, {reason}" in caplog.text


def test_hanging_load_does_not_hold_the_end_of_the_core(
    add_device: Any, core: Core, network: Network, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero_core.devices.watch._CLOSING_SECONDS", 0.2)
    chosen, _ = add_device("A"), add_device("B")
    chosen.load_gate.clear()
    loaded = core.load_network(network, "AUTO:A,B", {"AUTO_MEASURE": True})
    assert loaded.infer(feed(2))["y"].tolist() == [6]
    assert chosen.load_entered.wait(LIMIT)
    closing = threading.Thread(target=core.close)
    closing.start()
    closing.join(LIMIT / 2)
    assert not closing.is_alive()


def test_measurement_begins_with_the_first_request(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    for name in ("A", "B"):
        add_device(name)
    loaded = core.load_network(network, "AUTO:A,B", {"AUTO_MEASURE": True})
    executable: Any = loaded.executable
    assert executable._settled is None
    loaded.infer(feed(2))
    executable._settled.result(LIMIT)


def test_devices_are_compared_as_the_caller_runs_them(
    core: Core, add_device: Any, network: Network, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`infer` of a network may cost a device more than a request that is kept, and a request less."""
    for name in ("A", "B"):
        add_device(name)
    opened: list[str] = []
    create = ExecutableNetwork.create_infer_request
    monkeypatch.setattr(ExecutableNetwork, "create_infer_request", lambda own: (opened.append(str(own.device)), create(own))[1])
    for repeats in (False, True):
        loaded = core.load_network(network, "AUTO:A,B", {"AUTO_MEASURE": True})
        opened.clear()
        request = loaded.create_infer_request()
        for number in range(3):
            (request if repeats else loaded).infer(feed(number))
        loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
        assert {name for name in opened if name in ("A", "B")} == ({"A", "B"} if repeats else set())


@pytest.fixture
def two_alone(core: Core, add_device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The only devices of the Core beside AUTO, A and B, with an empty store in `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in core.device_names:
        if name != "AUTO":
            core.unregister_plugin(name)
    return add_device("A"), add_device("B")


def test_kept_choice_serves_the_next_process(
    core: Core, two_alone: tuple[Any, Any], network: Network, feed: Feed, tmp_path: Path
) -> None:
    fast, slow, pause = *two_alone, threading.Event()
    slow.work = lambda: pause.wait(0.05)

    def load_and_run() -> tuple[int, int]:
        before = fast.loads, slow.loads
        with core.load_network(network) as loaded:
            assert loaded.infer(feed(2))["y"].tolist() == [6]
            loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
            assert loaded.get_metric("EXECUTION_DEVICES") == ("A",)
            assert loaded.infer(feed(3))["y"].tolist() == [9]
        return fast.loads - before[0], slow.loads - before[1]

    assert load_and_run() == (1, 1)
    (entry,) = (tmp_path / "hetero" / "store").glob("choice-*")
    assert load_and_run() == (1, 0)
    entry.write_bytes(b"damaged")
    assert load_and_run() == (1, 1)


def test_choice_that_other_work_disturbs_is_not_kept(
    core: Core, two_alone: tuple[Any, Any], network: Network, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run takes a twentieth less than the one before, as on a machine that is less and less busy."""
    now, seconds = 0.0, 1.0

    def work() -> None:
        nonlocal now, seconds
        seconds *= 0.95
        now += seconds

    monkeypatch.setattr("hetero_auto.measuring.perf_counter", lambda: now)
    for device in two_alone:
        device.work = work
    with core.load_network(network) as loaded:
        assert loaded.infer(feed(2))["y"].tolist() == [6]
        loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert not list((tmp_path / "hetero" / "store").glob("choice-*"))


def test_choice_without_final_kernels_is_not_kept(
    core: Core, two_alone: tuple[Any, Any], network: Network, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiles for longer than the choice waits."""
    monkeypatch.setattr("hetero_auto.measuring.WARM_SECONDS", 0.1)
    compiling, _, pause = *two_alone, threading.Event()
    compiling.compiles_until = 10**6
    compiling.work = lambda: pause.wait(0.01)
    with core.load_network(network) as loaded:
        assert loaded.infer(feed(2))["y"].tolist() == [6]
        loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
        assert loaded.get_metric("EXECUTION_DEVICES") == ("B",)
    assert not list((tmp_path / "hetero" / "store").glob("choice-*"))


@pytest.mark.parametrize(("seconds", "quick"), [(1.4, "A"), (1.6, "B")])
def test_chosen_device_answers_first_if_another_starts_little_sooner(
    core: Core, two_alone: tuple[Any, Any], network: Network, seconds: float, quick: str
) -> None:
    best = Member(core.load_network(network, "A"), 1, 0)
    write_choice("choice-1", core, best, {"A": seconds, "B": 1.0}, 1)
    choice = read_choice("choice-1")
    assert choice is not None
    assert (choice.device, choice.quick) == ("A", quick)


def test_first_answer_comes_from_a_device_without_slow_nodes(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    add_device("A")
    add_device("B").slow_nodes = ("Add_0",)
    loaded = core.load_network(network, "AUTO:A,B", {"AUTO_MEASURE": True})
    assert loaded.infer(feed(2))["y"].tolist() == [6]
    served = loaded.get_metric("REQUESTS_OF_DEVICES")
    assert served["A"] == 1
    assert loaded.get_metric("SLOW_NODES") in ((), ("Add_0",))


def test_kept_choice_answers_on_the_device_that_starts_sooner(
    core: Core, two_alone: tuple[Any, Any], network: Network, feed: Feed, tmp_path: Path
) -> None:
    """The fastest device takes long to load: the next process answers on B, and hands over to A."""
    fast, slow, pause = *two_alone, threading.Event()
    slow.work = lambda: pause.wait(0.01)
    fast.before_load = lambda: pause.wait(1)
    for _ in range(2):
        with core.load_network(network) as loaded:
            assert loaded.infer(feed(2))["y"].tolist() == [6]
            assert loaded.get_metric("REQUESTS_OF_DEVICES")["B"] == 1
            loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
            assert loaded.get_metric("EXECUTION_DEVICES") == ("A",)
    assert (fast.loads, slow.loads) == (2, 2)


@pytest.mark.parametrize("others", [(), ("B",)])
def test_slow_nodes_are_told_if_no_other_device_takes_them(
    core: Core, add_device: Any, network: Network, feed: Feed, caplog: pytest.LogCaptureFixture, others: tuple[str, ...]
) -> None:
    add_device("A").slow_nodes = ("Add_0",)
    add_device("B").refused = () if others else ("Add",)
    loaded = core.load_network(network, "AUTO:A,B", {"AUTO_MEASURE": True})
    loaded.infer(feed(2))
    loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert ("A has no fast kernel for 'Add_0' (SLOW_NODES names all)" in caplog.text) is (not others)


@pytest.mark.parametrize("end", ["export", "close"])
def test_cache_entry_is_written_when_the_choice_is_made(
    core: Core, add_device: Any, network: Network, feed: Feed, tmp_path: Path, end: str
) -> None:
    fast, slow = add_device("A"), add_device("B")
    pause = threading.Event()
    slow.work = lambda: pause.wait(0.02)
    fast.load_gate.clear()
    config = {"AUTO_MEASURE": True, "CACHE_DIR": str(tmp_path)}
    loaded = core.load_network(network, "AUTO:A,B", config)
    assert loaded.infer(feed(2))["y"].tolist() == [6]
    assert not list(tmp_path.glob("*.blob"))
    fast.load_gate.set()
    if end == "export":
        loaded.export_network(io.BytesIO())
        assert len(list(tmp_path.glob("*.blob"))) == 1
    loaded.close()
    assert len(list(tmp_path.glob("*.blob"))) == 1
    again = core.load_network(network, "AUTO:A,B", config)
    assert again.get_metric("LOADED_FROM_CACHE")
    assert again.get_metric("EXECUTION_DEVICES") == ("A",)
    assert again.infer(feed(3))["y"].tolist() == [9]


def test_network_that_never_ran_is_closed_without_a_choice(core: Core, add_device: Any, network: Network, tmp_path: Path) -> None:
    slow = add_device("A")
    add_device("B")
    slow.load_gate.clear()
    core.load_network(network, "AUTO:A,B", {"CACHE_DIR": str(tmp_path)}).close()
    assert not list(tmp_path.glob("*.blob"))


def test_choices_are_made_one_after_another_behind_first_runs(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    first, second, quick = add_device("A"), add_device("B"), add_device("C")
    first.load_gate.clear()
    one = core.load_network(network, "AUTO:A,C")
    assert one.infer(feed(1))["y"].tolist() == [3]
    assert first.load_entered.wait(LIMIT)
    other = core.load_network(network, "AUTO:B,C")
    assert other.infer(feed(2))["y"].tolist() == [6]
    assert not second.load_entered.wait(0.4)
    first.load_gate.set()
    assert second.load_entered.wait(LIMIT)
    for loaded in (one, other):
        loaded.executable.wait_until_settled()  # type: ignore[attr-defined]  # AUTO's own
    assert (first.loads, second.loads, quick.loads) == (1, 1, 2)
