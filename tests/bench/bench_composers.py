"""Prints what devices made of devices gain and cost, each figure beside its bound; nothing is asserted.

    python tests/bench/bench_composers.py [MULTI AUTO BATCH BORDERS] [--rounds 7] [--model resnet50]

MULTI: two devices that sleep against one; CPU and ORT with 16 callers against the better of both. AUTO: the first answer, the steady state,
and the requests while it moves over. BATCH: 8 callers against one at a time, and the timeout. BORDERS: what a border between parts of ORT
and CPU costs, and a split against the sum of its parts. What is compared runs in turns, and medians count. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)

import numpy as np
import onnx
import onnx.helper
import onnx.parser

from hetero_core import AsyncInferQueue, Core, RunContext
from hetero_core.contract import Executable
from hetero_core.network.graph import Network
from hetero_core.testing.models import light_inputs, light_model
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from hetero_tests.network_writer import NetworkWriter  # the path is set above

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
SLEEP = 0.020
ENGINE, NATIVE = "ORT", "CPU"
Measures = dict[str, Callable[[], float]]


class SleepingDevice(PlainDevice):
    """PLAIN that sleeps before each run."""

    def make_executable(self, network: Network) -> Executable:
        return SleepingExecutable(network)


class SleepingExecutable(PlainExecutable):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        time.sleep(SLEEP)
        return super().run(inputs, context)


def make_dense(width: int, layers: int) -> onnx.ModelProto:
    """Returns a fully connected model of open batch, which for one row waits for its weights."""
    writer = NetworkWriter("dense")
    x = writer.add_input("x", ("n", width))
    for _ in range(layers):
        x = writer.add_linear(x, width, width)
    writer.add_output(x, ("n", width))
    return writer.build_model()


def time_call(function: Callable[[], object]) -> float:
    """Returns the seconds of one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def take_turns(rounds: int, measures: Measures) -> dict[str, float]:
    """Returns the median of each measure; they are taken in turns, in order and back."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(rounds):
        for name in measures if turn % 2 == 0 else reversed(measures):
            values[name].append(measures[name]())
    return {name: median(times) for name, times in values.items()}


def say(what: str, figure: str, bound: str) -> None:
    """Prints a figure and the bound that it is to keep."""
    print(f"{what:74} {figure:>12}   {bound}", flush=True)


def count_requests(network: Any, inputs: dict[str, Any], jobs: int, count: int) -> float:
    """Returns requests in a second with so many callers."""
    with AsyncInferQueue(network, jobs) as queue:
        for _ in range(jobs):
            queue.start_async(inputs)
        queue.wait_all()
        began = time.perf_counter()
        for _ in range(count):
            queue.start_async(inputs)
        queue.wait_all()
        return count / (time.perf_counter() - began)


def wait_for_kernels(network: Any, inputs: dict[str, Any], seconds: float = 1.0) -> None:
    """Runs until machine code that is compiled meanwhile is there."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        network.infer(inputs)


def bench_multi(core: Core, rounds: int, model: str) -> None:
    tiny, small = (
        {"x": np.ones((1, 4), np.float32)},
        onnx.parser.parse_model(f"{HEADER} g (float[n,4] x) => (float[n,4] y) {{ y = Neg(x) }}"),
    )
    loaded = {device: core.load_network(small, device) for device in ("SLEEP1", "MULTI:SLEEP1,SLEEP2")}
    rates = take_turns(rounds, {name: (lambda one=one: count_requests(one, tiny, 8, 100)) for name, one in loaded.items()})
    say("two devices that sleep 20 ms against one", f"{rates['MULTI:SLEEP1,SLEEP2'] / rates['SLEEP1']:.3f}", "at least 1.95")
    proto = light_model(model)
    inputs = light_inputs(proto)
    both = f"MULTI:{NATIVE},{ENGINE}"
    config = {"PERFORMANCE_HINT": "THROUGHPUT"}
    for policy in ("DEVICE_PRIORITY", "MEASURED"):
        loaded = {device: core.load_network(proto, device, config) for device in (NATIVE, ENGINE)}
        loaded[both] = core.load_network(proto, both, {"SCHEDULE_POLICY": policy})
        for one in loaded.values():
            wait_for_kernels(one, inputs)
        # MEASURED has timed CPU before its machine code was there, and tries it again only now and then.
        count_requests(loaded[both], inputs, 16, 400)
        rates = take_turns(rounds, {name: (lambda one=one: count_requests(one, inputs, 16, 64)) for name, one in loaded.items()})
        better = max(rates[NATIVE], rates[ENGINE])
        figures = ", ".join(f"{name} {rate:.1f}/s" for name, rate in rates.items())
        say(f"{model}, 16 callers, {policy}: {figures}; against the better", f"{rates[both] / better:.3f}", "at least 0.97")
        for one in loaded.values():
            one.close()


def answer_first(device: str, model: str) -> float:
    """Returns the seconds from a read network to its first answer, where the engines are imported already."""
    proto = light_model(model)
    inputs = light_inputs(proto)
    with Core() as core:
        network = core.read_network(proto)
        for name in (NATIVE, ENGINE, "OPENVINO", "AUTO"):
            core.get_metric(name, "FULL_DEVICE_NAME")
        return time_call(lambda: core.load_network(network, device).infer(inputs))


def compare_first_answers(chosen: str, model: str, rounds: int) -> None:
    """Prints AUTO's first answer beside those of its devices, each in a process of its own.

    In one process an answer would be timed in memory, and beside threads, that the engine before it has left.
    """
    auto = f"AUTO:{chosen},{NATIVE}"
    seconds: dict[str, list[float]] = {device: [] for device in (NATIVE, chosen, auto)}
    for turn in range(rounds + 1):
        for device in seconds if turn % 2 == 0 else reversed(seconds):
            command = [sys.executable, __file__, "--model", model, "--first-answer", device]
            answer = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            # The first round stores what later processes find compiled.
            seconds[device] += [answer] if turn else []
    medians = {device: median(times) for device, times in seconds.items()}
    earlier = min((NATIVE, chosen), key=lambda device: medians[device])
    ratios = sorted(one / other for one, other in zip(seconds[auto], seconds[earlier], strict=True))
    figures = ", ".join(f"{name} {value * 1e3:.0f} ms" for name, value in medians.items())
    spread = f"[{ratios[len(ratios) // 4]:.3f}, {ratios[-1 - len(ratios) // 4]:.3f}]"
    say(f"first answer of {model}: {figures}; against the earlier, half of {spread}", f"{median(ratios):.3f}", "at most 1.10")


def bench_auto(core: Core, rounds: int, model: str) -> None:
    proto = light_model(model)
    inputs = light_inputs(proto)

    for chosen in (ENGINE, "OPENVINO"):
        compare_first_answers(chosen, model, 2 * rounds + 1)
    auto = f"AUTO:{ENGINE},{NATIVE}"
    loaded = core.load_network(proto, auto, {"AUTO_MEASURE": "YES"})
    answers: dict[int, bytes] = {}
    output, executable = loaded.output_names[0], loaded.executable
    with AsyncInferQueue(loaded, 4) as queue:
        queue.set_callback(lambda request, number: answers.update({number: request.get_tensor(output).tobytes()}))
        number = 0
        while number < 64 or not executable._settled.done():
            queue.start_async(inputs, number)
            number += 1
        queue.wait_all()
    served = loaded.get_metric("REQUESTS_OF_DEVICES")
    say(f"{number} requests while AUTO measures and moves over: served {served}; lost", str(number - len(answers)), "0")
    singles = {device: core.load_network(proto, device) for device in (NATIVE, ENGINE)}
    for one in (loaded, *singles.values()):
        wait_for_kernels(one, inputs)
    seconds = take_turns(
        rounds * 3,
        {name: (lambda one=one: time_call(lambda: one.infer(inputs))) for name, one in {**singles, auto: loaded}.items()},
    )
    least = min(seconds[NATIVE], seconds[ENGINE])
    figures = ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in seconds.items())
    chosen = ",".join(loaded.get_metric("EXECUTION_DEVICES"))
    say(f"steady state of {model}, on {chosen}: {figures}; against the best", f"{seconds[auto] / least:.3f}", "about 1")


def bench_batch(core: Core, rounds: int, _: str) -> None:
    width = 2048
    row = {"x": np.ones((1, width), np.float32)}
    dense = make_dense(width, 4)
    for device in (NATIVE, ENGINE):
        alone, batched = core.load_network(dense, device), core.load_network(dense, f"BATCH:{device}(8)")
        wait_for_kernels(alone, row)
        wait_for_kernels(batched, {"x": np.ones((8, width), np.float32)})
        rates = take_turns(
            rounds,
            {
                "one": lambda alone=alone: count_requests(alone, row, 1, 100),
                "eight": lambda batched=batched: count_requests(batched, row, 8, 400),
            },
        )
        figures = f"{rates['one']:.0f}/s one at a time, {rates['eight']:.0f}/s"
        say(f"fully connected on BATCH:{device}(8), 8 callers: {figures}", f"{rates['eight'] / rates['one']:.2f}", "at least 3")
        sizes = batched.get_metric("BATCHES_OF_SIZES")
        say(f"  its batches by size: {sizes}", "", "")
    for timeout in (5, 20, 100):
        patient = core.load_network(dense, f"BATCH:{NATIVE}(8)", {"AUTO_BATCH_TIMEOUT": timeout})
        request, idle = patient.create_infer_request(), patient.create_infer_request()
        wait_for_kernels(patient, row, 0.3)
        waits = [time_call(lambda request=request: request.infer(row)) for _ in range(5 * rounds)]
        del idle
        alone = [time_after(timeout / 1e3, lambda request=request: request.infer(row)) for _ in range(5 * rounds)]
        late = (median(waits) - median(alone)) * 1e3 - timeout
        worst = (max(waits) - median(alone)) * 1e3 - timeout
        say(
            f"timeout of {timeout} ms: a request that waits for others is late by (worst {worst:.2f})",
            f"{late:.2f} ms",
            "at most 2",
        )


def time_after(pause: float, call: Callable[[], object]) -> float:
    """Returns the seconds of a call after a pause in seconds: caches and clocks have cooled down as they do while a batch waits."""
    time.sleep(pause)
    return time_call(call)


def sum_parts(split: Any, inputs: dict[str, Any], rounds: int) -> tuple[float, float]:
    """Returns the median seconds of a run of a split network, and of its stages one by one on the values of a run, taken in turns."""
    executable = split.executable
    values = dict(inputs)
    calls: list[Callable[[], object]] = []
    for stage in executable.stages:
        given = tuple(values[spec.name] for spec in stage.inputs)
        context = RunContext(stage.create_state())
        values |= {spec.name: np.array(value) for spec, value in zip(stage.outputs, stage.run(given, context), strict=True)}
        calls.append(lambda stage=stage, given=given, context=context: stage.run(given, context))
    ordered, context = split.order_inputs(inputs), RunContext(split.create_state())

    def run_in_turn() -> float:
        # One after the other, as a run has them: a stage on its own would find its weights in the caches.
        return sum(time_call(call) for call in calls)

    medians = take_turns(rounds, {"whole": lambda: time_call(lambda: executable.run(ordered, context)), "parts": run_in_turn})
    return medians["whole"], medians["parts"]


def bench_borders(core: Core, rounds: int, _: str) -> None:
    body = " ".join(f"v{index + 1} = Neg(v{index})" for index in range(20))
    chain = core.read_network(onnx.parser.parse_model(f"{HEADER} g (float[64] v0) => (float[64] v20) {{ {body} }}"))
    pins = {node.name: (ENGINE, NATIVE)[index % 2] for index, node in enumerate(chain.nodes)}
    split = core.load_network(chain.with_affinity(pins), f"HETERO:{ENGINE},{NATIVE}")
    inputs = {"v0": np.ones(64, np.float32)}
    wait_for_kernels(split, inputs)
    whole, parts = sum_parts(split, inputs, 200 * rounds)
    borders = len(split.executable.stages) - 1
    say(f"{borders} borders between parts of {ENGINE} and {NATIVE}, each", f"{(whole - parts) / borders * 1e6:.2f} us", "at most 5")
    for model, operator in (("squeezenet", "MaxPool"), ("resnet50", "MaxPool"), ("squeezenet", "Concat")):
        proto = light_model(model)
        network, inputs = core.read_network(proto), light_inputs(proto)
        node = next(node for node in network.nodes if node.op_type == operator)
        split = core.load_network(network.with_affinity({node.name: NATIVE}), f"HETERO:{ENGINE},{NATIVE}")
        wait_for_kernels(split, inputs)
        whole, parts = sum_parts(split, inputs, 15 * rounds)
        alone = core.load_network(network, ENGINE)
        wait_for_kernels(alone, inputs, 0.3)
        seconds = take_turns(5 * rounds, {"alone": lambda alone=alone, inputs=inputs: time_call(lambda: alone.infer(inputs))})[
            "alone"
        ]
        figures = f"{whole * 1e3:.2f} ms, parts {parts * 1e3:.2f}, {ENGINE} whole {seconds * 1e3:.2f}"
        say(f"{model}, one {operator} on {NATIVE}: {figures}; against the parts", f"{whole / parts:.3f}", "at most 1.05")


SECTIONS: dict[str, Callable[[Core, int, str], None]] = {
    "MULTI": bench_multi,
    "AUTO": bench_auto,
    "BATCH": bench_batch,
    "BORDERS": bench_borders,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"all by default: {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--first-answer", metavar="DEVICE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.first_answer is not None:
        print(answer_first(options.first_answer, options.model))
        return
    for section in options.sections or SECTIONS:
        with Core() as core:
            for name in ("SLEEP1", "SLEEP2"):
                core.register_plugin(name, SleepingDevice())
            print(section)
            SECTIONS[section](core, options.rounds, options.model)


if __name__ == "__main__":
    main()
