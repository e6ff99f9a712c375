"""The mirror: a device here that stands for a device elsewhere; each hook is a single operation of the host.

    caller ──> RemoteExecutable.run ──> Session (of the carrier) ──> HostSession.run ──> the device's executable
                                                              <── outputs, times, or the error with its type

A carrier that has lost its host raises DeviceCrashedError, and starts another host for the next call: a network that was loaded on an
earlier host is loaded again, from its packed form or its blob, before its next run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hetero_core.contract import CancelToken, Executable, Payload, RunContext
from hetero_core.errors import DeviceCrashedError
from hetero_core.executed import ExecutedNode
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.remote.host import restore_steps
from hetero_core.remote.succession import HostReplacedError, Session, Succession, call_again

BLOB = "blob"
"""The section of a payload that holds the blob of the remote device."""


class RemoteExecutable(Executable):
    """A network on a host. Reloads the network if the host was replaced."""

    def __init__(self, carrier: Succession[Any], load: Callable[[CancelToken | None], dict[str, Any]]) -> None:
        self._carrier = carrier
        self._load = load
        self._lock = threading.Lock()
        self._loaded: tuple[int, int] = (-1, 0)
        self._copied_bytes, self._count_lock = 0, threading.Lock()
        fields = call_again(lambda: self._load_now(None))
        self.inputs = tuple(_place(spec, carrier.memory) for spec in fields["inputs"])
        self.outputs = tuple(_place(spec, carrier.memory) for spec in fields["outputs"])
        self.pipeline_depth = fields["depth"]
        self._metrics = fields["metrics"]

    def _load_now(self, token: CancelToken | None) -> dict[str, Any]:
        generation = self._carrier.prepare()
        fields = self._load(token)
        self._loaded = generation, fields["number"]
        return fields

    def find_number(self, token: CancelToken | None = None) -> tuple[int, int]:
        """Returns the generation of the host, and the number of the network there; loads it if it is not there, for the run of `token`."""
        generation, loaded = self._carrier.prepare(), self._loaded
        if loaded[0] == generation:
            return loaded
        with self._lock:
            if self._loaded[0] != self._carrier.prepare():
                self._load_now(token)
            return self._loaded

    def create_state(self) -> RemoteState:
        """Returns the near end of a request; the far end is opened with its first run."""
        return RemoteState()

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by position, in memory that the next run of the context writes again.

        Raises: the error of the device; DeviceCrashedError if its host ended in this run.
        """
        # Same as `call_again`, inlined because that takes a microsecond.
        while True:
            try:
                return self._run_once(inputs, context)
            except HostReplacedError:
                continue

    def _run_once(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        state: Any = context.state
        loaded = self._loaded
        if not self._carrier.has_host(loaded[0]):
            loaded = self.find_number(context.token)
        if state.session is None or state.loaded is not loaded:
            state.session, state.loaded = self._carrier.open_session(loaded[1], self.outputs, context.token), loaded
        session: Session = state.session
        try:
            outputs = session.run(inputs, context)
        except BaseException:
            # An interrupt, or a lost answer: the run may still be under way at the far end.
            state.session = None
            session.close()
            raise
        if session.copied_bytes:
            with self._count_lock:
                self._copied_bytes += session.copied_bytes
        return outputs

    def metrics(self) -> Mapping[str, Any]:
        """The metrics of the network at its host, asked for when they are read, and the count of copied bytes."""
        own = {self._carrier.copies_metric: self._copied_bytes} if self._carrier.copies_metric else {}
        return {**{name: self._ask_metric(name) for name in self._metrics}, **own}

    def _ask_metric(self, name: str) -> Callable[[], Any]:
        return lambda: self._call("network_metric", name)[0]

    def _call(self, operation: str, *arguments: Any) -> tuple[Any, Sequence[Any]]:
        """Returns the host's answer about this network."""
        return call_again(lambda: self._carrier.call(operation, self.find_number()[1], *arguments))

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of the device at the host."""
        return restore_steps(self._call("executed")[0])

    def export(self) -> Payload:
        """Returns the blob that the host's device exports; the host has marked its sections of code, so that an import without
        trust refuses them.
        """
        _, (blob,) = self._call("export")
        return Payload({BLOB: bytes(blob)})

    def close(self) -> None:
        """Lets the host free the network, if it still has it."""
        generation, number = self._loaded
        if self._carrier.has_host(generation):
            with suppress(DeviceCrashedError):  # a host that is gone has freed it
                self._carrier.call("close", number)


def _place(spec: ValueSpec, memory: str) -> ValueSpec:
    """Names the memory of an input or output; texts and sequences travel with the messages."""
    return ValueSpec(spec.name, spec.type, HOST if spec.dtype in (None, "string") else memory)


class RemoteState:
    """The near end of a request: its session and its network."""

    __slots__ = ("loaded", "session")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.loaded: tuple[int, int] | None = None

    def __del__(self) -> None:
        if self.session is not None:
            self.session.close()
