from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Executable, InferRequest, Network, QueryResult, RunContext, hookimpl
from hetero_core.errors import (
    InferenceError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    RequestBusyError,
    RequestCancelledError,
)

TEXT = "g (float[N,2] x, float[N,2] w) => (float[N,2] y) { y = Add(x, w) }"
ONES = np.ones((1, 2), np.float32)


class Gate:
    """A device that waits for `open` in each run, then fails if `fails` is set."""

    def __init__(self) -> None:
        self.entered, self.open, self.fails = threading.Semaphore(0), threading.Event(), False
        self.saw_cancel = threading.Event()

    @hookimpl
    def query_network(self, network: Network) -> QueryResult:
        return QueryResult({node.name: "GATE" for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network, config: Mapping[str, Any]) -> Executable:
        return GateExecutable(network, self)


class GateExecutable(Executable):
    def __init__(self, network: Network, gate: Gate) -> None:
        self.inputs, self.outputs, self._gate = network.inputs, network.outputs, gate

    def create_state(self) -> dict[str, int]:
        return {"runs": 0}

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        state: Any = context.state
        state["runs"] += 1
        self._gate.entered.release()
        assert self._gate.open.wait(60)
        if context.cancelled():
            self._gate.saw_cancel.set()
        if self._gate.fails:
            raise OverflowError("the device fell over")
        return (inputs[0] + inputs[1] * state["runs"],)


@pytest.fixture
def gate(core: Core) -> Gate:
    device = Gate()
    core.register_plugin("GATE", device)
    return device


@pytest.fixture
def request_of_gate(core: Core, gate: Gate, read: Callable[..., Network]) -> InferRequest:
    return core.load_network(read(TEXT), "GATE").create_infer_request()


def test_wait_says_no_before_and_yes_after_the_run(gate: Gate, request_of_gate: InferRequest) -> None:
    assert request_of_gate.wait()
    request_of_gate.start_async({"x": ONES, "w": ONES})
    assert not request_of_gate.wait(0.01)
    gate.open.set()
    assert request_of_gate.wait(60)
    assert request_of_gate.get_tensor("y").tolist() == [[2, 2]]


def test_running_request_is_busy(gate: Gate, request_of_gate: InferRequest) -> None:
    request_of_gate.start_async({"x": ONES, "w": ONES})
    for action in (
        lambda: request_of_gate.start_async(),
        lambda: request_of_gate.infer({"x": ONES}),
        lambda: request_of_gate.get_tensor("y"),
        lambda: request_of_gate.set_tensor("x", ONES),
        lambda: request_of_gate.set_callback(None),
    ):
        with pytest.raises(RequestBusyError, match="the request on network 'g' is running; wait for it first"):
            action()
    gate.open.set()
    assert request_of_gate.wait(60)


def test_output_that_is_an_input_is_got_after_a_run(core: Core) -> None:
    network = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] w) => (float[2] y, float[2] w) { y = Neg (w) }'
    )
    request = core.load_network(network, "TEMPLATE").create_infer_request()
    request.start_async({"w": np.ones(2, np.float32)})
    assert request.wait(60)
    assert request.get_tensor("w").tolist() == [1, 1]
    request.set_tensor("w", np.zeros(2, np.float32))
    assert request.get_tensor("w").tolist() == [0, 0]


def test_device_error_reaches_wait_and_the_request_works_again(gate: Gate, request_of_gate: InferRequest) -> None:
    gate.open.set()
    gate.fails = True
    seen: list[BaseException | None] = []
    request_of_gate.set_callback(lambda _, error: seen.append(error))
    request_of_gate.start_async({"x": ONES, "w": ONES})
    with pytest.raises(
        InferenceError, match=r"network 'g' failed on GATE \(plugin GATE .*\): OverflowError: the device fell over"
    ) as caught:
        request_of_gate.wait(60)
    assert isinstance(caught.value.__cause__, OverflowError)
    assert seen == [caught.value]
    with pytest.raises(InputNameError, match="tensor 'y' of network 'g' has no value yet"):
        request_of_gate.get_tensor("y")
    gate.fails = False
    request_of_gate.start_async({"x": ONES, "w": ONES})
    assert request_of_gate.wait(60)
    gate.fails = True
    with pytest.raises(InferenceError):
        request_of_gate.infer({"x": ONES, "w": ONES})
    assert request_of_gate.wait(), "an error that infer raised is not raised again"


def test_error_in_a_callback_reaches_wait(gate: Gate, request_of_gate: InferRequest) -> None:
    gate.open.set()

    def fail(request: InferRequest, error: BaseException | None) -> None:
        raise LookupError("my own mistake")

    request_of_gate.set_callback(fail)
    request_of_gate.start_async({"x": ONES, "w": ONES})
    with pytest.raises(LookupError, match="my own mistake") as caught:
        request_of_gate.wait(60)
    assert any("callback of a request on network 'g'" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=lambda error: type(error).__name__)
def test_exit_or_interrupt_in_a_callback_reaches_wait(gate: Gate, request_of_gate: InferRequest, error: BaseException) -> None:
    gate.open.set()

    def leave(request: InferRequest, failure: BaseException | None) -> None:
        raise error

    request_of_gate.set_callback(leave)
    request_of_gate.start_async({"x": ONES, "w": ONES})
    with pytest.raises(type(error)) as caught:
        request_of_gate.wait(60)
    assert caught.value is error
    request_of_gate.set_callback(None)
    request_of_gate.start_async({"x": ONES, "w": ONES})
    assert request_of_gate.wait(60), "the request and its thread work on"


def test_interrupt_in_the_callback_reaches_the_caller_of_cancel(gate: Gate, request_of_gate: InferRequest) -> None:
    def interrupt(request: InferRequest, failure: BaseException | None) -> None:
        raise KeyboardInterrupt

    request_of_gate.set_callback(interrupt)
    request_of_gate.start_async({"x": ONES, "w": ONES})
    assert gate.entered.acquire(timeout=900)
    with pytest.raises(KeyboardInterrupt):
        request_of_gate.cancel()
    assert not request_of_gate.is_running
    gate.open.set()


def test_cancelled_request_is_idle_at_once_and_works_again(gate: Gate, request_of_gate: InferRequest) -> None:
    request_of_gate.cancel()
    seen: list[BaseException | None] = []
    request_of_gate.set_callback(lambda _, error: seen.append(error))
    request_of_gate.start_async({"x": ONES, "w": ONES})
    assert gate.entered.acquire(timeout=900)
    request_of_gate.cancel()
    with pytest.raises(RequestCancelledError, match="a request on network 'g' was cancelled"):
        request_of_gate.wait(60)
    assert [type(error) for error in seen] == [RequestCancelledError]
    gate.open.set()
    assert gate.saw_cancel.wait(60), "the device is told"
    gate.fails = True
    with pytest.raises(RequestCancelledError):
        request_of_gate.wait(60)
    gate.fails = False
    result = request_of_gate.infer({"x": ONES, "w": ONES})
    assert result["y"].tolist() == [[2, 2]], "working memory of the cancelled run is set aside"
    assert len(seen) == 1


def test_requests_of_one_network_do_not_share_working_memory(core: Core, gate: Gate, read: Callable[..., Network]) -> None:
    gate.open.set()
    loaded = core.load_network(read(TEXT), "GATE")
    first, second = loaded.create_infer_request(), loaded.create_infer_request()
    for expected in (2, 3):
        assert first.infer({"x": ONES, "w": ONES})["y"][0, 0] == expected
    assert second.infer({"x": ONES, "w": ONES})["y"][0, 0] == 2


def test_closing_the_core_ends_waiting_requests(read: Callable[..., Network]) -> None:
    core, gate = Core(), Gate()
    core.register_plugin("GATE", gate)
    loaded = core.load_network(read(TEXT), "GATE")
    requests = [loaded.create_infer_request() for _ in range(40)]
    for request in requests:
        request.start_async({"x": ONES, "w": ONES})
    opener = threading.Timer(0.05, gate.open.set)
    opener.start()
    core.close()
    opener.join()
    ended = []
    for request in requests:
        try:
            ended.append(request.wait(60))
        except RequestCancelledError:
            ended.append(False)
    assert len(ended) == 40
    assert True in ended


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        ({"x": ONES}, InputNameError, "network 'g' misses the inputs w: float32[N,2]"),
        ({"x": ONES, "w": ONES, "v": ONES}, InputNameError, "network 'g' has no input 'v'"),
        ({"X": ONES, "w": ONES}, InputNameError, "has no input 'X', did you mean 'x'?"),
        ([ONES], InputNameError, "network 'g' got 1 values by position; its inputs are x, w, in this order"),
        (ONES, InputNameError, "network 'g' got 1 values by position"),
        ({2: ONES}, InputNameError, "network 'g' has no input at position 2; it has 2, counted from 0"),
        ({0: ONES, "x": ONES}, InputNameError, "network 'g': input 'x' is given twice, by name and by position"),
        ({"x": {1.0, 2.0}, "w": ONES}, InputTypeError, "input 'x' of network 'g': expected an array for float32[N,2], got set"),
        (
            {"x": ONES.astype(np.float64), "w": ONES},
            InputTypeError,
            "expected float32, got float64; convert it with array.astype('float32')",
        ),
        ({"x": ONES[0], "w": ONES}, InputShapeError, "expected shape [N,2], got [2]: 1 dimensions instead of 2"),
        (
            {"x": np.ones((1, 3), np.float32), "w": ONES},
            InputShapeError,
            "expected shape [N,2], got [1, 3]: axis 1 has 3 instead of 2",
        ),
        ({"x": np.ones((4, 2), np.float32), "w": ONES}, InputShapeError, "'N' is 1 here and 4 in input 'x' of network 'g'"),
    ],
)
def test_bad_input_says_expected_and_got(
    core: Core, read: Callable[..., Network], inputs: Any, kind: type[Exception], message: str
) -> None:
    loaded = core.load_network(read(TEXT), "CPU")
    for run in (loaded.infer, loaded.create_infer_request().infer, loaded.create_infer_request().start_async):
        with pytest.raises(kind) as caught:
            run(inputs)
        assert message in str(caught.value)


def test_unknown_tensor_name_lists_the_names(core: Core, read: Callable[..., Network]) -> None:
    request = core.load_network(read(TEXT), "CPU").create_infer_request()
    with pytest.raises(InputNameError, match="has no input or output 'z'; it has w, x, y"):
        request.get_tensor("z")
    with pytest.raises(InputNameError, match="tensor 'y' of network 'g' has no value yet"):
        request.get_tensor("y")
    with pytest.raises(InputShapeError, match="expected shape"):
        request.set_tensor("x", ONES[0])
