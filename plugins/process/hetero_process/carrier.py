"""The mirror's partner: a child process at a time, started on first use; and the arrays of a request in shared memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

from hetero_core.contract import CancelToken, RunContext
from hetero_core.devices.watch import find_end_of_wait
from hetero_core.errors import DeviceCrashedError
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.remote.failures import restore_failure
from hetero_core.remote.host import restore_times
from hetero_core.remote.succession import Succession
from hetero_core.remote.values import dump_value, load_value
from hetero_process.channel import CALL, FAILURE, MEASURED, NOTED, RUN, RUN_HEAD, SESSION, Message, open_block, take_block
from hetero_process.link import ProcessLink
from hetero_process.segments import Reader, Writer


class ProcessCarrier(Succession[ProcessLink]):
    """Carries operations to a child."""

    memory = HOST
    copies_metric = "PROCESS_COPIED_BYTES"

    def __init__(self, device: str, python: str, memory: int) -> None:
        super().__init__(device)
        self._python = python
        self._limit = memory
        self._sessions = itertools.count(1)

    @property
    def place(self) -> str:
        """Names the environment if it is not the caller's."""
        return f"in a process of '{self._python}'" if self._python else "in another process"

    def start(self) -> ProcessLink:
        """Starts a child."""
        return ProcessLink(self._device, self._python, self._limit)

    def call(
        self, operation: str, *arguments: Any, bulk: Sequence[Any] = (), token: CancelToken | None = None
    ) -> tuple[Any, Sequence[Any]]:
        """Returns the child's answer, and its buffers. A child that hangs is ended when the wait ends: after the DEADLINE of the
        load or query that this thread works for, or when `token` is set.

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
        text, files = self.read_answer(answer)
        return load_value(text), tuple(take_block(file) for file in files)

    def read_answer(self, answer: Message) -> tuple[bytes, tuple[int, ...]]:
        """Returns the text of an answer, and its descriptors. Raises: the child's error."""
        _, kind, text, files = answer
        if kind == FAILURE:
            raise restore_failure(load_value(text), f"by device {self._device} {self.place}")
        return text, files

    def open_session(self, number: int, outputs: tuple[ValueSpec, ...], token: CancelToken) -> ProcessSession:
        """Returns the near end of a request on a network of the child."""
        session, link = next(self._sessions), self.find_link()
        self.call("open_session", session, number, token=token)
        return ProcessSession(self, session, link)

    def _tell_forgotten(self, link: ProcessLink) -> None:
        sessions = self.take_forgotten(link)
        if not sessions:
            return
        with suppress(DeviceCrashedError):  # a child that is gone has forgotten them
            link.request(CALL, dump_value(("close_sessions", sessions)), what="closed requests")


class ProcessSession:
    """A request: this process writes its inputs into a block, the child its outputs."""

    def __init__(self, carrier: ProcessCarrier, number: int, link: ProcessLink) -> None:
        self._carrier = carrier
        self._number = number
        # If the child is gone, the run fails, and the next run has another session.
        self._link = link
        self._heads = [SESSION.pack(number, kind) for kind in range((NOTED | MEASURED) + 1)]
        self._writer, self._reader = Writer(), Reader()
        self.copied_bytes = 0

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs as views of the child's block. Raises: the child's error; DeviceCrashedError."""
        profile = context.profile
        kind = (NOTED if context.limits is not None else 0) | (MEASURED if profile is not None else 0)
        began = 0.0 if profile is None else perf_counter()
        text, file, shared = self._writer.place(inputs)
        copied = self._writer.copied_bytes
        if profile is not None:
            profile.add_transfer("inputs", copied, perf_counter() - began, begin=began, source="host", targets=(profile.device,))
        try:
            answer = self._link.request(
                RUN,
                self._heads[kind] + text,
                shared if file is None else (file, *shared),
                what="ran a network",
                token=context.token,
            )
        finally:
            if file is not None:
                os.close(file)
        text, files = self._carrier.read_answer(answer)
        self._carrier.note_success()
        timed, copied_there = RUN_HEAD.unpack_from(text)
        self.copied_bytes = copied + copied_there
        end = RUN_HEAD.size + timed
        if profile is not None and timed:
            restore_times(profile, load_value(text[RUN_HEAD.size : end]))
        return self._reader.read(text[end:], files)

    def close(self) -> None:
        """Lets the child release the request, with a later message."""
        self._carrier.forget(self._number, self._link)
