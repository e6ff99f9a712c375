"""Prints what a device costs over the engine that it wraps, and what a network over three engines costs over its parts.

Each comparison has a process of its own, so that no engine's threads disturb another's; its two sides run in turns there on one session
of the same options. Each figure is the median; the least of all runs stands beside it, for a machine that others use, too. The plain side
is the engine's own interface without copies: arrays bound once, run again and again. Run it on a quiet machine: `nox -s bench`. Nothing is
asserted.
"""

from __future__ import annotations

import os

# Read by OpenBLAS when NumPy is imported, so before it.
os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import onnx.parser

from hetero_core import Core, Network
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.testing.models import light_inputs, light_model

THREADS = {"INFERENCE_NUM_THREADS": 1}
DEVICES = ("OPENVINO", "ORT", "CPU")
Inputs = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Times:
    """Seconds of one side."""

    median: float
    least: float


def time_pairs(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[Times, Times]:
    """Returns the times of both, run in turns, each after one run that is not counted."""
    times: tuple[list[float], list[float]] = ([], [])
    for function in (first, second):
        function()
    for _ in range(rounds):
        for function, kept in zip((first, second), times, strict=True):
            began = perf_counter()
            function()
            kept.append(perf_counter() - began)
    first_times, second_times = (Times(statistics.median(kept), min(kept)) for kept in times)
    return first_times, second_times


def report(title: str, plain: Times, device: Times) -> None:
    """Prints a ratio and the difference in microseconds, of medians and of the least."""
    print(
        f"{title}: {device.median / plain.median:.3f} ({plain.median * 1e6:.1f} us, {(device.median - plain.median) * 1e6:+.1f} us); "
        f"least {device.least / plain.least:.3f} ({plain.least * 1e6:.1f} us, {(device.least - plain.least) * 1e6:+.1f} us)"
    )


def make_model(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]], int]:
    """Returns a model, its inputs, and how many rounds it is worth."""
    if name == "resnet50":
        model = light_model(name)
        return model, light_inputs(model), 30
    nodes = {"one-node": "y = Relu(x)", "three-nodes": "a = Relu(x) b = Neg(a) y = Abs(b)"}[name]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) {{ {nodes} }}')
    return model, {"x": np.ones(4, np.float32)}, 20_000


def bind_onnxruntime(loaded: Any, inputs: Inputs) -> Callable[[], object]:
    """Returns a run of the device's own session on arrays that are bound once."""
    executable = loaded.executable
    session = executable._loaded.session  # the very session, so that its options are the same
    binding = session.io_binding()
    for spec in executable.inputs:
        array = inputs[spec.name]
        binding.bind_input(spec.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    kept = []
    for name, value in loaded.infer(inputs).items():
        kept.append(np.empty_like(value))
        binding.bind_output(name, "cpu", 0, value.dtype, value.shape, kept[-1].ctypes.data)

    def run() -> object:
        session.run_with_iobinding(binding)
        return kept

    return run


def bind_openvino(loaded: Any, inputs: Inputs) -> Callable[[], object]:
    """Returns a run of a request of the device's own compiled model on arrays that are bound once."""
    import openvino

    executable = loaded.executable
    request = executable.compiled.create_infer_request()
    for spec, port in zip(executable.inputs, executable._ports.inputs, strict=True):
        request.set_input_tensor(port, openvino.Tensor(inputs[spec.name], shared_memory=True))
    kept = [np.empty_like(value) for value in loaded.infer(inputs).values()]
    for array, port in zip(kept, executable._ports.outputs, strict=True):
        request.set_output_tensor(port, openvino.Tensor(array, shared_memory=True))

    def run() -> object:
        request.start_async()
        request.wait()
        return kept

    return run


def bench_device(device: str, name: str) -> None:
    model, inputs, rounds = make_model(name)
    bind = {"ORT": bind_onnxruntime, "OPENVINO": bind_openvino}[device]
    with Core() as core:
        loaded = core.load_network(model, device, THREADS)
        plain = bind(loaded, inputs)
        report(f"{name}: infer of {device} / its engine", *time_pairs(plain, lambda: loaded.infer(inputs), rounds))
        request = loaded.create_infer_request()
        for key, value in loaded.infer(inputs).items():
            request.set_tensor(key, np.empty_like(value))
        report(
            f"{name}: a request of {device} with arrays set / its engine", *time_pairs(plain, lambda: request.infer(inputs), rounds)
        )


def bench_hetero(device: str, name: str) -> None:
    model, inputs, rounds = make_model(name)
    with Core() as core:
        alone, through = (core.load_network(model, each, THREADS) for each in (device, f"HETERO:{device}"))
        times = time_pairs(lambda: alone.infer(inputs), lambda: through.infer(inputs), rounds)
        report(f"{name}: HETERO:{device} / {device}", *times)


def bench_split(devices: tuple[str, ...], name: str) -> None:
    """Thirds of the network, each on a device, against the same thirds loaded and run one by one."""
    model, inputs, rounds = make_model(name)
    with Core() as core:
        network = core.read_network(model)
        size = -(-len(network.nodes) // len(devices))
        pins = {node.name: devices[index // size] for index, node in enumerate(network.nodes)}
        split = core.load_network(network.with_affinity(pins), f"HETERO:{','.join(devices)}", THREADS)
        parts = [(device, cut_subnetwork(network, list(nodes))) for device, nodes in split.get_metric("HETERO_SUBGRAPHS")]
        runs = load_parts(core, parts, inputs)
        times = time_pairs(lambda: [run() for run in runs], lambda: split.infer(inputs), rounds)
        report(f"{name}: {len(parts)} subgraphs on {', '.join(devices)} / their sum", *times)
        for (device, part), run in zip(parts, runs, strict=True):
            print(f"  {device}, {len(part.nodes)} nodes: {time_pairs(run, run, rounds)[0].median * 1e6:.1f} us")


def load_parts(core: Core, parts: list[tuple[str, Network]], inputs: Inputs) -> list[Callable[[], object]]:
    """Returns a run of each part on its device, with the values that the parts before it make."""
    values = dict(inputs)
    runs: list[Callable[[], object]] = []
    for device, part in parts:
        loaded = core.load_network(part, device, THREADS)
        own = {spec.name: values[spec.name] for spec in part.inputs}
        values.update(loaded.infer(own))
        runs.append(lambda loaded=loaded, own=own: loaded.infer(own))  # type: ignore[misc]  # defaults bind the loop's values
    return runs


BENCHES: dict[str, Callable[[], None]] = {
    **{
        f"{device}-{name}": lambda device=device, name=name: bench_device(device, name)  # type: ignore[misc]  # as above
        for device in ("ORT", "OPENVINO")
        for name in ("one-node", "resnet50")
    },
    **{f"HETERO-{name}": lambda name=name: bench_hetero("ORT", name) for name in ("one-node", "resnet50")},  # type: ignore[misc]  # as above
    **{f"split-{name}": lambda name=name: bench_split(DEVICES, name) for name in ("three-nodes", "resnet50")},  # type: ignore[misc]  # as above
}


def main() -> None:
    """Runs one comparison here, or each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(BENCHES))
    chosen = parser.parse_args().only
    if chosen is not None:
        BENCHES[chosen]()
        return
    for name in BENCHES:
        ended = subprocess.run([sys.executable, "-W", "ignore", __file__, "--only", name], check=False)
        if ended.returncode != 0:
            print(f"{name}: failed")


if __name__ == "__main__":
    main()
