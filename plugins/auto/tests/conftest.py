"""Fixtures for the tests of MULTI and AUTO: a Core, a network, and devices that wait, fail and take time on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import ConfigKey, Core, Network, RunContext, hookimpl
from hetero_core.contract import DeviceName, Executable, Payload
from hetero_core.network.graph import Node
from hetero_core.network.writer import unpack_network
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

LIMIT = 60
"""Seconds after which something that never happens fails a test."""


class ScriptedDevice(PlainDevice):
    """PLAIN under orders. `runs` has the first number of each input, in the order in which the runs began."""

    def __init__(self) -> None:
        self.runs: list[float] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.load_gate = threading.Event()
        self.load_gate.set()
        self.load_entered = threading.Event()
        self.loads = self.closed = 0
        self.configs: list[dict[str, Any]] = []
        self.fails_from: int | None = None
        self.poison: float | None = None
        self.load_error: Exception | None = None
        self.refused: tuple[str, ...] = ()
        self.capabilities = ("FP32",)
        self.streams = 4
        self.slow_nodes: tuple[str, ...] = ()
        self.memory: int | None = None
        self.compiles_until = 0
        self.before_query: Callable[[], object] = lambda: None
        self.before_load: Callable[[], object] = lambda: None
        self.work: Callable[[], object] = lambda: None
        self.lock = threading.Lock()

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        stated = {} if self.memory is None else {"DEVICE_TOTAL_MEM_SIZE": self.memory}
        return {"OPTIMIZATION_CAPABILITIES": self.capabilities, "RANGE_FOR_ASYNC_INFER_REQUESTS": (1, self.streams, 1), **stated}

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"SCRIPT_LEVEL": ConfigKey(int, 0, "a number")}

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        self.load_entered.set()
        assert self.load_gate.wait(LIMIT), "the test never let the device load"
        self.before_load()
        if self.load_error is not None:
            raise self.load_error
        self.loads += 1
        self.configs.append(dict(config))
        return ScriptedExecutable(network, self)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        return self.load_network(device, unpack_network(payload.sections), config)

    def find_refusal(self, node: Node, network: Network) -> str | None:
        self.before_query()
        return "no kernel" if node.op_type in self.refused else super().find_refusal(node, network)


class ScriptedExecutable(PlainExecutable):
    def __init__(self, network: Network, device: ScriptedDevice) -> None:
        super().__init__(network)
        self._device = device

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        device = self._device
        with device.lock:
            device.runs.append(float(inputs[0].flat[0]))
            is_broken = device.fails_from is not None and len(device.runs) > device.fails_from
        device.entered.release()
        assert device.gate.wait(LIMIT), "the test never ended this run"
        device.work()
        if is_broken or float(inputs[0].flat[0]) == device.poison:
            raise OSError("the driver fell over")
        return super().run(inputs, context)

    def metrics(self) -> Mapping[str, Any]:
        return {
            **super().metrics(),
            "SLOW_NODES": self._device.slow_nodes,
            "SCRIPT_KERNELS_READY": lambda: len(self._device.runs) >= self._device.compiles_until,
        }

    def close(self) -> None:
        with self._device.lock:
            self._device.closed += 1


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.fixture
def add_device(core: Core) -> Iterator[Callable[[str], ScriptedDevice]]:
    devices = []

    def add(name: str) -> ScriptedDevice:
        devices.append(ScriptedDevice())
        core.register_plugin(name, devices[-1])
        return devices[-1]

    yield add
    for device in devices:
        device.gate.set()
        device.load_gate.set()


@pytest.fixture
def network(core: Core) -> Network:
    """y is three times x."""
    text = "g (float[n] x) => (float[n] y) { two = Add (x, x) y = Add (two, x) }"
    return core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))


@pytest.fixture
def feed() -> Callable[[float], dict[str, Any]]:
    return lambda value: {"x": np.array([value], np.float32)}
