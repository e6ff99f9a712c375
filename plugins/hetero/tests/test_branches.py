"""An If that every device refuses as a whole: HETERO runs the If, and its branches are split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hetero_template
import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.errors import AffinityError, InferenceError, LoadError, UnsupportedNodesError

DEVICE = "HETERO:A,B"
CHOICE = """g (float[2] x, bool c) => (float[2] y) <float[2] k = {1, 2}> {
    [before] a = Relu (x)
    [choose] b = If (c) <
        then_branch = up () => (float[2] p) { [grow] q = Exp (a) [shift] p = Add (q, k) },
        else_branch = down () => (float[2] n) { [flip] n = Neg (a) }
    >
    [after] y = Abs (b) }"""
X = np.array([0.5, -1], np.float32)


def compute_choice(chosen: bool) -> np.ndarray[Any, Any]:
    positive = np.maximum(X.astype(np.float64), 0)
    return np.abs(np.exp(positive) + np.array([1, 2]) if chosen else -positive)


@pytest.fixture
def pair(add_device: Callable[..., Any]) -> tuple[Any, Any]:
    """A has no Exp, B has no Add, and both refuse an If."""
    return add_device("A", refused=["If", "Exp"]), add_device("B", refused=["If", "Add"])


@pytest.mark.parametrize("chosen", [True, False])
def test_branches_are_split_and_one_of_them_runs(
    core: Core, read: Callable[..., Network], pair: Any, chosen: bool, tmp_path: Path
) -> None:
    loaded = core.load_network(read(CHOICE), DEVICE)
    assert loaded.get_metric("HETERO_SUBGRAPHS") == (("A", ("before",)), (DEVICE, ("choose",)), ("A", ("after",)))
    assert pair[0].loaded == [("before",), ("shift",), ("flip",), ("after",)]
    assert pair[1].loaded == [("grow",)]
    loaded.export_network(tmp_path / "x.blob")
    imported = core.import_network(tmp_path / "x.blob", "HETERO")
    for compiled in (loaded, imported):
        np.testing.assert_allclose(compiled.infer({"x": X, "c": np.array(chosen)})["y"], compute_choice(chosen), rtol=1e-6)
    loaded.close()
    assert sorted(pair[0].closed + pair[1].closed) == [("after",), ("before",), ("flip",), ("grow",), ("shift",)]


def test_properties_of_the_branches_stand_below_hetero_itself(core: Core, read: Callable[..., Network], pair: Any) -> None:
    properties = core.load_network(read(CHOICE), DEVICE).get_metric("DEVICE_PROPERTIES")
    assert list(properties) == ["A", DEVICE]
    assert set(properties[DEVICE]["DEVICE_PROPERTIES"]) == {"A", "B"}


def test_plan_shows_hetero_itself_as_the_device_and_why(core: Core, read: Callable[..., Network], pair: Any) -> None:
    result = core.query_network(read(CHOICE), DEVICE)
    assert result.supported == {"before": "A", "choose": DEVICE, "after": "A"}
    assert result.plan is not None
    assert result.plan.refusals == {"choose": {"A": "no kernel", "B": "no kernel"}}


def test_device_that_takes_the_if_whole_gets_it(core: Core, read: Callable[..., Network], pair: Any) -> None:
    assert core.query_network(read(CHOICE), "HETERO:A,B,TEMPLATE").supported["choose"] == "TEMPLATE"


def test_branch_with_a_refused_node_is_refused_with_the_reason(core: Core, read: Callable[..., Network], pair: Any) -> None:
    pair[1]._refuse_node = lambda node, _: "no kernel" if node.op_type in ("If", "Exp") else None
    with pytest.raises(UnsupportedNodesError) as caught:
        core.load_network(read(CHOICE), DEVICE)
    assert caught.value.refusals == {
        "choose": {"A": "no kernel", "B": "no kernel", DEVICE: "no device takes 1 of 2 nodes of g/choose/up, first 'grow' (Exp-13)"}
    }


def test_pinned_if_is_not_split(core: Core, read: Callable[..., Network], pair: Any) -> None:
    with pytest.raises(UnsupportedNodesError, match=r"node 'choose' \(If-21\), A: no kernel"):
        core.load_network(read(CHOICE).with_affinity({"choose": "A"}), DEVICE)


def test_plan_holds_as_pins(core: Core, read: Callable[..., Network], pair: Any) -> None:
    network = read(CHOICE)
    result = core.query_network(network, DEVICE)
    pinned = network.with_affinity(dict(result.supported))
    assert core.query_network(pinned, DEVICE).supported == result.supported
    np.testing.assert_allclose(
        core.load_network(pinned, DEVICE).infer({"x": X, "c": np.array(True)})["y"], compute_choice(True), rtol=1e-6
    )
    with pytest.raises(AffinityError, match=r"node 'after' \(Abs-13\) is pinned to HETERO:A,B, which is not in the list"):
        core.query_network(network.with_affinity({"after": DEVICE}), DEVICE)


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True), (False, False)])
def test_ifs_side_by_side_and_inside_each_other(
    core: Core, read: Callable[..., Network], pair: Any, first: bool, second: bool
) -> None:
    network = read("""g (float[2] x, bool c, bool d) => (float[2] y, float[2] z) {
        [one] y = If (c) <
            then_branch = t () => (p) { [inner] p = If (d) <
                then_branch = tt () => (pp) { pp = Exp (x) }, else_branch = te () => (pe) { e = Neg (x) pe = Add (e, x) }> },
            else_branch = e () => (n) { m = Exp (x) n = Add (m, m) }>
        [two] z = If (d) <then_branch = u () => (q) { q = Add (y, x) }, else_branch = v () => (r) { r = Exp (y) }> }""")
    loaded = core.load_network(network, DEVICE)
    assert [nodes for _, nodes in loaded.get_metric("HETERO_SUBGRAPHS")] == [("one",), ("two",)]
    x = X.astype(np.float64)
    y = (np.exp(x) if second else x - x) if first else 2 * np.exp(x)
    result = loaded.infer({"x": X, "c": np.array(first), "d": np.array(second)})
    np.testing.assert_allclose(result["y"], y, rtol=1e-6)
    np.testing.assert_allclose(result["z"], y + x if second else np.exp(y), rtol=1e-6)


def test_branches_may_return_inputs_constants_and_unused_outputs(
    core: Core, read: Callable[..., Network], pair: Any, tmp_path: Path
) -> None:
    network = read("""g (float[2] x, bool[1] c) => (float[2] y) <float[2] k = {5, 6}> {
        [choose] unused, y = If (c) <
            then_branch = t () => (a, x) { a = Exp (x) },
            else_branch = e () => (b, k) { f = Neg (k) b = Add (f, x) }> }""")
    loaded = core.load_network(network, DEVICE)
    loaded.export_network(tmp_path / "x.blob")
    for compiled in (loaded, core.import_network(tmp_path / "x.blob", "HETERO")):
        assert compiled.get_metric("HETERO_NUMBER_OF_SUBMODELS") == 1
        assert compiled.infer({"x": X, "c": np.array([True])})["y"].tolist() == X.tolist()
        assert compiled.infer({"x": X, "c": np.array([False])})["y"].tolist() == [5, 6]


def test_failure_in_a_branch_names_it(core: Core, read: Callable[..., Network], pair: Any) -> None:
    pair[1]._fail = lambda part: RuntimeError("no room") if part.nodes[0].op_type == "Exp" else None
    with pytest.raises(LoadError) as caught:
        core.load_network(read(CHOICE), DEVICE)
    assert "cannot load stage 1 of 3 of network 'g' on HETERO:A,B, nodes 'choose' (If-21): " in str(caught.value)
    assert "cannot load stage 0 of 2 of network 'g/1/choose/up' on B, nodes 'grow' (Exp-13): RuntimeError: no room" in str(
        caught.value
    )
    assert pair[0].loaded == pair[0].closed


def test_error_while_a_branch_runs_names_the_stages(core: Core, read: Callable[..., Network], pair: Any) -> None:
    network = read("""g (float[2] x, int64[1] s, bool c) => (float[k] y) {
        [choose] y = If (c) <
            then_branch = t () => (float[k] a) { e = Exp (x) b = Reshape (e, s) a = Add (b, b) },
            else_branch = e () => (float[k] d) { d = Neg (x) }> }""")
    loaded = core.load_network(network, DEVICE)
    with pytest.raises(InferenceError, match="network 'g' failed on HETERO:A,B"):
        loaded.infer({"x": X, "s": np.array([3]), "c": np.array(True)})
    assert loaded.infer({"x": X, "s": np.array([3]), "c": np.array(False)})["y"].tolist() == (-X).tolist()


def test_times_of_a_branch_are_recorded(core: Core, read: Callable[..., Network]) -> None:
    config = {"TEMPLATE_REFUSED_OPERATORS": "If,Exp", "PERF_COUNT": True}
    core.register_plugin("B", hetero_template)
    properties = {"TEMPLATE": {"TEMPLATE_REFUSED_OPERATORS": ["If", "Exp"]}, "B": {"TEMPLATE_REFUSED_OPERATORS": ["If", "Add"]}}
    loaded = core.load_network(read(CHOICE), "HETERO:TEMPLATE,B", {**config, "DEVICE_PROPERTIES": properties})
    request = loaded.create_infer_request()
    request.infer({"x": X, "c": np.array(True)})
    assert [(entry.node, entry.device) for entry in request.perf_counts if not entry.targets] == [
        ("before", "TEMPLATE"),
        ("grow", "B"),
        ("shift", "TEMPLATE"),
        ("after", "TEMPLATE"),
    ]
