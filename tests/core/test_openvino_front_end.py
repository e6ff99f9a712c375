"""The front end for OpenVINO on hetero's own devices; `plugins/openvino/tests/test_front_end.py` compares it with OpenVINO itself."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hetero_core.frontends.openvino.properties.hint as hints
import numpy as np
import onnx.parser
import pytest

import hetero_core.frontends.openvino as ov
from hetero_core import Extension
from hetero_core.devices.processors import count_processors
from hetero_core.frontends.openvino import properties, replace_openvino
from hetero_core.frontends.openvino.preprocess import ColorFormat, PaddingMode, PrePostProcessor, ResizeAlgorithm
from hetero_core.frontends.replacement import run_program

MODEL = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["": 21]>
difference (float[N, 3] x, float[1] w) => (float[N, 3] y, float[N, 3] z) { [first] y = Sub (x, w) [second] z = Add (y, w) }
""").SerializeToString()
ONE = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["": 21]>
image (float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y) { [negate] y = Neg (x) }
""").SerializeToString()
X, W = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([2])


@pytest.fixture(scope="module")
def compiled() -> ov.CompiledModel:
    return ov.compile_model(MODEL, "TEMPLATE")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "difference.onnx").write_bytes(MODEL)
    return tmp_path / "difference.onnx"


# Models


def test_models_are_read_from_paths_bytes_and_streams(path: Path) -> None:
    core = ov.Core()
    for source in (path, str(path), MODEL, io.BytesIO(MODEL), onnx.load_from_string(MODEL)):
        model = core.read_model(source)
        assert [port.any_name for port in (*model.inputs, *model.outputs)] == ["x", "w", "y", "z"]
        assert core.compile_model(source, "CPU")([X, W])[0].tolist() == (X - 2).tolist()
    assert core.read_model(model=str(path), weights=path.with_suffix(".bin")).input("w").shape == [1]
    with pytest.raises(RuntimeError, match="reading a model has no property NUM_STREAMS"):
        core.read_model(path, config={"ENABLE_MMAP": False, "NUM_STREAMS": 1})


@pytest.mark.parametrize("source", ["model.xml", Path("folder/model.xml"), b"<?xml version='1.0'?><net/>"])
def test_ir_is_refused_with_the_exporters_to_use(source: Any) -> None:
    with pytest.raises(RuntimeError, match=r"OpenVINO's IR, and hetero reads ONNX: export the model .*torch\.onnx\.export"):
        ov.Core().read_model(source)


def test_ports_answer_as_nodes_and_tensors() -> None:
    model = ov.Core().read_model(MODEL)
    port = model.inputs[0]
    names = [port.node.friendly_name, port.get_node().get_friendly_name(), port.get_tensor().get_any_name()]
    assert names == [port.any_name] * 3
    assert [each.get_type_name() for each in (*model.get_parameters(), *model.results)] == 2 * ["Parameter"] + 2 * ["Result"]
    model.set_rt_info("value", ["outer", "inner"])
    assert model.get_rt_info(["outer", "inner"]).astype(str) == "value"


def test_ports_tell_names_types_and_shapes() -> None:
    model = ov.Core().read_model(MODEL)
    port = model.input("x")
    assert (port.get_any_name(), port.get_names(), port.get_index(), port.get_element_type()) == ("x", {"x"}, 0, ov.Type.f32)
    assert str(port.get_partial_shape()) == "[?,3]"
    assert model.is_dynamic()
    with pytest.raises(RuntimeError, match=r"the shape \[\?,3\] is open"):
        port.get_shape()
    with pytest.raises(RuntimeError, match="the input 'q' was not found; there are 0: x, 1: w"):
        model.input("q")


def test_bounds_of_a_reshape_stay_bounds() -> None:
    model = ov.Core().read_model(MODEL)
    model.reshape({"x": [ov.Dimension(2, 4), 3]})
    assert str(model.input("x").partial_shape) == "[2..4,3]"
    compiled = ov.Core().compile_model(model, "CPU")
    assert compiled([X, W])["y"].shape == (2, 3)
    with pytest.raises(RuntimeError, match="2 to 4"):
        compiled([np.ones((5, 3), np.float32), W])


def test_batch_is_read_and_set() -> None:
    model = ov.Core().read_model(ONE)
    assert ov.get_batch(model) == 1
    ov.set_batch(model, 5)
    assert ov.get_batch(model) == 5
    assert model.output().shape == [5, 3, 4, 4]


def test_affinity_of_nodes_pins_them() -> None:
    core = ov.Core()
    model = core.read_model(MODEL)
    for node in model.get_ordered_ops():
        node.get_rt_info()["affinity"] = "TEMPLATE" if node.get_type_name() == "Sub" else "CPU"
    assert core.query_model(model, "HETERO:TEMPLATE,CPU") == {"first": "TEMPLATE", "second": "CPU"}
    assert core.compile_model(model.clone(), "HETERO:TEMPLATE,CPU").get_property("HETERO_NUMBER_OF_SUBMODELS") == 2


def test_inner_values_become_outputs_and_models_are_saved(tmp_path: Path) -> None:
    core = ov.Core()
    model = core.read_model(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { a = Neg (x) y = Abs (a) }'
        )
    )
    (port,) = model.add_outputs("a")
    ov.save_model(model, tmp_path / "more.onnx")
    assert core.compile_model(tmp_path / "more.onnx", "CPU")([np.float32([1, -2])])[port.any_name].tolist() == [-1, 2]
    for arguments, reason in ((("m.xml",), "with the suffix .onnx"), (("m.onnx", True), "does not compress the weights")):
        with pytest.raises(RuntimeError, match=reason):
            ov.serialize(model, *arguments)


def test_extension_of_hetero_is_taken_and_a_library_is_not() -> None:
    core = ov.Core()
    core.add_extension([Extension("test", "Twice", 1, lambda x: x * 2, lambda types, _: types)])
    text = '<ir_version: 10, opset_import: ["": 21, "test": 1]> g (float[2] x) => (float[2] y) { y = test.Twice (x) }'
    assert core.compile_model(onnx.parser.parse_model(text), "TEMPLATE")(np.float32([1, 2]))[0].tolist() == [2, 4]
    with pytest.raises(RuntimeError, match=r"'library.so' is an extension of OpenVINO; give a hetero_core.Extension"):
        core.add_extension("library.so")


# Runs


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.float64(2), np.int64(2), [2], np.array(2), ov.Tensor(W)])
def test_single_numbers_and_lists_are_inputs(value: Any, compiled: ov.CompiledModel) -> None:
    for run in (compiled, compiled.create_infer_request().infer):
        assert run({"x": X.tolist(), "w": value})["y"].tolist() == (X - 2).tolist()


def test_a_list_of_numbers_is_the_value_of_the_only_input() -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[M, 2] x) => (float[M, 2] y) { y = Neg (x) }'
    compiled = ov.compile_model(onnx.parser.parse_model(text), "CPU")
    assert compiled([[1, 2], [3, 4]])[0].tolist() == [[-1, -2], [-3, -4]]
    assert [output.tolist() for output in compiled(np.float32([[1, 2]])).values()] == [[[-1, -2]]]  # as ultralytics reads it
    assert compiled([np.float64([[1, 2]])]).to_tuple()[0].tolist() == [[-1, -2]]


def test_texts_are_decoded() -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (string[2] x) => (string[2] y) { y = Identity (x) }'
    compiled = ov.compile_model(onnx.parser.parse_model(text), "CPU")
    assert compiled(np.array(["a", "ß"]))[0].tolist() == ["a", "ß"]
    assert compiled(np.array(["a", "ß"]), decode_strings=False)[0].tolist() == [b"a", "ß".encode()]


def test_results_are_the_callers_own_unless_shared(compiled: ov.CompiledModel) -> None:
    request = compiled.create_infer_request()
    first = request.infer([np.asfortranarray(X), W], share_inputs=True)["y"]
    shared = request.infer([X, W], share_outputs=True)["y"]
    assert np.may_share_memory(shared, request.get_output_tensor(0).data)
    request.infer([X + 1, W])
    assert first.tolist() == (X - 2).tolist()


def test_an_array_may_be_reused_once_a_run_has_started(compiled: ov.CompiledModel) -> None:
    queue = ov.AsyncInferQueue(compiled, 2)
    sums: dict[int, tuple[float, float]] = {}

    def keep(request: ov.InferRequest, number: int) -> None:
        assert (request.userdata, request.latency > 0) == (number, True)
        sums[number] = (float(request.get_input_tensor(0).data.sum()), float(request.results["y"].sum()))

    queue.set_callback(keep)
    reused = X.copy()
    for number in range(8):
        reused[:] = number
        queue.start_async([reused, W], number)
    reused[:] = np.nan
    queue.wait_all()
    assert sums == {number: (6.0 * number, 6.0 * (number - 2)) for number in range(8)}
    assert len(queue.userdata) == len(list(queue)) == 2


def test_output_tensor_before_the_first_run_is_filled() -> None:
    request = ov.compile_model(ONE, "CPU").create_infer_request()
    tensor = request.get_output_tensor()
    request.get_input_tensor().data[:] = 3
    request.infer()
    assert np.unique(tensor.data).tolist() == [-3]


def test_open_input_tensor_takes_a_shape(compiled: ov.CompiledModel) -> None:
    request = compiled.create_infer_request()
    request.get_tensor("x").shape = [4, 3]
    request.get_tensor("x").data[:] = 1
    request.set_tensor(compiled.input("w"), W)
    assert request.infer()["y"].tolist() == [[-1] * 3] * 4
    early = compiled.create_infer_request().get_output_tensor(0)
    with pytest.raises(RuntimeError, match="'y' of network 'difference' has no value yet"):
        assert early.data is None


def test_output_tensor_has_the_values_of_each_run(compiled: ov.CompiledModel) -> None:
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    early = first.get_output_tensor(0)
    first.infer([X, W])
    late = first.get_output_tensor(0)
    second.set_input_tensors({0: first.get_output_tensor(1), 1: ov.Tensor(W)})
    for number in (3, 4):
        first.infer([X + number, W])
        assert early.data.tolist() == late.data.tolist() == (X + number - W).tolist()
        assert second.infer()[0].tolist() == (X + number - W).tolist()
    late.data = np.zeros((2, 3), np.float32)
    first.infer()
    assert late.data.tolist() == (X + 4 - W).tolist()


def test_failed_and_cancelled_runs_raise_runtime_errors(compiled: ov.CompiledModel) -> None:
    request = compiled.create_infer_request()
    calls: list[Any] = []
    request.set_callback(calls.append)
    with pytest.raises(RuntimeError, match=r"input 'x' of network 'difference': expected shape \[N,3\], got \[2, 4\]"):
        request.start_async([np.ones((2, 4), np.float32), W])
    request.cancel()
    request.wait()
    assert not calls


def test_times_of_nodes_are_told_with_perf_count() -> None:
    request = ov.compile_model(MODEL, "TEMPLATE", {properties.enable_profiling: True}).create_infer_request()
    request.infer([X, W])
    assert [(each.node_name, each.node_type) for each in request.profiling_info] == [("first", "Sub"), ("second", "Add")]
    assert all(each.real_time.total_seconds() > 0 for each in request.get_profiling_info())


def test_states_stay_from_run_to_run() -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1] x, float[1] s) => (float[1] t) { t = Add (x, s) }'
    model = ov.Core().read_model(onnx.parser.parse_model(text))
    model.network = model.network.with_state({"t": "s"})
    compiled = ov.Core().compile_model(model, "CPU")
    request = compiled.create_infer_request()
    for runs in (compiled, request.infer):
        runs([np.float32([1])])
        runs([np.float32([1])])
    assert [state.state.data.tolist() for state in (*compiled.query_state(), *request.query_state())] == [[2], [2]]
    request.query_state()[0].state = ov.Tensor(np.float32([40]))
    compiled.reset_state()
    request.infer([np.float32([2])])
    assert [state.state.data.tolist() for state in (*compiled.query_state(), *request.query_state())] == [[0], [42]]


def test_blob_comes_back(tmp_path: Path, compiled: ov.CompiledModel) -> None:
    with (tmp_path / "blob").open("wb") as stream:
        compiled.export_model(stream)
    blob = compiled.export_model()
    assert blob.getvalue() == (tmp_path / "blob").read_bytes()
    for source in (blob, blob.getvalue(), ov.Tensor(np.frombuffer(blob.getvalue(), np.uint8))):
        assert ov.Core().import_model(source, "TEMPLATE")([X, W])["y"].tolist() == (X - 2).tolist()


# Properties and devices


def test_hints_reach_the_device_by_their_names() -> None:
    core = ov.Core()
    core.set_property("CPU", {hints.performance_mode: hints.PerformanceMode.THROUGHPUT, "INFERENCE_NUM_THREADS": "1"})
    core.set_property("CPU", properties.streams.num(-1))
    assert core.get_property("CPU", hints.performance_mode) == hints.PerformanceMode.THROUGHPUT
    config = {
        hints.execution_mode: hints.ExecutionMode.ACCURACY,
        "INFERENCE_NUM_THREADS": 0,
    }
    compiled = core.compile_model(MODEL, "CPU", config)
    assert compiled.get_property("EXECUTION_MODE_HINT") == "ACCURACY"
    assert compiled.get_property(properties.execution_devices) == ["CPU"]
    assert compiled.get_property("SUPPORTED_PROPERTIES")["PERF_COUNT"] == "RW"
    assert core.get_property("CPU", "FULL_DEVICE_NAME")
    assert properties.log.level(properties.log.Level.ERR) == ("LOG_LEVEL", "LOG_ERROR")
    compiled.set_property({"PERF_COUNT": True})
    assert compiled.get_property("PERF_COUNT") is True


def test_more_threads_than_processors_are_one_for_each() -> None:
    compiled = ov.Core().compile_model(MODEL, "CPU", {properties.inference_num_threads: 1000})
    assert compiled.get_property("INFERENCE_NUM_THREADS") == count_processors()


def test_hint_that_a_device_does_not_have_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    core = ov.Core()
    with caplog.at_level(logging.WARNING):
        core.set_property("CPU", {"ENABLE_CPU_PINNING": "True"})
        compiled = core.compile_model(MODEL, "CPU", {hints.inference_precision: ov.Type.f32})
    assert "CPU has no ENABLE_CPU_PINNING; it computes as it does without" in caplog.text
    assert (compiled.get_property("ENABLE_CPU_PINNING"), core.get_property("CPU", "ENABLE_CPU_PINNING")) == ("True", "True")
    assert compiled.get_property(hints.inference_precision) == ov.Type.f32
    with pytest.raises(RuntimeError, match="device CPU has no configuration key 'ENABLE_PINNING'"):
        core.set_property("CPU", {"ENABLE_PINNING": True})


def test_precision_that_a_device_does_not_have_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        compiled = ov.Core().compile_model(MODEL, "CPU", {hints.inference_precision: ov.Type.f16})
    assert "CPU does not compute in f16; it computes as it does without" in caplog.text
    assert compiled.get_property(hints.inference_precision) == ov.Type.f16


def test_properties_of_all_devices(tmp_path: Path) -> None:
    core = ov.Core()
    core.set_property({properties.cache_dir: str(tmp_path)})
    assert core.get_property("CACHE_DIR") == core.get_property("CPU", "CACHE_DIR") == str(tmp_path)
    with pytest.raises(RuntimeError, match="no value was set for 'PERF_COUNT' of all devices"):
        core.get_property("PERF_COUNT")


def test_devices_are_those_of_hetero(monkeypatch: pytest.MonkeyPatch) -> None:
    core = ov.Core()
    assert {"CPU", "TEMPLATE.0"} <= set(core.available_devices)
    assert core.get_versions("CPU")["CPU"].description.startswith("hetero-cpu")
    monkeypatch.setenv("HETERO_DEVICE", "HETERO:TEMPLATE,CPU")
    assert core.compile_model(MODEL, "CPU").get_property("EXECUTION_DEVICES") == ["TEMPLATE"]


# Preprocessing


def test_photograph_becomes_the_input() -> None:
    model = ov.Core().read_model(ONE)
    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_element_type(ov.Type.u8).set_layout("NHWC").set_color_format(ColorFormat.BGR).set_spatial_static_shape(
        8, 8
    )
    steps = ppp.input().preprocess().convert_element_type(ov.Type.f32).convert_color(ColorFormat.RGB)
    steps.resize(ResizeAlgorithm.RESIZE_NEAREST).mean([1, 2, 3]).scale(2.0).convert_layout(ov.Layout("NCHW"))
    assert ppp.build() is model
    photograph = np.zeros((1, 8, 8, 3), np.uint8) + np.uint8([30, 20, 10])
    assert ov.compile_model(model, "CPU")(photograph)[0][0, :, 0, 0].tolist() == [-4.5, -9, -13.5]


def test_means_and_scales_in_any_order_are_joined() -> None:
    # Networks trained with torchvision: numbers up to 1, then the mean and the deviation of each channel.
    ppp = PrePostProcessor(ov.Core().read_model(ONE))
    ppp.input().tensor().set_element_type(ov.Type.u8).set_layout("NHWC").set_spatial_dynamic_shape()
    ppp.input().preprocess().scale(255.0).mean([0.25, 0.5, 0.75]).scale([0.5, 0.25, 1.0]).mean(1.0)
    photograph = np.zeros((1, 4, 4, 3), np.uint8) + np.uint8([51, 102, 255])
    # ONE is Neg: ((x / 255 - mean) / deviation - 1) * -1
    assert ov.compile_model(ppp.build(), "CPU")(photograph)[0][0, :, 0, 0] == pytest.approx([1.1, 1.4, 0.75])


@pytest.mark.parametrize("text", ["[1", "1]", "[1,2]]", "[[1,2]"])
def test_shape_with_unequal_brackets_is_refused(text: str) -> None:
    with pytest.raises(RuntimeError, match="is no size; expected a number"):
        ov.PartialShape(text)


@pytest.mark.parametrize("is_first", [True, False])
def test_channels_may_be_swapped_behind_a_resize(is_first: bool) -> None:
    ppp = PrePostProcessor(ov.Core().read_model(ONE))
    ppp.input().tensor().set_layout("NHWC").set_color_format(ColorFormat.BGR).set_spatial_static_shape(6, 6)
    steps = ppp.input().preprocess()
    for step in ("color", "resize") if is_first else ("resize", "color"):
        assert (steps.convert_color(ColorFormat.RGB) if step == "color" else steps.resize(ResizeAlgorithm.RESIZE_LINEAR)) is steps
    steps.mean([1, 2, 3])
    photograph = np.zeros((1, 6, 6, 3), np.float32) + np.float32([30, 20, 10])
    assert ov.compile_model(ppp.build(), "CPU")(photograph)[0][0, :, 0, 0].tolist() == [-9, -18, -27]


def test_inputs_and_outputs_are_renamed() -> None:
    model = ov.Core().read_model(MODEL)
    port = model.output("y")
    port.get_tensor().set_names({"difference"})
    model.inputs[0].tensor.set_names({"minuend"})
    assert (port.any_name, port.names, model.output("difference") == port) == ("difference", {"difference"}, True)
    outputs = ov.compile_model(model, "CPU")({"minuend": X, "w": W})
    assert [outputs.names(), outputs["difference"].tolist()] == [({"difference"}, {"z"}), (X - 2).tolist()]
    assert outputs[-2] is outputs["difference"]
    tensor = ov.Tensor(ov.Type.string, [2])
    tensor.str_data = ["a", "bc"]
    assert tensor.bytes_data.tolist() == [b"a", b"bc"]
    for names, reason in (({"z"}, "another value of network 'difference' has"), ({"a", "b"}, "expected a set of one")):
        with pytest.raises(RuntimeError, match=reason):
            model.output(0).set_names(names)


def test_priorities_of_auto_are_left_to_the_device_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    priorities = {"MULTI_DEVICE_PRIORITIES": "GPU,CPU"}
    with pytest.raises(RuntimeError, match="has no configuration key 'MULTI_DEVICE_PRIORITIES'"):
        ov.compile_model(ONE, "CPU", priorities)
    monkeypatch.setenv("HETERO_DEVICE", "CPU")
    assert ov.compile_model(ONE, "AUTO", priorities).get_property("MULTI_DEVICE_PRIORITIES") == "GPU,CPU"


def test_layout_of_a_parameter_is_kept() -> None:
    model = ov.Core().read_model(ONE)
    (parameter,) = model.get_parameters()
    assert parameter.get_layout().empty
    with pytest.raises(RuntimeError, match="has 4 axes; expected a letter for each, got the layout 'NHC'"):
        parameter.set_layout("NHC")
    parameter.set_layout(ov.Layout("CNHW"))
    assert (model.get_parameters()[0].get_layout(), model.inputs[0].layout.empty) == (ov.Layout("CNHW"), False)
    assert ov.get_batch(model) == 3
    ov.layout_helpers.set_layout(model.outputs[0], "HWNC")
    assert ov.layout_helpers.get_layout(model.outputs[0]) == ov.Layout("HWNC")
    assert ov.layout_helpers.get_layout(ov.compile_model(model, "CPU").input()).empty


WRONG_STEPS: tuple[tuple[Callable[[Any], Any], str], ...] = (
    (lambda info: info.resize(ResizeAlgorithm.RESIZE_LINEAR, 9, 4).mean(1.0), "resize and pad give H 9; the model's is 4"),
    (lambda info: info.scale([1.0, 2.0]).mean([1.0, 2.0, 3.0]), r"scale has the shape \[2\]"),
    (lambda info: info.set_color_format(ColorFormat.NV12_TWO_PLANES), "join the planes, and say NV12_SINGLE_PLANE"),
    (lambda info: info.convert_element_type(ov.Type.u8), r"convert_element_type\(u8\) would round"),
    (lambda info: info.convert_layout("NCW").crop([0] * 4, [1] * 4), r"it has 4 axes; say their layout with set_layout, got 'NCW'"),
    (lambda info: info.pad([0] * 4, [1] * 4, 0.0, PaddingMode.SYMMETRIC), "pad with SYMMETRIC"),
    (lambda info: info.pad([0] * 4, [0, 0, 0, 2], 0.0, PaddingMode.REFLECT), "pad mirrors 0 and 2 pixels of 2"),
    (lambda info: info.resize(ResizeAlgorithm.RESIZE_LINEAR, 9, 4), "resize and pad give H 9; the model's is 4"),
    (lambda info: info.crop([0, 1, 0, 0], [1, 2, 4, 4]), "crop has the axis 'C'"),
    (
        lambda info: info.set_element_type(ov.Type.f64).crop([0, 0, 9, 0], [1, 3, 12, 4]).set_shape([1, 3, 8, 4]),
        "crop takes 9 to 12",
    ),
)


@pytest.mark.parametrize(("describe", "reason"), WRONG_STEPS)
def test_steps_that_hetero_does_not_have_are_errors(describe: Callable[[Any], Any], reason: str) -> None:
    ppp = PrePostProcessor(ov.Core().read_model(ONE))
    with pytest.raises(RuntimeError, match=reason):
        assert describe(ppp.input().preprocess()) is ppp.build()


@pytest.mark.parametrize(
    "read",
    [
        lambda core, model: core.create_context,
        lambda core, model: model.input().rt_info,
        lambda core, model: model.get_ops()[0].outputs(),
        lambda core, model: PrePostProcessor(model).input().preprocess().custom(None),
        lambda core, model: core.compile_model(model, "CPU").create_infer_request().absent,
    ],
)
def test_absent_name_tells_where_the_names_are_listed(read: Callable[[Any, Any], Any]) -> None:
    core = ov.Core()
    with pytest.raises(AttributeError, match=r"front end for OpenVINO has no '\w+\.\w+': .*openvino-api.md lists its names"):
        read(core, core.read_model(ONE))


# Applications


def test_rapidocr_runs_its_session(path: Path) -> None:
    """The calls of rapidocr-openvino, then those of rapidocr."""
    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": "1", "PERFORMANCE_HINT": "LATENCY", "ENABLE_HYPER_THREADING": "True"})
    model = core.read_model(path)
    model.reshape({"x": [-1, 3]})
    session = core.compile_model(model=model, device_name="CPU").create_infer_request()
    session.infer(inputs=[X, W])
    assert session.get_output_tensor(0).data.tolist() == (X - 2).tolist()
    assert "framework" in model.get_rt_info()


def test_ultralytics_runs_its_backend(path: Path) -> None:
    """The calls of ultralytics' backend for OpenVINO."""
    core = ov.Core()
    device = "CPU" if core.available_devices == ["CPU"] else "AUTO"
    assert any(each == device or each.startswith(f"{device}.") for each in [*core.available_devices, "AUTO"])
    model = core.read_model(model=str(path), weights=path.with_suffix(".bin"))
    assert not any(node.get_type_name() == "FakeQuantize" for node in model.get_ops())
    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "EXECUTION_MODE_HINT": hints.ExecutionMode.ACCURACY,
        "INFERENCE_PRECISION_HINT": ov.Type.f32,
    }
    compiled = core.compile_model(model, device_name="TEMPLATE", config=config)
    assert ", ".join(compiled.get_property("EXECUTION_DEVICES")) == "TEMPLATE"
    assert compiled.input("x").get_partial_shape() != ov.PartialShape(X.shape)
    model.reshape({0: list(X.shape)})
    assert [each.tolist() for each in core.compile_model(model, "TEMPLATE")([X, W]).values()] == [(X - 2).tolist(), X.tolist()]


# In OpenVINO's place


@pytest.fixture
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "openvino"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openvino", None)


def test_front_end_stands_in_where_openvino_is_not_installed(without_openvino: None) -> None:
    with replace_openvino(device="TEMPLATE"):
        import openvino
        import openvino.properties.hint
        from openvino.preprocess import PrePostProcessor as Processor
        from openvino.runtime import Core

        assert (openvino, openvino.properties.hint, Processor, Core) == (ov, hints, PrePostProcessor, ov.Core)
        assert Core().compile_model(MODEL, "GPU").get_property("EXECUTION_DEVICES") == ["TEMPLATE"]
    assert "HETERO_DEVICE" not in os.environ
    with pytest.raises(ModuleNotFoundError):
        import openvino.runtime


PROGRAM = """
import multiprocessing, sys
import openvino as ov

def describe(path):
    return ov.compile_model(path, "AUTO").get_property("EXECUTION_DEVICES"), ov.Core.__module__

if __name__ == "__main__":
    print(describe(sys.argv[1]))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(describe, sys.argv[1:])[0])
"""


def test_program_and_its_workers_get_the_front_end(tmp_path: Path, path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "hetero_core.frontends.openvino", "-d", "TEMPLATE", str(tmp_path / "app.py"), str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["(['TEMPLATE'], 'hetero_core.frontends.openvino.core')"] * 2


@pytest.mark.parametrize(("words", "status"), [([], 2), (["-h"], 0), (["-m"], 2), (["-d"], 2), (["-d", "CPU"], 2)])
def test_runner_tells_its_usage(words: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program("openvino", words) == status
    assert "usage: python -m hetero_core.frontends.openvino [-d DEVICE] (APP.py | -m MODULE)" in capsys.readouterr().err
