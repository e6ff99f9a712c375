"""`hetero run`: runs a model or an exported network once, and on demand on another device for comparison."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hetero_core.blobs.container import is_blob
from hetero_core.cli import options as shared
from hetero_core.cli.answer import OK, WRONG_RESULT, Announcer, Answer, UsageError, follow, format_seconds, format_table
from hetero_core.cli.inputs import add_preparation_options, collect_inputs, find_given, prepare_network
from hetero_core.composing.runs import is_ready, warm_up
from hetero_core.core import Core
from hetero_core.profile import Profile

if TYPE_CHECKING:
    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork
    from hetero_core.runtime.request import InferRequest


_STEADY_SECONDS = 1.0
_MOST_RUNS = 100
_COMPILING_SECONDS = 5.0
_SLOW_SECONDS = 10.0
"""After a first inference that took longer, no further inference is timed."""


def add_options(parser: shared.Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL_OR_BLOB", help="an .onnx file, what 'hetero compile' wrote, or a name as resnet50")
    shared.add_device_options(parser, required=False)
    parser.add_argument("--trust", action="store_true", help="run code in an exported network as well; not needed for data")
    inputs = parser.add_argument_group("inputs")
    text = """a .npy, .npz, .pb (TensorProto), .png or .jpg file; a bare FILE.npz gives each array to the input of its name, another bare
    FILE the only input; an image becomes uint8, or float divided by 255. NAME=VALUE gives the value itself: sr=16000 a number, ids=1,2,3
    several; may be repeated"""
    shared.add_repeated(inputs, "-i", "--input", metavar="NAME=FILE", help=text)
    inputs.add_argument("--random", action="store_true", help="random values for inputs that are not given")
    inputs.add_argument("--seed", type=shared.whole_number(0), metavar="N", help="the seed of --random (0)")
    group = add_preparation_options(parser)
    group.add_argument("--batch", type=shared.whole_number(1), metavar="N", help="run the model for this batch size")
    shared.add_repeated(group, "--output", metavar="VALUE", help="only this output, or this inner value; may be repeated")
    outputs = parser.add_argument_group("outputs")
    text = "write the outputs to TARGET.npz, or as .npy files to the folder TARGET"
    outputs.add_argument("--save-outputs", metavar="TARGET", help=text)
    text = "write the executed graph as a model; with PERF_COUNT it has times"
    outputs.add_argument("--executed", metavar="FILE.onnx", help=text)
    outputs.add_argument("--compare", metavar="DEVICE", help="run the model on this device, too; exit code 1 if the outputs differ")
    shared.add_rtol(outputs)
    text = "largest absolute difference; --rtol or --atol has to hold"
    outputs.add_argument("--atol", type=shared.read_tolerance, metavar="A", help=text)


def answer(options: argparse.Namespace) -> Answer:
    """Returns the outputs; exit code 1 if --compare finds a difference. Raises: UsageError, errors of devices, keys and inputs."""
    from hetero_core.runtime.loading import list_replaceable

    for name, needed in (("seed", "random"), ("rtol", "compare"), ("atol", "compare")):
        if getattr(options, name) is not None and not getattr(options, needed):
            raise UsageError(f"--{name} has a meaning only with --{needed}")
    options.seed = (options.seed or 0) if options.random else None
    if options.executed is not None and Path(options.executed).suffix.lower() != ".onnx":
        raise UsageError(f"--executed {options.executed}: expected a name that ends with .onnx")
    with Core() as core:
        if is_blob(options.model):
            return _run_blob(core, options)
        options.device = options.device or core.switches.device
        if not options.device:
            reason = "only an exported network knows its own; see 'hetero run --help'"
            raise UsageError(f"the following arguments are required: -d/--device; {reason}")
        if options.trust:
            raise UsageError(f"--trust has a meaning only for an exported network; '{options.model}' is none")
        config, step = shared.read_config(options), follow(options)
        core.resolve_config(options.device, config)  # a wrong name is reported before the inputs
        with step(f"reading '{options.model}'"):
            network = prepare_network(shared.read_model(core, options.model), options)
        options.shape = []  # the inputs have these shapes now
        inputs = collect_inputs(options, network.inputs, network=network.name, replaceable=list_replaceable(network))
        pinned = shared.pin_network(core, network, options.device, shared.read_pins(options))
        with step(f"loading network '{network.name}' on {options.device}"):
            executable = core.load_network(pinned, options.device, config)
        outputs, answered = _infer(executable, inputs, step, options)
        return answered if options.compare is None else _compare(core, network, inputs, outputs, options, answered)


def _run_blob(core: Core, options: argparse.Namespace) -> Answer:
    if options.shape and not options.random:
        raise UsageError("--shape has a meaning for an exported network only with --random; its shapes are compiled in")
    if names := find_given(options, "batch", "output", "pin", "affinity", "compare"):
        reason = f"'{options.model}' is an exported network, whose devices are chosen already"
        raise UsageError(f"{names[0]} needs the ONNX model; {reason}")
    step = follow(options)
    with step(f"importing '{options.model}'"):
        executable = core.import_network(options.model, options.device, shared.read_config(options), trust=options.trust)
    inputs = collect_inputs(options, executable.inputs, network=executable.name, replaceable=executable.replaceable)
    return _infer(executable, inputs, step, options)[1]


def _infer(
    executable: ExecutableNetwork, inputs: Mapping[str, Any], step: Announcer, options: argparse.Namespace
) -> tuple[dict[str, Any], Answer]:
    """Returns the outputs of the first inference, and the answer about it; later inferences give the steady time."""
    from hetero_core.cli.outputs import describe_output, format_outputs, iterate_tensors, save_outputs

    request = executable.create_infer_request()
    with step(f"running network '{executable.name}' on {executable.device}"):
        began = perf_counter()
        outputs = request.infer(inputs)
        seconds = perf_counter() - began
        later = [] if seconds > _SLOW_SECONDS else _time_later_runs(executable, request, inputs)
    described = [describe_output(name, value) for name, value in iterate_tensors(outputs)]
    fields: dict[str, Any] = {"network": executable.name, "device": str(executable.device), "seconds": seconds}
    fields |= {"later_seconds": median(later) if later else None, "later_runs": len(later), "outputs": described}
    times = f"first inference in {format_seconds(seconds)}"
    if later:
        state = "" if is_ready(executable) else ", while machine code is still being compiled"
        times += f", then {format_seconds(median(later))} (median of {len(later)}{state})"
    parts = [f"network '{executable.name}' on {executable.device}: {times}", format_outputs(described)]
    if request.profile is not None:
        fields["subgraphs"] = sum_times(request.profile)
        parts.append(format_times(fields["subgraphs"]))
    if options.executed is not None:
        from hetero_core.network.writer import network_to_bytes  # imports onnx

        fields["executed"] = options.executed
        shared.write_target(shared.find_target(options.executed), network_to_bytes(executable.get_runtime_model(request.profile)))
        parts.append(f"executed graph: {fields['executed']}")
    if options.save_outputs is not None:
        fields["saved"] = save_outputs(outputs, options.save_outputs)
        parts.append("saved: " + ", ".join(fields["saved"]))
    return outputs, Answer("\n\n".join(parts), fields)


def _time_later_runs(executable: ExecutableNetwork, request: InferRequest, inputs: Mapping[str, Any]) -> list[float]:
    """Returns the seconds of later inferences, at most 100 and about a second, once machine code is compiled."""
    if not is_ready(executable):
        warm_up(executable, lambda: executable.infer(inputs), _COMPILING_SECONDS)
    seconds: list[float] = []
    while not seconds or (len(seconds) < _MOST_RUNS and sum(seconds) + seconds[-1] < _STEADY_SECONDS):
        began = perf_counter()
        request.infer(inputs)
        seconds.append(perf_counter() - began)
    return seconds


def _compare(
    core: Core, network: Network, inputs: Mapping[str, Any], outputs: Mapping[str, Any], options: argparse.Namespace, answer: Answer
) -> Answer:
    """Returns the answer with the comparison added; that device runs with its default configuration and without pins."""
    from hetero_core.cli.outputs import compare_outputs, format_comparison

    with follow(options)(f"running network '{network.name}' on {options.compare}"):
        expected = core.load_network(network, options.compare).infer(inputs)
    rows = compare_outputs(outputs, expected, rtol=options.rtol, atol=0.0 if options.atol is None else options.atol)
    agrees = all(row["mismatch"] is None for row in rows)
    fields = {**answer.fields, "comparison": {"device": options.compare, "agrees": agrees, "outputs": rows}}
    return Answer(f"{answer.text}\n\n{format_comparison(rows, options.compare)}", fields, OK if agrees else WRONG_RESULT)


def sum_times(profile: Profile) -> list[dict[str, Any]]:
    """Returns for each subgraph its device, the seconds of its nodes, and the seconds and bytes of its transfers.

    `path` is "1/0" for subgraph 0 of a split network that is subgraph 1; `subgraph` is then 1 and `stage_device` the device of that.
    """
    device_of_stage = {stage.path: stage.device for stage in profile.stages}
    sums: dict[tuple[tuple[int, ...], str], dict[str, Any]] = {}
    for entry in profile.entries:
        place = {"subgraph": entry.subgraph, "path": "/".join(map(str, entry.path)), "device": entry.device}
        place["stage_device"] = device_of_stage.get(entry.path[:1], entry.device)
        zeros = {"steps": 0, "seconds": 0.0, "transfer_seconds": 0.0, "transfer_bytes": 0}
        fields = sums.setdefault((entry.path, entry.device), place | zeros)
        if entry.operator == "transfer":
            fields["transfer_seconds"] += entry.seconds
            fields["transfer_bytes"] += entry.nbytes
        else:
            fields["steps"] += 1
            fields["seconds"] += entry.seconds
    return list(sums.values())


def format_times(sums: list[dict[str, Any]]) -> str:
    """Returns the sums as a table."""
    rows = []
    for fields in sums:
        place, seconds, nbytes = fields["path"] or ("0" if fields["steps"] else "-"), fields["seconds"], fields["transfer_bytes"]
        copied = f"{format_seconds(fields['transfer_seconds'])}, {nbytes} bytes" if nbytes else "-"
        rows.append((place, fields["device"], str(fields["steps"]), format_seconds(seconds), copied))
    return format_table(("SUBGRAPH", "DEVICE", "STEPS", "TIME", "COPIED"), rows)
