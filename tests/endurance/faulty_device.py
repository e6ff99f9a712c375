"""Wrappers around CPU or TEMPLATE devices that inject faults into every hook and every run, at a given rate."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from hetero_cpu.device import CpuDevice
from hetero_template.device import TemplateDevice

from hetero_core import Executable, Network, Payload, QueryResult, RunContext, hookimpl
from hetero_core.contract import ConfigKey, DeviceName
from hetero_core.network.types import ValueSpec


class InjectedError(Exception):
    """An injected fault."""


class Faults:
    """Draws the injected faults from a seed, and counts them by place. Thread-safe."""

    def __init__(self, seed: int, rate: float) -> None:
        self._random, self._rate, self._lock = Random(seed), rate, threading.Lock()
        self.counts: Counter[str] = Counter()

    def strike(self, place: str) -> None:
        """Raises InjectedError at the given rate."""
        with self._lock:
            if self._random.random() >= self._rate:
                return
            self.counts[place] += 1
        raise InjectedError(f"injected in {place}")

    def pick_delay(self) -> float:
        """Returns a delay of at most 4 ms, in seconds, in a quarter of the calls, and 0 otherwise."""
        with self._lock:
            return self._random.uniform(0, 0.004) if self._random.random() < 0.25 else 0.0


class FaultyExecutable(Executable):
    """Runs the wrapped executable, with an injected delay before it and injected faults before and after it.

    A cancelled run skips the delay.
    """

    def __init__(self, inner: Executable, faults: Faults) -> None:
        self.inner, self.faults = inner, faults
        self.inputs, self.outputs = inner.inputs, inner.outputs
        self._never = threading.Event()

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs of the wrapped executable."""
        self.faults.strike("run")
        delay = self.faults.pick_delay()
        if delay and not context.cancelled():
            self._never.wait(delay)
        outputs = self.inner.run(inputs, context)
        self.faults.strike("end of run")
        return outputs


class StartingExecutable(FaultyExecutable):
    """An asynchronous executable: starts runs on the threads of its device."""

    def __init__(self, inner: Executable, faults: Faults, pool: ThreadPoolExecutor) -> None:
        super().__init__(inner, faults)
        self._pool = pool

    def start(
        self, inputs: tuple[Any, ...], context: RunContext, done: Callable[[tuple[Any, ...] | None, BaseException | None], None]
    ) -> None:
        """Returns at once; a thread calls `done`."""
        self.faults.strike("start")

        def run() -> None:
            try:
                outputs = self.run(inputs, context)
            except Exception as error:  # noqa: BLE001  # handed on
                done(None, error)
            else:
                done(outputs, None)

        self._pool.submit(run)


class FaultyFactory:
    """The registered plugin: creates a device or raises an injected fault. Counts created and closed devices by name."""

    def __init__(self, kind: str, faults: Faults) -> None:
        self._kind, self._faults = kind, faults
        self.created, self.closed = Counter[str](), Counter[str]()

    @hookimpl
    def create_device(self, name: str) -> object:
        self._faults.strike("create_device")
        self.created[name] += 1
        return FaultyDevice(name, self._kind, self._faults, on_close=lambda: self.closed.update((name,)))


class FaultyDevice:
    """A device that wraps TEMPLATE (`kind` "template") or CPU ("cpu", or "starting" for asynchronous executables)."""

    def __init__(self, name: str, kind: str, faults: Faults, *, on_close: Callable[[], object]) -> None:
        self._inner: Any = TemplateDevice(name) if kind == "template" else CpuDevice(name)
        self._faults, self._on_close = faults, on_close
        self._pool = ThreadPoolExecutor(2, f"own-{name}") if kind == "starting" else None
        self._is_closed = False

    def _wrap(self, inner: Executable) -> Executable:
        assert not self._is_closed, "a device was used after it was closed"
        return FaultyExecutable(inner, self._faults) if self._pool is None else StartingExecutable(inner, self._faults, self._pool)

    def _ask(self, hook: str, **arguments: Any) -> Any:
        """Calls a hook of the wrapped device with the arguments that its signature names, as pluggy would."""
        function = getattr(self._inner, hook)
        parameters = inspect.signature(function).parameters
        return function(**{name: value for name, value in arguments.items() if name in parameters})

    @hookimpl
    def close_device(self) -> bool:
        """Ends the threads."""
        assert not self._is_closed, "a device was closed twice"
        self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown()
        self._on_close()
        return True

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        """Returns the configuration keys of the wrapped device."""
        return self._ask("config_keys") if hasattr(self._inner, "config_keys") else {}

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Allows at most two asynchronous requests."""
        return {"RANGE_FOR_ASYNC_INFER_REQUESTS": (1, 2, 1)}

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """Returns the answer of the wrapped device."""
        self._faults.strike("query_network")
        result: QueryResult = self._ask("query_network", device=device, network=network, config=config)
        return result

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Returns the executable of the wrapped device, wrapped."""
        self._faults.strike("load_network")
        return self._wrap(self._ask("load_network", device=device, network=network, config=config, query=None))

    @hookimpl
    def export_network(self, executable: FaultyExecutable) -> Payload:
        """Returns the payload of the wrapped device."""
        self._faults.strike("export_network")
        payload: Payload = self._inner.export_network(executable.inner)
        return payload

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Returns the executable of the wrapped device, wrapped."""
        self._faults.strike("import_network")
        return self._wrap(self._ask("import_network", device=device, payload=payload, config=config))

    @hookimpl
    def to_host(self, array: Any) -> Any:
        """Returns a host copy by the wrapped device, which must have a memory of its own."""
        return self._inner.to_host(array)

    @hookimpl
    def from_host(self, array: Any, spec: ValueSpec) -> Any:
        """Returns a device copy by the wrapped device, which must have a memory of its own."""
        return self._inner.from_host(array, spec)
