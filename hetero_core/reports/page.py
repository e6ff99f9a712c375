"""HTML pages that need nothing else: a frame for tables, and a plan that its program, plan.js, draws and explains.

A page asks for nothing over the network; its policy forbids it. Every text from a model is escaped here, in the JSON that the program
reads, too; the program makes text nodes only.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import Any

from hetero_core.network.graph import Network
from hetero_core.plan import Plan, PlanStage
from hetero_core.reports import text
from hetero_core.reports.dot import COLORS


def _read_asset(name: str) -> str:
    """Returns the text of a file in this folder."""
    return (files("hetero_core.reports") / name).read_text(encoding="utf-8")


def format_page(title: str, body: str) -> str:
    """Returns the page of a body that is HTML; the title is any text."""
    return Template(_read_asset("page.html")).substitute(TITLE=escape(title), STYLE=_read_asset("page.css"), BODY=body)


def plan_to_html(
    plan: Plan,
    seconds_of_subgraph: Mapping[int, float],
    *,
    network: Network | None = None,
    transfers: Mapping[int, tuple[float, int]] = MappingProxyType({}),
    trace: str = "",
) -> str:
    """Returns the plan as an HTML document; `seconds_of_subgraph` may be empty or partial.

    `network` gives the values between nodes, `transfers` maps a subgraph to the seconds and bytes of its transfers, and `trace` is the
    place of a trace beside the page.
    """
    style = _read_asset("plan.css") + "\n".join(f".device-{index} {{ --device: {color}; }}" for index, color in enumerate(COLORS))
    program = _read_asset("plan.js")
    # No HTML parser can leave this JSON: it is ASCII, and the characters of tags and entities are written as escapes.
    moved = [(index, seconds, nbytes) for index, (seconds, nbytes) in transfers.items()]
    fields = json.dumps({**_list_fields(plan, seconds_of_subgraph, network), "moved": moved, "trace": trace}, separators=(",", ":"))
    fields = fields.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Template(_read_asset("plan.html")).substitute(
        POLICY=f"default-src 'none'; script-src {_hash(program)}; style-src {_hash(style)}; img-src data:",
        TITLE=escape(f"{plan.network}: {text.count(plan.operator_of_node, 'node')}, {text.count(plan.stages, 'subgraph')}"),
        STYLE=style,
        PLAN=fields,
        PROGRAM=program,
    )


def _hash(text: str) -> str:
    """Returns the source for a policy that allows only this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _list_links(stage: PlanStage, network: Network | None) -> list[tuple[int, int]] | None:
    """Returns the pairs of nodes of a subgraph, by position, of which the second reads a value of the first; None if not known."""
    if network is None:
        return None
    position = {name: index for index, name in enumerate(stage.nodes)}
    return [
        (position[network.nodes[maker].name], position[name])
        for name in stage.nodes
        for value in dict.fromkeys((*network.node(name).inputs, *network.node(name).captures))
        if (maker := network.index_of_producer.get(value)) is not None and network.nodes[maker].name in position
    ]


def _list_fields(plan: Plan, seconds_of_subgraph: Mapping[int, float], network: Network | None) -> dict[str, Any]:
    """Returns the fields that the program of the page shows on demand."""
    crossing = {entry.value for entry in plan.boundaries}
    nbytes = [entry.nbytes for entry in plan.boundaries if entry.producer is not None and entry.nbytes is not None]
    notes = [] if plan.placement is None else [f"{text.describe_placement(plan.placement)}."]
    notes += [f"Subgraphs are {text.describe_procedures(plan)}."] if plan.procedures.keys() - {"LITERAL"} else []
    if plan.unexplained:
        what = f"{plan.unexplained} nodes next to a subgraph of their device"
        notes.append(f"the network is large: {what} were not looked at for conflicts")
    return {
        "network": plan.network,
        "priorities": list(plan.priorities),
        "subgraphs": [
            {
                "device": stage.device,
                "seconds": seconds_of_subgraph.get(stage.index),
                "nodes": [[name, plan.operator_of_node[name]] for name in stage.nodes],
                "returned": [value for value in stage.outputs if value not in crossing],
                "links": _list_links(stage, network),
            }
            for stage in plan.stages
        ],
        "boundaries": [[text.describe_boundary(entry), entry.producer, entry.consumers] for entry in plan.boundaries],
        "bytes": [f"{sum(nbytes)} bytes from subgraph to subgraph, in {text.count(nbytes, 'value')}"] if nbytes else [],
        "memory": text.describe_memory(plan),
        "refusals": {name: dict(reasons) for name, reasons in plan.refusals.items()},
        "refused": [name for name in plan.operator_of_node if name not in plan.device_of_node],
        "pins": dict(plan.pins),
        "conflicts": [[entry.node, text.describe_conflict(plan, entry)] for entry in plan.conflicts],
        "note": " ".join(notes),
    }
