"""Views of a fixed plan: text, fields, DOT, mermaid, legend, links, and the explanation of a node."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hetero_core import Network, QueryResult
from hetero_core.errors import InvalidNetworkError
from hetero_core.network.types import TensorType
from hetero_core.plan import Boundary, Conflict, PlacedSegment, Placement, PlacementCandidate, Plan, PlanStage
from hetero_core.reports.dot import COLORS, plan_to_dot, plan_to_mermaid
from hetero_core.reports.fields import plan_to_json
from hetero_core.reports.single import plan_single_device
from hetero_core.reports.text import describe_explanation, describe_plan, explain_node, explain_placement

FOUR = TensorType("float32", (4,))

# Node 4 is on the second device and separates {1, 2} from {3, 5, 6}.
PLAN = Plan(
    network="diamond",
    priorities=("GPU", "CPU"),
    device_of_node={"n1": "GPU", "n2": "GPU", "n3": "GPU", "n4": "CPU", "n5": "GPU", "n6": "GPU"},
    operator_of_node={"n1": "Relu-14", "n2": "Abs-13", "n3": "Neg-13", "n4": "Exp-13", "n5": "Add-14", "n6": "Relu-14"},
    refusals={"n4": {"GPU": "no kernel for Exp"}},
    pins={"n6": "GPU"},
    stages=(
        PlanStage(0, "GPU", ("n1", "n2"), ("x",), ("b",)),
        PlanStage(1, "CPU", ("n4",), ("b",), ("d",)),
        PlanStage(2, "GPU", ("n3", "n5", "n6"), ("b", "d"), ("y",)),
    ),
    boundaries=(
        Boundary("x", TensorType("float32", ("n",)), None, None, (0,), None, ("n1",)),
        Boundary("b", FOUR, 16, 0, (1, 2), "n2", ("n3", "n4")),
        Boundary("d", FOUR, 16, 1, (2,), "n4", ("n5",)),
    ),
    conflicts=(Conflict("n2", 2, ("n2", "n4", "n5")),),
)


def test_text_has_stages_values_pins_refusals_and_conflicts() -> None:
    assert describe_plan(PLAN).splitlines() == [
        "network 'diamond': 6 nodes in 3 subgraphs on 2 devices, priorities GPU, CPU",
        "  subgraph 0 on GPU: 2 nodes: n1 (Relu-14), n2 (Abs-13)",
        "  subgraph 1 on CPU: 1 node: n4 (Exp-13)",
        "  subgraph 2 on GPU: 3 nodes: n3 (Neg-13), n5 (Add-14), n6 (Relu-14)",
        "boundary values:",
        "  x: float32[n], size known at run time, input -> subgraph 0",
        "  b: float32[4], 16 bytes, subgraph 0 -> subgraph 1, subgraph 2",
        "  d: float32[4], 16 bytes, subgraph 1 -> subgraph 2",
        "pins: n6 -> GPU",
        "refusals:",
        "  n4 (Exp-13), GPU: no kernel for Exp",
        "kept out of another subgraph of their device:",
        "  n2: with subgraph 2, n2 -> n4 -> n5 would leave at n2, pass subgraph 1 on CPU, and return at n5",
    ]


def test_long_lists_in_text_are_cut_and_counted() -> None:
    many = replace(
        PLAN,
        refusals={name: {"GPU": "no"} for name in PLAN.operator_of_node},
        conflicts=tuple(Conflict(name, 2, (name, "n4", "n5")) for name in ("n1", "n2", "n3")),
    )
    lines = describe_plan(many, refusal_limit=2).splitlines()
    assert "  ... and 4 more nodes" in lines
    assert lines[-1] == "  ... and 1 more nodes"


def test_json_names_makers_readers_and_conflicts() -> None:
    fields = json.loads(json.dumps(plan_to_json(PLAN)))
    assert [each["nodes"] for each in fields["subgraphs"]] == [["n1", "n2"], ["n4"], ["n3", "n5", "n6"]]
    assert fields["boundaries"][1] == {
        "value": "b",
        "type": "float32[4]",
        "bytes": 16,
        "producer": 0,
        "consumers": [1, 2],
        "maker": "n2",
        "readers": ["n3", "n4"],
    }
    assert fields["operator_of_node"] == dict(PLAN.operator_of_node)
    assert fields["conflicts"] == [{"node": "n2", "subgraph": 2, "path": ["n2", "n4", "n5"]}]
    assert fields["unexplained"] == 0
    assert fields["procedures"] == {}


def test_mermaid_has_boxes_and_arrows() -> None:
    lines = plan_to_mermaid(PLAN, {1: 0.00025}).splitlines()
    assert lines[0] == "flowchart TB"
    assert '  p1["1: CPU<br/>1 node · 0.250 ms"]:::device1' in lines
    assert '  inputs -->|"x"| p0' in lines
    assert '  p0 -->|"b (16 bytes)"| p2' in lines
    assert '  p2 -->|"y"| outputs' in lines


def test_mermaid_escapes_syntax_characters_as_entities() -> None:
    name = 'a"] --> b; <script>|#'
    plan = replace(PLAN, boundaries=(Boundary(name, FOUR, 16, 0, (1,)),))
    (line,) = [line for line in plan_to_mermaid(plan, {}).splitlines() if line.endswith(" p1")]
    assert line == '  p0 -->|"a#34;#93; --#62; b#59; #60;script#62;#124;#35; (16 bytes)"| p1'


def test_dot_quotes_names_and_keeps_clusters_apart() -> None:
    text = plan_to_dot(replace(PLAN, network='a "b" \\ c'))
    assert text.startswith('digraph "a \\"b\\" \\\\ c" {')
    assert text.count("subgraph cluster_") == 3
    assert 'tooltip="GPU: no kernel for Exp"' in text
    assert re.findall(r'"n4" \[.*fillcolor="(#\w+)"', text) == [f"{COLORS[1]}40"]


def test_explanation_has_answers_pin_conflict_and_values() -> None:
    explained = explain_node(PLAN, "n4")
    assert [(each.device, each.takes, each.reason) for each in explained.devices] == [
        ("GPU", False, "no kernel for Exp"),
        ("CPU", True, "runs it"),
    ]
    assert explained.reads == ("b",)
    assert explained.makes == ("d",)
    assert explained.conflicts == ()
    assert explain_node(PLAN, "n2").conflicts == PLAN.conflicts
    assert explain_node(PLAN, "n6").pin == "GPU"


def test_explanation_of_an_inner_node_has_subgraph_conflicts() -> None:
    explained = explain_node(PLAN, "n1")
    assert explained.conflicts == PLAN.conflicts
    assert "n2, of the same subgraph: with subgraph 2, n2 -> n4 -> n5" in describe_explanation(PLAN, explained)


def test_explanation_lists_devices_that_were_not_queried() -> None:
    (_, cpu) = explain_node(PLAN, "n1").devices
    assert (cpu.takes, cpu.reason) == (None, "was not asked; the node goes to GPU")
    (_, cpu) = explain_node(PLAN, "n6").devices
    assert (cpu.takes, cpu.reason) == (None, "was not asked; the node is pinned to GPU")
    (_, cpu) = explain_node(replace(PLAN, candidates={"n1": ("CPU",)}), "n1").devices
    assert (cpu.takes, cpu.reason) == (True, "would take it; the node goes to GPU")


def test_explanation_as_text() -> None:
    assert describe_explanation(PLAN, explain_node(PLAN, "n2")).splitlines() == [
        "node 'n2' (Abs-13) of network 'diamond'",
        "  device    GPU",
        "  subgraph  0 of 3, 2 nodes",
        "  pin       none",
        "  devices, in order of priority:",
        "    GPU  yes  runs it",
        "    CPU  -    was not asked; the node goes to GPU",
        "  kept apart on one device:",
        "    with subgraph 2, n2 -> n4 -> n5 would leave at n2, pass subgraph 1 on CPU, and return at n5",
        "  makes for others:",
        "    b: float32[4], 16 bytes, subgraph 0 -> subgraph 1, subgraph 2",
    ]


def test_explanation_of_an_unknown_node_has_near_misses() -> None:
    with pytest.raises(InvalidNetworkError) as caught:
        explain_node(PLAN, "n44")
    assert str(caught.value).startswith("network 'diamond' has no node 'n44', did you mean 'n4'")


def test_plan_of_a_single_device_has_one_stage_with_its_refusals(read: Callable[[str], Network]) -> None:
    network = read("pair (float[2, 3] x) => (float[2, 3] y) { [first] a = Relu (x) [second] y = Exp (a) }")
    plan = plan_single_device(network, "CPU", QueryResult({"first": "CPU"}, {"second": "no kernel"}))
    assert plan.stages == (PlanStage(0, "CPU", ("first", "second"), ("x",), ("y",)),)
    assert plan.boundaries == (Boundary("x", TensorType("float32", (2, 3)), 24, None, (0,), None, ("first",)),)
    assert explain_node(plan, "second").device is None
    assert explain_node(plan, "second").subgraph is None
    assert [(each.takes, each.reason) for each in explain_node(plan, "second").devices] == [(False, "no kernel")]


@pytest.mark.parametrize("view", [describe_plan, plan_to_dot, plan_to_json, lambda plan: plan_to_mermaid(plan, {})])
def test_plan_without_nodes_has_views(view: Callable[[Plan], Any]) -> None:
    assert view(Plan("empty", ("CPU",), {}, {}, {}, {}, (), ()))


@pytest.mark.parametrize(
    ("mixed", "chosen", "sentence"),
    [
        (
            7.0,
            0,
            "A won: a run of MIXED 1, the next, takes 1.17 times as long. The mixture MIXED 1 lost against A alone: the times of "
            "1 segment elsewhere save 2000.000 ms, and the borders of 2 parts cost 3000.000 ms",
        ),
        (
            5.0,
            2,
            "MIXED 1 won: a run of A, the next, takes 1.20 times as long. The mixture MIXED 1 won against A alone: the times of "
            "1 segment elsewhere save 2000.000 ms, and the borders of 2 parts cost 1000.000 ms",
        ),
        (
            None,
            0,
            "A won: a run of B, the next, takes 1.50 times as long. No mixture of devices was worth a measurement by its estimate.",
        ),
    ],
)
def test_placement_says_why_its_choice_won(mixed: float | None, chosen: int, sentence: str) -> None:
    segments = tuple(PlacedSegment((name,), "A", 0, {"A": 3.0, "B": other}, {}) for name, other in (("n", 1.0), ("m", 8.0)))
    candidates = (
        PlacementCandidate("A", ("A", "A"), 1, None, 6.0),
        PlacementCandidate("B", ("B", "B"), 1, None, 9.0),
        PlacementCandidate("MIXED 1", ("B", "A"), 2, 4.0, mixed),
    )
    placement = Placement(segments, (), candidates, chosen, 1.0, True)
    assert explain_placement(placement).startswith(sentence)
    assert explain_placement(replace(placement, candidates=candidates[:1], chosen=0)) == ""
