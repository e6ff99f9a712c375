"""OPENVINO: arrays of every kind, outputs that are inputs, threads, blobs, profiles, and a graph shared with devices in Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_tests.engine_blobs import check_engine_blob

from hetero_core import Core, Network
from hetero_core.errors import (
    DeviceNotFoundError,
    InferenceError,
    LoadError,
    NetworkDeclarationWarning,
)
from hetero_core.testing.backend_cases import iterate_backend_cases

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

Read = Callable[..., Network]


def test_plain_name_is_the_cpu_device_and_its_id_says_so(core: Core) -> None:
    assert core.get_metric("OPENVINO", "AVAILABLE_DEVICES")[0] == "CPU"
    assert "with OpenVINO 202" in core.get_metric("OPENVINO.CPU", "FULL_DEVICE_NAME")
    with pytest.raises(DeviceNotFoundError, match=r"device OPENVINO has no id 'NONE'; its ids are CPU"):
        core.get_metric("OPENVINO.NONE", "FULL_DEVICE_NAME")


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        ("double", "'x' is float64, which OpenVINO computes in float32"),
        ("string", "'x' is string, which OpenVINO does not take or give as an array"),
    ],
)
def test_element_type_narrowed_or_unknown_is_refused(core: Core, read: Read, dtype: str, reason: str) -> None:
    network = read(f"g ({dtype}[2] x) => ({dtype}[2] y) {{ y = Identity(x) }}")
    assert core.query_network(network, "OPENVINO").refused["Identity_0"] == reason


@pytest.mark.parametrize("opset", [1, 13, 18, 26, 28])
def test_equal_versions_are_stamped_into_an_opset_of_the_engine(core: Core, read: Read, opset: int) -> None:
    network = read("g (float[3] x) => (float[3] y) { a = Softplus(x) y = Identity(a) }", opset)
    with core.load_network(network, "OPENVINO") as loaded:
        x = np.array([-1, 0, 2], np.float32)
        np.testing.assert_allclose(loaded.infer({"x": x})["y"], np.log1p(np.exp(x.astype(np.float64))), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "dtype", "values"),
    [
        ("float16", np.float16, [1.5, -2, 0.25]),
        ("bool", np.bool_, [True, False, True]),
        ("uint32", np.uint32, [0, 2**32 - 1, 7]),
        ("int64", np.int64, [1 - 2**31, 2**31 - 1, 7]),
        ("bfloat16", ml_dtypes.bfloat16, [1.5, -2, 0.25]),
    ],
)
@pytest.mark.parametrize("size", ["3", "N"])
@pytest.mark.parametrize("is_read_only", [False, True])
def test_values_of_a_type_come_back_as_they_went_in(
    core: Core, name: str, dtype: Any, values: list[Any], size: str, is_read_only: bool
) -> None:
    text = f'<ir_version: 12, opset_import: ["": 24]> g ({name}[{size}] x) => ({name}[{size}] y) {{ y = Identity(x) }}'
    x = np.array(values, dtype)
    x.setflags(write=not is_read_only)
    with core.load_network(onnx.parser.parse_model(text), "OPENVINO") as loaded:
        answer = loaded.infer({"x": x})["y"]
    assert answer.dtype == x.dtype
    assert answer.tolist() == x.tolist()
    assert not np.shares_memory(answer, x)


def test_input_that_is_empty_and_read_only_is_taken(core: Core, read: Read) -> None:
    x = np.zeros((0, 3), np.float32)
    x.setflags(write=False)
    answer = core.load_network(read("g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }"), "OPENVINO").infer({"x": x})["y"]
    assert answer.shape == (0, 3)


@pytest.mark.parametrize("dtype", [np.longlong, np.ulonglong])
def test_integers_under_their_second_name_are_taken(core: Core, read: Read, dtype: Any) -> None:
    name = np.dtype(dtype).name
    loaded = core.load_network(read(f"g ({name}[2] x) => ({name}[4] y) {{ y = Concat<axis = 0>(x, x) }}"), "OPENVINO")
    assert loaded.infer({"x": np.array([1, 2], dtype)})["y"].tolist() == [1, 2, 1, 2]


PASSING = """g (float[4] x, float[4] z, float[4] unread) => (float[4] dropped, float[4] relu, float[4] copied, float[4] largest)
{ dropped = Dropout(x) relu = Relu(z) copied = Identity(x) largest = Max(x) }"""


def test_outputs_that_are_inputs_are_copies_of_them(core: Core, read: Read) -> None:
    loaded = core.load_network(read(PASSING), "OPENVINO")
    for x in (np.array([1, -2, 3, -4], np.float32), np.array([5, 6, 7, 8], np.float32)):
        answer = loaded.infer({"x": x, "z": -x, "unread": np.zeros(4, np.float32)})
        for name in ("dropped", "copied", "largest"):
            assert answer[name].tolist() == x.tolist()
            assert not np.shares_memory(answer[name], x)
        assert answer["relu"].tolist() == np.maximum(-x, 0).tolist()


def test_network_of_nothing_but_passed_inputs_needs_no_engine(core: Core, read: Read) -> None:
    loaded = core.load_network(
        read("g (float[N] x) => (float[N] y, float[N] z) { y = Dropout(x) a = Sum(x) z = Min(a) }"), "OPENVINO"
    )
    answer = loaded.infer({"x": np.arange(3, dtype=np.float32)})
    assert answer["y"].tolist() == answer["z"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("size", "copied"), [(4096, 2 * 16384), (4097, 0)], ids=["small", "large"])
def test_small_arrays_are_copied_and_counted(core: Core, read: Read, size: int, copied: int) -> None:
    loaded = core.load_network(read(f"g (float[{size}] x) => (float[{size}] y) {{ y = Neg(x) }}"), "OPENVINO")
    assert loaded.get_metric("OPENVINO_COPIED_BYTES") == copied
    x = np.arange(size, dtype=np.float32)
    first = loaded.infer({"x": x})["y"]
    second = loaded.infer({"x": x + 1})["y"]
    assert first.tolist() == (-x).tolist()
    assert second.tolist() == (-x - 1).tolist()
    request, mine = loaded.create_infer_request(), np.zeros(size, np.float32)
    request.set_tensor("y", mine)
    assert request.infer({"x": x})["y"] is mine
    assert mine.tolist() == (-x).tolist()


@pytest.mark.parametrize(
    ("text", "dtype", "limit", "words"),
    [
        ("y = Neg(x)", "int64", 2**31 - 1, "int32, exact up to 2147483647"),
        ("b = Equal(x, x) y = Where(b, x, x)", "int64", 2**24, "float32, exact up to 16777216"),
        ("a = Abs(x) y = Trilu(a)", "int32", 2**24, "float32, exact up to 16777216"),
    ],
)
def test_integers_beyond_the_limit_are_computed_by_numpy(
    core: Core, read: Read, text: str, dtype: str, limit: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    network = read(f"g ({dtype}[1,2] x) => ({dtype}[1,2] y) {{ {text} }}")
    loaded, expected = core.load_network(network, "OPENVINO"), core.load_network(network, "CPU")
    for largest in (limit, limit + 1):
        x = np.array([[-3, largest]], dtype)
        mine = np.zeros_like(x)
        request = loaded.create_infer_request()
        request.set_tensor("y", mine)
        assert request.infer({"x": x})["y"] is mine
        assert mine.tolist() == expected.infer({"x": x})["y"].tolist()
    (warning,) = caplog.messages
    assert re.search(rf"input 'x' has {dtype} values from -3 to {limit + 1}; .* in {words}", warning)


def test_sizes_compared_beside_large_integers_are_taken(core: Core, read: Read) -> None:
    network = read("g (int64[2] x, int64[2] k) => (int64[2] y, bool[2] z) { s = Shape(x) y = Neg(x) z = Less(k, s) }")
    answer = core.load_network(network, "OPENVINO").infer({"x": np.array([2**30, 5]), "k": np.array([1, 3])})
    assert answer["y"].tolist() == [-(2**30), -5]
    assert answer["z"].tolist() == [True, False]


def test_profile_names_the_nodes_of_the_model_and_fused_nodes(core: Core, read: Read) -> None:
    text = "g (float[64,64] x) => (float[64,64] y) { [m] a = MatMul(x, x) [s] b = Sigmoid(a) [e] c = Exp(b) [p] y = Softmax(c) }"
    request = core.load_network(read(text), "OPENVINO", {"PERF_COUNT": True}).create_infer_request()
    for _ in range(2):
        request.infer({"x": np.zeros((64, 64), np.float32)})
        entries = [entry for entry in request.perf_counts if entry.operator != "transfer"]
        named = [name for entry in entries for name in entry.node.split(" + ") if name in "msep"]
        assert sorted(named) == ["e", "m", "p", "s"]
        assert all(entry.seconds >= 0 and entry.device == "OPENVINO" for entry in entries)


def test_times_of_a_short_run_behind_a_long_one_are_its_own(core: Core, read: Read) -> None:
    # The engine reports means over all runs so far, in which the long run outweighs the short runs.
    network = read("g (float[N,256] x, float[256,256] w) => (float[N,256] y) { y = MatMul(x, w) }")
    request = core.load_network(network, "OPENVINO", {"PERF_COUNT": True}).create_infer_request()
    w = np.ones((256, 256), np.float32)
    request.infer({"x": np.ones((4096, 256), np.float32), "w": w})
    for _ in range(3):
        began = perf_counter()
        request.infer({"x": np.ones((1, 256), np.float32), "w": w})
        took = perf_counter() - began
        assert 0 < sum(entry.seconds for entry in request.perf_counts) <= took


def test_profile_of_a_part_names_its_nodes_in_a_whole_profile(core: Core, read: Read, tmp_path: Path) -> None:
    network = read("g (float[64,64] x) => (float[64,64] y) { [m] a = MatMul(x, x) [s] y = Sigmoid(a) }")
    device = "HETERO:OPENVINO,CPU"
    loaded = core.load_network(network.with_affinity({"m": "OPENVINO", "s": "CPU"}), device, {"PERF_COUNT": True})
    core.load_network(network.with_affinity({"m": "OPENVINO", "s": "CPU"}), device).export_network(tmp_path / "h.blob")
    for each in (loaded, core.import_network(tmp_path / "h.blob", "HETERO", {"PERF_COUNT": True})):
        request = each.create_infer_request()
        request.infer({"x": np.zeros((64, 64), np.float32)})
        answer = [(entry.node, entry.device) for entry in request.perf_counts if entry.operator != "transfer"]
        assert [entry for entry in answer if entry[0] in ("m", "s")] == [("m", "OPENVINO"), ("s", "CPU")]


@pytest.mark.parametrize(("config", "threads", "streams"), [({}, 1, 1), ({"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 2}, 1, 2)])
def test_configured_threads_and_streams_reach_the_engine(
    core: Core, read: Read, config: dict[str, Any], threads: int, streams: int
) -> None:
    if streams > core.get_config("OPENVINO", "INFERENCE_NUM_THREADS"):
        pytest.skip("one processor")
    config = {"INFERENCE_NUM_THREADS": threads * streams, **config}
    loaded = core.load_network(read("g (float[2] x) => (float[2] y) { y = Neg(x) }"), "OPENVINO", config)
    assert loaded.get_metric("OPENVINO_STREAMS") == streams
    assert loaded.get_metric("OPENVINO_THREADS") == threads * streams


def test_blob_gives_the_same_numbers_and_another_engine_compiles(core: Core, tmp_path: Path) -> None:
    check_engine_blob(core, "OPENVINO", "OpenVINO", tmp_path)


def test_model_too_large_for_a_message_goes_through_a_file(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    from hetero_openvino import conversion

    weights = np.arange(4096, dtype=np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4096] x) => (float[4096] y) { y = Add(x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    network = core.read_network(model)
    monkeypatch.setattr(conversion, "_LARGEST_IN_MEMORY", 1000)
    monkeypatch.setattr(conversion, "network_to_bytes", None)  # it would fail at 2 GiB
    loaded = core.load_network(network, "OPENVINO")
    assert loaded.infer({"x": np.ones(4096, np.float32)})["y"].tolist() == (weights + 1).tolist()


def test_error_of_a_run_is_an_inference_error_and_the_next_works(core: Core, read: Read) -> None:
    loaded = core.load_network(read("g (float[N] x, float[M] z) => (float[K] y) { y = Add(x, z) }"), "OPENVINO")
    with pytest.raises(InferenceError, match="Eltwise shape infer input shapes dim index: 0 mismatch"):
        loaded.infer({"x": np.ones(4, np.float32), "z": np.ones(3, np.float32)})
    assert loaded.infer({"x": np.ones(4, np.float32), "z": np.ones(1, np.float32)})["y"].tolist() == [2, 2, 2, 2]


def test_error_of_the_engine_at_load_has_its_words(core: Core, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    from hetero_openvino import device

    monkeypatch.setattr(device, "_translate", lambda config, name: {"NO_SUCH_PROPERTY": 1})
    with pytest.raises(LoadError, match=r"OpenVINO \S+ cannot load network 'g' on CPU: .*NO_SUCH_PROPERTY"):
        core.load_network(read("g (float[2] x) => (float[2] y) { y = Neg(x) }"), "OPENVINO")


@pytest.mark.parametrize("dtype", ["int4", "float8e4m3fn"])
def test_types_of_stored_constants_are_not_taken_as_inputs(core: Core, dtype: str) -> None:
    text = f'<ir_version: 12, opset_import: ["": 24]> g ({dtype}[N] x) => (float[N] y) {{ y = Cast <to = 1> (x) }}'
    (reason,) = core.query_network(core.read_network(onnx.parser.parse_model(text)), "OPENVINO").refused.values()
    assert reason == f"'x' is {dtype}, which OpenVINO does not take or give as an array"


def test_logits_of_squeezenet_of_the_suite_are_right(core: Core) -> None:
    """The case ends before the softmax, since the rounding of the logits would decide its result."""
    case = next(iterate_backend_cases("^test_squeezenet$", kinds=("real",)))
    (((value,), (expected,)),) = case.runs
    network = core.load_network(case.model, "OPENVINO")
    (logits,) = network.infer({network.inputs[0].name: value}).values()
    np.testing.assert_allclose(logits, expected, rtol=1e-5)


def test_elementwise_outputs_of_several_shapes_are_right(core: Core, read: Read) -> None:
    """OpenVINO 2026.4 fuses these nodes, and the group is wrong in some of ten loads, depending on the addresses of the arrays."""
    network = read(
        "g (float[4,6] b, float[2,3,4,6] q) => (float[4,6] c, float[2,3,4,6] s, float[4,1] m) "
        "{ i = Identity(b) c = Cast <to = 1> (i) d = Cast <to = 1> (q) a = Add(d, c) s = Softmax(a) m = ReduceMax <axes = [1]> (c) }"
    )
    generator = np.random.default_rng(0)
    inputs = {"b": np.zeros((4, 6), np.float32), "q": generator.random((2, 3, 4, 6)).astype(np.float32)}
    expected = core.load_network(network, "CPU").infer(inputs)
    for offset in range(0, 64, 4):
        moved = {}
        for name, value in inputs.items():
            raw = np.zeros(value.nbytes + 128, np.uint8)
            start = -raw.ctypes.data % 64 + offset
            moved[name] = raw[start : start + value.nbytes].view(np.float32).reshape(value.shape)
            moved[name][...] = value
        with core.load_network(network, "OPENVINO") as loaded:
            for name, value in loaded.infer(moved).items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=f"{name} at {offset}")


def test_axes_of_a_length_that_is_only_declared_are_refused(core: Core, read: Read) -> None:
    """The engine converts no reduction over axes of unknown length, and a declared length is no proof."""
    network = read(
        "g (float[3,4] x, int64 first) => (float[3,1] y) <int64 two = {2}, int64 one = {1}, int64[1] a> "
        "{ a = Range(first, two, one) y = ReduceMean <keepdims = 1> (x, a) }",
        18,
    )
    assert "reduction_axes" in core.query_network(network, "OPENVINO").refused["ReduceMean_1"]
    loaded = core.load_network(network, "HETERO:OPENVINO,CPU")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert loaded.infer({"x": x, "first": np.array(1)})["y"].tolist() == [[1.5], [5.5], [9.5]]
    with pytest.warns(NetworkDeclarationWarning):
        assert loaded.infer({"x": x, "first": np.array(0)})["y"].tolist() == [[5.5]]
