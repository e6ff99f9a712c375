"""Messages between two processes: sockets, one for each request at a time. Large contents lie in files, whose descriptors are sent.

A message is a kind, a number (of the request on its lane), a text, and descriptors. Nothing has a name in the file system: when both ends
are gone, nothing is left.

    control   LANE + its end, CANCEL + lane and number ──────>   the child's main thread
    lane      RUN or CALL ──────> a thread of the child ──────>   ANSWER or FAILURE

A lane carries a single request at a time, so that each waiting thread reads its own answer.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

CALL, ANSWER, FAILURE, RUN, LANE, CANCEL = range(6)
_HEADER = struct.Struct("<IB?")
CONTROL = struct.Struct("<BII")
"""A message of the control channel: its kind, the lane, and the request on that lane."""
SESSION = struct.Struct("<I?")
"""Before the inputs of a run: the number of its session, and whether the times of nodes are measured."""
RUN_HEAD = struct.Struct("<IQ")
"""Before the answer to a run: the size of its times, and the number of copied bytes of outputs."""
_LARGEST_TEXT = 1 << 12
"""Bytes of a text; a longer text goes as a file."""
_MOST_FILES = 253
"""Descriptors that the kernel takes in a message."""


Message = tuple[int, int, bytes, tuple[int, ...]]
"""A message as it arrived: its number, kind, text, and descriptors that the receiver has to close. A named tuple would take 0.3 us."""


class Channel:
    """An end of a lane, used by a single thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        poll = select.poll()
        poll.register(end, select.POLLIN)
        self.wait = poll.poll
        """Waits for a number of milliseconds; returns a true value if there is a message, or if the peer has closed its end."""

    def send(self, number: int, kind: int, text: bytes = b"", files: Sequence[int] = ()) -> None:
        """Sends a message. Raises: OSError if the peer is gone."""
        if len(text) <= _LARGEST_TEXT:
            socket.send_fds(self._socket, [_HEADER.pack(number, kind, False), text], files)
            return
        with open_block(text) as block:
            socket.send_fds(self._socket, [_HEADER.pack(number, kind, True)], (*files, block.fileno()))

    def receive(self) -> Message | None:
        """Waits for the next message; None if the peer has closed its end. Raises: OSError if the lane is broken."""
        size = _HEADER.size + _LARGEST_TEXT
        packet, files, _, _ = socket.recv_fds(self._socket, size, _MOST_FILES, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            return None
        number, kind, is_file = _HEADER.unpack_from(packet)
        if is_file:
            return number, kind, bytes(take_block(files.pop())), tuple(files)
        return number, kind, packet[_HEADER.size :], tuple(files)

    def close(self) -> None:
        """Closes this end; wakes a thread that waits at the opposite end."""
        self._socket.close()


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
