"""Devices for tests: HAND, with runs that the test ends, and COUNT, which records compilations; fixtures for cached loads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hetero_cpu.device import CpuDevice
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.plan.passes import transform_network

from hetero_core import Core, Executable, ExecutableNetwork, Network, Payload, QueryResult, RunContext, hookimpl
from hetero_core.blobs import cache
from hetero_core.network.writer import unpack_network

TEXT = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) y = Neg(a) }"
X = np.array([3, 4], np.float32)
Y = [-3, -8]

LIMIT = 60
"""Seconds after which something that never happens fails a test."""


class HandRun:
    """A run in progress on a thread of the device."""

    def __init__(self, inputs: tuple[Any, ...], context: RunContext) -> None:
        self.inputs, self.context = inputs, context
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        """Makes the run return twice its input, or raise `error`."""
        self._error = error
        self._ended.set()

    def wait(self) -> tuple[Any, ...]:
        assert self._ended.wait(LIMIT), "the test never ended this run"
        if self._error is not None:
            raise self._error
        return (self.inputs[0] * 2,)


class HandDevice:
    """A device with four threads; its runs block until the test ends them, or end at once if `is_free`."""

    def __init__(self) -> None:
        self.runs: SimpleQueue[HandRun] = SimpleQueue()
        self.is_free = False

    def next_run(self) -> HandRun:
        """Waits for the next run that starts on a thread, and returns it."""
        return self.runs.get(timeout=LIMIT)

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"RANGE_FOR_ASYNC_INFER_REQUESTS": (1, 4, 1)}

    @hookimpl
    def query_network(self, network: Network) -> QueryResult:
        return QueryResult({node.name: "HAND" for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        return HandExecutable(network, self)


class HandExecutable(Executable):
    def __init__(self, network: Network, device: HandDevice) -> None:
        self.inputs, self.outputs, self._device = network.inputs, network.outputs, device

    def metrics(self) -> Mapping[str, Any]:
        return {"OPTIMAL_NUMBER_OF_INFER_REQUESTS": 3}

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        run = HandRun(inputs, context)
        if self._device.is_free:
            run.end()
        else:
            self._device.runs.put(run)
        return run.wait()


@pytest.fixture
def hand(core: Core) -> Iterator[HandDevice]:
    """The device, registered as HAND; open runs are released at the end of the test."""
    device = HandDevice()
    core.register_plugin("HAND", device)
    yield device
    device.is_free = True
    while not device.runs.empty():
        device.runs.get().end()


@pytest.fixture
def by_hand(core: Core, hand: HandDevice, read: Callable[[str], Network]) -> ExecutableNetwork:
    """A network on HAND with y = 2 x."""
    return core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), "HAND", {"NUM_STREAMS": 4})


@pytest.fixture
def feed() -> Callable[[float], dict[str, Any]]:
    """A function that makes the input of the network on HAND."""
    return lambda value: {"x": np.array([value], np.float32)}


class CountingDevice(CpuDevice):
    """CPU that records compilations, and fails to import or to export on demand."""

    def __init__(self) -> None:
        super().__init__("COUNT")
        self.compiled: list[str] = []
        self.architecture = "one"
        self.failure: Exception | None = None
        self.while_compiling: Callable[[], object] = lambda: None

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"AVAILABLE_DEVICES": ("0", "1"), "DEVICE_ARCHITECTURE": self.architecture}

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        self.compiled.append(network.name)
        self.while_compiling()
        return CpuExecutable(transform_network(network), self._extensions)

    @hookimpl
    def import_network(self, payload: Payload) -> Executable:
        if self.failure is not None:
            raise self.failure
        assert sorted(payload.sections) == ["model", "weights"], "the section of the cache is not the plugin's affair"
        return CpuExecutable(transform_network(unpack_network(payload.sections)), self._extensions)

    @hookimpl
    def export_network(self, executable: CpuExecutable) -> Payload:
        if self.failure is not None:
            raise self.failure
        return super().export_network(executable)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def count(core: Core) -> CountingDevice:
    device = CountingDevice()
    core.register_plugin("COUNT", device)
    return device


@pytest.fixture
def load(core: Core, count: CountingDevice, read: Callable[..., Network], folder: Path) -> Callable[..., bool]:
    """A function that loads through the cache, checks the result, and returns whether the load was a cache hit."""

    def load_network(
        device: str = "COUNT", text: str = TEXT, pins: Mapping[str, str] | None = None, expected: Any = None, **config: Any
    ) -> bool:
        network = read(text).with_affinity(pins or {})
        loaded = core.load_network(network, device, {"CACHE_DIR": str(folder), **config})
        assert loaded.infer({"x": X})["y"].tolist() == (Y if expected is None else expected)
        return bool(loaded.get_metric("LOADED_FROM_CACHE"))

    return load_network


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The texts of the cache's warnings so far."""
    texts: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]  # a handler of three lines
    cache.logger.addHandler(handler)
    yield texts
    cache.logger.removeHandler(handler)
