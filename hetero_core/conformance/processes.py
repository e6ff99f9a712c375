"""Runs checks in a child process, and replaces the child after a crash, an exit or a hang, which fails the check that was running.

This process never loads the device. The child opens it, receives the name of one check at a time, and sends the outcome. The child's
standard output and error go to a file: the last words of a child that has died, with the stacks by `faulthandler`, become the reason.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

from hetero_core.conformance.catalogue import list_checks
from hetero_core.conformance.check import Check, CheckFailed
from hetero_core.conformance.runner import FAILED, LIMIT_SECONDS, Outcome, SharedCore, Subject, make_target, open_core, try_check
from hetero_core.errors import DeviceUnavailableError
from hetero_core.remote.failures import describe_failure, restore_failure

GRACE_SECONDS = 5.0
"""The child ends itself after the time limit, with the stacks of its threads; it is killed if it has not done so in this time."""
TRACE_CHARACTERS = 20_000

CLOSING = Check("lifetime.device_closes_after_all_checks", "contract", lambda _: None)
"""Stands for closing the shared Core and the child at the end; reported only if it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """All that a child needs to know. Only installed devices can be checked in a child."""

    device: str
    seed: int = 0
    reference: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    cases: int | None = None
    limit: float = LIMIT_SECONDS


class CheckProcesses:
    """The child process and its successors. A context manager; the first child starts at once and opens the device meanwhile."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._folder = tempfile.TemporaryDirectory(prefix="hetero-conformance-", ignore_cleanup_errors=True)
        self._child: _Child | None = _Child(order, self._folder.name)
        self._subject: tuple[Subject, Mapping[str, str]] | None = None

    def describe_subject(self) -> tuple[Subject, Mapping[str, str]]:
        """Waits until the device is open; returns the head of the report, and the versions of the device.

        Raises: the errors of a device that cannot be used; DeviceUnavailableError if the child dies, with its last words.
        """
        if self._subject is None:
            child = self._child or self._start_child()
            answer = child.receive()
            if isinstance(answer, _Death):
                child.end()
                self._child = None
                raise DeviceUnavailableError(f"cannot open device {self._order.device}: {answer.reason}\n{answer.trace}".strip())
            if "error" in answer:
                raise restore_failure(answer["error"], "in the process of the checks")
            subject = Subject(device=self._order.device, seed=self._order.seed, reference=answer["reference"])
            self._subject = subject, answer["versions"]
        return self._subject

    def run_checks(self, checks: Sequence[Check]) -> Iterator[Outcome]:
        """Yields the outcome of each check in order, then a failure if the device cannot be closed. Raises: as `describe_subject`."""
        for check in checks:
            yield self.run_check(check)
        death = self.end()
        if death is not None:
            yield Outcome(CLOSING, FAILED, death.reason, trace=death.trace)

    def run_check(self, check: Check) -> Outcome:
        """Runs a check in the child and returns its outcome. Raises: as `describe_subject`, for the first child alone."""
        self.describe_subject()
        child, answer = self._child, None
        if child is None:
            child = self._start_child()
            answer = child.receive()
            if not isinstance(answer, _Death) and "error" in answer:
                answer = _Death(f"the device cannot be opened again: {answer['error']['message']}")
        if not isinstance(answer, _Death):
            answer = child.ask(check)
        if isinstance(answer, _Death):
            child.end()
            self._child = None
            return Outcome(check, FAILED, answer.reason, trace=answer.trace)
        return Outcome(check, answer["status"], answer["reason"], finding=answer["finding"], trace=answer["trace"])

    def end(self) -> _Death | None:
        """Lets the child close the device and end; returns the reason if it cannot."""
        child, self._child = self._child, None
        return None if child is None else child.close()

    def __enter__(self) -> CheckProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the child, unless `end` was called, and removes all temporary files of the device."""
        if self._child is not None:
            self._child.end()
        self._folder.cleanup()

    def _start_child(self) -> _Child:
        self._child = _Child(self._order, self._folder.name)
        return self._child


@dataclass(frozen=True, slots=True)
class _Death:
    """The end of a child: the reason, and the last lines that it wrote."""

    reason: str
    trace: str = ""


class _Child:
    """A child process, its connection, and the file that it writes to."""

    def __init__(self, order: Order, folder: str) -> None:
        self._limit = order.limit
        self._output = Path(folder) / "output"
        self._output.write_bytes(b"")
        # A forked child would inherit threads and locks of this process.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve_checks, args=(theirs, order, folder), name="conformance")
        self._process.start()
        theirs.close()
        self._began = monotonic()

    def ask(self, check: Check) -> dict[str, Any] | _Death:
        """Returns the answer to a check, or the child's end."""
        os.truncate(self._output, 0)  # a device may write without end
        self._began = monotonic()
        with contextlib.suppress(OSError):  # a child that has died meanwhile is seen below
            self._connection.send((check.level, check.name))
        return self.receive()

    def receive(self) -> dict[str, Any] | _Death:
        """Returns the next message, or the child's end; a child that has not ended after the limit is killed."""
        wait([self._connection, self._process.sentinel], self._limit + GRACE_SECONDS)
        try:
            if self._connection.poll():
                message: dict[str, Any] = self._connection.recv()
                return message
        except (EOFError, OSError):  # the child has closed its end
            pass
        return self._describe_death()

    def close(self) -> _Death | None:
        """Lets the child close the device and end. Returns the reason if it does not, or not with exit code 0."""
        os.truncate(self._output, 0)
        self._began = monotonic()
        with contextlib.suppress(OSError):
            self._connection.send(None)
        answer = self.receive()
        if not isinstance(answer, _Death):
            self._process.join(self._limit + GRACE_SECONDS)
            failure = answer.get("error")
            if failure is not None:
                self.end()
                return _Death(f"closing the device raised {failure['type']}: {failure['message']}")
            answer = None if self._process.exitcode == 0 else self._describe_death("at the end of its process")
        self.end()
        return answer

    def end(self) -> None:
        """Kills the child if it still runs."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()

    def _describe_death(self, when: str = "") -> _Death:
        is_late = monotonic() - self._began >= self._limit
        self._process.join(GRACE_SECONDS if not is_late else 0.5)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
        trace = self._output.read_text(errors="replace")[-TRACE_CHARACTERS:].strip()
        if is_late:
            return _Death(f"did not end within {self._limit:g} seconds; the device, or the core, hangs{_find_place(trace)}", trace)
        return _Death(f"the device ended the process of the checks{when and f' {when}'}: {_describe_code(code)}", trace)


def _find_place(trace: str) -> str:
    return "; the stacks of all threads follow" if "most recent call first" in trace else ""


def _describe_code(code: int | None) -> str:
    if code is None:
        return "it closed the connection"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def serve_checks(connection: Connection, order: Order, folder: str) -> None:
    """Opens the device and answers each check, until the parent sends None or is gone. Runs in the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which reports and ends this process
    output = os.open(os.path.join(folder, "output"), os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    faulthandler.enable(2)
    # Temporary files of a device vanish with the folder, also after a crash.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    # Checks judge the results of a device, not its warnings.
    warnings.simplefilter("ignore")
    logging.getLogger("hetero_core.blobs.trust").setLevel(logging.ERROR)
    with _limited(order.limit):
        try:
            target = make_target(
                order.device, seed=order.seed, reference=order.reference, config=order.config
            )
            with open_core(target.make_core) as core:
                versions = dict(core.get_versions(order.device))
        except Exception as error:  # noqa: BLE001  # a device may raise anything; the parent raises it again
            connection.send({"error": describe_failure(error)})
            return
    connection.send({"reference": target.reference, "versions": versions})
    shared = SharedCore(target)
    try:
        for level, name in iter(connection.recv, None):
            check = next(check for check in list_checks((level,), cases=order.cases) if check.name == name)
            with _limited(order.limit):
                outcome = try_check(check, target, shared)
            connection.send(_pack(outcome))
    except (EOFError, OSError):
        os._exit(1)  # the parent is gone
    with _limited(order.limit):
        try:
            shared.close()
        except Exception as error:  # noqa: BLE001  # as above
            connection.send({"error": describe_failure(error)})
        else:
            connection.send({})
    # The threads of the device are joined, and its libraries unloaded, as Python ends.
    faulthandler.dump_traceback_later(order.limit, exit=True, file=2)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Ends this process after so many seconds, with the stacks of all threads, also if native code holds the interpreter's lock."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _pack(outcome: Outcome) -> dict[str, Any]:
    error = outcome.error
    has_trace = error is not None and not isinstance(error, CheckFailed)
    trace = "".join(traceback.format_exception(error)) if has_trace else ""
    return {"status": outcome.status, "reason": outcome.reason, "finding": outcome.finding, "trace": trace}
