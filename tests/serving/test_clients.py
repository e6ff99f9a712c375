"""Triton's own clients, 32 at once, while models are loaded again, devices die and workers are replaced; and mutated requests."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from hetero_tests.server import RunningServer, run_server, write_model

from hetero_core.serving.rpc import MESSAGES, SERVICE

CLIENTS = 32
REQUESTS = 10_000
HEADER = "Inference-Header-Content-Length"


def send_all(server: RunningServer, factors: set[int], meanwhile: Callable[[], None], *, count: int = REQUESTS) -> None:
    """Sends requests by all clients, half of them by gRPC, and asserts that each answer is right.

    `meanwhile` is called again and again until the end.
    """
    faults: list[str] = []
    answers = [0] * CLIENTS

    def run_client(index: int) -> None:
        kind, address = (tritonclient.grpc, server.grpc) if index % 2 else (tritonclient.http, server.http)
        draws = random.Random(index)
        with contextlib.closing(kind.InferenceServerClient(address)) as client:
            for _ in range(count // CLIENTS + (index < count % CLIENTS)):
                x = np.array([draws.randrange(1000) for _ in range(draws.randrange(1, 50))], np.float32)
                tensor = kind.InferInput("x", x.shape, "FP32")
                tensor.set_data_from_numpy(x)
                try:
                    y = client.infer("m", [tensor]).as_numpy("y")
                except Exception as error:  # noqa: BLE001  # any error is a lost request
                    faults.append(f"{type(error).__module__} {error}")
                    continue
                if any(np.array_equal(y, factor * x) for factor in factors):
                    answers[index] += 1
                else:
                    faults.append(f"{x} gives {y}")

    clients = [threading.Thread(target=run_client, args=(index,)) for index in range(CLIENTS)]
    for client in clients:
        client.start()
    while any(client.is_alive() for client in clients):
        meanwhile()
    assert faults == []
    assert sum(answers) == count


@pytest.mark.parametrize("device", ["CPU", "AUTO", "BATCH:CPU(8)"])
def test_no_request_is_lost_while_the_model_is_loaded_again(tmp_path: Path, device: str) -> None:
    file = tmp_path / "m.onnx"
    write_model(file, 2)
    with run_server(tmp_path, "-d", device) as server:
        client = tritonclient.http.InferenceServerClient(server.http)
        factors = [2, 3] * 1000

        def load_again() -> None:
            write_model(tmp_path / "new" / "m.onnx", factors.pop())
            os.replace(tmp_path / "new" / "m.onnx", file)
            client.load_model("m")
            sleep(0.2)

        send_all(server, {2, 3}, load_again)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


def find_children(server: RunningServer, word: bytes) -> set[int]:
    """Returns the processes that the server has started with a command line that contains `word`."""
    lists = Path(f"/proc/{server.process.pid}/task").glob("*/children")  # of each thread
    children = [child for listed in lists for child in listed.read_text().split()]
    return {int(child) for child in children if word in Path(f"/proc/{child}/cmdline").read_bytes()}


def test_no_request_is_lost_while_a_device_is_killed(tmp_path: Path) -> None:
    write_model(tmp_path / "m.onnx", 2)
    with run_server(tmp_path, "-d", "MULTI:(PROCESS:CPU),CPU") as server:
        killed: list[int] = []

        def kill_device() -> None:
            sleep(1)
            process = next(iter(find_children(server, b"hetero_process")), None)
            if process is not None and len(killed) < 5:
                killed.append(process)
                os.kill(process, signal.SIGKILL)

        send_all(server, {2}, kill_device)
        assert killed


def test_workers_share_ports_and_metrics_and_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    write_model(file, 2)
    with run_server(tmp_path, "-d", "CPU", "--workers", 2) as server:

        def count() -> float:
            rows = server.ask("/metrics")[1][1].decode().splitlines()
            return sum(float(row.split()[-1]) for row in rows if row.startswith("hetero_requests_total"))

        send_all(server, {2}, lambda: sleep(0.1), count=2000)
        assert count() == 2000
        status, answer = server.ask("/v2/repository/models/m/load", b"")
        assert (status, "change the files and send SIGHUP" in answer["error"]) == (501, True)
        write_model(file, 3)
        replaced: set[int] = set()

        def replace_workers() -> None:
            workers = find_children(server, b"spawn_main")
            if len(workers) == 2 and not workers & replaced:
                replaced.update(workers)
                server.process.send_signal(signal.SIGHUP)
            sleep(0.1)

        send_all(server, {2, 3}, replace_workers)
        assert len(replaced) >= 4  # all of the first workers have ended
        x = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
        answers = [server.ask("/v2/models/m/infer", {"inputs": [x]})[1]["outputs"][0]["data"] for _ in range(20)]
        assert answers == [[3]] * 20
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


MUTATIONS = 1000


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "m.onnx", 2)
    with run_server(folder, "-d", "CPU") as server:
        yield server


def mutate(draws: random.Random, content: bytes) -> bytes:
    """Returns the content with some bytes changed, removed, repeated or put in."""
    changed = bytearray(content)
    for _ in range(draws.randrange(1, 3)):
        place, kind = draws.randrange(len(changed) or 1), draws.randrange(4)
        if kind == 0:
            changed[place : place + 1] = bytes([draws.randrange(256)])
        elif kind == 1:
            del changed[place : place + draws.randrange(1, 9)]
        elif kind == 2:
            changed[place:place] = changed[place : place + draws.randrange(1, 20)]
        else:
            changed[place:place] = draws.choice(
                [b"[", b"}", b"-1", b"1e999", b"null", b'"x"', b"true", b"\xff\xff\xff\xff", b"9" * 30]
            )
    return bytes(changed)


def test_mutated_rest_requests_are_refused_or_answered_rightly(double: RunningServer) -> None:
    draws = random.Random(1)
    counts = {True: 0, False: 0}
    for number in range(MUTATIONS // 2):
        x = np.array([draws.randrange(100) for _ in range(4)], np.float32)
        tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [4]}
        if number % 2:
            body, length = json.dumps({"inputs": [{**tensor, "data": x.tolist()}]}).encode(), None
        else:
            tensor["parameters"] = {"binary_data_size": 16}
            body = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": False}}).encode()
            length = len(body)
            body += x.tobytes()
        body = mutate(draws, body)
        status, answer = double.ask("/v2/models/m/infer", body, {} if length is None else {HEADER: str(length)})
        counts[status == 200] += 1
        if status != 200:
            assert 400 <= status < 500, (body, answer)
            assert answer["error"]
            continue
        (sent,) = json.loads(body[:length])["inputs"]
        values = np.frombuffer(body[length:], np.float32) if "data" not in sent else np.array(sent["data"], np.float32)
        (output,) = answer["outputs"]
        assert output["shape"] == sent["shape"]
        assert np.array_equal(np.array(output["data"], np.float32), 2 * values.ravel(), equal_nan=True), (body, answer)
    assert min(counts.values()) > 5, counts


def test_mutated_grpc_requests_are_refused_or_answered_rightly(double: RunningServer) -> None:
    draws = random.Random(2)
    counts = {True: 0, False: 0}
    with grpc.insecure_channel(double.grpc) as channel:
        parse = MESSAGES["ModelInferResponse"].FromString
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer", request_serializer=bytes, response_deserializer=parse)
        for number in range(MUTATIONS // 2):
            x = np.array([draws.randrange(100) for _ in range(4)], np.float32)
            own = {"contents": {"fp32_contents": x}} if number % 2 else {}
            tensor = {"name": "x", "datatype": "FP32", "shape": [4], **own}
            raw = [] if own else [x.tobytes()]
            message = MESSAGES["ModelInferRequest"](model_name="m", inputs=[tensor], raw_input_contents=raw).SerializeToString()
            changed = mutate(draws, message)
            try:
                answer = infer(changed, timeout=60)
            except grpc.RpcError as error:
                counts[False] += 1
                if error.code().name not in ("INVALID_ARGUMENT", "NOT_FOUND"):
                    raise
                continue
            counts[True] += 1
            sent = MESSAGES["ModelInferRequest"].FromString(changed)
            raw = sent.raw_input_contents
            values = np.frombuffer(raw[0], np.float32) if raw else list(sent.inputs[0].contents.fp32_contents)
            expected = 2 * np.array(values, np.float32)
            assert np.array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), expected, equal_nan=True), changed
    assert min(counts.values()) > 5, counts


APPLICATION = """
import json
import numpy as np
from hetero_core import Core

network = Core(after_fork="reopen").load_network("m.onnx")


def app(environ, start_response):
    value = float(environ["QUERY_STRING"])
    y = network.infer({"x": np.array([value], np.float32)})["y"]
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(y.tolist()).encode()]
"""


def test_network_of_a_preloaded_gunicorn_answers_in_its_workers(tmp_path: Path) -> None:
    write_model(tmp_path / "m.onnx", 2)
    (tmp_path / "application.py").write_text(APPLICATION)
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:0", "application:app"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "Listening at" in line)
            server = RunningServer(process, line.partition("http://")[2].split()[0], "")
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda value: server.ask(f"/?{value}"), range(200)))
            assert answers == [(200, [2.0 * value]) for value in range(200)]
        finally:
            process.terminate()
            process.communicate(timeout=60)
