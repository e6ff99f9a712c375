"""Messages between two processes: a Unix socket that keeps their borders, and open files beside them for whatever is large.

A message is a number (of the request), a kind, a text, and descriptors. Nothing has a name in the file system: when both ends are gone,
nothing is left.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

CALL, ANSWER, FAILURE, RUN, CANCEL = range(5)
_HEADER = struct.Struct("<IBB")
_LARGEST_TEXT = 60_000
"""Bytes of one packet; a longer text goes as a file."""
_MOST_FILES = 16


class Message(NamedTuple):
    """A message as it arrived; `files` are descriptors that the receiver has to close."""

    number: int
    kind: int
    text: bytes
    files: tuple[int, ...]


class Channel:
    """One end. Many threads may send; one at a time receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, number: int, kind: int, text: bytes = b"", files: Sequence[int] = ()) -> None:
        """Sends a message. Raises: OSError where nobody is at the other end."""
        if len(text) > _LARGEST_TEXT:
            with open_block(text) as block:
                self._send(_HEADER.pack(number, kind, 1), (*files, block.fileno()))
            return
        self._send(_HEADER.pack(number, kind, 0) + text, files)

    def _send(self, packet: bytes, files: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(files)}i", *files))] if files else []
        with self._sending:
            self._end.sendmsg([packet], rights)

    def receive(self) -> Message | None:
        """Waits for the next message; None when the other end is closed. Raises: OSError for a broken one."""
        packet, rights, _, _ = self._end.recvmsg(
            _LARGEST_TEXT + _HEADER.size, socket.CMSG_SPACE(4 * _MOST_FILES), socket.MSG_CMSG_CLOEXEC
        )
        if not packet:
            return None
        number, kind, is_file = _HEADER.unpack_from(packet)
        files = tuple(one for _, _, raw in rights for (one,) in struct.iter_unpack("i", raw))
        if not is_file:
            return Message(number, kind, packet[_HEADER.size :], files)
        return Message(number, kind, bytes(take_block(files[-1])), files[:-1])

    def fileno(self) -> int:
        """Returns the descriptor, to be waited for."""
        return self._end.fileno()

    def close(self) -> None:
        """Ends the conversation; who waits at the other end learns of it."""
        with suppress(OSError):  # the other end may have gone before
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def drop(self) -> None:
        """Closes the descriptor and leaves the conversation to the process that this one was forked from."""
        self._end.close()


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
