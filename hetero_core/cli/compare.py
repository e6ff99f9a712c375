"""`hetero compare`: every value of a model on two devices, and where they part first."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, UsageError
from hetero_core.cli.options import Parser, add_command, read_config, read_model, read_shapes
from hetero_core.cli.run import read_seed, read_tolerance
from hetero_core.cli.tables import format_table

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.debugging.divergence import Divergence, ValueDifference
    from hetero_core.network.graph import Network

_MOST_ROWS = 20


def add_parser(subparsers: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command."""
    parser = add_command(subparsers, "compare", "compare every value of a model on two devices", answer_compare)
    parser.add_argument("model", metavar="MODEL", help="an .onnx file")
    parser.add_argument(
        "-d", "--device", required=True, action="append", metavar="DEVICE", help="given twice; the first one is the reference"
    )
    parser.add_argument(
        "-c", "--config", action="append", default=[], metavar="KEY=VALUE", help="a configuration key of the devices that have it"
    )
    inputs = parser.add_argument_group("inputs", "what is not given is random")
    inputs.add_argument(
        "-i", "--input", action="append", default=[], metavar="NAME=FILE", help="a file as for 'hetero run'; may be repeated"
    )
    inputs.add_argument("--seed", type=read_seed, default=0, metavar="N", help="the seed of random inputs (0)")
    inputs.add_argument(
        "--shape", action="append", default=[], metavar="NAME=SIZE,...", help="the shape of a random input with open dimensions"
    )
    parser.add_argument(
        "--rtol",
        type=read_tolerance,
        metavar="R",
        help="largest difference, as a share of the largest expected value of each array (that of the element type)",
    )
    parser.add_argument("--all", action="store_true", help="print every value, not only those that differ most or too much")


def answer_compare(options: argparse.Namespace) -> Answer:
    """Returns the values side by side; exit code 1 where one differs by too much.

    Raises: UsageError, errors of reading, devices, configuration and inputs.
    """
    from hetero_core.cli.inputs import fill_inputs, read_inputs, require_complete
    from hetero_core.core import Core  # reads the installed distributions
    from hetero_core.debugging.divergence import find_divergence
    from hetero_core.runtime.door import order_inputs

    if len(options.device) != 2:
        raise UsageError(f"expected two devices, as in -d TEMPLATE -d CPU; got {len(options.device)}")
    with Core() as core:
        network = read_model(core, options.model)
        given = read_inputs(options.input, network.inputs, network=network.name)
        inputs = fill_inputs(given, network.inputs, read_shapes(options.shape), seed=options.seed)
        require_complete(inputs, network.inputs, network=network.name)
        order_inputs(inputs, network.inputs, network=network.name)
        reference, other = (_runner(core, device, config) for device, config in _split_config(core, options))
        found = find_divergence(network, inputs, reference=reference, other=other, rtol=options.rtol)
    fields = _describe(found, network.name, options.device)
    text = _format(found, network.name, options.device, shows_all=options.all)
    return Answer(text, fields, OK if found.first is None else WRONG_RESULT)


def _split_config(core: Core, options: argparse.Namespace) -> list[tuple[str, dict[str, str]]]:
    """Returns each device with the keys that it has. Raises: UsageError for a key that none of them has."""
    given = read_config(options)
    known = {device: {name.upper() for name in core.config_keys(device)} for device in options.device}
    for key in given:
        if not any(key.upper() in names for names in known.values()):
            raise UsageError(f"-c {key}: neither {options.device[0]} nor {options.device[1]} has such a configuration key")
    return [(device, {key: value for key, value in given.items() if key.upper() in known[device]}) for device in options.device]


def _runner(core: Core, device: str, config: Mapping[str, str]) -> Callable[[Network, Mapping[str, Any]], Mapping[str, Any]]:
    def run(network: Network, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        with core.load_network(network, device, config) as loaded:
            return loaded.infer(inputs)

    return run


def _describe(found: Divergence, network: str, devices: Sequence[str]) -> dict[str, Any]:
    return {
        "network": network,
        "devices": list(devices),
        "agrees": found.first is None,
        "first": None if found.first is None else _to_fields(found.first),
        "alone": [_to_fields(each) for each in found.alone],
        "values": [_to_fields(each) for each in found.values],
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


def _format(found: Divergence, network: str, devices: Sequence[str], *, shows_all: bool) -> str:
    title = f"network '{network}': {len(found.values)} values on {devices[1]}, compared with {devices[0]}"
    shown = list(found.values) if shows_all else _choose_rows(found)
    rows = [
        (each.value, each.node, each.operator, _show(each.absolute), _show(each.relative), "DIFFERS" if each.mismatch else "same")
        for each in shown
    ]
    parts = [title, format_table(("VALUE", "NODE", "OPERATOR", "LARGEST DIFFERENCE", "RELATIVE", "RESULT"), rows, indent="  ")]
    if len(shown) < len(found.values):
        parts.append(f"  {len(found.values) - len(shown)} more, smaller or later ones; --all shows them")
    return "\n".join([*parts, "", *_conclude(found, devices)])


def _choose_rows(found: Divergence) -> list[ValueDifference]:
    """Returns the first values that differ too much and the largest differences, in order of execution."""
    wrong = [each for each in found.values if each.mismatch is not None][: _MOST_ROWS // 2]
    by_size = sorted(found.values, key=lambda each: -(each.relative if each.relative is not None else 0.0))
    chosen = {id(each) for each in [*wrong, *by_size[: _MOST_ROWS - len(wrong)]]}
    return [each for each in found.values if id(each) in chosen]


def _conclude(found: Divergence, devices: Sequence[str]) -> list[str]:
    if found.first is None:
        return ["no value differs by more than its element type allows"]
    lines = [f"first divergence: {found.first.mismatch}", f"  made by node '{found.first.node}' ({found.first.operator})"]
    if not found.alone:
        return lines
    apart = [each for each in found.alone if each.mismatch is not None]
    if apart:
        return [*lines, f"  given the same inputs, the node alone differs, too: {apart[0].mismatch}"]
    return [*lines, f"  given the inputs of {devices[0]}, the node alone agrees: it passes on smaller differences of its inputs"]


def _show(number: float | None) -> str:
    return "-" if number is None else f"{number:.3g}"
