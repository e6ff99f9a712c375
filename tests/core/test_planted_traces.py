"""Faults of what a device leaves behind, and of times, planted in a device that is otherwise without one; a check names each."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from hetero_tests.planted import device_with, list_failed

from hetero_core import Network, RunContext
from hetero_core.conformance import contract_resources as contract_traces
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import make_target, run_checks
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

SETTINGS = "traces.settings_of_the_process_stay"
ENDS = "traces.closed_networks_leave_no_threads_and_files"


class KeepsInputs(PlainExecutable):
    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._inputs: list[Any] = []

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        self._inputs.append(inputs)
        return super().run(inputs, context)


class KeepsCopies(KeepsInputs):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        self._inputs.append([value.copy() for value in inputs])
        return PlainExecutable.run(self, inputs, context)


class EndlessThread(PlainExecutable):
    """Starts a thread that waits for an event, which `close` forgets."""

    events: list[threading.Event]

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        event = threading.Event()
        self.events.append(event)
        threading.Thread(target=event.wait, daemon=True).start()


class OpenFile(PlainExecutable):
    descriptors: list[int]

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.descriptors.append(os.open(os.devnull, os.O_RDONLY))


class Setting(PlainExecutable):
    """Changes a setting of the process when it is loaded."""

    change: Callable[[], object]

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        type(self).change()


def device_that_sets(change: Callable[[], object]) -> Callable[[], PlainDevice]:
    return lambda: device_with(type("Planted", (Setting,), {"change": staticmethod(change)}))


class OneBegin(PlainExecutable):
    """Takes the time once, so that the time of each node is that of all before it, too."""

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        values = {**self._constants, **{spec.name: value for spec, value in zip(self.inputs, inputs, strict=True)}}
        began = perf_counter()
        for node in self.network.nodes:
            values[node.outputs[0]] = self.compute(node, [values[name] for name in node.inputs])
            if context.profile is not None:
                context.profile.add(node, perf_counter() - began)
        return tuple(values.get(spec.name) for spec in self.outputs)


class NoTimes(PlainExecutable):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        outputs = super().run(inputs, RunContext(context.state, outputs=context.outputs, token=context.token))
        for node in self.network.nodes if context.profile is not None else ():
            context.profile.add(node, 0.0, begin=perf_counter())
        return outputs


FAULTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "inputs of all runs kept": (lambda: device_with(KeepsInputs), "traces.runs_keep_no_memory", "copies of them are kept"),
    "copies of all runs kept": (lambda: device_with(KeepsCopies), "traces.runs_keep_no_memory", "copies of them are kept"),
    "threads that never end": (lambda: device_with(EndlessThread), ENDS, "threads more are there than before"),
    "files that are never closed": (lambda: device_with(OpenFile), ENDS, "open files more are there than before"),
    "NumPy's random numbers seeded": (device_that_sets(lambda: np.random.seed(0)), SETTINGS, "the random numbers of NumPy"),
    "random numbers seeded": (device_that_sets(lambda: random.seed(0)), SETTINGS, "the random numbers of random"),
    "errors of NumPy raised": (device_that_sets(lambda: np.seterr(all="raise")), SETTINGS, "np.seterr"),
    "environment changed": (
        device_that_sets(lambda: os.environ.update(PLANTED_THREADS="1")),
        SETTINGS,
        "changed os.environ: PLANTED_THREADS from None to '1'",
    ),
    "working folder changed": (device_that_sets(lambda: os.chdir("/")), SETTINGS, "the working folder"),
    "prints": (device_that_sets(lambda: sys.stdout.write("loaded\n")), SETTINGS, "the device prints to standard output: 'loaded"),
    "times that add up": (
        lambda: device_with(OneBegin),
        "perf_counts.times_of_a_thread_do_not_overlap",
        "its begin is not taken anew, so that times add up",
    ),
    "times that are all 0": (lambda: device_with(NoTimes), "perf_counts.times_are_in_seconds", "and does not measure them"),
}


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores what the planted devices change, and ends what they leave."""
    monkeypatch.setattr(contract_traces, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(EndlessThread, "events", [], raising=False)
    monkeypatch.setattr(OpenFile, "descriptors", [], raising=False)
    environment, folder, states = dict(os.environ), Path.cwd(), (random.getstate(), np.random.get_state())
    yield
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    random.setstate(states[0])
    np.random.set_state(states[1])
    for event in EndlessThread.events:
        event.set()
    for descriptor in OpenFile.descriptors:
        os.close(descriptor)


@pytest.mark.skipif(not contract_traces.PROCESS.exists(), reason="this system does not tell a process's memory, threads and files")
@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("device", "check", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_of_traces_is_named(device: Callable[[], Any], check: str, message: str) -> None:
    failed = list_failed(device(), check)
    assert list(failed) == [check]
    assert message in failed[check]


def test_device_without_a_fault_passes() -> None:
    assert list_failed(PlainDevice(), *{check for _, check, _ in FAULTS.values()}) == {}


MODULE = '''
"""SHELVED: its blobs hold a key of a table that only this process has."""
from hetero_core import hookimpl
from hetero_core.contract import Payload
from hetero_core.testing.plain_device import PlainDevice

TABLE = {}


class Shelved(PlainDevice):
    @hookimpl
    def export_network(self, executable):
        TABLE["7"] = executable.network
        return Payload({"key": b"7"})

    @hookimpl
    def import_network(self, device, payload):
        return self.load_network(device, TABLE[bytes(payload.sections["key"]).decode()])


@hookimpl
def create_device():
    return Shelved()
'''
OF_PROCESSES = {
    "blob that refers to its process": ("exporting.another_process_imports_the_blob", "which refers to what this one holds"),
}
METADATA = "Metadata-Version: 2.1\nName: shelved\nVersion: 1.0\n"


def test_blob_that_refers_to_its_process_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shelved.py").write_text(MODULE)
    about = tmp_path / "shelved-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(METADATA)
    (about / "entry_points.txt").write_text("[hetero_core.devices]\nSHELVED = shelved\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ((check, message),) = OF_PROCESSES.values()
    (outcome,) = run_checks(choose_checks((), [check]), make_target("SHELVED"))
    assert outcome.status == "failed"
    assert message in outcome.reason
