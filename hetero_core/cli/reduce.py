"""`hetero reduce`: the smallest part of a model that still fails a check of the user's own."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import Answer, UsageError, follow
from hetero_core.cli.options import Parser, add_input_options, add_repeated, find_target, open_named_model, read_model, read_shapes
from hetero_core.core import Core
from hetero_core.reports.text import count

if TYPE_CHECKING:
    from hetero_core.network.graph import Network

PLACE = "{}"


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file that fails the check, or a name as resnet50")
    parser.add_argument(
        "--check",
        metavar="COMMAND",
        help="a command that exits with another code than 0 if the model fails; {} stands for the model's path, without {} it is appended",
    )
    add_repeated(
        parser,
        "-d",
        "--device",
        metavar="DEVICE",
        help="given twice in place of --check: the check fails if the outputs of the second device differ from those of the first",
    )
    add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="with -d: a configuration key of the devices that have it")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write the reduced model")
    parser.add_argument(
        "--record",
        metavar="DEVICE",
        help="run the model there once; values of removed nodes become constants, not inputs",
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds after which a check counts as passed (600)"
    )
    add_input_options(parser, "inputs of --record and of -d")


def answer(options: argparse.Namespace) -> Answer:
    """Returns the reduced model's size. A part fails if its check ends with the same code as on the whole model.

    Raises: UsageError when the check passes or cannot be started; errors of reading, devices and inputs.
    """
    from hetero_core.debugging.reduction import reduce_network
    from hetero_core.network.writer import write_network

    command, target = _choose_check(options), find_target(options.output)
    with Core() as core, tempfile.TemporaryDirectory(prefix="hetero-reduce-") as folder:
        network = read_model(core, options.model)
        step = follow(options)
        with step(f"recording the values of '{options.model}'"):
            recorded = None if options.record is None else _record(core, network, options)
        with step(f"checking '{options.model}'"), open_named_model(options.model) as model:
            check = _run_check(command, model, options.timeout)
        if check == 0:
            raise UsageError(f"the check passes on '{options.model}': {shlex.join(command)}; expected one that fails")
        path = Path(folder) / "model.onnx"
        checks = 0

        def fails(part: Network) -> bool:
            nonlocal checks
            checks += 1
            write_network(part, path)
            with step(f"check {checks}, on {count(part.nodes, 'node')} of {len(network.nodes)}"):
                return _run_check(command, str(path), options.timeout) == check

        try:
            reduced = reduce_network(network, fails, recorded=recorded)
        except ValueError as error:
            raise UsageError(
                f"the check fails on '{options.model}', but not on the model as hetero writes it again: {error}"
            ) from error
        write_network(reduced, target)
    fields = {
        "network": network.name,
        "nodes_before": len(network.nodes),
        "nodes_after": len(reduced.nodes),
        "nodes": [node.name for node in reduced.nodes],
        "checks": checks,
        "exit_code_of_check": check,
        "output": options.output,
    }
    listed = "\n".join(f"  {node.label}" for node in reduced.nodes[:20]) + ("\n  ..." if len(reduced.nodes) > 20 else "")
    title = f"network '{network.name}': {len(network.nodes)} nodes reduced to {len(reduced.nodes)} in {checks} checks"
    return Answer(f"{title}\n{listed}\nwritten: {options.output}", fields)


def _choose_check(options: argparse.Namespace) -> list[str]:
    """Returns the command that checks a model: the user's own, or a comparison of the outputs as they are, run by run.

    Raises: UsageError for both, for neither, and for inputs that the check does not read.
    """
    if (options.check is None) == (not options.device):
        raise UsageError("expected a check: --check COMMAND, or -d REFERENCE -d DEVICE to compare the outputs of two devices")
    if options.check is not None:
        if not options.record and (options.input or options.shape):
            raise UsageError("-i and --shape have a meaning only with --record or -d")
        if options.config:
            raise UsageError("-c has a meaning only with -d")
        command = shlex.split(options.check)
        if not command:
            raise UsageError("--check is empty; expected a command, as in --check 'hetero run {} -d CPU --random'")
        return command
    if len(options.device) != 2:
        raise UsageError(f"expected two devices, as in -d TEMPLATE -d CPU; got {len(options.device)}")
    pairs = [("-d", device) for device in options.device] + [("-c", each) for each in options.config]
    pairs += [("-i", each) for each in options.input] + [("--shape", each) for each in options.shape]
    words = [word for pair in pairs for word in pair]
    return [sys.executable, "-m", "hetero_core", "compare", PLACE, "--outputs", *words, "--seed", str(options.seed)]


def _run_check(command: Sequence[str], path: str, timeout: float) -> int:
    """Returns the code that the check ends with on a model; 0 after the timeout."""
    arguments = [piece.replace(PLACE, path) for piece in command]
    if arguments == list(command):
        arguments.append(path)
    try:
        ended = subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return 0
    except OSError as error:
        raise UsageError(f"--check: cannot start '{arguments[0]}': {error.strerror}") from error
    return ended.returncode


def _record(core: Core, network: Network, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the arrays among the inner values of a run."""
    import numpy as np

    from hetero_core.cli.inputs import collect_with_constants
    from hetero_core.debugging.divergence import expose_values

    network, inputs = collect_with_constants(network, options.input, shapes=read_shapes(options.shape), seed=options.seed)
    with core.load_network(expose_values(network), options.record) as loaded:
        return {name: value for name, value in loaded.infer(inputs).items() if isinstance(value, np.ndarray)}
