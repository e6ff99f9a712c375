"""`hetero inspect`: shows the contents of a model, and the answers of the devices about it.

Only a device that is named and takes the whole model loads it, to tell its slow nodes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import Announcer, Answer, follow, format_table
from hetero_core.cli.options import Parser, add_repeated, add_shape_option, find_list_key, open_named_model, read_model, reshape
from hetero_core.core import Core
from hetero_core.errors import DeviceUnavailableError, HeteroError

if TYPE_CHECKING:
    from hetero_core.network.border import InputInfo, OutputInfo
    from hetero_core.network.graph import Network
    from hetero_core.network.types import ValueSpec


_MOST_NAMES = 8
"""Replaceable constants that the text names; a model of IR version 3 lists all of its weights."""


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file, or a name as resnet50")
    text = "ask only this device, about every operator; may be repeated (default: ask every installed device)"
    add_repeated(parser, "-d", "--device", metavar="DEVICE", help=text)
    add_shape_option(parser)


def answer(options: argparse.Namespace) -> Answer:
    """Returns the contents of the model and the answers of the devices. Raises: errors of reading and of devices."""
    step = follow(options)
    with Core() as core:
        for device in options.device:
            core.resolve_config(device)  # a wrong name is reported before the model is read
        with step(f"reading '{options.model}'"), open_named_model(options.model) as path:
            network = reshape(read_model(core, path), options.shape)
            fields = {**_describe_network(network, path), "file": options.model}
        rows, advice, verdict = _ask_devices(core, network, options.device, step)
    text = f"{_format(fields)}\n\n{verdict}"
    devices = [{name: value for name, value in row.items() if name != "refused_nodes"} for row in rows]
    return Answer(text, {**fields, "devices": devices, "advice": advice})


def _ask_devices(core: Core, network: Network, devices: Sequence[str], step: Announcer) -> tuple[list[Any], list[Any], str]:
    """Returns the answers of the named or all devices, the advice, and a text of both."""
    if not devices:
        rows = ask_installed_devices(core, network, step)
        advice = advise(core, network, rows)
        return rows, advice, format_verdicts(rows, advice, len(network.nodes))
    rows = []
    for device in devices:
        with step(f"asking {device} about network '{network.name}'"):
            rows.append(ask_device(core, network, device))
        if rows[-1]["whole"]:
            with step(f"loading network '{network.name}' on {device}"):
                rows[-1]["slow"] = _find_slow_nodes(core, network, device)
    return rows, [], "\n\n".join("\n".join(_format_device(row, len(network.nodes))) for row in rows)


_LOAD_SECONDS = 30.0
"""Seconds that a device may compile before it is asked for its slow nodes."""


def _find_slow_nodes(core: Core, network: Network, device: str) -> dict[str, list[str]]:
    """Returns the nodes that take most of a run, each with the engines and accelerators that take it. Raises: errors of loading."""
    from hetero_core.composing.runs import is_ready  # most questions load nothing

    with core.load_network(network, device) as loaded:
        deadline = monotonic() + _LOAD_SECONDS
        while not is_ready(loaded) and monotonic() < deadline:
            sleep(0.01)
        slow: tuple[str, ...] = loaded.get_metric("SLOW_NODES")
    supported_of_device: dict[str, Mapping[str, str]] = {}
    others = [name for name in core.device_names if name != device and core.find_kind(name) in ("accelerator", "engine")]
    for other in others if slow else ():
        with suppress(DeviceUnavailableError):
            supported_of_device[other] = core.query_network(network, other).supported
    return {name: [other for other, supported in supported_of_device.items() if name in supported] for name in slow}


def _describe_network(network: Network, path: str) -> dict[str, Any]:
    import onnx  # heavy

    from hetero_core.network.graph import iterate_graphs

    graphs = list(iterate_graphs(network))
    operators = Counter(node.operator for graph in graphs for node in graph.nodes)
    constants = {id(constant): constant for graph in graphs for constant in graph.initializers.values()}.values()
    axes = [
        (spec, axis, size) for spec in network.inputs for axis, size in enumerate(spec.shape or ()) if not isinstance(size, int)
    ]
    open_sizes = dict.fromkeys(size if isinstance(size, str) else f"{spec.name}[{axis}]" for spec, axis, size in axes)
    fields: dict[str, Any] = {"network": network.name, "file": path, "ir_version": network.ir_version}
    fields["opsets"] = {domain or "ai.onnx": version for domain, version in network.opsets.items()}
    fields["inputs"] = [_describe_value(spec, network.input_info[spec.name]) for spec in network.inputs]
    fields["outputs"] = [_describe_value(spec, network.output_info[spec.name]) for spec in network.outputs]
    fields["replaceable"] = list(network.border.replaceable)
    fields["states"] = {state.input: state.output for state in network.border.states}
    fields |= {"dynamic_dimensions": list(open_sizes), "nodes": len(network.nodes), "operators": dict(sorted(operators.items()))}
    # Reading puts functions in place of their calls.
    functions = onnx.ModelProto.FromString(Path(path).read_bytes()).functions
    fields["functions"] = {f"{function.domain}:{function.name}": len(function.node) for function in functions}
    fields["parameters"] = sum(prod(constant.shape) for constant in constants)
    return {**fields, "bytes": sum(constant.nbytes for constant in constants)}


def _describe_value(spec: ValueSpec, info: InputInfo | OutputInfo) -> dict[str, Any]:
    shape = None if info.shape is None else list(info.shape)
    return {"name": spec.name, "type": str(spec.type), "precision": info.precision, "layout": info.layout, "shape": shape}


def _format(fields: Mapping[str, Any]) -> str:
    opsets = ", ".join(f"{domain} {version}" for domain, version in fields["opsets"].items())
    operators = ", ".join(f"{name} {count}" for name, count in fields["operators"].items())
    functions = ", ".join(f"{name} ({count} nodes)" for name, count in fields["functions"].items())
    rows = [
        ("network", f"{fields['network']}, IR version {fields['ir_version']}, opsets {opsets or 'none'}"),
        ("parameters", f"{fields['parameters']:,} in {fields['bytes']:,} bytes"),
        ("open sizes", ", ".join(fields["dynamic_dimensions"]) or "none"),
        ("functions", functions or "none"),
        ("nodes", f"{fields['nodes']}: {operators}" if operators else "none"),
    ]
    names, states = fields["replaceable"], [f"{output} -> {name}" for name, output in fields["states"].items()]
    shown = ", ".join(names[:_MOST_NAMES]) + (f", ... ({len(names)} in all)" if len(names) > _MOST_NAMES else "")
    rows[3:3] = [(title, text) for title, text in (("states", ", ".join(states)), ("replaceable", shown)) if text]
    width = max(len(title) for title, _ in rows)
    parts = ["\n".join(f"{title.ljust(width)}  {text}" for title, text in rows)]
    for kind in ("inputs", "outputs"):
        header = (kind[:-1].upper(), "TYPE", "PRECISION", "LAYOUT")
        cells = [(port["name"], port["type"], port["precision"] or "-", port["layout"] or "-") for port in fields[kind]]
        parts.append(format_table(header, cells))
    return "\n\n".join(parts)


def _format_device(row: Mapping[str, Any], nodes: int) -> list[str]:
    if row["error"] is not None:
        return [f"{row['device']} cannot be used: {row['error']}"]
    lines = [f"{row['device']} takes {row['taken']} of {nodes} nodes"]
    if len(row["by_device"]) > 1:
        lines[0] += " (" + ", ".join(f"{device} {count}" for device, count in row["by_device"].items()) + ")"
    for operator, refusal in row["refused"].items():
        reason = " ".join(refusal["reason"].split())
        lines.append(f"  refuses {operator}, {refusal['nodes']} of them, as '{refusal['node']}': {reason}")
    for name, takers in row.get("slow", {}).items():
        lines.append(f"  slow: '{name}' takes most of a run; taken by {', '.join(takers) or 'no other device'}")
    return lines


_KNOWN_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft")


def ask_installed_devices(core: Core, network: Network, step: Announcer) -> list[dict[str, Any]]:
    """Returns the answer of each device that runs networks itself; a device that cannot be used has an `error`, and no numbers."""
    rows = []
    with step("making the devices"):
        statuses = core.list_devices()
    for status in statuses:
        reason = status.reason
        try:
            if not reason and not find_list_key(core, status.name):
                with step(f"asking {status.name} about network '{network.name}'"):
                    rows.append(ask_device(core, network, status.name))
        except HeteroError as error:  # the row says so, and the other devices are asked
            reason = str(error)
        if reason:
            rows.append({"device": status.name, "error": " ".join(reason.split()), "whole": False})
    return rows


def ask_device(core: Core, network: Network, device: str) -> dict[str, Any]:
    """Returns how many nodes a device takes, the first that it refuses, and each refused operator with the number of its nodes."""
    result = core.query_network(network, device)
    refused: dict[str, dict[str, Any]] = {}
    for node in network.nodes:
        if node.name in result.refused:
            row = refused.setdefault(node.operator, {"nodes": 0, "node": node.name, "reason": result.refused[node.name]})
            row["nodes"] += 1
    first = next(({"node": row["node"], "operator": name, "reason": row["reason"]} for name, row in refused.items()), None)
    by_device = dict(sorted(Counter(result.supported.values()).items()))
    row = {"device": device, "error": None, "whole": not refused, "taken": len(result.supported), "by_device": by_device}
    return {**row, "first": first, "refused": refused, "refused_nodes": list(result.refused)}


def advise(core: Core, network: Network, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns device strings that run the model, or the nodes that no device takes with a cure; each with a text."""
    usable = [row for row in rows if row["error"] is None]
    whole = [row["device"] for row in usable if row["whole"]]
    if whole:
        return [{"device": device, "text": f"{device} runs the model whole"} for device in whole]
    devices, remaining = _cover(usable)
    if remaining:
        groups: dict[str, list[str]] = {}
        for name in remaining:
            groups.setdefault(network.node(name).operator, []).append(name)
        untaken: list[dict[str, Any]] = []
        for operator, names in groups.items():
            cure = "it is a custom operator: make it known with Core.add_extension"
            if network.node(names[0]).domain in _KNOWN_DOMAINS:
                cure = "the plugin of another device may take it, and 'hetero query' shows every reason"
            text = f"no device takes '{names[0]}' ({operator}), {len(names)} of {len(network.nodes)} nodes; {cure}"
            untaken.append({"device": None, "nodes": names, "text": text})
        return untaken
    splitter, cure = f"HETERO:{','.join(devices)}", "" if "HETERO" in core.device_names else ", after: pip install hetero-hetero"
    return [{"device": splitter, "text": f"{splitter} runs the model in parts{cure}"}]


def _cover(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Returns devices that cover as many nodes as possible, the largest share first, and the nodes that remain."""
    devices: list[str] = []
    remaining: list[str] | None = None
    for row in sorted(rows, key=lambda row: (len(row["refused_nodes"]), row["device"])):
        refused = set(row["refused_nodes"])
        fewer = row["refused_nodes"] if remaining is None else [name for name in remaining if name in refused]
        if remaining is None or len(fewer) < len(remaining):
            devices, remaining = [*devices, row["device"]], fewer
    return devices, remaining or []


def format_verdicts(rows: Sequence[Mapping[str, Any]], advice: Sequence[Mapping[str, Any]], nodes: int) -> str:
    """Returns each device that does not run the model whole with the first operator that it refuses, and the cure."""
    whole = [row["device"] for row in rows if row["whole"]]
    lines = [f"runs whole on: {', '.join(whole) or 'no installed device'}"]
    lines += [f"  {line}" for row in rows if not row["whole"] for line in _format_device(row, nodes)[:2]]
    lines += [str(cure["text"]) for cure in advice if cure["device"] is None or cure["device"] not in whole]
    return "\n".join(lines)
