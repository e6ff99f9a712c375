"""HTML pages that need nothing else: a plan with its picture, the steps of an executed graph, and tables.

A page has no program and asks for nothing over the network; its policy forbids both. Every text from a model is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import Template

from hetero_core.network.graph import Network, Node
from hetero_core.plan import Plan
from hetero_core.reports.drawing import ARROW, describe_stage, draw_plan, escape_text, list_devices, read_asset, style_drawing
from hetero_core.reports.text import count, describe_boundary, describe_conflict, describe_placement, describe_procedures

_MOST_UNEXPLAINED = "the network is large: {} nodes next to a subgraph of their device were not looked at for conflicts"


def format_page(title: str, body: str, *, style: str = "") -> str:
    """Returns the page of a body that is HTML; the title is any text."""
    style = f"{read_asset('page.css')}{style}"
    return Template(read_asset("page.html")).substitute(TITLE=escape_text(title), STYLE=style, BODY=body)


def _write_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of texts; a header that ends with "#" marks a column of numbers."""
    kinds = ['<td class="number">' if title.endswith("#") else "<td>" for title in header]
    head = "".join(f"<th>{title.rstrip('#')}</th>" for title in header)
    lines = ["".join(f"{kind}{escape_text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows]
    return "\n".join([f"<table><tr>{head}</tr>", *(f"<tr>{line}</tr>" for line in lines), "</table>"])


def plan_to_html(plan: Plan, seconds_of_subgraph: Mapping[int, float]) -> str:
    """Returns the plan as an HTML document; `seconds_of_subgraph` may be empty or partial. A box of the picture links to its section."""
    drawing = draw_plan(plan, seconds_of_subgraph)
    legend = "".join(
        f'<li><svg width="14" height="14"><rect class="swatch device-{device.color}" x="1" y="1" width="12" height="12" rx="3"/></svg> '
        f"{escape_text(device.text)}</li>"
        for device in list_devices(plan, seconds_of_subgraph)
    )
    width, height = f"{drawing.width:.0f}", f"{drawing.height:.0f}"
    refused = [name for name in plan.operator_of_node if name not in plan.device_of_node]
    parts = [
        f"<ul>{legend}</ul>",
        *(f"<p>{escape_text(note)}</p>" for note in _list_notes(plan)),
        f'<svg class="picture" width="{width}" height="{height}" viewBox="0 0 {width} {height}">{ARROW}{drawing.elements}</svg>',
    ]
    conflicts: dict[str, list[str]] = {}
    for conflict in plan.conflicts:
        conflicts.setdefault(conflict.node, []).append(describe_conflict(plan, conflict))
    for stage in plan.stages:
        heading = f"subgraph {stage.index} on {stage.device}: {describe_stage(plan, stage, seconds_of_subgraph.get(stage.index))}"
        parts.append(f'<h2 id="subgraph-{stage.index}">{escape_text(heading)}</h2>')
        parts.append(_write_nodes(plan, stage.nodes, conflicts))
    if plan.boundaries:
        parts += ["<h2>boundary values</h2>", *(f"<p>{escape_text(describe_boundary(entry))}</p>" for entry in plan.boundaries)]
    if refused:
        parts += ["<h2>nodes without a device</h2>", _write_nodes(plan, refused, conflicts)]
    title = f"{plan.network}: {count(plan.operator_of_node, 'node')}, {count(plan.stages, 'subgraph')}"
    return format_page(title, "\n".join(parts), style=style_drawing())


def _list_notes(plan: Plan) -> list[str]:
    """Returns sentences about the plan as a whole."""
    notes = [] if plan.placement is None else [f"{describe_placement(plan.placement)}."]
    notes += [f"Subgraphs are {describe_procedures(plan)}."] if plan.procedures.keys() - {"LITERAL"} else []
    return [*notes, _MOST_UNEXPLAINED.format(plan.unexplained)] if plan.unexplained else notes


def _write_nodes(plan: Plan, names: Iterable[str], conflicts: Mapping[str, Sequence[str]]) -> str:
    rows = [
        (
            name,
            plan.operator_of_node[name],
            plan.pins.get(name, ""),
            "; ".join(f"{device}: {reason}" for device, reason in plan.refusals.get(name, {}).items()),
            "; ".join(conflicts.get(name, ())),
        )
        for name in names
    ]
    return _write_table(("node", "operator", "pin", "refused by", "kept out of another subgraph"), rows)


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
