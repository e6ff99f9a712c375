"""A plan as one HTML page that needs nothing else: the drawing, a panel about the chosen subgraph, and a search for nodes.

The page asks for nothing over the network, and its own policy forbids it. Names are texts wherever they stand: escaped in the drawing,
and in the plan's JSON no character can end the script; the program of the page makes text nodes only.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from string import Template
from typing import Any

from hetero_core.plan import Plan
from hetero_core.reports.drawing import ARROW, draw_plan, escape_text, quote_text, read_asset, style_drawing
from hetero_core.reports.legend import list_devices
from hetero_core.reports.placement import describe_placement
from hetero_core.reports.text import count, describe_bytes, describe_conflict, describe_procedures

_MOST_UNEXPLAINED = "the network is large: {} nodes next to a subgraph of their device were not looked at for conflicts"


def plan_to_html(plan: Plan, seconds_of_subgraph: Mapping[int, float]) -> str:
    """Returns the plan as an HTML document; `seconds_of_subgraph` may be empty or partial."""
    drawing = draw_plan(plan, seconds_of_subgraph)
    style = f"{read_asset('page.css')}\n{style_drawing()}"
    program = read_asset("page.js")
    policy = f"default-src 'none'; script-src {_hash(program)}; style-src {_hash(style)}; img-src data:"
    legend = "".join(
        f'<li><svg width="14" height="14" aria-hidden="true"><rect class="swatch device-{device.color}" x="1" y="1" width="12" height="12" '
        f'rx="3"/></svg>{escape_text(device.text)}</li>'
        for device in list_devices(plan, seconds_of_subgraph)
    )
    title = f"{plan.network}: {count(plan.operator_of_node, 'node')}, {count(plan.stages, 'subgraph')}"
    return Template(read_asset("page.html")).substitute(
        POLICY=quote_text(policy),
        TITLE=escape_text(title),
        STYLE=style,
        LEGEND=legend,
        SIZE=f'data-width="{drawing.width:.0f}" data-height="{drawing.height:.0f}"',
        DRAWING=f'{ARROW}<g id="scene">{drawing.elements}</g>',
        PLAN=_escape_json(_list_fields(plan, seconds_of_subgraph)),
        PROGRAM=program,
    )


def _hash(text: str) -> str:
    """Returns the source of a policy that allows this inline text and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _escape_json(fields: Mapping[str, Any]) -> str:
    """Returns JSON that no HTML parser can leave: the characters of tags and entities are written as escapes."""
    text = json.dumps(fields, separators=(",", ":"))  # ASCII: everything else is an escape, too
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _list_fields(plan: Plan, seconds_of_subgraph: Mapping[int, float]) -> dict[str, Any]:
    """Returns what the program of the page shows on demand."""
    return {
        "network": plan.network,
        "priorities": list(plan.priorities),
        "subgraphs": [
            {
                "device": stage.device,
                "seconds": seconds_of_subgraph.get(stage.index),
                "nodes": [[name, plan.operator_of_node[name]] for name in stage.nodes],
                "outputs": list(stage.outputs),
            }
            for stage in plan.stages
        ],
        "boundaries": [
            [entry.value, str(entry.type), describe_bytes(entry), entry.producer, list(entry.consumers)]
            for entry in plan.boundaries
        ],
        "refusals": {name: dict(reasons) for name, reasons in plan.refusals.items()},
        "refused": [name for name in plan.operator_of_node if name not in plan.device_of_node],
        "pins": dict(plan.pins),
        "conflicts": [[entry.node, describe_conflict(plan, entry)] for entry in plan.conflicts],
        "note": " ".join(_list_notes(plan)),
    }


def _list_notes(plan: Plan) -> list[str]:
    """Returns what is said of the plan as a whole."""
    notes = [] if plan.placement is None else [f"{describe_placement(plan.placement)}."]
    notes += [f"Subgraphs are {describe_procedures(plan)}."] if plan.procedures.keys() - {"LITERAL"} else []
    return [*notes, _MOST_UNEXPLAINED.format(plan.unexplained)] if plan.unexplained else notes
