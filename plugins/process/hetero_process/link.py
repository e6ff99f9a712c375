"""The parent's end: starts the child, sends requests, and waits; whoever waits reads, for itself and for the others.

A thread that waits polls now and then whether its caller has given up. A child that does not answer within GRACE seconds from then on
is ended.
"""

from __future__ import annotations

import io
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from time import monotonic
from weakref import WeakSet

from hetero_core.contract import CancelToken
from hetero_core.errors import DeadlineExceededError, DeviceCrashedError
from hetero_core.remote.mirror import HostReplacedError
from hetero_core.runtime.forks import call_in_child
from hetero_process.channel import CANCEL, Channel, Message

GRACE = 1.0
"""Seconds that a child has to give up what nobody waits for any more."""
_POLL = 0.05
"""Seconds between two looks at whether the caller has given up."""


class _Waiting:
    """A request that waits for its answer: it is woken when the answer is here, or when it is its turn to read."""

    __slots__ = ("answer", "event", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.answer: Message | None = None
        self.event = threading.Event()


class Link:
    """One child process. Safe for threads."""

    def __init__(self, device: str, python: str, memory: int) -> None:
        self._device = device
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lifeline, lifeline = _open_lifeline()
        environment = dict(os.environ)
        if not python:
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        try:
            self._process = subprocess.Popen(
                [python or sys.executable, "-m", "hetero_process.child", str(theirs.fileno()), str(lifeline), str(memory), device],
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._lifeline.close()
            ours.close()
            raise DeviceCrashedError(
                f"cannot start a process for device {device} with '{python}': {error.strerror or error}"
            ) from error
        finally:
            theirs.close()
            os.close(lifeline)
        self._channel = Channel(ours)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._is_read = False
        self._poll = select.poll()
        self._poll.register(self._channel.fileno(), select.POLLIN)
        self._end = ""
        self._culprit: int | None = None
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

        Raises: DeviceCrashedError where the child is gone; DeadlineExceededError where it had to be ended for this request.
        """
        number, waiting = next(self._numbers), _Waiting(what)
        with self._lock:
            if self._end:
                raise self._describe_end(what, is_bystander=self._culprit is not None)
            self._waiting[number] = waiting
        try:
            self._channel.send(number, kind, text, files)
        except OSError:
            self._bury()
        self._await(number, waiting, token, None if end_of_wait is None else end_of_wait + GRACE)
        answer = waiting.answer
        if answer is None and self._culprit == number:
            raise DeadlineExceededError(str(self._describe_end(what)))
        if answer is None:
            raise self._describe_end(what, is_bystander=self._culprit is not None)
        return answer

    def _await(self, number: int, waiting: _Waiting, token: CancelToken | None, limit: float | None) -> None:
        """Waits until the answer is here or the child is gone; reads while nobody else does."""
        is_told = False
        while waiting.answer is None and not self._end:
            with self._lock:
                is_reader = not self._is_read and waiting.answer is None
                self._is_read |= is_reader
            if is_reader:
                try:
                    self._read_once()
                finally:
                    self._pass_on()
            else:
                waiting.event.wait(_POLL)
                waiting.event.clear()
            if token is not None and token.is_set and not is_told and waiting.answer is None:
                is_told, limit = True, monotonic() + GRACE
                self._tell_cancel(number)
            if limit is not None and monotonic() > limit and waiting.answer is None:
                self.kill(f"it did not answer in time while it {waiting.what}", culprit=number)
        with self._lock:
            self._waiting.pop(number, None)

    def _tell_cancel(self, number: int) -> None:
        try:
            self._channel.send(number, CANCEL)
        except OSError:
            self._bury()

    def _read_once(self) -> None:
        """Waits a moment for a message, and gives it to whoever waits for it."""
        try:
            if not self._poll.poll(_POLL * 1000):
                return
            message = self._channel.receive()
        except (OSError, ValueError):
            message = None
        if message is None:
            self._bury()
            return
        with self._lock:
            waiting = self._waiting.get(message.number)
            if waiting is not None:
                waiting.answer = message
                waiting.event.set()
                return
        for file in message.files:
            os.close(file)

    def _pass_on(self) -> None:
        """Lets another one who waits read."""
        with self._lock:
            self._is_read = False
            following = next((one for one in self._waiting.values() if one.answer is None), None)
        if following is not None:
            following.event.set()

    def kill(self, reason: str, *, culprit: int) -> None:
        """Ends the child at once because of a request; the others that are under way are told that it was not theirs."""
        with self._lock:
            if not self._end:
                self._culprit, self._end = culprit, f"was ended: {reason}"
        self._process.kill()
        self._bury()

    def _bury(self, reason: str = "") -> None:
        """Notes that the child is gone, and why, and wakes all who wait for it."""
        try:
            status = self._process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        with self._lock:
            if not self._end:
                self._end = reason or _describe_status(status)
            self._lifeline.close()
            waiting = list(self._waiting.values())
        for one in waiting:
            one.event.set()

    def _describe_end(self, what: str, *, is_bystander: bool = False) -> DeviceCrashedError:
        kind = HostReplacedError if is_bystander else DeviceCrashedError
        return kind(f"device {self._device} in process {self._process.pid} {self._end} while it {what}")

    def close(self) -> None:
        """Lets the child end, and waits for it; one that hangs is ended."""
        self._channel.close()
        if not self._end:
            self._bury("was closed")

    def drop(self) -> None:
        """Closes what this process holds of the child. A fork would keep it alive after the parent's end."""
        self._lifeline.close()
        self._channel.drop()


_links: WeakSet[Link] = WeakSet()


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
