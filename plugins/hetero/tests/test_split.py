"""HETERO through the public API: affinity, plans, refusals, errors, export and import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hetero_cpu
import hetero_template
import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Executable, Network, QueryResult, hookimpl
from hetero_core.contract import DeviceName
from hetero_core.devices.query import query_by_transform
from hetero_core.errors import (
    AffinityError,
    BlobMismatchError,
    DeviceNameError,
    InferenceError,
    InvalidNetworkError,
    PluginError,
    UnsupportedNodesError,
)
from hetero_core.reports.dot import plan_to_dot
from hetero_core.reports.fields import plan_to_json
from hetero_core.reports.text import describe_plan
from hetero_core.testing.plain_device import PlainDevice

DIAMOND = """g (float[4] x) => (float[4] y) {
    n1 = Relu(x) n2 = Abs(n1) n3 = Neg(n2) n4 = Exp(n2) n5 = Add(n3, n4) n6 = Relu(n5) y = Abs(n6) }"""
X = np.array([0.5, -1, 2, -3], np.float32)


def compute_diamond(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    positive = np.maximum(x.astype(np.float64), 0)
    return np.abs(np.maximum(np.exp(positive) - positive, 0))


@pytest.fixture
def read(core: Core) -> Callable[[str], Network]:
    return lambda text: core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "com.acme": 1]> {text}'))


@pytest.fixture
def d0_d1(core: Core) -> Core:
    core.register_plugin("D0", hetero_template)
    core.register_plugin("D1", hetero_template)
    return core


def test_example_of_the_document_through_the_api(d0_d1: Core, read: Callable[..., Network]) -> None:
    network = read(DIAMOND)
    names = [node.name for node in network.nodes]
    pinned = network.with_affinity({"*": "D0", names[3]: "D1"})
    loaded = d0_d1.load_network(pinned, "HETERO:D0,D1")
    assert loaded.get_metric("HETERO_SUBGRAPHS") == (
        ("D0", (names[0], names[1])),
        ("D1", (names[3],)),
        ("D0", (names[2], names[4], names[5], names[6])),
    )
    assert loaded.get_metric("HETERO_NUMBER_OF_SUBMODELS") == 3
    assert loaded.get_metric("EXECUTION_DEVICES") == ("D0", "D1")
    assert loaded.get_metric("HETERO_BOUNDARY_TENSORS") == 2
    assert loaded.get_metric("HETERO_BOUNDARY_BYTES") == 32
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_diamond(X), rtol=1e-6)


def test_answer_about_a_part_travels_with_its_load(core: Core, read: Callable[..., Network]) -> None:
    asked: list[str] = []

    class Asked(PlainDevice):
        def __init__(self, *operators: str) -> None:
            self.operators = operators

        @hookimpl
        def query_network(self, device: DeviceName, network: Network) -> QueryResult:
            asked.append(f"{device}:{' '.join(node.op_type for node in network.nodes)}")
            return super().query_network(device, network)

        @hookimpl
        def load_network(self, device: DeviceName, network: Network, query: QueryResult | None) -> Executable:
            assert query is not None
            assert list(query.supported) == [node.name for node in network.nodes]
            return self.make_executable(network)

        def find_refusal(self, node: Any, network: Network) -> str | None:
            return None if node.op_type in self.operators else "no kernel"

    core.register_plugin("FIRST", Asked("Relu", "Abs"))
    core.register_plugin("SECOND", Asked("Neg"))
    loaded = core.load_network(read("g (float[4] x) => (float[4] y) { a = Abs(x) b = Relu(a) y = Neg(b) }"), "HETERO:FIRST,SECOND")
    assert loaded.infer({"x": X})["y"].tolist() == (-np.abs(X)).tolist()
    assert asked == ["FIRST:Abs Relu Neg", "SECOND:Neg", "FIRST:Abs Relu"]


def test_answer_about_another_network_is_refused_by_a_load(core: Core, read: Callable[..., Network]) -> None:
    query = core.query_network(read("g (float[4] x) => (float[4] y) { [one] y = Abs(x) }"), "CPU")
    with pytest.raises(PluginError, match="names nodes that the network does not have: 'one'"):
        core.load_network(read(DIAMOND), "CPU", query=query)


def test_mutual_dependency_is_split(d0_d1: Core, read: Callable[..., Network]) -> None:
    # a1 -> a2 and b2 -> b1 inside the devices, a1 -> b1 and b2 -> a2 between them.
    network = read("g (float[4] x) => (float[4] a2, float[4] b1) { a1 = Relu(x) b2 = Abs(x) a2 = Add(a1, b2) b1 = Sub(b2, a1) }")
    a1, b2, a2, b1 = (node.name for node in network.nodes)
    loaded = d0_d1.load_network(network.with_affinity({a1: "D0", a2: "D0", b1: "D1", b2: "D1"}), "HETERO:D0,D1")
    assert len(loaded.get_metric("HETERO_SUBGRAPHS")) == 3
    result = loaded.infer({"x": X})
    np.testing.assert_array_equal(result["a2"], np.maximum(X, 0) + np.abs(X))
    np.testing.assert_array_equal(result["b1"], np.abs(X) - np.maximum(X, 0))


@pytest.mark.parametrize("policy", ["LARGEST_FIRST", "LEVELS", "FEWEST"])
def test_every_policy_gives_the_same_answer(d0_d1: Core, read: Callable[..., Network], policy: str) -> None:
    pinned = read(DIAMOND).with_affinity({"op:Relu": "D1", "op:Neg": "D1"})
    loaded = d0_d1.load_network(pinned, "HETERO:D0,D1", {"HETERO_SUBGRAPH_POLICY": policy})
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_diamond(X), rtol=1e-6)


def test_refused_operators_go_to_the_next_device_with_the_reason(core: Core, read: Callable[..., Network]) -> None:
    config = {"TEMPLATE_REFUSED_OPERATORS": "Exp,Add"}
    result = core.query_network(read(DIAMOND), "HETERO:TEMPLATE,CPU", config)
    assert {name for name, device in result.supported.items() if device == "CPU"} == {"Exp_3", "Add_4"}
    plan = result.plan
    assert plan is not None
    assert plan.refusals["Exp_3"] == {"TEMPLATE": "operator Exp is refused by TEMPLATE_REFUSED_OPERATORS"}
    assert [(stage.device, len(stage.nodes)) for stage in plan.stages] == [("TEMPLATE", 3), ("CPU", 2), ("TEMPLATE", 2)]
    assert {entry.value: entry.nbytes for entry in plan.boundaries} == {"x": 16, "n2": 16, "n3": 16, "n5": 16}
    loaded = core.load_network(read(DIAMOND), "HETERO:TEMPLATE,CPU", config)
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_diamond(X), rtol=1e-6)


def test_priorities_may_stand_in_the_configuration(core: Core, read: Callable[..., Network]) -> None:
    loaded = core.load_network(read(DIAMOND), "HETERO", {"TARGET_FALLBACK": "template.1, cpu"})
    assert loaded.get_metric("EXECUTION_DEVICES") == ("TEMPLATE.1",)
    assert str(loaded.device) == "HETERO:TEMPLATE.1,CPU"
    with pytest.raises(ValueError, match="device HETERO:CPU and TARGET_FALLBACK=TEMPLATE name two different lists"):
        core.load_network(read(DIAMOND), "HETERO:CPU", {"TARGET_FALLBACK": "TEMPLATE"})


@pytest.mark.parametrize("call", ["query_network", "load_network"])
def test_missing_priorities_are_an_error(core: Core, read: Callable[..., Network], call: str) -> None:
    with pytest.raises(DeviceNameError, match="device HETERO has no devices to split over; give them in order of priority"):
        getattr(core, call)(read(DIAMOND), "HETERO")


def test_pin_to_a_device_outside_the_list_is_an_error(core: Core, read: Callable[..., Network]) -> None:
    network = read(DIAMOND).with_affinity({"Exp_3": "TEMPLATE.1"})
    with pytest.raises(
        AffinityError, match=r"node 'Exp_3' \(Exp-13\) is pinned to TEMPLATE.1, which is not in the list.* the list is CPU"
    ):
        core.load_network(network, "HETERO:CPU")


def test_pinned_node_that_its_device_refuses_is_not_moved(core: Core, read: Callable[..., Network]) -> None:
    network = read(DIAMOND).with_affinity({"Exp_3": "TEMPLATE"})
    with pytest.raises(UnsupportedNodesError, match="(?s)1 of 7 nodes are refused.*'Exp_3'.*TEMPLATE: operator Exp is refused"):
        core.load_network(network, "HETERO:TEMPLATE,CPU", {"TEMPLATE_REFUSED_OPERATORS": "Exp"})


def test_unclaimed_nodes_are_all_listed_with_every_reason(core: Core, read: Callable[..., Network]) -> None:
    network = read("g (float[4] x) => (float[4] y) { a = com.acme.Twist(x) b = Relu(a) y = com.acme.Turn(b) }")
    result = core.query_network(network, "HETERO:TEMPLATE,CPU")
    assert set(result.refused) == {"Twist_0", "Turn_2"}
    assert result.plan is None
    with pytest.raises(UnsupportedNodesError) as caught:
        core.load_network(network, "HETERO:TEMPLATE,CPU")
    assert set(caught.value.refusals) == {"Twist_0", "Turn_2"}
    for name in ("Twist_0", "Turn_2"):
        assert set(caught.value.refusals[name]) == {"TEMPLATE", "CPU"}
        assert f"node '{name}' (com.acme:" in str(caught.value)


class Whole:
    """A device that takes Exp only if the query has several nodes: its answer depends on the neighbours of a node."""

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        is_alone = len(network.nodes) == 1
        return query_by_transform(
            device,
            network,
            lambda same: same,
            lambda node, _: (
                "not alone" if node.op_type == "Exp" and is_alone else None if node.op_type in ("Exp", "Neg") else "no kernel"
            ),
        )

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Any:
        assert not self.query_network(device, network).refused
        from hetero_cpu.executable import CpuExecutable
        from hetero_cpu.plan.passes import transform_network

        return CpuExecutable(transform_network(network), {})


def test_node_refused_in_its_subgraph_goes_to_the_next_device(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("WHOLE", Whole())
    network = read(DIAMOND)
    result = core.query_network(network, "HETERO:WHOLE,CPU")
    assert result.supported["Exp_3"] == "CPU"
    assert result.supported["Neg_2"] == "WHOLE"
    assert result.plan is not None
    assert result.plan.refusals["Exp_3"] == {"WHOLE": "not alone (asked as part of a subgraph of 1 node)"}
    np.testing.assert_allclose(core.load_network(network, "HETERO:WHOLE,CPU").infer({"x": X})["y"], compute_diamond(X), rtol=1e-6)


def test_cut_through_a_value_without_type_says_which(core: Core, read: Callable[..., Network]) -> None:
    class Anything(Whole):
        @hookimpl
        def query_network(self, device: DeviceName, network: Network) -> QueryResult:
            return QueryResult({node.name: str(device) for node in network.nodes})

    core.register_plugin("ANY", Anything())
    network = read("g (float[4] x) => (float[4] y) { a = com.acme.Twist(x) y = Relu(a) }").with_affinity(
        {"Twist_0": "ANY", "Relu_1": "CPU"}
    )
    with pytest.raises(InvalidNetworkError, match="the element type of 'a' of node 'Twist_0'.*infer_types gives it"):
        core.load_network(network, "HETERO:ANY,CPU")


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x, float[3] unused) => (float[2] y, float[2] x, float[2] k) <float[2] k = {5, 6}> { y = Relu(x) }",
        "g (float[2] x, float[3] unused) => (float[2] x, float[2] k, float[2] y) <float[2] k = {5, 6}> { y = Relu(x) }",
    ],
)
def test_inputs_and_constants_may_be_outputs(core: Core, read: Callable[..., Network], text: str, tmp_path: Path) -> None:
    loaded = core.load_network(read(text), "HETERO:TEMPLATE,CPU")
    loaded.export_network(tmp_path / "x.blob")
    inputs = {"x": np.array([1, -1], np.float32), "unused": np.zeros(3, np.float32)}
    for entry in (loaded, core.import_network(tmp_path / "x.blob", "HETERO")):
        result = {name: value.tolist() for name, value in entry.infer(inputs).items()}
        assert result == {"x": [1, -1], "k": [5, 6], "y": [1, 0]}


def test_network_without_nodes_needs_no_device_to_compute(core: Core, read: Callable[..., Network]) -> None:
    loaded = core.load_network(read("g (float[2] x) => (float[2] x) { }"), "HETERO:TEMPLATE,CPU")
    assert loaded.get_metric("HETERO_SUBGRAPHS") == ()
    assert loaded.infer({"x": np.ones(2, np.float32)})["x"].tolist() == [1, 1]


def test_hetero_may_stand_in_hetero(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("D1", hetero_cpu)
    network = read(DIAMOND)
    loaded = core.load_network(network, "HETERO:(HETERO:TEMPLATE,CPU),D1", {"TEMPLATE_REFUSED_OPERATORS": "Exp"})
    assert loaded.get_metric("EXECUTION_DEVICES") == ("TEMPLATE", "CPU")
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_diamond(X), rtol=1e-6)


def test_pin_to_an_inner_hetero_is_settled_by_the_outer_hetero(core: Core, read: Callable[..., Network]) -> None:
    network = read(DIAMOND).with_affinity({"*": "CPU", "Exp_3": "HETERO:TEMPLATE,CPU"})
    loaded = core.load_network(network, "HETERO:(HETERO:TEMPLATE,CPU),CPU")
    assert [device for device, _ in loaded.get_metric("HETERO_SUBGRAPHS")].count("HETERO:TEMPLATE,CPU") == 1
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_diamond(X), rtol=1e-6)


def test_plan_survives_export_and_import(core: Core, read: Callable[..., Network], tmp_path: Path) -> None:
    config = {"TEMPLATE_REFUSED_OPERATORS": "Exp"}
    network = read(DIAMOND).with_affinity({"op:Relu": "CPU"})
    loaded = core.load_network(network, "HETERO:TEMPLATE,CPU", config)
    loaded.export_network(tmp_path / "plan.blob")
    with Core() as fresh_core:
        imported = fresh_core.import_network(tmp_path / "plan.blob", "HETERO", {"PERF_COUNT": True})
        assert imported.get_metric("HETERO_PLAN") == loaded.get_metric("HETERO_PLAN")
        assert imported.get_metric("HETERO_PLAN").conflicts != ()
        assert imported.get_config("TARGET_FALLBACK") == "TEMPLATE,CPU"
        assert imported.get_config("TEMPLATE_REFUSED_OPERATORS") == ("Exp",)
        assert imported.get_config("PERF_COUNT") is True
        np.testing.assert_allclose(imported.infer({"x": X})["y"], compute_diamond(X), rtol=1e-6)
        fresh_core.import_network(tmp_path / "plan.blob", "HETERO:TEMPLATE,CPU")
        for device, extra, subject in (
            ("HETERO:CPU,TEMPLATE", {}, "TARGET_FALLBACK is 'CPU,TEMPLATE' in the call and 'TEMPLATE,CPU' in the blob"),
            (
                "HETERO",
                {"TEMPLATE_REFUSED_OPERATORS": "Relu"},
                "TEMPLATE_REFUSED_OPERATORS is Relu in the call and Exp in the blob",
            ),
            ("HETERO", {"HETERO_SUBGRAPH_POLICY": "FEWEST"}, "HETERO_SUBGRAPH_POLICY is 'FEWEST' in the call"),
        ):
            with pytest.raises(BlobMismatchError) as caught:
                fresh_core.import_network(tmp_path / "plan.blob", device, extra)
            assert subject in str(caught.value)


def test_part_of_a_device_without_export_travels_as_a_network(core: Core, read: Callable[..., Network], tmp_path: Path) -> None:
    core.register_plugin("WHOLE", Whole())
    network = read("g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) c = Exp(b) y = Abs(c) }")
    loaded = core.load_network(network, "HETERO:WHOLE,CPU")
    loaded.export_network(tmp_path / "x.blob")
    imported = core.import_network(tmp_path / "x.blob", "HETERO")
    imported.export_network(tmp_path / "again.blob")
    assert (tmp_path / "again.blob").read_bytes() == (tmp_path / "x.blob").read_bytes()
    np.testing.assert_allclose(imported.infer({"x": X})["y"], np.exp(-np.maximum(X, 0)), rtol=1e-6)


def test_error_in_a_stage_names_the_stage(core: Core, read: Callable[..., Network]) -> None:
    network = read("g (int64[N] x, int64[1] shape) => (int64[M] y) { a = Abs(x) b = Reshape(a, shape) y = Neg(b) }").with_affinity(
        {"op:Reshape": "CPU", "op:Abs": "TEMPLATE", "op:Neg": "TEMPLATE"}
    )
    loaded = core.load_network(network, "HETERO:TEMPLATE,CPU")
    with pytest.raises(InferenceError, match="network 'g' failed on HETERO:TEMPLATE,CPU") as caught:
        loaded.infer({"x": np.arange(4), "shape": np.array([3])})
    assert "in stage 1 of 3 on CPU, nodes Reshape_1" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_views_of_a_plan_agree_with_it(core: Core, read: Callable[..., Network]) -> None:
    plan = core.query_network(read(DIAMOND), "HETERO:TEMPLATE,CPU", {"TEMPLATE_REFUSED_OPERATORS": "Exp"}).plan
    assert plan is not None
    text, dot, fields = describe_plan(plan), plan_to_dot(plan), plan_to_json(plan)
    assert "network 'g': 7 nodes in 3 subgraphs on 2 devices, priorities TEMPLATE, CPU" in text
    assert "Exp_3 (Exp-13), TEMPLATE: operator Exp is refused by TEMPLATE_REFUSED_OPERATORS" in text
    assert "n2: float32[4], 16 bytes, subgraph 0 -> subgraph 1" in text
    assert dot.count("subgraph cluster_") == 3
    assert dot.count("{") == dot.count("}")
    assert [entry["device"] for entry in fields["subgraphs"]] == [stage.device for stage in plan.stages]


def test_plan_names_makers_readers_and_conflicts(core: Core, read: Callable[..., Network]) -> None:
    plan = core.query_network(read(DIAMOND), "HETERO:TEMPLATE,CPU", {"TEMPLATE_REFUSED_OPERATORS": "Exp"}).plan
    assert plan is not None
    assert {entry.value: (entry.maker, entry.readers) for entry in plan.boundaries} == {
        "x": (None, ("Relu_0",)),
        "n2": ("Abs_1", ("Neg_2", "Exp_3")),
        "n4": ("Exp_3", ("Add_4",)),
    }
    (conflict,) = plan.conflicts
    assert (conflict.node, plan.stages[conflict.subgraph].nodes[0]) == ("Abs_1", "Neg_2")
    assert conflict.path == ("Abs_1", "Exp_3", "Add_4")
    assert plan.unexplained == 0
