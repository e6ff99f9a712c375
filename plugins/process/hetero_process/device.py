"""The PROCESS device; the link to a child process, with a lane for each request; and the carrier of operations and arrays over it.

A thread that waits polls now and then whether its caller has given up. A child that does not answer within GRACE seconds from then on
is ended.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from weakref import WeakSet

from hetero_core.contract import CancelToken, ConfigKey, DeviceName, RunContext, freeze_mapping
from hetero_core.errors import DeviceCrashedError, DeviceUnavailableError
from hetero_core.network.types import HOST
from hetero_core.remote.device import RemoteDevice
from hetero_core.remote.failures import restore_failure
from hetero_core.remote.host import restore_times
from hetero_core.remote.succession import GRACE, Link, Session, Succession
from hetero_core.remote.values import dump_value, load_value
from hetero_core.runtime.executors import call_in_child
from hetero_process import channel as messages
from hetero_process.segments import Reader, Writer

_POLL = 50
"""Milliseconds between two checks whether the caller has given up."""


@dataclass(eq=False, slots=True)
class _Lane:
    """A channel to a thread of the child, for sequential requests; `requests` counts them."""

    channel: messages.Channel
    number: int
    requests: int = 0


class ProcessLink(Link):
    """The parent's connection to a child process."""

    def __init__(self, device: str, place: str, python: str, memory: int) -> None:
        super().__init__(device)
        self._place = place
        self._python = python
        self._has_answered = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline, writer = os.pipe2(os.O_CLOEXEC)
        self._lifeline = io.FileIO(writer, "w")
        self._notes = messages.open_block(bytes(messages.NOTES))
        passed = theirs.fileno(), lifeline, self._notes.fileno()
        environment = dict(os.environ)
        if not python:
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        try:
            self._process = subprocess.Popen(
                [python or sys.executable, "-m", "hetero_process.child", *map(str, (*passed, memory)), device],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._lifeline.close()
            self._notes.close()
            ours.close()
            raise DeviceCrashedError(
                f"cannot start a process for device {device} with '{python}': {error.strerror or error}"
            ) from error
        finally:
            theirs.close()
            os.close(lifeline)
        self._control = ours
        self._lanes: list[_Lane] = []
        self._free: deque[_Lane] = deque()
        self._last_node = ""
        _links.add(self)

    def request(
        self,
        kind: int,
        text: bytes,
        files: Sequence[int] = (),
        *,
        what: str,
        token: CancelToken | None = None,
        end_of_wait: float | None = None,
    ) -> tuple[bytes, tuple[int, ...]]:
        """Sends a request and returns the text of its answer, and its descriptors. `what` is the request in messages; the wait for the
        answer ends at `end_of_wait`, on the clock of `time.monotonic`.

        Raises: the child's error; DeviceCrashedError if the child is gone; DeadlineExceededError if it had to be ended for this request.
        """
        try:
            lane = self._free.pop()
        except IndexError:
            lane = self._open_lane()
        try:
            lane.requests += 1
            lane.channel.send(lane.requests, kind, text, files)
            self.await_answer(lane, what, token, end_of_wait)
            answer = lane.channel.receive()
        except OSError:
            answer = None
        except BaseException:  # an interrupt: the answer has yet to arrive, so the lane cannot be reused
            lane.channel.close()
            raise
        if answer is None:
            lane.channel.close()
            self._bury()
            raise self.convert_end(lane, self._describe_end(what))
        self._free.append(lane)
        self._has_answered = True
        if self.is_dead:
            self._close_lanes()
        _, answered, reply, received = answer
        if answered == messages.FAILURE:
            raise restore_failure(load_value(reply), f"by device {self._device} {self._place}")
        return reply, received

    def call(
        self, question: tuple[str, Any], bulk: Sequence[Any], token: CancelToken | None, end_of_wait: float | None
    ) -> tuple[Any, Sequence[Any]]:
        """Returns the child's answer to an operation, and its buffers; tells it of closed requests. Raises: as `request`."""
        with ExitStack() as opened:
            blocks = [opened.enter_context(messages.open_block(buffer)) for buffer in bulk]
            files, what = [block.fileno() for block in blocks], f"answered '{question[0]}'"
            text = dump_value((*question, self.take_forgotten()))
            reply, received = self.request(messages.CALL, text, files, what=what, token=token, end_of_wait=end_of_wait)
        return load_value(reply), tuple(messages.take_block(file) for file in received)

    def _open_lane(self) -> _Lane:
        """Returns a further lane: the number of lanes is the largest number of simultaneous requests so far. Raises: OSError if no
        socket can be had.
        """
        channel, ends = messages.open_lane()
        try:
            with self._lock:
                lane = _Lane(channel, len(self._lanes))
                self._lanes.append(lane)
            self._tell(messages.LANE, lane, ends)
        finally:
            for end in ends:
                os.close(end)
        return lane

    def _tell(self, kind: int, lane: _Lane, ends: Sequence[int] = ()) -> None:
        """Sends a message on the control channel. A child that is gone does not answer on the lane either."""
        with suppress(OSError), self._lock:
            socket.send_fds(self._control, [messages.CONTROL.pack(kind, lane.number, lane.requests)], ends)

    def _close_lanes(self) -> None:
        """Closes the free lanes; a lane in use is closed by its request."""
        with suppress(IndexError):
            while True:
                self._free.pop().channel.close()

    def is_answered(self, request: _Lane) -> bool:
        """Says whether the answer is there, or the child is gone."""
        return bool(request.channel.wait(_POLL)) or self.is_dead

    def cancel(self, request: _Lane) -> None:
        """Tells the child that the request of a lane is abandoned."""
        self._tell(messages.CANCEL, request)

    def kill(self) -> None:
        """Ends the child at once."""
        self._process.kill()
        self._bury()

    def _bury(self, reason: str = "") -> None:
        """Waits for the ended child, and records the reason for its end."""
        try:
            status = self._process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self.note_end(reason or _describe_status(status))
        with self._lock:
            if not self._notes.closed:
                self._last_node = os.pread(self._notes.fileno(), messages.NOTES, 0).partition(b"\0")[0].decode(errors="replace")
                self._notes.close()
            self._lifeline.close()

    def _describe_end(self, what: str) -> str:
        is_bare = self._python and not self._has_answered
        hint = f"; '{self._python}' has to have hetero-process and the packages of the device" if is_bare else ""
        node = f"; the last node that began is {self._last_node}" if self._last_node else ""
        return f"device {self._device} in process {self._process.pid} {self._end} while it {what}{node}{hint}"

    def close(self) -> None:
        """Lets the child end, and waits for it; a child that hangs is ended."""
        with suppress(OSError):  # the child may have gone before
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        if not self._end:
            self._bury("was closed")
        self._close_lanes()

    def drop(self) -> None:
        """Closes the child's descriptors in a forked process, since these would keep the child alive after the parent's end."""
        self._lifeline.close()
        self._notes.close()
        self._control.close()
        for lane in self._lanes:
            lane.channel.close()


_links: WeakSet[ProcessLink] = WeakSet()


# In a forked process, the descriptors of the child would keep it alive after the parent's end.
call_in_child(lambda: list(map(ProcessLink.drop, list(_links))))


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


class ProcessCarrier(Succession[ProcessLink]):
    """Carries operations to a child."""

    memory = HOST
    copies_metric = "PROCESS_COPIED_BYTES"

    def __init__(self, device: str, python: str, memory: int) -> None:
        super().__init__(device)
        self._python = python
        self._limit = memory

    @property
    def place(self) -> str:
        """Names the environment if it is not the caller's."""
        return f"in a process of '{self._python}'" if self._python else "in another process"

    def start(self) -> ProcessLink:
        """Starts a child."""
        return ProcessLink(self._device, self.place, self._python, self._limit)

    def open_session(self, loaded: tuple[ProcessLink, int], token: CancelToken) -> ProcessSession:
        """Returns the near end of a request on a network of the child."""
        session = ProcessSession(self, loaded)
        self.call("open_session", session.number, session.network, token=token)
        return session


class ProcessSession(Session[ProcessLink]):
    """A request: this process writes its inputs into a block, the child its outputs."""

    def __init__(self, carrier: ProcessCarrier, loaded: tuple[ProcessLink, int]) -> None:
        super().__init__(carrier, loaded)
        kinds = range((messages.NOTED | messages.MEASURED) + 1)
        self._heads = [messages.SESSION.pack(self.number, kind) for kind in kinds]
        self._writer, self._reader = Writer(), Reader()

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs as views of the child's block. Raises: the child's error; DeviceCrashedError."""
        profile = context.profile
        kind = (messages.NOTED if context.limits is not None else 0) | (messages.MEASURED if profile is not None else 0)
        began = 0.0 if profile is None else perf_counter()
        text, file, shared = self._writer.place(inputs)
        copied = self._writer.copied_bytes
        if profile is not None:
            profile.add_transfer("inputs", copied, perf_counter() - began, begin=began, source="host", targets=(profile.device,))
        try:
            sent = shared if file is None else (file, *shared)
            text, files = self.link.request(messages.RUN, self._heads[kind] + text, sent, what="ran a network", token=context.token)
        finally:
            if file is not None:
                os.close(file)
        self.carrier.note_success()
        timed, copied_there = messages.RUN_HEAD.unpack_from(text)
        self.copied_bytes = copied + copied_there
        end = messages.RUN_HEAD.size + timed
        if profile is not None and timed:
            restore_times(profile, load_value(text[messages.RUN_HEAD.size : end]))
        return self._reader.read(text[end:], files)


DEVICE_KEY = "PROCESS_DEVICE"
PYTHON_KEY = "PROCESS_PYTHON"
MEMORY_KEY = "PROCESS_MEMORY_LIMIT"


class ProcessDevice(RemoteDevice[ProcessCarrier]):
    """Devices in processes of their own: a process for each combination of text behind the colon, Python and memory limit."""

    title = "PROCESS: a device in a process of its own"
    where = "in a process of its own"
    own_keys: Mapping[str, ConfigKey] = freeze_mapping(
        {
            DEVICE_KEY: ConfigKey(
                str, None, "The device that runs in the process, as behind the colon of PROCESS:ORT.", is_arguments=True
            ),
            PYTHON_KEY: ConfigKey(str, "", "The Python of another environment, whose devices are used; empty: this one."),
            MEMORY_KEY: ConfigKey(int, 0, "The bytes of private memory that the process may hold; 0: no limit.", least=0),
        }
    )

    def __init__(self, name: str) -> None:
        if not hasattr(os, "memfd_create"):
            raise DeviceUnavailableError(
                f"device {name} shares memory by memfd_create, which Linux alone has; use the device itself here"
            )
        super().__init__()

    def locate(self, device: DeviceName, config: Mapping[str, Any] | None) -> tuple[str, str, int]:
        """The device behind the colon, the Python and the limit of memory."""
        return (device.arguments, "", 0) if config is None else (device.arguments, config[PYTHON_KEY], config[MEMORY_KEY])

    def connect(self, *place: Any) -> ProcessCarrier:
        """A carrier to a process."""
        return ProcessCarrier(*place)
