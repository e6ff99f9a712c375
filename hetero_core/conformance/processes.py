"""Runs checks in a child process, and replaces the child after a crash, an exit or a hang, which fails the check that was running.

This process never loads the device, nor builds a case. The child chooses the checks, opens the device, receives the index of one check
at a time, and sends the outcome. The child's standard output and error go to a file: the last words of a child that has died, with the
stacks by `faulthandler`, are shown with the failure.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import Check, CheckFailed
from hetero_core.conformance.runner import FAILED, LIMIT_SECONDS, Outcome, SharedCore, Subject, make_target, open_core, try_check
from hetero_core.errors import DeviceUnavailableError, HeteroError

GRACE_SECONDS = 5.0
"""The child ends itself after the time limit, with the stacks of its threads; it is killed if it has not done so in this time."""
OPENING_SECONDS = 60.0
"""The least time limit for opening the device."""
HUNG_SECONDS = 3.0
"""The time limit of checks after one that has hung: a device that hangs once most likely hangs again."""
BUILDING_SECONDS = 600.0
"""How long the child may take for its imports and for building the cases; 5 s on a quiet processor."""
TRACE_CHARACTERS = 20_000

CLOSING = Check("lifetime.device_closes_after_all_checks", "contract", lambda _: None)
"""Stands for closing the shared Core and the child at the end; reported only if it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The device and the choice of checks. Only installed devices can be checked in a child."""

    device: str
    levels: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    seed: int = 0
    reference: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    cases: int | None = None
    limit: float = LIMIT_SECONDS


class CheckProcesses:
    """The child process and its successors. A context manager, which opens the device.

    `subject` and `versions` are the head of the report; `checks` are the chosen checks, which run only in the child.

    Raises: UnknownCheckError; the errors of a device that cannot be used; DeviceUnavailableError, with its last words, if the child dies.
    """

    subject: Subject
    versions: Mapping[str, str]
    checks: tuple[Check, ...]

    def __init__(self, order: Order) -> None:
        self._order = order
        self._folder = tempfile.TemporaryDirectory(prefix="hetero-conformance-", ignore_cleanup_errors=True)
        self._child: _Child | None = None

    def __enter__(self) -> CheckProcesses:
        try:
            answer = self._start_child()
            if isinstance(answer, HeteroError):
                raise answer
            if isinstance(answer, Death):
                raise DeviceUnavailableError(f"cannot open device {self._order.device}: {answer.reason}\n{answer.trace}".strip())
        except BaseException:
            self.__exit__()
            raise
        self.subject = Subject(device=self._order.device, seed=self._order.seed, reference=answer["reference"])
        self.versions = answer["versions"]
        self.checks = tuple(Check(name, level, lambda _: None) for name, level in answer["checks"])
        self._index_of_name = {check.name: index for index, check in enumerate(self.checks)}
        return self

    def run_checks(self) -> Iterator[Outcome]:
        """Yields the outcome of each check in order, then a failure if the device cannot be closed."""
        for check in self.checks:
            yield self.run_check(check)
        death = self.close()
        if death is not None:
            yield Outcome(CLOSING, FAILED, death.reason, trace=death.trace)

    def run_check(self, check: Check) -> Outcome:
        """Runs one of `checks` in the child and returns its outcome."""
        answer = self._start_child() if self._child is None else {}
        if isinstance(answer, HeteroError):
            answer = Death(f"the device cannot be opened again: {answer}")
        if self._child is not None and not isinstance(answer, Death):
            answer = self._child.ask(self._index_of_name[check.name])
        if not isinstance(answer, Death):
            return Outcome(check, answer["status"], answer["reason"], finding=answer["finding"], trace=answer["trace"])
        self._end_child()
        if answer.is_hang:
            self._order = replace(self._order, limit=min(self._order.limit, HUNG_SECONDS))
        return Outcome(check, FAILED, answer.reason, trace=answer.trace)

    def close(self) -> Death | None:
        """Lets the child close the device and end; returns the reason if it cannot."""
        child, self._child = self._child, None
        return None if child is None else child.close()

    def __exit__(self, *_: object) -> None:
        """Kills the child, unless `close` was called, and removes all temporary files of the device."""
        self._end_child()
        self._folder.cleanup()

    def _start_child(self) -> Any:
        """Returns the first message of a new child: the device is open, or an error; or the child's end."""
        self._child = _Child(self._order, self._folder.name)
        return self._child.receive()

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a child: the reason, and the last lines that it wrote."""

    reason: str
    trace: str = ""
    is_hang: bool = False


class _Child:
    """A child process, its connection, and the file that it writes to."""

    def __init__(self, order: Order, folder: str) -> None:
        self._check_limit = order.limit
        self._output = Path(folder) / "output"
        self._output.write_bytes(b"")
        # A forked child would inherit threads and locks of this process.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve_checks, args=(theirs, order, folder), name="conformance")
        self._process.start()
        theirs.close()
        self._began = monotonic()
        self._limit = max(order.limit, OPENING_SECONDS)
        self._grace = BUILDING_SECONDS

    def ask(self, index: int | None) -> Any:
        """Returns the answer to a check, None to close the device; or the child's end."""
        os.truncate(self._output, 0)  # a device may write without end
        self._began, self._limit, self._grace = monotonic(), self._check_limit, GRACE_SECONDS
        with contextlib.suppress(OSError):  # a child that has died meanwhile is seen below
            self._connection.send(index)
        return self.receive()

    def receive(self) -> Any:
        """Returns the next message, or the child's end; a child that has not ended after the limit is killed."""
        wait([self._connection, self._process.sentinel], self._limit + self._grace)
        try:
            if self._connection.poll():
                return self._connection.recv()
        except (EOFError, OSError):  # the child has closed its end
            pass
        return self._describe_death()

    def close(self) -> Death | None:
        """Lets the child close the device and end. Returns the reason if it does not, or not with exit code 0."""
        failure = self.ask(None)
        if failure == "":
            self._process.join(self._limit + GRACE_SECONDS)
            failure = None if self._process.exitcode == 0 else self._describe_death(" at its end")
        self.end()
        return failure if failure is None or isinstance(failure, Death) else Death(f"closing the device raised {failure}")

    def end(self) -> None:
        """Kills the child if it still runs."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()

    def _describe_death(self, when: str = "") -> Death:
        self._process.join(0.5 if monotonic() - self._began > self._limit + self._grace else GRACE_SECONDS)
        code = self._process.exitcode
        trace = self._output.read_text(errors="replace")[-TRACE_CHARACTERS:].strip()
        # The child's own timer writes this line before it ends the child.
        if re.search(r"^Timeout \(\d+:\d\d:\d\d", trace, re.MULTILINE) or code is None:
            reason = f"did not end within {self._limit:g} seconds; the device, or the core, hangs{_find_place(trace)}"
            return Death(reason, trace, is_hang=True)
        return Death(f"the device ended the process of the checks{when}: {_describe_code(code)}", trace)


def _find_place(trace: str) -> str:
    return "; the stacks of all threads follow" if "most recent call first" in trace else ""


def _describe_code(code: int) -> str:
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
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # the last lines before a crash
    faulthandler.enable(2)
    # Temporary files of a device vanish with the folder, also after a crash.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    # Checks judge the results of a device, not its warnings.
    warnings.simplefilter("ignore")
    logging.getLogger("hetero_core.blobs.trust").setLevel(logging.ERROR)
    try:
        checks = choose_checks(order.levels, order.patterns, cases=order.cases)
        with _limited(max(order.limit, OPENING_SECONDS)):
            target = make_target(order.device, seed=order.seed, reference=order.reference, config=order.config)
            with open_core(target.make_core) as core:
                versions = dict(core.get_versions(order.device))
    except HeteroError as error:
        connection.send(error)
        return
    names = [(check.name, check.level) for check in checks]
    connection.send({"checks": names, "reference": target.reference, "versions": versions})
    shared = SharedCore(target)
    try:
        for index in iter(connection.recv, None):
            with _limited(order.limit):
                outcome = try_check(checks[index], target, shared)
            connection.send(_pack(outcome))
    except (EOFError, OSError):
        os._exit(1)  # the parent is gone
    with _limited(order.limit):
        try:
            shared.close()
            failure = ""
        except Exception as error:  # noqa: BLE001  # a device may raise anything; the parent reports it
            failure = f"{type(error).__name__}: {error}"
        connection.send(failure)
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
