"""Messages between two processes: lanes of two pipes, and a socket for file descriptors. Large contents lie in the files.

A message is a kind, a number (of the request on its lane), a text, and descriptors. Nothing has a name in the file system: when both ends
are gone, nothing is left.

    control   LANE + its ends, CANCEL + lane and number ──────>   the child's main thread
    lane      RUN or CALL ──────> a thread of the child ──────>   ANSWER or FAILURE

A lane carries a single request at a time, so that each waiting thread reads its own answer. A lane is made of pipes, because a
message costs 3 us on a pipe and 10 us on a Unix socket; only a socket carries descriptors.
"""

from __future__ import annotations

import io
import mmap
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

CALL, ANSWER, FAILURE, RUN, LANE, CANCEL = range(6)
_HEADER = struct.Struct("<IBBB")
CONTROL = struct.Struct("<BII")
"""A message of the control channel: its kind, the lane, and the request on that lane."""
SESSION = struct.Struct("<IB")
"""Before the inputs of a run: the number of its session, and the kind of the run."""
NOTED, MEASURED = 1, 2
"""Kinds of runs, which can be combined: NOTED, a run with limits, reports each node that begins, for the message about a crash."""
RUN_HEAD = struct.Struct("<IQ")
"""Before the answer to a run: the size of its times, and the number of copied bytes of outputs."""
NOTES = 4096
"""Bytes of the block in which the child notes the node that begins; a zero ends its name."""
_LARGEST_PACKET = select.PIPE_BUF
"""Bytes that a pipe takes at once, so that they are read at once; a longer text goes as a file."""
_LARGEST_TEXT = _LARGEST_PACKET - _HEADER.size


Message = tuple[int, int, bytes, tuple[int, ...]]
"""A message as it arrived: its number, kind, text, and descriptors that the receiver has to close. A named tuple would take 0.3 us."""


class Channel:
    """An end of a lane, used by a single thread at a time. Takes over its descriptors."""

    def __init__(self, reader: int, writer: int, files: int) -> None:
        self._reader, self._writer = io.FileIO(reader), io.FileIO(writer, "w")
        self._socket = socket.socket(fileno=files)
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        self.wait = poll.poll
        """Waits for a number of milliseconds; returns a true value if there is a message, or if the peer has closed its end."""

    def send(self, number: int, kind: int, text: bytes = b"", files: Sequence[int] = ()) -> None:
        """Sends a message. Raises: OSError if the peer is gone."""
        if len(text) > _LARGEST_TEXT:
            with open_block(text) as block:
                self._send_files((*files, block.fileno()))
            self._writer.write(_HEADER.pack(number, kind, 1, len(files) + 1))
            return
        if files:
            self._send_files(files)
        self._writer.write(_HEADER.pack(number, kind, 0, len(files)) + text)

    def _send_files(self, files: Sequence[int]) -> None:
        # Before the text that counts them, so that its reader need not wait.
        socket.send_fds(self._socket, [b"f"], files)

    def receive(self) -> Message | None:
        """Waits for the next message; None if the peer has closed its end. Raises: OSError if the lane is broken."""
        packet = self._reader.read(_LARGEST_PACKET)
        if not packet:
            return None
        number, kind, is_file, count = _HEADER.unpack_from(packet)
        if not count:
            return number, kind, packet[_HEADER.size :], ()
        files = tuple(socket.recv_fds(self._socket, 1, count, socket.MSG_CMSG_CLOEXEC)[1])
        if not is_file:
            return number, kind, packet[_HEADER.size :], files
        return number, kind, bytes(take_block(files[-1])), files[:-1]

    def close(self) -> None:
        """Closes this end; wakes a thread that waits at the opposite end."""
        for end in (self._reader, self._writer, self._socket):
            end.close()


def open_lane() -> tuple[Channel, tuple[int, int, int]]:
    """Returns our end of a new lane, and the descriptors of the child's end, to be sent and closed. Raises: OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there, back = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    return Channel(back[0], there[1], ours.detach()), (there[0], back[1], theirs.detach())


def open_block(content: Any) -> Any:
    """Returns an open file without a name that holds these bytes."""
    view = memoryview(content).cast("B")
    file = os.fdopen(os.memfd_create("hetero", os.MFD_CLOEXEC), "w+b", buffering=0)
    file.truncate(view.nbytes)
    if view.nbytes:
        with mmap.mmap(file.fileno(), view.nbytes) as mapped:
            mapped[:] = view
    return file


def take_block(file: int) -> memoryview:
    """Returns the memory of a block that was received, and closes its descriptor."""
    try:
        size = os.fstat(file).st_size
        return memoryview(mmap.mmap(file, size) if size else b"")
    finally:
        os.close(file)
