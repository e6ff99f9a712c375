"""Where placement measures: a process for each device and each mixed candidate, or this process where a device exists only here.

An engine's threads spin for a while after a run. So each engine that is timed alone has a process to itself, all processes but one wait
for a command, and a pause before each timing lets the threads of the others fall asleep.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any

from hetero_core.core import Core
from hetero_core.devices.config import CACHE_KEYS, LIMIT_KEYS
from hetero_core.devices.names import parse_device_name
from hetero_core.errors import HeteroError
from hetero_core.network.graph import Network
from hetero_hetero.placement.child import StopwatchProcess, write_task
from hetero_hetero.placement.stopwatch import Answer, Stopwatch

_OWN_DOMAINS = frozenset(("", "ai.onnx.ml", "com.microsoft"))
"""Operators of other domains are extensions, functions of this process."""
_QUIET_SECONDS = 0.02
_LEFT_OUT = frozenset(("DEVICE_ID", "PERF_COUNT", *CACHE_KEYS, *LIMIT_KEYS))


class StopwatchPool:
    """Answers commands of the stopwatch by key: one process for each key. A context manager."""

    def __init__(self, core: Core, network: Network, inputs: Mapping[str, Any], devices: Mapping[str, Mapping[str, Any]]) -> None:
        """`devices` maps the participating devices to their configuration in this Core."""
        self._devices = devices
        self._children: dict[str, StopwatchProcess] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._watch: Stopwatch | None = None
        if can_measure_apart(core, network, devices):
            self._folder = tempfile.TemporaryDirectory(prefix="hetero-placement-")
            write_task(Path(self._folder.name), network, inputs)
        else:
            self._watch = Stopwatch(core, network, inputs)

    def prepare(self, keys: Sequence[str], timeout: float) -> None:
        """Starts the processes of these keys together; returns when all of them have read the network, so that none disturbs a timing."""
        if self._folder is None:
            return
        fresh = [key for key in dict.fromkeys(keys) if key not in self._children]
        for key in fresh:
            self._children[key] = StopwatchProcess(Path(self._folder.name))
        for key in fresh:
            # A process that fails says so to the first command, too.
            self._children[key].ask({"do": "configure", "configs": self._devices}, timeout)

    def ask(self, key: str, command: Mapping[str, Any], timeout: float) -> Answer:
        """Returns the answer to a command; the process of a new key is started."""
        if self._watch is not None:
            return self._watch.answer(command)
        self.prepare([key], timeout)
        sleep(_QUIET_SECONDS)
        return self._children[key].ask(command, timeout)

    def __enter__(self) -> StopwatchPool:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.close()
        if self._watch is not None:
            self._watch.close()
        if self._folder is not None:
            self._folder.cleanup()


def can_measure_apart(core: Core, network: Network, devices: Mapping[str, object]) -> bool:
    """Says whether another process has the same devices and operators as this one: no device or extension was added at run time."""
    if any(node.domain not in _OWN_DOMAINS for node in network.nodes):
        return False
    with Core() as other:
        try:
            return all(other.get_versions(device) == core.get_versions(device) for device in devices)
        except HeteroError:
            return False


def list_settings(core: Core, device: str) -> dict[str, Any]:
    """Returns the values that this Core was given for a device, for a Core in another process."""
    keys = core.config_keys(device)
    resolved = core.resolve_config(str(parse_device_name(device)))
    return {
        name: value
        for name, value in resolved.items()
        if name not in _LEFT_OUT and value is not None and value != keys[name].default and not keys[name].is_arguments
    }
