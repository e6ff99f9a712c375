"""The list of calls of a run: the node named in an error, the end of a cancelled run, and NumPy's warnings about infinities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.plan.open_plan import OpenStep
from hetero_cpu.run.instance import CurrentRun, bind_steps

from hetero_core import Core, Extension, Network
from hetero_core.contract import CancelToken
from hetero_core.errors import RequestCancelledError
from hetero_core.network.graph import Node

Read = Callable[..., Network]


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        opened.set_config({"CPU_KERNELS": "NUMPY"}, "CPU")
        yield opened


@pytest.fixture
def read(core: Core) -> Read:
    return lambda text: core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "test": 1]> {text}'))


def name_node(index: int) -> Node:
    return Node(f"n{index}", "Abs", (f"x{index}",), (f"x{index + 1}",), since_version=13)


def raise_value_error() -> None:
    raise ValueError("as asked for")


@pytest.mark.parametrize("failing", [0, 1, 31, 32, 33, 39])
def test_error_of_a_call_carries_the_node_of_its_step(failing: int) -> None:
    ran: list[int] = []
    steps = [
        OpenStep(
            name_node(index),
            (lambda index=index: ran.append(index), raise_value_error if index == failing else int),
        )
        for index in range(40)
    ]
    with pytest.raises(ValueError, match="as asked for") as caught:
        bind_steps(steps, CurrentRun(), None)()
    assert caught.value.__notes__ == [f"while running node 'n{failing}' (Abs-13)"]
    assert ran == list(range(failing + 1))


def test_error_that_names_a_node_within_keeps_its_note_alone() -> None:
    def fail() -> None:
        error = ValueError("as asked for")
        error.add_note("while running node 'inner' (Abs-13)")
        raise error

    with pytest.raises(ValueError, match="as asked for") as caught:
        bind_steps([OpenStep(name_node(0), (fail,))], CurrentRun(), None)()
    assert caught.value.__notes__ == ["while running node 'inner' (Abs-13)"]


def test_cancelled_run_ends_before_the_next_step() -> None:
    ran: list[int] = []
    current = CurrentRun()

    def run_step(index: int) -> None:
        ran.append(index)
        if index == 5:
            current.token.is_set = True

    steps = [OpenStep(name_node(index), (lambda index=index: run_step(index),)) for index in range(80)]
    calls = bind_steps(steps, current, None)
    with pytest.raises(RequestCancelledError, match=r"cancelled before node 'n6' \(Abs-13\)") as caught:
        calls()
    assert not getattr(caught.value, "__notes__", [])
    assert ran == list(range(6))
    with pytest.raises(RequestCancelledError, match=r"cancelled before node 'n0' \(Abs-13\)"):
        calls()
    current.token = CancelToken()
    ran.clear()
    bind_steps(steps[10:], current, None)()
    assert ran == list(range(10, 80))


def test_infinities_arise_in_silence_and_leave_the_callers_state(core: Core, read: Read) -> None:
    loaded = core.load_network(read("g (float[3] x) => (float[3] y) { a = Log(x) y = Div(a, x) }"), "CPU")
    request = loaded.create_infer_request()
    with np.errstate(all="raise"):
        for run in (loaded.infer, request.infer):
            np.testing.assert_array_equal(run({"x": np.array([0, -1, 1], np.float32)})["y"], [-np.inf, np.nan, 0])
        assert set(np.geterr().values()) == {"raise"}


def test_operator_of_the_user_sees_the_callers_context(core: Core, read: Read) -> None:
    asked: ContextVar[str] = ContextVar("asked", default="nobody")
    seen: list[str] = []

    def look(x: Any) -> Any:
        seen.append(asked.get())
        return x

    core.add_extension(Extension("test", "Look", 1, look, lambda types, _: types), "CPU")
    loaded = core.load_network(read("g (float[1] x) => (float[1] y) { a = Neg(x) b = test.Look(a) y = Log(b) }"), "CPU")
    token = asked.set("the caller")
    try:
        answers = loaded.infer({"x": np.ones(1, np.float32)})
    finally:
        asked.reset(token)
    assert np.isnan(answers["y"][0])
    assert seen == ["the caller"]
