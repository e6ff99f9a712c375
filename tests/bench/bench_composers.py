"""MULTI over two devices that sleep, AUTO's first answer, BATCH's callers: the figures of docs/how-to/compose-devices.md.

python tests/bench/bench_composers.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from hetero_core import AsyncInferQueue, Core, RunContext
from hetero_core.contract import Executable
from hetero_core.network.graph import Network
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

SLEEP = 0.020


class SleepingDevice(PlainDevice):
    """PLAIN that sleeps before each run."""

    def make_executable(self, network: Network) -> Executable:
        return SleepingExecutable(network)


class SleepingExecutable(PlainExecutable):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        time.sleep(SLEEP)
        return super().run(inputs, context)


def make_dense(width: int, layers: int) -> onnx.ModelProto:
    """Returns a fully connected model of one row, which waits for its weights."""
    generator = np.random.default_rng(0)
    names = ["x", *(f"h{index}" for index in range(layers - 1)), "y"]
    weights = [generator.standard_normal((width, width), np.float32) / np.sqrt(width) for _ in range(layers)]
    nodes = [onnx.helper.make_node("MatMul", [names[index], f"w{index}"], [names[index + 1]]) for index in range(layers)]
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width]) for name in ("x", "y")]
    held = [onnx.numpy_helper.from_array(weight.astype(np.float32), f"w{index}") for index, weight in enumerate(weights)]
    graph = onnx.helper.make_graph(nodes, "dense", info[:1], info[1:], held)
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])


def time_queue(network: Any, inputs: dict[str, Any], jobs: int, count: int) -> float:
    """Returns requests in a second with so many callers."""
    with AsyncInferQueue(network, jobs) as queue:
        queue.start_async(inputs)
        queue.wait_all()
        began = time.perf_counter()
        for _ in range(count):
            queue.start_async(inputs)
        queue.wait_all()
        return count / (time.perf_counter() - began)


def compare(title: str, rounds: int, measures: dict[str, Callable[[], float]]) -> None:
    """Prints the median of each measure, taken in turns, and its ratio to the first."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            values[name].append(measure())
    first = median(next(iter(values.values())))
    for name, taken in values.items():
        print(f"{title:8} {name:28} {median(taken):10.1f} requests/s  {median(taken) / first:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with Core() as core:
        for name in ("A", "B"):
            core.register_plugin(name, SleepingDevice())
        tiny = {"x": np.ones((1, 4), np.float32)}
        small = make_dense(4, 1)
        loaded = {device: core.load_network(small, device) for device in ("MULTI:A", "MULTI:A,B")}
        compare("MULTI", rounds, {device: (lambda one=one: time_queue(one, tiny, 8, 100)) for device, one in loaded.items()})
        wide = {"x": np.ones((1, 2048), np.float32)}
        dense = make_dense(2048, 4)
        batched = {device: core.load_network(dense, device) for device in ("CPU", "BATCH:CPU(8)")}
        compare("BATCH", rounds, {device: (lambda one=one: time_queue(one, wide, 8, 200)) for device, one in batched.items()})
        idle = batched["BATCH:CPU(8)"].create_infer_request()
        request = batched["BATCH:CPU(8)"].create_infer_request()
        lateness = []
        for _ in range(20 * rounds):
            began = time.perf_counter()
            request.infer(wide)
            lateness.append(time.perf_counter() - began)
        alone = []
        del idle
        for _ in range(20 * rounds):
            began = time.perf_counter()
            request.infer(wide)
            alone.append(time.perf_counter() - began)
        print(
            f"BATCH    one of two requests waits {(median(lateness) - median(alone)) * 1e3:.2f} ms longer than one alone; timeout 20 ms"
        )


if __name__ == "__main__":
    main()
