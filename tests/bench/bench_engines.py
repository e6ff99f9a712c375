"""Prints what a device costs over the engine that it wraps, and what a network over three engines costs over its parts.

Each comparison has a process of its own, so that no engine's threads disturb another's; its two sides run in turns there on one session
of the same options. Each figure is the median; the least of all runs stands beside it, for a machine that others use, too. The plain side
is the engine's own interface without copies: arrays bound once, run again and again. `--cold` empties the caches before each run, as
another program would, and sleeps for a millisecond. Run it on a quiet machine: `nox -s bench`. Nothing is asserted.
"""

from __future__ import annotations

import os

# Read by OpenBLAS when NumPy is imported, so before it.
os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, sleep
from types import MethodType
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

from hetero_core import Core, Network
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.testing.models import light_inputs, light_model

THREADS = {"INFERENCE_NUM_THREADS": 1}
DEVICES = ("OPENVINO", "ORT", "CPU")
Inputs = Mapping[str, np.ndarray[Any, Any]]


Pairs = list[tuple[float, float]]
"""Seconds of the two sides of a comparison, run one after the other."""


@dataclass
class Caches:
    """What a run finds in the processor's caches: what the run before it left, or nothing."""

    is_cold: bool = False
    filler: np.ndarray[Any, Any] | None = None

    def prepare(self) -> None:
        """Called before each run that is measured."""
        if self.is_cold:
            if self.filler is None:
                self.filler = np.zeros(64 << 20, np.uint8)
            self.filler += 1
            sleep(0.001)


CACHES = Caches()


def time_pairs(first: Callable[[], object], second: Callable[[], object], rounds: int) -> Pairs:
    """Returns the times of both, run in turns after one run that is not counted; every other pair begins with the second."""
    for function in (first, second):
        function()
    pairs = []
    for turn in range(rounds if not CACHES.is_cold else min(rounds, 300)):
        seconds = {}
        for function in (first, second) if turn % 2 == 0 else (second, first):
            CACHES.prepare()
            began = perf_counter()
            function()
            seconds[function] = perf_counter() - began
        pairs.append((seconds[first], seconds[second]))
    return pairs


def find_interval(values: list[float]) -> tuple[float, float]:
    """Returns the bounds that the median lies between in 95 of 100 cases, whatever the distribution: order statistics of the sign test."""
    ordered = sorted(values)
    reach = 0.98 * math.sqrt(len(ordered))
    lowest, highest = math.floor(len(ordered) / 2 - reach), math.ceil(len(ordered) / 2 + reach)
    return ordered[max(lowest, 0)], ordered[min(highest, len(ordered) - 1)]


def report(title: str, pairs: Pairs, *, boundaries: int = 0) -> None:
    """Prints the ratio of medians, the median difference with its interval, and the least; of a split also what a boundary costs."""
    plain, device = (list(side) for side in zip(*pairs, strict=True))
    differences = [second - first for first, second in pairs]
    middle, (low, high) = statistics.median(differences), find_interval(differences)
    print(
        f"{title}: {statistics.median(device) / statistics.median(plain):.3f} ({statistics.median(plain) * 1e6:.1f} us, "
        f"{middle * 1e6:+.1f} us, 95 %: {low * 1e6:+.1f} to {high * 1e6:+.1f}); "
        f"least {min(device) / min(plain):.3f} ({min(plain) * 1e6:.1f} us, {(min(device) - min(plain)) * 1e6:+.1f} us)"
    )
    if boundaries:
        each = [f"{value / boundaries * 1e6:+.1f}" for value in (middle, low, high)]
        print(f"  a boundary, of {boundaries}: {each[0]} us, 95 %: {each[1]} to {each[2]}")


def make_model(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]], int]:
    """Returns a model, its inputs, and how many rounds it is worth."""
    if name == "resnet50":
        model = light_model(name)
        return model, light_inputs(model), 60
    if name == "narrow":
        return make_narrow_model(), {"x": np.ones((1, 8, 16, 16), np.float32)}, 5_000
    nodes = {"one-node": "y = Relu(x)", "three-nodes": "a = Relu(x) b = Neg(a) y = Abs(b)"}[name]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) {{ {nodes} }}')
    return model, {"x": np.ones(4, np.float32)}, 20_000


def make_narrow_model(*, blocks: int = 9, channels: int = 8, side: int = 16) -> onnx.ModelProto:
    """Returns residual blocks as those of resnet50, so narrow that a run takes less than a millisecond."""
    draw = np.random.default_rng(0)
    lines, weights = [], []
    for index in range(blocks):
        before = f"b{index}" if index else "x"
        lines.append(
            f"""c{index} = Conv <pads = [1, 1, 1, 1]> ({before}, v{index}) r{index} = Relu(c{index})
            d{index} = Conv <pads = [1, 1, 1, 1]> (r{index}, w{index}) a{index} = Add(d{index}, {before}) b{index + 1} = Relu(a{index})"""
        )
        for name in (f"v{index}", f"w{index}"):
            drawn = draw.standard_normal((channels, channels, 3, 3)).astype(np.float32) / (9 * channels)
            weights.append(onnx.numpy_helper.from_array(drawn, name))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> narrow (float[1, {channels}, {side}, {side}] x) => (float[1, {channels}, 1, 1] y)
        {{ {" ".join(lines)} y = GlobalAveragePool(b{blocks}) }}"""
    )
    model.graph.initializer.extend(weights)
    return model


def bind_onnxruntime(loaded: Any, inputs: Inputs) -> Callable[[], object]:
    """Returns a run of the device's own session on arrays that are bound once."""
    executable = loaded.executable
    session = executable._loaded.session  # the very session, so that its options are the same
    binding = session.io_binding()
    for spec in executable.inputs:
        array = inputs[spec.name]
        binding.bind_input(spec.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    outputs = []
    for name, value in loaded.infer(inputs).items():
        outputs.append(np.empty_like(value))
        binding.bind_output(name, "cpu", 0, value.dtype, value.shape, outputs[-1].ctypes.data)

    def run() -> object:
        session.run_with_iobinding(binding)
        return outputs

    return run


def bind_openvino(loaded: Any, inputs: Inputs) -> Callable[[], object]:
    """Returns a run of a request of the device's own compiled model on arrays that are bound once."""
    import openvino

    executable = loaded.executable
    request = executable.compiled.create_infer_request()
    # The binding's own, without what stands above it in Python; it runs on this thread.
    infer = MethodType(openvino.InferRequest.__base__.infer, request)
    for spec, port in zip(executable.inputs, executable._ports.inputs, strict=True):
        request.set_input_tensor(port, openvino.Tensor(inputs[spec.name], shared_memory=True))
    outputs = [np.empty_like(value) for value in loaded.infer(inputs).values()]
    for array, port in zip(outputs, executable._ports.outputs, strict=True):
        request.set_output_tensor(port, openvino.Tensor(array, shared_memory=True))

    def run() -> object:
        infer({}, True, False)
        return outputs

    return run


def bench_device(device: str, name: str) -> None:
    model, inputs, rounds = make_model(name)
    bind = {"ORT": bind_onnxruntime, "OPENVINO": bind_openvino}[device]
    with Core() as core:
        loaded = core.load_network(model, device, THREADS)
        plain = bind(loaded, inputs)
        report(f"{name}: infer of {device} / its engine", time_pairs(plain, lambda: loaded.infer(inputs), rounds))
        request = loaded.create_infer_request()
        for key, value in loaded.infer(inputs).items():
            request.set_tensor(key, np.empty_like(value))
        report(
            f"{name}: a request of {device} with arrays set / its engine", time_pairs(plain, lambda: request.infer(inputs), rounds)
        )


def bench_hetero(device: str, name: str) -> None:
    model, inputs, rounds = make_model(name)
    with Core() as core:
        alone, through = (core.load_network(model, each, THREADS) for each in (device, f"HETERO:{device}"))
        pairs = time_pairs(lambda: alone.infer(inputs), lambda: through.infer(inputs), rounds)
        report(f"{name}: HETERO:{device} / {device}", pairs)


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
        pairs = time_pairs(lambda: [run() for run in runs], lambda: split.infer(inputs), rounds)
        report(f"{name}: {len(parts)} subgraphs on {', '.join(devices)} / their sum", pairs, boundaries=len(parts) - 1)
        for (device, part), run in zip(parts, runs, strict=True):
            least = min(min(pair) for pair in time_pairs(run, lambda run=run: run(), min(rounds, 100)))  # type: ignore[misc]  # a default binds the loop's value
            print(f"  {device}, {len(part.nodes)} nodes: least {least * 1e6:.1f} us")


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
    **{f"split-{name}": lambda name=name: bench_split(DEVICES, name) for name in ("three-nodes", "narrow", "resnet50")},  # type: ignore[misc]  # as above
}


def main() -> None:
    """Runs one comparison here, or each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(BENCHES))
    parser.add_argument("--cold", action="store_true", help="with empty caches before each run")
    arguments = parser.parse_args()
    CACHES.is_cold = arguments.cold
    if arguments.only is not None:
        BENCHES[arguments.only]()
        return
    for name in BENCHES:
        cold = ["--cold"] if arguments.cold else []
        ended = subprocess.run([sys.executable, "-W", "ignore", __file__, "--only", name, *cold], check=False)
        if ended.returncode != 0:
            print(f"{name}: failed")


if __name__ == "__main__":
    main()
