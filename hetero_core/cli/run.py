"""`hetero run`: one inference of a model or of an exported network, and on demand the same on another device."""

from __future__ import annotations

import argparse
import math
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, UsageError
from hetero_core.cli.options import (
    Parser,
    add_command,
    add_device_options,
    is_blob,
    pin_network,
    read_config,
    read_model,
    read_pins,
    read_shapes,
)
from hetero_core.cli.preparation import add_preparation_options, find_given, prepare_network
from hetero_core.cli.tables import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hetero_core.core import Core
    from hetero_core.network.graph import Network
    from hetero_core.network.types import ValueSpec
    from hetero_core.runtime.executable import ExecutableNetwork


def add_parser(subparsers: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command."""
    parser = add_command(subparsers, "run", "run one inference and print the outputs", answer_run)
    parser.add_argument("model", metavar="MODEL_OR_BLOB", help="an .onnx file, or what 'hetero compile' wrote")
    add_device_options(parser)
    parser.add_argument("--trust", action="store_true", help="run code in an exported network as well; not needed for data")
    inputs = parser.add_argument_group("inputs")
    inputs.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a .npy, .npz, .pb (TensorProto), .png or .jpg file; a bare FILE.npz gives each array to the input of its name, "
        "another bare FILE the only input; an image becomes uint8, or float divided by 255; may be repeated",
    )
    inputs.add_argument("--random", action="store_true", help="random values for inputs that are not given")
    inputs.add_argument("--seed", type=read_seed, metavar="N", help="the seed of --random (0)")
    add_preparation_options(parser)
    outputs = parser.add_argument_group("outputs")
    outputs.add_argument(
        "--save-outputs", metavar="TARGET", help="write the outputs to TARGET.npz, or as .npy files to the folder TARGET"
    )
    outputs.add_argument("--compare", metavar="DEVICE", help="run the model there as well; exit code 1 if the outputs differ")
    outputs.add_argument(
        "--rtol", type=read_tolerance, metavar="R", help="largest difference, as a share of the largest expected value"
    )
    outputs.add_argument("--atol", type=read_tolerance, metavar="A", help="largest absolute difference; one of the two has to hold")


def read_tolerance(text: str) -> float:
    """Returns a tolerance. Raises: ArgumentTypeError unless it is a finite number of 0 or more."""
    number = float(text)
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text}")
    return number


def read_seed(text: str) -> int:
    """Returns a seed. Raises: ArgumentTypeError unless it is a whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of 0 or more, got {text}")
    return int(text)


def answer_run(options: argparse.Namespace) -> Answer:
    """Returns the outputs; exit code 1 where --compare finds a difference.

    Raises: UsageError, errors of reading, devices, configuration and inputs.
    """
    from hetero_core.core import Core  # reads the installed distributions
    from hetero_core.runtime.replaced import list_replaceable

    _check_options(options)
    with Core() as core:
        if is_blob(options.model):
            return _run_blob(core, options)
        if options.trust:
            raise UsageError(f"--trust has a meaning only for an exported network; '{options.model}' is none")
        network = prepare_network(read_model(core, options.model), options)
        options.shape = []  # the inputs have these shapes now
        inputs = _collect_inputs(options, network.inputs, network.name, list_replaceable(network))
        pinned = pin_network(core, network, options.device, read_pins(options))
        outputs, fields, text = _infer(core.load_network(pinned, options.device, read_config(options)), inputs)
        text += _save(outputs, options, fields)
        if options.compare is None:
            return Answer(text, fields)
        return _compare(core, network, inputs, outputs, options, Answer(text, fields))


def _check_options(options: argparse.Namespace) -> None:
    """An option that would have no effect is an error."""
    for name, needed in (("seed", "random"), ("rtol", "compare"), ("atol", "compare")):
        is_given = getattr(options, name) not in (None, [])
        if is_given and not getattr(options, needed):
            raise UsageError(f"--{name} has a meaning only with --{needed}")


def _run_blob(core: Core, options: argparse.Namespace) -> Answer:
    if options.shape and not options.random:
        raise UsageError("--shape has a meaning for an exported network only with --random; its shapes are compiled in")
    for option, is_given in (
        *((option, True) for option in find_given(options)),
        ("--pin", bool(options.pin)),
        ("--affinity", options.affinity is not None),
        ("--compare", options.compare is not None),
    ):
        if is_given:
            raise UsageError(
                f"{option} needs the ONNX model; '{options.model}' is an exported network, whose devices are chosen already"
            )
    executable = core.import_network(options.model, options.device, read_config(options), trust=options.trust)
    inputs = _collect_inputs(options, executable.inputs, executable.name, executable.replaceable)
    outputs, fields, text = _infer(executable, inputs)
    return Answer(text + _save(outputs, options, fields), fields)


def _collect_inputs(
    options: argparse.Namespace, specs: Sequence[ValueSpec], network: str, replaceable: Sequence[ValueSpec]
) -> dict[str, Any]:
    """Returns the inputs, and the constants that are given, checked before anything is loaded."""
    from hetero_core.cli.inputs import fill_inputs, read_inputs, require_complete
    from hetero_core.runtime.door import order_inputs

    given = read_inputs(options.input, specs, network=network, replaceable=replaceable)
    if options.random:
        shapes = read_shapes(options.shape)
        given = fill_inputs(given, specs, shapes, seed=0 if options.seed is None else options.seed)
    require_complete(given, specs, network=network)
    order_inputs(given, (*specs, *(spec for spec in replaceable if spec.name in given)), network=network)
    return given


def _infer(executable: ExecutableNetwork, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Returns the outputs of one inference, the fields for JSON, and the text."""
    from hetero_core.cli.outputs import describe_output, format_outputs, iterate_tensors
    from hetero_core.cli.profile import format_times, sum_times

    request = executable.create_infer_request()
    began = perf_counter()
    outputs = request.infer(inputs)
    seconds = perf_counter() - began
    described = [describe_output(name, value) for name, value in iterate_tensors(outputs)]
    fields = {"network": executable.name, "device": str(executable.device), "seconds": seconds, "outputs": described}
    parts = [
        f"network '{executable.name}' on {executable.device}: one inference in {format_seconds(seconds)}",
        format_outputs(described),
    ]
    if request.profile is not None:
        sums = sum_times(request.profile)
        fields["subgraphs"] = sums
        parts.append(format_times(sums))
    return outputs, fields, "\n\n".join(parts)


def _save(outputs: Mapping[str, Any], options: argparse.Namespace, fields: dict[str, Any]) -> str:
    """Writes the outputs where --save-outputs says; returns a line about it."""
    from hetero_core.cli.outputs import save_outputs

    if options.save_outputs is None:
        return ""
    fields["saved"] = save_outputs(outputs, options.save_outputs)
    return "\n\nsaved: " + ", ".join(fields["saved"])


def _compare(
    core: Core, network: Network, inputs: Mapping[str, Any], outputs: Mapping[str, Any], options: argparse.Namespace, answer: Answer
) -> Answer:
    """Returns the answer with the comparison added; the other device runs with its default configuration and without pins."""
    from hetero_core.cli.comparison import compare_outputs, format_comparison

    expected = core.load_network(network, options.compare).infer(inputs)
    rows = compare_outputs(outputs, expected, rtol=options.rtol, atol=0.0 if options.atol is None else options.atol)
    agrees = all(row["mismatch"] is None for row in rows)
    fields = {**answer.fields, "comparison": {"device": options.compare, "agrees": agrees, "outputs": rows}}
    return Answer(f"{answer.text}\n\n{format_comparison(rows, options.compare)}", fields, OK if agrees else WRONG_RESULT)
