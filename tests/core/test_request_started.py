"""Devices that start runs by themselves: what they raise at the start, and when they may not be asked at all."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any
from weakref import finalize

import numpy as np
import pytest

from hetero_core import Core, Executable, ExecutableNetwork, Network, QueryResult, RunContext, hookimpl
from hetero_core.errors import ClosedError, InferenceError, PluginError

X = np.array([3], np.float32)


class Starting(Executable):
    """Ends each run within its start, or fails to start it."""

    def __init__(self, network: Network) -> None:
        self.inputs, self.outputs = network.inputs, network.outputs
        self.failure: BaseException | None = None
        self.told: Any = None
        self.started = 0

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return (inputs[0] * 2,)

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Callable[..., None]) -> None:
        self.started += 1
        if self.failure is not None:
            raise self.failure
        done(self.run(inputs, context), self.told)


class StartingDevice:
    @hookimpl
    def query_network(self, network: Network) -> QueryResult:
        return QueryResult({node.name: "STARTING" for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        return Starting(network)


@pytest.fixture
def network(core: Core, read: Callable[[str], Network]) -> ExecutableNetwork:
    core.register_plugin("STARTING", StartingDevice())
    return core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), "STARTING")


def test_error_of_a_start_is_met_as_that_of_a_run(network: ExecutableNetwork) -> None:
    request, executable = network.create_infer_request(), network.executable
    assert isinstance(executable, Starting)
    executable.failure = OverflowError("no queue")
    message = "network 'g' failed on STARTING .*: OverflowError: no queue"
    with pytest.raises(InferenceError, match=message) as caught:
        request.start_async({"x": X})
    assert caught.value.__cause__ is executable.failure
    with pytest.raises(InferenceError, match=message):
        asyncio.run(request.infer_async({"x": X}))
    assert request.wait(0)
    executable.failure = None
    request.start_async({"x": X})
    assert request.wait(60)
    assert request.get_tensor("y").tolist() == [6]


def test_closed_network_is_not_started(network: ExecutableNetwork) -> None:
    request, executable = network.create_infer_request(), network.executable
    assert isinstance(executable, Starting)
    network.close()
    with pytest.raises(ClosedError, match="network 'g' on STARTING is closed; load it again"):
        request.start_async({"x": X})
    assert executable.started == 0
    assert request.wait(0)


@pytest.mark.parametrize("told", [SystemExit(2), "no error", 7], ids=["exit", "text", "number"])
def test_anything_that_a_device_tells_in_place_of_an_error_reaches_wait(network: ExecutableNetwork, told: Any) -> None:
    executable = network.executable
    assert isinstance(executable, Starting)
    executable.told = told
    request = network.create_infer_request()
    request.start_async({"x": X})
    with pytest.raises(PluginError, match=f"plugin STARTING .* raised {type(told).__name__}"):
        request.wait(60)


def test_exit_of_a_start_blames_the_plugin(network: ExecutableNetwork) -> None:
    executable = network.executable
    assert isinstance(executable, Starting)
    executable.failure = SystemExit(3)
    with pytest.raises(PluginError, match="plugin STARTING .* raised SystemExit: 3 in a run of network 'g'"):
        network.create_infer_request().start_async({"x": X})


@pytest.mark.parametrize("config", [{}, {"PERF_COUNT": True}, {"DEADLINE": 60.0}], ids=["plain", "measured", "deadline"])
@pytest.mark.parametrize("device", ["STARTING", "CPU"])
def test_network_goes_with_its_last_holder_without_the_garbage_collector(
    core: Core, read: Callable[[str], Network], device: str, config: dict[str, Any]
) -> None:
    core.register_plugin("STARTING", StartingDevice())
    loaded = core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), device, config)
    request, is_freed = loaded.create_infer_request(), threading.Event()
    finalize(loaded.executable, is_freed.set)
    gc.collect()
    gc.disable()
    try:
        request.start_async({"x": X})
        assert request.wait(60)
        request.infer({"x": X})
        core.close()
        del loaded, request
        # A thread of the run, of the device's own or of a timer with DEADLINE, may be about to end, and holds it until then.
        assert is_freed.wait(60)
    finally:
        gc.enable()
