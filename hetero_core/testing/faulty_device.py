"""A device that fails on purpose, at a chosen place and in a chosen way, for tests of the core's error handling.

    plugin = FaultyPlugin(Fault("infer.raise", nth=3))
    core.register_plugin("FAULTY", plugin)

`plugin.release()` ends every hanging call; calls hang for at most HANG_SECONDS.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_core.contract import DeviceName, Executable, Payload, QueryResult, RunContext
from hetero_core.errors import enumerate_choices, suggest
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

HANG_SECONDS = 120.0

FAULTS: Mapping[str, str] = {
    "none": "nothing is wrong",
    "create.raise": "create_device raises",
    "create.hang": "create_device does not return",
    "create.nothing": "create_device returns None",
    "query.raise": "query_network raises",
    "query.hang": "query_network does not return",
    "query.nothing": "query_network returns None",
    "query.forget": "query_network leaves a node out",
    "query.invent": "query_network names a node that does not exist",
    "query.both": "query_network takes and refuses a node",
    "query.silent": "query_network refuses a node without a reason",
    "load.raise": "load_network raises",
    "load.hang": "load_network does not return",
    "load.nothing": "load_network returns None",
    "load.names": "load_network returns an executable with other output names",
    "load.other": "load_network returns something that is no Executable",
    "export.raise": "export_network raises",
    "export.nothing": "export_network returns None",
    "import.raise": "import_network raises",
    "import.names": "import_network returns an executable with other output names",
    "import.nothing": "import_network returns None",
    "infer.raise": "run raises",
    "infer.hang": "run does not return",
    "infer.count": "run returns too few outputs",
    "infer.list": "run returns a list",
    "infer.nothing": "run returns None for an output",
    "infer.dtype": "run returns float64 for float32",
    "infer.shape": "run returns an array of another shape",
    "infer.rank": "run returns an array with one more dimension",
    "close.raise": "close_device raises",
}
"""The faults that can be injected."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry of FAULTS; it occurs at the nth call of its place, counted from 1, and at every later call."""

    name: str = "none"
    nth: int = 1

    def __post_init__(self) -> None:
        if self.name not in FAULTS:
            raise ValueError(f"no fault '{self.name}'{suggest(self.name, FAULTS) or ';'} there are {enumerate_choices(FAULTS)}")


class InjectedError(OSError):
    """The error that a faulty device raises; like a driver's error, it is not a HeteroError."""


class FaultyPlugin:
    """The plugin of a faulty device. `entered` is released each time a call begins to hang."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.entered = threading.Semaphore(0)
        self._free = threading.Event()
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    @hookimpl
    def create_device(self, name: str) -> object:
        """Returns the device, unless the fault occurs here."""
        return None if self.meet("create") == "nothing" else FaultyDevice(self)

    def release(self) -> None:
        """Ends all hanging calls; later calls do not hang."""
        self._free.set()

    def meet(self, place: str) -> str:
        """Returns the kind of fault that the caller must produce, "" if there is no fault; errors and hangs occur in here."""
        with self._lock:
            self._calls[place] = self._calls.get(place, 0) + 1
            is_due = self._calls[place] >= self.fault.nth
        where, _, what = self.fault.name.partition(".")
        if where != place or not is_due:
            return ""
        if what == "raise":
            raise InjectedError(f"the driver fell over in {place}")
        if what == "hang":
            self.entered.release()
            self._free.wait(HANG_SECONDS)
        return what


class FaultyDevice(PlainDevice):
    """PLAIN with a single fault."""

    def __init__(self, plugin: FaultyPlugin) -> None:
        self._plugin = plugin

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> Any:
        """Returns PLAIN's answer, unless the fault occurs here."""
        return _spoil_answer(self._plugin.meet("query"), super().query_network(device, network))

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Any:
        """Returns a loaded network, unless the fault is here."""
        return _spoil_executable(self._plugin.meet("load"), self.make_executable(network))

    @hookimpl
    def export_network(self, executable: PlainExecutable) -> Any:
        """Returns PLAIN's payload, unless the fault occurs here."""
        return None if self._plugin.meet("export") == "nothing" else super().export_network(executable)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Any:
        """Returns a loaded network, unless the fault is here."""
        return _spoil_executable(self._plugin.meet("import"), super().import_network(device, payload))

    @hookimpl
    def close_device(self) -> bool:
        """Returns True, unless the fault occurs here."""
        self._plugin.meet("close")
        return True

    def make_executable(self, network: Network) -> Executable:
        """Returns an executable with runs that may fail."""
        return FaultyExecutable(network, self._plugin)


class FaultyExecutable(PlainExecutable):
    """A loaded network with runs that may fail."""

    def __init__(self, network: Network, plugin: FaultyPlugin) -> None:
        super().__init__(network)
        self._plugin = plugin

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> Any:
        """Returns the outputs, or wrong outputs if the fault occurs here."""
        what = self._plugin.meet("infer")
        outputs = super().run(inputs, context)
        first, rest = outputs[0], outputs[1:]
        spoiled = {
            "count": rest,
            "list": list(outputs),
            "nothing": (None, *rest),
            "dtype": (None if first is None else first.astype(np.float64), *rest),
            "shape": (None if first is None else np.concatenate([first, first]) if first.ndim else first[None], *rest),
            "rank": (None if first is None else first[None], *rest),
        }
        return spoiled.get(what, outputs)


def _spoil_answer(what: str, result: QueryResult) -> Any:
    names = list(result.supported)
    if what == "nothing" or not names:
        return None if what == "nothing" else result
    device = result.supported[names[0]]
    spoiled = {
        "forget": QueryResult(dict.fromkeys(names[1:], device), result.refused),
        "invent": QueryResult({**result.supported, "no_such_node": device}, result.refused),
        "both": QueryResult(result.supported, {**result.refused, names[0]: "taken and refused"}),
        "silent": QueryResult(dict.fromkeys(names[1:], device), {**result.refused, names[0]: ""}),
    }
    return spoiled.get(what, result)


def _spoil_executable(what: str, executable: Executable) -> Any:
    if what == "nothing":
        return None
    if what == "other":
        return object()
    if what == "names":
        executable.outputs = tuple(ValueSpec(f"{spec.name}_renamed", spec.type, spec.memory) for spec in executable.outputs)
    return executable
