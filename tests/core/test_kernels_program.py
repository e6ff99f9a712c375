"""Programs: binding, releases, bodies, errors, times, cancellation and two memories."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_tests.fake_runtime import FakeCard

from hetero_core.errors import RequestCancelledError, UnsupportedNodesError
from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import compile_program
from hetero_core.network.graph import Network, Node
from hetero_core.network.reader import read_network

CARD = FakeCard(0)


def read(text: str, opset: int = 21) -> Network:
    return read_network(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "com.acme": 1]> {text}'))


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


class Recorder:
    """A profile that records its nodes and transfers."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.transfers: list[tuple[str, int]] = []

    def add(self, node: Node, seconds: float) -> None:
        assert seconds >= 0
        self.nodes.append(node.name)

    def add_transfer(self, value: str, nbytes: int, seconds: float) -> None:
        self.transfers.append((value, nbytes))


CHAIN = "g (float[2] x) => (float[2] y) { [a] t = Add(x, x) [b] u = Relu(t) [c] y = Mul(u, x) }"


def test_output_may_be_an_input_or_a_constant() -> None:
    x = ones(2)
    program = compile_program(read("g (float[2] x) => (x, c, y) <float[2] c = {3.0, 4.0}> { y = Neg(x) }"))
    outputs = program.run((x,))
    assert outputs[0] is x
    assert outputs[1].tolist() == [3, 4]


def test_outputs_are_contiguous() -> None:
    (y,) = compile_program(read("g (float[2,3] x) => (float[3,2] y) { y = Transpose(x) }")).run((ones(2, 3),))
    assert y.flags.c_contiguous


def test_scalar_results_are_arrays() -> None:
    (y,) = compile_program(read("g (float x, float z) => (float y) { y = Add(x, z) }")).run(
        (np.float32(1).reshape(()), np.array(2, np.float32))
    )
    assert isinstance(y, np.ndarray)
    assert y.dtype == np.float32


def test_values_are_released_after_their_last_use() -> None:
    alive: list[bool] = []
    seen: list[weakref.ref[Any]] = []

    def keep(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        result = x + 1
        seen.append(weakref.ref(result))
        return result

    def look(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        alive.append(seen[0]() is not None)
        return x

    extensions = {("com.acme", "Keep"): SimpleNamespace(function=keep), ("com.acme", "Look"): SimpleNamespace(function=look)}
    text = "g (float[2] x) => (float[2] y) { a = com.acme.Keep(x) b = Neg(a) c = Neg(b) y = com.acme.Look(c) }"
    compile_program(read(text), extensions=extensions).run((ones(2),))
    assert alive == [False]


def test_extension_gets_inputs_and_attributes() -> None:
    calls: list[tuple[Any, ...]] = []

    def twist(x: np.ndarray[Any, Any], *, angle: float, names: tuple[str, ...]) -> tuple[np.ndarray[Any, Any], ...]:
        calls.append((angle, names))
        return x, -x

    program = compile_program(
        read('g (float[2] x) => (a, b) { a, b = com.acme.Twist<angle = 0.5, names = ["p", "q"]>(x) }'),
        extensions={("com.acme", "Twist"): SimpleNamespace(function=twist)},
    )
    _, b = program.run((ones(2),))
    assert calls == [(0.5, ("p", "q"))]
    assert b.tolist() == [-1, -1]


def test_unsupported_nodes_are_named_with_their_reasons() -> None:
    with pytest.raises(
        UnsupportedNodesError, match=r"cannot compile network 'g': node 'a': operator com.acme:Twist has no kernel"
    ) as caught:
        compile_program(read("g (float[2] x) => (float[2] y) { [a] y = com.acme.Twist(x) }"))
    assert caught.value.refusals == {"a": {"kernels": "operator com.acme:Twist has no kernel"}}


def test_error_of_a_kernel_carries_the_node() -> None:
    program = compile_program(read("g (float[N] x, float[M] z) => (float[K] y) { [sum] y = Add(x, z) }"))
    with pytest.raises(ValueError, match="broadcast") as caught:
        program.run((ones(2), ones(3)))
    assert caught.value.__notes__ == ["while running node 'sum' (Add-14)"]


def test_unknown_element_type_is_checked_when_the_node_runs() -> None:
    network = read("g (float[2] x) => (y) { t = com.acme.Twist(x) [r] y = Relu(t) }")
    program = compile_program(network, extensions={("com.acme", "Twist"): SimpleNamespace(function=lambda x: x > 0)})
    with pytest.raises(
        UnsupportedNodesError, match=r"cannot run node 'r': input 't' of Relu-14 has dtype bool, for which there is no kernel"
    ):
        program.run((ones(2),))


def test_times_are_recorded_per_node_in_order() -> None:
    profile = Recorder()
    compile_program(read(CHAIN)).run((ones(2),), profile=profile)
    assert profile.nodes == ["a", "b", "c"]
    assert profile.transfers == []


def test_cancellation_is_polled_between_steps() -> None:
    polls: list[int] = []

    def is_cancelled() -> bool:
        polls.append(1)
        return len(polls) == 3

    with pytest.raises(RequestCancelledError, match=r"cancelled before node 'c' \(Mul-14\)"):
        compile_program(read(CHAIN)).run((ones(2),), is_cancelled=is_cancelled)


def test_cancellation_reaches_the_body_of_a_loop() -> None:
    polls: list[int] = []

    def is_cancelled() -> bool:
        polls.append(1)
        return len(polls) > 5

    with pytest.raises(RequestCancelledError):
        compile_program(read(LOOP)).run((ones(2), np.array(10**9)), is_cancelled=is_cancelled)


LOOP = """g (float[2] x, int64 n) => (float[2] last, float[M,2] all) <bool go = {1}> {
    [loop] last, all = Loop<body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] u) {
        d = Identity(c) t = Add(s, x) u = Neg(t)
    }>(n, go, x)
}"""


@pytest.mark.parametrize(("count", "last"), [(0, 1), (1, 2), (3, 4)])
def test_loop_reads_outer_values_and_stacks_its_scans(count: int, last: int) -> None:
    final, scans = compile_program(read(LOOP)).run((ones(2), np.array(count)))
    assert final.tolist() == [last, last]
    assert scans.shape == (count, 2)
    assert scans.dtype == np.float32


def test_nested_bodies_reach_values_of_all_outer_graphs() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) <float[2] k = {10.0, 20.0}> {
        t = Neg(x)
        y = If<then_branch = outer () => (float[2] a) {
                 a = If<then_branch = inner () => (float[2] p) { s = Add(t, k) p = Add(s, x) },
                        else_branch = other () => (float[2] q) { q = Identity(k) }>(c)
               }, else_branch = plain () => (float[2] b) { b = Identity(x) }>(c)
    }"""
    program = compile_program(read(text))
    assert program.run((np.array(True), ones(2)))[0].tolist() == [10, 20]
    assert program.run((np.array(False), ones(2)))[0].tolist() == [1, 1]
    assert program.captured == ()


# Programs with two memories: weights of all ranks, and shapes computed from the shape of the input.
RESHAPING = """g (float[N,4] x) => (float[1,M] y) <int64[1] rest = {-1}, int64[1] zero = {0}> {
    s = Shape(x)
    first = Gather(s, zero)
    double = Add(first, first)
    expected_value = Concat<axis = 0>(double, rest)
    [move] t = Reshape(x, expected_value)
    y = Flatten<axis = 0>(t)
}"""


def compile_for_fake(text: str, copies: list[str], **options: Any) -> Program:
    def counted(name: str, copy: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def copy_counted(array: Any) -> Any:
            copies.append(name)
            return copy(array)

        return copy_counted

    return compile_program(
        read(text),
        xp=CARD.xp,
        to_host=counted("to_host", CARD.to_host),
        from_host=counted("from_host", CARD.from_host),
        **options,
    )


def test_arithmetic_on_shapes_stays_on_the_host() -> None:
    copies: list[str] = []
    program = compile_for_fake(RESHAPING, copies)
    profile = Recorder()
    (y,) = program.run((CARD.from_host(ones(2, 4)),), profile=profile)
    assert CARD.to_host(y).shape == (1, 8)
    assert copies == []
    assert profile.transfers == []


def test_shape_computed_on_the_device_is_fetched_once() -> None:
    copies: list[str] = []
    text = "g (float[6] x, int64[2] s) => (a, b) { t = Add(s, s) [one] a = Reshape(x, t) [two] b = Reshape(x, t) }"
    program = compile_for_fake(text, copies)
    profile = Recorder()
    outputs = program.run((CARD.from_host(ones(8)[:8]), CARD.from_host(np.array([1, 2]))), profile=profile)
    assert [CARD.to_host(output).shape for output in outputs] == [(2, 4), (2, 4)]
    assert copies == ["to_host"]
    assert profile.transfers == [("t", 16)]


def test_constants_are_converted_once_for_all_bodies() -> None:
    copies: list[str] = []
    text = """g (bool c, float[2] x) => (float[2] y) <float[2] k = {1.0, 2.0}> {
        t = Add(x, k)
        y = If<then_branch = a () => (float[2] p) { p = Add(t, k) }, else_branch = b () => (float[2] q) { q = Sub(t, k) }>(c)
    }"""
    program = compile_for_fake(text, copies)
    assert copies == ["from_host"]
    (y,) = program.run((CARD.from_host(np.array(True)), CARD.from_host(ones(2))))
    assert CARD.to_host(y).tolist() == [3, 5]


def test_operator_that_runs_on_the_host_is_surrounded_by_copies() -> None:
    copies: list[str] = []
    program = compile_for_fake("g (float[4] x) => (y) { u = Unique(x) y = Neg(u) }", copies)
    (y,) = program.run((CARD.from_host(np.array([3, 1, 3, 2], np.float32)),))
    assert CARD.to_host(y).tolist() == [-1, -2, -3]
    # The nodes after it compute with data again, so they run on the device.
    assert copies == ["to_host", "from_host"]


def test_tensor_computed_from_a_shape_lies_on_the_device() -> None:
    copies: list[str] = []
    profile = Recorder()
    text = "g (float[N,4] x) => (y) { s = Shape(x) z = ConstantOfShape(s) w = Neg(z) y = Sub(w, x) }"
    (y,) = compile_for_fake(text, copies).run((CARD.from_host(ones(3, 4)),), profile=profile)
    assert CARD.to_host(y).tolist() == [[-1] * 4] * 3
    assert copies == []


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(("outputs", "part"), [("y, , z", 0), (", y, z", 1), (", , y, z", 2)])
def test_unread_outputs_count_when_an_axis_is_split(opset: int, outputs: str, part: int) -> None:
    count = outputs.count(",") + 1
    attribute = f"<num_outputs = {count}>" if opset == 18 else ""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[n] x) => (float[m] y) {{ {outputs} = Split {attribute} (x) }}'
    )
    model.graph.node[0].output[-1] = ""
    x = np.arange(12, dtype=np.float32)
    (y,) = compile_program(read_network(model)).run((x,))
    assert y.tolist() == np.split(x, count)[part].tolist()
