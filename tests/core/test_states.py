"""States: outputs that a request keeps as inputs of its next run, on several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Executable, ExecutableNetwork, InferRequest, Network, QueryResult, RunContext, hookimpl
from hetero_core.errors import (
    BlobMismatchError,
    InferenceError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    InvalidNetworkError,
    RequestBusyError,
    RequestCancelledError,
)
from hetero_core.network.border import InputInfo
from hetero_core.network.writer import network_to_bytes, pack_network, unpack_network

DEVICES = ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"]
Read = Callable[..., Network]
# A running sum; y is twice the sum.
SUM = "g (float[2] x, float[2] past) => (float[2] y, float[2] present) { present = Add(x, past) y = Add(present, present) }"
REVERSED = "g (float[4] x, float[4] past) => (float[4] present) { present = Add(x, past) }"
X = np.array([1, 2], np.float32)


@pytest.fixture
def running_sum(read: Read) -> Network:
    return read(SUM).with_state({"present": "past"})


def run(request: InferRequest, times: int = 1) -> list[Any]:
    return [request.infer({"x": X})["y"].tolist() for _ in range(times)]


@pytest.mark.parametrize("device", DEVICES)
def test_output_of_a_run_is_the_input_of_the_next(core: Core, running_sum: Network, device: str) -> None:
    loaded = core.load_network(running_sum, device)
    assert ([spec.name for spec in loaded.inputs], [spec.name for spec in loaded.outputs]) == (["x"], ["y"])
    assert run(loaded.create_infer_request(), 3) == [[2, 4], [4, 8], [6, 12]]


@pytest.mark.parametrize("device", DEVICES)
def test_requests_have_states_of_their_own(core: Core, running_sum: Network, device: str) -> None:
    loaded = core.load_network(running_sum, device)
    first, second = loaded.create_infer_request(), loaded.create_infer_request()
    assert [run(first), run(first), run(second), run(first), run(second)] == [[[2, 4]], [[4, 8]], [[2, 4]], [[6, 12]], [[4, 8]]]
    assert loaded.infer({"x": X})["y"].tolist() == [2, 4]


def test_states_are_listed_read_set_and_reset(core: Core, running_sum: Network) -> None:
    request = core.load_network(running_sum, "CPU").create_infer_request()
    run(request, 2)
    assert [(name, state.name, state.output) for name, state in request.states.items()] == [("past", "past", "present")]
    assert request.states["past"].value.tolist() == [2, 4]
    request.states["past"].value = np.array([10, 20], np.float32)
    assert run(request) == [[22, 44]]
    request.states["past"].reset()
    assert run(request) == [[2, 4]]
    request.states.reset()
    assert run(request) == [[2, 4]]


def test_state_begins_at_the_value_that_is_given(core: Core, read: Read) -> None:
    begins = np.array([5, 6], np.float32)
    network = read(SUM).with_state({"present": "past"}, initial={"past": begins})
    begins[:] = 0
    request = core.load_network(network, "CPU").create_infer_request()
    assert run(request) == [[12, 16]]
    request.states.reset()
    assert run(request) == [[12, 16]]


def test_value_that_is_read_or_set_is_a_copy(core: Core, running_sum: Network) -> None:
    request = core.load_network(running_sum, "CPU").create_infer_request()
    array = np.array([10, 20], np.float32)
    request.states["past"].value = array
    array[:] = 0
    request.states["past"].value[:] = 0
    assert run(request) == [[22, 44]]


@pytest.mark.parametrize("device", DEVICES)
def test_blobs_files_and_packed_networks_keep_the_ties(core: Core, read: Read, device: str, tmp_path: Any) -> None:
    network = read(SUM).with_state({"present": "past"}, initial={"past": X})
    core.load_network(network, device).export_network(tmp_path / "blob")
    networks = [core.read_network(network_to_bytes(network)), unpack_network(pack_network(network))]
    loaded = [core.import_network(tmp_path / "blob", device), *(core.load_network(tied, device) for tied in networks)]
    for executable in loaded:
        assert run(executable.create_infer_request(), 2) == [[4, 8], [6, 12]]
    assert {tied.fingerprint for tied in networks} == {network.fingerprint}


def test_blob_without_ties_does_not_match_the_network_with_ties(core: Core, read: Read, tmp_path: Any) -> None:
    network = read(SUM)
    core.load_network(network, "CPU").export_network(tmp_path / "blob")
    with pytest.raises(BlobMismatchError, match="the blob's model fingerprint is"):
        core.import_network(tmp_path / "blob", "CPU", network=network.with_state({"present": "past"}))


def test_cache_keeps_the_network_with_ties_apart(core: Core, read: Read, tmp_path: Any) -> None:
    config = {"CACHE_DIR": str(tmp_path)}
    core.load_network(read(SUM), "CPU", config)
    for is_hit in (False, True):
        loaded = core.load_network(read(SUM).with_state({"present": "past"}), "CPU", config)
        assert loaded.get_metric("LOADED_FROM_CACHE") is is_hit
        assert run(loaded.create_infer_request(), 2) == [[2, 4], [4, 8]]


def test_failed_run_keeps_the_state(core: Core, read: Read) -> None:
    network = read(
        "g (float[2] x, int64[1] i, float[2] past) => (float[2] y, float[2] present) "
        "{ present = Add(x, past) a = Gather(present, i) y = Add(present, a) }"
    ).with_state({"present": "past"})
    request = core.load_network(network, "CPU").create_infer_request()
    assert request.infer({"x": X, "i": np.array([0])})["y"].tolist() == [2, 3]
    with pytest.raises(InferenceError):
        request.infer({"x": X, "i": np.array([7])})
    assert request.states["past"].value.tolist() == [1, 2]
    assert request.infer({"x": X, "i": np.array([0])})["y"].tolist() == [4, 6]


class ReusingDevice:
    """Computes x + reverse(state) into a buffer per context, so each run overwrites the output of the last run.

    It writes elements of the buffer before it has read the whole state, so a state that aliases the buffer gives wrong results.
    """

    def __init__(self) -> None:
        self.stops: Callable[[RunContext], None] = lambda _: None

    @hookimpl
    def query_network(self, network: Network) -> QueryResult:
        return QueryResult({node.name: "REUSE" for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        return ReusingExecutable(network, self)


class ReusingExecutable(Executable):
    def __init__(self, network: Network, device: ReusingDevice) -> None:
        self.inputs, self.outputs, self.device = network.inputs, network.outputs, device

    def create_state(self) -> object:
        return np.zeros(4, np.float32)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        x, past = inputs
        buffer: Any = context.state
        for index in range(4):
            buffer[index] = x[index] + past[3 - index]
        self.device.stops(context)
        return (buffer,)


@pytest.fixture
def reusing(core: Core, read: Read) -> tuple[ReusingDevice, ExecutableNetwork]:
    device = ReusingDevice()
    core.register_plugin("REUSE", device)
    network = read(REVERSED).with_state({"present": "past"})
    return device, core.load_network(network, "REUSE")


def test_state_never_aliases_a_buffer_that_the_device_reuses(
    reusing: tuple[ReusingDevice, ExecutableNetwork],
) -> None:
    requests = [reusing[1].create_infer_request() for _ in range(2)]
    generator = np.random.default_rng(0)
    expected = [np.zeros(4, np.float32), np.zeros(4, np.float32)]
    for turn in range(20):
        index = turn % 3 % 2
        x = generator.integers(0, 9, 4).astype(np.float32)
        requests[index].infer({"x": x})
        expected[index] = x + expected[index][::-1]
        assert [request.states["past"].value.tolist() for request in requests] == [state.tolist() for state in expected]


def test_cancelled_run_changes_no_state_and_spoils_none(reusing: tuple[ReusingDevice, ExecutableNetwork]) -> None:
    device, network = reusing
    request = network.create_infer_request()
    x = np.array([1, 2, 3, 4], np.float32)
    request.infer({"x": x})
    device.stops = lambda _: request.cancel()
    with pytest.raises(RequestCancelledError):
        request.infer({"x": x})
    device.stops = lambda _: None
    assert request.states["past"].value.tolist() == [1, 2, 3, 4]
    request.infer({"x": x})
    request.infer({"x": x})
    # x + reverse(x) = 5 5 5 5, and then x + 5.
    assert request.states["past"].value.tolist() == [6, 7, 8, 9]


def test_states_of_a_running_request_are_left_alone(reusing: tuple[ReusingDevice, ExecutableNetwork]) -> None:
    device, network = reusing
    request = network.create_infer_request()
    messages = []

    def meddle(_: RunContext) -> None:
        for action in (lambda: request.states["past"].value, request.states["past"].reset, request.states.reset):
            with pytest.raises(RequestBusyError) as caught:
                action()
            messages.append(str(caught.value))

    device.stops = meddle
    request.start_async({"x": np.ones(4, np.float32)})
    request.wait()
    assert [message.partition(":")[0] for message in messages] == [
        "cannot read state 'past'",
        "cannot reset state 'past'",
        "cannot reset the states",
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_state_that_is_an_input_of_the_caller_is_a_copy(core: Core, read: Read, device: str) -> None:
    network = read("g (float[2] x, float[2] past) => (float[2] y, float[2] present) { present = Identity(x) y = Identity(past) }")
    request = core.load_network(network.with_state({"present": "past"}), device).create_infer_request()
    x = np.array([1, 2], np.float32)
    request.infer({"x": x})
    x[:] = 9
    assert request.infer({"x": x})["y"].tolist() == [1, 2]


def test_open_size_grows_from_run_to_run(core: Core, read: Read) -> None:
    network = read(
        "g (float[1] x, float[n] past) => (float[m] y, float[m] present) { present = Concat<axis=0>(past, x) y = Neg(present) }"
    )
    tied = network.with_state({"present": "past"}, initial={"past": np.zeros(0, np.float32)})
    request = core.load_network(tied, "CPU", {"PERF_COUNT": True}).create_infer_request()
    for index in range(4):
        assert request.infer({"x": np.array([index], np.float32)})["y"].tolist() == [-float(number) for number in range(index + 1)]


def test_state_that_does_not_fit_its_input_any_more_says_so(core: Core, read: Read) -> None:
    network = read("g (float[n] x, float[2] past) => (float[n] y, float[n] present) { present = Neg(x) y = Add(x, x) }")
    request = core.load_network(network.with_state({"present": "past"}), "CPU").create_infer_request()
    message = (
        r"output 'present' of network 'g' has shape \[3\], and as state 'past' the next run takes float32\[2\]; "
        "open the size with with_shapes before with_state"
    )
    with pytest.raises(InferenceError, match=message):
        request.infer({"x": np.ones(3, np.float32)})


REFUSED_TIES: list[tuple[str, dict[str, str], dict[str, Any], str]] = [
    (SUM, {"presen": "past"}, {}, "network 'g' has no output 'presen', did you mean 'present'? its outputs are present, y"),
    (SUM, {"present": "pas"}, {}, "network 'g' has no input 'pas', did you mean 'past'? its inputs are past, x"),
    (SUM, {"present": "past", "y": "past"}, {}, "cannot be the state of input 'past': 'present' is tied to 'past' already"),
    (SUM, {"present": "past"}, {"x": X}, "there is an initial value for 'x'; the inputs that are tied are past"),
    (SUM, {"present": "past"}, {"past": np.zeros(3, np.float32)}, "expected an initial value of float32[2], got float32[3]"),
    (SUM, {"present": "past"}, {"past": np.zeros(2)}, "expected an initial value of float32[2], got float64[2]"),
    (
        "g (float[2] x, float[n,2] past) => (float[m,2] present) { a = Unsqueeze(x, z) present = Concat<axis=0>(past, a) }",
        {"present": "past"},
        {},
        "state 'past' of network 'g' is float32[n,2], which has open sizes; say what the first run reads, as in "
        "initial={'past': np.zeros((0, 2), np.float32)}",
    ),
    (
        "g (float[1] x, float[2] past) => (float[3] present) { present = Concat<axis=0>(past, x) }",
        {"present": "past"},
        {},
        "output 'present' of network 'g' cannot be the state of input 'past': the output is float32[3], the input float32[2]; a state "
        "that grows needs an open size, by with_shapes",
    ),
    (
        "g (float[2] past) => (int64[2] present) { present = Cast<to=7>(past) }",
        {"present": "past"},
        {},
        "the output is int64[2], the input float32[2]",
    ),
]


@pytest.mark.parametrize(("text", "ties", "initial", "message"), REFUSED_TIES, ids=[row[3][:40] for row in REFUSED_TIES])
def test_impossible_tie_is_refused(read: Read, text: str, ties: dict[str, str], initial: dict[str, Any], message: str) -> None:
    text = text.replace("=> (float[m,2] present) {", "=> (float[m,2] present) <int64[1] z = {0}> {")
    with pytest.raises(InvalidNetworkError) as caught:
        read(text).with_state(ties, initial=initial)
    assert message in str(caught.value)


def test_state_is_neither_reshaped_nor_described_nor_left_out(running_sum: Network) -> None:
    with pytest.raises(
        InvalidNetworkError, match=r"input 'past' of network 'g' is a state, which begins as float32\[2\]; reshape before"
    ):
        running_sum.with_shapes({"past": (3,)})
    with pytest.raises(InvalidNetworkError, match="input 'past' of network 'g' has a value of its own, a default or a state"):
        running_sum.with_inputs({"past": InputInfo("FP64")})
    with pytest.raises(InvalidNetworkError, match="output 'present' of network 'g' is the state of input 'past'; keep it"):
        running_sum.with_outputs(only=["y"])


def test_wrong_value_and_wrong_name_of_a_state_are_refused(core: Core, running_sum: Network) -> None:
    request = core.load_network(running_sum, "CPU").create_infer_request()
    with pytest.raises(InputNameError, match="network 'g' has no state 'pas', did you mean 'past'. its states are past"):
        request.states["pas"]
    with pytest.raises(InputShapeError, match=r"expected shape \[2\], got \[3\]"):
        request.states["past"].value = np.zeros(3, np.float32)
    with pytest.raises(InputTypeError, match="expected float32, got float64"):
        request.states["past"].value = np.zeros(2)
    with pytest.raises(InputNameError, match="network 'g' has no input 'past'; its inputs are x"):
        request.infer({"x": X, "past": X})


def test_border_of_a_stranger_is_refused(core: Core) -> None:
    for text in (
        "{",
        "[]",
        '{"states": [["y", "x", ["float32", [-1], ""]]]}',
        '{"states": [["y", "x", ["string", [1], ""]]]}',
        '{"odd": 1}',
    ):
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {SUM}')
        model.metadata_props.add(key="hetero.border", value=text)
        with pytest.raises(InvalidNetworkError, match=r"the 'hetero.border' of a model cannot be read: .*\. Remove it, or export"):
            core.read_network(model)
