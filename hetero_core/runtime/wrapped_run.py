"""The chain of calls that a run goes through, bound once at load: the device's own method, or the wrappers that stand around it."""

from __future__ import annotations

from typing import Any

from hetero_core.contract import DeviceName, Executable, RunContext
from hetero_core.devices.device import Device
from hetero_core.hookspecs import hookimpl
from hetero_core.runtime.binding import RunFunction


def bind_run(entry: Device, device: DeviceName, executable: Executable) -> RunFunction:
    """Returns the device's own run, or the chain of the wrappers that stand around `infer`."""
    if not entry.manager.hook.infer.get_hookimpls():
        return executable.run
    if not entry.implements("infer"):
        entry.manager.register(_InnermostRun())
    infer = entry.manager.hook.infer
    return lambda inputs, context: infer(device=device, executable=executable, inputs=inputs, context=context)


class _InnermostRun:
    """The innermost call that wrappers of `infer` surround: the device's own run."""

    @hookimpl
    def infer(self, executable: Executable, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return executable.run(inputs, context)
