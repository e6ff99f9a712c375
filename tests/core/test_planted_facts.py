"""Faults of metrics, settings, memories and executed graphs, planted in a device that is otherwise without one; a check names each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hetero_template.device import TemplateArray, TemplateDevice, TemplateExecutable
from hetero_tests.planted import device_with, list_failed

from hetero_core import Executable, Network, RunContext, hookimpl
from hetero_core.contract import ConfigKey, DeviceName, Payload
from hetero_core.errors import InferenceError
from hetero_core.executed import ExecutedNode, list_nodes
from hetero_core.network.types import TensorType
from hetero_core.network.writer import unpack_network
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable


class Telling(PlainDevice):
    """Has two ids, and metrics of its own."""

    def __init__(self, **metrics: Any) -> None:
        self._metrics = metrics

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        return {"AVAILABLE_DEVICES": ("0", "1"), "OPTIMIZATION_CAPABILITIES": ("FP32", "FP16", "FP64"), **self._metrics}


class Growing(Telling):
    """Is another type of device once it has loaded a network."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        self._metrics = {"DEVICE_TYPE": "discrete"}
        return super().load_network(device, network)


class Narrow(PlainExecutable):
    """Has room for 32 images."""

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        if any(len(value) > 32 for value in inputs):
            raise InferenceError("no room for more than 32 images")
        return super().run(inputs, context)


class Cropping(PlainExecutable):
    """Computes 8 images, and leaves the others as they are in memory."""

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        outputs = super().run(inputs, context)
        for value in outputs:
            value[8:] = 0
        return outputs


class Limited(Telling):
    """States a limit, and has executables of a class."""

    def __init__(self, executable: Callable[[Network], Executable], limit: int) -> None:
        super().__init__(MAX_BATCH_SIZE=limit)
        self.make_executable = executable  # type: ignore[method-assign]  # the planted fault


class MeasuredAtLoad(PlainDevice):
    """Looks at PERF_COUNT when a network is loaded, and at no run's profile."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        loaded = super().load_network(device, network)
        if config["PERF_COUNT"]:
            return loaded
        compute = loaded.run
        loaded.run = lambda inputs, context: compute(inputs, RunContext(context.state))  # type: ignore[method-assign]  # the fault
        return loaded


class Remembering(PlainDevice):
    """Has the value of the last question as its default."""

    def __init__(self) -> None:
        self._mode = "SAFE"

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"MODE": ConfigKey(str, self._mode, "How it computes.", choices=("SAFE", "FAST"))}

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Any:
        self._mode = config["MODE"]
        return super().query_network(device, network)


class Aliasing(TemplateDevice):
    """Takes the host's own array for one in its memory."""

    @hookimpl
    def from_host(self, array: Any, spec: Any) -> TemplateArray:
        return TemplateArray(spec.memory, array)


class GivingAway(TemplateDevice):
    """Gives its own memory to the host."""

    @hookimpl
    def to_host(self, array: TemplateArray) -> Any:
        return array.read(array.memory)


class OneName(TemplateDevice):
    """Has two ids with a memory each, which have one name: an array of one is, read by the other, what lies there at its address."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        loaded = super().load_network(device, network, config, None)
        assert isinstance(loaded, TemplateExecutable)
        own = loaded.memory
        loaded.inputs, loaded.outputs = (
            tuple(replace(spec, memory="card") for spec in specs) for specs in (loaded.inputs, loaded.outputs)
        )
        compute = loaded.run

        def read(value: TemplateArray) -> TemplateArray:
            elements = value.read(value.memory)
            return TemplateArray(own, elements if value.memory == own else np.zeros_like(elements))

        loaded.run = lambda inputs, context: compute(tuple(map(read, inputs)), context)  # type: ignore[method-assign]  # the fault
        return loaded

    @hookimpl
    def from_host(self, device: DeviceName, array: Any, spec: Any) -> TemplateArray:
        return TemplateArray(f"{device.name}:{device.id}", array.copy())


class Steps(PlainExecutable):
    """Tells the steps that a function makes of those of the network."""

    def __init__(self, network: Network, change: Callable[[tuple[ExecutedNode, ...]], Any]) -> None:
        super().__init__(network)
        self._change = change

    def executed_nodes(self) -> Any:
        return self._change(list_nodes(self.network.nodes, self.network.types))


def steps_that(change: Callable[[tuple[ExecutedNode, ...]], Any]) -> PlainDevice:
    return device_with(lambda network: Steps(network, change))


class LastExported(PlainDevice):
    """Imports the network that it has exported last, whatever the blob holds."""

    _last: Network

    @hookimpl
    def export_network(self, executable: PlainExecutable) -> Payload:
        self._last = executable.network
        return super().export_network(executable)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        stored = unpack_network(payload.sections)
        imported = PlainExecutable(self._last if len(self._last.inputs) == len(stored.inputs) else stored)
        imported.inputs, imported.outputs = stored.inputs, stored.outputs
        return imported


class Fixing(PlainDevice):
    """Imports a network for one image."""

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        imported = super().import_network(device, payload)
        for side in ("inputs", "outputs"):
            setattr(imported, side, tuple(replace(spec, type=_fix(spec.type)) for spec in getattr(imported, side)))
        return imported


def _fix(value_type: Any) -> TensorType:
    return replace(value_type, shape=tuple(size if isinstance(size, int) else 1 for size in value_type.shape))


class BoundToId(Telling):
    """Compiles for one of its two ids alone, and states one architecture for both."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        loaded = super().load_network(device, network)
        loaded.compiled_for = device.id or "0"  # type: ignore[attr-defined]  # read by the export
        return loaded

    @hookimpl
    def export_network(self, executable: PlainExecutable) -> Payload:
        payload = super().export_network(executable)
        return replace(payload, sections={**payload.sections, "id": executable.compiled_for.encode()})  # type: ignore[attr-defined]  # as above

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        sections = dict(payload.sections)
        compiled_for = bytes(sections.pop("id")).decode()
        imported = super().import_network(device, replace(payload, sections=sections))
        imported.compiled_for = compiled_for  # type: ignore[attr-defined]  # for another export
        return self.use(imported, is_here=compiled_for == (device.id or "0"))

    def use(self, imported: Executable, *, is_here: bool) -> Executable:
        if not is_here:
            raise InferenceError("the driver refuses this code")
        return imported


class SilentlyBoundToId(BoundToId):
    """The other id runs the code, and computes nothing."""

    def use(self, imported: Executable, *, is_here: bool) -> Executable:
        compute = imported.run
        if not is_here:
            imported.run = lambda inputs, context: tuple(np.zeros_like(value) for value in compute(inputs, context))  # type: ignore[method-assign]  # the fault
        return imported


class TwoArchitectures(Telling):
    """States the architecture of each id, as it should."""

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        return {**super().metrics(device), "DEVICE_ARCHITECTURE": f"v{device.id or 0}"}


STAY, OWN, FREE, BATCH = (
    f"device_facts.{name}"
    for name in (
        "facts_stay_the_same",
        "ids_have_identifiers_of_their_own",
        "memory_that_is_free_is_part_of_all",
        "batches_up_to_the_limit_run",
    )
)
ARCHITECTURE = "exporting.blob_is_for_one_architecture"
CHANGED, BACK = "properties.loaded_network_takes_new_values_and_gives_them_back", "properties.none_takes_a_setting_back"
STANDS, TIMES = "executed.executed_graph_stands_for_the_network", "executed.executed_graph_has_the_times_of_a_run"
STREAM, DESCRIBED = "exporting.blobs_may_stand_anywhere_in_a_stream", "exporting.descriptions_come_with_the_blob"
FAULTS: Mapping[str, tuple[Callable[[], object], str, str]] = {
    "a new identifier for each question": (
        lambda: Telling(DEVICE_UUID=lambda: uuid4().hex),
        STAY,
        "DEVICE_UUID, read again: expected",
    ),
    "another type after a load": (Growing, STAY, "DEVICE_TYPE, read again: expected 'integrated', got 'discrete'"),
    "one identifier for two ids": (
        lambda: Telling(DEVICE_UUID="0123456789abcdef" * 2),
        OWN,
        "the ids 0 and 1 have one DEVICE_UUID, 0123456789abcdef",
    ),
    "more memory free than there is": (
        lambda: Telling(DEVICE_TOTAL_MEM_SIZE=8000, DEVICE_FREE_MEM_SIZE=4 * 2**30),
        FREE,
        "DEVICE_FREE_MEM_SIZE is 4294967296, and DEVICE_TOTAL_MEM_SIZE is 8000; both are in bytes",
    ),
    "a limit that is not stated": (
        lambda: Limited(Narrow, 0),
        BATCH,
        "a batch of 67, where MAX_BATCH_SIZE is 0, which means no limit: no room for more than 32 images",
    ),
    "a limit that is too high": (lambda: Limited(Narrow, 50), BATCH, "a batch of 50, where MAX_BATCH_SIZE is 50: no room"),
    "images beyond the limit not computed": (
        lambda: Limited(Cropping, 8),
        BATCH,
        "a batch of 9 is not refused, where MAX_BATCH_SIZE is 8",
    ),
    "times only as a network was loaded": (
        MeasuredAtLoad,
        CHANGED,
        "PERF_COUNT, set to True on a network that was loaded with False: whether the next run has times of nodes: expected True",
    ),
    "a default that follows what was set": (Remembering, BACK, "MODE, set to 'FAST' and taken back by None: expected 'SAFE'"),
    "`from_host` that aliases": (
        lambda: Aliasing("PLANTED"),
        "memory.from_host_copies",
        "`from_host` gives the host's own array away",
    ),
    "`to_host` that aliases": (
        lambda: GivingAway("PLANTED"),
        "memory.to_host_copies",
        "`to_host` gives the device's own memory away",
    ),
    "two memories of one name": (
        lambda: OneName("PLANTED"),
        "memory.one_name_is_one_memory",
        "the ids 0 and 1 both name their memory 'card', so that arrays go from one to the other as they are",
    ),
    "steps as a list": (lambda: steps_that(list), STANDS, "returned list from executed_nodes; expected a tuple of ExecutedNode"),
    "steps for nodes that are not there": (
        lambda: steps_that(lambda nodes: tuple(replace(node, origins=(f"fused_{node.name}",)) for node in nodes)),
        STANDS,
        "stands for ['fused_first'], which are no nodes of the network",
    ),
    "a step left out": (lambda: steps_that(lambda nodes: nodes[-1:]), STANDS, "has steps for ['second'] and none for ['first']"),
    "steps under other names than times": (
        lambda: steps_that(lambda nodes: tuple(replace(node, name=f"kernel {node.name}") for node in nodes)),
        TIMES,
        "no step of the executed graph of 'chain' has a time",
    ),
    "a blob for one id of several": (
        BoundToId,
        ARCHITECTURE,
        "a blob of PLANTED for 'PLANTED', imported on PLANTED.1, which states the same architecture: the driver refuses this code",
    ),
    "a blob for one id of several, in silence": (
        SilentlyBoundToId,
        ARCHITECTURE,
        "a blob of PLANTED for 'PLANTED', imported on PLANTED.1",
    ),
    "imports what was exported last": (LastExported, STREAM, "blob 2 of 4 in one stream, that of 'fork'"),
    "open sizes lost by import": (Fixing, DESCRIBED, "input_info of 'dynamic', imported"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught_by_a_check_that_names_it(fault: str) -> None:
    plant, name, message = FAULTS[fault]
    failed = list_failed(plant(), name)
    assert list(failed) == [name]
    assert message in failed[name]


@pytest.mark.parametrize("device", [TwoArchitectures, Telling])
def test_ids_of_one_and_of_several_architectures_pass(device: Callable[[], object]) -> None:
    assert list_failed(device(), ARCHITECTURE) == {}
