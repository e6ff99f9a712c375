"""Compares the throughput of `hetero serve` with that of the same runs in this process, in turns; prints figures.

The load is 32 clients, half of them by gRPC, with tensors as bytes; in the process 32 threads call `infer`. Clients and server share
the processors, so by the clock the time of a request in its client counts against the server. So the processor time of the server
alone is compared as well, and that of a client is printed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np
import onnx
import onnx.helper
import tritonclient.grpc
import tritonclient.http
from hetero_tests.server import run_server, write_model

from hetero_core import Core
from hetero_core.testing.models import light_model

CLIENTS = 32
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
    for case in CASES:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "m.onnx"
            case.write(file)
            with run_server(file, "-d", DEVICE) as server, Core() as core:
                network = core.load_network(file, DEVICE)
                (spec,) = network.inputs

                def make_client(index: int, server: Any = server, case: Case = case, name: str = spec.name) -> Callable[[], Any]:
                    kind, address = (tritonclient.grpc, server.grpc) if index % 2 else (tritonclient.http, server.http)
                    client = kind.InferenceServerClient(address)
                    tensor = kind.InferInput(name, case.x.shape, "FP32")
                    tensor.set_data_from_numpy(case.x)
                    return lambda: client.infer("m", [tensor])

                def make_call(_: int, network: Any = network, case: Case = case) -> Callable[[], Any]:
                    return lambda: network.infer([case.x])

                rounds, client_seconds = [], []
                for _ in range(5):
                    used = process_time()
                    served = time_clients(make_client, case.requests, server.process.pid)
                    client_seconds.append((process_time() - used) / (case.requests + CLIENTS))  # each has one before the start
                    rounds.append((served, time_clients(make_call, case.requests, "self")))
                for what, place in (("by the clock", 0), ("in a second of the processor of the server or the network", 1)):
                    ratios = [served[place] / own[place] for served, own in rounds]
                    served, own = (median(side[place] for side in sides) for sides in zip(*rounds, strict=True))
                    ratio = f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
                    print(f"{case.name}, requests {what}: served {served:.0f}, in the process {own:.0f}, ratio {ratio}", flush=True)
                added = [1 / served[1] - 1 / own[1] for served, own in rounds]
                times = f"{median(added) * 1e3:.2f} in the server, {median(client_seconds) * 1e3:.2f} in its client"
                print(f"{case.name}, ms of processor time that a request adds: {times}", flush=True)


if __name__ == "__main__":
    main()
