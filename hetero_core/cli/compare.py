"""`hetero compare`: the outputs of a model as it is on two devices, then every value of it, and where they part first."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, UsageError
from hetero_core.cli.divergences import advise_on_plan, describe_divergence, format_divergence
from hetero_core.cli.options import (
    Parser,
    add_command,
    add_input_options,
    add_repeated,
    read_config,
    read_model,
    read_shapes,
    whole_number,
)
from hetero_core.cli.progress import Announcer, follow
from hetero_core.cli.run import read_tolerance, wait_for_kernels

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork

_MOST_SECONDS = 60.0
"""Seconds to wait for machine code that is compiled in the background."""


def add_parser(subparsers: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command."""
    parser = add_command(subparsers, "compare", "compare every value of a model on two devices", answer_compare)
    parser.add_argument("model", metavar="MODEL", help="an .onnx file, or a name as resnet50")
    parser.add_argument(
        "-d", "--device", required=True, action="append", metavar="DEVICE", help="given twice; the first one is the reference"
    )
    add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="a configuration key of the devices that have it")
    add_input_options(parser)
    parser.add_argument(
        "--rtol",
        type=read_tolerance,
        metavar="R",
        help="largest difference that passes, as a share of the largest expected value of each array (default: by element type)",
    )
    parser.add_argument(
        "--runs",
        type=whole_number(1),
        default=3,
        metavar="N",
        help="runs of the model as it is on the second device, the first included (3)",
    )
    parser.add_argument("--outputs", action="store_true", help="compare the outputs of the model as it is, and no inner values")
    parser.add_argument("--all", action="store_true", help="print every value, not only those that differ most or too much")


def answer_compare(options: argparse.Namespace) -> Answer:
    """Returns the values side by side; exit code 1 where one differs by too much.

    Raises: UsageError, errors of reading, devices, configuration and inputs.
    """
    from hetero_core.cli.inputs import collect_with_constants
    from hetero_core.core import Core  # reads the installed distributions
    from hetero_core.debugging.divergence import Divergence, compare_outputs_as_they_are, find_divergence

    if len(options.device) != 2:
        raise UsageError(f"expected two devices, as in -d TEMPLATE -d CPU; got {len(options.device)}")
    with Core() as core:
        configs = _split_config(core, options)
        network, inputs = collect_with_constants(
            read_model(core, options.model), options.input, shapes=read_shapes(options.shape), seed=options.seed
        )
        with ExitStack() as stack:
            step = follow(options)
            reference, other = (stack.enter_context(Runner(core, device, config, step)) for device, config in configs)
            if options.outputs:
                outputs = compare_outputs_as_they_are(
                    network, inputs, reference=reference, other=other, rtol=options.rtol, runs=options.runs
                )
                divergence = Divergence((), None, (), outputs)
            else:
                divergence = find_divergence(
                    network, inputs, reference=reference, other=other, rtol=options.rtol, runs=options.runs
                )
        plain = find_plain_kernels(core, options.device[1])
    fields = describe_divergence(divergence, network.name, options.device)
    text = format_divergence(divergence, network.name, options.device, shows_all=options.all)
    if divergence.is_of_plan and not options.outputs:
        text += "\n" + "\n".join(advise_on_plan(options, plain))
    return Answer(text, fields, OK if divergence.agrees else WRONG_RESULT)


def find_plain_kernels(core: Core, device: str) -> str | None:
    """Returns the setting of a device's configuration that runs node by node with NumPy, None where it has none."""
    keys = core.config_keys(device)
    return next(
        (f"{name}=NUMPY" for name in sorted(keys) if name.endswith("_KERNELS") and "NUMPY" in (keys[name].choices or ())), None
    )


def _split_config(core: Core, options: argparse.Namespace) -> list[tuple[str, dict[str, str]]]:
    """Returns each device with the keys that it has. Raises: UsageError for a key that none of them has."""
    pairs = read_config(options)
    known = {device: {name.upper() for name in core.config_keys(device)} for device in options.device}
    for key in pairs:
        if not any(key.upper() in names for names in known.values()):
            raise UsageError(f"-c {key}: neither {options.device[0]} nor {options.device[1]} has such a configuration key")
    configs = [(device, {key: value for key, value in pairs.items() if key.upper() in known[device]}) for device in options.device]
    for device, config in configs:
        core.resolve_config(device, config)
    return configs


class Runner:
    """Runs networks on a device with its configuration; the network of the last run stays loaded, for the next run of it."""

    def __init__(self, core: Core, device: str, config: Mapping[str, str], step: Announcer) -> None:
        self._step = step
        self._core = core
        self._device = device
        self._config = config
        self._network: Network | None = None
        self._loaded: ExecutableNetwork | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loaded is not None:
            self._loaded.close()

    def __call__(self, network: Network, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the outputs; before the second run and later ones machine code that is being compiled is waited for."""
        if self._loaded is None or network is not self._network:
            self.__exit__()
            with self._step(f"loading network '{network.name}' on {self._device}"):
                self._network, self._loaded = network, self._core.load_network(network, self._device, self._config)
        else:
            with self._step(f"waiting until {self._device} has compiled its machine code"):
                wait_for_kernels(self._loaded, inputs, most_seconds=_MOST_SECONDS)
        with self._step(f"running network '{network.name}' on {self._device}"):
            return self._loaded.infer(inputs)
