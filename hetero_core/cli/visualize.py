"""`hetero visualize`: the split of a model as a page or a text; nothing is loaded."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, UsageError, follow, to_json
from hetero_core.cli.options import Parser, add_device_options, add_shape_option, find_target, list_parts, read_pinned, write_target
from hetero_core.core import Core
from hetero_core.errors import enumerate_choices
from hetero_core.plan import Plan
from hetero_core.reports.dot import plan_to_dot, plan_to_mermaid
from hetero_core.reports.fields import plan_to_json
from hetero_core.reports.page import plan_to_html
from hetero_core.reports.single import plan_single_device
from hetero_core.reports.text import count, describe_plan


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file, or a name as resnet50")
    add_device_options(parser)
    add_shape_option(parser)
    text = f"the file to write; its ending says what: {', '.join(_SUFFIXES)}"
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help=text)
    parser.add_argument("--trace", metavar="FILE", help="a trace of 'hetero bench --trace', to which the page then has a link")
    text = "times per subgraph for the drawing: what 'hetero run --json -c PERF_COUNT=YES' printed for the same split"
    parser.add_argument("--timings", metavar="FILE", help=text)


def answer(options: argparse.Namespace) -> Answer:
    """Returns the name and size of the written file; exit code 1 if the device refuses nodes. Raises: UsageError."""
    suffix = Path(options.output).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(f"-o {options.output}: the ending says the format; known are {enumerate_choices(_SUFFIXES)}")
    if options.timings is not None and suffix not in _TIMED:
        raise UsageError(f"--timings has a meaning only for {', '.join(_TIMED)}; '{options.output}' shows no times")
    if options.trace is not None and suffix != ".html":
        raise UsageError("--trace has a meaning only for .html")
    target = find_target(options.output)
    with Core() as core, follow(options)(f"asking {options.device} about '{options.model}'"):
        network, config = read_pinned(core, options)
        result = core.query_network(network, options.device, config)
        if result.plan is None and list_parts(core, options.device, config):
            advice = "'hetero query' lists why, and with --explain NODE tells what every device says about one"
            raise UsageError(f"there is no split to draw: {len(result.refused)} nodes have no device; {advice}")
    plan = plan_single_device(network, options.device, result) if result.plan is None else result.plan
    times, transfers = ({}, {}) if options.timings is None else read_timings(options.timings, plan)
    if suffix == ".html":
        place = "" if options.trace is None else Path(os.path.relpath(options.trace, target.parent)).as_posix()
        text = plan_to_html(plan, times, network=network, transfers=transfers, trace=place)
    else:
        text = plan_to_mermaid(plan, times) if suffix == ".mmd" else _TEXTS[suffix](plan)
    # A name may hold half of a surrogate pair, which no encoding has.
    write_target(target, f"{text.rstrip()}\n".encode("utf-8", "replace"))
    nbytes = target.stat().st_size
    fields = {"network": network.name, "device": options.device, "file": str(target), "bytes": nbytes}
    fields |= {"subgraphs": len(plan.stages), "refused": result.refused}
    text = f"wrote '{target}': network '{network.name}' on {options.device}, {count(plan.stages, 'subgraph')}, {nbytes} bytes"
    if result.refused:
        text += f"\n{len(result.refused)} of {len(network.nodes)} nodes are refused; 'hetero query' lists why"
    return Answer(text, fields, WRONG_RESULT if result.refused else OK)


def read_timings(path: str, plan: Plan) -> tuple[dict[int, float], dict[int, tuple[float, int]]]:
    """Returns the seconds of each subgraph, and the seconds and bytes of its transfers, from the JSON of `hetero run`.

    A subgraph that is a split network has several rows.

    Raises: UsageError for a file of another form, and for times of another network or split.
    """
    device_of_stage = {stage.index: stage.device for stage in plan.stages}
    times: dict[int, float] = {}
    transfers: dict[int, tuple[float, int]] = {}
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
        network = str(fields["network"])
        rows = [row for row in fields["subgraphs"] if row["steps"]]  # others have the transfers before the first subgraph
        fault = "" if network == plan.network else f"times of network '{network}'; this is network '{plan.network}'"
        for row in rows:
            index, device = int(row["subgraph"]), row["stage_device"]
            if device_of_stage.get(index) != device:
                fault = fault or f"times of another split: subgraph {index} on {device}; this split has {device_of_stage}"
            times[index] = times.get(index, 0.0) + float(row["seconds"])
            seconds, nbytes = transfers.get(index, (0.0, 0))
            transfers[index] = seconds + float(row["transfer_seconds"]), nbytes + int(row["transfer_bytes"])
    except OSError as error:
        raise UsageError(f"--timings {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = "expected what 'hetero run --json -c PERF_COUNT=YES' prints, with the times of subgraphs"
        raise UsageError(f"--timings {path}: {expected}") from error
    if fault:
        raise UsageError(f"--timings {path}: {fault}")
    return times, {index: (seconds, nbytes) for index, (seconds, nbytes) in transfers.items() if nbytes}


_TIMED = (".html", ".mmd")
_TEXTS: dict[str, Callable[[Plan], str]] = {
    ".dot": plan_to_dot,
    ".json": lambda plan: json.dumps(to_json(plan_to_json(plan)), indent=2, ensure_ascii=False),
    ".txt": lambda plan: describe_plan(plan, refusal_limit=len(plan.operator_of_node)),
}
_SUFFIXES = tuple(sorted((*_TIMED, *_TEXTS)))
