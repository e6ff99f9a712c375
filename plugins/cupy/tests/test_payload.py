"""Blobs of GPU: the weights as the card has them, written there as they lie in the blob; what does not fit is refused."""

from __future__ import annotations

import gc
import io
import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hetero_cupy.device as device_module
import numpy as np
import onnx
import pytest
from hetero_cupy.device import GpuDevice
from hetero_cupy.passes import prepare_network
from hetero_cupy.payload import WEIGHTS
from hetero_tests.fake_runtime import FakeCard, FakeRuntime
from hetero_tests.network_writer import NetworkWriter

from hetero_core import Core, DeviceName, Network
from hetero_core.blobs.container import read_blob
from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError, BlobMismatchError
from hetero_core.network.writer import pack_network
from hetero_core.testing.transformers import encoder_model

HINT = "INFERENCE_PRECISION_HINT"
GPU = DeviceName("GPU", "", "")
DEFAULTS = {HINT: "f32"}


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
        # What is made of constants alone is made once, by whoever loads the model.
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


def size_sections(blob: bytes) -> int:
    """Returns the bytes of all constants that stand in a section of their own."""
    return sum(memoryview(section).nbytes for name, section in read_blob(blob)[1].sections.items() if name.startswith("weights/"))


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
    """The networks whose weights were made anew so far."""
    networks, prepare = [], device_module.prepare_network

    def note(network: Network, **options: Any) -> Network:
        networks.append(network)
        return prepare(network, **options)

    monkeypatch.setattr(device_module, "prepare_network", note)
    return networks


@pytest.mark.parametrize("hint", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_blob_gives_the_same_bits_and_nothing_is_made_again(
    core: Core,
    runtime: FakeRuntime,
    written: list[Any],
    prepared: list[Network],
    name: str,
    hint: str,
) -> None:
    build, inputs = MODELS[name]
    config = {HINT: hint}
    loaded = core.load_network(core.read_network(build()), "GPU", config)
    assert len(prepared) == 1
    expected = loaded.infer(inputs)
    blob = export(loaded)
    written.clear()
    card: FakeCard = runtime.cards()[0]
    products, before = len(card.products), card.allocations
    again = core.import_network(blob, "GPU")
    assert len(prepared) == 1
    # Each large array goes to the card as it lies in the blob, and no product is computed on the way.
    memory = np.frombuffer(blob, np.uint8)
    large = [array for array in written if array.nbytes >= 1024]
    assert large
    assert all(np.shares_memory(array, memory) for array in large)
    assert sum(array.nbytes for array in large) == size_sections(blob)
    assert again.get_metric("GPU_WEIGHT_BYTES") == loaded.get_metric("GPU_WEIGHT_BYTES")
    assert len(card.products) == products
    assert card.allocations - before == len(written)
    found = again.infer(inputs)
    assert {value: array.dtype for value, array in found.items()} == {value: array.dtype for value, array in expected.items()}
    assert {value: array.tobytes() for value, array in found.items()} == {
        value: array.tobytes() for value, array in expected.items()
    }


@pytest.mark.parametrize("hint", ["f32", "f16"])
def test_weights_are_read_back_once_and_counted(core: Core, runtime: FakeRuntime, hint: str) -> None:
    loaded = core.load_network(core.read_network(conv_model()), "GPU", {HINT: hint})
    card = runtime.cards()[0]
    assert loaded.get_metric("GPU_WEIGHT_READS") == 0
    before = len(card.copies)
    blob = export(loaded)
    # Two convolutions and one bias; the other one is smaller than a KiB, and stays on the host.
    nbytes = [size * (2 if hint == "f16" else 4) for size in (16 * 8 * 9, 600 * 16, 600)]
    assert sorted(card.copies[before:]) == sorted(("to_host", size) for size in nbytes)
    assert loaded.get_metric("GPU_WEIGHT_READS") == 3
    assert loaded.get_metric("GPU_WEIGHT_READ_BYTES") == sum(nbytes) == size_sections(blob)
    assert loaded.get_metric("GPU_HOST_READS") == 0
    # Nothing is kept on the host in between.
    export(loaded)
    assert loaded.get_metric("GPU_WEIGHT_READS") == 6
    # What came from a blob has it still: nothing is read, and the same is written, but for types of constants that were folded.
    again = core.import_network(blob, "GPU")
    before = len(card.copies)
    sections = [read_blob(one)[1].sections for one in (blob, export(again))]
    assert card.copies[before:] == []
    first, second = ({name: bytes(section) for name, section in one.items() if name != "model"} for one in sections)
    assert first == second


def test_host_lets_go_of_weights_that_are_on_the_card(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[Any]] = []
    prepare = device_module.prepare_network

    def note(network: Network, **options: Any) -> Network:
        found = prepare(network, **options)
        held.extend(weakref.ref(constant.array.base) for constant in found.initializers.values() if constant.nbytes >= 1024)
        return found

    monkeypatch.setattr(device_module, "prepare_network", note)
    loaded = core.load_network(core.read_network(conv_model()), "GPU", {HINT: "f16"})
    gc.collect()
    assert len(held) == 3
    assert [array() for array in held] == [None] * 3
    constants = [constant for constant in loaded.executable.network.initializers.values() if constant.nbytes >= 1024]
    assert [constant.is_renewable for constant in constants] == [True] * 3
    assert [constant.array.shape for constant in constants] == [constant.shape for constant in constants]


def test_prepared_numbers_are_those_that_a_blob_holds(core: Core) -> None:
    network = core.read_network(product_model("Gemm"))
    gemm, relu = network.nodes
    exact = replace(network, nodes=(replace(gemm, attributes={**gemm.attributes, "alpha": 0.1}), relu))
    alpha = prepare_network(exact, precision="f32").nodes[0].attributes["alpha"]
    assert alpha == float(np.float32(0.1)) != 0.1


def test_blob_in_16_bits_is_half_as_large(core: Core) -> None:
    network = core.read_network(encoder_model(2))
    sizes = {hint: size_sections(export(core.load_network(network, "GPU", {HINT: hint}))) for hint in ("f32", "f16", "bf16")}
    assert 2 * sizes["f16"] == 2 * sizes["bf16"] == sizes["f32"]


def test_index_says_type_and_layout_of_each_section(core: Core) -> None:
    loaded = core.load_network(core.read_network(conv_model()), "GPU", {HINT: "bf16"})
    sections = read_blob(export(loaded))[1].sections
    index = json.loads(bytes(sections[WEIGHTS]))
    assert index["recipe"] == {"precision": "bfloat16", "attention": False}
    rows = [(row["section"], row["dtype"], row["shape"], row["layout"]) for row in index["constants"]]
    assert rows == [
        ("weights/0", "bfloat16", [16, 8, 3, 3], "C"),
        ("weights/1", "bfloat16", [600, 16, 1, 1], "C"),
        ("weights/2", "bfloat16", [600], "C"),
    ]


def test_damaged_section_is_refused_by_name(core: Core) -> None:
    blob = bytearray(export(core.load_network(core.read_network(conv_model()), "GPU", {HINT: "f16"})))
    section = bytes(read_blob(bytes(blob))[1].sections["weights/1"])
    blob[blob.find(section) + 100] ^= 1
    with pytest.raises(BlobDamagedError, match="is damaged: the digest of its section 'weights/1' differs from its content"):
        core.import_network(bytes(blob), "GPU")


def make_payload(core: Core, runtime: FakeRuntime) -> tuple[GpuDevice, Payload]:
    device = GpuDevice("GPU", runtime)
    return device, device.export_network(GPU, core.load_network(core.read_network(conv_model()), "GPU").executable)


def change_index(payload: Payload, change: Callable[[dict[str, Any]], Any]) -> Payload:
    index = json.loads(bytes(payload.sections[WEIGHTS]))
    change(index)
    return replace(payload, sections={**payload.sections, WEIGHTS: json.dumps(index).encode()})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda index: index.pop("constants"), "its section 'gpu weights' cannot be read: KeyError: 'constants'"),
        (
            lambda index: index["constants"][0].update(layout="F"),
            r"'weights/0' is said to hold float32\[600, 16, 1, 1\] in layout 'F'",
        ),
        (lambda index: index["constants"][0].update(dtype="float7"), r"'weights/0' is said to hold float7\[600, 16, 1, 1\]"),
        (lambda index: index["constants"][0].update(shape=[32, 8]), r"'weights/0' has 38400 bytes; float32\[32, 8\] takes 1024"),
        (lambda index: index["constants"][0].update(section="weights/7"), "section 'weights/7' is missing"),
        (
            lambda index: index["constants"].pop(),
            r"initializer 'batchnormalization_1/weight' at place 40832 takes 4608 bytes, for which there are 0",
        ),
        (lambda index: index["constants"][0].update(dtype="int32"), r"is int32\[600, 16, 1, 1\], of which the model says float32"),
    ],
)
def test_index_that_contradicts_its_sections_is_refused(
    core: Core, runtime: FakeRuntime, change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    device, payload = make_payload(core, runtime)
    with pytest.raises(BlobDamagedError, match=f"cannot import the blob on GPU: .*{reason}.*export the network again"):
        device.import_network(GPU, change_index(payload, change), DEFAULTS)


def test_section_that_was_cut_is_refused(core: Core, runtime: FakeRuntime) -> None:
    device, payload = make_payload(core, runtime)
    cut = replace(payload, sections={**payload.sections, "weights/1": bytes(payload.sections["weights/1"])[:-4]})
    with pytest.raises(BlobDamagedError, match=r"section 'weights/1' has 2396 bytes; float32\[600\] takes 2400"):
        device.import_network(GPU, cut, DEFAULTS)


def test_weights_that_were_prepared_for_other_keys_are_refused(core: Core, runtime: FakeRuntime) -> None:
    blob = export(core.load_network(core.read_network(conv_model()), "GPU"))
    with pytest.raises(BlobMismatchError, match=HINT):
        core.import_network(blob, "GPU", {HINT: "f16"})
    device, payload = make_payload(core, runtime)
    with pytest.raises(
        BlobMismatchError, match="prepared for precision float32, attention False, here they are needed for precision float16"
    ):
        device.import_network(GPU, payload, {**DEFAULTS, HINT: "f16"})


def test_blob_of_another_card_or_library_is_refused(core: Core, runtime: FakeRuntime) -> None:
    _, payload = make_payload(core, runtime)
    for other, here in ((FakeRuntime(capability="9.0"), "compute capability 9.0"), (FakeRuntime(version="1"), "make-believe 1")):
        with pytest.raises(BlobMismatchError, match=f"here is .*{here}"):
            GpuDevice("GPU", other).import_network(GPU, payload, DEFAULTS)


def test_payload_of_version_1_is_prepared_again(core: Core, runtime: FakeRuntime, prepared: list[Network]) -> None:
    network = core.read_network(conv_model())
    loaded = core.load_network(network, "GPU", {HINT: "f16"})
    payload = read_blob(export(loaded))[1]
    old = Payload({**pack_network(network), "gpu identity": payload.sections["gpu identity"], "gpu arena": b"[]"}, 1)
    prepared.clear()
    keys = {key: value.default for key, value in core.config_keys("GPU").items()}
    executable = GpuDevice("GPU", runtime).import_network(GPU, old, {**keys, HINT: "f16"})
    assert len(prepared) == 1
    assert executable.metrics()["GPU_WEIGHT_BYTES"] == loaded.get_metric("GPU_WEIGHT_BYTES")


def test_parts_of_a_split_network_bring_their_weights(core: Core, prepared: list[Network], written: list[Any]) -> None:
    network = core.read_network(conv_model()).with_affinity({"op:Relu": "CPU", "op:Conv": "GPU"})
    loaded = core.load_network(network, "HETERO:GPU,CPU", {"DEVICE_PROPERTIES": {"GPU": {HINT: "f16"}}})
    inputs = {"x": draw(1, 8, 6, 6)}
    (expected,) = loaded.infer(inputs).values()
    blob = export(loaded)
    prepared.clear()
    written.clear()
    again = core.import_network(blob, "HETERO:GPU,CPU")
    large = [array for array in written if array.nbytes >= 1024]
    assert (len(prepared), len(large)) == (0, 3)
    assert all(np.shares_memory(array, np.frombuffer(blob, np.uint8)) for array in large)
    (found,) = again.infer(inputs).values()
    assert found.tobytes() == expected.tobytes()
