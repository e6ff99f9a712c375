"""HTML pages that need nothing else: a plan with its picture, the steps of an executed graph, and tables.

A page asks for nothing over the network; its policy forbids it. The page of a plan has a program, plan.js: pan, zoom, choose a subgraph,
search nodes. Every text from a model is escaped here, in the JSON that the program reads, too; the program makes text nodes only.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from string import Template
from types import MappingProxyType
from typing import Any

from hetero_core.network.graph import Network, Node
from hetero_core.plan import Plan, PlanStage
from hetero_core.reports.drawing import ARROW, draw_plan, escape_text, list_devices, quote_text, read_asset, style_drawing
from hetero_core.reports.text import (
    count,
    describe_bytes,
    describe_conflict,
    describe_memory,
    describe_placement,
    describe_procedures,
)


def format_page(title: str, body: str) -> str:
    """Returns the page of a body that is HTML; the title is any text."""
    return Template(read_asset("page.html")).substitute(TITLE=escape_text(title), STYLE=read_asset("page.css"), BODY=body)


def _write_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of texts; a header that ends with "#" marks a column of numbers."""
    kinds = ['<td class="number">' if title.endswith("#") else "<td>" for title in header]
    head = "".join(f"<th>{title.rstrip('#')}</th>" for title in header)
    lines = ["".join(f"{kind}{escape_text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows]
    return "\n".join([f"<table><tr>{head}</tr>", *(f"<tr>{line}</tr>" for line in lines), "</table>"])


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
    drawing = draw_plan(plan, seconds_of_subgraph)
    style = f"{read_asset('plan.css')}\n{style_drawing()}"
    program = read_asset("plan.js")
    policy = f"default-src 'none'; script-src {_hash(program)}; style-src {_hash(style)}; img-src data:"
    legend = "".join(
        f'<li><svg width="14" height="14" aria-hidden="true"><rect class="swatch device-{device.color}" x="1" y="1" width="12" height="12" '
        f'rx="3"/></svg>{escape_text(device.text)}</li>'
        for device in list_devices(plan, seconds_of_subgraph)
    )
    # No HTML parser can leave this JSON: it is ASCII, and the characters of tags and entities are written as escapes.
    moved = [(index, seconds, nbytes) for index, (seconds, nbytes) in transfers.items()]
    fields = json.dumps({**_list_fields(plan, seconds_of_subgraph, network), "moved": moved, "trace": trace}, separators=(",", ":"))
    fields = fields.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    title = f"{plan.network}: {count(plan.operator_of_node, 'node')}, {count(plan.stages, 'subgraph')}"
    return Template(read_asset("plan.html")).substitute(
        POLICY=quote_text(policy),
        TITLE=escape_text(title),
        STYLE=style,
        LEGEND=legend,
        SIZE=f'data-width="{drawing.width:.0f}" data-height="{drawing.height:.0f}"',
        DRAWING=f'{ARROW}<g id="scene">{drawing.elements}</g>',
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
    inner = [entry for entry in plan.boundaries if entry.producer is not None and entry.nbytes is not None]
    notes = [] if plan.placement is None else [f"{describe_placement(plan.placement)}."]
    notes += [f"Subgraphs are {describe_procedures(plan)}."] if plan.procedures.keys() - {"LITERAL"} else []
    if plan.unexplained:
        notes.append(
            f"the network is large: {plan.unexplained} nodes next to a subgraph of their device were not looked at for conflicts"
        )
    return {
        "network": plan.network,
        "priorities": list(plan.priorities),
        "subgraphs": [
            {
                "device": stage.device,
                "seconds": seconds_of_subgraph.get(stage.index),
                "nodes": [[name, plan.operator_of_node[name]] for name in stage.nodes],
                "outputs": list(stage.outputs),
                "links": _list_links(stage, network),
            }
            for stage in plan.stages
        ],
        "boundaries": [
            [entry.value, str(entry.type), describe_bytes(entry), entry.producer, list(entry.consumers)]
            for entry in plan.boundaries
        ],
        "bytes": [f"{sum(entry.nbytes or 0 for entry in inner)} bytes from subgraph to subgraph, in {count(inner, 'value')}"]
        if inner
        else [],
        "memory": describe_memory(plan),
        "refusals": {name: dict(reasons) for name, reasons in plan.refusals.items()},
        "refused": [name for name in plan.operator_of_node if name not in plan.device_of_node],
        "pins": dict(plan.pins),
        "conflicts": [[entry.node, describe_conflict(plan, entry)] for entry in plan.conflicts],
        "note": " ".join(notes),
    }


_STEP_COLUMNS = ("#", "step", "operator", "device", "kernel", "stands for", "reads", "makes", "layouts", "microseconds#")


def executed_to_html(network: Network) -> str:
    """Returns the executed graph of `network.get_runtime_model()` as an HTML document: a table of the steps in order."""
    times = [time for node in network.nodes if (time := node.attributes.get("microseconds")) is not None]
    total = f"<p>{sum(times):.1f} microseconds in {count(times, 'step')} that were measured</p>" if times else ""
    table = _write_table(_STEP_COLUMNS, [(str(index), *_list_cells(node, network)) for index, node in enumerate(network.nodes)])
    return format_page(f"{network.name}, as it runs: {count(network.nodes, 'step')}", total + table)


def _list_cells(node: Node, network: Network) -> tuple[str, ...]:
    told = node.attributes
    subgraph = f" ({told['path']})" if "path" in told else ""
    outputs = ", ".join(f"{value}: {kind}" if (kind := network.type_of(value)) is not None else value for value in node.outputs)
    return (
        node.name,
        node.op_type,
        f"{told.get('device', '')}{subgraph}",
        str(told.get("kernel", "")),
        ", ".join(told.get("original_names", ())),
        ", ".join(node.inputs),
        outputs,
        ", ".join(told.get("layouts", ())),
        f"{told['microseconds']:.1f}" if "microseconds" in told else "",
    )
