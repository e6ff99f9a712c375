"""What OPENVINO refuses or puts right because the engine is wrong: by name, no more than that, and only as long as the engine is wrong."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.errors import LoadError, NetworkDeclarationWarning, PluginError, UnsupportedNodesError
from hetero_core.testing.backend_cases import BackendCase, iterate_backend_cases
from hetero_core.testing.compare import describe_mismatch

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

from hetero_openvino import conversion, device

Read = Callable[..., Network]

REFUSED = {
    "attention_local_window": "ignores left_window_size",
    "attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal": "counts the positions of causal Attention",
    "bernoulli_seed": "draws 1 of Bernoulli with the probability of 0",
    "bitshift_right_int8_negative_input": "shifts signed integers",
    "cast_FLOAT_to_BFLOAT16": "does not round floats to the nearest bfloat16",
    "cast_FLOAT_to_FLOAT8E4M3FN": "does not saturate",
    "cast_FLOAT_to_FLOAT4E2M1": "makes NaN the largest float4e2m1",
    "cast_e8m0_FLOAT_to_FLOAT8E8M0": "rounds to the nearest float8e8m0",
    "div_int8": "rounds quotients of int8",
    "dft_axis": "ignores the axis of DFT",
    "dft_rfft": "shapes one-sided transforms wrongly",
    "dynamicquantizelinear": "on the other side of a half",
    "dynamicquantizelinear_expanded": "on the other side of a half",
    "gru_batchwise": "ignores the layout of GRU",
    "lstm_with_peepholes": "ignores the peepholes",
    "maxpool_2d_ceil_output_size_reduce_by_one": "counts a window that begins behind the end",
    "quantizelinear_uint16": "on the other side of a half",
    "resize_downsample_scales_cubic_align_corners": "scales by the rounded size",
    "resize_downsample_scales_linear_antialias": "ignores antialias",
    "resize_upsample_scales_cubic_A_n0p5_exclude_outside": "ignores exclude_outside",
    "resize_upsample_sizes_nearest_not_larger": "ignores keep_aspect_ratio_policy",
    "roialign_mode_max": "interpolates after it takes the maximum",
    "spacetodepth_crd_mode_example": "ignores the mode of SpaceToDepth",
    "tile": "returns what it has not written",
}
CORRECTED = {
    "nonmaxsuppression_iou_threshold_boundary": "NonMaxSuppression",
    "reduce_max_empty_set": "ReduceMax",
    "top_k_same_values_2d": "TopK",
}


def find_case(name: str) -> BackendCase:
    return next(iterate_backend_cases(f"^test_{name}$", kinds=("node",)))


def find_mismatch(core: Core, case: BackendCase) -> str | None:
    """Returns where OPENVINO leaves what the standard expects of a case; the core notices by itself where another shape is proved."""
    loaded = core.load_network(case.model, "OPENVINO")
    inputs, expected = case.runs[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NetworkDeclarationWarning)
            found = loaded.infer({spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=True)})
    except PluginError as error:
        return str(error)
    pairs = zip(found.items(), expected, strict=True)
    return next(filter(None, (describe_mismatch(value, wanted, name=name) for (name, value), wanted in pairs)), None)


@pytest.mark.parametrize(("name", "reason"), REFUSED.items(), ids=REFUSED)
def test_case_is_refused_for_what_the_engine_gets_wrong(core: Core, name: str, reason: str) -> None:
    refused = core.query_network(find_case(name).model, "OPENVINO").refused
    assert any(reason in text for text in refused.values()), refused


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in ("tile", "cast_FLOAT_to_BFLOAT16")])
def test_engine_is_still_wrong_about_what_is_refused(core: Core, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where this fails the entry can go. What Tile leaves unwritten may be anything, and a rounding is tolerated."""
    monkeypatch.setattr(device, "find_known_error", lambda node, network, **_: None)
    assert find_mismatch(core, find_case(name)) is not None


@pytest.mark.parametrize("name", CORRECTED)
def test_corrected_operator_is_right_and_the_engine_alone_is_still_wrong(
    core: Core, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = find_case(name)
    assert find_mismatch(core, case) is None
    monkeypatch.setattr(conversion, "correct_model", lambda model: None)
    assert find_mismatch(core, case) is not None


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_extreme_of_infinities_is_infinite_and_of_the_extreme_floats_is_theirs(
    core: Core, read: Read, operator: str, dtype: str
) -> None:
    network = read(f"g ({dtype}[N,3] x) => ({dtype}[N] y) <int64[1] a = {{1}}> {{ y = {operator} <keepdims = 0> (x, a) }}", 20)
    found_type: Any = {"float": np.float32, "float16": np.float16}[dtype]
    limits = np.finfo(found_type)
    rows = [-np.inf, np.inf, limits.min, limits.max, limits.smallest_normal, 0]
    x = np.array([[row] * 3 for row in rows] + [[1, 2, 3], [-np.inf, 0, np.inf]], found_type)
    found = core.load_network(network, "OPENVINO").infer({"x": x})["y"]
    assert found.tolist() == (x.max(axis=1) if operator == "ReduceMax" else x.min(axis=1)).tolist()


@pytest.mark.parametrize("threshold", [0.0, 1 / 3, 0.5])
def test_boxes_are_dropped_above_the_threshold_and_kept_at_it(core: Core, read: Read, threshold: float) -> None:
    # Overlaps with the first box: none, exactly a half, all.
    boxes = np.array([[[0, 0, 2, 2], [0, 2, 2, 4], [0, 0, 2, 1], [0, 0, 2, 2]]], np.float32)
    network = read(
        "g (float[1,4,4] b, float[1,1,4] s, int64[1] n, float[1] t) => (int64[K,3] y) { y = NonMaxSuppression(b, s, n, t) }"
    )
    inputs = {"b": boxes, "s": np.array([[[0.9, 0.8, 0.7, 0.6]]], np.float32), "n": np.array([9])}
    inputs["t"] = np.array([threshold], np.float32)
    expected = core.load_network(network, "CPU").infer(inputs)["y"]
    assert core.load_network(network, "OPENVINO").infer(inputs)["y"].tolist() == expected.tolist()
    assert len(expected) == (3 if threshold == 0.5 else 2)


@pytest.mark.parametrize(
    ("text", "opset", "reason"),
    [
        ("g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis = 1> (x) }", 11, "computes Softmax-11 along one axis"),
        (
            "g (float[2,3] x) => (float[2,1] y) { y = ReduceLogSumExp <axes = [1]> (x) }",
            17,
            "ignores the attribute axes of ReduceLogSumExp",
        ),
        (
            "g (float[1,1,5,5] x) => (float[1,1,2,2] y) { y = MaxPool <kernel_shape = [3,3], strides = [2], ceil_mode = 1> (x) }",
            17,
            "strides, dilations, pads and the input of MaxPool have other numbers of dimensions than its kernel",
        ),
        ("g (float[1,2,3,3] x) => (y) { y = MeanVarianceNormalization(x) }", 8, "averages other axes in MeanVarianceNormalization"),
        ("g (int8[2] x) => (int8[2] y) { y = Add(x, x) }", 17, "saturates int8; the standard's reference wraps around"),
        ("g (float[1,1,4] x) => (float[1,1,N] y) { y = LpPool (x) }", 1, "LpPool has no kernel_shape"),
        (
            "g (float[2] x) => (float[N] y) { y = ReduceMax <keepdims = 2> (x) }",
            17,
            "OpenVINO may read a flag that is neither 0 nor 1 otherwise than 1",
        ),
        (
            "g (int32[1] x) => (int32[1] y) <int32[1] w = {16777217}> { y = Div(x, w) }",
            17,
            "OpenVINO computes Div of int32 in float32, which is exact up to 2^24; the constant 'w' has larger values",
        ),
        ("g (int8[2] x) => (int4[2] y) { a = Cast <to = 1> (x) y = Cast <to = 22> (a) }", 21, "rounds to integers of 4 bits"),
        ("g (int32[2,2] x) => (int32[2,2] y) { y = MatMul(x, x) }", 17, "computes MatMul of int32 in float32"),
        ('g (uint8[2] x) => (uint8[2] y) { y = BitShift <direction = "LEFT"> (x, x) }', 17, "beyond their width"),
        (
            "g (int64[1] x) => (int64[1] y) <int64[1] w = {5000000000}> { y = Add(x, w) }",
            17,
            "OpenVINO computes Add of int64 in 32 bits; the constant 'w' has larger values",
        ),
    ],
)
def test_what_no_case_of_the_suite_covers_is_refused(core: Core, read: Read, text: str, opset: int, reason: str) -> None:
    (found,) = core.query_network(read(text, opset), "OPENVINO").refused.values()
    assert reason in found


QUANTIZED = (
    "g (uint8[1,2,4,4] x) => (uint8[1,2,2,2] y) "
    "<float xs = {{0.02}}, uint8 xz = {{9}}, int8[2,2,3,3] w = {{{filters}}}, float{scale}, "
    "int8{zeros}, float ys = {{0.05}}, uint8 yz = {{20}}> {{ y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz) }}"
)


def quantize_convolution(scale: str, zeros: str) -> str:
    filters = ", ".join(str(value) for value in np.random.default_rng(1).integers(-9, 10, 36))
    return QUANTIZED.format(filters=filters, scale=scale, zeros=zeros)


def test_scales_of_output_channels_are_refused_and_the_engine_still_takes_them_for_input_channels(
    core: Core, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = read(quantize_convolution("[2] ws = {0.1, 0.5}", "[2] wz = {0, 0}"))
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert "multiplies filters by the scales of QLinearConv along the input channels" in reason
    monkeypatch.setattr(device, "find_known_error", lambda node, network, **_: None)
    x = np.random.default_rng(2).integers(0, 40, (1, 2, 4, 4)).astype(np.uint8)
    filters = network.initializers["w"].array * np.float64([0.1, 0.5]).reshape(2, 1, 1, 1)
    windows = np.lib.stride_tricks.sliding_window_view((x - 9.0) * 0.02, (3, 3), axis=(2, 3))
    expected = np.clip(np.rint(np.einsum("ncijkl,ockl->noij", windows, filters) / 0.05) + 20, 0, 255)
    difference = core.load_network(network, "OPENVINO").infer({"x": x})["y"] - expected
    assert np.abs(difference).max() > 1


@pytest.mark.parametrize(
    ("data", "indices", "is_taken"),
    [("5,2", "3,2", True), ("N,M", "K,M", True), ("N,M", "A,B", False), ("N,2", "A,B", False), ("5,2", "5,1", False)],
)
def test_elements_are_gathered_where_the_sizes_beside_the_axis_are_equal(
    core: Core, read: Read, data: str, indices: str, is_taken: bool
) -> None:
    network = read(f"g (float[{data}] x, int64[{indices}] i) => (float[P,Q] y) {{ y = GatherElements<axis = 0>(x, i) }}")
    if not is_taken:
        assert core.query_network(network, "OPENVINO").refused
        return
    loaded = core.load_network(network, "OPENVINO")
    x, i = np.random.default_rng(3).standard_normal((5, 2)).astype(np.float32), np.array([[4, -1], [0, 3], [-5, 2]])
    assert np.array_equal(loaded.infer({"x": x, "i": i})["y"], np.take_along_axis(x, i, 0))


@pytest.mark.parametrize(("sizes", "shape"), [("2,0", (2, 0)), ("N,M", (2, 0)), ("N,M", (2, 2)), ("2,2", (2, 2))])
def test_more_values_than_there_are_do_not_end_the_process(sizes: str, shape: tuple[int, int]) -> None:
    """The engine alone reads beyond them, in some runs until a signal comes."""
    graph = f"g (float[{sizes}] x, int64[1] k) => (float[A,B] v, int64[A,B] i) {{ v, i = TopK(x, k) }}"
    model = f'<ir_version: 8, opset_import: ["": 17]> {graph}'
    script = (
        "import numpy as np, onnx.parser\nfrom hetero_core import Core\nwith Core() as core:\n"
        f"    network = core.load_network(onnx.parser.parse_model({model!r}), 'OPENVINO')\n"
        f"    print(network.infer({{'x': np.ones({shape}, np.float32), 'k': np.array([3])}})['v'].tolist())\n"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=900)
    assert child.stdout.strip() == str(np.ones(shape).tolist())


@pytest.mark.parametrize("dtype", ["int32", "int64", "float"])
@pytest.mark.parametrize("limits", [(1, -3, 2), (1, 3, -1), (3, 3, 1), (1, 8, 2), (8, 1, -3), (1, 4, 0)])
def test_range_whose_step_leads_away_has_no_elements(core: Core, read: Read, dtype: str, limits: tuple[int, int, int]) -> None:
    """The engine alone makes elements on the way back, and divides by a step of 0, which ends the process."""
    network = read(f"g ({dtype} a, {dtype} b, {dtype} c) => ({dtype}[N] y) {{ y = Range(a, b, c) }}")
    inputs = {name: np.array(number, dtype.replace("float", "float32")) for name, number in zip("abc", limits, strict=True)}
    found = core.load_network(network, "OPENVINO").infer(inputs)["y"]
    assert found.tolist() == (list(range(*limits)) if limits[2] else [])


@pytest.mark.parametrize(
    "text", ["(float[1,0,2] x) => (float[1,0,2] y) <int64[1] s = {1}>", "(float[1,2] x) => (float[0,2] y) <int64[2] s = {0,2}>"]
)
def test_expand_without_elements_is_refused_since_it_ends_the_process(core: Core, read: Read, text: str) -> None:
    (reason,) = core.query_network(read(f"g {text} {{ y = Expand(x, s) }}"), "OPENVINO").refused.values()
    assert "if Expand makes or reads no elements" in reason


def test_constant_of_64_bits_as_an_output_is_refused_with_and_without_nodes(core: Core, read: Read) -> None:
    constant = "<int64[2] c = {-2147483648, 2147483648}>"
    with pytest.raises(LoadError, match="the output 'c' is a constant with larger values"):
        core.load_network(read(f"g () => (int64[2] c) {constant} {{ }}"), "OPENVINO")
    network = read(f"g (float[1] x) => (float[1] y, int64[2] c) {constant} {{ y = Neg(x) }}")
    assert "the output 'c' is a constant" in core.query_network(network, "OPENVINO").refused["Neg_0"]
    outputs = core.load_network(network, "HETERO:OPENVINO,CPU").infer({"x": np.ones(1, np.float32)})
    assert outputs["c"].tolist() == [-(2**31), 2**31]


@pytest.mark.parametrize("operator", ["ThresholdedRelu", "Shrink"])
def test_what_drops_by_a_product_is_refused_and_the_engine_is_still_wrong(
    core: Core, read: Read, monkeypatch: pytest.MonkeyPatch, operator: str
) -> None:
    network = read(f"g (float[2] x) => (float[2] y) {{ y = {operator} (x) }}")
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert "multiplies by 0 what it drops, so that infinities become NaN" in reason
    monkeypatch.setattr(device, "find_known_error", lambda node, network, **_: None)
    x = np.array([-np.inf, np.inf], np.float32)
    assert np.isnan(core.load_network(network, "OPENVINO").infer({"x": x})["y"]).any()


def test_convolution_with_one_scale_is_taken_and_equals_the_cpu_device(core: Core, read: Read) -> None:
    network = read(quantize_convolution(" ws = {0.1}", " wz = {0}"))
    x = np.random.default_rng(2).integers(0, 40, (1, 2, 4, 4)).astype(np.uint8)
    found, expected = (core.load_network(network, name).infer({"x": x})["y"] for name in ("OPENVINO", "CPU"))
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        ("g (float[2,3,1] x) => (float[2,3,1] y) { y = Softmax <axis = 1> (x) }", 11),
        ("g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis = 1> (x) }", 8),
        ("g (float[2,3,4] x) => (float[2,3,4] y) { y = LogSoftmax <axis = 1> (x) }", 11),
        (
            "g (float[1,1,5,5] x) => (float[1,1,2,2] y) { y = MaxPool <kernel_shape = [3,3], strides = [2,2], ceil_mode = 1> (x) }",
            17,
        ),
        (
            "g (float[1,1,2,2] x) => (float[1,1,4,4] y) <float[4] s = {1,1,2,2}> "
            '{ y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, , s) }',
            13,
        ),
        ("g (float[2] x) => (float[2] y) { y = Round(x) }", 17),
    ],
)
def test_neighbour_of_what_is_refused_is_taken_and_equals_the_cpu_device(core: Core, read: Read, text: str, opset: int) -> None:
    network = read(text, opset)
    x = np.random.default_rng(3).standard_normal(list(network.inputs[0].type.shape)).astype(np.float32)  # type: ignore[union-attr, arg-type]  # static tensors
    found, expected = (core.load_network(network, name).infer({"x": x})["y"] for name in ("OPENVINO", "CPU"))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_arithmetic_on_shapes_is_taken(core: Core, read: Read) -> None:
    network = read(
        "g (float[N,6] x) => (float[M,3] y) <int64[1] two = {2}, int64[1] i = {0}, int64[1] three = {3}> "
        "{ s = Shape(x) n = Gather(s, i) t = Mul(n, two) h = Div(t, two) d = Mul(h, two) "
        "r = Concat <axis = 0> (d, three) y = Reshape(x, r) }"
    )
    assert not core.query_network(network, "OPENVINO").refused
    found = core.load_network(network, "OPENVINO").infer({"x": np.arange(24, dtype=np.float32).reshape(4, 6)})["y"]
    assert found.tolist() == np.arange(24).reshape(8, 3).tolist()


def draw_numbers(core: Core, read: Read, operator: str, x: Any) -> Any:
    text = f"g (float[20000] x) => (float[20000] y) {{ r = {operator} (x) y = Add(x, r) }}"
    return core.load_network(read(text, 15), "OPENVINO").infer({"x": x})["y"]


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomNormalLike <seed = 0.0>"])
def test_normal_numbers_without_a_seed_are_refused(core: Core, read: Read, operator: str) -> None:
    with pytest.raises(UnsupportedNodesError, match="draws RandomNormalLike without a seed from two generators that are alike"):
        draw_numbers(core, read, operator, np.zeros(20000, np.float32))


def test_multinomial_is_refused_as_its_runs_are_alike(core: Core, read: Read) -> None:
    network = read("g (float[1,4] x) => (int32[1,9] y) { y = Multinomial <sample_size = 9> (x) }", 15)
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    version = core.get_metric("OPENVINO", "FULL_DEVICE_NAME").rpartition(" ")[2]
    assert reason == f"OpenVINO draws the same numbers of Multinomial in every run (OpenVINO {version})"


@pytest.mark.parametrize(
    ("operator", "distribute"),
    [
        ("RandomNormalLike <seed = 1.5>", NormalDist().cdf),
        ("RandomUniformLike", float),
        ("RandomUniformLike <seed = 1.5>", float),
    ],
)
def test_numbers_that_are_taken_are_distributed_as_they_say(
    core: Core, read: Read, operator: str, distribute: Callable[[float], float]
) -> None:
    """Kolmogorov: sqrt(n) times the largest distance of the two distributions is above 2.8 once in three million draws."""
    ordered = np.sort(draw_numbers(core, read, operator, np.zeros(20000, np.float32)).astype(np.float64))
    expected = np.array([distribute(value) for value in ordered.tolist()])
    distance = np.abs(expected - np.arange(1, 20001) / 20000).max() * 20000**0.5
    assert distance < 2.8


@pytest.mark.parametrize("condition", ["bool[0] c", "bool[1,0] c"])
def test_compress_by_nothing_is_refused_since_it_ends_the_process(core: Core, read: Read, condition: str) -> None:
    network = read(f"g (float[2,3] x, {condition}) => (float[N,3] y) {{ y = Compress <axis = 0>(x, c) }}")
    with pytest.raises(UnsupportedNodesError, match="ends the process if the condition of Compress has no elements"):
        core.load_network(network, "OPENVINO")
