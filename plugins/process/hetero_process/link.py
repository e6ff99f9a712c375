"""The parent's end: starts the child, sends requests, and waits. Each request has a lane for itself.

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
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakSet

from hetero_core.contract import CancelToken
from hetero_core.errors import DeviceCrashedError
from hetero_core.remote.succession import GRACE, Link
from hetero_core.runtime.executors import call_in_child
from hetero_process.channel import CANCEL, CONTROL, LANE, NOTES, Channel, Message, open_block, open_lane

_POLL = 50
"""Milliseconds between two checks whether the caller has given up."""


class _Lane:
    """A channel to a thread of the child, for sequential requests."""

    __slots__ = ("channel", "number", "requests")

    def __init__(self, channel: Channel, number: int) -> None:
        self.channel = channel
        self.number = number
        self.requests = 0


class ProcessLink(Link):
    """The parent's connection to a child process."""

    def __init__(self, device: str, python: str, memory: int) -> None:
        super().__init__(device)
        self._python = python
        self._has_answered = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lifeline, lifeline = _open_lifeline()
        self._notes = open_block(bytes(NOTES))
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
    ) -> Message:
        """Sends a request and returns its answer. `what` is the request in messages; the wait for the answer ends at `end_of_wait`,
        on the clock of `time.monotonic`.

        Raises: DeviceCrashedError if the child is gone; DeadlineExceededError if it had to be ended for this request.
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
        return answer

    def _open_lane(self) -> _Lane:
        """Returns a further lane: the number of lanes is the largest number of simultaneous requests so far. Raises: OSError if no
        socket can be had.
        """
        channel, ends = open_lane()
        try:
            with self._lock:
                lane = _Lane(channel, len(self._lanes))
                self._lanes.append(lane)
            self._tell(LANE, lane, ends)
        finally:
            for end in ends:
                os.close(end)
        return lane

    def _tell(self, kind: int, lane: _Lane, ends: Sequence[int] = ()) -> None:
        """Sends a message on the control channel. A child that is gone does not answer on the lane either."""
        with suppress(OSError), self._lock:
            socket.send_fds(self._control, [CONTROL.pack(kind, lane.number, lane.requests)], ends)

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
        self._tell(CANCEL, request)

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
                self._last_node = os.pread(self._notes.fileno(), NOTES, 0).partition(b"\0")[0].decode(errors="replace")
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


def _drop_links() -> None:
    for link in list(_links):
        link.drop()


call_in_child(_drop_links)


def _open_lifeline() -> tuple[io.FileIO, int]:
    """Returns the two ends of a pipe: ours, which is not inherited, and the child's."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    return io.FileIO(writer, "w"), reader


def _describe_status(status: int) -> str:
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"ended by {name}"
    return f"exited with status {status}"
