"""`hetero compare`: compares the outputs of a model on two devices, then every inner value, and names the first difference."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hetero_core.cli import options as shared
from hetero_core.cli.answer import OK, WRONG_RESULT, Announcer, Answer, UsageError, follow, format_number, format_table
from hetero_core.composing.runs import is_ready, warm_up
from hetero_core.core import Core
from hetero_core.reports.fields import record_to_json

if TYPE_CHECKING:
    from hetero_core.debugging.divergence import Divergence, ValueDifference
    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork


_MOST_SECONDS = 60.0
"""Seconds to wait for machine code that is compiled in the background."""


def add_options(parser: shared.Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file, or a name as resnet50")
    text = "given twice; the first one is the reference"
    parser.add_argument("-d", "--device", required=True, action="append", metavar="DEVICE", help=text)
    shared.add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="a configuration key of the devices that have it")
    shared.add_input_options(parser)
    shared.add_rtol(parser)
    text = "runs of the model as it is on the second device, the first included (3)"
    parser.add_argument("--runs", type=shared.whole_number(1), default=3, metavar="N", help=text)
    parser.add_argument("--outputs", action="store_true", help="compare the outputs of the model as it is, and no inner values")
    parser.add_argument("--all", action="store_true", help="print every value, not only those that differ most or too much")


def answer(options: argparse.Namespace) -> Answer:
    """Returns the values; exit code 1 if one differs by too much. Raises: UsageError, errors of devices, configuration and inputs."""
    from hetero_core.cli.inputs import collect_inputs
    from hetero_core.debugging.divergence import compare_unmodified, find_divergence
    from hetero_core.runtime.loading import list_replaceable
    from hetero_core.transforms.optional_inputs import free_constants  # imports onnx, for inference

    if len(options.device) != 2:
        raise UsageError(f"expected two devices, as in -d TEMPLATE -d CPU; got {len(options.device)}")
    with Core() as core:
        configs = list(zip(options.device, shared.share_config(core, options.device, shared.read_config(options)), strict=True))
        for device, config in configs:
            core.resolve_config(device, config)  # a wrong value is reported before the model is read
        model = shared.read_model(core, options.model)
        inputs = collect_inputs(options, model.inputs, network=model.name, replaceable=list_replaceable(model))
        names = tuple(name for name in model.border.replaceable if name in inputs)
        network = free_constants(model, names) if names else model
        reference, other = (Runner(core, device, config, follow(options)) for device, config in configs)
        compare = compare_unmodified if options.outputs else find_divergence
        divergence = compare(network, inputs, reference=reference, other=other, rtol=options.rtol, runs=options.runs)
    verdict = {"agrees": divergence.agrees, "is_of_plan": divergence.is_of_plan}
    fields = {"network": network.name, "devices": options.device, **verdict, **record_to_json(divergence)}
    text = format_divergence(divergence, network.name, options.device, shows_all=options.all)
    if divergence.is_of_plan and not options.outputs:
        text += f"\n{advise_on_plan(options)}"
    return Answer(text, fields, OK if divergence.agrees else WRONG_RESULT)


class Runner:
    """Runs networks on a device with its configuration. The last network stays loaded, so that running it again does not load it."""

    def __init__(self, core: Core, device: str, config: Mapping[str, str], step: Announcer) -> None:
        self._core, self._device, self._config, self._step = core, device, config, step
        self._network: Network | None = None
        self._loaded: ExecutableNetwork | None = None

    def __call__(self, network: Network, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the outputs; the second and later runs wait until the device has compiled its machine code."""
        if self._loaded is None or network is not self._network:
            if self._loaded is not None:
                self._loaded.close()
            with self._step(f"loading network '{network.name}' on {self._device}"):
                self._network, self._loaded = network, self._core.load_network(network, self._device, self._config)
        else:
            with self._step(f"waiting until {self._device} has compiled its machine code"):
                if not is_ready(self._loaded):
                    warm_up(self._loaded, partial(self._loaded.infer, inputs), _MOST_SECONDS)
        with self._step(f"running network '{network.name}' on {self._device}"):
            return self._loaded.infer(inputs)


_MOST_ROWS = 20


def format_divergence(divergence: Divergence, network: str, devices: Sequence[str], *, shows_all: bool) -> str:
    """Returns the outputs and the values as tables, and a conclusion."""
    title = f"network '{network}': {len(divergence.values)} values on {devices[1]}, compared with {devices[0]}"
    parts = [title, "outputs of the network as it is:", _format_rows(divergence.outputs)]
    if divergence.values:
        shown = list(divergence.values) if shows_all else _choose_rows(divergence)
        parts += ["values of the network with its inner values as outputs:", _format_rows(shown)]
        if len(shown) < len(divergence.values):
            parts.append(f"  {len(divergence.values) - len(shown)} more, smaller or later ones; --all shows them")
    return "\n".join([*parts, "", *_conclude(divergence, devices)])


def advise_on_plan(options: argparse.Namespace) -> str:
    """Returns the command that finds the smallest network with a difference that is the plan's."""
    words = ["hetero", "reduce", options.model, "-d", options.device[0], "-d", options.device[1]]
    for option, values in (("-c", options.config), ("--shape", options.shape), ("-i", options.input)):
        words += [word for value in values for word in (option, value)]
    words += ["--seed", str(options.seed)] if options.seed else []
    return f"  the smallest such network, for a report: {shlex.join([*words, '-o', 'small.onnx'])}"


def _format_rows(differences: Sequence[ValueDifference]) -> str:
    rows = []
    for each in differences:
        numbers = map(format_number, (each.max_absolute_difference, each.max_relative_difference))
        rows.append((each.value, each.node, each.operator, *numbers, "DIFFERS" if each.mismatch else "same"))
    return format_table(("VALUE", "NODE", "OPERATOR", "LARGEST DIFFERENCE", "RELATIVE", "RESULT"), rows, indent="  ")


def _choose_rows(divergence: Divergence) -> list[ValueDifference]:
    """Returns the first values that differ too much and the largest differences, in order of execution."""
    wrong = [each for each in divergence.values if each.mismatch is not None][: _MOST_ROWS // 2]
    by_size = sorted(divergence.values, key=lambda each: -(each.max_relative_difference or 0.0))
    chosen = {id(each) for each in [*wrong, *by_size[: _MOST_ROWS - len(wrong)]]}
    return [each for each in divergence.values if id(each) in chosen]


def _conclude(divergence: Divergence, devices: Sequence[str]) -> list[str]:
    wrong, first = divergence.wrong_outputs, divergence.first
    if first is None and not wrong:
        return ["no value differs by more than its element type allows"]
    if first is None:
        cause = "  it is right when inner values are outputs, too: the fault is no node's, but that of the plan by which "
        lines = [f"{cause}{devices[1]} runs them together"] if divergence.values else []
        return [f"wrong output: {wrong[0].mismatch}", *lines]
    lines = [f"first divergence: {first.mismatch}", f"  made by node '{first.node}' ({first.operator})"]
    apart = [each.mismatch for each in divergence.alone if each.mismatch is not None]
    if apart:
        lines.append(f"  given the same inputs, the node alone differs, too: {apart[0]}")
    elif divergence.alone:
        lines.append(f"  given the inputs of {devices[0]}, the node alone agrees: it passes on smaller differences of its inputs")
    return lines
