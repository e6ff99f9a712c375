"""Compares the throughput of `hetero serve` with that of the same runs in this process, in turns; prints figures.

The load is 32 clients by HTTP or by gRPC, with tensors as bytes; in the process 32 threads call `infer`, each with an array of its own.
Clients and server share the processors, so by the clock the time of a request in its client counts against the server. So the
processor time of the server alone is compared as well, and that of a client is printed. The floor is what the libraries alone take:
uvicorn and grpcio with handlers that answer as many bytes and do nothing else. Without a model they keep their code in the caches, so no
server with one reaches the floor.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import clock_gettime, perf_counter, process_time
from typing import Any

import numpy as np
import onnx
import onnx.helper
import tritonclient.grpc
import tritonclient.http
from hetero_tests.server import RunningServer, run_server, write_model

from hetero_core import Core
from hetero_core.testing.models import light_model

CLIENTS = 32
ROUNDS = 7
DEVICE = "CPU"


@dataclass(frozen=True)
class Case:
    """A model, with the input of its requests."""

    name: str
    requests: int
    x: np.ndarray
    write: Callable[[Path], None]


def write_products(path: Path) -> None:
    """Writes a model of four products of matrices."""
    draws = np.random.default_rng(0)
    weights = [onnx.numpy_helper.from_array(draws.normal(0, 0.04, (512, 512)).astype(np.float32), f"w{i}") for i in range(4)]
    nodes = [onnx.helper.make_node("MatMul", [f"h{i}" if i else "x", f"w{i}"], [f"h{i + 1}"]) for i in range(4)]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64, 512]) for name in ("x", "h4")]
    graph = onnx.helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), str(path))


CASES = (
    Case("16 products of numbers", 3200, np.ones(16, np.float32), lambda path: write_model(path, 2)),
    Case("4 products of matrices", 1280, np.ones((64, 512), np.float32), write_products),
    *(
        Case(name, requests, np.ones((1, 3, 224, 224), np.float32), lambda path, name=name: onnx.save(light_model(name), str(path)))
        for name, requests in (("squeezenet", 160), ("resnet50", 96))
    ),
)


EMPTY_SERVER = """
import asyncio, sys
import grpc, numpy, uvicorn, uvloop
from hetero_core.serving.rpc import MESSAGES, SERVICE

content = numpy.zeros(int(sys.argv[1]), numpy.uint8).tobytes()
output = dict(name="y", datatype="UINT8", shape=[len(content)])
message = MESSAGES["ModelInferResponse"](outputs=[output], raw_output_contents=[content]).SerializeToString()
size = b'{"outputs": [{"name": "y", "datatype": "UINT8", "shape": [%d], "parameters": {"binary_data_size": %d}}]}'
header = size % (len(content), len(content))
body = header + content
lengths = [(b"content-length", b"%d" % len(body)), (b"inference-header-content-length", b"%d" % len(header))]
numpy.empty(2**25 - 2**16, numpy.uint8)  # freed memory stays with the process, as in a server with kernels

async def app(scope, receive, send):
    while (await receive())["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": lengths})
    await send({"type": "http.response.body", "body": body})

async def answer(request, context):
    return message

async def main():
    rpc = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handler = grpc.unary_unary_rpc_method_handler(answer)
    rpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"ModelInfer": handler}),))
    port = rpc.add_insecure_port("127.0.0.1:0")
    await rpc.start()
    config = uvicorn.Config(app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False, port=0)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}, gRPC 127.0.0.1:{port}", flush=True)
    await task

uvloop.run(main())
"""


@contextmanager
def run_empty_server(nbytes: int) -> Iterator[RunningServer]:
    """Gives a server whose handlers answer outputs of so many bytes at once."""
    with subprocess.Popen([sys.executable, "-c", EMPTY_SERVER, str(nbytes)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            addresses = re.search(r"http://(\S+), gRPC (\S+)", process.stdout.readline())
            assert addresses
            yield RunningServer(process, addresses[1], addresses[2])
        finally:
            process.kill()


def read_processor_seconds(process: int) -> float:
    """Returns the processor time that a process has used."""
    return clock_gettime(
        ~process << 3 | 2
    )  # the clock of another process in Linux, of nanoseconds; /proc counts hundredths of a second


def time_clients(make: Callable[[int], Callable[[], Any]], count: int, process: int) -> tuple[float, float]:
    """Returns seconds of a run by the clock, all clients together, and seconds of processor time of the process that computes.

    `make` makes the call of a client.
    """
    start, begin = threading.Barrier(CLIENTS + 1), threading.Barrier(CLIENTS + 1)

    def run(index: int) -> None:
        call = make(index)
        call()
        start.wait()
        begin.wait()
        for _ in range(count // CLIENTS):
            call()

    clients = [threading.Thread(target=run, args=(index,)) for index in range(CLIENTS)]
    for client in clients:
        client.start()
    start.wait()
    clock, used = perf_counter(), read_processor_seconds(process)
    begin.wait()
    for client in clients:
        client.join()
    runs = count // CLIENTS * CLIENTS
    return (perf_counter() - clock) / runs, (read_processor_seconds(process) - used) / runs


def main() -> None:
    names = sys.argv[1:] or [case.name for case in CASES]
    for case in (case for case in CASES if case.name in names):
        with TemporaryDirectory() as folder, Core() as core:
            file = Path(folder) / "m.onnx"
            case.write(file)
            network = core.load_network(file, DEVICE)
            (spec,) = network.inputs
            nbytes = sum(array.nbytes for array in network.infer([case.x]).values())

            def make_client(kind: Any, address: str, case: Case = case, name: str = spec.name) -> Callable[[], Any]:
                client = kind.InferenceServerClient(address)
                tensor = kind.InferInput(name, case.x.shape, "FP32")
                tensor.set_data_from_numpy(case.x)
                return lambda: client.infer("m", [tensor])

            def make_call(_: int, network: Any = network, case: Case = case) -> Callable[[], Any]:
                x = case.x.copy()
                return lambda: network.infer([x])

            with run_server(file, "-d", DEVICE) as server, run_empty_server(nbytes) as empty:
                times: dict[str, list[tuple[float, float]]] = {}
                client_seconds: dict[str, list[float]] = {}
                for _ in range(ROUNDS):
                    for name, kind, address in (("HTTP", tritonclient.http, "http"), ("gRPC", tritonclient.grpc, "grpc")):
                        for what, each in ((name, server), (f"{name} alone", empty)):
                            used = process_time()
                            place = getattr(each, address)
                            timed = time_clients(
                                lambda _, kind=kind, place=place: make_client(kind, place), case.requests, each.process.pid
                            )
                            times.setdefault(what, []).append(timed)
                            client_seconds.setdefault(what, []).append((process_time() - used) / (case.requests + CLIENTS))
                    times.setdefault("own", []).append(time_clients(make_call, case.requests, os.getpid()))
            own = median(used for _, used in times["own"])
            print(f"{case.name}: {own * 1e3:.3f} ms of processor time of a run in the process", flush=True)
            for name in ("HTTP", "gRPC"):
                served, floor = (median(used for _, used in times[what]) for what in (name, f"{name} alone"))
                clock = median(a[0] / b[0] for a, b in zip(times["own"], times[name], strict=True))
                ratios = [b[1] / a[1] for a, b in zip(times[name], times["own"], strict=True)]
                print(
                    f"  {name}: {served * 1e3:.3f} ms in the server, ratio {median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}], "
                    f"by the clock {clock:.2f}; {name} alone {floor * 1e3:.3f} ms, so that the ratio is below {own / (own + floor):.2f}; "
                    f"{median(client_seconds[name]) * 1e3:.2f} ms in the client",
                    flush=True,
                )


if __name__ == "__main__":
    main()
