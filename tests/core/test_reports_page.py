"""The HTML page of a plan is a complete document without external resources, and escapes all names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from hetero_core.network.types import TensorType
from hetero_core.plan import Boundary, Conflict, Plan, PlanStage
from hetero_core.reports.page import plan_to_html
from hetero_core.reports.text import describe_boundary

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "'\"><img src=x onerror=alert(1)>",
    "]]>&amp;&lt;",
    "__proto__",
    "$PLAN ${PROGRAM}",
    "\u2028\u2029\x00\x1b\ud800",
    "javascript:alert(1)",
    "x" * 300,
)


def make_plan(names: tuple[str, ...], network: str = "net") -> Plan:
    """Returns a plan with a subgraph for each name; every field of a name holds it."""
    stages = tuple(
        PlanStage(index, f"D{name}" if index % 2 else "CPU", (name,), (f"v{name}",), (f"w{name}",))
        for index, name in enumerate(names)
    )
    boundaries = tuple(
        Boundary(f"w{name}", TensorType("float32", (name, 4)), 16, index, (index + 1,), name, (names[index + 1],))
        for index, name in enumerate(names[:-1])
    )
    return Plan(
        network=network,
        priorities=tuple(dict.fromkeys(stage.device for stage in stages)),
        device_of_node={stage.nodes[0]: stage.device for stage in stages},
        operator_of_node={name: f"com.{name}:Op-1" for name in names},
        refusals={name: {f"D{name}": f"no {name}"} for name in names},
        pins=dict.fromkeys(names, "CPU"),
        stages=stages,
        boundaries=(Boundary(f"v{names[0]}", TensorType("float32", (4,)), 16, None, (0,), None, (names[0],)), *boundaries),
        conflicts=tuple(Conflict(name, 0, (name, names[0], name)) for name in names),
    )


class Reader(HTMLParser):
    """Collects elements with attributes, and the texts of scripts, styles and titles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self._inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] in self.raw:
            self.raw[self._inside[-1]][-1] += data


PLANS = [make_plan(("a", "b", "c")), make_plan(HOSTILE, network=HOSTILE[0] + HOSTILE[2])]


def test_hostile_names_add_no_element_to_the_page() -> None:
    plain = Reader(plan_to_html(make_plan(tuple("abcdefghi")), {}))
    hostile = Reader(plan_to_html(PLANS[1], {}))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert [sorted(attributes) for _, attributes in hostile.elements] == [sorted(attributes) for _, attributes in plain.elements]


@pytest.mark.parametrize("plan", PLANS, ids=["plain", "hostile"])
def test_page_carries_the_plan_as_json_with_exact_names(plan: Plan) -> None:
    fields = json.loads(Reader(plan_to_html(plan, {0: 0.5})).raw["script"][0])
    assert [each["nodes"][0][0] for each in fields["subgraphs"]] == [stage.nodes[0] for stage in plan.stages]
    assert fields["refusals"] == {name: dict(reasons) for name, reasons in plan.refusals.items()}
    assert fields["boundaries"][1] == [describe_boundary(plan.boundaries[1]), 0, [1]]
    assert (fields["subgraphs"][0]["seconds"], fields["subgraphs"][1]["seconds"]) == (0.5, None)


@pytest.mark.parametrize("plan", PLANS, ids=["plain", "hostile"])
def test_page_allows_its_own_program_and_style_and_nothing_else(plan: Plan) -> None:
    page = Reader(plan_to_html(plan, {}))
    policy = next(attributes["content"] for tag, attributes in page.elements if tag == "meta" and "http-equiv" in attributes)
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (page.raw["script"][1], page.raw["style"][0])
    ]
    assert policy == f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; img-src data:"
    assert len(page.raw["script"]) == 2


def test_page_names_no_address() -> None:
    text = plan_to_html(PLANS[0], {})
    assert set(re.findall(r"\w+://[^\"' <]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert re.findall(r"(?:src|href)=\"(?!data:,)", text) == []


def test_program_makes_no_markup() -> None:
    program = Reader(plan_to_html(PLANS[0], {})).raw["script"][1]
    assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttpRequest|import\(", program) == []


def test_plan_without_nodes_has_a_page() -> None:
    plan = Plan("empty", ("CPU",), {}, {}, {}, {}, (), ())
    assert Reader(plan_to_html(plan, {})).raw["title"][0] == "empty: 0 nodes, 0 subgraphs"
