"""Units: quantized operators stay whole, and shapes are computed on the device that reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hetero_hetero.moves import find_quantized_units, find_shape_nodes

from hetero_core import Core, Network
from hetero_core.conformance.models import run_evaluator
from hetero_core.network.writer import network_to_proto

QUANTIZED = """g (float[1, 2] x) => (float[1, 2] y)
    <float s = {0.5}, uint8 z = {3}, float s2 = {0.25}, uint8[2, 2] w = {3, 5, 7, 9}> {
    [q0] a = QuantizeLinear (x, s, z)
    [d0] b = DequantizeLinear (a, s, z)
    [dw] c = DequantizeLinear (w, s, z)
    [gemm] d = MatMul (b, c)
    [relu] e = Relu (d)
    [q1] f = QuantizeLinear (e, s2, z)
    [d1] y = DequantizeLinear (f, s2, z)
}"""
UNIT = ("d0", "dw", "gemm", "relu", "q1")


def name_nodes(network: Network, indices: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(network.nodes[index].name for index in indices)


def test_unit_is_an_operator_with_its_quantization(read: Callable[..., Network]) -> None:
    network = read(QUANTIZED)
    assert [name_nodes(network, unit) for unit in find_quantized_units(network)] == [UNIT]


@pytest.mark.parametrize(
    ("body", "units"),
    [
        # The result is also read as a float.
        ("[d] a = DequantizeLinear (q, s, z) [op] b = Relu (a) [e] y = QuantizeLinear (b, s, z) [o] p = Neg (b)", []),
        # The result is an output of the network.
        ("[d] a = DequantizeLinear (q, s, z) [op] p = Neg (a) [e] y = QuantizeLinear (p, s, z)", []),
        # Two operators share the input, so it belongs to neither unit.
        (
            "[d] a = DequantizeLinear (q, s, z) [dd] aa = DequantizeLinear (q, s, z) [op] b = Add (a, aa) "
            "[e] y = QuantizeLinear (b, s, z) [o] p = Neg (a)",
            [("dd", "op", "e")],
        ),
        # A scale that a node computes could depend on nodes after the unit.
        (
            "[d] a = DequantizeLinear (q, s, z) [op] b = Neg (a) [k] t = Exp (s) [e] y = QuantizeLinear (b, t, z) [o] p = Neg (t)",
            [],
        ),
    ],
)
def test_additional_readers_are_no_part_of_a_unit(read: Callable[..., Network], body: str, units: list[tuple[str, ...]]) -> None:
    network = read(f"g (uint8[2] q, float s) => (uint8[2] y, p) <uint8 z = {{3}}> {{ {body} }}")
    assert [name_nodes(network, unit) for unit in find_quantized_units(network)] == units


def test_unit_moves_to_the_first_device_that_takes_all_of_it(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    add_device("A", refused=["MatMul"])
    add_device("B", refused=["Relu"])
    add_device("C")
    network = read(QUANTIZED)
    loaded = core.load_network(network, "HETERO:A,B,C")
    plan = loaded.get_metric("HETERO_PLAN")
    assert [(stage.device, stage.nodes) for stage in plan.stages] == [("A", ("q0",)), ("C", UNIT), ("A", ("d1",))]
    reason = f"moved to C: it takes all of the quantized unit {', '.join(UNIT)}"
    assert plan.refusals == {
        "d0": {"A": reason},
        "dw": {"A": reason},
        "gemm": {"A": "no kernel", "B": reason},
        "relu": {"A": reason, "B": "no kernel"},
        "q1": {"A": reason},
    }
    x = np.array([[1.2, -3.4]], np.float32)
    expected = run_evaluator(network_to_proto(network), {"x": x})[0]
    np.testing.assert_array_equal(loaded.infer({"x": x})["y"], expected)


def test_unit_that_no_device_takes_whole_is_split(core: Core, read: Callable[..., Network], add_device: Callable[..., Any]) -> None:
    add_device("A", refused=["MatMul"])
    add_device("B", refused=["Relu"])
    result = core.query_network(read(QUANTIZED), "HETERO:A,B")
    assert {name for name, device in result.supported.items() if device == "B"} == {"gemm"}


def test_nodes_go_by_priority_alone_if_units_are_off(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    add_device("A", refused=["MatMul", "Reshape"])
    add_device("B")
    priority = {"HETERO_KEEP_UNITS": "NO"}
    loaded = core.load_network(read(QUANTIZED), "HETERO:A,B", priority)
    assert [(stage.device, stage.nodes) for stage in loaded.get_metric("HETERO_PLAN").stages if stage.device == "B"] == [
        ("B", ("gemm",))
    ]
    x = np.array([[1.2, -3.4]], np.float32)
    expected = core.load_network(read(QUANTIZED), "TEMPLATE").infer({"x": x})["y"]
    np.testing.assert_array_equal(loaded.infer({"x": x})["y"], expected)
    shaped = core.query_network(read(RESHAPE), "HETERO:A,B", priority)
    network = read(RESHAPE)
    assert {name for name, device in shaped.supported.items() if device == "B"} == {
        node.name for node in network.nodes if node.op_type == "Reshape"
    }


def test_pin_splits_a_unit(core: Core, read: Callable[..., Network], add_device: Callable[..., Any]) -> None:
    add_device("A", refused=["MatMul"])
    add_device("B")
    result = core.query_network(read(QUANTIZED).with_affinity({"relu": "A"}), "HETERO:A,B")
    assert {name for name, device in result.supported.items() if device == "B"} == {"gemm"}
    result = core.query_network(read(QUANTIZED).with_affinity({"relu": "B"}), "HETERO:B,A")
    assert set(result.supported.values()) == {"B"}


def test_unit_that_a_device_refuses_beside_its_nodes_stays_away(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    add_device("A", refused=["MatMul"])
    add_device("B", refuse=lambda node, part: "not next to Relu" if node.op_type == "MatMul" and len(part.nodes) > 1 else None)
    result = core.query_network(read(QUANTIZED), "HETERO:A,B")
    assert result.supported == {name: "B" if name == "gemm" else "A" for name in ("q0", *UNIT, "d1")}


@pytest.mark.parametrize("policy", ["LARGEST_FIRST", "LEVELS", "FEWEST"])
def test_no_cut_goes_through_a_unit(core: Core, read: Callable[..., Network], add_device: Callable[..., Any], policy: str) -> None:
    # The path over B leads from the producer of `da` back to the unit's operator: a subgraph with both would depend on itself.
    network = read("""g (float[2] x) => (float[2] y) <float s = {0.5}, uint8 z = {3}> {
        [n0] a0 = Abs (x) [n1] a1 = Abs (a0) [n2] a2 = Abs (a1) [n3] a3 = Abs (a2) [n4] b = Abs (a3)
        [qa] c = QuantizeLinear (b, s, z) [da] d = DequantizeLinear (c, s, z)
        [slow] e = Exp (b) [op] f = Add (d, e) [q] g = QuantizeLinear (f, s, z) [dq] h = DequantizeLinear (g, s, z) [end] y = Abs
        (h) }""")
    add_device("A", refused=["Exp"])
    add_device("B", refused=["DequantizeLinear"])
    loaded = core.load_network(network, "HETERO:A,B", {"HETERO_SUBGRAPH_POLICY": policy})
    subgraphs = [nodes for _, nodes in loaded.get_metric("HETERO_SUBGRAPHS")]
    assert sum(bool({"da", "op", "q"} & set(nodes)) for nodes in subgraphs) == 1
    x = np.array([0.4, -1.1], np.float32)
    np.testing.assert_array_equal(loaded.infer({"x": x})["y"], run_evaluator(network_to_proto(network), {"x": x})[0])


RESHAPE = """g (float[n, 4] x, float[m] z) => (float[k, 2] y) <int64[1] first = {0}, int64 zero = {0}, int64[1] two = {2}> {
    [body] b = Relu (x)
    [shape] s = Shape (b)
    [rows] r = Gather (s, first)
    [all] p = Mul (r, two)
    [target] t = Concat <axis = 0> (p, two)
    [reshape] y = Reshape (b, t)
}"""
CONE = {"shape", "rows", "all", "target"}


def test_shape_nodes_feed_only_shape_inputs(read: Callable[..., Network]) -> None:
    network = read(RESHAPE)
    assert set(name_nodes(network, find_shape_nodes(network))) == CONE


@pytest.mark.parametrize(
    "body",
    [
        "[k] t = Shape (x) y = Reshape (x, t) q = Abs (t)",  # also read as data
        "[k] q = Shape (x) y = Reshape (x, q)",  # an output
        "[k] t = Abs (i) y = Tile (x, t) q = Abs (i) [w] u = Gather (x, t)",  # as indices: data
        "[k] t = Cast <to = 7> (x) [e] r = ReduceMax <keepdims = 0> (t) y = com.acme.Reshape (x, t) q = Abs (i)",  # another Reshape
    ],
)
def test_values_that_are_data_for_anyone_are_no_shapes(read: Callable[..., Network], body: str) -> None:
    network = read(f"g (float[2] x, int64[1] i) => (y, q) {{ {body} }}")
    assert "k" not in name_nodes(network, find_shape_nodes(network))


def test_large_integers_are_no_shape(read: Callable[..., Network]) -> None:
    network = read(
        "g (int64[1000] x) => (y) { [large] a = Neg (x) [small] b = ReduceMax <keepdims = 1> (a) y = ConstantOfShape (b) }"
    )
    assert name_nodes(network, find_shape_nodes(network)) == ("small",)


def test_shapes_go_to_the_device_that_reads_them(core: Core, read: Callable[..., Network], add_device: Callable[..., Any]) -> None:
    add_device("A", refused=["Relu", "Reshape"])
    add_device("B")
    loaded = core.load_network(read(RESHAPE), "HETERO:A,B")
    plan = loaded.get_metric("HETERO_PLAN")
    assert [stage.device for stage in plan.stages] == ["B"]
    assert [boundary.value for boundary in plan.boundaries] == ["x"]
    reason = "moved to B: only nodes there read the shape that is computed here"
    assert {name: plan.refusals[name] for name in sorted(CONE)} == {name: {"A": reason} for name in sorted(CONE)}
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(loaded.infer({"x": x, "z": np.zeros(1, np.float32)})["y"], x.reshape(4, 2))


def test_shape_node_moves_only_with_its_tensor(core: Core, read: Callable[..., Network], add_device: Callable[..., Any]) -> None:
    add_device("A", refused=["Reshape"])
    add_device("B")
    # `b` goes to B as the data of the Reshape; no further value crosses.
    plan = core.query_network(read(RESHAPE), "HETERO:A,B").plan
    assert plan is not None
    assert {boundary.value for boundary in plan.boundaries} == {"x", "b"}
    # Here the Reshape has another input: the small shape crosses, instead of the large tensor `b`.
    network = read(RESHAPE.replace("Reshape (b, t)", "Reshape (z, t)"))
    plan = core.query_network(network, "HETERO:A,B").plan
    assert plan is not None
    assert {boundary.value for boundary in plan.boundaries} == {"x", "z", "t"}
    assert all(plan.device_of_node[name] == "A" for name in CONE)


def test_shapes_that_two_devices_read_or_that_are_pinned_stay(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    add_device("A", refused=["Relu", "Reshape"])
    add_device("B")
    result = core.query_network(read(RESHAPE).with_affinity({"target": "A"}), "HETERO:A,B")
    assert {name for name, device in result.supported.items() if device == "A"} == {"shape", "rows", "all", "target"}
    both = RESHAPE.replace("=> (float[k, 2] y)", "=> (float[k, 2] y, float[k, 2] w)").replace("}\n}", "}\n}")
    network = read(both.replace("[reshape]", "[expand] w = Expand (z, t) [reshape]"))
    result = core.query_network(network, "HETERO:A,B")
    assert {name for name, device in result.supported.items() if device == "A"} == {*CONE, "expand"}


def test_refused_shape_node_stays_with_its_successors(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    add_device("A", refused=["Relu", "Reshape"])
    add_device("B", refused=["Mul"])
    plan = core.query_network(read(RESHAPE), "HETERO:A,B").plan
    assert plan is not None
    assert {name for name, device in plan.device_of_node.items() if device == "A"} == CONE
    assert plan.refusals["all"] == {"B": "no kernel"}
