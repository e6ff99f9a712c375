"""with_inputs and with_outputs: results against NumPy formulas on every device, the order of the added steps, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Network
from hetero_core.errors import InvalidNetworkError
from hetero_core.network.border import InputInfo, OutputInfo
from hetero_core.network.writer import network_to_bytes

DEVICES = ["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"]
Read = Callable[..., Network]
IMAGE = "g (float[N,3,8,6] x) => (float[N,3,8,6] y) { y = Identity(x) }"
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 11, 13, 3), dtype=np.uint8)


def resample(x: np.ndarray, height: int, width: int, mode: str) -> np.ndarray:
    """Resizes axes 2 and 3 in float64. nearest: rounds halves down; bilinear: half-pixel centers; area: means."""
    for axis, size in ((2, height), (3, width)):
        step = x.shape[axis] / size
        matrix = np.zeros((size, x.shape[axis]))
        for target in range(size):
            center = (target + 0.5) * step - 0.5
            if mode == "nearest":
                matrix[target, int(np.clip(np.ceil(center - 0.5), 0, x.shape[axis] - 1))] = 1
            elif mode == "bilinear":
                low = int(np.floor(center))
                for source, weight in ((low, low + 1 - center), (low + 1, center - low)):
                    matrix[target, int(np.clip(source, 0, x.shape[axis] - 1))] += weight
            else:
                for source in range(x.shape[axis]):
                    covered = min((target + 1) * step, source + 1) - max(target * step, source)
                    matrix[target, source] = max(covered, 0) / step
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
    return x


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "area"])
@pytest.mark.parametrize("opset", [9, 11, 13, 21])
def test_image_goes_through_all_steps_as_the_formula_says(core: Core, device: str, mode: str, opset: int) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {IMAGE}')
    info = InputInfo("U8", "NHWC", (2, 11, 13, 3), (10, 20, 30), (2, 4, 8), mode, "BGR->RGB")
    network = core.read_network(model).with_inputs({"x": info})
    y = core.load_network(network, device).infer({"x": PIXELS})["y"]
    planes = PIXELS[..., ::-1].transpose(0, 3, 1, 2).astype(np.float64)
    expected = (resample(planes, 8, 6, mode) - np.array([10, 20, 30]).reshape(3, 1, 1)) / np.array([2, 4, 8]).reshape(3, 1, 1)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "area"])
def test_image_grows_as_the_formula_says(core: Core, read: Read, mode: str) -> None:
    network = read(IMAGE).with_inputs({"x": InputInfo(shape=(1, 3, 3, 4), resize=mode)})
    x = np.random.default_rng(1).standard_normal((1, 3, 3, 4)).astype(np.float32)
    y = core.load_network(network, "CPU").infer({"x": x})["y"]
    np.testing.assert_allclose(y, resample(x.astype(np.float64), 8, 6, mode), rtol=0, atol=1e-5)


@pytest.mark.parametrize("opset", [9, 10, 11, 12, 13, 17, 18, 21])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "area"])
def test_steps_are_written_in_the_opset_of_the_model(core: Core, mode: str, opset: int) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {IMAGE}')
    info = InputInfo("U8", "NHWC", (None, 11, 13, 3), (10, 20, 30), (2, 4, 8), mode, "BGR->RGB")
    network = core.read_network(model).with_inputs({"x": info})
    assert {node.opset for node in network.nodes} == {opset}
    onnx.checker.check_model(onnx.load_from_string(network_to_bytes(network)), full_check=True)


def test_open_image_in_an_old_opset_takes_a_newer_resize(core: Core) -> None:
    network = core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 9]> {IMAGE}'))
    network = network.with_inputs({"x": InputInfo(resize="bilinear")})
    assert [node.opset for node in network.nodes if node.op_type == "Resize"] == [11]
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 4)).astype(np.float32)
    y = core.load_network(network, "CPU").infer({"x": x})["y"]
    np.testing.assert_allclose(y, resample(x.astype(np.float64), 8, 6, "bilinear"), rtol=0, atol=1e-5)


def test_steps_are_nodes_in_front_that_a_split_may_place(core: Core, read: Read) -> None:
    network = read(IMAGE).with_inputs({"x": InputInfo("U8", mean=1, scale=2)})
    assert [(node.name, node.op_type, node.origins) for node in network.nodes[:-1]] == [
        ("x/cast", "Cast", ("x/cast",)),
        ("x/sub", "Sub", ("x/sub",)),
        ("x/div", "Div", ("x/div",)),
    ]
    pinned = network.with_affinity({"x/*": "TEMPLATE", "op:Identity": "CPU"})
    plan = core.query_network(pinned, "HETERO:CPU,TEMPLATE").plan
    assert plan is not None
    assert [(stage.device, stage.nodes) for stage in plan.stages] == [
        ("TEMPLATE", ("x/cast", "x/sub", "x/div")),
        ("CPU", ("Identity_0",)),
    ]


def test_info_describes_the_expected_array(read: Read) -> None:
    network = read(IMAGE)
    assert network.input_info["x"] == InputInfo("FP32", "NCHW", ("N", 3, 8, 6), name="x")
    changed = network.with_inputs({"x": InputInfo("U8", "NHWC")}).with_outputs({"y": OutputInfo("FP16", "NHWC")})
    assert changed.input_info["x"] == InputInfo("U8", "NHWC", ("N", 8, 6, 3), name="x")
    assert changed.output_info["y"] == OutputInfo("FP16", "NHWC", ("N", 8, 6, 3), name="y")


@pytest.mark.parametrize("device", DEVICES)
def test_changed_border_survives_files_and_blobs(core: Core, read: Read, device: str, tmp_path: Any) -> None:
    network = read(IMAGE).with_inputs({"x": InputInfo("U8", "NHWC", mean=3)}).with_outputs({"y": OutputInfo("FP64", "NHWC")})
    x = np.random.default_rng(2).integers(0, 256, (1, 8, 6, 3), dtype=np.uint8)
    expected = x.astype(np.float64) - 3
    again = core.read_network(network_to_bytes(network))
    assert (again.input_info, again.output_info) == (network.input_info, network.output_info)
    loaded = core.load_network(again, device)
    loaded.export_network(tmp_path / "blob")
    for executable in (loaded, core.import_network(tmp_path / "blob", device)):
        assert executable.infer({"x": x})["y"].tolist() == expected.tolist()


def test_values_that_bodies_read_follow_the_input(core: Core, read: Read) -> None:
    network = read(
        "g (bool c, float[2] x) => (float[2] y) { y = If(c) <then_branch = t () => (float[2] a) { a = Neg(x) }, "
        "else_branch = e () => (float[2] b) { b = Identity(x) }> }"
    ).with_inputs({"x": InputInfo("I32", scale=2)})
    for device in DEVICES:
        loaded = core.load_network(network, device)
        assert [loaded.infer({"c": np.array(flag), "x": np.array([4, 6], np.int32)})["y"].tolist() for flag in (True, False)] == [
            [-2, -3],
            [2, 3],
        ]


def test_half_precision_model_computes_the_steps_in_single(core: Core, read: Read) -> None:
    network = read("g (float16[1,3] x) => (float16[1,3] y) { y = Identity(x) }")
    changed = network.with_inputs({"x": InputInfo("U8", mean=100.7, scale=0.3)})
    y = core.load_network(changed, "CPU").infer({"x": np.array([[1, 128, 255]], np.uint8)})["y"]
    exact = ((np.array([[1, 128, 255]], np.float32) - np.float32(100.7)) / np.float32(0.3)).astype(np.float16)
    assert y.tolist() == exact.tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_may_be_added_and_dropped(core: Core, read: Read, device: str) -> None:
    network = read("g (float[2] x, float[2] w) => (float[2] y, float[2] z) { a = Neg(x) y = Relu(a) z = Add(w, a) }")
    more = network.with_outputs(add=["a"])
    assert [spec.name for spec in more.outputs] == ["y", "z", "a"]
    less = more.with_outputs(only=["a", "y"])
    assert ([spec.name for spec in less.inputs], [node.op_type for node in less.nodes]) == (["x"], ["Neg", "Relu"])
    outputs = core.load_network(less, device).infer({"x": np.array([1, -2], np.float32)})
    assert {name: value.tolist() for name, value in outputs.items()} == {"a": [-1, 2], "y": [0, 2]}


def test_inner_value_is_converted_and_still_read_inside(core: Core, read: Read) -> None:
    network = read("g (float[2] x) => (float[2] y) { a = Neg(x) y = Relu(a) }")
    changed = network.with_outputs({"a": OutputInfo("FP64")}, add=["a"])
    outputs = core.load_network(changed, "CPU").infer({"x": np.array([1, -2], np.float32)})
    assert (outputs["a"].dtype, outputs["a"].tolist(), outputs["y"].tolist()) == (np.float64, [-1, 2], [0, 2])


REFUSED_INPUTS: list[tuple[str, dict[str, InputInfo], str]] = [
    (IMAGE, {"xx": InputInfo()}, "network 'g' has no input 'xx', did you mean 'x'? its inputs are x"),
    (IMAGE, {"x": InputInfo("FP33")}, "input 'x' of network 'g': there is no precision 'FP33', did you mean"),
    (IMAGE, {"x": InputInfo(layout="NHW")}, "layout 'NHW' does not name 4 axes; expected 4 different letters, as in 'NCHW'"),
    (
        IMAGE,
        {"x": InputInfo(layout="NTHW")},
        "layout 'NTHW' and the model's layout 'NCHW' name different axes; use the same letters",
    ),
    (IMAGE, {"x": InputInfo(color="RBG->RGB")}, "there is no change of colors 'RBG->RGB', did you mean"),
    (IMAGE, {"x": InputInfo(resize="lanczos")}, "there is no resize 'lanczos'; expected one of area, bilinear, cubic, nearest"),
    (
        IMAGE,
        {"x": InputInfo(resize="area")},
        "resize='area' needs the height and the width of the arrays, which are open; say them",
    ),
    (
        IMAGE,
        {"x": InputInfo(shape=(1, 3, 9, 6))},
        "an array of shape [1, 3, 9, 6] in layout NCHW does not fit the model's float32[N,3,8,6]: it becomes float32[1,3,9,6]; "
        "resize='bilinear' would bring height and width to the model's",
    ),
    (IMAGE, {"x": InputInfo(shape=(1, 3, 9))}, "does not fit the model's [N,3,8,6]: it has 3 axes instead of 4"),
    (
        IMAGE,
        {"x": InputInfo(mean=(1, 2))},
        "mean has the shape [2]; expected one number, or one for each channel of NCHW ['N', 3, 8, 6]",
    ),
    (IMAGE, {"x": InputInfo(mean=float("nan"))}, "mean is nan; expected finite numbers"),
    (IMAGE, {"x": InputInfo(scale=(1, 0, 1))}, "scale is (1, 0, 1); expected finite numbers, none of them 0"),
    (
        "g (uint8[1,3] x) => (uint8[1,3] y) { y = Identity(x) }",
        {"x": InputInfo(mean=1)},
        "mean, scale, interpolation and NV12 or I420 make fractions",
    ),
    (
        "g (int32[1,3] x) => (int32[1,3] y) { y = Identity(x) }",
        {"x": InputInfo("FP32")},
        "FP32 cannot become I32 without losing values: fractions or numbers out of range",
    ),
    (
        "g (int32[1,3] x) => (int32[1,3] y) { y = Identity(x) }",
        {"x": InputInfo("I64")},
        "I64 cannot become I32 without losing values",
    ),
    (
        "g (float[1,3,h,6] x) => (float[1,3,h,6] y) { y = Identity(x) }",
        {"x": InputInfo(shape=(1, 3, 4, 4), resize="nearest")},
        "the model's height and width are open (h, 6); give them sizes with with_shapes before the resize",
    ),
    ("g (float[2,2] x) => (float[2,2] x) { y = Neg(x) }", {"x": InputInfo("U8")}, "input 'x' of network 'g' is an output, too"),
    ("g (float[1,2] x) => (float[1,2] y) { y = Neg(x) }", {"x": InputInfo(resize="nearest")}, "resize needs the axes H and W"),
    (
        "g (float[1,2,3,4,5,6] x) => (float[1,2,3,4,5,6] y) { y = Neg(x) }",
        {"x": InputInfo("U8", "NCDEHW")},
        "6 axes have no usual layout; say the model's, as in model_layout='NTHWC'",
    ),
    ("g (float x) => (float y) { y = Neg(x) }", {"x": InputInfo(color="BGR->RGB", layout="")}, "0 axes have no usual layout"),
    (
        "g (float[1,2] x) => (float[1,2] y) { y = Neg(x) }",
        {"x": InputInfo(color="BGR->RGB")},
        "'BGR->RGB' needs 3 channels in the model's axis C; it takes float32[1,2] as NC",
    ),
]


@pytest.mark.parametrize(("text", "inputs", "message"), REFUSED_INPUTS, ids=[row[2][:40] for row in REFUSED_INPUTS])
def test_impossible_input_description_is_refused(read: Read, text: str, inputs: dict[str, InputInfo], message: str) -> None:
    with pytest.raises(InvalidNetworkError) as caught:
        read(text).with_inputs(inputs)
    assert message in str(caught.value)


OUTPUT = "g (float[2] x) => (float[2] yes) { inner = Neg(x) yes = Relu(inner) }"
REFUSED_OUTPUTS: list[tuple[str, dict[str, Any], str]] = [
    (OUTPUT, {"outputs": {"yess": OutputInfo()}}, "network 'g' has no output 'yess', did you mean 'yes'? its outputs are yes"),
    (OUTPUT, {"add": ["iner"]}, "network 'g' has no inner value 'iner', did you mean 'inner'?"),
    (OUTPUT, {"add": ["yes"]}, "'yes' is an output of network 'g' already; leave it out"),
    (OUTPUT, {"only": []}, "network 'g' would have no output; name at least one of yes"),
    (OUTPUT, {"only": ["no"]}, "network 'g' has no output 'no'; its outputs are yes"),
    (OUTPUT, {"outputs": {"yes": OutputInfo("I32")}}, "output 'yes' of network 'g': FP32 cannot become I32 without losing values"),
    (OUTPUT, {"outputs": {"yes": OutputInfo("BOOL")}}, "FP32 cannot become BOOL without losing values"),
    (
        "g (float[2] x) => (y) { y = com.acme.Odd(x) }",
        {"outputs": {"y": OutputInfo("FP16")}},
        "expected a tensor of a known element",
    ),
    ("g (float[2] x) => (float[2] z) { y = com.acme.Odd(x) z = Neg(x) }", {"add": ["y"]}, "its element type is not known"),
    ("g (float[2] x) => (float[2] x) { y = Neg(x) }", {"outputs": {"x": OutputInfo("FP16")}}, "is an input or a state, too"),
]


@pytest.mark.parametrize(("text", "changes", "message"), REFUSED_OUTPUTS, ids=[row[2][:40] for row in REFUSED_OUTPUTS])
def test_impossible_output_is_refused(read: Read, text: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidNetworkError) as caught:
        read(text).with_outputs(**changes)
    assert message in str(caught.value)


OPTIONAL = (
    '<ir_version: 8, opset_import: ["": 17]> g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {2, 3}, float[2] b = {1, 1}>'
)
OPTIONAL += "{ a = Mul(x, w) y = Add(a, b) }"


@pytest.mark.parametrize("device", DEVICES)
def test_listed_constant_becomes_an_input_with_a_default(core: Core, device: str, tmp_path: Any) -> None:
    network = core.read_network(onnx.parser.parse_model(OPTIONAL))
    assert ([spec.name for spec in network.inputs], network.border.replaceable) == (["x"], ("w",))
    freed = network.with_optional_inputs(["w"])
    x, ones = np.ones(2, np.float32), np.full(2, 10, np.float32)
    loaded = core.load_network(freed, device)
    loaded.export_network(tmp_path / "blob")
    from_file = core.load_network(core.read_network(network_to_bytes(freed)), device)
    for executable in (loaded, from_file, core.import_network(tmp_path / "blob", device)):
        assert [spec.name for spec in executable.inputs] == ["x", "w"]
        assert executable.infer({"x": x})["y"].tolist() == [3, 4]
        assert executable.infer({"x": x, "w": ones})["y"].tolist() == [11, 11]


def test_written_model_has_the_default_as_onnx_runtime_reads_it(core: Core) -> None:
    import onnxruntime

    freed = core.read_network(onnx.parser.parse_model(OPTIONAL)).with_optional_inputs(["w"])
    session = onnxruntime.InferenceSession(network_to_bytes(freed), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [3, 4]
    assert [value.name for value in session.get_overridable_initializers()] == ["w"]


def test_trip_count_that_becomes_an_input_still_runs_in_onnx_runtime(core: Core) -> None:
    import onnxruntime

    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[2] x, int64 n) => (y) <int64 n = {3}> {
        y = Loop <body = b (int64 i, bool c, float[] s) => (bool d, float[] t) { d = Identity(c) t = Add(s, s) }> (n, , x)
    }""")
    freed = core.read_network(model).with_optional_inputs(["n"])
    session = onnxruntime.InferenceSession(network_to_bytes(freed), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones(2, np.float32), "n": np.array(1)})[0].tolist() == [2, 2]


def test_constant_that_is_no_input_is_not_replaceable(core: Core) -> None:
    network = core.read_network(onnx.parser.parse_model(OPTIONAL))
    with pytest.raises(
        InvalidNetworkError, match="network 'g' has no replaceable constant 'b'; the model lists w among its inputs"
    ):
        network.with_optional_inputs(["b"])


def test_default_is_not_described_or_reshaped_behind_its_back(core: Core) -> None:
    freed = core.read_network(onnx.parser.parse_model(OPTIONAL)).with_optional_inputs(["w"])
    with pytest.raises(InvalidNetworkError, match="input 'w' of network 'g' has a value of its own, a default or a state"):
        freed.with_inputs({"w": InputInfo("FP64")})
    with pytest.raises(
        InvalidNetworkError, match=r"input 'w' of network 'g' has a default of float32\[2\]; another shape would not fit it"
    ):
        freed.with_shapes({"w": (4,)})


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_model_runs_in_single_on_request(core: Core, read: Read, device: str) -> None:
    network = read(
        "g (float16[2,2] x) => (float16[2,2] y) <float16[2,2] w = {15360, 16384, 16896, 17408}> "
        "{ a = MatMul(x, w) b = Cast<to=10>(a) y = Relu(b) }"
    )
    single = network.with_precision("FP16", "FP32")
    assert [str(spec) for spec in (*single.inputs, *single.outputs)] == ["x: float16[2,2]", "y: float16[2,2]"]
    assert {single.types[value].dtype for node in single.nodes[1:-1] for value in node.writes} == {"float32"}  # type: ignore[union-attr]  # all are tensors
    x = np.array([[0.1, 0.2], [0.3, 0.4]], np.float16)
    expected = (x.astype(np.float32) @ np.array([[1, 2], [3, 4]], np.float32)).astype(np.float16)
    assert core.load_network(single, device).infer({"x": x})["y"].tolist() == expected.tolist()


def test_empty_sequence_of_halves_is_made_in_single(core: Core, read: Read) -> None:
    network = read(
        "g (float16[2] x) => (float16[2] y) { s = SequenceEmpty<dtype=10>() t = SequenceInsert(s, x) y = ConcatFromSequence<axis=0>(t) }"
    )
    single = network.with_precision("FP16", "FP32")
    assert str(single.types["s"]) == "sequence(float32[...])"
    assert core.load_network(single, "CPU").infer({"x": np.array([1, 2], np.float16)})["y"].tolist() == [1, 2]


def test_precision_other_than_float_is_refused(read: Read) -> None:
    with pytest.raises(InvalidNetworkError, match="network 'g': I8 is no float precision; a network is converted between those"):
        read(OUTPUT).with_precision("FP32", "I8")


def test_custom_operator_keeps_a_network_from_being_converted(read: Read) -> None:
    with pytest.raises(
        InvalidNetworkError, match=r"node 'odd' \(com.acme:Odd-1\) reads or makes FP32, and what it does with another"
    ):
        read("g (float[2] x) => (float[2] y) { [odd] y = com.acme.Odd(x) }").with_precision("FP32", "FP16")
