"""Which devices run a model whole, which node stops each of the others, and what cures that; nothing is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetero_core.cli.options import is_splitting
from hetero_core.devices.cures import describe_untaken, name_distribution
from hetero_core.errors import HeteroError

if TYPE_CHECKING:
    from hetero_core.cli.progress import Announcer
    from hetero_core.core import Core
    from hetero_core.network.graph import Network

_SPLITTER = "HETERO"


def ask_installed_devices(core: Core, network: Network, step: Announcer) -> list[dict[str, Any]]:
    """Returns the answer of each device that runs networks itself; one that cannot be used has an `error`, and no numbers."""
    rows = []
    with step("making the devices"):
        statuses = core.list_devices()
    for status in statuses:
        if status.reason:
            rows.append({"device": status.name, "error": " ".join(status.reason.split()), "whole": False})
            continue
        try:
            if not is_splitting(core, status.name):
                with step(f"asking {status.name} about network '{network.name}'"):
                    rows.append(ask_device(core, network, status.name))
        except HeteroError as error:  # the row says so, and the other devices are asked
            rows.append({"device": status.name, "error": " ".join(str(error).split()), "whole": False})
    return rows


def ask_device(core: Core, network: Network, device: str) -> dict[str, Any]:
    """Returns how many nodes a device takes, the first that it refuses, and each refused operator with the number of its nodes."""
    result = core.query_network(network, device)
    refused: dict[str, dict[str, Any]] = {}
    for node in network.nodes:
        if node.name in result.refused:
            row = refused.setdefault(node.operator, {"nodes": 0, "node": node.name, "reason": result.refused[node.name]})
            row["nodes"] += 1
    count_of_device = Counter(result.supported.values())
    first = next(({"operator": operator, **row} for operator, row in refused.items()), None)
    return {
        "device": device,
        "error": None,
        "whole": not refused,
        "taken": len(result.supported),
        "by_device": dict(sorted(count_of_device.items())),
        "first": None if first is None else {name: first[name] for name in ("node", "operator", "reason")},
        "refused": refused,
        "refused_nodes": list(result.refused),
    }


def advise(core: Core, network: Network, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns device strings that run the model, or the nodes that no device takes and what takes them; each with a text."""
    usable = [row for row in rows if row["error"] is None]
    whole = [row["device"] for row in usable if row["whole"]]
    if whole:
        return [{"device": device, "text": f"{device} runs the model whole"} for device in whole]
    devices, remaining = _cover(usable)
    if remaining:
        groups = _group_by_operator(network, remaining)
        return [
            {"device": None, "nodes": list(names), "text": describe_untaken(core.device_names, network, names)} for names in groups
        ]
    text = f"HETERO:{','.join(devices)} runs the model in parts"
    if _SPLITTER not in core.device_names:
        text += f", after: pip install {name_distribution(_SPLITTER)}"
    return [{"device": f"HETERO:{','.join(devices)}", "text": text}]


def _cover(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Returns devices, the one that takes most first, that take all nodes they can together, and the nodes that remain."""
    ordered = sorted(rows, key=lambda row: (len(row["refused_nodes"]), row["device"]))
    if not ordered:
        return [], []
    devices, remaining = [ordered[0]["device"]], ordered[0]["refused_nodes"]
    for row in ordered[1:]:
        refused = set(row["refused_nodes"])
        fewer = [name for name in remaining if name in refused]
        if len(fewer) < len(remaining):
            devices.append(row["device"])
            remaining = fewer
    return devices, remaining


def _group_by_operator(network: Network, names: Sequence[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(network.node(name).operator, []).append(name)
    return list(groups.values())


def format_verdicts(rows: Sequence[Mapping[str, Any]], advice: Sequence[Mapping[str, Any]], nodes: int) -> str:
    """Returns a line for each device, and below it where it stops and what cures that."""
    whole = [row["device"] for row in rows if row["whole"]]
    lines = [f"runs whole on: {', '.join(whole) or 'no installed device'}"]
    for row in rows:
        if row["error"] is not None:
            lines.append(f"  {row['device']} cannot be used: {row['error']}")
        elif not row["whole"]:
            first = row["first"]
            lines.append(
                f"  {row['device']} takes {row['taken']} of {nodes} nodes; '{first['node']}' ({first['operator']}) stops it:"
            )
            lines.append(f"    {' '.join(first['reason'].split())}")
            lines += [f"    {row['cure']}"] if row.get("cure") else []
    lines += [str(cure["text"]) for cure in advice if cure["device"] is None or cure["device"] not in whole]
    return "\n".join(lines)


def add_cures(core: Core, rows: Sequence[dict[str, Any]]) -> None:
    """Adds to each device that is stopped the split with which it runs what it takes, where a device takes the rest."""
    whole = [row["device"] for row in rows if row["whole"]]
    for row in rows:
        if whole and row["error"] is None and row.get("taken") and not row["whole"] and _SPLITTER in core.device_names:
            row["cure"] = f"HETERO:{row['device']},{whole[0]} runs the model with what it takes on {row['device']}"
