"""Prints the slowest runs of several processes that run one int8 network at the same time, as the workers of a server do.

    python tests/bench/bench_busy.py [--device AUTO] [--processes 3] [--rounds 20] [--seconds 4] [-c KEY=VALUE]

Each round starts the processes at once. A process loads the network, infers for some seconds, and tells the seconds of its load, of its
runs, and the device that answered last. The first round is one process alone, for comparison.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
_PATIENCE = 300.0
"""Seconds after which a process is ended and counted as stuck."""


def make_int8_resnet(size: int = 224) -> onnx.ModelProto:
    """Returns a ResNet-18 in QDQ form with seeded random weights. Source: He et al. 2015, table 1."""
    from hetero_tests.network_writer import NetworkWriter  # the path is set above

    writer, generator = NetworkWriter("int8_resnet"), np.random.default_rng(0)
    step, zero = writer.add_scalar(0.03), writer.add_constant(np.array(0, np.int8))

    def quantize(x: str) -> str:
        return str(writer.add_node("DequantizeLinear", writer.add_node("QuantizeLinear", x, step, zero), step, zero))

    def add_conv(x: str, inputs: int, outputs: int, kernel: int, stride: int) -> str:
        weight = writer.add_constant(generator.integers(-127, 128, (outputs, inputs, kernel, kernel)).astype(np.int8))
        scale = writer.add_scalar(1 / (73 * (inputs * kernel * kernel) ** 0.5))
        weights = writer.add_node("DequantizeLinear", weight, scale, zero)
        return str(writer.add_node("Conv", x, weights, strides=[stride] * 2, pads=[kernel // 2] * 4))

    x = quantize(writer.add_input("images", (1, 3, size, size)))
    x = quantize(writer.add_node("Relu", add_conv(x, 3, 64, 7, 2)))
    x = str(writer.add_node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
    channels = 64
    for outputs, first_stride in _STAGES:
        for stride in (first_stride, 1):
            y = quantize(writer.add_node("Relu", add_conv(x, channels, outputs, 3, stride)))
            y = quantize(add_conv(y, outputs, outputs, 3, 1))
            shortcut = x if stride == 1 and channels == outputs else quantize(add_conv(x, channels, outputs, 1, stride))
            x, channels = quantize(writer.add_node("Relu", writer.add_node("Add", y, shortcut))), outputs
    x = writer.add_node("Flatten", writer.add_node("GlobalAveragePool", x))
    writer.add_output(writer.add_node("MatMul", x, writer.draw_weight(512, 1000)), (1, 1000))
    return writer.build_model()


def run_child(path: str, device: str, seconds: float, config: dict[str, str]) -> None:
    """Infers for some seconds and prints what it took, as JSON."""
    from hetero_core import Core  # the parent loads nothing

    with Core() as core:
        began = perf_counter()
        network = core.load_network(path, device, config)
        loaded = perf_counter()
        images = np.random.default_rng(0).standard_normal(network.inputs[0].type.shape, np.float32)
        runs: list[float] = []
        while perf_counter() - loaded < seconds:
            start = perf_counter()
            network.infer({"images": images})
            runs.append(perf_counter() - start)
        devices = network.get_metric("EXECUTION_DEVICES")
    print(json.dumps({"load": loaded - began, "runs": runs, "devices": devices}))


def run_round(processes: int, arguments: list[str]) -> list[dict[str, Any] | None]:
    """Returns what each of the processes tells; None for one that was stuck."""
    command = [sys.executable, __file__, "--child", *arguments]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    answers: list[dict[str, Any] | None] = []
    for child in children:
        try:
            answers.append(json.loads(child.communicate(timeout=_PATIENCE)[0]))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            answers.append(None)
    return answers


def main() -> None:
    """Prints a row for each round, and the slowest run of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="AUTO")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("-c", "--config", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--child", metavar="MODEL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        config = dict(item.split("=", 1) for item in arguments.config)
        run_child(arguments.child, arguments.device, arguments.seconds, config)
        return
    worst, stuck = 0.0, 0
    print(
        "| processes | slowest load, s | slowest run, s | median run, s | fewest runs | devices at the end |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8_resnet.onnx"
        path.write_bytes(make_int8_resnet().SerializeToString())
        own = [str(path), "--device", arguments.device, "--seconds", str(arguments.seconds)]
        own += [part for item in arguments.config for part in ("-c", item)]
        for count in (1, *[arguments.processes] * arguments.rounds):
            answers = run_round(count, own)
            told = [answer for answer in answers if answer is not None]
            stuck += len(answers) - len(told)
            if not told:
                continue
            runs = [seconds for answer in told for seconds in answer["runs"]]
            worst = max(worst, *runs)
            devices = ", ".join("+".join(answer["devices"]) for answer in told)
            load, fewest = max(answer["load"] for answer in told), min(len(answer["runs"]) for answer in told)
            print(f"| {count} | {load:.2f} | {max(runs):.2f} | {median(runs):.3f} | {fewest} | {devices} |", flush=True)
    print(f"slowest run {worst:.2f} s; {stuck} processes stood for more than {_PATIENCE:.0f} s")


if __name__ == "__main__":
    main()
