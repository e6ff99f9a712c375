"""Checks: plain functions with a name, a level and the capabilities that a device needs for them, and the errors by which they report.

A check takes one CheckContext. It fails with CheckFailed, or any other error; it raises Skip if it does not apply.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hetero_core.errors import UnsupportedNodesError
from hetero_core.testing.compare import describe_mismatch

if TYPE_CHECKING:
    from hetero_core.contract import ConfigKey, QueryResult
    from hetero_core.core import Core
    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork


LEVELS: Mapping[str, str] = {
    "contract": "the contract of every device: names, properties, query, load, tensors, requests, lifetime",
    "choices": "the checks of the contract under each choice that a configuration key of the device declares",
    "concurrency": "the checks of the contract by several threads at once",
    "export": "blobs and the cache; for devices that export",
    "operators": "every case of ONNX's backend suite: computed right, or refused with the reason",
    "contrib": "random cases of ONNX Runtime's own operators: computed as ONNX Runtime does, or refused with the reason",
    "models": "whole networks against onnx's reference evaluator, which ONNX Runtime confirms if it is installed",
    "hetero": "parts of a split network, beside a reference device",
    "graphs": "random networks against a reference in float64, alone, imported and split",
}
"""Level -> description, in the order in which the levels run."""

CAPABILITIES: Mapping[str, str] = {
    "export": "the device does not export networks",
    "extensions": "the device takes no extensions",
    "ids": "the device has fewer than two ids",
    "single": "the device is made of a list of devices",
    "hetero": "there is no HETERO device, or no reference device beside the one under test",
}
"""Capability that a check may need -> the reason for a skip if a device does not have it."""


class _Verdict(Exception):
    """An end of a check with its reason; `finding` holds details for reports."""

    def __init__(self, message: str, finding: object = None) -> None:
        super().__init__(message)
        self.finding = finding


class CheckFailed(_Verdict, AssertionError):
    """A check found that the device violates the contract."""


class Skip(_Verdict):  # not an error: the check says that it does not apply
    """A check does not apply to this device; the text says why."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts about a device, known before it is checked: its name without id and arguments, its ids, own keys and capabilities.

    `settings` are those of the process before the device was imported.
    """

    name: str
    ids: tuple[str, ...]
    keys: Mapping[str, ConfigKey]
    capabilities: tuple[str, ...]
    settings: Mapping[str, Any]
    plugin: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The head of a report: the device, the seed, the reference device."""

    device: str
    seed: int = 0
    reference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Subject):
    """A device to check in this process: the function that makes its Core, its facts, the keys that are set in each Core.

    `rtol` is the tolerance of floats under a configuration that computes in a shorter type; None is the tolerance of the element type.
    """

    make_core: Callable[[], Core]
    facts: DeviceFacts
    configured: frozenset[str] = frozenset()
    rtol: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext(Target):
    """The argument of a check: the target and an open Core. `make_core` opens another Core with the same devices; the caller closes it."""

    core: Core

    def get_metric(self, name: str) -> Any:
        """Returns a metric of the device."""
        return self.core.get_metric(self.device, name)

    def query(self, network: Network) -> QueryResult:
        """Returns the device's answer to a network."""
        return self.core.query_network(network, self.device)

    def load(self, network: Any, config: Mapping[str, Any] | None = None) -> ExecutableNetwork:
        """Returns a network or another form of a model, loaded on the device."""
        return self.core.load_network(network, self.device, config)

    def import_blob(self, source: Any) -> ExecutableNetwork:
        """Returns the network of a blob, imported on the device."""
        return self.core.import_network(source, self.device)


THREADS = 8
JOIN_SECONDS = 240.0

CheckFunction = Callable[[CheckContext], object]


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `name` is "subject.claim"; `needs` names CAPABILITIES.

    Checks with `shares_core` use one Core in turn: they set no configuration and register nothing.
    """

    name: str
    level: str
    function: CheckFunction
    needs: tuple[str, ...] = ()
    shares_core: bool = False

    def __call__(self, context: CheckContext) -> object:
        """Returns the finding for reports, None for most checks. Raises: CheckFailed, Skip, any error of the device."""
        return self.function(context)

    @property
    def subject(self) -> str:
        """The name in front of the dot."""
        return self.name.partition(".")[0]

    @property
    def summary(self) -> str:
        """The first paragraph of the function's docstring, in one line."""
        function = self.function.func if isinstance(self.function, partial) else self.function
        return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())


def check(subject: str, *, level: str = "contract", needs: Sequence[str] = ()) -> Callable[[CheckFunction], Check]:
    """Returns a decorator that makes a Check of a function, named "subject.function"."""
    assert level in LEVELS, level
    assert set(needs) <= set(CAPABILITIES), needs
    return lambda function: Check(f"{subject}.{function.__name__}", level, function, tuple(needs))


def require(condition: object, message: str) -> None:
    """Raises CheckFailed with the message unless the condition holds."""
    if not condition:
        raise CheckFailed(message)


def require_equal(actual: object, expected: object, what: str) -> None:
    """Raises CheckFailed, with the expected and the actual value, unless the two are equal."""
    if actual != expected:
        raise CheckFailed(f"{what}: expected {expected!r}, got {actual!r}")


def require_error(kind: type[BaseException], action: Callable[..., object], what: str, *arguments: object) -> BaseException:
    """Returns the error of this kind that the action raises when it is called with these arguments.

    Raises: CheckFailed if the action raises no error or an error of another class.
    """
    try:
        result = action(*arguments)
    except kind as error:
        require(str(error).strip(), f"{what}: {type(error).__name__} has no text; say what failed, on what, and what to do next")
        return error
    except CheckFailed as failure:
        raise CheckFailed(f"{what}: {failure}") from failure
    except Exception as error:  # a device may raise any other error; the check reports it
        raise CheckFailed(f"{what}: expected {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise CheckFailed(f"{what}: expected {kind.__name__}, got no error but {result!r:.200}")


def require_same(actual: Any, expected: Any, what: str, *, rtol: float | None = None) -> None:
    """Raises CheckFailed, with the place, if two results differ by more than `rtol`; None is the tolerance of the element type."""
    mismatch = describe_mismatch(actual, expected, rtol=rtol, name=what)
    if mismatch is not None:
        raise CheckFailed(mismatch)


def run_in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Runs `work(index)` in `count` threads that begin together.

    Raises: the error of the thread with the lowest index; CheckFailed if a thread does not end.
    """
    gate = threading.Barrier(count)
    errors: dict[int, BaseException] = {}

    def run(index: int) -> None:
        try:
            gate.wait(JOIN_SECONDS)
            work(index)
        except BaseException as error:  # noqa: BLE001  # raised below, in the thread of the check
            errors[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
    if errors:
        raise errors[min(errors)]
    if any(thread.is_alive() for thread in threads):
        raise CheckFailed(f"one of {count} threads did not end within {JOIN_SECONDS:g} seconds")


def require_refusal(core: Core, network: Network, device: str, result: QueryResult) -> str:
    """Returns the first refused node with its reason. Raises: CheckFailed unless load refuses the nodes of the query for its reasons."""
    try:
        core.load_network(network, device).close()
    except UnsupportedNodesError as error:
        if sorted(error.refusals) != sorted(result.refused):
            raise CheckFailed(f"query_network refuses {sorted(result.refused)}, load_network {sorted(error.refusals)}") from error
        for name, reason in result.refused.items():
            # A composed device has a reason from each of its devices.
            reasons = error.refusals[name].values()
            if not reasons or not all(part in reason for part in reasons):
                told = " and ".join(map(repr, reasons))
                raise CheckFailed(f"node '{name}': query_network says {reason!r}, load_network says {told}") from error
    except Exception as error:  # a device may raise anything
        told = f"{type(error).__name__}: {error}"
        raise CheckFailed(f"load_network of a refused network raised {told}; expected UnsupportedNodesError") from error
    else:
        raise CheckFailed(f"load_network loads it, though query_network refuses {sorted(result.refused)}")
    first, reason = next(iter(result.refused.items()))
    return f"{network.node(first).label}: {reason}"


def name_pair(device: str, other: str) -> str:
    """Returns the device string of a split over both devices."""
    return f"HETERO:{f'({device})' if ':' in device else device},{other}"


def skip_declared(context: CheckContext, deviation: str) -> None:
    """Raises: Skip if the device declares this deviation from ONNX."""
    declared = context.get_metric("VALUE_DEVIATIONS")
    if deviation in declared:
        raise Skip(f"the device declares in the metric VALUE_DEVIATIONS that it deviates here: {', '.join(declared)}")


def load_claimed(core: Core, network: Network, device: str) -> ExecutableNetwork:
    """Returns the loaded network; the query must have claimed all its nodes. Raises: CheckFailed if the load refuses it."""
    try:
        return core.load_network(network, device)
    except UnsupportedNodesError as error:
        raise CheckFailed(f"claimed by query, refused by load: {error}") from error


def load_each(context: CheckContext, networks: Mapping[str, Network]) -> Iterator[tuple[str, ExecutableNetwork]]:
    """Yields each network that the device claims, loaded, with its name. Raises: Skip if the device claims no network."""
    claimed = {name: network for name, network in networks.items() if not context.query(network).refused}
    if not claimed:
        raise Skip(f"the device takes none of {', '.join(networks)} in the networks of this check")
    for name, network in claimed.items():
        with load_claimed(context.core, network, context.device) as loaded:
            yield name, loaded
