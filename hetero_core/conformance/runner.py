"""The runner: runs checks in sequence in this process, each with a time limit, and records their outcomes and reasons.

Each check has its own thread. Python cannot stop a thread, so a hanging check is abandoned with its thread and Core, and the next
check starts. `processes` runs the checks of an installed device in another process, which may crash or hang.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hetero_core.conformance.check import CAPABILITIES, Check, CheckContext, CheckFailed, DeviceFacts, Skip
from hetero_core.conformance.contract_resources import read_settings
from hetero_core.contract import Extension
from hetero_core.core import Core
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.devices.registry import load_entry_point
from hetero_core.errors import HeteroError, NotImplementedByDeviceError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The head of a report: the device, the seed, the reference device."""

    device: str
    seed: int = 0
    reference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Subject):
    """A device to check in this process: the function that makes its Core, its facts, the keys that are set in each Core."""

    make_core: Callable[[], Core]
    facts: DeviceFacts
    configured: frozenset[str] = frozenset()


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
    loaded = announcement.plugin if announcement.entry_point is None else load_entry_point(announcement)
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


def try_check(check: Check, target: Target, shared: SharedCore | None) -> Outcome:
    """Runs a check in the thread of the caller, without a time limit, and returns its outcome."""
    for need in check.needs:
        if need not in target.facts.capabilities:
            return Outcome(check, SKIPPED, CAPABILITIES[need])
    try:
        with _choose_core(check, target, shared) as core:
            facts = (target.facts, target.seed, target.reference, target.make_core, target.configured)
            finding = check(CheckContext(core, target.device, *facts))
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
