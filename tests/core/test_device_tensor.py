"""Tensors in device memory as inputs, as outputs, and between networks without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx.parser
import pytest
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime

from hetero_core import Core, DeviceTensor
from hetero_core.errors import InputNameError, InputShapeError, InputTypeError
from hetero_core.runtime.executable import ExecutableNetwork

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[4] x, float[4] w) => (float[4] y, float[4] z) '
    "{ [one] y = Mul (x, w) [two] z = Neg (x) }"
)
X, W = np.float32([1, -2, 3, -4]), np.float32([2, 2, 3, 3])


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime(cards=2)


@pytest.fixture
def load(core: Core, runtime: FakeRuntime) -> Iterator[Callable[[str], ExecutableNetwork]]:
    core.register_plugin("CARD", GpuDevice("CARD", runtime))
    return lambda device: core.load_network(MODEL, device, {"PERF_COUNT": True})


@pytest.mark.parametrize("device", ["TEMPLATE", "CARD", "CARD.1"])
def test_value_is_written_once_and_outputs_stay_until_read(load: Callable[[str], ExecutableNetwork], device: str) -> None:
    loaded = load(device)
    x, y = DeviceTensor.create(loaded, "x", X), DeviceTensor.create(loaded, "y")
    request = loaded.create_infer_request()
    request.set_tensor("x", x)
    request.set_tensor("y", y)
    outputs = request.infer({"w": W})
    assert outputs["y"] is y
    assert request.get_tensor("y") is y
    assert outputs["z"].tolist() == (-X).tolist()
    # Only host arrays were moved: w to the device, z from the device.
    moved = [entry.node for entry in request.perf_counts if entry.operator == "transfer"]
    assert moved == ["w", "z"]
    assert y.read().tolist() == (X * W).tolist()
    assert (y.shape, y.dtype, y.nbytes) == ((4,), np.float32, 16)
    x.write(-X)
    request.infer({"w": W})
    assert y.read().tolist() == (-X * W).tolist()


def test_network_takes_tensors_without_a_request(load: Callable[[str], ExecutableNetwork]) -> None:
    loaded = load("TEMPLATE")
    assert loaded({"x": DeviceTensor.create(loaded, "x", X), "w": W})["y"].tolist() == (X * W).tolist()


def test_tensor_of_another_memory_name_or_shape_is_refused(load: Callable[[str], ExecutableNetwork]) -> None:
    here, there, host = load("CARD.0"), load("CARD.1"), load("CPU")
    tensor = DeviceTensor.create(here, "x", X)
    with pytest.raises(
        InputTypeError, match=r"input 'x' of network 'g': expected an array in ext:1, got a tensor in ext:0; give tensor.read\(\)"
    ):
        there.infer({"x": tensor, "w": W})
    with pytest.raises(InputTypeError, match="expected an array in host, got a tensor in ext:0"):
        host.infer({"x": tensor, "w": W})
    with pytest.raises(InputTypeError, match="output 'y' of network 'g': expected an array in ext:1"):
        there.create_infer_request().set_tensor("y", DeviceTensor.create(here, "y"))
    with pytest.raises(InputNameError, match="'x' of network 'g' on CPU lies in the host's memory; give arrays of NumPy"):
        DeviceTensor.create(host, "x")
    with pytest.raises(InputNameError, match="no input or output 'v'"):
        DeviceTensor.create(here, "v")
    with pytest.raises(InputShapeError, match=r"expected shape \[4\], got \[3\]"):
        tensor.write(np.zeros(3, np.float32))
    with pytest.raises(InputNameError, match="the tensor for 'y' has no value yet"):
        DeviceTensor.create(here, "y").read()


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_run_with_outputs_in_shared_memory_is_refused(load: Callable[[str], ExecutableNetwork], device: str) -> None:
    request, array, separate = load(device).create_infer_request(), np.zeros(7, np.float32), np.zeros(4, np.float32)
    request.set_tensor("y", array[:4])
    request.set_tensor("z", array[3:])
    with pytest.raises(InputNameError, match="outputs 'y' and 'z' would be written to the same memory"):
        request.infer({"x": X, "w": W})
    with pytest.raises(InputNameError, match="set an array or tensor of its own for each"):
        request.start_async({"x": X, "w": W})
    assert not array.any()
    request.set_tensor("z", separate)
    request.infer({"x": X, "w": W})
    assert (array[:4].tolist(), separate.tolist()) == ((X * W).tolist(), (-X).tolist())


def test_tensor_of_two_outputs_is_refused(load: Callable[[str], ExecutableNetwork]) -> None:
    loaded = load("CARD")
    request, tensor = loaded.create_infer_request(), DeviceTensor.create(loaded, "y")
    for name in ("y", "z"):
        request.set_tensor(name, tensor)
    with pytest.raises(InputNameError, match="outputs 'y' and 'z' would be written to the same memory"):
        request.infer({"x": X, "w": W})
    with pytest.raises(InputNameError, match="has no input or output '0'; it has"):
        request.set_tensor(0, tensor)  # type: ignore[arg-type]  # the wrong type is intended
