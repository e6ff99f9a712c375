"""Device tensors of the caller on composed devices: a tensor stays on the card if the part that reads or writes it runs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cupy.device import GpuDevice
from hetero_template.device import TemplateDevice, TemplateExecutable
from hetero_tests.fake_runtime import FakeCard, FakeRuntime

from hetero_core import Core, DeviceTensor, hookimpl
from hetero_core.contract import DeviceName, Executable, RunContext
from hetero_core.errors import InputNameError, InputTypeError
from hetero_core.kernels.program import compile_program
from hetero_core.network.graph import Network
from hetero_core.runtime.executable import ExecutableNetwork

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
PAIR = onnx.parser.parse_model(
    f"{HEADER} g (float[n, 4] x, float[n, 4] w) => (float[n, 4] y, float[n, 4] z) {{ [one] y = Mul (x, w) [two] z = Neg (x) }}"
)
X, W = np.float32([[1, -2, 3, -4]]), np.float32([[2, 2, 3, 3]])
Load = Callable[..., ExecutableNetwork]


@pytest.fixture
def cards(core: Core) -> tuple[FakeCard, ...]:
    runtime = FakeRuntime(cards=2)
    core.register_plugin("CARD", GpuDevice("CARD", runtime))
    return runtime.cards()


@pytest.fixture
def load(core: Core, cards: tuple[FakeCard, ...]) -> Load:
    def read_and_load(device: str, model: onnx.ModelProto = PAIR, **pins: str) -> ExecutableNetwork:
        network = core.read_network(model)
        return core.load_network(network.with_affinity(pins) if pins else network, device, {"PERF_COUNT": True})

    return read_and_load


def run_with_tensors(loaded: ExecutableNetwork, *, is_started: bool) -> tuple[DeviceTensor, DeviceTensor, DeviceTensor, list[str]]:
    """Returns the tensors x, y and z after a run, and the names of the copied values."""
    x = DeviceTensor.create(loaded, "x", X)
    y, z = (DeviceTensor.create(loaded, name) for name in ("y", "z"))
    request = loaded.create_infer_request()
    request.set_tensor("y", y)
    request.set_tensor("z", z)
    if is_started:
        request.start_async({"x": x, "w": W})
        assert request.wait(60)
    else:
        assert request.infer({"x": x, "w": W}) == {"y": y, "z": z}
    assert request.get_tensor("y") is y
    return x, y, z, [entry.node for entry in request.perf_counts if entry.operator == "transfer"]


@pytest.mark.parametrize("is_started", [False, True])
@pytest.mark.parametrize(
    "device",
    [
        "HETERO:CARD,CPU",
        "MULTI:CARD(1)",
        "AUTO:CARD",
        "BATCH:CARD(2)",
        "HETERO:(MULTI:CARD),CPU",
        "MULTI:(HETERO:CARD,CPU)",
        "AUTO:(BATCH:(HETERO:CARD))",
        "HETERO:TEMPLATE,CPU",
    ],
)
def test_tensors_stay_in_the_memory_of_their_part(load: Load, device: str, is_started: bool) -> None:
    loaded = load(device)
    x, y, z, copied = run_with_tensors(loaded, is_started=is_started)
    assert set(copied) == {"w"}
    assert (y.read().tolist(), z.read().tolist()) == ((X * W).tolist(), (-X).tolist())
    x.write(2 * X)
    request = loaded.create_infer_request()
    request.set_tensor("y", y)
    outputs = request.infer({"x": x, "w": W})
    assert (y.read().tolist(), outputs["z"].tolist()) == ((2 * X * W).tolist(), (-2 * X).tolist())


@pytest.mark.parametrize("is_started", [False, True])
def test_value_read_in_two_memories_is_copied(load: Load, is_started: bool) -> None:
    loaded = load("HETERO:CARD,CPU", one="CARD", two="CPU")
    x, y = DeviceTensor.create(loaded, "x", X), DeviceTensor.create(loaded, "y")
    z, request = DeviceTensor.create(load("CARD"), "z"), loaded.create_infer_request()
    request.set_tensor("y", y)
    request.set_tensor("z", z)
    if is_started:
        request.start_async({"x": x, "w": W})
        assert request.wait(60)
    else:
        request.infer({"x": x, "w": W})
    # CPU reads x and computes z in host memory, but both tensors are on the card.
    assert sorted(entry.node for entry in request.perf_counts if entry.operator == "transfer") == ["w", "x", "z"]
    assert (y.read().tolist(), z.read().tolist()) == ((X * W).tolist(), (-X).tolist())


def test_output_read_by_a_stage_in_another_memory_is_right(load: Load) -> None:
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[4] x) => (float[4] y, float[4] z) {{ [one] y = Neg (x) [two] z = Abs (y) }}"
    )
    loaded = load("HETERO:CARD,CPU", model, one="CARD", two="CPU")
    y, request = DeviceTensor.create(loaded, "y"), loaded.create_infer_request()
    request.set_tensor("y", y)
    assert request.infer({"x": X[0]})["z"].tolist() == [1, 2, 3, 4]
    assert y.read().tolist() == (-X[0]).tolist()


@pytest.mark.parametrize("device", ["HETERO:CARD.1,CPU", "MULTI:CARD.1", "AUTO:CPU", "BATCH:CARD.1", "HETERO:(MULTI:CPU),TEMPLATE"])
def test_tensors_of_another_memory_are_copied_and_counted(load: Load, device: str) -> None:
    here, loaded = load("CARD.0"), load(device)
    x, y = DeviceTensor.create(here, "x", X), DeviceTensor.create(here, "y")
    request = loaded.create_infer_request()
    request.set_tensor("y", y)
    assert request.infer({"x": x, "w": W})["z"].tolist() == (-X).tolist()
    assert y.read().tolist() == (X * W).tolist()
    assert {"x", "y"} <= {entry.node for entry in request.perf_counts if entry.operator == "transfer"}


def test_tensor_passes_between_split_networks_without_a_copy(load: Load, cards: tuple[FakeCard, ...]) -> None:
    first, second = load("HETERO:CARD,CPU"), load("MULTI:CARD")
    x, w = DeviceTensor.create(first, "x", X), DeviceTensor.create(first, "w", W)
    requests = [network.create_infer_request() for network in (first, second)]
    tensors = [{name: DeviceTensor.create(first, name) for name in ("y", "z")} for _ in requests]
    for request, outputs in zip(requests, tensors, strict=True):
        for name, tensor in outputs.items():
            request.set_tensor(name, tensor)
    cards[0].copies.clear()
    requests[0].infer({"x": x, "w": w})
    requests[1].infer({"x": tensors[0]["y"], "w": w})
    assert cards[0].copies == []
    assert tensors[1]["y"].read().tolist() == (X * W * W).tolist()


def test_second_write_keeps_the_array_of_the_tensor(load: Load, cards: tuple[FakeCard, ...]) -> None:
    loaded = load("CARD")
    tensor = DeviceTensor.create(loaded, "x", X)
    array = tensor.array
    tensor.write(-X)
    assert tensor.array is array
    assert tensor.read().tolist() == (-X).tolist()
    tensor.write(np.vstack([X, X]))
    assert tensor.array is not array
    assert tensor.read().tolist() == [*X.tolist(), *X.tolist()]


def test_writing_to_a_tensor_leaves_earlier_outputs_alone(load: Load) -> None:
    # Output y is a constant of the network. The card holds it once for all runs.
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[4] x) => (float[4] y, float[4] z) <float[4] c = {{1, 2, 3, 4}}> {{ y = Identity (c) z = Add (x, c) }}"
    )
    loaded = load("CARD", model)
    y, request = DeviceTensor.create(loaded, "z"), loaded.create_infer_request()
    request.set_tensor("z", y)
    request.infer({"x": X[0]})
    output = y.array
    y.write(np.zeros(4, np.float32))
    assert y.array is not output
    assert request.infer({"x": X[0]})["y"].tolist() == [1, 2, 3, 4]


def test_tensor_for_a_host_value_is_refused(load: Load) -> None:
    with pytest.raises(InputNameError, match="'x' of network 'g' on MULTI:CPU lies in the host's memory"):
        DeviceTensor.create(load("MULTI:CPU"), "x")
    loaded = load("HETERO:CARD,CPU", one="CARD", two="CPU")
    with pytest.raises(InputNameError, match="'z' of network 'g' on HETERO:CARD,CPU lies in the host's memory"):
        DeviceTensor.create(loaded, "z")
    texts = onnx.parser.parse_model(f"{HEADER} g (string[4] x) => (string[4] y) {{ y = Identity (x) }}")
    with pytest.raises(InputTypeError, match="expected string, got float32"):
        load("HETERO:TEMPLATE,CPU", texts).infer({"x": DeviceTensor.create(loaded, "x", X)})


class LosingExecutable(TemplateExecutable):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        raise RuntimeError("the card is lost")


class LosingDevice(TemplateDevice):
    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        return LosingExecutable(network, compile_program(network), memory="losing:0")


@pytest.mark.parametrize("is_started", [False, True])
def test_fallback_uses_the_tensors_of_the_failed_device(core: Core, is_started: bool) -> None:
    core.register_plugin("LOSING", LosingDevice("LOSING"))
    loaded = core.load_network(PAIR, "HETERO:LOSING,CPU", {"HETERO_FALLBACK": "NEXT", "PERF_COUNT": True})
    for _ in range(2):
        _, y, z, _ = run_with_tensors(loaded, is_started=is_started)
        assert (y.memory, y.read().tolist(), z.read().tolist()) == ("losing:0", (X * W).tolist(), (-X).tolist())
    assert loaded.get_metric("EXECUTION_DEVICES") == ("CPU",)
