"""A divergence of two devices as text and as fields, and the advice where it is the plan's."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hetero_core.cli.tables import format_number, format_table

if TYPE_CHECKING:
    from hetero_core.debugging.divergence import Divergence, ValueDifference

_MOST_ROWS = 20


def describe_divergence(divergence: Divergence, network: str, devices: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of the command's JSON."""
    return {
        "network": network,
        "devices": list(devices),
        "agrees": divergence.agrees,
        "is_of_plan": divergence.is_of_plan,
        "outputs": [_to_fields(each) for each in divergence.outputs],
        "first": None if divergence.first is None else _to_fields(divergence.first),
        "alone": [_to_fields(each) for each in divergence.alone],
        "values": [_to_fields(each) for each in divergence.values],
    }


def _to_fields(each: ValueDifference) -> dict[str, Any]:
    return {
        "value": each.value,
        "node": each.node,
        "operator": each.operator,
        "max_absolute_difference": each.absolute,
        "max_relative_difference": each.relative,
        "mismatch": each.mismatch,
    }


def format_divergence(divergence: Divergence, network: str, devices: Sequence[str], *, shows_all: bool) -> str:
    """Returns the outputs and the values as tables, and what they show."""
    title = f"network '{network}': {len(divergence.values)} values on {devices[1]}, compared with {devices[0]}"
    parts = [title, "outputs of the network as it is:", _format_rows(divergence.outputs)]
    if divergence.values:
        shown = list(divergence.values) if shows_all else _choose_rows(divergence)
        parts += ["values of the network with its inner values as outputs:", _format_rows(shown)]
        if len(shown) < len(divergence.values):
            parts.append(f"  {len(divergence.values) - len(shown)} more, smaller or later ones; --all shows them")
    return "\n".join([*parts, "", *_conclude(divergence, devices)])


def advise_on_plan(options: argparse.Namespace, plain: str | None) -> list[str]:
    """Returns what to do about a difference that is the plan's; `plain` is a setting of the device that runs without such a plan."""
    given = [*(("-c", each) for each in options.config), *(("--shape", each) for each in options.shape)]
    given += [("-i", each) for each in options.input] + ([("--seed", str(options.seed))] if options.seed else [])
    pairs = [("-d", options.device[0]), ("-d", options.device[1]), *given]
    words = ["hetero", "reduce", options.model, *(word for pair in pairs for word in pair), "-o", "small.onnx"]
    lines = [f"  the smallest such network, for a report: {shlex.join(words)}"]
    return lines if plain is None else [*lines, f"  until it is mended, run without such plans: -c {plain}"]


def _format_rows(differences: Sequence[ValueDifference]) -> str:
    rows = [
        (
            each.value,
            each.node,
            each.operator,
            format_number(each.absolute),
            format_number(each.relative),
            "DIFFERS" if each.mismatch else "same",
        )
        for each in differences
    ]
    return format_table(("VALUE", "NODE", "OPERATOR", "LARGEST DIFFERENCE", "RELATIVE", "RESULT"), rows, indent="  ")


def _choose_rows(divergence: Divergence) -> list[ValueDifference]:
    """Returns the first values that differ too much and the largest differences, in order of execution."""
    wrong = [each for each in divergence.values if each.mismatch is not None][: _MOST_ROWS // 2]
    by_size = sorted(divergence.values, key=lambda each: -(each.relative if each.relative is not None else 0.0))
    chosen = {id(each) for each in [*wrong, *by_size[: _MOST_ROWS - len(wrong)]]}
    return [each for each in divergence.values if id(each) in chosen]


def _conclude(divergence: Divergence, devices: Sequence[str]) -> list[str]:
    wrong = divergence.wrong_outputs
    if divergence.first is None and not wrong:
        return ["no value differs by more than its element type allows"]
    if divergence.first is None:
        lines = [f"wrong output: {wrong[0].mismatch}"]
        if not divergence.values:
            return lines
        return [
            *lines,
            "  it is right when inner values are outputs, too: the fault is no node's, "
            f"but that of the plan by which {devices[1]} runs them together",
        ]
    lines = [
        f"first divergence: {divergence.first.mismatch}",
        f"  made by node '{divergence.first.node}' ({divergence.first.operator})",
    ]
    if not divergence.alone:
        return lines
    apart = [each for each in divergence.alone if each.mismatch is not None]
    if apart:
        return [*lines, f"  given the same inputs, the node alone differs, too: {apart[0].mismatch}"]
    return [*lines, f"  given the inputs of {devices[0]}, the node alone agrees: it passes on smaller differences of its inputs"]
