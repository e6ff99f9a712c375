"""`hetero serve`: tensors of every type by REST and gRPC, refusals, models that come and go, limits, cancellation, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_tests.server import RunningServer, run_server, write_model

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.cli.main import main
from hetero_core.contract import Executable, RunContext
from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InvalidNetworkError, NetworkNotFoundError
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

for _package in ("starlette", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(_package, reason="the extra 'serve' is not installed")
grpc = pytest.importorskip("grpc", reason="the extra 'serve' is not installed")

from google.protobuf.message import DecodeError  # noqa: E402  # comes with grpc's packages

from hetero_core.serving import protocol, rest, rpc  # noqa: E402  # need the packages above
from hetero_core.serving.repository import Repository, find_models  # noqa: E402  # as above

FAST = ("-d", "CPU", "-c", "CPU_KERNELS=NUMPY")
X = {"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}
INFER = "/v2/models/double/infer"


def name_onnx(dtype: str) -> str:
    return {"float32": "float", "float64": "double"}.get(dtype, dtype)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    for version, factor in ((1, 2), (2, 3), (10, 4)):
        write_model(folder / "double" / str(version) / "model.onnx", factor)
    write_model(folder / "changing.onnx", 5)
    for dtype, datatype in protocol.DATATYPES.items():
        text = f'<ir_version: 9, opset_import: ["": 19]> g ({name_onnx(dtype)}[N,2] x) => ({name_onnx(dtype)}[N,2] y) {{ y = Identity(x) }}'
        onnx.save(onnx.parser.parse_model(text), str(folder / f"{datatype}.onnx"))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with run_server(folder, *FAST, "--max-body", 1) as server:
        yield server


def call_rpc(server: RunningServer, method: str, **fields: Any) -> Any:
    with grpc.insecure_channel(server.grpc) as channel:
        serialize, parse = rpc.MESSAGES[f"{method}Request"].SerializeToString, rpc.MESSAGES[f"{method}Response"].FromString
        call = channel.unary_unary(f"/{rpc.SERVICE}/{method}", request_serializer=serialize, response_deserializer=parse)
        return call(rpc.MESSAGES[f"{method}Request"](**fields), timeout=60)


VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, False, True],
    "BYTES": ["", "ä€", "\x00b", "long" * 99],
    **{f"INT{bits}": [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, 1] for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": [0, 2**bits - 1, 1, 2] for bits in (8, 16, 32, 64)},
    **{name: [0.5, -1.25, float("inf"), float("nan")] for name in ("FP16", "BF16", "FP32", "FP64")},
}


@pytest.mark.parametrize("datatype", VALUES)
def test_values_of_every_type_come_back_in_each_form(server: RunningServer, datatype: str) -> None:
    values = VALUES[datatype]
    dtype = numpy_dtype(next(dtype for dtype, name in protocol.DATATYPES.items() if name == datatype))
    raw = bytes(protocol.write_bytes(np.array(values, dtype)))
    tensor = {"name": "x", "datatype": datatype, "shape": [2, 2]}
    path = f"/v2/models/{datatype}/infer"
    _, by_list = server.ask(path, {"inputs": [{**tensor, "data": [values[:2], values[2:]]}]})
    assert json.dumps(by_list["outputs"]) == json.dumps([{**tensor, "name": "y", "data": values}])
    head = {"inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}], "parameters": {"binary_data_output": True}}
    header = json.dumps(head).encode()
    _, (headers, body) = server.ask(path, header + raw, {rest.HEADER_LENGTH: str(len(header))})
    assert body[int(headers[rest.HEADER_LENGTH]) :] == raw
    by_raw = call_rpc(server, "ModelInfer", model_name=datatype, inputs=[tensor], raw_input_contents=[raw])
    assert (by_raw.outputs[0].datatype, list(by_raw.outputs[0].shape), list(by_raw.raw_output_contents)) == (
        datatype,
        [2, 2],
        [raw],
    )
    if datatype not in ("FP16", "BF16"):
        contents = {rpc._CONTENTS[datatype]: [value.encode() if isinstance(value, str) else value for value in values]}
        by_contents = call_rpc(server, "ModelInfer", model_name=datatype, inputs=[{**tensor, "contents": contents}])
        assert list(by_contents.raw_output_contents) == [raw]


def test_highest_version_answers_unless_one_is_named(server: RunningServer) -> None:
    for version, data in (("1", [2, 4, 6]), ("2", [3, 6, 9]), ("10", [4, 8, 12])):
        for path in (f"/v2/models/double/versions/{version}/infer", *([INFER] if version == "10" else [])):
            status, answer = server.ask(path, {"id": "a", "inputs": [X], "outputs": [{"name": "y"}]})
            outputs = [{"name": "y", "datatype": "FP32", "shape": [3], "data": data}]
            assert (status, answer) == (200, {"model_name": "double", "model_version": version, "id": "a", "outputs": outputs})


def test_health_and_metadata(server: RunningServer) -> None:
    assert server.ask("/v2/health/live") == (200, {"live": True})
    for path in ("/v2/health/ready", "/v2/models/double/ready", "/v2/models/double/versions/2/ready"):
        assert server.ask(path) == (200, {"ready": True})
    status, fields = server.ask("/v2")
    assert (status, fields["name"], fields["extensions"]) == (200, "hetero", ["binary_tensor_data", "model_repository"])
    specs = [{"name": name, "datatype": "FP32", "shape": [-1]} for name in "xy"]
    expected = {
        "name": "double",
        "versions": ["1", "2", "10"],
        "platform": "onnx_hetero",
        "inputs": specs[:1],
        "outputs": specs[1:],
    }
    assert server.ask("/v2/models/double") == (200, expected)
    assert call_rpc(server, "ModelMetadata", name="double") == rpc.MESSAGES["ModelMetadataResponse"](**expected)
    assert call_rpc(server, "ServerReady").ready
    assert call_rpc(server, "ModelReady", name="double").ready


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        ([X], "expected a JSON object, got list"),
        ({"inputs": [X], "input": 1}, "'input' is no field of the request, did you mean 'inputs'?"),
        ({"inputs": X}, "'inputs' of the request is no list of objects with names"),
        ({"inputs": [X, X]}, "input 'x' needs a datatype, a shape, and either data or binary_data_size, once"),
        ({"inputs": [{**X, "datatype": "FP31"}]}, "the types are BF16, BOOL"),
        ({"inputs": [{**X, "shape": [-3]}]}, "a size is not a whole number of 0 or more"),
        ({"inputs": [{**X, "shape": [4]}]}, "its data has shape [3]"),
        ({"inputs": [{**X, "data": [1, [2], 3]}]}, "inhomogeneous"),
        ({"inputs": [{**X, "data": [1, "2", 3]}]}, "values of another kind"),
        ({"inputs": [{**X, "data": [1, 2, 1e39]}]}, "overflow"),
        ({"inputs": [{**X, "datatype": "UINT8", "data": [1, 2, 256]}]}, "numbers beyond the type"),
        ({"inputs": [{**X, "datatype": "INT64"}]}, "expected float32, got int64"),
        ({"inputs": [{**X, "name": "z"}]}, "has no input 'z'; its inputs are x"),
        ({"inputs": []}, "misses the inputs x"),
        ({"inputs": [X], "outputs": [{"name": "z"}]}, "'z' is no output of model 'double'; known are y"),
        ({"inputs": [X], "parameters": {"priority": 1}}, "'priority' is no parameter; known are binary_data_output, content_type"),
        ({"inputs": [X], "model_name": "triple"}, "model_name is 'triple', and the path asks for 'double'"),
        ({"inputs": [X], "model_version": "1"}, "model_version is '1', and the path asks for '10'"),
        ({"inputs": [{**X, "parameters": {"content_type": "pd"}}]}, "content_type is 'pd'; models get arrays and texts: np, str"),
        ({"inputs": [{**X, "parameters": {"binary_data_size": 12}}]}, "either data or binary_data_size"),
    ],
)
def test_request_that_cannot_be_read_is_refused(server: RunningServer, body: Any, text: str) -> None:
    status, answer = server.ask(INFER, body)
    assert status == 400
    assert text in answer["error"]


def test_names_and_types_that_clients_repeat_are_taken(server: RunningServer) -> None:
    # Source: what InferenceRESTClient and InferenceGRPCClient of kserve 0.21 and the codecs of mlserver 1.7 send.
    hint = {"content_type": "np"}
    call = {"model_name": "double", "model_version": "10", "parameters": hint, "outputs": [{"name": "y", "parameters": hint}]}
    status, answer = server.ask(INFER, {"inputs": [{**X, "parameters": hint}], **call})
    assert (status, answer["outputs"][0]["data"]) == (200, [4, 8, 12])
    raw = np.array(X["data"], np.float32).tobytes()
    hints = {"content_type": {"string_param": "np"}}
    tensor = {"name": "x", "datatype": "FP32", "shape": [3], "parameters": {**hints, "binary_data_size": {"int64_param": len(raw)}}}
    sent = call_rpc(server, "ModelInfer", model_name="double", parameters=hints, inputs=[tensor], raw_input_contents=[raw])
    assert np.frombuffer(sent.raw_output_contents[0], np.float32).tolist() == [4, 8, 12]


@pytest.mark.parametrize(
    ("length", "size", "text"),
    [
        ("9999", 12, "is '9999', and the body has"),
        ("-1", 12, "is '-1'"),
        ("9" * 5000, 12, "is '99999999999999999999', and the body has"),
        (None, 13, "binary_data_size 13"),
        (None, 11, "expected 12 bytes"),
    ],
)
def test_wrong_size_of_binary_data_is_refused(server: RunningServer, length: str | None, size: int, text: str) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [3], "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [tensor]}).encode()
    status, answer = server.ask(INFER, header + bytes(12), {rest.HEADER_LENGTH: length or str(len(header))})
    assert status == 400
    assert text in answer["error"]


def test_other_refusals_have_their_own_status(server: RunningServer) -> None:
    assert server.ask("/v2/models/tripel")[0] == 404
    assert server.ask("/v2/models/double/versions/7/infer", {"inputs": [X]})[0] == 404
    assert server.ask("/v2/model", {}) == (404, {"error": "POST /v2/model is no request of the protocol"})
    assert server.ask(INFER)[0] == 405
    assert server.ask(INFER, b"x" * (2**20 + 1))[0] == 413
    assert server.ask(INFER, b"", {"Content-Length": str(2**40), "Expect": "100-continue"})[0] == 413
    assert server.ask(INFER, b"x", {"Content-Encoding": "gzip"})[0] == 415


def test_large_tensor_by_grpc_is_right_wherever_it_stands_in_the_message(server: RunningServer) -> None:
    x = np.arange(40_000, dtype=np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape}
    for length in range(8):
        answer = call_rpc(
            server, "ModelInfer", model_name="double", id="i" * length, inputs=[tensor], raw_input_contents=[x.tobytes()]
        )
        assert answer.raw_output_contents[0] == (4 * x).tobytes()
    with pytest.raises(grpc.RpcError, match="expected 160000 bytes, got 159999"):
        call_rpc(server, "ModelInfer", model_name="double", inputs=[tensor], raw_input_contents=[x.tobytes()[1:]])


def read_by_protobuf(content: bytes) -> tuple[bytes, list[bytes]] | None:
    """Returns the fields that both readers find, the raw contents apart; None if the message is refused."""
    try:
        message = rpc.MESSAGES["ModelInferRequest"].FromString(content)
    except DecodeError:
        return None
    raw = list(message.raw_input_contents)
    message.ClearField("raw_input_contents")
    return message.SerializeToString(deterministic=True), raw


def read_by_server(content: bytes) -> tuple[bytes, list[bytes]] | None:
    try:
        message, views = rpc.parse_request(content)
    except DecodeError:
        return None
    raw = list(map(bytes, views))
    message.ClearField("raw_input_contents")
    return message.SerializeToString(deterministic=True), raw


def test_request_of_grpc_is_read_as_by_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [3]}, {"name": "y", "datatype": "UINT8", "shape": [200]}]
    fields = {"model_name": "double", "id": "7", "inputs": inputs, "outputs": [{"name": "z"}]}
    whole = rpc.MESSAGES["ModelInferRequest"](**fields, raw_input_contents=[bytes(12), bytes(range(200))]).SerializeToString()
    assert all(isinstance(part, bytes) for part in rpc.parse_request(whole)[1])
    monkeypatch.setattr(rpc, "_LEAST_BYTES", 0)
    assert all(isinstance(part, memoryview) for part in rpc.parse_request(whole)[1])
    draws = np.random.default_rng(0)
    changed = [
        whole[:place] + bytes([value]) + whole[place + 1 :] for place in range(len(whole)) for value in draws.integers(0, 256, 8)
    ]
    records = [whole[place:] + whole[:place] for place in range(len(whole))]
    longer = [
        b"\xba\x00\x01a" + whole,
        whole + b"\x38\x05",
        whole + b"\x3b\x3c",
        whole + b"\xff" * 20,
        whole + b"\x3a\x81\x80\x80\x80\x80\x00a",
    ]
    many = [b"\x3a\x01a" * count for count in (0, 999, 1000, 1001)]
    for content in [whole, *(whole[:end] for end in range(len(whole))), *changed, *records, *longer, *many]:
        assert read_by_server(content) == read_by_protobuf(content)


def test_codes_of_grpc(server: RunningServer) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [3]}
    for code, fields in {
        "NOT_FOUND": {"model_name": "tripel"},
        "INVALID_ARGUMENT": {"model_name": "double", "inputs": [tensor], "raw_input_contents": [bytes(11)]},
        "RESOURCE_EXHAUSTED": {"model_name": "double", "raw_input_contents": [bytes(2**20 + 1)]},
    }.items():
        with pytest.raises(grpc.RpcError) as caught:
            call_rpc(server, "ModelInfer", **fields)
        assert caught.value.code().name == code
    for fields, text in (
        ({"contents": {"int_contents": [1]}}, "needs its values in fp32_contents alone"),
        ({"parameters": {"shared_memory_region": {"string_param": "a"}}}, "'shared_memory_region' is no parameter"),
        ({"parameters": {"binary_data_size": {"int64_param": 4}}}, "has binary_data_size 4, and no raw_input_contents"),
    ):
        with pytest.raises(grpc.RpcError, match=text):
            call_rpc(server, "ModelInfer", model_name="double", inputs=[{**tensor, **fields}])


def test_models_are_loaded_again_and_unloaded(server: RunningServer, folder: Path) -> None:
    def infer() -> list[Any]:
        return list(server.ask("/v2/models/changing/infer", {"inputs": [X]})[1]["outputs"][0]["data"])

    def find_state() -> str:
        rows = server.ask("/v2/repository/index", b"")[1]
        return next(row["state"] for row in rows if row["name"] == "changing")

    assert infer() == [5, 10, 15]
    write_model(folder / "changing.onnx", 6)
    assert server.ask("/v2/repository/models/changing/load", b"") == (200, {})
    assert infer() == [6, 12, 18]
    (folder / "changing.onnx").write_bytes(b"nothing")
    status, answer = server.ask("/v2/repository/models/changing/load", {})
    assert (status, "changing.onnx" in answer["error"]) == (500, True)
    assert infer() == [6, 12, 18]
    assert server.ask("/v2/repository/models/changing/unload", {"parameters": {"unload_dependents": False}}) == (200, {})
    assert server.ask("/v2/models/changing/ready")[0] == 404
    assert find_state() == "UNAVAILABLE"
    write_model(folder / "changing.onnx", 7)
    call_rpc(server, "RepositoryModelLoad", model_name="changing")
    assert infer() == [7, 14, 21]
    assert find_state() == "READY"


def test_metrics_count_requests_by_status(server: RunningServer) -> None:
    labels = 'model="double",protocol="http",status="{}",version="10"'

    def count(status: int) -> float:
        text = server.ask("/metrics")[1][1].decode()
        row = next((row for row in text.splitlines() if row.startswith(f"hetero_requests_total{{{labels.format(status)}}}")), "0")
        return float(row.split()[-1])

    before = count(200), count(400)
    for body in ({"inputs": [X]}, {"inputs": [X]}, {"inputs": []}):
        server.ask(INFER, body)
    assert (count(200), count(400)) == (before[0] + 2, before[1] + 1)


@pytest.fixture
def repository(by_hand: ExecutableNetwork, tmp_path: Path) -> Callable[[int], Repository]:
    """A function that makes a repository with the network on HAND as its model "m"."""
    write_model(tmp_path / "m.onnx", 2)
    return lambda queue: Repository([str(tmp_path)], lambda _: by_hand, queue=queue)


async def take_run(hand: Any) -> Any:
    return await asyncio.to_thread(hand.next_run)


def test_request_beyond_the_queue_is_refused(hand: Any, repository: Callable[[int], Repository], feed: Any) -> None:
    async def main() -> None:
        models = repository(1)
        await models.load_all()

        async def infer() -> Any:
            with models.admit("m", "", "http") as model:
                return await model.infer(feed(3), [], lambda outputs: outputs["y"].tolist())

        first = asyncio.ensure_future(infer())
        run = await take_run(hand)
        with pytest.raises(protocol.Refusal, match="model 'm' has 1 unanswered requests, its limit") as caught:
            await infer()
        assert caught.value.status == 429
        run.end()
        assert await first == [6]

    asyncio.run(main())


def test_unloaded_model_answers_the_requests_that_it_has(hand: Any, repository: Callable[[int], Repository], feed: Any) -> None:
    async def main() -> None:
        models = repository(4)
        await models.load_all()

        async def infer() -> Any:
            with models.admit("m", "1", "grpc") as model:
                return await model.infer(feed(3), ["y"], lambda outputs: outputs["y"].tolist())

        first = asyncio.ensure_future(infer())
        run = await take_run(hand)
        await models.unload("m")
        with pytest.raises(protocol.Refusal, match="model 'm' is not loaded; loaded are none"):
            await infer()
        run.end()
        assert await first == [6]
        await models.close()

    asyncio.run(main())


def test_run_ends_when_its_client_leaves(hand: Any, repository: Callable[[int], Repository]) -> None:
    from starlette.applications import Starlette

    async def main() -> None:
        models = repository(4)
        await models.load_all()
        app = Starlette(routes=rest.create_routes(models, max_body=999), exception_handlers=rest.ERROR_HANDLERS)
        body = json.dumps({"inputs": [{**X, "shape": [1], "data": [1]}]}).encode()
        messages = iter([{"type": "http.request", "body": body}])
        has_left = asyncio.Event()
        sent: list[Any] = []

        async def receive() -> Any:
            message = next(messages, None)
            if message is None:
                await has_left.wait()
            return message or {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v2/models/m/infer", "query_string": b"", "headers": []}
        answer = asyncio.ensure_future(app(scope, receive, send))
        run = await take_run(hand)
        has_left.set()
        await answer
        assert run.context.cancelled()
        assert sent[0]["status"] == 499
        run.end()

    asyncio.run(main())


@pytest.mark.parametrize("header", range(50, 54))
def test_body_in_parts_stands_where_its_tensor_is_a_view(header: int) -> None:
    values = np.arange(100_000, dtype=np.float32)
    content = bytes(header) + values.tobytes()
    lengths = {"Content-Length": len(content), rest.HEADER_LENGTH: header}
    body = rest.open_body([(name.lower().encode(), str(length).encode()) for name, length in lengths.items()], len(content))
    assert body is not None
    for begin in range(0, len(content), 65_536):
        assert not body.is_whole
        body.add(content[begin : begin + 65_536])
    assert body.is_whole
    array = protocol.read_tensor("x", "FP32", [len(values)], content=body.content[header:])
    assert np.array_equal(array, values)
    assert np.shares_memory(array, np.frombuffer(body.content, np.uint8))
    assert rest.open_body([(b"content-length", b"9")], 8) is None
    assert rest.open_body([(b"transfer-encoding", b"chunked")], 8) is None


def test_body_of_unknown_length_is_read(server: RunningServer) -> None:
    connection = http.client.HTTPConnection(server.http, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", INFER, iter([b'{"inputs": [', json.dumps(X).encode(), b"]}"]), encode_chunked=True)
        assert json.loads(connection.getresponse().read())["outputs"][0]["data"] == [4, 8, 12]


class NotingDevice(PlainDevice):
    """A device that notes the thread of each run."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def make_executable(self, network: Network) -> Executable:
        return NotingExecutable(network, self.threads)


class NotingExecutable(PlainExecutable):
    def __init__(self, network: Network, threads: list[int]) -> None:
        super().__init__(network)
        self._threads = threads

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        self._threads.append(threading.get_ident())
        return super().run(inputs, context)


def test_quick_runs_stay_in_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "m.onnx", 2)

    async def run(core: Core) -> None:
        models = Repository([str(tmp_path)], lambda file: core.load_network(file, "NOTING"), queue=1)
        await models.load_all()
        with models.admit("m", "", "http") as model:
            for size in (3, 3, 4):
                inputs = {"x": np.ones(size, np.float32)}
                assert await model.infer(inputs, [], lambda outputs: outputs["y"].tolist()) == [2] * size
        await models.close()

    for seconds, expected in ((1e9, [False, True, False]), (0, [False, False, False])):
        monkeypatch.setattr("hetero_core.serving.repository.QUICK_SECONDS", seconds)
        device = NotingDevice()
        with Core() as core:
            core.register_plugin("NOTING", device)
            asyncio.run(run(core))
        assert [thread == threading.get_ident() for thread in device.threads] == expected


def test_server_answers_what_it_was_sent_and_ends_with_code_0(tmp_path: Path) -> None:
    write_model(tmp_path / "double.onnx", 4)
    answers: list[tuple[int, bool]] = []
    faults: list[str] = []

    def send(server: RunningServer) -> None:
        connection = http.client.HTTPConnection(server.http, timeout=60)
        end = monotonic() + 60
        with contextlib.closing(connection):
            while monotonic() < end:
                try:
                    connection.connect()
                except OSError:  # it has stopped accepting
                    return
                while connection.sock is not None:
                    try:
                        connection.request("POST", INFER, json.dumps({"inputs": [X]}))
                        response = connection.getresponse()
                        answers.append((response.status, b"[4.0, 8.0, 12.0]" in response.read()))
                    except Exception as error:  # noqa: BLE001  # any error is a lost request
                        faults.append(repr(error))
                        connection.close()

    with run_server(tmp_path, *FAST) as server:
        clients = [threading.Thread(target=send, args=(server,)) for _ in range(4)]
        for client in clients:
            client.start()
        while len(answers) < 40 and any(client.is_alive() for client in clients):
            clients[0].join(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        for client in clients:
            client.join()
    assert faults == []
    assert set(answers) == {(200, True)}


def test_worker_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    words = ["serve", str(tmp_path / "m.onnx"), "-d", "CPU", "--workers", "2", "--http-port", "0", "--grpc-port", "0"]
    command = [sys.executable, "-c", "import sys; from hetero_core.cli.main import main; sys.exit(main())", *words]
    # A hang of the supervisor would last for its HEALTH_SECONDS.
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 3
    assert "it is no ONNX model" in ended.stderr
    assert "a worker cannot start; its error stands above" in ended.stderr


def test_address_in_use_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "m.onnx", 2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["serve", str(tmp_path), *FAST, "--http-port", port, "--grpc-port", "0"]) == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_number_that_is_no_port_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "m.onnx", "--http-port", "65536"]) == 2
    assert "argument --http-port: expected a whole number of 0 to 65535, got 65536" in capsys.readouterr().err


def test_broken_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    command = [sys.executable, "-m", "hetero_core", "serve", str(tmp_path), *FAST, "--http-port", "0", "--grpc-port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, "m.onnx" in ended.stderr, "Traceback" in ended.stderr) == (2, True, False)


def test_files_that_are_no_models_are_errors(tmp_path: Path) -> None:
    with pytest.raises(NetworkNotFoundError, match="there is no model in '.*'; expected a file, NAME=FILE, or a folder"):
        find_models([str(tmp_path)])
    for name in ("a", "b"):
        write_model(tmp_path / name / "m.onnx", 2)
    places = [str(tmp_path / name / "m.onnx") for name in ("a", "b")]
    with pytest.raises(InvalidNetworkError, match="model 'm' stands for .*/a/m.onnx and .*/b/m.onnx; name one, as NAME=FILE"):
        find_models(places)
    assert find_models([places[0], f"n={places[1]}"]) == {"m": {"1": Path(places[0])}, "n": {"1": Path(places[1])}}


def test_compiled_model_is_served_on_its_own_device(tmp_path: Path) -> None:
    write_model(tmp_path / "m.onnx", 3)
    (tmp_path / "models" / "versions" / "2").mkdir(parents=True)
    with Core() as core, core.load_network(tmp_path / "m.onnx", "TEMPLATE") as network:
        for name in ("plain.blob", "versions/2/model.blob"):
            network.export_network(tmp_path / "models" / name)
    with run_server(tmp_path / "models", *FAST) as server:
        for path in ("plain", "versions/versions/2"):
            assert server.ask(f"/v2/models/{path}/infer", {"inputs": [X]})[1]["outputs"][0]["data"] == [3, 6, 9]


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("hetero_core.serving.repository", "hetero_core.serving.server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["serve", "model.onnx"]) == 2
    assert "'hetero serve' needs the package prometheus_client: pip install 'hetero-core[serve]'" in capsys.readouterr().err
