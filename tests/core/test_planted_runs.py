"""Faults of `start`, of exports, times and lifetime, planted in a device that is otherwise without one; a check names each."""

from __future__ import annotations

import gzip
import io
import pickle
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import pytest
from hetero_tests.planted import device_with, list_failed

from hetero_core import Executable, Network, RunContext, hookimpl
from hetero_core.conformance import contract_start
from hetero_core.contract import ConfigKey, DeviceName, Done, Payload
from hetero_core.network.writer import unpack_network
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable


class Queued(PlainExecutable):
    """Starts runs on a queue of its own and tells their ends as it should."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._queue = ThreadPoolExecutor(max_workers=1)

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        self._queue.submit(self.run_started, inputs, context, done)

    def run_started(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        try:
            if context.limits is not None:
                context.limits.enter("")
                context.limits.hold(inputs)
            outputs = self.run(inputs, context)
        except BaseException as error:  # noqa: BLE001  # whoever waits is told of every end
            done(None, error)
        else:
            done(outputs, None)

    def close(self) -> None:
        self._queue.shutdown(wait=False)


class Twice(Queued):
    def run_started(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        super().run_started(inputs, context, done)
        done(None, RuntimeError("told again"))


class NeverAfterAnError(Queued):
    """Counts no memory, so that the core ends a run that exceeds a limit; of its own errors it says nothing."""

    def run_started(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        try:
            outputs = self.run(inputs, context)
        except ValueError:
            return
        done(outputs, None)


class NeverAfterALimit(Queued):
    def run_started(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        super().run_started(inputs, context, lambda outputs, error: done(outputs, None) if error is None else None)


class Never(Queued):
    def run_started(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        self.run(inputs, context)


class Blocking(Queued):
    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        self.run_started(inputs, context, done)


class Waiting(Queued):
    """Computes on its queue and waits there for the end."""

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        self._queue.submit(self.run_started, inputs, context, done).result()


class Dropping(Queued):
    """Keeps the first run until it is closed, and forgets it then."""

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        self._waiting = (inputs, context, done)

    def close(self) -> None:
        del self._waiting
        super().close()


class NeverAfterACancellation(Queued):
    """Looks, when a run's turn has come, whether it was cancelled, and forgets it then."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._first = threading.Event()

    def run_started(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        self._first.wait(0.1)
        if not context.cancelled():
            super().run_started(inputs, context, done)


class Immortal(PlainExecutable):
    everyone: ClassVar[list[PlainExecutable]] = []

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.everyone.append(self)


class Milliseconds(PlainExecutable):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        began = perf_counter()
        outputs = super().run(inputs, RunContext(context.state, outputs=context.outputs, token=context.token))
        if context.profile is not None:
            context.profile.add(self.network.nodes[0], (perf_counter() - began) * 1000)
        return outputs


def export_with(pack: Callable[[object], bytes]) -> type[PlainDevice]:
    """Returns a device that exports something more, packed in this way and not marked as code."""

    class Exporting(PlainDevice):
        @hookimpl
        def export_network(self, executable: PlainExecutable) -> Payload:
            payload = super().export_network(executable)
            return Payload({**payload.sections, "plan": pack({"order": [1, 2, 3]})})

    return Exporting


def save_objects(value: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([value], object), allow_pickle=True)
    return stream.getvalue()


class Rounding(PlainDevice):
    """Computes in the precision that is chosen, and forgets the choice at import."""

    remembers = False

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        return {"ROUNDING": ConfigKey(str, "FULL", "How results are rounded.", choices=("FULL", "HALF"))}

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        executable = super().load_network(device, network)
        return Halved(network) if config["ROUNDING"] == "HALF" else executable

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        config = config if self.remembers else {"ROUNDING": "FULL"}
        return self.load_network(device, unpack_network(payload.sections), config)


class Halved(PlainExecutable):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return tuple(value.astype(np.float16).astype(value.dtype) for value in super().run(inputs, context))


PICKLED = "exporting.pickled_sections_are_marked_as_code"
FAULTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "`done` called twice": (lambda: device_with(Twice), "start.done_is_called_once_for_each_run", "`done` was called twice"),
    "`done` never called": (
        lambda: device_with(Never),
        "start.done_is_called_once_for_each_run",
        "the device has not called `done`",
    ),
    "`done` not called after an error": (
        lambda: device_with(NeverAfterAnError),
        "start.run_that_raises_ends",
        "`done` is not called after an error",
    ),
    "`done` not called after a limit": (
        lambda: device_with(NeverAfterALimit),
        "start.run_that_fails_ends",
        "`done` is not called after an error",
    ),
    "`start` that computes": (
        lambda: device_with(Blocking),
        "start.start_returns_at_once",
        "on the thread of the caller: `start` blocks until it has computed",
    ),
    "`start` that waits": (
        lambda: device_with(Waiting),
        "start.start_returns_at_once",
        "`start_async` does not return before the run has ended",
    ),
    "queue dropped at close": (
        lambda: device_with(Dropping),
        "start.closing_ends_what_was_started",
        "run 0 of a closed network does not end: the device's queue dropped it",
    ),
    "`done` not called after a cancellation": (
        lambda: device_with(NeverAfterACancellation),
        "start.cancelled_run_ends_on_the_device_too",
        "`done` is not called for a run that was cancelled",
    ),
    "executables never freed": (
        lambda: device_with(Immortal),
        "start.closed_network_is_freed",
        "never freed; it is held by list",
    ),
    "times in milliseconds": (
        lambda: device_with(Milliseconds),
        "perf_counts.times_are_in_seconds",
        "times are in seconds, not in milliseconds",
    ),
    "pickle not marked as code": (export_with(pickle.dumps), PICKLED, "section 'plan' is a pickle and not marked as code"),
    "old pickle not marked as code": (
        export_with(lambda value: pickle.dumps(value, 0)),
        PICKLED,
        "section 'plan' is a pickle and not marked as code",
    ),
    "packed pickle not marked as code": (
        export_with(lambda value: gzip.compress(pickle.dumps(value))),
        PICKLED,
        "section 'plan' is gzip of a pickle and not marked as code",
    ),
    "array of objects not marked as code": (
        export_with(save_objects),
        PICKLED,
        "section 'plan' is an array of pickled objects and not marked as code",
    ),
    "configuration lost by import": (Rounding, "exporting.every_choice_comes_with_the_blob", "imported under ROUNDING=HALF"),
}


@pytest.mark.parametrize(("device", "check", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_of_runs_is_named(monkeypatch: pytest.MonkeyPatch, device: Callable[[], Any], check: str, message: str) -> None:
    # The device that does not end a run is waited for no longer than a test may take.
    monkeypatch.setattr(contract_start, "END_SECONDS", 1.0)
    monkeypatch.setattr(contract_start, "BLOCK_SECONDS", 0.5)
    monkeypatch.setattr("hetero_core.runtime.request.CLOSE_SECONDS", 0.2)
    monkeypatch.setattr("hetero_core.runtime.request.CANCEL_SECONDS", 0.1)
    failed = list_failed(device(), check)
    assert list(failed) == [check]
    assert message in failed[check]


def test_queue_without_a_fault_passes() -> None:
    assert list_failed(device_with(Queued), "start.*", "perf_counts.*", "requests.*", "exporting.*") == {}


class EngineMemory(PlainExecutable):
    """Returns arrays whose memory belongs to an engine: NumPy has a capsule of it alone."""

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return tuple(np.from_dlpack(value) for value in super().run(inputs, context))


def test_outputs_in_the_memory_of_an_engine_count_against_the_limit() -> None:
    assert list_failed(device_with(EngineMemory), "start.run_that_fails_ends") == {}


class Remembering(Rounding):
    remembers = True


def test_import_that_remembers_its_choice_passes() -> None:
    assert list_failed(Remembering(), "exporting.*") == {}
