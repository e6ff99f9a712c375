"""The front end for OpenVINO against OpenVINO itself: the same program, with either module as `ov`."""

from __future__ import annotations

import importlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import openvino
import pytest
from openvino.utils.types import get_dtype

from hetero_core import Core
from hetero_core.frontends import openvino as front
from hetero_core.frontends.openvino import replace_openvino

ROOT = Path(__file__).parents[3]
DIFFERENCE = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["": 21], metadata_props: ["character": "ab"]>
difference (float[N, 3] x, float[1] w) => (float[N, 3] y, float[N, 3] z) { [first] y = Sub (x, w) [second] z = Add (y, w) }
""").SerializeToString()
IMAGE = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["": 21]>
image (float[1, 3, 8, 6] x) => (float[1, 3, 8, 6] y) { y = Relu (x) }
""").SerializeToString()
X, W = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([2])


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """Returns the model compiled on OpenVINO's CPU, and by the front end on CPU."""
    models = {ov.__name__: ov.Core() for ov in (openvino, front)}
    return {name: core.compile_model(core.read_model(DIFFERENCE), "CPU") for name, core in models.items()}


EXPRESSIONS = (
    *(
        "ov.PartialShape([1, -1, (1, 5), 3])",
        "ov.PartialShape('[?,3,1..4]')",
        "ov.PartialShape.dynamic()",
        "ov.PartialShape([1, 2])[-1]",
    ),
    *(
        "ov.PartialShape.dynamic(3)",
        "ov.PartialShape([1, 2])[0:1]",
        "list(ov.PartialShape([1, -1]))",
        "ov.PartialShape([1, 2]).to_shape()",
    ),
    *(
        "ov.PartialShape([1, -1]) == ov.PartialShape([1, -1])",
        "ov.PartialShape([1, 2]) == [1, 2]",
        "ov.PartialShape([1, -1]).is_dynamic",
    ),
    *("ov.PartialShape([1, 2]).rank", "ov.PartialShape.dynamic().rank", "ov.PartialShape([1, (2, 3)]).get_min_shape()"),
    *("ov.Dimension('')", "len(ov.Dimension(3))", "[len(size) for size in ov.PartialShape([2, 3])]"),
    "[[a.relaxes(b), a.refines(b)] for a in map(ov.Dimension, SIZES) for b in map(ov.Dimension, SIZES)]",
    *("ov.ProfilingInfo.Status.EXECUTED.name", "ov.ProfilingInfo.NOT_RUN == ov.ProfilingInfo.Status.NOT_RUN"),
    *("ov.Dimension(-1)", "ov.Dimension(1, 4)", "ov.Dimension(2, -1)", "ov.Dimension('..5')", "ov.Dimension(3) == 3"),
    *(
        "ov.Dimension(3).get_length()",
        "ov.Dimension(2, -1).max_length",
        "ov.Dimension(-1).min_length",
        "ov.Shape([1, 2]) == (1, 2)",
    ),
    *(
        "ov.Shape([1, 2])",
        "ov.Shape('[1,3]')",
        "ov.Layout('nhwc')",
        "ov.Layout('NHWC').get_index_by_name('C')",
    ),
    *("ov.Layout('N...C')", "ov.Layout()", "ov.Layout('N...C').get_index_by_name('C')", "ov.Layout('n?').get_index_by_name('N')"),
    *("ov.Layout('NHWC') == ov.Layout('[N,H,W,C]')", "ov.Layout('NHWC').has_name('D')", "ov.Type.f32", "ov.Type(np.float32)"),
    *("ov.Type.f32.to_string()", "ov.Type.f32.size", "ov.Type.u4.size", "ov.Type.f16.to_dtype()", "ov.Type.i64.get_type_name()"),
    *("ov.Tensor([1, 2, 3])", "ov.Tensor(ov.Type.f32, [1, 2]).data.shape", "ov.Tensor(np.float32, ov.Shape([2])).byte_size"),
    *("ov.Tensor(ov.Tensor(X), [0, 1], [2, 3]).data.tolist()", "ov.Tensor(np.array(['ab', 'c'])).str_data.tolist()"),
    *("ov.Tensor(X).element_type", "ov.Tensor(X).get_shape()", "ov.Tensor(X, shared_memory=True).data[0].tolist()"),
    *("ov.Tensor(X, [6], ov.Type.f32).data.tolist()", "ov.Tensor(array=X, shape=[3], type=ov.Type.u8).data.tolist()"),
    *("ov.Tensor(np.uint8([33]), ov.Shape([2]), ov.Type.u4).shape", "ov.Tensor(X, [1, 2]).data.tolist()"),
    "[[each.bitwidth, each.size, each.to_dtype(), each.is_integral()] for each in (ov.Type.u1, ov.Type.u3, ov.Type.u6, ov.Type.nf4)]",
    "[[getattr(ov.layout_helpers, f'has_{axis}')(layout) for axis in AXES] for layout in map(ov.Layout, ('NCHW', 'N...C', '...W'))]",
    "[getattr(ov.layout_helpers, f'{axis}_idx')(ov.Layout('NCDHW')) for axis in AXES]",
    *("ov.properties.hint.performance_mode", "ov.properties.enable_profiling()", "ov.properties.streams.num"),
    *("ov.properties.device.priorities('CPU', 'GPU')[0]", "ov.properties.hint.Priority.LOW.name"),
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_values_are_those_of_openvino(expression: str) -> None:
    sizes = ["0", "2", "3", "1..3", "2..5", "2..", "..4", "?"]
    names = {"X": X, "np": np, "SIZES": sizes, "AXES": ("batch", "channels", "depth", "height", "width")}
    ours, theirs = (eval(expression, {"ov": module, **names}) for module in (front, openvino))
    assert repr(ours) == repr(theirs)


CALLS = (
    *(
        "{'x': X, 'w': W}",
        "{0: X, 1: W}",
        "{c.input('x'): X, c.inputs[1]: W}",
        "[X, W]",
        "(X, W)",
        "{'x': X.astype('int64'), 'w': W}",
    ),
    *("[np.float32([[np.nan, np.inf, -np.inf]]), W]", "[np.zeros((0, 3), np.float32), W]", "[np.ones((17, 3), np.float16), W]"),
    *("[X[::-1], W]", "{'x': ov.Tensor(X), 'w': ov.Tensor(W)}", "[X.astype(np.float64), W]"),
)


@pytest.mark.parametrize("inputs", CALLS)
def test_calls_answer_as_openvino_does(inputs: str, compiled: dict[str, Any]) -> None:
    answers = []
    for ov in (front, openvino):
        c = compiled[ov.__name__]
        given = eval(inputs, {"ov": ov, "c": c, "X": X, "W": W, "np": np})
        for result in (c(given), c.create_infer_request().infer(given), c.infer_new_request(given)):
            answers.append(
                [result[0], result["y"], result[c.output(0)], *result.values(), *result.to_tuple(), *result.to_dict().values()]
            )
            assert result.names() == ({"y"}, {"z"})
            assert list(result) == c.outputs
            assert ["y" in result, 1 in result, "q" in result] == [True, True, False]
            assert result.get("q") is None
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0])


WRONG = (
    *(
        "c({'q': X})",
        "c([X, W, W])",
        "c(X)",
        "c({'x': np.ones((2, 4), np.float32), 'w': W})",
        "c.input('q')",
        "c.output(5)",
        "c.output()",
    ),
    *(
        "c.get_property('FOO')",
        "c.inputs[0].shape",
        "core.read_model('no.onnx')",
        "core.compile_model(m, 'XPU')",
        "core.read_model(b'abc')",
    ),
    *("core.compile_model(m, 'CPU', {'FOO': 1})", "m.reshape({'q': [1, 3]})"),
    *("m.get_rt_info(['framework', 'absent'])", "core.get_property('CPU', 'FOO')", "c.create_infer_request().get_tensor('q')"),
)


@pytest.mark.parametrize("call", WRONG)
def test_mistakes_are_runtime_errors_as_in_openvino(call: str, compiled: dict[str, Any]) -> None:
    for ov in (front, openvino):
        core = ov.Core()
        names = {"c": compiled[ov.__name__], "core": core, "m": core.read_model(DIFFERENCE), "X": X, "W": W, "np": np}
        with pytest.raises(RuntimeError):
            eval(call, names)


@pytest.mark.parametrize(
    "shape", ["[2, 3]", "{'x': [2, 3]}", "{0: ov.PartialShape([-1, 3])}", "{m.input(0): '2..4,3'}", "{'x': (5, 3)}"]
)
def test_reshape_gives_the_shapes_of_openvino(shape: str) -> None:
    texts = []
    for ov in (front, openvino):
        m = ov.Core().read_model(DIFFERENCE)
        if shape == "[2, 3]":
            m = ov.Core().read_model(IMAGE)
            m.reshape([2, 3, 4, -1])
        else:
            m.reshape(eval(shape, {"ov": ov, "m": m}))
        texts.append(str([(port.any_name, port.partial_shape, port.element_type.to_string()) for port in (*m.inputs, *m.outputs)]))
    assert texts[0] == texts[1]


def describe_bytes(ov: Any, ppp: Any) -> None:
    ppp.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC")).set_color_format(ov.preprocess.ColorFormat.BGR)
    ppp.input().preprocess().convert_element_type(ov.Type.f32).convert_color(ov.preprocess.ColorFormat.RGB)
    ppp.input().preprocess().mean([1.0, 2.0, 3.0]).scale([4.0, 5.0, 6.0])
    ppp.input().model().set_layout(ov.Layout("NCHW"))
    ppp.output().tensor().set_element_type(ov.Type.f16)


def describe_photograph(ov: Any, ppp: Any) -> None:
    ppp.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC")).set_spatial_static_shape(12, 20)
    steps = ppp.input("x").preprocess().convert_element_type(ov.Type.f32)
    steps.resize(ov.preprocess.ResizeAlgorithm.RESIZE_LINEAR).scale(255.0)
    ppp.input(0).model().set_layout(ov.Layout("NCHW"))
    ppp.output().model().set_layout(ov.Layout("NCHW"))
    ppp.output(0).postprocess().convert_layout(ov.Layout("NHWC"))


def describe_part(ov: Any, ppp: Any) -> None:
    ppp.input().tensor().set_shape([1, 10, 9, 3]).set_layout(ov.Layout("NHWC"))
    ppp.input().model().set_layout(ov.Layout("NCHW"))
    ppp.input().preprocess().reverse_channels().crop([0, 1, 2, 0], [1, 7, 8, 3]).convert_layout(ov.Layout("NCHW"))
    ppp.input().preprocess().pad([0, 0, 1, 0], [0, 0, 1, 0], 0.5, ov.preprocess.PaddingMode.CONSTANT)


def describe_center(ov: Any, ppp: Any) -> None:
    # As for networks of ImageNet: numbers up to 1, a resize, the part in the middle, the mean and the deviation of each channel.
    ppp.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC")).set_spatial_static_shape(20, 20)
    ppp.input().model().set_layout(ov.Layout("NCHW"))
    steps = ppp.input().preprocess().convert_element_type(ov.Type.f32).scale(255.0)
    steps.resize(ov.preprocess.ResizeAlgorithm.RESIZE_LINEAR, 10, 12).crop([0, 1, 3, 0], [1, 9, 9, 3])
    steps.mean([0.5, 0.25, 0.125]).scale([0.25, 0.5, 1.0]).mean(-1.0).reverse_channels()


def describe_turns(ov: Any, ppp: Any) -> None:
    ppp.input().tensor().set_shape([1, 6, 5, 3]).set_layout(ov.Layout("NHWC"))
    ppp.input().model().set_layout(ov.Layout("NCHW"))
    steps = ppp.input().preprocess().pad([0, 1, 1, 0], [0, 1, 0, 0], 9.0, ov.preprocess.PaddingMode.CONSTANT)
    steps.convert_layout(ov.Layout("NCHW")).crop([0, 0, 1, 0], [1, 3, 8, 6]).convert_layout(ov.Layout("NHWC"))
    steps.pad([0, 1, 0, 0], [0, 0, 0, 0], 5.0, ov.preprocess.PaddingMode.CONSTANT).convert_layout([0, 3, 1, 2])


def describe_mirrored(ov: Any, ppp: Any) -> None:
    ppp.input().tensor().set_layout(ov.Layout("NCHW")).set_shape([1, 3, 6, 4])
    ppp.input().preprocess().pad([0, 0, 1, 2], [0, 0, 1, 0], 0.0, ov.preprocess.PaddingMode.REFLECT).mean(1.0)


def describe_axes(ov: Any, ppp: Any) -> None:
    ppp.input().tensor().set_shape([1, 8, 6, 3])
    ppp.input().preprocess().convert_layout([0, 3, 1, 2])


def describe_planes(ov: Any, ppp: Any) -> None:
    ppp.input().tensor().set_element_type(ov.Type.u8).set_color_format(ov.preprocess.ColorFormat.NV12_SINGLE_PLANE)
    ppp.input().model().set_layout(ov.Layout("NCHW"))
    ppp.input().preprocess().convert_element_type(ov.Type.f32).convert_color(ov.preprocess.ColorFormat.RGB)


DESCRIPTIONS = (
    *(describe_bytes, describe_photograph, describe_part, describe_center, describe_turns),
    *(describe_mirrored, describe_axes, describe_planes),
)


@pytest.mark.parametrize("describe", DESCRIPTIONS)
def test_preprocessing_answers_as_openvino_does(describe: Any) -> None:
    outputs = []
    for ov in (front, openvino):
        core = ov.Core()
        model = core.read_model(IMAGE)
        ppp = ov.preprocess.PrePostProcessor(model)
        describe(ov, ppp)
        built = ppp.build()
        compiled = core.compile_model(built, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        port = compiled.input()
        sizes = tuple(port.shape)
        image = np.random.default_rng(3).integers(0, 256, sizes).astype(port.element_type.to_dtype())
        outputs.append((port.element_type.to_string(), sizes, compiled(image)[0]))
    assert outputs[0][:2] == outputs[1][:2]
    assert outputs[0][2].dtype == outputs[1][2].dtype
    np.testing.assert_allclose(*(output.astype(np.float64) for _, _, output in outputs), atol=1e-3, rtol=1e-3)


def run_requests(ov: Any, compiled: Any) -> list[Any]:
    """Returns what a program sees of requests and a queue."""
    request = compiled.create_infer_request()
    request.set_tensor("x", ov.Tensor(X))
    request.set_input_tensor(1, ov.Tensor(W))
    seen = [request.infer()["y"], request.get_output_tensor(1).data.copy(), request.get_tensor("x").data.copy()]
    request.get_input_tensor(0).data[:] = 7
    seen += [request.infer()[0], request.infer({"w": np.float32([1])})[0], request.infer()[0]]
    calls: list[Any] = []
    request.set_callback(calls.append, "first")
    reused = X.copy()
    request.start_async([reused, W], "second")
    reused[:] = 99
    seen += [request.wait(), request.wait_for(1), request.userdata, calls, *request.results.values()]
    output = ov.Tensor(np.zeros((2, 3), np.float32), shared_memory=True)
    request.set_output_tensor(0, output)
    request.infer()
    seen += [output.data.copy(), request.latency > 0, len(request.input_tensors), len(request.output_tensors)]
    queue = ov.AsyncInferQueue(compiled, 2)
    sums: list[Any] = []
    queue.set_callback(lambda request, userdata: sums.append((userdata, float(request.get_output_tensor(0).data.sum()))))
    for number in range(6):
        queue.start_async({0: X + number, 1: W}, number)
    queue.wait_all()
    single, filled = ov.AsyncInferQueue(compiled, 1), ov.Tensor(np.zeros((2, 3), np.float32), shared_memory=True)
    single[0].set_input_tensors({0: ov.Tensor(X), 1: ov.Tensor(W)})
    single[0].set_output_tensors({0: filled})
    for inputs in (None, {"w": W + 5}, None):  # an input that was given stays
        single.start_async(inputs)
        single.wait_all()
        seen.append(filled.data.copy())
    own_sums: list[float] = []
    single.set_callback(lambda request, _: own_sums.append(float(request.get_output_tensor(0).data.sum())))
    for number in range(3):  # a request of the queue is started by itself, and by the queue
        own = single[single.get_idle_request_id()]
        own.set_input_tensors({0: ov.Tensor(X + number), 1: ov.Tensor(W)})
        own.start_async()
        single.wait_all()
        single.start_async({0: X + 10 * number, 1: W}, number)
        single.wait_all()
        seen += [list(own_sums), single.userdata]
    ported = ov.Tensor(compiled.inputs[1], W)
    seen += [ported.data is not W, np.shares_memory(ported.data, W)]
    return [*seen, sorted(sums), len(queue), queue.is_ready(), sorted(queue.userdata)[-1] >= 4, queue[0].results["z"].shape]


def test_requests_and_queues_answer_as_openvino_does(compiled: dict[str, Any]) -> None:
    ours, theirs = (run_requests(ov, compiled[ov.__name__]) for ov in (front, openvino))
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(our, their)


def test_metadata_stands_where_openvino_has_it() -> None:
    for ov in (front, openvino):
        model = ov.Core().read_model(DIFFERENCE)
        assert model.get_rt_info()["framework"]["character"].value == "ab"  # as rapidocr reads it
        assert model.get_rt_info(["framework", "character"]).astype(str) == "ab"
        assert model.has_rt_info(["framework", "character"])
        assert not model.has_rt_info("absent")
        model.set_rt_info({"kind": "yolo"}, "model_info")
        assert model.get_rt_info(["model_info", "kind"]).value == "yolo"


def test_blobs_come_back(compiled: dict[str, Any]) -> None:
    for ov in (front, openvino):
        stream = compiled[ov.__name__].export_model()
        again = ov.Core().import_model(stream.getvalue(), "CPU")
        np.testing.assert_array_equal(again([X, W])["y"], X - 2)


# In OpenVINO's place


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    with replace_openvino():
        yield


@pytest.mark.parametrize("device", ["OPENVINO", "HETERO:OPENVINO,CPU"])
def test_device_openvino_holds_the_engine_in_place_of_openvino(
    device: str, replaced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETERO_DEVICE", device)
    import openvino as ov
    import openvino.properties.hint as hints
    from openvino.runtime import Core as OlderCore

    assert ov.Core is OlderCore is front.Core
    assert "opset13" in vars(ov)  # the engine's other names stay
    compiled = ov.compile_model(
        ov.Core().read_model(io.BytesIO(DIFFERENCE)), "CPU", {hints.performance_mode: hints.PerformanceMode.LATENCY}
    )
    assert isinstance(compiled, front.CompiledModel)
    np.testing.assert_array_equal(compiled([X, W])["y"], X - 2)
    assert compiled.get_property("EXECUTION_DEVICES") == ["OPENVINO"]


def test_device_that_was_there_before_holds_the_engine() -> None:
    with Core() as core:
        assert core.load_network(DIFFERENCE, "OPENVINO").infer([X, W])["y"].sum() == (X - 2).sum()
        with replace_openvino():
            large = onnx.parser.parse_model(
                '<ir_version: 8, opset_import: ["": 17]> g (float[2] a, int64[1] i) => (b, c) { b = Relu (a) c = Gather (a, i) }'
            )
            outputs = core.load_network(large, "OPENVINO").infer([np.float32([-1, 1]), np.int64([1])])
    assert [value.tolist() for value in outputs.values()] == [[0, 1], [1]]


def test_openvino_is_back_after_the_block() -> None:
    before = dict(vars(openvino))
    with replace_openvino():
        assert openvino.Core is front.Core
    assert dict(vars(openvino)) == before
    assert importlib.import_module("openvino.properties") is openvino.properties
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("openvino.runtime")


def test_functions_of_openvino_know_the_types() -> None:
    with replace_openvino():
        names = ("boolean", "f32", "u8", "i64", "bf16")
        assert [get_dtype(getattr(openvino.Type, name)) for name in names] == ["bool", "float32", "uint8", "int64", "uint16"]
    assert front.Type.u8 not in (openvino.Type.i8, "u8", None)


@pytest.mark.parametrize(
    "options",
    [
        "-d CPU -api sync -pc",
        "-d HETERO:TEMPLATE,CPU -nireq 2 -b 3 -layout [N...]",
        "-d CPU -inference_only False -data_shape [2,3],[4,3]",
    ],
)
def test_benchmark_app_runs_behind_the_front_end(options: str, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 3] y) { [neg] y = Neg (x) }'
    (tmp_path / "model.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    shape = ["-shape", "[?,3]"] if "data_shape" in options else ["-shape", "[2,3]"]
    (tmp_path / "app.py").write_text("from openvino.tools.benchmark.main import main; main()")
    words = ["app.py", "-m", "model.onnx", "-niter", "4", *shape, *options.split()]
    command = [sys.executable, "-m", "hetero_core.frontends.openvino", *words]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "Count:            4 iterations" in run.stdout, run.stdout + run.stderr
    assert ("neg" in run.stdout and "Status.EXECUTED" in run.stdout) == ("-pc" in options)


def test_objects_of_openvino_itself_are_refused() -> None:
    model = openvino.Core().read_model(DIFFERENCE)
    with pytest.raises(RuntimeError, match=r"expected a Model of hetero_core.frontends.openvino, .*, got openvino\._ov_api\.Model"):
        front.Core().compile_model(model, "CPU")


# The table of OpenVINO's API

KINDS = (
    *(
        "Core",
        "Model",
        "CompiledModel",
        "InferRequest",
        "AsyncInferQueue",
        "Tensor",
        "ConstOutput",
        "PartialShape",
        "Dimension",
        "Shape",
    ),
    *("Type", "Layout", "OVAny", "Node", "ProfilingInfo", "preprocess.PrePostProcessor", "preprocess.InputInfo"),
    *("preprocess.InputTensorInfo", "preprocess.PreProcessSteps", "preprocess.InputModelInfo", "preprocess.OutputInfo"),
    *("preprocess.OutputTensorInfo", "preprocess.PostProcessSteps", "preprocess.OutputModelInfo", "preprocess.ColorFormat"),
    *("preprocess.ResizeAlgorithm", "preprocess.PaddingMode", "layout_helpers"),
)
PROPERTIES = ("properties", *(f"properties.{group}" for group in ("device", "hint", "intel_auto", "intel_cpu", "log", "streams")))


def list_names() -> set[str]:
    """Returns the public names of the installed OpenVINO: of the module, of the classes of `KINDS`, and of `PROPERTIES`."""
    names = {name for name in dir(openvino) if not name.startswith("_") and not re.fullmatch(r"opset\d+", name)}
    for kind in KINDS:
        names |= {f"{kind}.{name}" for name in dir(attrgetter(kind)(openvino)) if not name.startswith("_")}
    for group in PROPERTIES:
        members = dir(attrgetter(f"_pyopenvino.{group}")(openvino))
        names |= {f"{group}.{name}" for name in members if not name.startswith("_")}
    return names


def open_samples() -> dict[str, Any]:
    """Returns class of OpenVINO -> an object of the front end."""
    core = front.Core()
    model = core.read_model(IMAGE)
    compiled = core.compile_model(model, "CPU", {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    request.infer(np.zeros((1, 3, 8, 6), np.float32))
    ppp = front.preprocess.PrePostProcessor(model)
    into, out = ppp.input(), ppp.output()
    queue, port, node = front.AsyncInferQueue(compiled, 1), compiled.input(), model.get_ops()[0]
    values = (front.PartialShape([1]), front.Dimension(1), front.Shape([1]), front.Type.f32, front.Layout("N"), front.OVAny(1))
    samples = (core, model, compiled, request, queue, front.Tensor(X), port, *values, node, request.profiling_info[0])
    steps = (ppp, into, into.tensor(), into.preprocess(), into.model(), out, out.tensor(), out.postprocess(), out.model())
    enums = (front.preprocess.ColorFormat.RGB, front.preprocess.ResizeAlgorithm.RESIZE_CUBIC, front.preprocess.PaddingMode.CONSTANT)
    return dict(zip(KINDS, (*samples, *steps, *enums, front.layout_helpers), strict=True))


def test_table_lists_the_names_of_openvino_and_which_are_there() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| (yes|no) \| (.*) \|$", (ROOT / "docs/reference/openvino-api.md").read_text(), re.MULTILINE
    )
    assert sorted(name for name, _, _ in rows) == sorted(list_names())
    samples = open_samples()
    for name, answer, reason in rows:
        kind, _, member = name.rpartition(".")
        holder = samples[kind] if kind in samples else attrgetter(kind)(front) if kind else front
        assert (answer == "yes") == hasattr(holder, member), name
        assert answer == "yes" or reason, f"{name}: say why it is not there"


def test_properties_have_the_keys_of_openvino() -> None:
    for group in PROPERTIES:
        ours, theirs = attrgetter(group)(front), attrgetter(group)(openvino)
        keys = {name: key for name, key in vars(ours).items() if isinstance(key, str) and not name.startswith("_")}
        assert keys == {name: str(getattr(theirs, name)) for name in keys}


def test_types_and_sizes_answer_as_openvinos() -> None:
    for own in front.Type:
        other = getattr(openvino.Type, own.name)
        for question in ("is_real", "is_integral", "is_integral_number"):
            assert getattr(own, question)() == getattr(other, question)(), (own, question)
        assert own.bitwidth == own.get_bitwidth() == (0 if own is front.Type.string else other.bitwidth), own
    texts = ("1..5", "3", "?", "6..", "..2")
    for first in texts:
        for second in texts:
            sizes = [module.Dimension(first).compatible(module.Dimension(second)) for module in (front, openvino)]
            shapes = [
                module.PartialShape(f"[1,{first}]").compatible(module.PartialShape(f"[?,{second}]")) for module in (front, openvino)
            ]
            assert sizes[0] == sizes[1], (first, second)
            assert shapes[0] == shapes[1], (first, second)
    assert not front.PartialShape([1]).compatible(front.PartialShape([1, 1]))
    assert front.PartialShape.dynamic().compatible(front.PartialShape([1]))
    assert front.PartialShape("?,3").get_max_shape() == list(openvino.PartialShape("?,3").get_max_shape())
    assert front.Dimension.dynamic() == front.Dimension(-1)
    assert front.Tensor(np.ones(3)).is_continuous()
