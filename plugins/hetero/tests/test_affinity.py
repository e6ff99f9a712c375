"""Affinity beyond the order of priority: small subgraphs, properties of a single device, ids and inner lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.conformance.models import run_evaluator
from hetero_core.errors import BlobMismatchError, ConfigKeyError, ConfigValueError
from hetero_core.network.writer import network_to_proto

CHAIN = """g (float[4] x) => (float[4] y) {
    [n0] a = Abs (x) [n1] b = Relu (a) [n2] c = Exp (b) [n3] d = Neg (c) [n4] e = Exp (d) [n5] f = Exp (e) [n6] y = Abs (f) }"""
X = np.array([0.5, -1, 2, -3], np.float32)


def compute_chain() -> np.ndarray[Any, Any]:
    return np.exp(np.exp(-np.exp(np.abs(X.astype(np.float64)))))


def list_subgraphs(plan: Any) -> list[tuple[str, str]]:
    return [(stage.device, " ".join(stage.nodes)) for stage in plan.stages]


@pytest.mark.parametrize(
    ("smallest", "subgraphs"),
    [
        (1, [("A", "n0 n1"), ("B", "n2"), ("A", "n3"), ("B", "n4 n5"), ("A", "n6")]),
        (2, [("A", "n0 n1"), ("B", "n2 n3 n4 n5 n6")]),
        (3, [("B", "n0 n1 n2 n3 n4 n5 n6")]),
    ],
)
def test_small_subgraphs_are_folded_into_a_neighbour(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any], smallest: int, subgraphs: list[tuple[str, str]]
) -> None:
    add_device("A", refused=["Exp"])
    add_device("B")
    loaded = core.load_network(read(CHAIN), "HETERO:A,B", {"HETERO_MIN_SUBGRAPH_SIZE": smallest})
    assert list_subgraphs(loaded.get_metric("HETERO_PLAN")) == subgraphs
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_chain(), rtol=1e-6)


def test_fold_is_recorded_at_the_device_that_the_node_left(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    add_device("A", refused=["Exp"])
    add_device("B")
    plan = core.query_network(read(CHAIN), "HETERO:A,B", {"HETERO_MIN_SUBGRAPH_SIZE": "2"}).plan
    assert plan is not None
    reason = "folded to B: subgraph of 1 node is below HETERO_MIN_SUBGRAPH_SIZE=2"
    assert plan.refusals == {
        "n2": {"A": "no kernel"},
        "n3": {"A": reason},
        "n4": {"A": "no kernel"},
        "n5": {"A": "no kernel"},
        "n6": {"A": reason},
    }


def test_pinned_node_keeps_its_small_subgraph(core: Core, read: Callable[..., Network], add_device: Callable[..., Any]) -> None:
    add_device("A", refused=["Exp"])
    add_device("B")
    plan = core.query_network(read(CHAIN).with_affinity({"n3": "A"}), "HETERO:A,B", {"HETERO_MIN_SUBGRAPH_SIZE": 3}).plan
    assert list_subgraphs(plan) == [("B", "n0 n1 n2"), ("A", "n3"), ("B", "n4 n5 n6")]


def test_small_subgraph_that_the_neighbour_refuses_stays(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    add_device("A", refused=["Exp"])
    add_device("B", refused=["Neg"])
    plan = core.query_network(read(CHAIN), "HETERO:A,B", {"HETERO_MIN_SUBGRAPH_SIZE": 2}).plan
    assert plan is not None
    assert ("A", "n3") in list_subgraphs(plan)
    assert plan.refusals["n3"] == {"B": "no kernel"}


def test_fold_is_undone_if_the_neighbour_refuses_the_part(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    add_device("A", refused=["Exp"])
    add_device("B", refuse=lambda node, part: "not after Exp" if node.op_type == "Neg" and len(part.nodes) > 2 else None)
    plan = core.query_network(read(CHAIN), "HETERO:A,B", {"HETERO_MIN_SUBGRAPH_SIZE": 2}).plan
    assert plan is not None
    assert plan.device_of_node["n3"] == "A"
    assert plan.refusals["n3"] == {"B": "not after Exp (asked as part of a subgraph of 5 nodes)"}


@pytest.mark.parametrize("seed", range(20))
def test_folding_gives_sound_plans_on_random_networks(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any], seed: int
) -> None:
    random = np.random.default_rng(seed)
    operators = ["Abs", "Relu", "Exp", "Neg"]
    lines, values = [], ["x"]
    for index in range(40):
        sources = [values[int(random.integers(max(0, len(values) - 6), len(values)))] for _ in range(2)]
        operator = operators[int(random.integers(4))]
        lines.append(f"s{index} = Add ({sources[0]}, {sources[1]}) t{index} = {operator} (s{index}) v{index} = Tanh (t{index})")
        values.append(f"v{index}")
    network = read(f"g (float[2] x) => (float[2] v39) {{ {' '.join(lines)} }}")
    for name, refused in (("A", ["Exp", "Neg"]), ("B", ["Relu", "Neg"]), ("C", [])):
        add_device(name, refused=refused)
    loaded = core.load_network(network, "HETERO:A,B,C", {"HETERO_MIN_SUBGRAPH_SIZE": int(random.integers(2, 9))})
    plan = loaded.get_metric("HETERO_PLAN")
    assert sorted(name for stage in plan.stages for name in stage.nodes) == sorted(node.name for node in network.nodes)
    x = np.array([0.25, -0.5], np.float32)
    expected = run_evaluator(network_to_proto(network), {"x": x})[0]
    np.testing.assert_allclose(loaded.infer({"x": x})["v39"], expected, rtol=1e-6)
    assert core.query_network(network, "HETERO:A,B,C", {"HETERO_MIN_SUBGRAPH_SIZE": 4}) == core.query_network(
        network, "HETERO:A,B,C", {"HETERO_MIN_SUBGRAPH_SIZE": 4}
    )


def test_properties_reach_one_device_and_win_over_flat_keys(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any], tmp_path: Path
) -> None:
    first, second = add_device("A", refused=["Exp"]), add_device("B")
    config = {
        "PICKY_LEVEL": 1,
        "DEVICE_PROPERTIES": {"b": {"picky_level": "2", "PICKY_NAMES": ["p", "q"], "PICKY_LIMITS": {"deep": {"er": [1, 2]}}}},
    }
    loaded = core.load_network(read(CHAIN), "HETERO:A,B", config)
    assert first.configs[0] == {"PICKY_LEVEL": 1, "PICKY_NAMES": (), "PICKY_LIMITS": None}
    assert second.configs[0] == {"PICKY_LEVEL": 2, "PICKY_NAMES": ("p", "q"), "PICKY_LIMITS": {"deep": {"er": [1, 2]}}}
    loaded.export_network(tmp_path / "x.blob")
    imported = core.import_network(tmp_path / "x.blob", "HETERO")
    assert imported.get_config("DEVICE_PROPERTIES") == config["DEVICE_PROPERTIES"]
    np.testing.assert_allclose(imported.infer({"x": X})["y"], compute_chain(), rtol=1e-6)
    core.import_network(tmp_path / "x.blob", "HETERO", {"DEVICE_PROPERTIES": config["DEVICE_PROPERTIES"]})
    with pytest.raises(BlobMismatchError, match=r"DEVICE_PROPERTIES is \{'A': \{'PICKY_LEVEL': 3\}\} in the call"):
        core.import_network(tmp_path / "x.blob", "HETERO", {"DEVICE_PROPERTIES": '{"A": {"PICKY_LEVEL": 3}}'})


def test_properties_may_be_json_text_and_reach_inner_lists(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    first, second = add_device("A"), add_device("B", refused=["Exp"])
    text = '{"(HETERO:B,A)": {"PICKY_LEVEL": 3, "DEVICE_PROPERTIES": {"A": {"PICKY_LEVEL": 4}}}}'
    core.load_network(read(CHAIN), "HETERO:(HETERO:B,A),CPU", {"DEVICE_PROPERTIES": text})
    assert {config["PICKY_LEVEL"] for config in first.configs} == {4}
    assert {config["PICKY_LEVEL"] for config in second.configs} == {3}


@pytest.mark.parametrize("call", ["query_network", "load_network"])
@pytest.mark.parametrize(
    ("properties", "error", "message"),
    [
        (
            {"AA": {}},
            ConfigValueError,
            "DEVICE_PROPERTIES of device HETERO:A,TEMPLATE.1 names 'AA', which is not in the list, did you mean 'A'? the list is "
            "A, TEMPLATE.1",
        ),
        ({"TEMPLATE": {}}, ConfigValueError, "names 'TEMPLATE', which is not in the list, did you mean 'TEMPLATE.1'?"),
        ({"A": {"PICKY_LEVLE": 1}}, ConfigKeyError, "device A has no configuration key 'PICKY_LEVLE', did you mean 'PICKY_LEVEL'"),
        ({"A": {"TEMPLATE_REFUSED_OPERATORS": "Exp"}}, ConfigKeyError, "device A has no configuration key"),
        ({"A": {"PICKY_LEVEL": "x"}}, ConfigValueError, "configuration key PICKY_LEVEL of device A: expected an int, got 'x'"),
        ({"A": 3}, ConfigValueError, "DEVICE_PROPERTIES of device HETERO:A,TEMPLATE.1: expected keys and values for A, got 3"),
        ({"A": {}, "a": {}}, ConfigValueError, "names A twice; write all of its keys in one entry"),
        (
            {"A": {"PERF_COUNT": True}},
            ConfigKeyError,
            "sets PERF_COUNT for A; PERF_COUNT, streams and limits are for the whole network",
        ),
        ({"A": {"DEADLINE": 1.0}}, ConfigKeyError, "sets DEADLINE for A; PERF_COUNT, streams and limits are for the whole network"),
        ({"TEMPLATE.1": {"DEVICE_ID": "0"}}, ConfigKeyError, "sets DEVICE_ID for TEMPLATE.1; "),
        ("A=3", ConfigValueError, "expected a mapping of what JSON can hold, or a JSON object as text, got 'A=3'"),
    ],
)
def test_properties_that_no_device_takes_are_an_error(
    core: Core,
    read: Callable[..., Network],
    add_device: Callable[..., Any],
    call: str,
    properties: Any,
    error: type[Exception],
    message: str,
) -> None:
    add_device("A")
    with pytest.raises(error) as caught:
        getattr(core, call)(read(CHAIN), "HETERO:A,TEMPLATE.1", {"DEVICE_PROPERTIES": properties})
    assert message in str(caught.value)


def test_ids_hold_through_query_load_export_and_import(core: Core, read: Callable[..., Network], tmp_path: Path) -> None:
    network = read(CHAIN).with_affinity({"op:Exp": "template.1", "n6": "CPU"})
    expected = {"n0": "TEMPLATE.0", "n2": "TEMPLATE.1", "n3": "TEMPLATE.0", "n5": "TEMPLATE.1", "n6": "CPU"}
    result = core.query_network(network, "HETERO:TEMPLATE.0,TEMPLATE.1,CPU")
    assert {name: result.supported[name] for name in expected} == expected
    loaded = core.load_network(network, "HETERO:TEMPLATE.0,TEMPLATE.1,CPU", {"DEVICE_PROPERTIES": {"TEMPLATE.1": {}}})
    loaded.export_network(tmp_path / "x.blob")
    with Core() as fresh_core:
        imported = fresh_core.import_network(tmp_path / "x.blob", "HETERO:TEMPLATE.0,TEMPLATE.1,CPU")
        for compiled in (loaded, imported):
            assert compiled.get_metric("EXECUTION_DEVICES") == ("TEMPLATE.0", "TEMPLATE.1", "CPU")
            assert [str(stage.device) for stage in compiled.executable.stages] == [
                stage.device for stage in compiled.get_metric("HETERO_PLAN").stages
            ]
            np.testing.assert_allclose(compiled.infer({"x": X})["y"], compute_chain(), rtol=1e-6)


def test_properties_of_one_id_do_not_reach_the_second(core: Core, read: Callable[..., Network]) -> None:
    properties = {"TEMPLATE.0": {"TEMPLATE_REFUSED_OPERATORS": ["Exp"]}}
    result = core.query_network(read(CHAIN), "HETERO:TEMPLATE.0,TEMPLATE.1", {"DEVICE_PROPERTIES": properties})
    assert {name for name, device in result.supported.items() if device == "TEMPLATE.1"} == {"n2", "n4", "n5"}


def test_inner_list_holds_through_query_load_export_and_import(core: Core, read: Callable[..., Network], tmp_path: Path) -> None:
    device = "HETERO:(HETERO:TEMPLATE.1,CPU),TEMPLATE.0"
    inner = "HETERO:TEMPLATE.1,CPU"
    config = {"DEVICE_PROPERTIES": {inner: {"TEMPLATE_REFUSED_OPERATORS": ["Exp"], "HETERO_MIN_SUBGRAPH_SIZE": 2}}}
    network = read(CHAIN).with_affinity({"n0": "TEMPLATE.0"})
    result = core.query_network(network, device, config)
    assert result.supported == {**{f"n{index}": inner for index in range(1, 7)}, "n0": "TEMPLATE.0"}
    loaded = core.load_network(network, device, config)
    loaded.export_network(tmp_path / "x.blob")
    with Core() as fresh_core:
        for compiled in (loaded, fresh_core.import_network(tmp_path / "x.blob", "HETERO")):
            assert compiled.get_metric("EXECUTION_DEVICES") == ("TEMPLATE.0", "CPU")
            plan = compiled.executable.stages[1].get_metric("HETERO_PLAN")
            assert list_subgraphs(plan) == [("CPU", "n1 n2 n3 n4 n5 n6")]
            np.testing.assert_allclose(compiled.infer({"x": X})["y"], compute_chain(), rtol=1e-6)
