"""One HTML page of tables that needs nothing else: no scripts, nothing over the network."""

from __future__ import annotations

from html import escape
from string import Template

from hetero_core.reports.drawing import read_asset


def format_page(title: str, body: str) -> str:
    """Returns the page of a body that is HTML; the title is any text."""
    return Template(read_asset("tables.html")).substitute(TITLE=escape(title), STYLE=read_asset("tables.css"), BODY=body)
