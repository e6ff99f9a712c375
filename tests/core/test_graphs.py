"""Random graphs: equal seeds give equal graphs, all kinds occur, and the expected outputs are exact enough to find a wrong number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_template.device import TemplateDevice

from hetero_core import Core, hookimpl
from hetero_core.conformance.graphs.attempt import REFUSED, RIGHT, WRONG, Subject, try_graph
from hetero_core.conformance.graphs.builder import RUNS
from hetero_core.conformance.graphs.drawing import FAMILIES, DrawnGraph, draw_graph
from hetero_core.conformance.graphs.judgement import Expectation, run_engine
from hetero_core.contract import DeviceName, Executable, QueryResult
from hetero_core.network.graph import Network
from hetero_core.network.reader import read_network

SEEDS = range(36)
"""Together they have all kinds."""
USUAL = {
    *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "Concat", "Slice", "Split", "Resize", "Pad", "BatchNormalization"),
    *("Relu", "MatMul", "Gemm", "LayerNormalization", "Softmax", "Transpose", "Reshape", "Gather", "QuantizeLinear"),
    *("DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "Cast", "Where", "Shape", "CumSum", "TopK", "ReduceMean"),
    *("If", "Loop"),
}


@pytest.fixture(scope="module")
def drawn() -> list[DrawnGraph]:
    return [draw_graph(seed) for seed in SEEDS]


def read(text: str) -> Network:
    return read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}'))


def test_same_seed_draws_the_same_graph_and_inputs(drawn: list[DrawnGraph]) -> None:
    again = draw_graph(7)
    assert again.model.SerializeToString() == drawn[7].model.SerializeToString()
    for feed, expected in zip(again.feeds, drawn[7].feeds, strict=True):
        assert {name: array.tobytes() for name, array in feed.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }


def test_graphs_are_of_all_kinds(drawn: list[DrawnGraph]) -> None:
    networks = [read_network(graph.model) for graph in drawn]
    operators = {node.op_type for network in networks for node in network.nodes}
    assert {graph.family for graph in drawn} == set(FAMILIES)
    assert operators >= USUAL
    assert {len(network.inputs) for network in networks} >= {1, 2, 3}
    assert min(len(network.nodes) for network in networks) >= 3
    assert max(len(network.nodes) for network in networks) >= 30
    assert {spec.dtype for network in networks for spec in network.inputs} >= {"float32", "float16", "float64", "int32", "int64"}
    assert any(spec.name in network.index_of_input for network in networks for spec in network.outputs)
    assert any(set(network.names_of_outputs) & {name for node in network.nodes for name in node.reads} for network in networks)
    assert any(len(set(node.inputs)) < len(node.inputs) for network in networks for node in network.nodes)
    sizes = [array.nbytes for graph in drawn for array in graph.feeds[0].values()]
    assert min(sizes) < 1000
    assert sum(55_000 < size < 65_536 for size in sizes) > 0
    assert sum(65_536 <= size < 210_000 for size in sizes) > 0


def test_open_dimensions_change_from_run_to_run(drawn: list[DrawnGraph]) -> None:
    shapes = [
        {tuple(array.shape for array in feed.values()) for feed in graph.feeds}
        for graph in drawn
        if any(isinstance(size, str) for spec in read_network(graph.model).inputs for size in spec.shape or ())
    ]
    assert len(shapes) > 5
    assert max(map(len, shapes)) == RUNS


def test_engine_without_optimizations_agrees_with_the_reference(drawn: list[DrawnGraph]) -> None:
    disputes = {}
    for graph in drawn[:8]:
        text = Expectation(read_network(graph.model), graph.feeds[0]).describe_dispute()
        if text is not None:
            disputes[graph.seed] = text
    assert disputes == {}


CHAIN = "(float[8,600] x, float[600,8] w) => (float[8,8] y) { a = MatMul (x, w) y = Tanh (a) }"


def make_chain() -> tuple[Expectation, Any]:
    random = np.random.default_rng(3)
    feeds = {"x": random.standard_normal((8, 600), np.float32), "w": random.standard_normal((600, 8), np.float32) / 25}
    return Expectation(read(CHAIN), feeds), np.tanh(feeds["x"].astype(float) @ feeds["w"].astype(float))


def test_result_of_float32_is_right_and_one_wrong_element_is_not() -> None:
    expectation, exact = make_chain()
    assert expectation.describe_fault([exact.astype(np.float32)]) is None
    wrong = exact.astype(np.float32)
    wrong[3, 5] += 1e-3
    fault = expectation.describe_fault([wrong])
    assert fault is not None
    assert fault.startswith("output 'y': 1 of 64 elements of float32 [8, 8] are wrong, most at [3, 5]: expected ")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_wrong(value: float) -> None:
    expectation, exact = make_chain()
    wrong = exact.astype(np.float32)
    wrong[0, 0] = value
    assert "1 of 64 elements" in str(expectation.describe_fault([wrong]))


def test_shape_and_element_type_are_judged() -> None:
    expectation, exact = make_chain()
    assert expectation.describe_fault([exact]) == "output 'y': expected element type float32, got float64"
    assert expectation.describe_fault([exact[:4].astype(np.float32)]) == "output 'y': expected shape [8, 8], got [4, 8]"


def test_tolerance_after_cancellation_follows_the_operands() -> None:
    """1000 + x - 1000 has the rounding error of 1000, 3e-5, which is far above the rounding error of a result of 0.01."""
    network = read("(float[4] x, float[4] c) => (float[4] y) { a = Add (x, c) y = Sub (a, c) }")
    feeds = {"x": np.array([0.01, 0.02, 0.003, 0.004], np.float32), "c": np.full(4, 1000, np.float32)}
    expectation = Expectation(network, feeds)
    single = (feeds["x"] + feeds["c"]) - feeds["c"]
    assert np.abs(single - feeds["x"]).max() > 1e-5
    assert expectation.describe_fault([single]) is None
    assert expectation.describe_fault([single + np.float32(0.1)]) is not None


def test_only_a_number_at_a_tie_may_round_to_either_side() -> None:
    network = read("(float[3] x, float[3] z) => (float[3] y) { a = Add (x, z) y = Round (a) }")
    # In float32 0.3 + 1.2 is 1.5 or a neighbour of 1.5.
    expectation = Expectation(network, {"x": np.array([0.3, 0.1, 2], np.float32), "z": np.array([1.2, 1, 0.2], np.float32)})
    assert expectation.describe_fault([np.array([1, 1, 2], np.float32)]) is None
    assert expectation.describe_fault([np.array([2, 1, 2], np.float32)]) is None
    assert "most at [1]" in str(expectation.describe_fault([np.array([2, 2, 2], np.float32)]))


def test_integers_are_equal_or_wrong() -> None:
    network = read("(int64[3] x) => (int64[3] y) { y = Add (x, x) }")
    expectation = Expectation(network, {"x": np.array([1, 2**53, -4])})
    assert expectation.describe_fault([np.array([2, 2**54, -8])]) is None
    assert "1 of 3 elements of int64" in str(expectation.describe_fault([np.array([2, 2**54 + 1, -8])]))


class WrongDevice(TemplateDevice):
    """Computes HardSigmoid with a factor that is too large."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Any, query: QueryResult | None) -> Executable:
        nodes = (
            replace(node, attributes={**node.attributes, "alpha": 0.4}) if node.op_type == "HardSigmoid" else node
            for node in network.nodes
        )
        return super().load_network(device, replace(network, nodes=tuple(nodes)), config, query)


def test_planted_bug_is_found_and_reduced_to_its_operator(drawn: list[DrawnGraph]) -> None:
    with Core() as core:
        core.register_plugin("TOOLKIT", WrongDevice("TOOLKIT"))
        seeds = [graph.seed for graph in drawn if any(node.op_type == "HardSigmoid" for node in graph.model.graph.node)]
        outcomes = [try_graph(core, Subject("TOOLKIT"), seed) for seed in seeds[:1]]
    wrong = [outcome for outcome in outcomes if outcome.status == WRONG]
    assert wrong
    for outcome in wrong:
        assert outcome.smallest is not None
        assert [node.op_type for node in outcome.smallest.nodes] == ["HardSigmoid"]
        assert f"seed {outcome.seed}, " in outcome.reason
        assert "on TOOLKIT (one thread" in outcome.reason
        assert " = HardSigmoid (" in outcome.describe()


def test_refused_graph_is_no_failure() -> None:
    with Core() as core:
        core.set_config({"TEMPLATE_REFUSED_OPERATORS": "Conv,MatMul,Add,Relu,Concat"}, "TEMPLATE")
        refused = [try_graph(core, Subject("TEMPLATE"), seed) for seed in range(6)]
    assert all(outcome.status in (RIGHT, REFUSED) for outcome in refused)
    assert any("is refused by TEMPLATE_REFUSED_OPERATORS" in outcome.reason for outcome in refused)


def test_engine_that_refuses_a_model_has_no_opinion() -> None:
    unknown = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "a": 1]> g (float[2] x) => (float[2] y) { y = a.B (x) }'
    )
    assert run_engine(unknown.SerializeToString(), {"x": np.ones(2, np.float32)}) is None
