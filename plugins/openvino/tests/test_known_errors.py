"""Nodes that OPENVINO refuses or corrects: the reason, similar accepted nodes, and the fault, which the engine still has."""

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
from hetero_core.errors import LoadError, NetworkDeclarationWarning, PluginError
from hetero_core.testing.backend_cases import BackendCase, iterate_backend_cases
from hetero_core.testing.compare import describe_mismatch

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

from hetero_openvino import conversion, device
from hetero_openvino.known_errors import HALF_ROWS, ROWS

Read = Callable[..., Network]

REFUSED = sorted({row.source for row in (*ROWS, *HALF_ROWS) if row.source != "drawn" and "#" not in row.source})
UNSURE = ("tile", "cast_FLOAT_to_BFLOAT16", "attention_4d_causal_padded_kv_bf16")
"""Cases that the engine gets wrong in some runs alone: memory that it does not write may hold anything, a rounding is tolerated."""
CORRECTED = {
    "nonmaxsuppression_iou_threshold_boundary": "NonMaxSuppression",
    "top_k_same_values_2d": "TopK",
}


def find_case(name: str) -> BackendCase:
    return next(iterate_backend_cases(f"^test_{name}$", kinds=("node",)))


def find_mismatch(core: Core, case: BackendCase) -> str | None:
    """Returns the first difference between OPENVINO and the expected outputs of a case, wrong shapes included."""
    loaded = core.load_network(case.model, "OPENVINO")
    inputs, expected = case.runs[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NetworkDeclarationWarning)
            answer = loaded.infer({spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=True)})
    except PluginError as error:
        return str(error)
    pairs = zip(answer.items(), expected, strict=True)
    return next(filter(None, (describe_mismatch(value, right, name=name) for (name, value), right in pairs)), None)


@pytest.mark.parametrize("name", REFUSED)
def test_case_of_a_row_is_refused_and_still_wrong(core: Core, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """If this fails, the engine is fixed and the row can go."""
    case = find_case(name)
    assert core.query_network(case.model, "OPENVINO").refused
    monkeypatch.setattr(device, "find_known_error", lambda node, network, **_: None)
    assert name in UNSURE or find_mismatch(core, case) is not None


@pytest.mark.parametrize("name", CORRECTED)
def test_corrected_operator_is_right_and_the_engine_still_wrong(core: Core, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    case = find_case(name)
    assert find_mismatch(core, case) is None
    monkeypatch.setattr(conversion, "correct_model", lambda model: None)
    assert find_mismatch(core, case) is not None


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_extremes_of_infinities_and_extreme_floats_are_right(core: Core, read: Read, operator: str, dtype: str) -> None:
    network = read(f"g ({dtype}[N,3] x) => ({dtype}[N] y) <int64[1] a = {{1}}> {{ y = {operator} <keepdims = 0> (x, a) }}", 20)
    element_type: Any = {"float": np.float32, "float16": np.float16}[dtype]
    limits = np.finfo(element_type)
    rows = [-np.inf, np.inf, limits.min, limits.max, limits.smallest_normal, 0]
    x = np.array([[row] * 3 for row in rows] + [[1, 2, 3], [-np.inf, 0, np.inf]], element_type)
    answer = core.load_network(network, "OPENVINO").infer({"x": x})["y"]
    assert answer.tolist() == (x.max(axis=1) if operator == "ReduceMax" else x.min(axis=1)).tolist()


@pytest.mark.parametrize("threshold", [0.0, 1 / 3, 0.5])
def test_boxes_are_dropped_above_the_threshold_and_kept_at_it(core: Core, read: Read, threshold: float) -> None:
    # Overlaps with the first box: 0, exactly a half, 1.
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
        ("g (int8[2] x) => (int8[2] y) { y = Add(x, x) }", 17, "saturates int8; the standard's reference wraps around"),
        ("g (int8[2] x) => (int8[2] y) { y = Neg(x) }", 17, "saturates int8; the standard's reference wraps around"),
        ("g (int8[2] x) => (int8[2] y) { y = Abs(x) }", 17, "saturates int8; the standard's reference wraps around"),
        (
            "g (int32[1] x) => (int32[1] y) <int32[1] w = {16777217}> { y = Div(x, w) }",
            17,
            "OpenVINO computes Div of int32 in float32, which is exact up to 2^24; the constant 'w' has larger values",
        ),
        ("g (uint64[2] x) => (uint64[2] y) { y = BitwiseXor(x, x) }", 18, "OpenVINO computes BitwiseXor of uint64 in int32"),
        ("g (int64[2] x) => (uint32[2] y) { y = Cast <to = 12> (x) }", 18, "OpenVINO computes Cast of int64 to uint32 in int32"),
        ("g (int32[2,2] x) => (int32[2,2] y) { y = MatMul(x, x) }", 17, "computes MatMul of int32 in float32"),
        ('g (uint8[2] x) => (uint8[2] y) { y = BitShift <direction = "LEFT"> (x, x) }', 17, "beyond their width"),
        (
            "g (int64[1] x) => (int64[1] y) <int64[1] w = {5000000000}> { y = Add(x, w) }",
            17,
            "OpenVINO computes Add of int64 in 32 bits; the constant 'w' has larger values",
        ),
    ],
)
def test_faults_outside_the_suite_are_refused(core: Core, read: Read, text: str, opset: int, reason: str) -> None:
    (answer,) = core.query_network(read(text, opset), "OPENVINO").refused.values()
    assert reason in answer


def test_more_values_than_there_are_do_not_end_the_process() -> None:
    """The engine alone reads beyond the values, in some runs until a signal kills it."""
    cases = [("N,M", (2, 0)), ("N,M", (2, 2)), ("2,2", (2, 2))]
    script = f"""
import numpy as np, onnx.parser
from hetero_core import Core
with Core() as core:
    for sizes, shape in {cases}:
        graph = f"g (float[{{sizes}}] x, int64[1] k) => (float[A,B] v, int64[A,B] i) {{{{ v, i = TopK(x, k) }}}}"
        network = core.load_network(onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + graph), "OPENVINO")
        print(network.infer({{"x": np.ones(shape, np.float32), "k": np.array([3])}})["v"].tolist())
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=900)
    assert child.stdout.splitlines() == [str(np.ones(shape).tolist()) for _, shape in cases]


@pytest.mark.parametrize("dtype", ["int32", "int64", "float"])
@pytest.mark.parametrize("limits", [(1, -3, 2), (1, 3, -1), (3, 3, 1), (1, 8, 2), (8, 1, -3), (1, 4, 0)])
def test_range_with_a_step_in_the_wrong_direction_is_empty(
    core: Core, read: Read, dtype: str, limits: tuple[int, int, int]
) -> None:
    """The engine alone returns elements for a step in the wrong direction, and a step of 0 ends the process by a division."""
    network = read(f"g ({dtype} a, {dtype} b, {dtype} c) => ({dtype}[N] y) {{ y = Range(a, b, c) }}")
    inputs = {name: np.array(number, dtype.replace("float", "float32")) for name, number in zip("abc", limits, strict=True)}
    answer = core.load_network(network, "OPENVINO").infer(inputs)["y"]
    assert answer.tolist() == (list(range(*limits)) if limits[2] else [])


def test_constant_of_64_bits_as_an_output_is_refused(core: Core, read: Read) -> None:
    constant = "<int64[2] c = {-2147483648, 2147483648}>"
    with pytest.raises(LoadError, match="the output 'c' is a constant with larger values"):
        core.load_network(read(f"g () => (int64[2] c) {constant} {{ }}"), "OPENVINO")
    network = read(f"g (float[1] x) => (float[1] y, int64[2] c) {constant} {{ y = Neg(x) }}")
    assert "the output 'c' is a constant" in core.query_network(network, "OPENVINO").refused["Neg_0"]
    outputs = core.load_network(network, "HETERO:OPENVINO,CPU").infer({"x": np.ones(1, np.float32)})
    assert outputs["c"].tolist() == [-(2**31), 2**31]


def test_arithmetic_on_shapes_is_taken(core: Core, read: Read) -> None:
    network = read(
        "g (float[N,6] x) => (float[M,3] y) <int64[1] two = {2}, int64[1] i = {0}, int64[1] three = {3}> "
        "{ s = Shape(x) n = Gather(s, i) t = Mul(n, two) h = Div(t, two) d = Mul(h, two) "
        "r = Concat <axis = 0> (d, three) y = Reshape(x, r) }"
    )
    assert not core.query_network(network, "OPENVINO").refused
    answer = core.load_network(network, "OPENVINO").infer({"x": np.arange(24, dtype=np.float32).reshape(4, 6)})["y"]
    assert answer.tolist() == np.arange(24).reshape(8, 3).tolist()


def draw_numbers(core: Core, read: Read, operator: str, x: Any) -> Any:
    text = f"g (float[20000] x) => (float[20000] y) {{ r = {operator} (x) y = Add(x, r) }}"
    return core.load_network(read(text, 15), "OPENVINO").infer({"x": x})["y"]


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
