"""The child process: a Core with one device, behind a channel. Run as `python -m hetero_process.child SOCKET LIFELINE MEMORY DEVICE`.

Threads take turns at reading: whoever has read a message works on it, and another one reads the next. The child ends with its parent,
also where it hangs: the kernel sends SIGIO, which ends a process, when the parent's end of the lifeline closes.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from hetero_core.contract import CancelToken
from hetero_core.core import Core
from hetero_core.network.types import HOST
from hetero_core.remote.failures import describe_failure
from hetero_core.remote.host import Host, HostSession
from hetero_core.remote.values import dump_value, load_value
from hetero_process.channel import ANSWER, CANCEL, FAILURE, RUN, Channel, Message, open_block, take_block
from hetero_process.segments import Reader, Writer


class _Session:
    """One request: its working memory, the block that is read and the block that is written."""

    def __init__(self, session: HostSession) -> None:
        self.session = session
        self.reader, self.writer = Reader(), Writer()
        # Where every size is known a device may write its outputs where the parent reads them.
        self.can_preset = all(
            spec.memory == HOST and spec.shape is not None and all(isinstance(size, int) for size in spec.shape)
            for spec in session.network.all_outputs
        )


class Child:
    """Answers the parent until it is gone."""

    def __init__(self, channel: Channel, host: Host) -> None:
        self._channel = channel
        self._host = host
        self._sessions: dict[int, _Session] = {}
        self._tokens: dict[int, CancelToken] = {}
        self._reading = threading.Lock()
        self._counting = threading.Lock()
        self._idle = 1

    def serve(self) -> None:
        """Reads and answers messages; returns when the parent has closed its end."""
        while True:
            with self._reading:
                message = self._channel.receive()
                if message is None:
                    os._exit(0)  # other threads may hang in a device
                if message.kind == RUN:
                    # Before the next message is read: it may be the one that cancels this run.
                    self._tokens[message.number] = CancelToken()
                with self._counting:
                    self._idle -= 1
                    if self._idle == 0:
                        self._idle += 1
                        threading.Thread(target=self.serve, daemon=True, name="hetero-process").start()
            self._handle(message)
            with self._counting:
                self._idle += 1

    def _handle(self, message: Message) -> None:
        if message.kind == CANCEL:
            token = self._tokens.get(message.number)
            if token is not None:
                token.is_set = True
            return
        try:
            if message.kind == RUN:
                self._run(message)
            else:
                self._call(message)
        except BaseException as error:  # noqa: BLE001  # raised again in the parent
            self._channel.send(message.number, FAILURE, dump_value(describe_failure(error)))
        finally:
            self._tokens.pop(message.number, None)

    def _call(self, message: Message) -> None:
        operation, arguments = load_value(message.text)
        bulk = [take_block(file) for file in message.files]
        if operation == "open_session":
            number, network = arguments
            self._sessions[number] = _Session(self._host.open_session(network))
            self._channel.send(message.number, ANSWER, dump_value(None))
            return
        if operation == "close_sessions":
            for number in arguments:
                self._sessions.pop(number, None)
            self._channel.send(message.number, ANSWER, dump_value(None))
            return
        result, buffers = self._host.answer(operation, arguments, bulk)
        self._answer(message.number, result, buffers)

    def _answer(self, number: int, result: Any, buffers: Sequence[Any]) -> None:
        blocks = [open_block(buffer) for buffer in buffers]
        try:
            self._channel.send(number, ANSWER, dump_value(result), [block.fileno() for block in blocks])
        finally:
            for block in blocks:
                block.close()

    def _run(self, message: Message) -> None:
        number, measures = int.from_bytes(message.text[:4], "little"), bool(message.text[4])
        one = self._sessions[number]
        inputs = one.reader.read(message.text[5:], message.files[0] if message.files else None)
        presets = one.writer.views if one.can_preset and one.writer.views else None
        outputs, times = one.session.run(inputs, presets, self._tokens[message.number], measures=measures)
        text, file = one.writer.place(outputs)
        timed = dump_value(times) if times else b""
        try:
            self._channel.send(
                message.number, ANSWER, len(timed).to_bytes(4, "little") + timed + text, () if file is None else (file,)
            )
        finally:
            if file is not None:
                os.close(file)


def _hang_on(lifeline: int) -> None:
    """Lets the kernel end this process when the parent's end of a pipe closes."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _limit_memory(nbytes: int) -> None:
    if nbytes:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))


def main() -> None:
    """Serves one device; see the head of the file for the arguments."""
    end, lifeline, memory, device = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    _hang_on(lifeline)
    # What engines print belongs to no answer of the parent's.
    os.dup2(2, 1)
    _limit_memory(memory)
    channel = Channel(socket.socket(fileno=end))
    # The parent limits how long an answer may take.
    with Core(device_timeout=None) as core:
        Child(channel, Host(core, device)).serve()


if __name__ == "__main__":
    main()
