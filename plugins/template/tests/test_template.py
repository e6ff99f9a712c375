"""TEMPLATE: its memory, its queue, its passes, its refusals, its blobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_template.device import TemplateArray, TemplateExecutable, transform_network

from hetero_core import Core, Network, RunContext, ValueSpec
from hetero_core.errors import InferenceError, RequestCancelledError, UnsupportedNodesError
from hetero_core.network.types import TensorType

Read = Callable[[str], Network]
REFUSED = "TEMPLATE_REFUSED_OPERATORS"
CHAIN = "g (float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }"


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.fixture
def read(core: Core) -> Read:
    return lambda text: core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))


@pytest.fixture
def array() -> TemplateArray:
    return TemplateArray("TEMPLATE:0", np.array([1, 2], np.float32))


@pytest.mark.parametrize(
    "touch",
    [
        np.asarray,
        lambda array: np.add(array, 1),
        lambda array: np.ones(2) * array,
        lambda array: np.concatenate([array, array]),
        bool,
        float,
        list,
        lambda array: array[0],
    ],
    ids=["asarray", "ufunc", "operator", "function", "bool", "float", "list", "element"],
)
def test_host_cannot_read_an_array_of_the_device(array: TemplateArray, touch: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        touch(array)


def test_array_of_one_physical_device_is_refused_by_the_other(core: Core, read: Read, array: TemplateArray) -> None:
    executable = core.load_network(read(CHAIN), "TEMPLATE.1").executable
    with pytest.raises(InferenceError, match="an array in TEMPLATE:0 was given to TEMPLATE:1; expected a transfer"):
        executable.run((array,), RunContext())


def test_texts_and_sequences_live_on_the_host(core: Core, read: Read) -> None:
    network = read(
        """g (float[2] x, string[2] t) => (seq(float[2]) s, float[2] y, string[2] u) {
        s = SequenceConstruct(x, x) y = Neg(x) u = Identity(t) }"""
    )
    loaded = core.load_network(network, "TEMPLATE")
    assert [spec.memory for spec in loaded.inputs] == ["TEMPLATE:0", "host"]
    assert [spec.memory for spec in loaded.outputs] == ["host", "TEMPLATE:0", "host"]
    outputs = loaded.infer({"x": np.array([1, 2], np.float32), "t": np.array(["a", "b"], object)})
    assert [array.tolist() for array in outputs["s"]] == [[1, 2], [1, 2]]
    assert outputs["y"].tolist() == [-1, -2]
    assert outputs["u"].tolist() == ["a", "b"]


def test_every_border_of_the_device_is_a_transfer(core: Core, read: Read) -> None:
    network = read("g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) c = Abs(b) d = Add(c, c) y = Exp(d) }")
    loaded = core.load_network(network, "HETERO:TEMPLATE,CPU", {REFUSED: "Neg,Abs", "PERF_COUNT": True})
    request = loaded.create_infer_request()
    request.infer({"x": np.array([1, -2], np.float32)})
    moved = [(entry.node, entry.source, entry.targets, entry.nbytes, entry.path) for entry in request.perf_counts if entry.targets]
    assert moved == [
        ("x", "host", ("TEMPLATE",), 8, ()),
        ("a", "TEMPLATE", ("CPU",), 8, (0,)),
        ("c", "CPU", ("TEMPLATE",), 8, (1,)),
        ("y", "TEMPLATE", ("host",), 8, (2,)),
    ]
    assert request.profile is not None
    assert request.profile.copied_bytes == 32


def start(executable: TemplateExecutable, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, Any, threading.Thread]:
    """Returns outputs, error and thread of a started run."""
    ends: list[tuple[Any, Any, threading.Thread]] = []
    ended = threading.Event()

    def done(outputs: Any, error: BaseException | None) -> None:
        ends.append((outputs, error, threading.current_thread()))
        ended.set()

    executable.start(inputs, context, done)
    assert ended.wait(60)
    (end,) = ends
    return end


def test_error_and_cancel_of_a_run_that_is_started_reach_done(core: Core, read: Read, array: TemplateArray) -> None:
    executable = core.load_network(read(CHAIN), "TEMPLATE").executable
    outputs, error, _ = start(executable, (TemplateArray("TEMPLATE:1", np.zeros(2, np.float32)),), RunContext())
    assert outputs is None
    assert isinstance(error, InferenceError)
    context = RunContext()
    context.token.is_set = True
    assert isinstance(start(executable, (array,), context)[1], RequestCancelledError)


def test_pass_keeps_the_origins_of_nodes(read: Read) -> None:
    transformed = transform_network(read("g (float[3] x) => (float[3] y) { i = Identity(x) y = Relu(i) }"))
    assert [(node.op_type, node.origins) for node in transformed.nodes] == [("Relu", ("Relu_1",))]


def test_refused_operators_are_refused_by_query_and_load_alike(core: Core, read: Read) -> None:
    network = read("g (float[2] x) => (float[2] y) { a = Relu(x) y = Exp(a) }")
    config = {REFUSED: ["Exp"]}
    result = core.query_network(network, "TEMPLATE.1", config)
    assert dict(result.supported) == {"Relu_0": "TEMPLATE.1"}
    assert dict(result.refused) == {"Exp_1": "operator Exp is refused by TEMPLATE_REFUSED_OPERATORS"}
    with pytest.raises(UnsupportedNodesError) as caught:
        core.load_network(network, "TEMPLATE", config)
    assert "cannot load network 'g' on TEMPLATE: 1 of 2 nodes are refused" in str(caught.value)
    assert "node 'Exp_1' (Exp-13), TEMPLATE: operator Exp is refused by TEMPLATE_REFUSED_OPERATORS" in str(caught.value)


BODIES = {
    "If": """g (bool c, float[2] x) => (float[2] y) { [inner] y = If (c) <
        then_branch = t () => (float[2] a) { [deep] a = Exp (x) }, else_branch = e () => (float[2] b) { b = Neg (x) }> }""",
    "Loop": """g (int64 n, bool c, float[2] x) => (float[2] y) { [inner] y = Loop (n, c, x) <
        body = b (int64 i, bool k, float[2] a) => (bool d, float[2] e) { d = Identity (k) [deep] e = Exp (a) }> }""",
    "Scan": """g (float[2] a, float[3,2] x) => (float[2] y, float[3,2] z) { [inner] y, z = Scan <num_scan_inputs = 1,
        body = b (float[2] s, float[2] n) => (float[2] o, float[2] p) { o = Add (s, n) [deep] p = Exp (o) }> (a, x) }""",
    "If in If": """g (bool c, float[2] x) => (float[2] y) { [inner] y = If (c) <
        then_branch = t () => (float[2] a) { a = If (c) <
            then_branch = u () => (float[2] p) { [deep] p = Exp (x) }, else_branch = v () => (float[2] q) { q = Abs (x) }> },
        else_branch = e () => (float[2] b) { b = Neg (x) }> }""",
}


@pytest.mark.parametrize("text", BODIES.values(), ids=BODIES)
def test_refused_operator_in_a_body_refuses_the_outer_node(core: Core, read: Read, text: str) -> None:
    network = read(text)
    assert core.query_network(network, "TEMPLATE").refused == {}
    (reason,) = core.query_network(network, "TEMPLATE", {REFUSED: "Exp"}).refused.values()
    operator = network.node("inner").operator
    assert reason == f"node 'deep' in a body of {operator}: operator Exp is refused by TEMPLATE_REFUSED_OPERATORS"


def test_import_takes_the_memory_of_the_device_that_imports(core: Core, read: Read, tmp_path: Path) -> None:
    core.load_network(read(CHAIN), "TEMPLATE.1").export_network(tmp_path / "t.blob")
    imported = core.import_network(tmp_path / "t.blob", "TEMPLATE.0")
    assert imported.inputs == (ValueSpec("x", TensorType("float32", (2,)), "TEMPLATE:0"),)
