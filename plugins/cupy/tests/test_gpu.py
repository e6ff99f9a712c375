"""The device on simulated cards: the memory of values, copies, full cards, blobs, metrics."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime

from hetero_core import Core, Extension, Network
from hetero_core.errors import (
    BlobMismatchError,
    DeviceMemoryError,
    InputShapeError,
    InputTypeError,
    MemoryLimitError,
    UnsupportedNodesError,
)

CHAIN = "g (float[4] x) => (float[4] y) { [a] a = Relu (x) [b] b = Exp (a) [c] c = Neg (b) [d] y = Add (c, a) }"
X = np.array([0.5, -1, 2, -3], np.float32)


def compute_chain() -> np.ndarray[Any, Any]:
    positive = np.maximum(X.astype(np.float64), 0)
    return positive - np.exp(positive)


def test_weights_are_written_once_and_runs_copy_at_the_border(
    core: Core, read: Callable[..., Network], runtime: FakeRuntime
) -> None:
    card = runtime.cards()[0]
    loaded = core.load_network(
        read("g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = MatMul (x, w) }"), "GPU"
    )
    assert card.copies == [("from_host", 24)]
    assert loaded.get_metric("GPU_WEIGHT_BYTES") == 24
    request = loaded.create_infer_request()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(2):
        card.copies.clear()
        # Rows 0 1 2 and 3 4 5 times columns 1 3 5 and 2 4 6.
        np.testing.assert_array_equal(request.infer({"x": x})["y"], [[13, 16], [40, 52]])
        assert card.copies == [("from_host", 24), ("to_host", 16)]
    assert [loaded.get_metric(f"GPU_HOST_{way}") for way in ("READS", "READ_BYTES", "WRITES", "WRITTEN_BYTES")] == [0, 0, 0, 0]


def test_inputs_that_only_the_host_reads_never_go_to_the_card(core: Core, read: Callable[..., Network]) -> None:
    loaded = core.load_network(read("g (float[4] x, int64[2] shape) => (float[A,B] y) { y = Reshape (x, shape) }"), "GPU")
    assert [spec.memory for spec in (*loaded.inputs, *loaded.outputs)] == ["ext:0", "host", "ext:0"]
    assert loaded.infer({"x": X, "shape": np.array([2, 2])})["y"].tolist() == [[0.5, -1], [2, -3]]
    assert loaded.get_metric("GPU_HOST_READS") == 0


def test_shapes_are_computed_on_the_host(core: Core, read: Callable[..., Network]) -> None:
    text = """g (float[N,M] x) => (float[A,B] y) <int64[1] one = {1}, int64[1] two = {2}, int64[1] all = {-1}> {
        s = Shape (x) n = Gather (s, one) m = Mul (n, two) k = Concat <axis = 0> (m, all) t = Neg (x) y = Reshape (t, k) }"""
    loaded = core.load_network(read(text), "GPU")
    assert loaded.infer({"x": X.reshape(2, 2)})["y"].tolist() == [[-0.5], [1], [-2], [3]]
    assert loaded.get_metric("GPU_HOST_READS") == 0


def test_length_that_depends_on_values_is_one_counted_read(core: Core, read: Callable[..., Network]) -> None:
    loaded = core.load_network(read("g (float[4] x) => (int64[1,N] y) { a = Relu (x) y = NonZero (a) }"), "GPU")
    assert loaded.infer({"x": X})["y"].tolist() == [[0, 2]]
    assert (loaded.get_metric("GPU_HOST_READS"), loaded.get_metric("GPU_HOST_READ_BYTES")) == (1, 8)


def test_condition_of_an_if_is_read_and_in_the_times(core: Core, read: Callable[..., Network]) -> None:
    text = """g (float[4] x, float[4] limit) => (float[4] y) { all = ReduceMax <keepdims = 0> (x) most = ReduceMax <keepdims = 0> (limit)
        c = Less (all, most) y = If (c) <then_branch = t () => (float[4] p) { p = Neg (x) },
        else_branch = e () => (float[4] q) { q = Abs (x) }> }"""
    request = core.load_network(read(text), "GPU", {"PERF_COUNT": True}).create_infer_request()
    np.testing.assert_array_equal(request.infer({"x": X, "limit": X + 1})["y"], -X)
    transfers = [(entry.node, entry.nbytes) for entry in request.perf_counts if entry.operator == "transfer"]
    assert transfers == [("x", 16), ("limit", 16), ("c", 1), ("y", 16)]


def test_host_computation_is_refused_with_the_reason(core: Core, read: Callable[..., Network]) -> None:
    network = read("g (float[4] x) => (float[N] y) { [n] a = Neg (x) [u] y = Unique (a) }")
    with pytest.raises(UnsupportedNodesError) as caught:
        core.load_network(network, "GPU")
    assert caught.value.refusals == {"u": {"GPU": "Unique-11 is computed on the host; HETERO:GPU,CPU runs it on CPU"}}
    assert core.load_network(network, "HETERO:GPU,CPU").get_metric("HETERO_SUBGRAPHS") == (("GPU", ("n",)), ("CPU", ("u",)))


@pytest.mark.parametrize(
    ("reduction", "dtype", "is_taken"), [("add", "float", True), ("mul", "float", False), ("max", "int64", False)]
)
def test_repeated_writes_need_an_atomic_instruction(
    core: Core, read: Callable[..., Network], reduction: str, dtype: str, is_taken: bool
) -> None:
    operator = f'[s] y = ScatterElements <reduction = "{reduction}"> (x, i, u)'
    text = f"g ({dtype}[4] x, int64[2] i, {dtype}[2] u) => ({dtype}[4] y) {{ {operator} }}"
    refused = core.query_network(read(text), "GPU").refused
    name = {"float": "float32"}.get(dtype, dtype)
    assert refused == (
        {} if is_taken else {"s": f"reduction '{reduction}' of ScatterElements-18 on {name} has no atomic instruction"}
    )


def test_bfloat16_and_texts_are_refused(core: Core, read: Callable[..., Network]) -> None:
    refused = core.query_network(
        read("g (bfloat16[4] x, float[4] z) => (y, c) { [n] y = Neg (x) [c] c = Cast <to = 16> (z) }"), "GPU"
    ).refused
    assert "input 'x' of Neg-13 has dtype bfloat16" in refused["n"]
    assert "Cast-21 makes bfloat16; this device has bool, complex128" in refused["c"]


def test_custom_operator_runs_on_the_host_between_counted_copies(core: Core, read: Callable[..., Network]) -> None:
    kinds: list[type] = []

    def double(x: Any) -> Any:
        kinds.append(type(x))
        return x * 2

    core.add_extension(Extension("com.acme", "Twice", 1, double, lambda types, _: (types[0],)), "GPU")
    loaded = core.load_network(read("g (float[4] x) => (float[4] y) { a = Neg (x) b = com.acme.Twice (a) y = Abs (b) }"), "GPU")
    np.testing.assert_array_equal(loaded.infer({"x": X})["y"], np.abs(2 * X))
    assert kinds == [np.ndarray]
    assert [loaded.get_metric(f"GPU_HOST_{way}") for way in ("READS", "READ_BYTES", "WRITES", "WRITTEN_BYTES")] == [1, 16, 1, 16]


def pin_halves(network: Network) -> Network:
    return network.with_affinity({"a": "D0", "b": "D0", "c": "D1", "d": "D1"})


def test_two_devices_of_one_memory_pass_arrays_untouched(core: Core, read: Callable[..., Network], runtime: FakeRuntime) -> None:
    core.register_plugin("D0", GpuDevice("D0", runtime))
    core.register_plugin("D1", GpuDevice("D1", runtime))
    loaded = core.load_network(pin_halves(read(CHAIN)), "HETERO:D0,D1")
    card = runtime.cards()[0]
    card.copies.clear()
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_chain(), rtol=1e-6)
    assert loaded.get_metric("HETERO_BOUNDARY_TENSORS") == 2
    assert card.copies == [("from_host", 16), ("to_host", 16)]


def test_two_cards_move_each_boundary_value_once(core: Core, read: Callable[..., Network], runtime: FakeRuntime) -> None:
    network = read(CHAIN).with_affinity({"a": "GPU.0", "b": "GPU.0", "c": "GPU.1", "d": "GPU.1"})
    request = core.load_network(network, "HETERO:GPU.0,GPU.1", {"PERF_COUNT": True}).create_infer_request()
    first, second = runtime.cards()
    np.testing.assert_allclose(request.infer({"x": X})["y"], compute_chain(), rtol=1e-6)
    # a and b leave the first card and enter the second.
    assert first.copies == [("from_host", 16), ("to_host", 16), ("to_host", 16)]
    assert second.copies == [("from_host", 16), ("from_host", 16), ("to_host", 16)]
    transfers = sorted((entry.node, entry.source, entry.targets) for entry in request.perf_counts if entry.operator == "transfer")
    assert transfers == [
        ("a", "GPU.0", ("GPU.1",)),
        ("b", "GPU.0", ("GPU.1",)),
        ("x", "host", ("GPU.0",)),
        ("y", "GPU.1", ("host",)),
    ]


def test_array_on_the_card_is_taken_as_it_is(core: Core, read: Callable[..., Network], runtime: FakeRuntime) -> None:
    card = runtime.cards()[0]
    loaded = core.load_network(read(CHAIN), "GPU", {"PERF_COUNT": True})
    x = card.from_host(X)
    card.copies.clear()
    request = loaded.create_infer_request()
    np.testing.assert_allclose(request.infer({"x": x})["y"], compute_chain(), rtol=1e-6)
    assert card.copies == [("to_host", 16)]
    assert [entry.node for entry in request.perf_counts if entry.operator == "transfer"] == ["y"]
    with pytest.raises(InputTypeError, match="input 'x' of network 'g': expected float32, got float64"):
        loaded.infer({"x": card.from_host(X.astype(np.float64))})
    with pytest.raises(InputShapeError, match=r"input 'x' of network 'g': expected shape \[4\], got \[2, 2\]"):
        loaded.infer({"x": card.from_host(X.reshape(2, 2))})


def test_weights_that_do_not_fit_are_an_error_at_load(read: Callable[..., Network]) -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] v = {1, 2}> { a = Add (x, w) y = Mul (a, v) }"
    with Core() as core:
        core.register_plugin("SMALL", GpuDevice("SMALL", FakeRuntime(memory_bytes=12)))
        with pytest.raises(
            DeviceMemoryError,
            match="network 'g' on SMALL: 8 bytes more were needed while the weights were written, .* of 12 are free on",
        ) as caught:
            core.load_network(read(text), "SMALL")
    assert caught.value.needed == 8


def test_run_that_does_not_fit_is_an_error_and_the_card_goes_on(read: Callable[..., Network]) -> None:
    runtime = FakeRuntime(memory_bytes=1000)
    with Core() as core:
        core.register_plugin("SMALL", GpuDevice("SMALL", runtime))
        loaded = core.load_network(read("g (float[N] x) => (float[N] y) { a = Exp (x) b = Neg (a) y = Add (b, a) }"), "SMALL")
        request = loaded.create_infer_request()
        for _ in range(2):
            with pytest.raises(DeviceMemoryError, match=r"network 'g' on SMALL: 400 bytes more were needed while it ran") as caught:
                request.infer({"x": np.zeros(100, np.float32)})
            assert caught.value.needed == 400
            assert any("while running node" in note for note in caught.value.__notes__)
            del caught
            np.testing.assert_array_equal(request.infer({"x": np.zeros(20, np.float32)})["y"], np.zeros(20))
        assert runtime.cards()[0].used_bytes < 1000


def test_export_comes_back_on_the_same_kind_of_card_only(core: Core, read: Callable[..., Network]) -> None:
    blob = io.BytesIO()
    core.load_network(read(CHAIN), "GPU").export_network(blob)
    blob.seek(0)
    np.testing.assert_allclose(core.import_network(blob, "GPU").infer({"x": X})["y"], compute_chain(), rtol=1e-6)
    runtime_of_message = {
        "for the architecture 'compute capability 0.0', and GPU has 'compute capability 9.0'": FakeRuntime(capability="9.0"),
        "was exported with library make-believe 0, .* here is library make-believe 1, ": FakeRuntime(version="1"),
    }
    for message, runtime in runtime_of_message.items():
        core.unregister_plugin("GPU")
        core.register_plugin("GPU", GpuDevice("GPU", runtime))
        blob.seek(0)
        with pytest.raises(BlobMismatchError, match=message):
            core.import_network(blob, "GPU")


def test_metrics_tell_the_card(core: Core) -> None:
    expected = {
        "FULL_DEVICE_NAME": "card of make-believe 1 with make-believe 0",
        "DEVICE_ARCHITECTURE": "compute capability 0.0",
        "GPU_COMPUTE_CAPABILITY": "0.0",
        "GPU_UTILISATION": -1,
    }
    assert {name: core.get_metric("GPU.1", name) for name in expected} == expected
    assert core.get_metric("GPU", "GPU_FREE_MEMORY_BYTES") > 0


def test_reference_page_names_every_metric(core: Core, read: Callable[..., Network]) -> None:
    reference = Path(__file__).parents[3] / "docs" / "reference"
    metrics = (*core.get_metric("GPU", "SUPPORTED_METRICS"), *core.load_network(read(CHAIN), "GPU").get_metric("SUPPORTED_METRICS"))
    assert [name for name in metrics if f"`{name}`" not in (reference / "metrics.md").read_text()] == []


def test_memory_limit_holds_on_a_card(core: Core, read: Callable[..., Network]) -> None:
    text = "g (float[4] x, int64[1] n) => (float[M] y) { a = Neg (x) [tile] y = Tile (a, n) }"
    loaded = core.load_network(read(text), "GPU", {"MEMORY_LIMIT": 1000})
    assert loaded.infer({"x": X, "n": np.array([2])})["y"].tolist() == [*-X, *-X]
    with pytest.raises(MemoryLimitError, match="node 'tile' .* needs 16000000 bytes"):
        loaded.infer({"x": X, "n": np.array([10**6])})
