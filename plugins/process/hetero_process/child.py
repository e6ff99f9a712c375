"""The child process: a Core with a device, behind a channel. Run as `python -m hetero_process.child SOCKET LIFELINE NOTES MEMORY DEVICE`.

The main thread reads the control channel, and each lane has a thread that reads and answers. The child ends with its parent, even
if it hangs: the kernel sends SIGIO, which ends a process, when the parent's end of the lifeline closes.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from hetero_core import Core
from hetero_core.contract import CancelToken
from hetero_core.network.types import HOST
from hetero_core.remote.failures import describe_failure
from hetero_core.remote.host import Host, HostSession
from hetero_core.remote.values import dump_value, load_value
from hetero_process import channel as messages
from hetero_process.segments import Reader, Writer


class _Session:
    """A request: its working memory, the block that is read and the block that is written."""

    def __init__(self, session: HostSession) -> None:
        self.session = session
        self.reader, self.writer = Reader(), Writer()
        # If every size is known, the device may write its outputs into the parent's block.
        self.can_preset = all(
            spec.memory == HOST and spec.shape is not None and all(isinstance(size, int) for size in spec.shape)
            for spec in session.network.all_outputs
        )


@dataclass
class _ServedLane:
    """A channel and the thread that reads it: sequential requests, each with a token that cancels it."""

    channel: messages.Channel
    tokens: dict[int, CancelToken] = field(default_factory=dict)

    def find_token(self, request: int) -> CancelToken:
        """Returns the token of a request, under way or to come: a message that cancels it may arrive before it."""
        return self.tokens.setdefault(request, CancelToken())


class Child:
    """Answers the parent until it is gone."""

    def __init__(self, control: socket.socket, host: Host, notes: memoryview) -> None:
        self._control = control
        self._host = host
        self._notes = notes
        self._sessions: dict[int, _Session] = {}
        self._lanes: dict[int, _ServedLane] = {}

    def serve(self) -> None:
        """Opens lanes and cancels requests; ends the process when the parent has closed its end."""
        while True:
            packet, ends, _, _ = socket.recv_fds(self._control, messages.CONTROL.size, 3, socket.MSG_CMSG_CLOEXEC)
            if not packet:
                os._exit(0)  # other threads may hang in a device
            kind, number, request = messages.CONTROL.unpack(packet)
            if kind == messages.CANCEL:
                self._lanes[number].find_token(request).is_set = True
                continue
            lane = self._lanes[number] = _ServedLane(messages.Channel(*ends))
            threading.Thread(target=self._serve_lane, args=(lane,), daemon=True, name="hetero-process").start()

    def _serve_lane(self, lane: _ServedLane) -> None:
        # An OSError: the parent does not wait for the answer any more.
        with closing(lane.channel), suppress(OSError):
            while (message := lane.channel.receive()) is not None:
                request, kind, text, files = message
                try:
                    if kind == messages.RUN:
                        self._run(lane, request, text, files)
                    else:
                        self._call(lane.channel, request, text, files)
                except BaseException as error:  # noqa: BLE001  # raised again in the parent
                    lane.channel.send(request, messages.FAILURE, dump_value(describe_failure(error)))
                finally:
                    lane.tokens.pop(request, None)

    def _call(self, channel: messages.Channel, request: int, text: bytes, files: tuple[int, ...]) -> None:
        operation, arguments, forgotten = load_value(text)
        for session in forgotten:
            self._sessions.pop(session, None)
        bulk = [messages.take_block(file) for file in files]
        result: Any = None
        buffers: Sequence[Any] = ()
        if operation == "open_session":
            number, network = arguments
            self._sessions[number] = _Session(self._host.open_session(network))
        else:
            result, buffers = self._host.answer(operation, arguments, bulk)
        with ExitStack() as opened:
            blocks = [opened.enter_context(messages.open_block(buffer)) for buffer in buffers]
            channel.send(request, messages.ANSWER, dump_value(result), [block.fileno() for block in blocks])

    def _run(self, lane: _ServedLane, request: int, text: bytes, files: tuple[int, ...]) -> None:
        token = lane.find_token(request)
        number, kind = messages.SESSION.unpack_from(text)
        measures = bool(kind & messages.MEASURED)
        session = self._sessions[number]
        writer = session.writer
        inputs = session.reader.read(text[messages.SESSION.size :], files)
        presets = writer.views if session.can_preset and writer.views else None
        note = self._note if kind & messages.NOTED else None
        outputs, times = session.session.run(inputs, presets, token, measures=measures, note=note)
        began = perf_counter() if measures else 0.0
        places, file, _ = writer.place(outputs)
        copied = writer.copied_bytes
        if measures:
            device = session.session.network.device
            times = (*times, ("outputs", "transfer", str(device), perf_counter() - began, began, copied, str(device), ("host",)))
        timed = dump_value(times) if times else b""
        files = () if file is None else (file,)
        try:
            lane.channel.send(request, messages.ANSWER, messages.RUN_HEAD.pack(len(timed), copied) + timed + places, files)
        finally:
            for each in files:
                os.close(each)

    def _note(self, node: str) -> None:
        """Writes the name of the node that begins to the notes, which the parent reads after a crash."""
        label = node.encode()[: messages.NOTES - 1]
        self._notes[: len(label) + 1] = label + b"\0"


def main() -> None:
    """Serves a device; see the head of the file for the arguments."""
    end, lifeline, notes, memory = map(int, sys.argv[1:5])
    device = sys.argv[5]
    # The kernel ends this process when the parent's end of the lifeline closes.
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    # The output of engines must not mix with the parent's.
    os.dup2(2, 1)
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    control = socket.socket(fileno=end)
    # The parent limits how long an answer may take.
    with Core(device_timeout=None) as core:
        Child(control, Host(core, device), messages.take_block(notes)).serve()


if __name__ == "__main__":
    main()
