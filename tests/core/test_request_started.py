"""Devices that start runs by themselves: what they raise at the start, and when they may not be asked at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Executable, ExecutableNetwork, Network, QueryResult, RunContext, hookimpl
from hetero_core.errors import ClosedError, InferenceError

X = np.array([3], np.float32)


class Starting(Executable):
    """Ends each run within its start, or fails to start it."""

    def __init__(self, network: Network) -> None:
        self.inputs, self.outputs = network.inputs, network.outputs
        self.failure: Exception | None = None
        self.started = 0

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return (inputs[0] * 2,)

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Callable[..., None]) -> None:
        self.started += 1
        if self.failure is not None:
            raise self.failure
        done(self.run(inputs, context), None)


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
