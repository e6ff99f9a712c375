"""ORT: queries, arrays of every kind, blobs, profiles, and a graph split between ORT and devices in Python."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_onnxruntime import probing
from hetero_onnxruntime.engine import OrtEngine, open_session
from hetero_tests.engine_blobs import check_engine_blob

from hetero_core import Core, Network
from hetero_core.errors import DeviceNotFoundError, InferenceError
from hetero_core.network.initializers import Initializer

Read = Callable[..., Network]


@pytest.fixture
def read(core: Core) -> Read:
    def read_text(text: str, opset: int = 17) -> Network:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "com.acme": 1]> {text}')
        return core.read_network(model)

    return read_text


def test_plain_name_is_the_cpu_provider_and_its_id_says_so(core: Core) -> None:
    assert core.get_metric("ORT", "AVAILABLE_DEVICES")[0] == "CPU"
    assert "CPU provider" in core.get_metric("ORT.CPU", "FULL_DEVICE_NAME")
    with pytest.raises(DeviceNotFoundError, match=r"device ORT has no id 'CUDA'; its ids are CPU"):
        core.get_metric("ORT.CUDA", "FULL_DEVICE_NAME") and core.load_network("model.onnx", "ORT.CUDA")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (int64[2, 3] x) => (int64[1, 1] y) { y = ReduceLogSumExp (x) }", "exponentials that are cut to integers"),
        ("g (bool x) => (int64[a, b] y) { y = NonZero (x) }", "one coordinate in NonZero"),
    ],
)
def test_nonstandard_computation_of_the_engine_is_refused(core: Core, read: Read, text: str, reason: str) -> None:
    (refusal,) = core.query_network(read(text), "ORT").refused.values()
    assert reason in refusal


def test_absent_input_at_the_end_does_not_end_the_process(core: Core, read: Read) -> None:
    """ONNX Runtime 1.32 dies of SIGSEGV if it loads this model unchanged."""
    network = read(
        "g (float[2, 3, 4] x, float[3, 4] w) => (float[2, 3, 4] y, float[2, 1, 1] m, float[2, 1, 1] i) "
        '{ y, m, i = LayerNormalization <axis = -2> (x, w, "") }'
    )
    x, w = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.ones((3, 4), np.float32)
    outputs = core.load_network(network, "ORT").infer({"x": x, "w": w})
    np.testing.assert_allclose(outputs["m"].reshape(-1), x.reshape(2, -1).mean(axis=1), rtol=1e-6)


def test_log_sum_exp_of_floats_and_places_of_vectors_are_taken(core: Core, read: Read) -> None:
    network = read("g (float[2, 3] x) => (float[1, 1] y, int64[a, b] z) { y = ReduceLogSumExp (x)  z = NonZero (x) }")
    assert not core.query_network(network, "ORT").refused


@pytest.mark.parametrize("operator", ["Cast <to = 12, saturate = 2> (x)", "CastLike <saturate = 2147483648> (x, z)"])
def test_cast_with_nonstandard_saturate_is_refused(core: Core, read: Read, operator: str) -> None:
    """The engine leaves the result unwritten, with arbitrary memory content."""
    network = read(f"g (float[1] x, uint32[1] z) => (uint32[1] y, uint32[1] n) {{ n = Identity (z) y = {operator} }}", 21)
    (reason,) = core.query_network(network, "ORT").refused.values()
    assert "returns memory that it has not written from a Cast" in reason


def test_element_type_without_kernel_is_refused_with_versions(core: Core, read: Read) -> None:
    network = read("g (int16[2] x) => (int16[2] y) { y = Min(x, x) }")
    assert (
        "has no CPUExecutionProvider kernel for Min-13 on (int16[2], int16[2]); it has kernels for versions"
        in (core.query_network(network, "ORT").refused["Min_0"])
    )


def test_attribute_of_another_operator_is_refused(core: Core) -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("consumed_inputs", [1]))
    assert "consumed_inputs" in core.query_network(core.read_network(model), "ORT").refused["Relu_0"]


@pytest.mark.parametrize("opset", [1, 13, 18, 26, 28])
def test_equal_versions_are_stamped_into_an_opset_of_the_engine(core: Core, read: Read, opset: int) -> None:
    network = read("g (float[3] x) => (float[3] y) { a = Softplus(x) y = Identity(a) }", opset)
    with core.load_network(network, "ORT") as loaded:
        x = np.array([-1, 0, 2], np.float32)
        np.testing.assert_allclose(loaded.infer({"x": x})["y"], np.log1p(np.exp(x.astype(np.float64))), rtol=1e-6)


def test_operator_changed_after_the_newest_opset_is_refused(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    # The newest opset depends on the engine's version; this test pretends an older version with a lower opset.
    monkeypatch.setattr(OrtEngine, "newest_opset", lambda _, domain: 26 if domain == "" else 0)
    model = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["": 28]> g (uint8[2] x, uint8[2] s) => (uint8[2] y, uint8[2] z) '
        '{ y = BitShift <direction = "LEFT"> (x, s) z = Identity(x) }'
    )
    result = core.query_network(core.read_network(model), "ORT")
    assert dict(result.supported) == {"Identity_1": "ORT"}
    assert "BitShift-28 is newer than the opsets of ai.onnx that the engine accepts, up to 26" in result.refused["BitShift_0"]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (np.float16, [1.5, -2]),
        (np.bool_, [True, False]),
        (np.uint64, [0, 2**63]),
        (ml_dtypes.bfloat16, [1.5, -2]),
        (ml_dtypes.float8_e4m3fn, [1.5, -2]),
        (object, ["a", "bc"]),
    ],
)
@pytest.mark.parametrize("size", ["2", "N"])
def test_values_of_a_type_come_back_as_they_went_in(core: Core, dtype: Any, values: list[Any], size: str) -> None:
    names = {object: "string", np.bool_: "bool", ml_dtypes.bfloat16: "bfloat16", ml_dtypes.float8_e4m3fn: "float8e4m3fn"}
    name = names.get(dtype) or {np.float16: "float16", np.uint64: "uint64"}[dtype]
    text = f'<ir_version: 9, opset_import: ["": 19]> g ({name}[{size}] x) => ({name}[{size}] y) {{ y = Identity(x) }}'
    x = np.array(values, dtype)
    with core.load_network(onnx.parser.parse_model(text), "ORT") as loaded:
        answer = loaded.infer({"x": x})["y"]
    assert answer.dtype == x.dtype
    assert answer.tolist() == x.tolist()


def test_arrays_that_move_between_runs_are_read_and_written(core: Core, read: Read) -> None:
    """A request keeps its bindings: input and output arrays of more than 16 KiB, repeated, new, and from another request."""
    loaded = core.load_network(
        read("g (float[5000] x, float[5000] z) => (float[5000] y, float[5000] w) { y = Sub(x, z) w = Neg(x) }"), "ORT"
    )
    requests = [loaded.create_infer_request() for _ in range(2)]
    arrays = [np.full(5000, value, np.float32) for value in range(6)]
    places = [np.zeros(5000, np.float32) for _ in range(5)]
    drawn = np.random.default_rng(0)
    for _ in range(60):
        request = requests[drawn.integers(2)]
        first, second = drawn.permutation(5)[:2]
        request.set_tensor("y", places[first])
        request.set_tensor("w", places[second])
        x, z = (arrays[index] for index in drawn.integers(6, size=2))
        x[...] = drawn.integers(100)
        answer = request.infer({"x": x, "z": z})
        assert answer["y"] is places[first]
        assert answer["w"] is places[second]
        assert answer["y"].tolist() == (x - z).tolist()
        assert answer["w"].tolist() == (-x).tolist()


def test_shrunk_preset_is_not_written_beyond_its_end(core: Core, read: Read) -> None:
    request = core.load_network(read("g (float[5000] x) => (float[5000] y) { y = Neg(x) }"), "ORT").create_infer_request()
    mine, x = np.zeros(5000, np.float32), np.ones(5000, np.float32)
    request.set_tensor("y", mine)
    request.infer({"x": x})
    mine.resize(10, refcheck=False)
    with pytest.raises(InferenceError, match=r"invalid dimensions for output: y .*\n index: 0 Got: 10 Expected: 5000"):
        request.infer({"x": x})


def test_unread_part_runs(core: Core, read: Read) -> None:
    network = read("g (float[2] x) => (float[2] y) { [dead] d = Shape(x) [alive] y = Neg(x) }")
    loaded = core.load_network(network.with_affinity({"dead": "ORT", "alive": "CPU"}), "HETERO:ORT,CPU")
    assert loaded.infer({"x": np.array([1, 2], np.float32)})["y"].tolist() == [-1, -2]


def test_sequences_go_in_and_come_out_as_lists(core: Core) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (seq(float[N]) x, float[N] y) => (seq(float[N]) z) { z = SequenceInsert(x, y) }'
    )
    with core.load_network(model, "ORT") as loaded:
        answer = loaded.infer({"x": [np.ones(1, np.float32)], "y": np.zeros(2, np.float32)})["z"]
    assert [each.tolist() for each in answer] == [[1], [0, 0]]


def test_weights_are_not_copied_and_live_with_the_network(core: Core) -> None:
    weights = np.arange(4096, dtype=np.float32)
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[4096] x) => (float[4096] y) <float[4096] w = {0}> { y = Add(x, w) }'
    model = onnx.parser.parse_model(text.replace("<float[4096] w = {0}> ", ""))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    loaded = core.load_network(core.read_network(model), "ORT")
    del model
    gc.collect()
    junk = [np.full(4096, -1, np.float32) for _ in range(200)]
    assert loaded.infer({"x": np.ones(4096, np.float32)})["y"].tolist() == (weights + 1).tolist()
    assert len(junk) == 200


def test_constants_of_small_types_are_packed_for_the_engine(core: Core) -> None:
    codes = np.arange(-8, 8).repeat(200).astype(ml_dtypes.int4)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float s) => (float[3200] y) { y = DequantizeLinear(w, s) }'
    )
    model.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [3200], codes.astype(np.int8)))
    with core.load_network(model, "ORT") as loaded:
        assert loaded.infer({"s": np.float32(0.5)})["y"].tolist() == (codes.astype(np.float32) * 0.5).tolist()


def test_profile_names_the_nodes_of_the_model(core: Core, read: Read) -> None:
    network = read("g (float[64,64] x) => (float[64,64] y) { a = MatMul(x, x) y = Softmax(a) }")
    request = core.load_network(network, "ORT", {"PERF_COUNT": True}).create_infer_request()
    for _ in range(2):
        request.infer({"x": np.ones((64, 64), np.float32)})
        assert [(entry.node, entry.device) for entry in request.perf_counts if entry.operator != "transfer"][:2] == [
            ("MatMul_0", "ORT"),
            ("Softmax_1", "ORT"),
        ]
        assert all(entry.seconds >= 0 for entry in request.perf_counts)


def test_blob_gives_the_same_numbers_and_another_engine_compiles(core: Core, tmp_path: Path) -> None:
    check_engine_blob(core, "ORT", "ONNX Runtime", tmp_path)


def test_spinning_is_allowed_without_a_word_of_the_engine(core: Core, read: Read, capfd: pytest.CaptureFixture[str]) -> None:
    core.load_network(read("g (float[2] x) => (float[2] y) { y = Neg(x) }"), "ORT", {"ORT_ALLOW_SPINNING": True}).close()
    assert capfd.readouterr() == ("", "")


def test_error_of_the_engine_at_run_time_names_the_node(core: Core, read: Read) -> None:
    loaded = core.load_network(read("g (float[4] x, int64[1] s) => (float[N] y) { y = Reshape(x, s) }"), "ORT")
    with pytest.raises(InferenceError, match="Reshape_0"):
        loaded.infer({"x": np.ones(4, np.float32), "s": np.array([3])})
    assert loaded.infer({"x": np.ones(4, np.float32), "s": np.array([4])})["y"].tolist() == [1, 1, 1, 1]


def test_initializer_array_is_not_copied_for_the_engine() -> None:
    import onnxruntime
    from hetero_onnxruntime.session import refer

    constant = Initializer.of_array(np.arange(1000, dtype=np.float32))
    value = refer(onnxruntime, constant)
    assert value.data_ptr() == constant.array.ctypes.data


def test_product_with_dequantized_weights_is_computed_in_float32(core: Core) -> None:
    draw = np.random.default_rng(5)
    weights, x = draw.integers(-127, 128, (63, 32)).astype(np.int8), draw.standard_normal((3, 40, 63)).astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[3,40,63] x) => (float[3,40,32] y) <float s = {0.01}, int8 z = {0}> '
        "{ d = DequantizeLinear (w, s, z) y = MatMul (x, d) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    expected = x.astype(np.float64) @ (weights.astype(np.float64) * np.float64(np.float32(0.01)))
    with core.load_network(model, "ORT") as loaded:
        np.testing.assert_allclose(loaded.infer({"x": x})["y"], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("opset", "text", "is_refused"),
    [
        (13, "g (float[1, 3] x) => (float[1, 3] y) <int64[0] a = {}> { y = Squeeze (x, a) }", True),
        (13, "g (float[1, 3] x, int64[n] a) => (float[m, k] y) { y = Squeeze (x, a) }", True),
        (13, "g (float[1, 3] x, int64[1] a) => (float[3] y) { y = Squeeze (x, a) }", False),
        (13, "g (float[1, 3] x) => (float[3] y) { y = Squeeze (x) }", False),
        (11, "g (float[1, 3] x) => (float[3] y) { y = Squeeze <axes = [0]> (x) }", False),
    ],
)
def test_possibly_empty_axes_are_refused(core: Core, read: Read, opset: int, text: str, is_refused: bool) -> None:
    refused = core.query_network(read(text, opset), "ORT").refused
    assert ["an empty list of axes" in reason for reason in refused.values()] == [True] * is_refused


@pytest.mark.parametrize("is_nested", [False, True])
def test_branch_that_fits_no_fixed_size_is_taken(core: Core, read: Read, is_nested: bool) -> None:
    """The engine infers the shapes of both branches, and refuses the If for the branch that these sizes never run."""
    squeeze = "b = Squeeze (x, axes)"
    inner = f"b = If (c) <then_branch = p () => (float[] i) {{ i = Neg (x) }}, else_branch = q () => (float[] b) {{ {squeeze} }}>"
    network = read(
        "g (bool c, float[N, 3] x) => (float[] y) <int64[1] axes = {0}> { y = If (c) <then_branch = t () => (float[] a) { a = Neg (x) }, "
        f"else_branch = e () => (float[] b) {{ {inner if is_nested else squeeze} }}> }}"
    ).with_shapes({"x": (2, 3)})
    assert core.query_network(network, "ORT").refused == {}
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    loaded = core.load_network(network, "ORT")
    np.testing.assert_array_equal(loaded.infer({"c": np.array(True), "x": x})["y"], -x)
    with pytest.raises(InferenceError, match="Squeeze"):
        loaded.infer({"c": np.array(False), "x": x})


def test_distinct_nodes_share_a_session_and_a_refused_one_is_found(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bytes] = []

    def count(module: Any, model: bytes, *arguments: Any) -> Any:
        opened.append(model)
        return open_session(module, model, *arguments)

    monkeypatch.setattr(probing, "open_session", count)
    accepted = "a = Abs (x) b = Neg (a) c = Sin (b) d = Cos (c) e = Exp (d) f = Floor (e) y = Sqrt (f)"
    with Core() as core:
        assert not core.query_network(read(f"g (float[2] x) => (float[2] y) {{ {accepted} }}"), "ORT").refused
    assert len(opened) == 1
    with Core() as core:
        text = f"g (float[2] x, bfloat16[2] h) => (float[2] y, bfloat16[2] k) {{ {accepted} k = Tanh (h) }}"
        query = core.query_network(read(text), "ORT")
    (refusal,) = query.refused.values()
    assert "no CPUExecutionProvider kernel for Tanh-13 on (bfloat16[2])" in refusal
    assert len(query.supported) == 7


@pytest.mark.parametrize(
    "call",
    [
        "y = Gather <axis = 0> (x, i)",
        "j = Unsqueeze (i, axes) y = GatherND (x, j)",
        "y = GatherElements <axis = 0> (x, i)",
        "y = ScatterElements <axis = 0> (x, i, x)",
    ],
)
def test_index_outside_its_axis_is_an_index_error(core: Core, read: Read, call: str) -> None:
    loaded = core.load_network(read(f"g (float[3] x, int64[3] i) => (float[3] y) <int64[1] axes = {{1}}> {{ {call} }}"), "ORT")
    with pytest.raises(InferenceError, match="ind(ex|ices|ice)") as caught:
        loaded.infer({"x": np.ones(3, np.float32), "i": np.array([0, 1, 7])})
    assert isinstance(caught.value.__cause__, IndexError)
