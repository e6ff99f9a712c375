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
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from weakref import WeakSet

from hetero_core.contract import CancelToken
from hetero_core.errors import DeadlineExceededError, DeviceCrashedError
from hetero_core.remote.succession import HostReplacedError
from hetero_core.runtime.executors import call_in_child
from hetero_process.channel import CANCEL, CONTROL, LANE, NOTES, Channel, Message, open_block, open_lane

GRACE = 1.0
"""Seconds that a child has to give up what nobody waits for any more."""
_POLL = 50
"""Milliseconds between two looks at whether the caller has given up."""


class _Lane:
    """A channel to a thread of the child of its own: one request after the other."""

    __slots__ = ("channel", "number", "requests")

    def __init__(self, channel: Channel, number: int) -> None:
        self.channel = channel
        self.number = number
        self.requests = 0


class ProcessLink:
    """One child process. Safe for threads."""

    def __init__(self, device: str, python: str, memory: int) -> None:
        self._device, self._python = device, python
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
        self._lock = threading.Lock()
        self._lanes: list[_Lane] = []
        self._free: deque[_Lane] = deque()
        self._end = self._last_node = ""
        self._culprit: object = None
        _links.add(self)

    @property
    def is_ended_by_us(self) -> bool:
        """Says whether the child was ended because it hung; it did not crash."""
        return self._culprit is not None

    @property
    def is_dead(self) -> bool:
        """Says whether the child has been seen to be gone."""
        return bool(self._end)

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
        """Sends a request and returns its answer. `what` is the request in messages; nobody waits for the answer after `end_of_wait`,
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
            answer = self._await(lane, what, token, None if end_of_wait is None else end_of_wait + GRACE)
        except OSError:
            answer = None
        except BaseException:  # an interrupt: the answer is still to come, and the lane is of no use for another request
            lane.channel.close()
            raise
        if answer is None:
            lane.channel.close()
            self._bury()
            if self._culprit is lane:
                raise DeadlineExceededError(str(self._describe_end(what)))
            raise self._describe_end(what, is_bystander=self._culprit is not None)
        self._free.append(lane)
        self._has_answered = True
        if self._end:
            self._close_lanes()
        return answer

    def _open_lane(self) -> _Lane:
        """Returns a further lane: there are as many as there have been requests at once. Raises: OSError if no socket can be had."""
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
        """Sends a message on the control channel. Where nobody reads any more, nobody answers on the lane either, which says so."""
        with suppress(OSError), self._lock:
            socket.send_fds(self._control, [CONTROL.pack(kind, lane.number, lane.requests)], ends)

    def _close_lanes(self) -> None:
        """Closes the lanes that are free; the others are closed by the requests that have them."""
        with suppress(IndexError):
            while True:
                self._free.pop().channel.close()

    def _await(self, lane: _Lane, what: str, token: CancelToken | None, limit: float | None) -> Message | None:
        """Returns the answer, None if the child is gone. Raises: OSError if its end is."""
        is_told = False
        while True:
            if lane.channel.wait(_POLL):
                return lane.channel.receive()
            if self._end:
                return None
            if token is not None and token.is_set and not is_told:
                is_told, limit = True, monotonic() + GRACE
                self._tell(CANCEL, lane)
            if limit is not None and monotonic() > limit:
                self.kill(f"it did not answer in time while it {what}", culprit=lane)
                return None

    def kill(self, reason: str, *, culprit: object) -> None:
        """Ends the child at once because of a request; the others that are under way are told that it was not theirs."""
        with self._lock:
            if not self._end:
                self._culprit, self._end = culprit, f"was ended: {reason}"
        self._process.kill()
        self._bury()

    def _bury(self, reason: str = "") -> None:
        """Waits for the child that is gone, and notes why it is."""
        try:
            status = self._process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        with self._lock:
            if not self._end:
                self._end = reason or _describe_status(status)
            if not self._notes.closed:
                self._last_node = os.pread(self._notes.fileno(), NOTES, 0).partition(b"\0")[0].decode(errors="replace")
                self._notes.close()
            self._lifeline.close()

    def _describe_end(self, what: str, *, is_bystander: bool = False) -> DeviceCrashedError:
        kind = HostReplacedError if is_bystander else DeviceCrashedError
        is_bare = self._python and not self._has_answered
        hint = f"; '{self._python}' has to have hetero-process and the packages of the device" if is_bare else ""
        node = f"; the last node that began is {self._last_node}" if self._last_node else ""
        return kind(f"device {self._device} in process {self._process.pid} {self._end} while it {what}{node}{hint}")

    def close(self) -> None:
        """Lets the child end, and waits for it; one that hangs is ended."""
        with suppress(OSError):  # the child may have gone before
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        if not self._end:
            self._bury("was closed")
        self._close_lanes()

    def drop(self) -> None:
        """Closes what this process holds of the child. A fork would keep it alive after the parent's end."""
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
    """Returns the two ends of a pipe: ours, which nobody inherits, and the child's."""
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
