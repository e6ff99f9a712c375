"""The runner: runs checks in sequence, each with a time limit, and records their outcomes and reasons.

`run_checks` runs them in this process, each in its own thread. Python cannot stop a thread, so a hanging check is abandoned with its
thread and Core, and the next check starts.

`CheckProcesses` runs them in a child process, and replaces the child after a crash, an exit or a hang, which fails the check that was
running. This process then never loads the device, nor builds a case. The child chooses the checks, opens the device, receives one check
at a time, and sends the outcome. The child's standard output and error go to a file: the last words of a child that has died, with the
stacks by `faulthandler`, are shown with the failure. After the first death another child runs PROBE, a check with a network of two nodes.
If the device dies in it, too, no further check is run.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import CAPABILITIES, LEVELS, Check, CheckContext, CheckFailed, DeviceFacts, Skip, Subject, Target
from hetero_core.conformance.contract_resources import read_settings
from hetero_core.contract import Extension
from hetero_core.core import Core
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.errors import (
    ConfigKeyError,
    ConfigValueError,
    DeviceNameError,
    DeviceNotFoundError,
    DeviceUnavailableError,
    HeteroError,
    NotImplementedByDeviceError,
)
from hetero_core.testing.backend_cases import FOLDER_VARIABLE

PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "failed", "skipped", "not run"
LIMIT_SECONDS = 300.0
REFERENCES = ("TEMPLATE", "CPU")
"""Devices that may serve as the reference; the first that is installed and not under test is used."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check; `reason` is empty if it passed. `finding` holds details for reports.

    `error` is the error if the check ran in this process; `trace` is its traceback as text, or the stacks of all threads.
    """

    check: Check
    status: str
    reason: str = ""
    error: BaseException | None = None
    finding: object = None
    trace: str = ""


def make_target(
    device: str,
    *,
    plugin: Any = None,
    make_core: Callable[[], Core] | None = None,
    seed: int = 0,
    reference: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Target:
    """Returns the target; a `plugin` is registered under the device's name in every Core that has no such device.

    `config` is set for the device in every Core; it is meant for single devices, not for composed ones.

    Raises: errors of a device that cannot be used at all; ConfigKeyError, ConfigValueError.
    """
    settings, parsed = read_settings(), parse_device_name(device)

    def make() -> Core:
        core = Core() if make_core is None else make_core()
        if plugin is not None and make_core is None:
            if parsed.name in core.device_names:
                core.unregister_plugin(parsed.name)
            core.register_plugin(parsed.name, plugin)
        if config:
            core.set_config(config, device)
        return core

    core = make()
    beside = _choose_reference(core, device) if reference is None else reference
    keys, ids = core.config_keys(device), core.get_metric(parsed.name, "AVAILABLE_DEVICES")
    is_single = not any(key.is_arguments for key in keys.values())
    capabilities = {
        "export": bool(core.get_metric(device, "IMPORT_EXPORT_SUPPORT")),
        "extensions": _takes_extensions(core, device),
        "ids": len(ids) > 1 and is_single,
        "single": is_single,
        "hetero": "HETERO" in core.device_names and beside != "",
    }
    announcement = core._registry.announcement(parsed.name)
    loaded = announcement.load_plugin()
    own = {name: key for name, key in keys.items() if name not in STANDARD_KEYS}
    facts = DeviceFacts(parsed.name, ids, own, tuple(name for name, has in capabilities.items() if has), settings, loaded)
    with suppress(Exception):  # a device may raise anything; checks that close a Core fail by it
        core.close()
    return Target(device=device, seed=seed, reference=beside, make_core=make, facts=facts, configured=frozenset(config or ()))


def _choose_reference(core: Core, device: str) -> str:
    """Returns the reference device of the level "hetero"; empty if no device beside the one under test is available."""
    parsed = parse_device_name(device)
    listed = {parse_device_name(entry).name for entry in split_device_list(parsed.arguments)} if parsed.arguments else set()
    known = [name for name in REFERENCES if name in core.device_names and name != parsed.name]
    # A device from the list of the device under test would do, but a device outside of it tests more.
    return next((name for name in known if name not in listed), known[0] if known else "")


def _takes_extensions(core: Core, device: str) -> bool:
    probe = Extension("com.acme", "Probe", 1, lambda x: x, lambda types, attributes: tuple(types))  # type: ignore[arg-type]  # never asked
    try:
        core.add_extension(probe, device)
    except NotImplementedByDeviceError:
        return False
    except HeteroError:
        pass  # the device has the hook; the checks test its behaviour
    return True


def run_checks(checks: Sequence[Check], target: Target, *, limit: float = LIMIT_SECONDS) -> Iterator[Outcome]:
    """Yields the outcome of each check, in order; `limit` is the time limit of a check in seconds."""
    with SharedCore(target) as shared:
        for check in checks:
            yield run_check(check, target, shared=shared, limit=limit)


def run_check(check: Check, target: Target, *, shared: SharedCore | None = None, limit: float = LIMIT_SECONDS) -> Outcome:
    """Runs a check in a thread and returns its outcome."""
    ended: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: ended.append(try_check(check, target, shared)), name=f"conformance {check.name}", daemon=True
    )
    with warnings.catch_warnings():
        # Checks judge the results of a device, not its warnings.
        warnings.simplefilter("ignore")
        thread.start()
        thread.join(limit)
    if not ended:
        if shared is not None:
            shared.abandon()
        return Outcome(check, FAILED, f"did not end within {limit:g} seconds; the device, or the core, hangs")
    return ended[0]


class SharedCore:
    """A Core shared by all checks that do not change it; opened on first use."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._core: Core | None = None

    def get(self) -> Core:
        """Returns the Core."""
        if self._core is None:
            self._core = self._target.make_core()
        return self._core

    def abandon(self) -> None:
        """Leaves the Core to a hanging check; the next check gets a new Core."""
        self._core = None

    def __enter__(self) -> SharedCore:
        return self

    def close(self) -> None:
        """Closes the Core. Raises: the error of the device."""
        if self._core is not None:
            self._core.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def try_check(check: Check, target: Target, shared: SharedCore | None = None) -> Outcome:
    """Runs a check in the thread of the caller, without a time limit, and returns its outcome."""
    for need in check.needs:
        if need not in target.facts.capabilities:
            return Outcome(check, SKIPPED, CAPABILITIES[need])
    try:
        with _choose_core(check, target, shared) as core:
            values = {each.name: getattr(target, each.name) for each in fields(Target)}
            finding = check(CheckContext(core=core, **values))
    except Skip as skip:
        return Outcome(check, SKIPPED, str(skip), finding=skip.finding)
    except CheckFailed as failure:
        return Outcome(check, FAILED, str(failure), failure, failure.finding)
    except BaseException as error:  # noqa: BLE001  # a device may raise anything; the error is the check's outcome
        return Outcome(check, FAILED, describe_error(error), error)
    return Outcome(check, PASSED, finding=finding)


def describe_error(error: BaseException) -> str:
    """Returns the class of an error, its text and its notes."""
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{notes}"


@contextmanager
def _choose_core(check: Check, target: Target, shared: SharedCore | None) -> Iterator[Core]:
    if check.shares_core and shared is not None:
        yield shared.get()
        return
    core = target.make_core()
    try:
        yield core
    except BaseException:
        with suppress(Exception):  # the first error is the one to read
            core.close()
        raise
    core.close()


# Checks in a child process

GRACE_SECONDS = 5.0
"""The child ends itself after the time limit, with the stacks of its threads; it is killed if it has not done so in this time."""
HUNG_SECONDS = 3.0
"""The least time limit of checks after one that has hung: a device that hangs once most likely hangs again."""
PROBE_SECONDS = 20.0
"""The time limit of PROBE."""
SLOWER = 30
"""A check after one that has hung may take this many times as long as PROBE."""
CHOICES_LIMITS = 5
"""A check of the level choices repeats the checks of a subject under each choice, and has as many time limits."""
DEATHS_IN_ROW = 4
"""Checks of a level that may end the process or hang, one after another. After each further one, twice as many checks are left out."""
BUILDING_SECONDS = 600.0
"""How long the child may take for its imports and for building the cases; 5 s on a quiet processor."""
TRACE_CHARACTERS = 20_000

OPENING = Check("lifetime.device_opens_before_all_checks", "contract", lambda _: None)
"""Stands for opening the device; reported only if it fails."""
PROBE = Check("requests.asynchronous_run_gives_the_result", "contract", lambda _: None)
"""Runs after the first death."""
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


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a child, or of its opening: the reason, and the last lines that it wrote."""

    reason: str
    trace: str = ""
    is_hang: bool = False


class CheckProcesses:
    """The child process and its successors. A context manager, which opens the device.

    `subject` and `versions` are the head of the report; `checks` are the chosen checks, which run only in the child. `opening` is None
    if the device opens and closes, else its failure, and no check is run.

    Raises: UnknownCheckError; the errors of a device or a configuration that does not exist; DeviceUnavailableError if the child dies
    before it opens the device.
    """

    subject: Subject
    versions: Mapping[str, str]
    checks: tuple[Check, ...]
    opening: Outcome | None = None

    def __init__(self, order: Order) -> None:
        self._order = order
        self._folder = tempfile.TemporaryDirectory(prefix="hetero-conformance-", ignore_cleanup_errors=True)
        self._child: _Child | None = None
        self._limit = order.limit
        self._limit_after_hang: float | None = None
        self._deaths_of_level: Counter[str] = Counter()
        self._left_out_of_level: Counter[str] = Counter()
        self._obstacle = ""

    def __enter__(self) -> CheckProcesses:
        try:
            head, last = self._start_child(self._order)
            if isinstance(last, HeteroError):
                raise last
            if isinstance(head, Death):
                raise DeviceUnavailableError(f"cannot begin: {head.reason}\n{head.trace}".strip())
        except BaseException:
            self.__exit__()
            raise
        self.versions = head["versions"]
        self.checks = tuple(Check(name, level, lambda _: None) for name, level in head["checks"])
        self.subject = Subject(device=self._order.device, seed=self._order.seed, reference="" if isinstance(last, Death) else last)
        if isinstance(last, Death):
            self.opening = Outcome(OPENING, FAILED, last.reason, trace=last.trace)
            self._obstacle = "the device cannot be opened and closed again"
            self._end_child()
        return self

    def run_checks(self) -> Iterator[Outcome]:
        """Yields the outcome of each check in order, before them `opening`, after them a failure if the device cannot be closed."""
        if self.opening is not None:
            yield self.opening
        for check in self.checks:
            yield self.run_check(check)
        death = self.close()
        if death is not None:
            yield Outcome(CLOSING, FAILED, death.reason, trace=death.trace)

    def run_check(self, check: Check) -> Outcome:
        """Runs one of `checks` in the child and returns its outcome."""
        level = check.level
        if self._obstacle:
            return Outcome(check, NOT_RUN, self._obstacle)
        if self._left_out_of_level[level]:
            self._left_out_of_level[level] -= 1
            reason = f"several checks before them, of the level {level}, have ended the process or hung one after another"
            return Outcome(check, NOT_RUN, reason)
        answer = self._ask(check, self._limit * (CHOICES_LIMITS if level == "choices" else 1))
        if not isinstance(answer, Death):
            if answer["status"] == PASSED:
                self._deaths_of_level[level] = 0
            return Outcome(check, answer["status"], answer["reason"], finding=answer["finding"], trace=answer["trace"])
        self._deaths_of_level[level] += 1
        deaths = self._deaths_of_level[level]
        self._left_out_of_level[level] = 2 ** (deaths - DEATHS_IN_ROW) if deaths > DEATHS_IN_ROW else 0
        if self._limit_after_hang is None:
            self._limit_after_hang = self._run_probe()
        if answer.is_hang:
            self._limit = min(self._limit, self._limit_after_hang)
        return Outcome(check, FAILED, answer.reason, trace=answer.trace)

    def close(self) -> Death | None:
        """Lets the child close the device and end; returns the reason if it cannot."""
        child, self._child = self._child, None
        return None if child is None else child.close(self._limit)

    def __exit__(self, *_: object) -> None:
        """Kills the child, unless `close` was called, and removes all temporary files of the device."""
        self._end_child()
        self._folder.cleanup()

    def _ask(self, check: Check, limit: float) -> Any:
        """Returns the child's answer to a check, or its death; starts a child if there is none."""
        if self._child is None:
            # A child that builds the cases of one level starts sooner.
            last = self._start_child(replace(self._order, levels=(check.level,), patterns=()))[-1]
            if isinstance(last, Death | HeteroError):
                self._end_child()
                reason = last.reason if isinstance(last, Death) else str(last)
                return Death(f"the device cannot be opened again: {reason}", getattr(last, "trace", ""))
        assert self._child is not None
        answer = self._child.ask(check, limit)
        if isinstance(answer, Death):
            self._end_child()
        return answer

    def _start_child(self, order: Order) -> tuple[Any, Any]:
        """Returns the first messages of a new child: versions and checks, then the reference device; or an error or its death."""
        self._child = _Child(order, self._folder.name)
        head = self._child.receive()
        return head, head if isinstance(head, Death | HeteroError) else self._child.receive()

    def _run_probe(self) -> float:
        """Runs PROBE, in which the device may die again. Returns the time limit of a check after one that has hung."""
        answer = self._ask(PROBE, min(self._limit, PROBE_SECONDS))
        if not isinstance(answer, Death):
            return max(HUNG_SECONDS, SLOWER * float(answer["seconds"]))
        ending = "hangs" if answer.is_hang else "ends its process"
        self._obstacle = f"the device {ending} in {PROBE.name}, too, with a network of two nodes"
        return HUNG_SECONDS

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


class _Child:
    """A child process, its connection, and the file that it writes to."""

    def __init__(self, order: Order, folder: str) -> None:
        self._levels = {*order.levels} or {*LEVELS}
        self._output = Path(folder) / "output"
        self._output.write_bytes(b"")
        # A forked child would inherit threads and locks of this process.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve_checks, args=(theirs, order, folder), name="conformance")
        self._process.start()
        theirs.close()
        self._began = monotonic()
        self._limit = self._whole_limit = order.limit
        self._grace = BUILDING_SECONDS

    def ask(self, check: Check | None, limit: float) -> Any:
        """Returns the answer to a check, None to close the device; or the child's end."""
        os.truncate(self._output, 0)  # a device may write without end
        self._began, self._limit, self._grace = monotonic(), limit, GRACE_SECONDS
        if check is not None and check.level not in self._levels:
            self._levels.add(check.level)
            self._grace = BUILDING_SECONDS
        with suppress(OSError):  # a child that has died meanwhile is seen below
            self._connection.send(None if check is None else (check.name, check.level, limit))
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

    def close(self, limit: float) -> Death | None:
        """Lets the child close the device and end. Returns the reason if it does not, or not with exit code 0."""
        failure = self.ask(None, limit)
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
        if code is None or re.search(r"^Timeout \(\d+:\d\d:\d\d", trace, re.MULTILINE):
            stacks = "; the stacks of all threads follow" if "most recent call first" in trace else ""
            origin = "--timeout" if self._limit >= self._whole_limit else "a shorter limit than --timeout"
            reason = f"did not end within {self._limit:g} seconds ({origin}); the device, or the core, hangs{stacks}"
            return Death(reason, trace, is_hang=True)
        return Death(f"the device ended the process of the checks{when}: {_describe_code(code)}", trace)


def _describe_code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def serve_checks(connection: Connection, order: Order, folder: str) -> None:
    """Opens the device, and answers each check, until the parent sends None or is gone. Runs in the child."""
    _prepare_child(folder)
    try:
        with Core() as core:
            versions = dict(core.get_versions(order.device))
        checks = {check.name: check for check in choose_checks(order.levels, order.patterns, cases=order.cases)}
    except HeteroError as error:
        connection.send(error)
        return
    connection.send({"checks": [(check.name, check.level) for check in checks.values()], "versions": versions})
    target = _open_target(order)
    if not isinstance(target, Target):
        connection.send(target)
        return
    connection.send(target.reference)
    shared = SharedCore(target)
    try:
        for name, level, limit in iter(connection.recv, None):
            if name not in checks:
                checks |= {check.name: check for check in choose_checks((level,), cases=order.cases)}
            began = monotonic()
            with _limited(limit):
                outcome = try_check(checks[name], target, shared)
            connection.send({**_pack(outcome), "seconds": monotonic() - began})
    except (EOFError, OSError):
        os._exit(1)  # the parent is gone
    with _limited(order.limit):
        try:
            shared.close()
            failure = ""
        except Exception as error:  # noqa: BLE001  # a device may raise anything; the parent reports it
            failure = describe_error(error)
        connection.send(failure)
    # The threads of the device are joined, and its libraries unloaded, as Python ends.
    faulthandler.dump_traceback_later(order.limit, exit=True, file=2)


def _prepare_child(folder: str) -> None:
    """Sends output and temporary files of the device to the folder, and crashes and exits with their stacks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which reports and ends this process
    output = os.open(os.path.join(folder, "output"), os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # the last lines before a crash
    faulthandler.enable(2)
    os._exit = partial(_exit_with_stack, os._exit)
    # Temporary files of a device vanish with the folder, also after a crash.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.environ.setdefault(FOLDER_VARIABLE, folder)
    # Checks judge the results of a device, not its warnings.
    warnings.simplefilter("ignore")
    logging.getLogger("hetero_core.blobs.container").setLevel(logging.ERROR)


def _exit_with_stack(exit_process: Callable[[int], NoReturn], status: int) -> NoReturn:
    faulthandler.dump_traceback(2, all_threads=False)
    exit_process(status)


def _open_target(order: Order) -> Target | Death | HeteroError:
    """Returns the target; a death if the device cannot be opened, an error if the order names no device or no value of a key."""
    try:
        with _limited(order.limit):
            return make_target(order.device, seed=order.seed, reference=order.reference, config=order.config)
    except (DeviceNotFoundError, DeviceNameError, ConfigKeyError, ConfigValueError) as error:
        return error
    except BaseException as error:  # noqa: BLE001  # a device may raise anything; the parent reports it
        return Death(describe_error(error), "".join(traceback.format_exception(error)))


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Ends this process after so many seconds, with the stacks of all threads, also if native code holds the interpreter's lock."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _pack(outcome: Outcome) -> dict[str, Any]:
    error = None if isinstance(outcome.error, CheckFailed) else outcome.error
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    return {"status": outcome.status, "reason": outcome.reason, "finding": outcome.finding, "trace": trace}
