"""Runs cases in children that are forked from a warm process, with limits on memory and time; a child that dies names its case."""

from __future__ import annotations

import io
import os
import pickle
import resource
import select
import signal
import struct
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESIDENT = 2 << 30
"""Bytes that a child may have in memory."""
ADDRESSES = 64 << 30
"""Bytes of addresses; engines reserve some and never touch them."""
BUSY = 20.0
"""Seconds of the processor that one case may take."""
SILENT = 120.0
"""Seconds of the clock that it may: the machine has other work."""
_HEAD = struct.Struct("<q")


@dataclass
class Death:
    """How a child ended in the middle of a case."""

    reason: str


def run_in_children(work: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    """Returns what `work` returns for each argument, a Death where it took its child along or passed a limit.

    Several cases share a child; where one dies, it is done again in a child of its own, and the next ones in a new one.
    """
    results: list[Any] = []
    while len(results) < len(arguments):
        made, death = _run_child(work, arguments[len(results) :])
        results += made
        if death is not None and len(results) < len(arguments):
            if made or len(arguments) - len(results) > 1:
                again, death = _run_child(work, arguments[len(results) : len(results) + 1])
                results += again
            if death is not None:
                results.append(death)
    return results


def _run_child(work: Callable[[Any], Any], arguments: Sequence[Any]) -> tuple[list[Any], Death | None]:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _work(work, arguments, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as stream:
        results, verdict = _follow(child, stream, len(arguments))
    if verdict or len(results) == len(arguments):
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    if not verdict and usage.ru_maxrss * 1024 > RESIDENT:
        verdict = f"took {usage.ru_maxrss >> 10} MiB"
    if len(results) == len(arguments) or (not verdict and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 and results):
        return results, None
    if not verdict:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        verdict = f"died of {signal.Signals(number).name}" if number else f"ended with {os.waitstatus_to_exitcode(status)}"
    return results, Death(verdict)


def _work(work: Callable[[Any], Any], arguments: Sequence[Any], stream: int) -> None:
    """Runs cases in the child; a result that says so is the last one of its child."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        for argument in arguments:
            try:
                result = work(argument)
            except BaseException:  # noqa: BLE001  # that is what is looked for
                result = {"foreign": traceback.format_exc(limit=-12)}
            content = _pack(result)
            os.write(stream, _HEAD.pack(len(content)))
            view = memoryview(content)
            while view:
                view = view[os.write(stream, view) :]
            if isinstance(result, dict) and result.get("is_last"):
                break
    finally:
        os._exit(0)


class _Packer(pickle.Pickler):
    """Takes texts of more than 32 dimensions, which NumPy does not."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype == object and value.ndim > 32:
            return _shape_texts, (value.reshape(-1).tolist(), value.shape)
        return NotImplemented


def _shape_texts(texts: list[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def _pack(result: Any) -> bytes:
    stream = io.BytesIO()
    _Packer(stream).dump(result)
    return stream.getvalue()


def _follow(child: int, stream: Any, expected: int) -> tuple[list[Any], str]:
    """Returns the results that came, and the limit that was passed, empty where none was."""
    results: list[Any] = []
    buffer = b""
    busy, silent = _read_busy(child), time.monotonic()
    while len(results) < expected:
        if select.select([stream], [], [], 0.05)[0]:
            piece = stream.read(1 << 20)
            if not piece:
                return results, ""
            buffer += piece
            while len(buffer) >= _HEAD.size and len(buffer) >= _HEAD.size + _HEAD.unpack_from(buffer)[0]:
                end = _HEAD.size + _HEAD.unpack_from(buffer)[0]
                results.append(pickle.loads(buffer[_HEAD.size : end]))
                buffer = buffer[end:]
                busy, silent = _read_busy(child), time.monotonic()
            continue
        resident = _read_resident(child)
        if resident > RESIDENT:
            return results, f"took {resident >> 20} MiB"
        if _read_busy(child) - busy > BUSY or time.monotonic() - silent > SILENT:
            return results, f"computed for {_read_busy(child) - busy:.0f} s, silent for {time.monotonic() - silent:.0f} s"
    return results, ""


def _read_resident(process: int) -> int:
    try:
        with open(f"/proc/{process}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _read_busy(process: int) -> float:
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
