"""Fixtures for the tests of BATCH: a Core, networks from ONNX text, and a device that records its batches, waits and fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Network, RunContext, hookimpl
from hetero_core.contract import Executable, Payload
from hetero_core.network.graph import Node
from hetero_core.network.writer import unpack_network
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

LIMIT = 60
"""Seconds after which a missing event fails a test."""


class NotingDevice(PlainDevice):
    """PLAIN that records the first column of each batch. Runs wait at the gate; a run with the poison in it fails."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.poison: float | None = None
        self.needs_fixed_sizes = False

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"RANGE_FOR_ASYNC_INFER_REQUESTS": (1, 1, 1)}

    @hookimpl
    def import_network(self, payload: Payload) -> Executable:
        return self.make_executable(unpack_network(payload.sections))

    def make_executable(self, network: Network) -> Executable:
        return NotingExecutable(network, self)

    def find_refusal(self, node: Node, network: Network) -> str | None:
        sizes = [size for spec in network.inputs for size in spec.shape or ()]
        if self.needs_fixed_sizes and not all(isinstance(size, int) for size in sizes):
            return "open sizes"
        return super().find_refusal(node, network)


class NotingExecutable(PlainExecutable):
    def __init__(self, network: Network, device: NotingDevice) -> None:
        super().__init__(network)
        self._device = device

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        column = [float(value) for value in np.asarray(inputs[0]).reshape(len(inputs[0]), -1)[:, 0]]
        self._device.batches.append(column)
        self._device.entered.release()
        assert self._device.gate.wait(LIMIT), "the test never ended this run"
        if self._device.poison in column:
            raise OSError("the driver fell over")
        return super().run(inputs, context)


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.fixture
def read(core: Core) -> Callable[[str], Network]:
    return lambda text: core.read_network(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3, "com.acme": 1]> {text}')
    )


@pytest.fixture
def device(core: Core) -> Iterator[NotingDevice]:
    """The device, registered as NOTE."""
    noting = NotingDevice()
    core.register_plugin("NOTE", noting)
    yield noting
    noting.gate.set()


@pytest.fixture
def network(read: Callable[[str], Network]) -> Network:
    """y is twice x."""
    return read("g (float[n, 2] x) => (float[n, 2] y) { y = Add (x, x) }")


@pytest.fixture
def feed() -> Callable[..., dict[str, Any]]:
    return lambda *values: {"x": np.array([[value, 0] for value in values], np.float32)}
