"""DeviceConformance: the checks of the conformance kit as a base class for tests.

    class TestMine(DeviceConformance):
        device = "MINE"

Every check runs. A check that is known to fail is named in `xfail`, with the reason, and has to fail. Checks cannot be left out in any
other way: a class that replaces or removes the methods that run the checks is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from hetero_core.conformance.catalogue import UnknownCheckError, choose_checks
from hetero_core.conformance.check import Check, CheckFailed
from hetero_core.conformance.runner import (
    FAILED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    CheckProcesses,
    Order,
    Outcome,
    SharedCore,
    make_target,
    run_check,
)

GUARDED = ("test_check", "pytest_generate_tests", "opened_target", "__init_subclass__")
"""Attributes that a class derived from DeviceConformance must not override."""


class DeviceConformance:
    """Runs every check on `device`.

    `plugin` is registered under the device's name, for a plugin that is not installed. `reference` and `seed` default to the command
    line. `config` is set for the device in every Core. `xfail` maps names of checks to reasons.
    """

    device: ClassVar[str] = ""
    plugin: ClassVar[Any] = None
    reference: ClassVar[str | None] = None
    seed: ClassVar[int] = 0
    config: ClassVar[Mapping[str, Any]] = {}
    xfail: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Raises TypeError if the subclass replaces a guarded name."""
        super().__init_subclass__(**keywords)
        for name in GUARDED:
            if inspect.getattr_static(cls, name) is not DeviceConformance.__dict__[name]:
                raise TypeError(
                    f"{cls.__name__} replaces or deletes {name}, which runs the conformance checks; no check may be left out in "
                    "silence. Name the checks that are known to fail in xfail = {check: reason}"
                )

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Makes a test of each check; an unknown name in `xfail` or on the command line ends the collection."""
        if "check" not in metafunc.fixturenames:
            return
        option = metafunc.config.getoption
        if not (self.device or option("--hetero-device", None)):
            raise pytest.Collector.CollectError(
                f"{type(self).__name__} has no device; set device = 'NAME', or give --hetero-device NAME"
            )
        try:
            for name, reason in self.xfail.items():
                choose_checks((), [name])
                if not isinstance(reason, str) or not reason.strip():
                    raise UnknownCheckError(f"xfail['{name}'] has no reason; say why the check fails")
            checks = choose_checks(**_read_choice(metafunc.config))
        except UnknownCheckError as error:
            raise pytest.Collector.CollectError(f"{type(self).__name__}: {error}") from error
        metafunc.parametrize("check", checks, ids=[check.name for check in checks])

    @pytest.fixture(scope="class")
    @classmethod
    def opened_target(cls, request: pytest.FixtureRequest) -> Iterator[Callable[[Check], Outcome]]:
        """A function that runs a check: of an installed device in a child process, of `plugin` and under --pdb in this process."""
        option = request.config.getoption
        seed, reference = option("--hetero-seed", None), option("--hetero-reference", None)
        device = cls.device or option("--hetero-device")
        seed = cls.seed if seed is None else seed
        reference = cls.reference if reference is None else reference
        if cls.plugin is None and not option("usepdb"):
            choice = _read_choice(request.config)
            order = Order(device=device, seed=seed, reference=reference, config=cls.config, **choice)
            with CheckProcesses(order) as processes:
                if processes.opening is None:
                    yield processes.run_check
                death = processes.close()
            if processes.opening is not None:
                _report(processes.opening)
            if death is not None:
                pytest.fail(f"{death.reason}\n{death.trace}", pytrace=False)
            return
        target = make_target(device, plugin=cls.plugin, seed=seed, reference=reference, config=cls.config)
        with SharedCore(target) as shared:
            yield lambda check: run_check(check, target, shared=shared)

    def test_check(self, check: Check, opened_target: Callable[[Check], Outcome]) -> None:
        """Runs one check."""
        outcome = opened_target(check)
        expected = self.xfail.get(check.name)
        if expected is None:
            _report(outcome)
        elif outcome.status in (FAILED, NOT_RUN):
            pytest.xfail(f"{expected}: {outcome.reason}")
        else:
            ended = "passes" if outcome.status == PASSED else f"does not apply ({outcome.reason})"
            pytest.fail(f"{check.name} is expected to fail ({expected}) and {ended}; take it out of xfail", pytrace=False)


def _read_choice(config: pytest.Config) -> dict[str, Any]:
    """Returns the choice of checks on the command line."""
    levels, patterns, cases = (config.getoption(f"--hetero-{name}", None) for name in ("level", "check", "cases"))
    return {"levels": tuple(levels or ()), "patterns": tuple(patterns or ()), "cases": cases}


def _report(outcome: Outcome) -> None:
    if outcome.status == SKIPPED:
        pytest.skip(outcome.reason)
    if outcome.status == NOT_RUN:
        pytest.fail(f"{outcome.check.name} was not run: {outcome.reason}", pytrace=False)
    if outcome.status == FAILED and (outcome.error is None or isinstance(outcome.error, CheckFailed)):
        pytest.fail(f"{outcome.check.name}: {outcome.reason}\n{outcome.trace}".rstrip(), pytrace=False)
    if outcome.error is not None:
        raise outcome.error
