"""`hetero query`: shows the device of each node, and the reasons of devices that refuse it; nothing is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, UsageError, follow, format_seconds, format_table
from hetero_core.cli.options import Parser, add_device_options, add_repeated, add_shape_option, list_parts, read_pinned
from hetero_core.contract import QueryResult, freeze_mapping
from hetero_core.core import Core
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.names import parse_device_name
from hetero_core.network.graph import Network
from hetero_core.plan import Plan
from hetero_core.reports.fields import plan_to_json, record_to_json
from hetero_core.reports.single import plan_single_device
from hetero_core.reports.text import describe_explanation, describe_plan, explain_node

NODE_LIMIT = 40
_TRACE_KEY = "HETERO_TRACE_SELECTION"
_PLACEMENT_KEY = "HETERO_PLACEMENT"


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file, or a name as resnet50")
    add_device_options(parser)
    add_shape_option(parser)
    views = parser.add_mutually_exclusive_group()
    add_repeated(views, "--explain", metavar="NODE", help="explain why this node is on its device; may be repeated")
    text = "list who could run each node, and the times that `hetero tune` has measured"
    views.add_argument("--cost", action="store_true", help=text)
    views.add_argument("--trace-selection", action="store_true", help="print how HETERO selects its subgraphs, step by step")
    text = f"list every node and refusal, not only the first {NODE_LIMIT}"
    parser.add_argument("-v", "--verbose", action="store_true", help=text)


def answer(options: argparse.Namespace) -> Answer:
    """Returns the answer of the device; exit code 1 if a node has no device."""
    with Core() as core, follow(options)(f"asking {options.device} about '{options.model}'"):
        network, config = read_pinned(core, options)
        if options.trace_selection:
            if _TRACE_KEY not in core.config_keys(options.device):
                reason = f"--trace-selection shows how subgraphs are selected; {options.device} selects none"
                raise UsageError(f"{reason}. Use a device as HETERO:GPU,CPU")
            config = {**config, _TRACE_KEY: "YES"}
        if options.cost:
            return _list_costs(core, network, options, config)
        result = core.query_network(network, options.device, config)
        if options.explain:
            plan = _find_plan(core, network, result, options.device, config)
            for name in options.explain:
                explain_node(plan, name)  # an unknown name is an error before any device is asked again
            plan = _ask_every_device(core, network, plan, config)
    fields: dict[str, Any] = {"network": network.name, "device": options.device, "supported": result.supported}
    fields |= {"refused": result.refused, "plan": None if result.plan is None else plan_to_json(result.plan)}
    if options.explain:
        explanations = [explain_node(plan, name) for name in options.explain]
        text = "\n\n".join(describe_explanation(plan, each) for each in explanations)
        fields["explanations"] = list(map(record_to_json, explanations))
    elif not options.trace_selection:
        text = _describe(network, result, options)
    elif result.plan is not None:
        text = result.plan.selection.rstrip("\n")
    else:
        count = len(result.refused)
        raise UsageError(f"no subgraphs were selected: {count} nodes have no device; leave --trace-selection out to see why")
    return Answer(text, fields, WRONG_RESULT if result.refused else OK)


def _list_costs(core: Core, network: Network, options: argparse.Namespace, config: Mapping[str, str]) -> Answer:
    """Returns for each node its device, the devices that could run it, and the time of its segment on each of them.

    Times come from the placement that `hetero tune` has measured, or are measured now.
    """
    devices = list_parts(core, options.device, config)
    if _PLACEMENT_KEY not in core.config_keys(options.device):
        raise UsageError(
            f"--cost compares the devices of a list, and {options.device} has none; use a device as HETERO:GPU,CPU, or "
            f"'hetero bench {options.model} -d {options.device}' for the time of the whole"
        )
    result = core.query_network(network, options.device, {_PLACEMENT_KEY: "MEASURED", **config})
    placement = None if result.plan is None else result.plan.placement
    plan = _ask_every_device(core, network, _find_plan(core, network, result, options.device, config), config)
    segments = () if placement is None else placement.segments
    segment_of_node = {name: index for index, segment in enumerate(segments) for name in segment.nodes}
    rows, records = [], []
    for node in network.nodes:
        name, operator, own, index = node.name, node.operator, plan.device_of_node.get(node.name), segment_of_node.get(node.name)
        able = [device for device in devices if device == own or device in plan.candidates.get(name, ())]
        seconds = {} if index is None else dict(segments[index].seconds)
        times = [format_seconds(seconds[device]) if device in seconds else "-" for device in devices]
        rows.append((name, operator, own or "none", ", ".join(able) or "none", "-" if index is None else str(index), *times))
        records.append({"node": name, "operator": operator, "device": own, "able": able, "segment": index, "seconds": seconds})
    limit = len(rows) if options.verbose else NODE_LIMIT
    header = ("NODE", "OPERATOR", "DEVICE", "COULD RUN ON", "SEGMENT", *devices)
    text = _format_rows(header, rows, limit)
    if placement is None:
        text += "\n\nNo times: a node without a device, or a network that cannot be run with drawn inputs."
    else:
        origin = "measured by an earlier command" if placement.is_kept else "measured now"
        text += f"\n\nA time is that of the whole segment, {origin}; segments that differ in names alone were measured once."
    fields = {"network": network.name, "device": options.device, "nodes": records}
    return Answer(text, fields, WRONG_RESULT if result.refused else OK)


def _describe(network: Network, result: QueryResult, options: argparse.Namespace) -> str:
    limit = len(network.nodes) if options.verbose else NODE_LIMIT
    rows = [(name, network.node(name).operator, device) for name, device in result.supported.items()]
    parts = [_format_rows(("NODE", "OPERATOR", "DEVICE"), rows, limit)] if rows else []
    if result.plan is not None:
        return "\n\n".join([*parts, describe_plan(result.plan, refusal_limit=limit)])
    taken = f"{len(result.supported)} of {len(network.nodes)} nodes taken"
    headline = f"network '{network.name}' on {options.device}: {taken}, {len(result.refused)} refused"
    lines = [f"  {network.node(name).label}: {reason}" for name, reason in result.refused.items()]
    return "\n\n".join([*parts, "\n".join([headline, *lines[:limit]]) + _count_rest(len(lines), limit)])


def _format_rows(header: Sequence[str], rows: Sequence[Sequence[str]], limit: int) -> str:
    return format_table(header, rows[:limit]) + _count_rest(len(rows), limit)


def _count_rest(count: int, limit: int) -> str:
    return f"\n... and {count - limit} more; -v lists all" if count > limit else ""


def _find_plan(core: Core, network: Network, result: QueryResult, device: str, config: Mapping[str, str]) -> Plan:
    """Returns the plan of a query; makes a plan for a single device, and for a split with a node that has no device."""
    if result.plan is not None:
        return result.plan
    parts = list_parts(core, device, config)
    if not parts:
        return plan_single_device(network, str(parse_device_name(device)), result)
    pins = freeze_mapping({name: str(parse_device_name(pinned)) for name, pinned in network.affinity.items()})
    whole = plan_single_device(network, device, result)
    return replace(whole, priorities=parts, refusals=freeze_mapping({}), pins=pins, stages=(), boundaries=())


def _ask_every_device(core: Core, network: Network, plan: Plan, config: Mapping[str, str]) -> Plan:
    """Returns the plan with `refusals` and `candidates` of every device for every node; earlier answers of a device stay.

    Each device is asked about the whole network, with those values of `config` that are its own.
    """
    refusals = {name: dict(reasons) for name, reasons in plan.refusals.items()}
    candidates: dict[str, tuple[str, ...]] = {}
    for device in plan.priorities:
        known = core.config_keys(device)
        own = {name: value for name, value in config.items() if name in known and name not in STANDARD_KEYS}
        result = core.query_network(network, device, own)
        for node in network.nodes:
            name = node.name
            if plan.device_of_node.get(name) == device or device in refusals.get(name, {}):
                continue
            if name in result.refused:
                refusals.setdefault(name, {})[device] = result.refused[name]
            else:
                candidates[name] = (*candidates.get(name, ()), device)
    return replace(plan, refusals=freeze_mapping(refusals), candidates=freeze_mapping(candidates))
