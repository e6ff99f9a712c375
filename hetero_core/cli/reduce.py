"""`hetero reduce`: the smallest part of a model that still fails a check of the user's own."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import Answer, UsageError
from hetero_core.cli.options import Parser, add_command, read_model, read_shapes
from hetero_core.cli.run import read_seed

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.network.graph import Network

PLACE = "{}"


def add_parser(subparsers: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command."""
    parser = add_command(subparsers, "reduce", "find the smallest part of a model that still fails a check", answer_reduce)
    parser.add_argument("model", metavar="MODEL", help="an .onnx file that fails the check")
    parser.add_argument(
        "--check",
        required=True,
        metavar="COMMAND",
        help="fails by ending with another code than 0; {} in it is the model's path, which is put at the end where there is no {}",
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write the reduced model")
    parser.add_argument(
        "--record",
        metavar="DEVICE",
        help="run the model there once; what is cut away leaves its values as constants, not as inputs",
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds after which a check counts as passed (600)"
    )
    inputs = parser.add_argument_group("inputs of --record", "what is not given is random")
    inputs.add_argument(
        "-i", "--input", action="append", default=[], metavar="NAME=FILE", help="a file as for 'hetero run'; may be repeated"
    )
    inputs.add_argument("--seed", type=read_seed, default=0, metavar="N", help="the seed of random inputs (0)")
    inputs.add_argument(
        "--shape", action="append", default=[], metavar="NAME=SIZE,...", help="the shape of a random input with open dimensions"
    )


def answer_reduce(options: argparse.Namespace) -> Answer:
    """Returns how small the model became; the failure that is kept is the code that the check ends with on the whole model.

    Raises: UsageError when the check passes or cannot be started; errors of reading, devices and inputs.
    """
    from hetero_core.core import Core  # reads the installed distributions
    from hetero_core.debugging.reduction import reduce_network
    from hetero_core.network.writer import write_network

    command = shlex.split(options.check)
    if not command:
        raise UsageError("--check is empty; expected a command, as in --check 'hetero run {} -d CPU --random'")
    if not options.record and (options.input or options.shape):
        raise UsageError("-i and --shape have a meaning only with --record")
    with Core() as core, tempfile.TemporaryDirectory(prefix="hetero-reduce-") as folder:
        network = read_model(core, options.model)
        recorded = None if options.record is None else _record(core, network, options)
        wanted = _run_check(command, options.model, options.timeout)
        if wanted == 0:
            raise UsageError(f"the check passes on '{options.model}': {options.check}; expected one that fails")
        path = Path(folder) / "model.onnx"
        checks = 0

        def fails(part: Network) -> bool:
            nonlocal checks
            checks += 1
            write_network(part, path)
            return _run_check(command, str(path), options.timeout) == wanted

        try:
            reduced = reduce_network(network, fails, recorded=recorded)
        except ValueError as error:
            raise UsageError(
                f"the check fails on '{options.model}', but not on the model as hetero writes it again: {error}"
            ) from error
        write_network(reduced, options.output)
    fields = {
        "network": network.name,
        "nodes_before": len(network.nodes),
        "nodes_after": len(reduced.nodes),
        "nodes": [node.name for node in reduced.nodes],
        "checks": checks,
        "exit_code_of_check": wanted,
        "output": options.output,
    }
    listed = "\n".join(f"  {node.label}" for node in reduced.nodes[:20]) + ("\n  ..." if len(reduced.nodes) > 20 else "")
    title = f"network '{network.name}': {len(network.nodes)} nodes reduced to {len(reduced.nodes)} in {checks} checks"
    return Answer(f"{title}\n{listed}\nwritten: {options.output}", fields)


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
    """Returns every inner value of one run that is an array."""
    import numpy as np

    from hetero_core.cli.inputs import fill_inputs, read_inputs, require_complete
    from hetero_core.debugging.divergence import expose_values

    given = read_inputs(options.input, network.inputs, network=network.name)
    inputs = fill_inputs(given, network.inputs, read_shapes(options.shape), seed=options.seed)
    require_complete(inputs, network.inputs, network=network.name)
    with core.load_network(expose_values(network), options.record) as loaded:
        return {name: value for name, value in loaded.infer(inputs).items() if isinstance(value, np.ndarray)}
