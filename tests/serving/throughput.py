"""Compares the throughput of `hetero serve` with that of the same runs in this process, in turns; prints figures.

The load is 32 clients, half of them by gRPC, with tensors as bytes; in the process 32 threads call `infer`. The model multiplies
matrices. Clients and server share the processors, so the time of a request in the client counts against the server; the processor time
of the server alone is printed as well.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import onnx.helper
import tritonclient.grpc
import tritonclient.http
from hetero_tests.server import run_server

from hetero_core import Core

CLIENTS = 32
REQUESTS = 640
SIZE = 512
DEVICE = "CPU"


def write_products(path: Path, layers: int) -> None:
    """Writes a model of `layers` products of matrices."""
    draws = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(draws.normal(0, SIZE**-0.5, (SIZE, SIZE)).astype(np.float32), f"w{i}") for i in range(layers)
    ]
    nodes = [onnx.helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(layers)]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64, SIZE]) for name in ("h0", f"h{layers}")]
    graph = onnx.helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), str(path))


def read_processor_seconds(process: int | str) -> float:
    """Returns the processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def time_clients(make: Callable[[int], Callable[[], Any]], count: int, process: int | str) -> tuple[float, float]:
    """Returns runs per second of all clients together, and runs per second of processor time of the process that computes.

    `make` makes the call of a client.
    """
    start = threading.Barrier(CLIENTS + 1)

    def run(index: int) -> None:
        call = make(index)
        call()
        start.wait()
        for _ in range(count // CLIENTS):
            call()

    clients = [threading.Thread(target=run, args=(index,)) for index in range(CLIENTS)]
    for client in clients:
        client.start()
    start.wait()
    begin, used = perf_counter(), read_processor_seconds(process)
    for client in clients:
        client.join()
    runs = count // CLIENTS * CLIENTS
    return runs / (perf_counter() - begin), runs / (read_processor_seconds(process) - used)


def main() -> None:
    x = np.ones((64, SIZE), np.float32)
    for layers in (4, 32, 64):
        with TemporaryDirectory() as folder:
            file = Path(folder) / "m.onnx"
            write_products(file, layers)
            with run_server(file, "-d", DEVICE) as server, Core() as core:
                network = core.load_network(file, DEVICE)

                def make_client(index: int, server: Any = server) -> Callable[[], Any]:
                    kind, address = (tritonclient.grpc, server.grpc) if index % 2 else (tritonclient.http, server.http)
                    client = kind.InferenceServerClient(address)
                    tensor = kind.InferInput("h0", x.shape, "FP32")
                    tensor.set_data_from_numpy(x)
                    return lambda: client.infer("m", [tensor])

                def make_call(_: int, network: Any = network) -> Callable[[], Any]:
                    return lambda: network.infer([x])

                rounds = []
                for _ in range(5):
                    served = time_clients(make_client, REQUESTS, server.process.pid)
                    rounds.append((served, time_clients(make_call, REQUESTS, "self")))
                for what, place in (("seconds", 0), ("seconds of the processor", 1)):
                    ratios = [served[place] / own[place] for served, own in rounds]
                    served, own = (median(side[place] for side in sides) for sides in zip(*rounds, strict=True))
                    ratio = f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
                    print(f"{layers} layers, requests in {what}: served {served:.0f}, in the process {own:.0f}, ratio {ratio}")


if __name__ == "__main__":
    main()
