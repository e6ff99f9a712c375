"""The front end for ONNX Runtime: what programs do with sessions, options, values and bindings. Oracles are ONNX Runtime's own answers
and formulas.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import threading
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import hetero_core.frontends.onnxruntime as ort
from hetero_core import Core, Executable, QueryResult, hookimpl
from hetero_core.devices.processors import count_processors
from hetero_core.errors import HeteroError, InputShapeError, NetworkDeclarationWarning
from hetero_core.frontends import shared_core
from hetero_core.frontends.onnxruntime.errors import EXCEPTIONS, make_error
from hetero_core.frontends.onnxruntime.providers import read_providers
from hetero_core.frontends.shared_core import find_core, forget_core

HETERO = "HeteroExecutionProvider"
CPU = [(HETERO, {"device": "CPU", "CPU_KERNELS": "NUMPY"})]
HEAD = '<ir_version: 8, opset_import: ["": 17]> '
SQUARE = "g (float[3, 2] X) => (float[3, 2] Y) <float[3, 2] W = {1, 2, 3, 4, 5, 6}> { Y = Mul (X, W) }"
X = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
Y = X * X


def make_model(text: str) -> bytes:
    model: bytes = onnx.parser.parse_model(HEAD + text).SerializeToString()
    return model


def open_session(text: str = SQUARE, options: Any = None, **named: Any) -> Any:
    return ort.InferenceSession(make_model(text), options, **{"providers": CPU, **named})


@pytest.fixture(autouse=True)
def no_device_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HETERO_DEVICE", raising=False)
    monkeypatch.setattr(shared_core, "_reported", set())


@pytest.fixture(scope="module", autouse=True)
def closed_core() -> Iterator[None]:
    yield
    forget_core()


# Sources and descriptions


def test_path_text_and_bytes_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make_model(SQUARE))
    for source in (path, str(path), path.read_bytes()):
        session = ort.InferenceSession(source, providers=CPU)
        assert session.run(None, {"X": X})[0].tolist() == Y.tolist()
        assert session._model_path == (None if isinstance(source, bytes) else str(path))
    with pytest.raises(TypeError, match="Unable to load from type"):
        ort.InferenceSession(3, providers=CPU)


SIZES = 'N, "past + 1", "None", "?", "DynamicDimension.0", -1, "-1", ""'
TYPES = f"""g (float[{SIZES}] a, int64 b, seq(float16[2]) c, bool[2] d, string["S"] e, double[0, 1] f, bfloat16[1] h)
=> (float[{SIZES}] ya, int64 yb, seq(float16[2]) yc, bool[2] yd, string["S"] ye, double[0, 1] yf, bfloat16[1] yh)
{{ ya = Identity(a) yb = Identity(b) yc = Identity(c) yd = Identity(d) ye = Identity(e) yf = Identity(f) yh = Identity(h) }}"""


def test_values_are_described_as_onnxruntime_does() -> None:
    session, original = open_session(TYPES), onnxruntime.InferenceSession(make_model(TYPES), providers=["CPUExecutionProvider"])
    for own, other in ((session.get_inputs(), original.get_inputs()), (session.get_outputs(), original.get_outputs())):
        assert [(each.name, each.type, each.shape) for each in own] == [(each.name, each.type, each.shape) for each in other]
    assert str(session.get_inputs()[0]).startswith("NodeArg(name='a', type='tensor(float)', shape=['N', 'past + 1', 'None', '?', ")


def test_model_describes_itself() -> None:
    model = onnx.parser.parse_model(HEAD + SQUARE)
    model.producer_name, model.domain, model.doc_string, model.model_version = "maker", "org.example", "a model", 7
    model.graph.doc_string = "a graph"
    onnx.helper.set_model_props(model, {"stride": "32", "names": "{0: 'cat'}"})
    session = ort.InferenceSession(model.SerializeToString(), providers=CPU)
    meta = session.get_modelmeta()
    original = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version", "custom_metadata_map"):
        assert getattr(meta, name) == getattr(original, name)
    assert dict(session.network.metadata) == {"stride": "32", "names": "{0: 'cat'}"}


def test_metadata_of_loaded_network_survives_export(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(HEAD + SQUARE)
    onnx.helper.set_model_props(model, {"stride": "32"})
    with Core() as core:
        core.load_network(model, "CPU").export_network(tmp_path / "blob")
        assert dict(core.import_network(tmp_path / "blob").metadata) == {"stride": "32"}
        core.load_network(onnx.parser.parse_model(HEAD + SQUARE), "CPU").export_network(tmp_path / "blob")
        assert dict(core.import_network(tmp_path / "blob").metadata) == {}


def test_constant_among_inputs_can_be_replaced() -> None:
    model = onnx.parser.parse_model(HEAD + SQUARE)
    model.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, [3, 2]))
    session = ort.InferenceSession(model.SerializeToString(), providers=CPU)
    assert [each.name for each in session.get_inputs()] == ["X"]
    assert [(each.name, each.shape) for each in session.get_overridable_initializers()] == [("W", [3, 2])]
    assert session.run(None, {"X": X, "W": None, "no input": None})[0].tolist() == Y.tolist()
    assert session.run(None, {"X": X, "W": -X})[0].tolist() == (-Y).tolist()


# Runs


def test_outputs_are_chosen_by_names_or_positions() -> None:
    session = open_session("g (float[2] x) => (float[2] y, float[2] z) { y = Neg (x) z = Abs (x) }")
    x = np.array([1, -2], np.float32)
    for names in (None, [], ["y", "z"], [0, 1]):
        assert [each.tolist() for each in session.run(names, {"x": x})] == [[-1, 2], [1, 2]]
    assert [each.tolist() for each in session.run(["z"], [x])] == [[1, 2]]
    with pytest.raises(EXCEPTIONS["InvalidArgument"], match="Invalid output name: w; the outputs are y, z"):
        session.run(["w"], {"x": x})


@pytest.mark.parametrize("declared", ["float", "float[N]", "float[3]"])
def test_items_of_a_sequence_have_any_shape_whatever_the_model_declares(declared: str) -> None:
    session = open_session(
        f"g (seq({declared}) x) => (float[n] y, int64 z) {{ y = ConcatFromSequence <axis = 0> (x) z = SequenceLength (x) }}"
    )
    y, z = session.run(None, {"x": [np.ones(3, np.float32), np.zeros(2, np.float32)]})
    assert (y.tolist(), z.tolist()) == ([1, 1, 1, 0, 0], 2)


def test_input_declared_without_dimensions_takes_any(caplog: pytest.LogCaptureFixture) -> None:
    """As ONNX Runtime does; models of onnx-array-api are declared so."""
    model = onnx.parser.parse_model(HEAD + "g (float x) => (float y) { y = Mul (x, x) }")
    assert model.graph.input[0].type.tensor_type.HasField("shape")
    session = ort.InferenceSession(model.SerializeToString(), providers=CPU)
    assert session.run(None, {"x": np.float32(3)})[0].tolist() == 9
    with pytest.warns(NetworkDeclarationWarning, match=r"'y' .* is declared as float32\[\], but has shape \[3, 2\]"):
        assert session.run(None, {"x": X})[0].tolist() == Y.tolist()
    assert session.run(None, {"x": np.float32(3)})[0].tolist() == 9
    assert "a run gives dimensions to x; it is loaded with an open rank" in caplog.text
    assert session.get_inputs()[0].shape == []


def test_index_outside_its_axis_is_an_invalid_argument() -> None:
    session = open_session("g (float[3] x, int64[1] i) => (float[1] y) { y = Gather (x, i) }")
    with pytest.raises(EXCEPTIONS["InvalidArgument"], match="index 7 is out of bounds for axis 0 with size 3"):
        session.run(None, {"x": np.ones(3, np.float32), "i": np.array([7])})


@pytest.mark.parametrize("value", [X.tolist(), X.astype(">f4"), np.asfortranarray(X), ort.OrtValue.ortvalue_from_numpy(X)])
def test_lists_foreign_arrays_and_values_are_inputs(value: Any) -> None:
    assert open_session().run([], {"X": value})[0].tolist() == Y.tolist()


@pytest.mark.parametrize("value", [np.array(3), np.array([3]), 3, np.int64(3), [3]])
def test_scalar_is_taken_with_any_shape(value: Any) -> None:
    (y,) = open_session("g (int64 x) => (int64 y) { y = Neg (x) }").run(None, {"x": value})
    assert y.tolist() == -3
    assert y.shape == ()


@pytest.mark.parametrize("dtype", [object, str, "S", "V4"])
def test_texts_come_as_any_array(dtype: Any) -> None:
    texts = np.array([b"must", b"have"] if dtype in ("S", "V4") else ["must", "have"], dtype=dtype)
    (y,) = open_session("g (string[2] x) => (string[2] y) { y = Identity (x) }").run(None, {"x": texts})
    assert y.tolist() == ["must", "have"]


def test_sequences_and_maps_are_lists_and_dicts() -> None:
    session = open_session(
        "g (seq(float[2]) x, float[2] t) => (seq(float[2]) y, int64 n) { y = SequenceInsert (x, t) n = SequenceLength (y) }"
    )
    y, n = session.run(None, {"x": [], "t": X[0]})
    assert ([each.tolist() for each in y], int(n)) == ([[1, 2]], 1)
    zipped = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]> g (float[1, 2] x) => (seq(map(int64, float)) y) '
        "{ y = ai.onnx.ml.ZipMap <classlabels_int64s = [4, 5]> (x) }"
    )
    session = ort.InferenceSession(zipped.SerializeToString(), providers=CPU)
    assert session.get_outputs()[0].type == "seq(map(int64,tensor(float)))"
    assert session.run(None, {"x": X[:1]}) == [[{4: 1.0, 5: 2.0}]]


def test_outputs_belong_to_the_caller() -> None:
    session = open_session("g (float[2] x) => (float[2] x, float[2] y) { y = Neg (x) }")
    runs = [(value, session.run(None, {"x": value})) for value in np.arange(8, dtype=np.float32).reshape(4, 2)]
    for value, (same, negative) in runs:
        assert (same.tolist(), negative.tolist()) == (value.tolist(), (-value).tolist())
        assert not np.shares_memory(same, value)


def test_two_sizes_of_one_name_run_as_in_onnxruntime(caplog: pytest.LogCaptureFixture) -> None:
    text = "g (float[N] a, float[N] b) => (float[M] y) { y = Concat <axis = 0> (a, b) }"
    session = open_session(text)
    same = {"a": X[0], "b": X[1]}
    different = {"a": X[0], "b": np.arange(3, dtype=np.float32)}
    original = onnxruntime.InferenceSession(make_model(text), providers=["CPUExecutionProvider"])
    for feed in (same, different, same):
        assert session.run(None, feed)[0].tolist() == original.run(None, feed)[0].tolist()
    assert [record.message for record in caplog.records] == [
        "hetero: network 'g' on CPU: a run gives several sizes to N; it is loaded with open sizes"
    ]
    assert session.get_inputs()[0].shape == ["N"]


def test_threads_share_a_session() -> None:
    session, answers = open_session(), []

    def run() -> None:
        options = ort.RunOptions()
        answers.extend(session.run(None, {"X": X * index}, options)[0].tolist() == (Y * index).tolist() for index in range(20))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 80


def test_asynchronous_run_calls_back() -> None:
    session, ended, calls = open_session(), threading.Event(), []

    def call_back(results: list[Any], user_data: object, error: str) -> None:
        calls.append((results, user_data, error))
        ended.set()

    session.run_async(["Y"], {"X": X}, call_back, "mine")
    assert ended.wait(30)
    ((results, user_data, error),) = calls
    assert (results[0].tolist(), user_data, error) == (Y.tolist(), "mine", "")


@pytest.mark.parametrize(
    ("names", "feed"), [(["Y"], {"X": X.astype(np.float64)}), (["Y"], {"X": X[:2]}), (["Z"], {"X": X}), (["Y"], {"X": X, "Q": X})]
)
def test_wrong_asynchronous_run_calls_back_with_the_error(names: list[str], feed: Any) -> None:
    calls: list[Any] = []
    open_session().run_async(names, feed, lambda *arguments: calls.append(arguments), "mine")
    ((results, user_data, error),) = calls
    assert (results, user_data) == ([], "mine")
    assert error.startswith("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : ")


class Slow:
    """A device whose run ends when it is cancelled."""

    begun = threading.Event()

    @hookimpl
    def query_network(self, network: Any) -> QueryResult:
        return QueryResult({node.name: "SLOW" for node in network.nodes}, {})

    @hookimpl
    def load_network(self, network: Any) -> Executable:
        begun = self.begun

        class Waiting(Executable):
            inputs, outputs = network.inputs, network.outputs

            def run(self, inputs: Any, context: Any) -> Any:
                begun.set()
                while not context.cancelled():
                    pass
                return inputs

        return Waiting()


def test_terminate_ends_a_run_and_refuses_the_next() -> None:
    find_core().register_plugin("SLOW", Slow())
    session = open_session(providers=[(HETERO, {"device": "SLOW"})])
    options, errors = ort.RunOptions(), []

    def run() -> None:
        try:
            session.run(None, {"X": X}, options)
        except Exception as error:  # noqa: BLE001  # compared below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert Slow.begun.wait(30)
    options.terminate = True
    thread.join(30)
    assert isinstance(errors[0], onnxruntime.capi.onnxruntime_pybind11_state.Fail)
    assert "was cancelled" in str(errors[0])
    with pytest.raises(EXCEPTIONS["Fail"], match="Exiting due to terminate flag being set to true"):
        session.run(None, {"X": X}, options)


# Errors


def read_failure(call: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # the class is compared with that of ONNX Runtime
        call()
    return caught.value


FAULTS = {
    "missing file": lambda session: session("/nowhere.onnx"),
    "no model": lambda session: session(b"\x08\x07garbage"),
    "wrong rank": lambda session: session(make_model(SQUARE)).run(None, {"X": X[0]}),
    "wrong size": lambda session: session(make_model(SQUARE)).run(None, {"X": X[:2]}),
    "wrong type": lambda session: session(make_model(SQUARE)).run(None, {"X": X.astype(np.float64)}),
    "missing input": lambda session: session(make_model(SQUARE)).run(None, {"x": X}),
    "unknown input": lambda session: session(make_model(SQUARE)).run(None, {"X": X, "x": X}),
    "unknown output": lambda session: session(make_model(SQUARE)).run(["y"], {"X": X}),
    "invalid graph": lambda session: session(make_model(SQUARE.replace("Mul (X, W)", "Mul (X, V)"))),
    "unknown operator": lambda session: session(make_model(SQUARE.replace("Mul (X, W)", "Nope (X)"))),
    "unknown domain": lambda session: session(make_model(SQUARE.replace("Mul (X, W)", "acme.Nope (X)"))),
    "no graph": lambda session: session(b""),
    "two types": lambda session: session(make_model("g (float[2] x, int64[2] z) => (float[2] y) { y = Add (x, z) }")),
    "unknown opset": lambda session: session(onnx.parser.parse_model(HEAD.replace("17", "99") + SQUARE).SerializeToString()),
    "failing run": lambda session: session(make_model("g (float[a] x, int64[2] s) => (float[b, c] y) { y = Reshape (x, s) }")).run(
        None, {"x": X[0], "s": np.array([2, 2])}
    ),
    "wrong providers": lambda session: session(make_model(SQUARE), providers=[3]),
    "more options": lambda session: session(make_model(SQUARE), providers=["CPUExecutionProvider"], provider_options=[{}, {}]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_error_is_of_the_class_of_onnxruntime(fault: str) -> None:
    call = FAULTS[fault]
    expected = read_failure(lambda: call(lambda source, **named: onnxruntime.InferenceSession(source, enable_fallback=0, **named)))
    door = {"providers": CPU, "enable_fallback": 0}
    error = read_failure(lambda: call(lambda source, **named: ort.InferenceSession(source, **{**door, **named})))
    assert isinstance(error, type(expected))
    if type(expected).__module__.startswith("onnxruntime."):
        assert str(error).startswith("[ONNXRuntimeError] : ")


@pytest.mark.parametrize("fault", ["wrong rank", "wrong size", "wrong type"])
def test_error_of_an_input_has_the_words_of_onnxruntime(fault: str) -> None:
    expected = read_failure(
        lambda: FAULTS[fault](lambda source: onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]))
    )
    assert str(read_failure(lambda: FAULTS[fault](ort.InferenceSession))).startswith(str(expected).rstrip())


def test_error_keeps_the_text_and_the_cause() -> None:
    error = read_failure(lambda: open_session().run(None, {"X": X[:2]}))
    assert str(error).endswith("\ninput 'X' of network 'g': expected shape [3,2], got [2, 2]: axis 0 has 2 instead of 3")
    assert isinstance(error.__cause__, InputShapeError)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), isinstance(copy, EXCEPTIONS["InvalidArgument"])) == (str(error), True)


def test_every_exception_is_also_the_engines() -> None:
    state = onnxruntime.capi.onnxruntime_pybind11_state
    for name in EXCEPTIONS:
        assert isinstance(make_error(name, "text"), getattr(state, name))


# Providers and devices


def test_device_comes_from_option_then_environment_then_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    host = open_session(providers=["CPUExecutionProvider"])
    assert str(host.network.device).startswith("AUTO")
    assert "GPU" not in str(host.network.device).replace("-GPU", "")
    assert host.get_providers() == ["CPUExecutionProvider"]
    assert str(open_session(providers=None).network.device) == "AUTO"
    monkeypatch.setenv("HETERO_DEVICE", "TEMPLATE")
    assert str(open_session(providers=["CPUExecutionProvider"]).network.device) == "TEMPLATE"
    assert str(open_session(providers=[HETERO, "CPUExecutionProvider"]).network.device) == "TEMPLATE"
    session = open_session()
    assert str(session.network.device) == "CPU"
    assert session.get_provider_options() == {HETERO: {"device": "CPU", "CPU_KERNELS": "NUMPY"}, "CPUExecutionProvider": {}}
    assert session.network.get_config("CPU_KERNELS") == "NUMPY"


@pytest.mark.parametrize(
    "arguments",
    [
        {"providers": [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]},
        {"providers": ["CPUExecutionProvider"], "provider_options": [{}]},
        {"providers": ("CPUExecutionProvider",)},
    ],
)
def test_providers_come_in_every_form(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_DEVICE", "CPU")
    session = ort.InferenceSession(make_model(SQUARE), **arguments)
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("arguments", [{"providers": {"CPUExecutionProvider"}}, {"providers": CPU, "provider_options": [{}, {}]}])
def test_wrong_providers_become_the_processor_with_a_warning(arguments: Any) -> None:
    with pytest.warns(UserWarning, match="should .* CPUExecutionProvider is used"):
        session = ort.InferenceSession(make_model(SQUARE), **arguments)
    assert session.get_providers() == ["CPUExecutionProvider"]


class Card:
    """Stands for a graphics card; computes as the device TEMPLATE."""

    kind = "accelerator"

    @hookimpl
    def create_device(self, core: Core, name: str) -> object:
        from hetero_template import create_device

        return create_device(name)


def test_accelerators_and_host_become_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    core = find_core()
    core.unregister_plugin("GPU")
    core.register_plugin("GPU", Card())
    try:
        assert ort.get_device() == "GPU"
        assert ort.get_available_providers() == [HETERO, "CUDAExecutionProvider", "CPUExecutionProvider"]
        session = open_session(providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"])
        assert str(session.network.device) == "HETERO:GPU,CPU,ORT"
        assert session.get_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]
        assert session.run(None, {"X": X})[0].tolist() == Y.tolist()
        session.set_providers(["CPUExecutionProvider"])
        assert str(session.network.device) == "AUTO:-GPU"
    finally:
        forget_core()


def test_missing_provider_is_for_the_program_to_see() -> None:
    assert "CUDAExecutionProvider" not in ort.get_available_providers()
    assert (ort.get_available_providers()[-1], ort.get_all_providers()[-1]) == ("CPUExecutionProvider",) * 2
    assert ort.get_device() == "CPU"
    with pytest.warns(
        UserWarning,
        match="Specified provider 'CUDAExecutionProvider' is not in available provider names.Available providers: 'Hetero",
    ):
        session = open_session(providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(RuntimeError, match="Unknown Provider Type: InvalidProvider"):
        session.set_providers(["InvalidProvider"])
    session.disable_fallback()
    session.enable_fallback()


def test_unknown_device_names_the_near_miss() -> None:
    with pytest.raises(EXCEPTIONS["EPFail"], match="did you mean 'CPU'"):
        open_session(providers=[(HETERO, {"device": "CPUU"})])


def test_model_that_no_device_takes_whole_is_split() -> None:
    """CPU has no kernel of this operator of ONNX Runtime, and ORT none for Min of int16."""
    text = (
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[1, 4] x, int16[2] a) => (float[1, 4] y, int16[2] b) '
        "{ y = com.microsoft.BiasGelu (x, w) b = Min (a, a) }"
    )
    model = onnx.parser.parse_model(text.replace("{ y", "<float[4] w = {1, 2, 3, 4}> { y"))
    with Core() as core:
        refused = [bool(core.query_network(model, device).refused) for device in ("CPU", "ORT")]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    if all(refused):
        assert str(session.network.device) == "HETERO:CPU,ORT"
    assert session.run(["b"], {"x": X[:2].reshape(1, 4), "a": np.array([1, 2], np.int16)})[0].tolist() == [1, 2]


# Options


def test_options_are_stored_and_unknown_ones_refused() -> None:
    own, original = ort.SessionOptions(), onnxruntime.SessionOptions()
    names = [name for name in dir(original) if not name.startswith("_") and not callable(getattr(original, name))]
    for name in names:
        value, expected = getattr(own, name), getattr(original, name)
        assert getattr(value, "name", value) == getattr(expected, "name", expected)
    own.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert own.graph_optimization_level.name == "ORT_ENABLE_EXTENDED"
    own.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert own.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with pytest.raises(RuntimeError, match="SessionOptions does not have configuration with key: other"):
        own.get_session_config_entry("other")
    with pytest.raises(AttributeError):
        own.intra_op_threads = 3
    for name, value in (("intra_op_num_threads", "2"), ("inter_op_num_threads", 1.0), ("enable_profiling", "no")):
        for options in (own, original):
            with pytest.raises(TypeError, match=None if options is original else f"{name} is {value!r}; expected "):
                setattr(options, name, value)
    own.intra_op_num_threads, own.enable_mem_pattern = np.int64(1), 0
    assert own.enable_mem_pattern is False
    own.add_provider(HETERO, {"device": "TEMPLATE"})
    assert own.has_providers()
    assert str(open_session(options=own, providers=None).network.device) == "TEMPLATE"


@pytest.mark.parametrize("enumeration", ["GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"])
def test_enumerations_have_the_numbers_of_onnxruntime(enumeration: str) -> None:
    own, original = getattr(ort, enumeration), getattr(onnxruntime, enumeration)
    assert {each.name: each.value for each in own} == {name: each.value for name, each in original.__members__.items()}


def test_options_with_an_effect() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_free_dimension_override_by_name("N", 4)
    options.add_free_dimension_override_by_name("absent", 5)
    options.add_free_dimension_override_by_denotation("DATA_CHANNEL", 2)
    model = onnx.parser.parse_model(HEAD + "g (float[N, C] x) => (float[N, C] y) { y = Neg (x) }")
    model.graph.input[0].type.tensor_type.shape.dim[1].denotation = "DATA_CHANNEL"
    session = ort.InferenceSession(model.SerializeToString(), options, providers=CPU)
    assert session.network.get_config("INFERENCE_NUM_THREADS") == 1
    assert (session.get_inputs()[0].shape, session.get_outputs()[0].shape) == ([4, 2], [4, 2])
    assert session.get_session_options() is options


def test_more_threads_than_processors_are_one_for_each(caplog: pytest.LogCaptureFixture) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1000
    sessions = [open_session(options=options) for _ in range(2)]
    assert all(session.network.get_config("INFERENCE_NUM_THREADS") == count_processors() for session in sessions)
    assert (
        caplog.text.count(f"intra_op_num_threads: 1000 threads were asked for; {count_processors()} run, one for each processor")
        == 1
    )


def test_weights_can_be_given(tmp_path: Path) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(-X)
    for add in ("add_initializer", "add_external_initializers"):
        options = ort.SessionOptions()
        getattr(options, add)(*(("W", value) if add == "add_initializer" else (["W"], [value])))
        assert open_session(options=options).run(None, {"X": X})[0].tolist() == (-Y).tolist()
    options = ort.SessionOptions()
    options.add_initializer("V", value)
    with pytest.raises(EXCEPTIONS["InvalidArgument"], match="the model has no constant 'V' to replace"):
        open_session(options=options)


def test_folder_of_external_weights_is_read(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(HEAD + SQUARE)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(X, "W"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    session = ort.InferenceSession((tmp_path / "m.onnx").read_bytes(), options, providers=CPU)
    assert session.run(None, {"X": X})[0].tolist() == Y.tolist()


def test_files_of_external_weights_come_from_memory(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(HEAD + SQUARE)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(X, "W"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(7, np.float32), "A"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    content, source = (tmp_path / "weights").read_bytes(), (tmp_path / "m.onnx").read_bytes()
    for package, providers in ((ort, CPU), (onnxruntime, None)):
        options = package.SessionOptions()
        options.add_external_initializers_from_files_in_memory(["weights"], [content], [len(content)])
        assert package.InferenceSession(source, options, providers=providers).run(None, {"X": X})[0].tolist() == Y.tolist()
    options = ort.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["weights"], [content], [10])
    with pytest.raises(EXCEPTIONS["InvalidArgument"], match="'W' needs 24 bytes of the file 'weights', which has 10"):
        ort.InferenceSession(source, options, providers=CPU)


def test_profile_and_model_are_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile_")
    options.optimized_model_filepath = str(tmp_path / "written.onnx")
    session = open_session(options=options)
    session.run(None, {"X": X})
    path = Path(session.end_profiling())
    assert path.match("profile__*.json")  # as ONNX Runtime joins prefix and time
    assert any(event["name"] for event in json.loads(path.read_text()))
    assert session.get_profiling_start_time_ns() > 0
    assert ort.InferenceSession(tmp_path / "written.onnx", providers=CPU).run(None, {"X": X})[0].tolist() == Y.tolist()
    assert open_session().end_profiling() == ""
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "100")
    model = onnx.load_from_string(make_model("g (float[50] X) => (float[50] Y) { Y = Mul(X, W) }"))
    # Values in a list of floats, as onnx.helper.make_tensor stores them, are moved, too.
    model.graph.initializer.append(onnx.helper.make_tensor("W", onnx.TensorProto.FLOAT, [50], range(50)))
    for _ in range(2):
        ort.InferenceSession(model.SerializeToString(), options, providers=CPU)
    assert (tmp_path / "weights.bin").stat().st_size == 200
    (product,) = ort.InferenceSession(tmp_path / "written.onnx", providers=CPU).run(None, {"X": np.ones(50, np.float32)})
    assert product.tolist() == list(range(50))
    assert "optimized_model_filepath gets the model as it is" in caplog.text


def test_wrong_options_are_refused_when_they_are_given() -> None:
    options = ort.SessionOptions()
    for add in (options.add_initializer, lambda name, value: options.add_external_initializers([name], [value])):
        with pytest.raises(RuntimeError, match="constant 'W' is given as ndarray; expected an OrtValue"):
            add("W", X)
    for add in (options.add_free_dimension_override_by_name, options.add_free_dimension_override_by_denotation):
        with pytest.raises(TypeError, match="the size of dimension 'N' is '3'; expected a whole number"):
            add("N", "3")
    with pytest.raises(TypeError, match="sess_options is 3; expected SessionOptions"):
        ort.InferenceSession(make_model(SQUARE), 3, providers=CPU)


def test_absent_service_is_told_once_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        ort.SessionOptions().add_session_config_entry("ep.context_enable", "1")
        ort.set_seed(3)
        ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    assert len(caplog.records) == 3
    with pytest.raises(EXCEPTIONS["NotImplemented"], match="merge the adapter into the model's weights"):
        ort.RunOptions().add_active_adapter(object())
    with pytest.raises(EXCEPTIONS["Fail"], match="library of custom operators '/nowhere.so': there is no such file"):
        ort.SessionOptions().register_custom_ops_library("/nowhere.so")
    with pytest.raises(AttributeError, match="has no 'SparseTensor'; docs/reference/onnxruntime-api.md"):
        _ = ort.SparseTensor


def test_custom_library_reaches_the_device_ort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_CUSTOM_OPS_LIBRARY", "")
    library = tmp_path / "operators.so"
    library.touch()
    ort.SessionOptions().register_custom_ops_library(str(library))
    ort.SessionOptions().register_custom_ops_library(str(library))
    assert os.environ["ORT_CUSTOM_OPS_LIBRARY"] == str(library)


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "onnxruntime-api.md"
CLASSES = ("InferenceSession", "SessionOptions", "RunOptions", "OrtValue", "IOBinding", "NodeArg", "ModelMetadata")


def test_page_lists_every_public_name_of_onnxruntime() -> None:
    rows = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 4]
    stated = {name.strip(" `"): (here.strip(), note.strip()) for name, here, note in rows}
    names = {name for name in dir(onnxruntime) if name[0] != "_" and not isinstance(getattr(onnxruntime, name), types.ModuleType)}
    for owner in CLASSES:
        names |= {f"{owner}.{name}" for name in dir(getattr(onnxruntime, owner)) if name[0] != "_"}
    assert names - stated.keys() == set()
    for name, (here, note) in stated.items():
        owner, _, member = name.partition(".")
        found = hasattr(ort, owner) and (not member or member in {*dir(getattr(ort, owner)), *getattr(ort, owner).__annotations__})
        assert here == ("yes" if found else "no"), name
        assert here == "yes" or note, f"{name} has no reason"


def test_enumerations_parts_and_version_are_as_onnxruntimes() -> None:
    assert str(ort.GraphOptimizationLevel.ORT_ENABLE_ALL) == str(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    session = open_session()
    original = onnxruntime.InferenceSession(make_model(SQUARE), providers=["CPUExecutionProvider"])
    assert read_providers("CPUExecutionProvider", None) == {"CPUExecutionProvider": {}}
    assert session.get_modelmeta().version == original.get_modelmeta().version
    assert session._sess.run(None, {"X": X}, None)[0].tolist() == Y.tolist()
    value = ort.OrtValue.ortvalue_from_numpy(X)._ortvalue
    assert value.numpy().tolist() == X.tolist()
    assert session._sess.run_with_ort_values({"X": value}, ["Y"], None)[0].numpy().tolist() == Y.tolist()
    assert session.io_binding()._iobinding.get_outputs() == []


# Values and bindings


def test_value_takes_a_capsule_of_dlpack() -> None:
    value = ort.OrtValue.from_dlpack(X.__dlpack__())
    assert value.data_ptr() == X.ctypes.data
    assert value.numpy().tolist() == X.tolist()


def test_value_answers_as_onnxruntimes() -> None:
    for array in (X, X[:, :0], np.array(3, np.int64), np.array([True])):
        own, original = ort.OrtValue.ortvalue_from_numpy(array), onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name in (
            "shape",
            "data_type",
            "element_type",
            "device_name",
            "has_value",
            "is_tensor",
            "is_tensor_sequence",
            "is_sparse_tensor",
        ):
            assert getattr(own, name)() == getattr(original, name)(), name
        assert own.numpy().tolist() == original.numpy().tolist()
        assert own.tensor_size_in_bytes() == original.tensor_size_in_bytes()
        assert own.data_ptr() == np.asarray(own).ctypes.data
    assert np.shares_memory(ort.OrtValue.ortvalue_from_numpy(X), X)
    zeros = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    zeros.update_inplace(np.ones((2, 3), np.float32))
    assert np.from_dlpack(zeros).tolist() == ort.OrtValue.from_dlpack(zeros).numpy().tolist() == [[1, 1, 1], [1, 1, 1]]
    with pytest.raises(EXCEPTIONS["InvalidArgument"], match=r"cannot write float64\[2\] to an OrtValue of float32\[2, 3\]"):
        zeros.update_inplace(np.ones(2))
    halves = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3F80], np.uint16), onnx.TensorProto.BFLOAT16)
    assert (halves.data_type(), halves.numpy().astype(float).tolist()) == ("tensor(bfloat16)", [1.0])


def test_values_go_in_and_out() -> None:
    session = open_session()
    (value,) = session.run_with_ort_values(["Y"], {"X": ort.OrtValue.ortvalue_from_numpy(X)})
    assert (value.data_type(), value.numpy().tolist()) == ("tensor(float)", Y.tolist())


def test_binding_writes_to_pointers_values_and_new_arrays() -> None:
    session = open_session(
        "g (float[N, 2] X) => (float[N, 2] a, float[N, 2] b, float[N, 2] c) { a = Neg (X) b = Abs (X) c = Sqrt (X) }"
    )
    binding, a, b = session.io_binding(), np.zeros((3, 2), np.float32), ort.OrtValue.ortvalue_from_shape_and_type((3, 2), 1)
    for factor in (1, 4):
        x = X * factor
        binding.bind_input("X", "cpu", 0, np.float32, x.shape, x.ctypes.data)
        binding.bind_output("c")
        binding.bind_output("a", "cpu", 0, np.float32, a.shape, a.ctypes.data)
        binding.bind_ortvalue_output("b", b)
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        assert (a.tolist(), b.numpy().tolist()) == ((-x).tolist(), x.tolist())
        outputs = dict(zip("cab", binding.copy_outputs_to_cpu(), strict=True))
        np.testing.assert_allclose(outputs["c"], np.sqrt(x), rtol=1e-6)
        assert outputs["a"].tolist() == (-x).tolist()
    assert [value.shape() for value in binding.get_outputs()] == [[3, 2]] * 3
    binding.clear_binding_outputs()
    binding.clear_binding_inputs()
    with pytest.raises(ValueError, match="Required inputs"):
        session.run_with_iobinding(binding, ort.RunOptions())


def test_one_memory_bound_to_input_and_output() -> None:
    """The output is written when all inputs have been read."""
    session = open_session(
        "g (float[4] x) => (float[4] y) { r = Slice (x, s, e, a, t) y = Sub (r, x) }".replace(
            "=> (float[4] y) {", "=> (float[4] y) <int64[1] s = {-1}, int64[1] e = {-9}, int64[1] a = {0}, int64[1] t = {-1}> {"
        )
    )
    x = np.array([1, 2, 4, 8], np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(x))
    session.run_with_iobinding(binding)
    assert x.tolist() == [7, 2, -2, -7]


def test_binding_refuses_what_it_cannot_read() -> None:
    session = open_session()
    binding = session.io_binding()
    with pytest.raises(EXCEPTIONS["NotImplemented"], match="'X' cannot be bound to a pointer into memory of 'cuda'"):
        binding.bind_input("X", "cuda", 0, np.float32, X.shape, X.ctypes.data)
    with pytest.raises(EXCEPTIONS["InvalidArgument"], match="Invalid output name: Z"):
        binding.bind_output("Z")
    with pytest.raises(EXCEPTIONS["InvalidArgument"], match="None is no element type of ONNX"):
        binding.bind_output("Y", buffer_ptr=X.ctypes.data, shape=X.shape)
    with pytest.raises(ValueError, match="must be used with the session that created it"):
        open_session().run_with_iobinding(binding)


# Classes of programs


class PickledSession(ort.InferenceSession):
    """A subclass as programs write it, to send a session to workers."""

    def __init__(self, path: str, **named: Any) -> None:
        super().__init__(path, **{"providers": CPU, **named})
        self.path = path

    def __getstate__(self) -> dict[str, str]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]  # as programs do


def test_subclass_can_be_pickled(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make_model(SQUARE))
    session = pickle.loads(pickle.dumps(PickledSession(str(path))))
    assert isinstance(session, ort.InferenceSession)
    assert session.run(None, {"X": X})[0].tolist() == Y.tolist()


def run_in_child(session: Any, pipe: Any) -> None:
    with warnings.catch_warnings():
        pipe.send(session.run(None, {"X": X})[0].tolist())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_loads_the_model_again() -> None:
    session = open_session()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=run_in_child, args=(session, sender))
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() == Y.tolist()
    child.join()


def test_errors_of_hetero_never_leave_unconverted() -> None:
    for call in FAULTS.values():
        error = read_failure(
            lambda call=call: call(lambda source, **named: ort.InferenceSession(source, **{"providers": CPU, **named}))
        )
        assert not isinstance(error, HeteroError)
