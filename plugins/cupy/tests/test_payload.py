"""Blobs of GPU: weights in the card's form, written to the card from the blob's memory; refusals of blobs that do not fit."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hetero_cupy.device as device_module
import numpy as np
import onnx
import pytest
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeCard, FakeRuntime
from hetero_tests.network_writer import NetworkWriter

from hetero_core import Core, DeviceName, Network
from hetero_core.blobs.container import read_blob
from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError, BlobMismatchError
from hetero_core.testing.transformers import encoder_model

GPU = DeviceName("GPU", "", "")


def draw(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def conv_model() -> onnx.ModelProto:
    writer = NetworkWriter("convolutions")
    x = writer.add_input("x", (1, 8, 6, 6))
    y = writer.add_node("Conv", x, writer.add_constant(draw(16, 8, 3, 3) / 8), writer.add_constant(draw(16)), pads=[1, 1, 1, 1])
    norm = [
        writer.add_constant(array) for array in (draw(16, seed=1), draw(16, seed=2), draw(16, seed=3), np.abs(draw(16, seed=4)))
    ]
    y = writer.add_node("Relu", writer.add_node("BatchNormalization", y, *norm))
    # Its bias is large enough for a section of its own.
    y = writer.add_node("Conv", y, writer.add_constant(draw(600, 16, 1, 1) / 4), writer.add_constant(draw(600)))
    y = writer.add_node("Relu", y)
    writer.add_output(y, (1, 600, 6, 6))
    return writer.build_model()


def product_model(op_type: str) -> onnx.ModelProto:
    writer = NetworkWriter(op_type.lower())
    x = writer.add_input("x", (3, 48))
    if op_type == "Gemm":
        constants = (writer.add_constant(draw(32, 48)), writer.add_constant(draw(32)))
        y = writer.add_node("Relu", writer.add_node("Gemm", x, *constants, transB=1))
    else:
        # The load folds nodes that read constants alone.
        turned = writer.add_node("Transpose", writer.add_constant(draw(32, 48)), perm=[1, 0])
        y = writer.add_node("Sigmoid", writer.add_node("Add", writer.add_node("MatMul", x, turned), writer.add_constant(draw(32))))
    writer.add_output(y, (3, 32))
    return writer.build_model()


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, np.ndarray[Any, Any]]]] = {
    "Conv": (conv_model, {"x": draw(1, 8, 6, 6)}),
    "Gemm": (lambda: product_model("Gemm"), {"x": draw(3, 48)}),
    "MatMul": (lambda: product_model("MatMul"), {"x": draw(3, 48)}),
    "Attention": (lambda: encoder_model(2), {"tokens": np.arange(12, dtype=np.int64).reshape(2, 6)}),
}


def export(loaded: Any) -> bytes:
    stream = io.BytesIO()
    loaded.export_network(stream)
    return stream.getvalue()


def size_weights(blob: bytes) -> int:
    """Returns the bytes of all constants that stand outside of the blob's model."""
    return memoryview(read_blob(blob)[1].sections["weights"]).nbytes


@pytest.fixture
def written(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray[Any, Any]]:
    """The host arrays that were written to the first card so far."""
    card, arrays = runtime.cards()[0], []
    write = card.from_host

    def note(array: np.ndarray[Any, Any]) -> Any:
        arrays.append(array)
        return write(array)

    monkeypatch.setattr(card, "from_host", note)
    return arrays


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Network]:
    """The networks that were prepared so far."""
    networks, prepare = [], device_module.prepare_network

    def note(network: Network, **options: Any) -> Network:
        networks.append(network)
        return prepare(network, **options)

    monkeypatch.setattr(device_module, "prepare_network", note)
    return networks


@pytest.mark.parametrize("name", MODELS)
def test_blob_gives_the_same_bits_and_nothing_is_made_again(
    core: Core,
    runtime: FakeRuntime,
    written: list[Any],
    prepared: list[Network],
    name: str,
) -> None:
    build, inputs = MODELS[name]
    loaded = core.load_network(core.read_network(build()), "GPU")
    assert len(prepared) == 1
    expected = loaded.infer(inputs)
    blob = export(loaded)
    written.clear()
    card: FakeCard = runtime.cards()[0]
    before = card.allocations
    again = core.import_network(blob, "GPU")
    assert len(prepared) == 1
    # Each large array is copied to the card directly from the blob.
    memory = np.frombuffer(blob, np.uint8)
    large = [array for array in written if array.nbytes >= 1024]
    assert large
    assert all(np.shares_memory(array, memory) for array in large)
    assert again.get_metric("GPU_WEIGHT_BYTES") == loaded.get_metric("GPU_WEIGHT_BYTES")
    assert card.allocations - before == len(written)
    results = again.infer(inputs)
    assert {value: array.tobytes() for value, array in results.items()} == {
        value: array.tobytes() for value, array in expected.items()
    }


def test_damaged_weights_are_refused_by_section(core: Core) -> None:
    blob = bytearray(export(core.load_network(core.read_network(conv_model()), "GPU")))
    section = bytes(read_blob(bytes(blob))[1].sections["weights"])
    blob[blob.find(section) + 100] ^= 1
    with pytest.raises(BlobDamagedError, match="is damaged: the digest of its section 'weights' differs from its content"):
        core.import_network(bytes(blob), "GPU")


def make_payload(core: Core, runtime: FakeRuntime) -> tuple[GpuDevice, Payload]:
    device = GpuDevice("GPU", runtime)
    return device, device.export_network(GPU, core.load_network(core.read_network(conv_model()), "GPU").executable)


def test_blob_of_another_card_or_library_is_refused(core: Core, runtime: FakeRuntime) -> None:
    _, payload = make_payload(core, runtime)
    for foreign, here in ((FakeRuntime(capability="9.0"), "compute capability 9.0"), (FakeRuntime(version="1"), "make-believe 1")):
        with pytest.raises(BlobMismatchError, match=f"here is .*{here}"):
            GpuDevice("GPU", foreign).import_network(GPU, payload)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_payload_of_an_earlier_version_is_refused(core: Core, runtime: FakeRuntime, version: int) -> None:
    device, payload = make_payload(core, runtime)
    with pytest.raises(BlobMismatchError, match=f"payload has version {version}; the plugin reads 4; load the model again"):
        device.import_network(GPU, replace(payload, version=version))


def test_parts_of_a_split_network_bring_their_weights(core: Core, prepared: list[Network], written: list[Any]) -> None:
    network = core.read_network(conv_model()).with_affinity({"op:Relu": "CPU", "op:Conv": "GPU"})
    loaded = core.load_network(network, "HETERO:GPU,CPU")
    inputs = {"x": draw(1, 8, 6, 6)}
    (expected,) = loaded.infer(inputs).values()
    blob = export(loaded)
    prepared.clear()
    written.clear()
    again = core.import_network(blob, "HETERO:GPU,CPU")
    large = [array for array in written if array.nbytes >= 1024]
    assert (len(prepared), len(large)) == (0, 3)
    assert all(np.shares_memory(array, np.frombuffer(blob, np.uint8)) for array in large)
    (result,) = again.infer(inputs).values()
    assert result.tobytes() == expected.tobytes()
