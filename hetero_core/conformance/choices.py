"""Choices: the contract checks, repeated per subject for each value that a configuration key of the device declares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from hetero_core.conformance.catalogue import STATIC_CHECKS
from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip, require
from hetero_core.conformance.runner import FAILED, try_check
from hetero_core.conformance.samples import Sample, make_sample, run_in_own_process
from hetero_core.core import Core
from hetero_core.devices.names import parse_device_name
from hetero_core.dtypes import TOLERANCES
from hetero_core.errors import HeteroError
from hetero_core.network.writer import write_network

REPEATED = (
    *("query", "load", "meaning", "tensors", "values", "dynamic_shapes", "requests", "callbacks", "cancel", "perf_counts"),
    *("lifetime", "start"),
)
"""The subjects that a choice of a configuration key may change; the others are the same under every choice."""
OWN = "choices.loads_keep_their_own_choice"
VISIBLE = 1e-5
"""The least relative difference of two choices' results; it is above the rounding differences of another order."""

SHORT_TYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "float16": "float16",
    "performance": "bfloat16",
    "tf32": "float16",
}
"""Choices that name or allow a type shorter than float32, in lower case -> the element type whose tolerance then holds.

EXECUTION_MODE_HINT=PERFORMANCE lets a device compute in the shortest type that its hardware has.
"""


@cache
def list_choice_checks() -> tuple[Check, ...]:
    """Returns a check for each subject, and the check of networks loaded under different choices at once."""
    repeated = (
        (subject, partial(check_choices, tuple(check for check in STATIC_CHECKS if check.subject == subject)))
        for subject in REPEATED
    )
    return (
        *(Check(f"choices.{subject}", "choices", function, needs=("single",), shares_core=True) for subject, function in repeated),
        Check(OWN, "choices", loads_keep_their_own_choice, needs=("single",)),
    )


def check_choices(checks: tuple[Check, ...], context: CheckContext) -> None:
    """Every check of a subject of the level `contract` passes under each declared choice of the device's keys but the default."""
    choices = list(iterate_choices(context))
    if not choices:
        raise Skip("the device declares no key with choices that this machine has, besides the defaults")
    problems = [problem for name, choice in choices for check in checks if (problem := _find_problem(check, context, name, choice))]
    if problems:
        raise CheckFailed("; ".join(problems))


def loads_keep_their_own_choice(context: CheckContext) -> None:
    """Networks that a Core loads under different choices each compute by their own choice, in any order of loading."""
    sample = make_sample(context, "chain")
    inputs = sample.draw(context.seed)
    compared_count = 0
    usable = list(iterate_choices(context))
    without = _run_alone(context, sample, inputs, {}) if usable else None
    for name, choice in usable:
        configs: list[dict[str, Any]] = [{}, {name: choice}]
        alone = [without, _run_alone(context, sample, inputs, configs[1])]
        distance = float(np.max(np.abs(alone[0] - alone[1])))
        if not distance > VISIBLE * float(np.max(np.abs(alone[0]))):
            continue  # this choice does not change these numbers
        compared_count += 1
        with context.make_core() as core:
            for first, second in ((0, 1), (1, 0)):
                loaded = {index: core.load_network(sample.network, context.device, configs[index]) for index in (first, second)}
                for index in (second, first):
                    value = np.asarray(loaded[index].infer(inputs)["y"], np.float64)
                    is_own = float(np.max(np.abs(value - alone[index]))) <= distance / 4
                    what = f"under {configs[index] or 'no choice'}, beside one under {configs[1 - index] or 'none'}"
                    why = "does not compute as it does alone: the device keeps the choice of another load"
                    require(is_own, f"a network loaded {what}, {why}")
    if not compared_count:
        raise Skip("the device declares no key with choices that change what a small network computes")


def _run_alone(context: CheckContext, sample: Sample, inputs: dict[str, Any], config: dict[str, Any]) -> Any:
    """Returns the output in a process of its own, in which no cache holds another load; in this process if the device is not installed."""
    try:
        outputs = run_in_own_process(
            context,
            lambda path: write_network(sample.network, path),
            inputs,
            config,
            kind="model",
            what=f"a process that loads a network under {config or 'no choice'} fails",
        )
    except Skip:
        with context.make_core() as core, core.load_network(sample.network, context.device, config) as loaded:
            outputs = loaded.infer(inputs)
    return np.asarray(outputs["y"], np.float64)


def iterate_choices(context: CheckContext) -> Iterator[tuple[str, Any]]:
    """Yields key and value of each declared choice that is not the default and that this machine supports, in the order of declaration.

    A load refuses a precision hint that the processor lacks.
    """
    network = make_sample(context, "chain").network
    for name, key in context.facts.keys.items():
        choices = (False, True) if key.type is bool else key.choices
        for choice in (choice for choice in choices if name not in context.configured and choice != key.default):
            with suppress(HeteroError):
                context.load(network, {name: choice}).close()
                yield name, choice


def _find_problem(check: Check, context: CheckContext, name: str, choice: Any) -> str | None:
    """Returns the error of this check under a choice as text, None if it passes or does not apply."""

    def make_core() -> Core:
        core = context.make_core()
        core.set_config({name: choice}, parse_device_name(context.device).name)
        return core

    rtol = TOLERANCES.get(SHORT_TYPES.get(str(choice).lower(), ""), context.rtol)
    outcome = try_check(check, replace(context, make_core=make_core, configured=context.configured | {name}, rtol=rtol))
    return f"under {name}={choice}, {check.name}: {outcome.reason}" if outcome.status == FAILED else None
