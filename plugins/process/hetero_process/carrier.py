"""What the mirror talks to: one child after the other, each started when it is needed; and the arrays of a request in shared memory."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hetero_core import hookspecs
from hetero_core.contract import CancelToken, RunContext
from hetero_core.devices.provenance import find_core_version
from hetero_core.devices.watch import find_end_of_wait
from hetero_core.errors import DeviceCrashedError, DeviceUnavailableError
from hetero_core.network.types import ValueSpec
from hetero_core.remote.failures import restore_failure
from hetero_core.remote.host import restore_times
from hetero_core.remote.mirror import Description, describe_remote
from hetero_core.remote.values import dump_value, load_value
from hetero_process.channel import CALL, FAILURE, RUN, Message, open_block, take_block
from hetero_process.link import Link
from hetero_process.segments import Reader, Writer

logger = logging.getLogger(__name__)

_MOST_CRASHES = 2
"""Crashes with no run between them that succeeded; after so many the device is given up."""


class ProcessCarrier:
    """Carries operations to a child. A child that is gone is followed by another one, until it was in vain."""

    def __init__(self, device: str, python: str, memory: int) -> None:
        self._device = device
        self._python = python
        self._memory = memory
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._crashes = 0
        self._generation = 0
        self._sessions = itertools.count(1)
        self._forgotten: deque[tuple[int, Link]] = deque()
        self._description: Description | None = None

    def describe(self) -> Description:
        """Returns what the child tells of its device, asked once.

        Raises: DeviceUnavailableError where the other environment has another hetero-core; what the child raises.
        """
        if self._description is None:
            description = describe_remote(self)
            if description.core_version != find_core_version() or description.api != hookspecs.API:
                raise DeviceUnavailableError(
                    f"device {self._device} in '{self._python}' has hetero-core {description.core_version} with API {description.api}; "
                    f"here it is {find_core_version()} with API {hookspecs.API}; install the same version in both environments"
                )
            self._description = description
        return self._description

    def find_link(self) -> Link:
        """Returns the child that works; starts one where there is none.

        Raises: DeviceCrashedError when the device crashed again after it was started again.
        """
        with self._lock:
            if self._link is not None and not self._link.is_dead:
                return self._link
            if self._link is not None:
                # One that hung and was ended for it has cost its caller all the time that the caller had set; it may try again.
                self._crashes += not self._link.is_ended_by_us
                self._link.close()
                self._link = None
                if self._crashes < _MOST_CRASHES:
                    logger.warning("device %s is started again in a new process", self._device)
            if self._crashes >= _MOST_CRASHES:
                raise DeviceCrashedError(
                    f"device {self._device} has crashed {self._crashes} times in a row and is given up; "
                    "make a new Core to try again, or use another device"
                )
            self._link = Link(self._device, self._python, self._memory)
            self._generation += 1
            return self._link

    def prepare(self) -> int:
        """Returns the number of the child that works. Raises: as `find_link`."""
        self.find_link()
        return self._generation

    def has_host(self, generation: int) -> bool:
        """Says whether this child still works."""
        link = self._link
        return generation == self._generation and link is not None and not link.is_dead

    def note_success(self) -> None:
        """Notes that a run has ended well: the next crash is a first one again."""
        self._crashes = 0

    def call(
        self, operation: str, *arguments: Any, bulk: Sequence[Any] = (), token: CancelToken | None = None
    ) -> tuple[Any, Sequence[Any]]:
        """Returns what the child answers, and its buffers. A child that hangs is ended when nobody waits any more: after the DEADLINE of
        the load or query that this thread works for, or when `token` is set.

        Raises: the child's error; DeviceCrashedError; DeadlineExceededError.
        """
        link, end_of_wait = self.find_link(), find_end_of_wait()
        self._tell_forgotten(link)
        blocks = [open_block(buffer) for buffer in bulk]
        try:
            answer = link.request(
                CALL,
                dump_value((operation, arguments)),
                [block.fileno() for block in blocks],
                what=f"answered '{operation}'",
                token=token,
                end_of_wait=end_of_wait,
            )
        finally:
            for block in blocks:
                block.close()
        result = self.read_answer(answer)
        return load_value(result), tuple(take_block(file) for file in answer.files)

    def read_answer(self, answer: Message) -> bytes:
        """Returns the text of an answer. Raises: the child's error."""
        if answer.kind == FAILURE:
            raise restore_failure(load_value(answer.text), f"by device {self._device} in another process")
        return answer.text

    def open_session(self, number: int, outputs: tuple[ValueSpec, ...], token: CancelToken) -> ProcessSession:
        """Returns the near end of a request on a network of the child."""
        session, link = next(self._sessions), self.find_link()
        self.call("open_session", session, number, token=token)
        return ProcessSession(self, session, link)

    def forget(self, session: int, link: Link) -> None:
        """Notes a request that nobody has any more; the child is told with the next call. Safe where a garbage collector calls."""
        self._forgotten.append((session, link))

    def _tell_forgotten(self, link: Link) -> None:
        sessions = []
        while self._forgotten:
            session, owner = self._forgotten.popleft()
            if owner is link:
                sessions.append(session)
        if not sessions:
            return
        with suppress(DeviceCrashedError):  # a child that is gone has forgotten them
            link.request(CALL, dump_value(("close_sessions", tuple(sessions))), what="closed requests")

    def close(self) -> None:
        """Ends the child."""
        with self._lock:
            self._crashes = _MOST_CRASHES
            if self._link is not None:
                self._link.close()


class ProcessSession:
    """A request whose inputs this side writes into a block, and whose outputs the child does."""

    def __init__(self, carrier: ProcessCarrier, number: int, link: Link) -> None:
        self._carrier = carrier
        self._number = number
        # A run is of one child; where that is gone, the error says so, and the next run has another session.
        self._link = link
        self._head = number.to_bytes(4, "little")
        self._writer, self._reader = Writer(), Reader()

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs as views of the child's block. Raises: the child's error; DeviceCrashedError."""
        text, file = self._writer.place(inputs)
        profile = context.profile
        try:
            answer = self._link.request(
                RUN,
                self._head + (b"\0" if profile is None else b"\1") + text,
                () if file is None else (file,),
                what="ran a network",
                token=context.token,
            )
        finally:
            if file is not None:
                os.close(file)
        result = self._carrier.read_answer(answer)
        self._carrier.note_success()
        end = 4 + int.from_bytes(result[:4], "little")
        if profile is not None and end > 4:
            restore_times(profile, load_value(result[4:end]))
        return self._reader.read(result[end:], answer.files[0] if answer.files else None)

    def close(self) -> None:
        """Lets the child forget the request, some time."""
        self._carrier.forget(self._number, self._link)
