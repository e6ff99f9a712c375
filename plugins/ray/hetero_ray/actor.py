"""The far end: an actor on a node, which hosts a Core with a device. Ray makes it from the installed package; no code travels.

An answer is (whether it is good, a text, references). Every argument is plain: a text that `remote.values` wrote, and references.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import ray

from hetero_core import Core
from hetero_core.contract import CancelToken
from hetero_core.remote.failures import describe_failure
from hetero_core.remote.host import Host, HostSession
from hetero_core.remote.values import dump_value, load_value
from hetero_ray.arrays import RayArray, get_arrays, pack_values, put_array, put_buffer, unpack_values

Answer = tuple[bool, bytes, list[Any]]
THREADS = 16
"""The number of calls that an actor answers at the same time."""


class HostActor:
    """Answers on the threads of the actor; `cancel` has a thread of its own."""

    def __init__(self, device: str) -> None:
        # The driver limits how long an answer may take.
        self._host = Host(Core(device_timeout=None), device)
        self._sessions: dict[int, HostSession] = {}
        self._tokens: dict[int, CancelToken] = {}

    def call(self, number: int, text: bytes, refs: Sequence[Any]) -> Answer:
        """Answers an operation of the host; its buffers are behind the references."""
        try:
            operation, arguments = load_value(text)
            result, buffers = self._host.answer(operation, arguments, [memoryview(buffer) for buffer in ray.get(list(refs))])
            return True, dump_value(result), [put_buffer(buffer) for buffer in buffers]
        except BaseException as error:  # noqa: BLE001  # raised again in the driver
            return False, dump_value(describe_failure(error)), []

    def run(self, number: int, text: bytes, refs: Sequence[Any]) -> Answer:
        """Runs a network for a request; its outputs stay in the store of this node."""
        began, token = perf_counter(), self._tokens.setdefault(number, CancelToken())
        try:
            request, network, forgotten, measures, places = load_value(text)
            for session in forgotten:
                self._sessions.pop(session, None)
            session = self._sessions.get(request)
            if session is None:
                session = self._sessions[request] = self._host.open_session(network)
            inputs = read_inputs(unpack_values(places, refs))
            outputs, times = session.run(inputs, None, token, measures=measures)
            # Arrays of numbers lie in the store; texts and sequences travel with the message.
            specs = session.network.all_outputs
            stored = [
                value if spec.dtype in (None, "string") else put_array(value) for spec, value in zip(specs, outputs, strict=True)
            ]
            answer, references = pack_values(stored)
            return True, dump_value((began, times, answer)), references
        except BaseException as error:  # noqa: BLE001  # as above
            return False, dump_value(describe_failure(error)), []
        finally:
            self._tokens.pop(number, None)

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]  # Ray has no types
    def cancel(self, number: int) -> None:
        """Cancels a run that is under way or to come."""
        self._tokens.setdefault(number, CancelToken()).is_set = True


def read_inputs(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns values with references replaced by arrays of the store."""
    stored = [value for value in values if isinstance(value, RayArray)]
    arrays = iter(get_arrays(stored))
    return tuple(next(arrays) if isinstance(value, RayArray) else value for value in values)


def list_devices() -> tuple[str, ...]:
    """Returns the devices that are installed on this node and work."""
    with Core() as core:
        return tuple(name for name in core.available_devices if not name.startswith("RAY"))
