"""Prints what HETERO costs and what it gains: overhead over a plain device, boundaries, branches and requests at the same time.

Paired: the two sides of a ratio run in turns in one process; each figure is the median. Run it on a quiet machine with one BLAS thread
(OPENBLAS_NUM_THREADS=1), so that a device has one thread: `nox -s bench`. Nothing is asserted.
"""

from __future__ import annotations

import os

# Read by OpenBLAS when NumPy is imported, so before it.
os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import contextlib
import dataclasses
import importlib.util
import statistics
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import hetero_cpu
import numpy as np
import onnx.parser

from hetero_core import Core, Executable, ExecutableNetwork, Extension, Network, QueryResult, RunContext, hookimpl
from hetero_core.errors import InferenceError, RequestCancelledError
from hetero_core.testing.models import light_inputs, light_model

HEADER = '<ir_version: 8, opset_import: ["": 17]>'


def time_pairs(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Returns the median seconds of both, run in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, kept in zip((first, second), times, strict=True):
            began = perf_counter()
            function()
            kept.append(perf_counter() - began)
    return statistics.median(times[0]), statistics.median(times[1])


class Sleeper:
    """A device whose every run takes as long as it is told, without computing; it passes its first input on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @hookimpl
    def query_network(self, device: Any, network: Network) -> QueryResult:
        return QueryResult({node.name: str(device) for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        return SleeperExecutable(network, self)


class SleeperExecutable(Executable):
    def __init__(self, network: Network, device: Sleeper) -> None:
        self.inputs, self.outputs, self._device = network.inputs, network.outputs, device

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        sleep(self._device.seconds)
        return tuple(inputs[0] for _ in self.outputs)


def bench_overhead(core: Core) -> None:
    model = light_model("resnet50")
    inputs = light_inputs(model)
    plain, split = core.load_network(model, "CPU"), core.load_network(model, "HETERO:CPU")
    alone, through = time_pairs(lambda: plain.infer(inputs), lambda: split.infer(inputs), 15)
    print(f"resnet50, one subgraph: HETERO:CPU / CPU = {through / alone:.3f} ({alone * 1e3:.1f} ms alone)")
    small = onnx.parser.parse_model(f"{HEADER} g (float[4] x) => (float[4] y) {{ y = Relu(x) }}")
    x = {"x": np.ones(4, np.float32)}
    plain, split = core.load_network(small, "CPU"), core.load_network(small, "HETERO:CPU")
    alone, through = time_pairs(lambda: repeat(plain, x), lambda: repeat(split, x), 200)
    print(f"one node: HETERO:CPU costs {(through - alone) / 20 * 1e6:.1f} us more than CPU ({alone / 20 * 1e6:.1f} us alone)")
    bench_boundaries(core, x)


def repeat(loaded: ExecutableNetwork, inputs: dict[str, Any]) -> None:
    for _ in range(20):
        loaded.infer(inputs)


def bench_boundaries(core: Core, x: dict[str, Any]) -> None:
    body = " ".join(f"v{i + 1} = Relu(v{i})" for i in range(100))
    network = core.read_network(onnx.parser.parse_model(f"{HEADER} g (float[4] v0) => (float[4] v100) {{ {body} }}"))
    pins = {node.name: ("CPU", "OTHER")[index % 2] for index, node in enumerate(network.nodes)}
    plain, split = core.load_network(network, "CPU"), core.load_network(network.with_affinity(pins), "HETERO:CPU,OTHER")
    inputs = {"v0": x["x"]}
    alone, through = time_pairs(lambda: plain.infer(inputs), lambda: split.infer(inputs), 300)
    print(f"100 nodes cut at every node: {(through - alone) / 99 * 1e6:.1f} us a boundary in shared memory")


def bench_branches(core: Core) -> None:
    size = 1024
    text = f"{HEADER} g (float[{size},{size}] x) => (float[{size},{size}] y) {{ s = Relu(x) " + "".join(
        f"{side}0 = Identity(s) " + " ".join(f"{side}{i + 1} = MatMul({side}{i}, s)" for i in range(4)) + " " for side in "ab"
    )
    network = core.read_network(onnx.parser.parse_model(text + "y = Add(a4, b4) }"))
    # The nodes around the branches are pinned apart: joined to one of them, they would make the other wait.
    device_of_side = {"a": "CPU", "b": "OTHER"}
    pins = {node.name: device_of_side.get(node.outputs[0][0], "THIRD") for node in network.nodes}
    inputs = {"x": (np.random.default_rng(0).standard_normal((size, size)) / size).astype(np.float32)}
    for other, label in (("OTHER", "both on NumPy"), ("ENGINE", "one on NumPy, one on ONNX Runtime")):
        placed = network.with_affinity({name: other if device == "OTHER" else device for name, device in pins.items()})
        together, in_turns = (core.load_network(placed, f"HETERO:CPU,{other},THIRD") for _ in range(2))
        # The same stages on one thread: what the branches take one after the other.
        executable: Any = in_turns.executable
        executable._schedule = dataclasses.replace(executable._schedule, is_parallel=False)
        serial, parallel = time_pairs(partial(in_turns.infer, inputs), partial(together.infer, inputs), 9)
        print(
            f"two branches of 4 GEMMs of {size}, {label}: at once / in turns = {parallel / serial:.2f} ({serial * 1e3:.0f} ms in turns)"
        )


def bench_waiting(core: Core) -> None:
    text = f"{HEADER} g (float[2] x) => (float[2] y) {{ s = Relu(x) a = Abs(s) b = Neg(s) y = Add(a, b) }}"
    network = core.read_network(onnx.parser.parse_model(text))
    pins = {"op:Relu": "CPU", "op:Add": "CPU", "op:Abs": "W50A", "op:Neg": "W50B"}
    split = core.load_network(network.with_affinity(pins), "HETERO:W50A,W50B,CPU")
    both, _ = time_pairs(lambda: split.infer({"x": np.ones(2, np.float32)}), lambda: None, 9)
    print(f"two branches that wait 50 ms each: {both * 1e3:.1f} ms together")
    chain = core.read_network(
        onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ a = Abs(x) b = Neg(a) y = Relu(b) }}")
    )
    three = core.load_network(chain.with_affinity({"op:Abs": "W20A", "op:Neg": "W20B", "op:Relu": "W20C"}), "HETERO:W20A,W20B,W20C")
    requests = [three.create_infer_request() for _ in range(8)]

    def run_all() -> None:
        for request in requests:
            request.start_async({"x": np.ones(2, np.float32)})
        for request in requests:
            request.wait()

    run_all()
    eight, _ = time_pairs(run_all, lambda: None, 9)
    print(f"8 requests through 3 stages of 20 ms: {eight * 1e3:.0f} ms (one after the other: 480 ms)")


def bench_residue(core: Core) -> None:
    before = threading.active_count()
    chain = onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ a = Abs(x) y = Relu(a) }}")
    loaded = core.load_network(core.read_network(chain).with_affinity({"op:Abs": "OTHER"}), "HETERO:OTHER,CPU")
    failures: list[object] = []

    def hammer(seed: int) -> None:
        request = loaded.create_infer_request()
        for turn in range(200):
            value = np.full(2, seed * 1000 + turn, np.float32)
            if request.infer({"x": value})["y"].tolist() != value.tolist():
                failures.append((seed, turn))

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(16)]
    began = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        f"16 threads x 200 requests: {perf_counter() - began:.2f} s, {len(failures)} wrong, threads {before} -> {threading.active_count()}"
    )


def bench_aftermath(core: Core) -> None:
    """1,000 cancelled and 1,000 failing requests: threads and memory before and after."""
    fails = threading.Event()

    def maybe_fail(x: Any) -> Any:
        if fails.is_set():
            raise OverflowError("no room")
        return x

    core.add_extension(Extension("bench", "Maybe", 1, maybe_fail, lambda types, attributes: types), "OTHER")
    header = HEADER.replace("17]", '17, "bench": 1]')
    text = f"{header} g (float[65536] x) => (float[65536] y) {{ a = Abs(x) b = bench.Maybe(a) y = Neg(b) }}"
    network = core.read_network(onnx.parser.parse_model(text)).with_affinity({"op:Maybe": "OTHER"})
    request = core.load_network(network, "HETERO:OTHER,CPU").create_infer_request()
    inputs = {"x": np.ones(65536, np.float32)}

    def start(cancels: bool) -> None:
        request.start_async(inputs)
        if cancels:
            request.cancel()
        with contextlib.suppress(InferenceError, RequestCancelledError):
            request.wait()

    for _ in range(100):
        start(cancels=False)
        start(cancels=True)
    before = threading.active_count(), read_memory()
    for _ in range(1000):
        start(cancels=True)
    fails.set()
    for _ in range(1000):
        start(cancels=False)
    fails.clear()
    start(cancels=False)
    is_right = bool((request.get_tensor("y") == -1).all())
    after = threading.active_count(), read_memory()
    print(
        f"1,000 cancelled and 1,000 failed: threads {before[0]} -> {after[0]}, memory {before[1]} -> {after[1]} MB, then right: {is_right}"
    )


def read_memory() -> int:
    """Returns the resident memory of this process in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20


def load_probes() -> Any:
    """Returns the devices that the tests prove the contract with; one of them is ONNX Runtime."""
    spec = importlib.util.spec_from_file_location("probes", Path(__file__).parents[1] / "flow" / "probes.py")
    assert spec is not None
    assert spec.loader is not None
    probes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(probes)
    return probes


def main() -> None:
    with Core() as core:
        core.register_plugin("OTHER", hetero_cpu)
        core.register_plugin("THIRD", hetero_cpu)
        core.register_plugin("ENGINE", load_probes().EngineDevice(threads=1))
        for name, seconds in (("W50A", 0.05), ("W50B", 0.05), ("W20A", 0.02), ("W20B", 0.02), ("W20C", 0.02)):
            core.register_plugin(name, Sleeper(seconds))
        bench_overhead(core)
        bench_branches(core)
        bench_waiting(core)
        bench_residue(core)
        bench_aftermath(core)


if __name__ == "__main__":
    main()
