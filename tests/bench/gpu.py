"""Checks and times the GPU device on the card of this machine; without one it says why and ends with 3.

One call, below ten minutes: the backend suite of onnx on the card, networks against CPU, times beside PyTorch if installed, the cost of
one launch, and splits with CPU. What there is no time for is left out, by name. Ends with 1 where an answer is wrong.

    python tests/bench/gpu.py [--seconds 540] [--models resnet50 squeezenet] [--make-believe]

`--make-believe` runs the same on a card of make-believe, to try the script; its times say nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import onnx
from hetero_cupy.device import GpuDevice
from hetero_cupy.runtime import Card, Runtime
from onnx import numpy_helper

from hetero_core import Core, ExecutableNetwork, RunContext
from hetero_core.errors import DeviceUnavailableError, HeteroError, UnsupportedNodesError
from hetero_core.testing.backend_cases import iterate_backend_cases
from hetero_core.testing.compare import describe_mismatch, max_relative_difference
from hetero_core.testing.models import light_inputs, light_model

MODELS = ("squeezenet", "resnet50", "densenet121", "shufflenet", "vgg19")
VARIANTS = {
    "plain": {},
    "fused": {"GPU_FUSION": True},
    "recorded": {"GPU_GRAPHS": True},
    "both": {"GPU_FUSION": True, "GPU_GRAPHS": True},
}
# Sums of some thousand terms in another order, with weights that keep values below 1000.
TOLERANCES = {"float32": 1e-3, "float16": 3e-2}
NO_CARD = 3


class Clock:
    """The time that is left."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds

    def has(self, seconds: float) -> bool:
        return monotonic() + seconds < self._end


def open_runtime(*, make_believe: bool) -> Runtime:
    if make_believe:
        from hetero_cupy.fake_runtime import FakeRuntime

        return FakeRuntime()
    from hetero_cupy.cupy_runtime import open_cupy

    return open_cupy("GPU")


def check_suite(core: Core, clock: Clock, config: dict[str, Any], pattern: str) -> tuple[int, int, dict[str, str]]:
    """Returns how many cases were right, how many were refused, and what was wrong with the others."""
    right, refused, wrong = 0, 0, {}
    for case in iterate_backend_cases(pattern, kinds=("node", "simple", "pytorch-converted", "pytorch-operator")):
        if case.is_random:
            continue
        if not clock.has(0):
            wrong[case.name] = "no time was left"
            break
        try:
            problem = check_case(core, case, config)
        except UnsupportedNodesError:
            refused += 1
            continue
        except Exception as error:  # noqa: BLE001  # the list is what this script is for
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if problem is None:
            right += 1
        else:
            wrong[case.name] = problem
    return right, refused, wrong


def check_case(core: Core, case: Any, config: dict[str, Any]) -> str | None:
    """Returns what is wrong. Three runs of one request: a plain one, and two that may be replayed."""
    with core.load_network(case.model, "CARD", config) as loaded:
        request = loaded.create_infer_request()
        for inputs, expected in case.runs:
            given = {spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=False)}
            for _ in range(3 if config else 1):
                found = request.infer(given)
                for (name, value), wanted in zip(found.items(), expected, strict=True):
                    mismatch = describe_mismatch(value, wanted, rtol=max(case.rtol, 1e-3), name=name)
                    if mismatch is not None:
                        return mismatch
    return None


def convert_to_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with every float32 tensor in float16, inputs and outputs included."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    for tensor in half.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    del half.graph.value_info[:]
    for value in (*half.graph.input, *half.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return half


def set_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Returns the model for a batch; these networks name their batch in inputs, outputs and the shapes of Reshape."""
    if batch == 1:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.value_info[:]
    for value in (*changed.graph.input, *changed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    shapes = {node.input[1] for node in changed.graph.node if node.op_type == "Reshape"}
    for tensor in changed.graph.initializer:
        if tensor.name in shapes:
            shape = numpy_helper.to_array(tensor).copy()
            if shape[0] == 1:
                shape[0] = batch
                tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))
    return changed


def make_timer(card: Card) -> Callable[[Callable[[], Any]], float]:
    """Returns a function that measures seconds: by events of the card, or, on one of make-believe, by the clock of the host."""
    if not card.memory.startswith("cuda"):
        return measure_host
    cuda = card.xp.cuda

    def measure(work: Callable[[], Any]) -> float:
        begin, end = cuda.Event(), cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(cuda.get_elapsed_time(begin, end)) / 1e3

    return measure


def measure_host(work: Callable[[], Any]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def time_median(measure: Callable[[Callable[[], Any]], float], work: Callable[[], Any], *, seconds: float = 2.0) -> float:
    """Returns the median seconds of at least five runs, after three that are not counted."""
    for _ in range(3):
        work()
    times: list[float] = []
    end = monotonic() + seconds
    while len(times) < 5 or (monotonic() < end and len(times) < 200):
        times.append(measure(work))
    return statistics.median(times)


def bind_run(loaded: ExecutableNetwork, inputs: dict[str, Any]) -> Callable[[], Any]:
    """Returns a run on inputs that lie on the card, its outputs left there: what the device itself takes."""
    executable = loaded.executable
    card: Card = executable.card  # type: ignore[attr-defined]  # loaded on CARD
    placed = tuple(card.from_host(inputs[spec.name]) for spec in executable.inputs)
    context = RunContext(executable.create_state())
    return lambda: executable.run(placed, context)


def time_model(core: Core, card: Card, name: str, batch: int, dtype: str, clock: Clock) -> Iterator[str]:
    """Yields a row of the table for each variant, with the difference from CPU in float32."""
    model = set_batch(light_model(name), batch)
    inputs = light_inputs(model)
    expected = list(core.load_network(model, "CPU").infer(inputs).values()) if batch == 1 else None
    if dtype == "float16":
        model = convert_to_float16(model)
        inputs = {key: value.astype(np.float16) for key, value in inputs.items()}
    for variant, config in VARIANTS.items():
        if not clock.has(15):
            yield f"| {name} | {batch} | {dtype} | {variant} | left out: no time | |"
            continue
        with core.load_network(model, "CARD", config) as loaded:
            difference = ""
            if expected is not None:
                found = list(loaded.infer(inputs).values())
                worst = max(
                    max_relative_difference(one.astype(np.float32), other) for one, other in zip(found, expected, strict=True)
                )
                difference = f"{worst:.1e}" + ("" if worst <= TOLERANCES[dtype] else " WRONG")
            seconds = time_median(make_timer(card), bind_run(loaded, inputs))
        yield f"| {name} | {batch} | {dtype} | {variant} | {seconds * 1e3:.3f} | {difference} |"


def time_torch(name: str, batch: int, dtype: str, clock: Clock) -> Iterator[str]:
    """Yields rows of PyTorch, eager and compiled, for the same topology with random weights."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("torchvision") is None:
        return
    import torch
    import torchvision

    make = {"squeezenet": "squeezenet1_0", "shufflenet": None}.get(name, name)
    if make is None or not torch.cuda.is_available():
        return
    network = getattr(torchvision.models, make)(weights=None).eval().cuda().to(getattr(torch, dtype))
    x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=getattr(torch, dtype))

    def measure(work: Callable[[], Any]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    with torch.inference_mode():
        yield f"| {name} | {batch} | {dtype} | torch eager | {time_median(measure, lambda: network(x)) * 1e3:.3f} | |"
        if clock.has(60):
            compiled = torch.compile(network)
            yield f"| {name} | {batch} | {dtype} | torch.compile | {time_median(measure, lambda: compiled(x)) * 1e3:.3f} | |"


def time_launch(core: Core) -> Iterator[str]:
    """Yields what one run of three small operators costs the host, plain and recorded."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[16] x) => (float[16] y) { a = Exp (x) b = Neg (a) y = Tanh (b) }'
    model = onnx.parser.parse_model(text)
    for variant, config in VARIANTS.items():
        with core.load_network(model, "CARD", config) as loaded:
            seconds = time_median(measure_host, bind_run(loaded, {"x": np.ones(16, np.float32)}), seconds=1)
        yield f"one run of three small operators, {variant}: {seconds * 1e6:.1f} us on the host"


def time_splits(core: Core, name: str) -> Iterator[str]:
    """Yields the time and the transfers of a network cut in two between the card and CPU, at three places."""
    network = core.read_network(light_model(name))
    inputs = light_inputs(light_model(name))
    count = len(network.nodes)
    for share in (4, 2, 1):
        pins = {node.name: "CARD" if index < count // share else "CPU" for index, node in enumerate(network.nodes)}
        with core.load_network(network.with_affinity(pins), "HETERO:CARD,CPU", {"PERF_COUNT": True}) as loaded:
            request = loaded.create_infer_request()
            request.infer(inputs)
            moved = [entry for entry in request.perf_counts if entry.operator == "transfer"]
            seconds = time_median(measure_host, lambda r=request: r.infer(inputs), seconds=1)  # type: ignore[misc]  # bound now
        nbytes = sum(entry.nbytes for entry in moved)
        yield f"{name}, first {count // share} of {count} nodes on the card: {seconds * 1e3:.2f} ms, {len(moved)} transfers, {nbytes} bytes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--cases", default="", help="regular expression for the cases of the backend suite")
    parser.add_argument("--make-believe", action="store_true")
    options = parser.parse_args()
    try:
        runtime = open_runtime(make_believe=options.make_believe)
    except DeviceUnavailableError as error:
        print(f"{Path(__file__).name}: nothing was measured: {error}")
        return NO_CARD
    clock = Clock(options.seconds)
    card = runtime.cards()[0]
    print(f"{card.facts.full_name}, compute capability {card.facts.capability}, {runtime.name}\n", flush=True)
    is_right = True
    with Core() as core:
        core.register_plugin("CARD", GpuDevice("CARD", runtime))
        for variant in ("plain", "both"):
            right, refused, wrong = check_suite(core, clock, VARIANTS[variant], options.cases)
            is_right = is_right and not wrong
            print(f"backend suite, {variant}: {right} right, {refused} refused, {len(wrong)} wrong", flush=True)
            for name, problem in wrong.items():
                print(f"  {name}: {problem}", flush=True)
        for line in time_launch(core):
            print(line, flush=True)
        print("\n| network | batch | type | how | ms | from CPU |\n|---|---|---|---|---|---|", flush=True)
        for name in options.models:
            for batch in options.batches:
                for dtype in TOLERANCES:
                    is_right = print_rows(time_model(core, card, name, batch, dtype, clock), name) and is_right
                    print_rows(time_torch(name, batch, dtype, clock), name)
        print()
        for name in options.models[:2]:
            if clock.has(20):
                is_right = print_rows(time_splits(core, name), name) and is_right
    return 0 if is_right else 1


def print_rows(rows: Iterator[str], name: str) -> bool:
    """Prints the rows as they come; says whether all of them are right. An error is a row, so that the others still come."""
    is_right = True
    try:
        for row in rows:
            print(row, flush=True)
            is_right = is_right and "WRONG" not in row
    except (HeteroError, RuntimeError, MemoryError) as error:
        print(f"| {name} | | | {type(error).__name__} | {' '.join(str(error).split())[:200]} | WRONG |", flush=True)
        return False
    return is_right


if __name__ == "__main__":
    sys.exit(main())
