"""The executed graph as one HTML page that needs nothing else: a table of the steps in order, without scripts."""

from __future__ import annotations

from html import escape

from hetero_core.network.graph import Network, Node
from hetero_core.reports.tables import format_page
from hetero_core.reports.text import count

_COLUMNS = ("", "step", "operator", "device", "kernel", "stands for", "reads", "makes", "layouts", "microseconds")


def executed_to_html(network: Network) -> str:
    """Returns the executed graph of `network.get_runtime_model()` as an HTML document."""
    times = [time for node in network.nodes if (time := node.attributes.get("microseconds")) is not None]
    total = f"<p>{sum(times):.1f} microseconds in {count(times, 'step')} that were measured</p>" if times else ""
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "\n".join(_write_row(index, node, network) for index, node in enumerate(network.nodes))
    title = f"{network.name}, as it runs: {count(network.nodes, 'step')}"
    return format_page(title, f"{total}<table><tr>{head}</tr>\n{rows}\n</table>")


def _write_row(index: int, node: Node, network: Network) -> str:
    told = node.attributes
    subgraph = f" ({told['path']})" if "path" in told else ""
    outputs = ", ".join(f"{value}: {kind}" if (kind := network.type_of(value)) is not None else value for value in node.outputs)
    cells = (
        node.name,
        node.op_type,
        f"{told.get('device', '')}{subgraph}",
        told.get("kernel", ""),
        ", ".join(told.get("original_names", ())),
        ", ".join(node.inputs),
        outputs,
        ", ".join(told.get("layouts", ())),
    )
    time = f"{told['microseconds']:.1f}" if "microseconds" in told else ""
    texts = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    return f'<tr><td class="number">{index}</td>{texts}<td class="number">{time}</td></tr>'
