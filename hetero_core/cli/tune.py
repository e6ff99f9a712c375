"""`hetero tune`: measures which device should run which part of a model, and keeps the result for every later load."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_core.cli import options as shared
from hetero_core.cli.answer import Answer, UsageError, follow, format_seconds, format_table
from hetero_core.core import Core
from hetero_core.reports.fields import record_to_json
from hetero_core.reports.text import describe_placement, explain_placement

if TYPE_CHECKING:
    from hetero_core.plan import PlacedSegment, Placement, Plan

_KEY, _BUDGET, _INPUTS = "HETERO_PLACEMENT", "HETERO_PLACEMENT_BUDGET", "HETERO_PLACEMENT_INPUTS"
_SECONDS = 30.0


def add_options(parser: shared.Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file, or a name as resnet50")
    shared.add_device_options(parser)
    parser.add_argument("--budget", type=float, default=_SECONDS, metavar="S", help=f"the seconds of the search ({_SECONDS:g})")
    parser.add_argument("--again", action="store_true", help="measure again, even if an earlier measurement is stored")
    parser.add_argument("--write", metavar="FILE", help="write the placement as pins, for --affinity")
    shared.add_input_options(parser)


def answer(options: argparse.Namespace) -> Answer:
    """Returns the tables of the search. Raises: UsageError for a device that splits no networks."""
    from hetero_core.cli.inputs import collect_inputs  # imports NumPy, which parsing does not need
    from hetero_core.cli.outputs import save_outputs

    target = None if options.write is None else shared.find_target(options.write)
    with Core() as core:
        if _KEY not in core.config_keys(options.device):
            raise UsageError(f"tune places the parts of a model; {options.device} splits none. Use a device as HETERO:ORT,CPU")
        network = shared.pin_network(core, shared.read_model(core, options.model), options.device, shared.read_pins(options))
        inputs = collect_inputs(options, network.inputs, network=network.name)
        with tempfile.TemporaryDirectory(prefix="hetero-tune-") as folder, follow(options)("measuring"):
            path = Path(folder) / "inputs.npz"
            save_outputs(inputs, str(path))
            asked = {_KEY: "MEASURED_ANEW" if options.again else "MEASURED", _BUDGET: options.budget, _INPUTS: str(path)}
            plan = core.query_network(network, options.device, {**shared.read_config(options), **asked}).plan
    placement = None if plan is None else plan.placement
    if plan is None or placement is None:
        raise UsageError(f"nothing was measured: some nodes have no device; 'hetero query {options.model}' lists them")
    text = _describe(plan, placement)
    if target is not None:  # a table that --affinity reads; JSON's texts are TOML's
        pairs = ([json.dumps(name, ensure_ascii=False) for name in pair] for pair in plan.device_of_node.items())
        shared.write_target(target, "\n".join(["[affinity]", *(" = ".join(pair) for pair in pairs), ""]).encode())
        text += f"\n\nwrote '{target}': the placement as pins, for --affinity"
    remarks = () if placement.is_complete else ("the search was cut short; --budget gives it more seconds",)
    fields = {"network": plan.network, "device": options.device, "placement": record_to_json(placement)}
    return Answer(text, fields, remarks=remarks)


def _describe(plan: Plan, placement: Placement) -> str:
    reason = explain_placement(placement)
    pieces = [describe_placement(placement), *([reason] if reason else []), _list_segments(plan, placement.segments)]
    if placement.transfers:
        rows = [(f"{a} -> {b}", f"{once * 1e6:.1f} us", f"{each * 1e12:.1f} us") for a, b, once, each in placement.transfers]
        pieces.append(format_table(("TRANSFER", "EACH VALUE", "EACH MB"), rows))
    return "\n\n".join([*pieces, _list_candidates(plan, placement)])


def _list_segments(plan: Plan, segments: Sequence[PlacedSegment]) -> str:
    rows = []
    for index, segment in enumerate(segments):
        last = "" if len(segment.nodes) == 1 else f" ... {segment.nodes[-1]}"
        times = dict.fromkeys(segment.failures, "failed") | {name: format_seconds(each) for name, each in segment.seconds.items()}
        cells = [times.get(device, "-") for device in plan.priorities]
        cells += [segment.device or "by priority", "" if segment.twin == index else f"as {segment.twin}"]
        rows.append((str(index), str(len(segment.nodes)), f"{segment.nodes[0]}{last}", *cells))
    return format_table(("SEGMENT", "NODES", "FROM ... TO", *plan.priorities, "CHOSEN", ""), rows)


def _list_candidates(plan: Plan, placement: Placement) -> str:
    best = None if placement.chosen is None else placement.candidates[placement.chosen].seconds
    rows = []
    for index, candidate in enumerate(placement.candidates):
        estimate = "-" if candidate.estimate is None else format_seconds(candidate.estimate)
        measured = candidate.error or "-" if candidate.seconds is None else format_seconds(candidate.seconds)
        cost = "" if best is None or candidate.seconds is None else f"{candidate.seconds / best:.2f} x"
        chosen = "chosen" if index == placement.chosen else ""
        rows.append((candidate.title, str(candidate.parts or "-"), estimate, measured, cost, chosen))
    return format_table(("CANDIDATE", "PARTS", "ESTIMATED", "MEASURED", "OF THE CHOSEN", ""), rows)
