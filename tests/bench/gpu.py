"""Checks and times the GPU device on the card of this machine; without one it says why and ends with 3.

One call, of at most 520 seconds, with nothing installed of this checkout: each part by itself, the conformance kit and onnx's backend suite
on the card; then the host's share of a run, networks against CPU with times beside PyTorch, and splits with CPU. Lines are
printed as they come, what there is no time for is left out, by name. Ends with 1 where an answer is wrong. The report is also written
to a file.

    python tests/bench/gpu.py [--seconds 480] [--models resnet50 bert] [--output gpu.md] [--wheels FOLDER] [--dry]

`--wheels` takes packages from a folder, for a machine without a network. `--dry` runs the same on a card of make-believe, to try the
script; its times say nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_machine import add_checkout, announce_checkout, install_wheels, require_packages  # the path is set above
from gpu_models import draw_inputs, make_model  # as above
from gpu_torch import time_torch  # as above

MODELS = ("resnet50", "bert", "gpt2_step", "mobilenet_v2", "densenet121", "vgg19")
HINTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Largest difference over the largest value. Sums of some thousand terms in another order; what was found on the host, times four.
TOLERANCES = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
NO_CARD = 3


class Report:
    """Lines that are printed and written as they come, so that a run which is stopped leaves what it found."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("w")
        self.is_right = True

    def add(self, line: str = "") -> None:
        """Adds a line; one with WRONG in it decides how the script ends."""
        self.is_right = self.is_right and "WRONG" not in line
        print(line, flush=True)
        if self._file is not None:
            print(line, file=self._file, flush=True)


class Clock:
    """The time that is left."""

    def __init__(self, seconds: float) -> None:
        self._begin = monotonic()
        self._end = self._begin + seconds

    def has(self, seconds: float) -> bool:
        return monotonic() + seconds < self._end

    def share(self, part: float) -> Clock:
        """Returns a clock for a part of what is left."""
        return Clock((self._end - monotonic()) * part)


def open_runtime(*, is_dry: bool) -> Any:
    if is_dry:
        from hetero_tests.fake_runtime import FakeRuntime

        return FakeRuntime(capability="9.0")
    from hetero_cupy.cupy_runtime import open_cupy

    return open_cupy("GPU")


def make_core(runtime: Any) -> Any:
    """Returns a Core with the card as CARD, beside the devices of this checkout."""
    from hetero_cupy.device import GpuDevice

    from hetero_core import Core

    core = Core()
    core.register_plugin("CARD", GpuDevice("CARD", runtime))
    return core


def check_kit(runtime: Any, clock: Clock, patterns: list[str], report: Report) -> None:
    """Runs the conformance kit, all but the operators, which the suite below has three times over."""
    from hetero_core.conformance.catalogue import choose_checks
    from hetero_core.conformance.runner import make_target, run_checks

    checks = [check for check in choose_checks((), patterns) if check.level != "operators"]
    counts: dict[str, int] = {}
    failed = []
    for outcome in run_checks(checks, make_target("CARD", make_core=lambda: make_core(runtime)), limit=60):
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
        if outcome.status == "failed":
            failed.append(f"  WRONG {outcome.check.name}: {outcome.reason[:200]}")
        if not clock.has(0):
            report.add(f"conformance kit: stopped after {sum(counts.values())} of {len(checks)} checks, no time was left")
            break
    report.add("conformance kit: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    for line in failed:
        report.add(line)


def check_suite(core: Any, clock: Clock, *, pattern: str, report: Report) -> None:
    """Runs onnx's cases."""
    from hetero_core.errors import UnsupportedNodesError
    from hetero_core.testing.backend_cases import iterate_backend_cases

    right, refused, wrong = 0, 0, {}
    for case in iterate_backend_cases(pattern, kinds=KINDS):
        if case.is_random:
            continue
        if not clock.has(0):
            report.add(f"backend suite: stopped at {case.name}, no time was left")
            break
        try:
            problem = check_case(core, case)
        except UnsupportedNodesError:
            refused += 1
            continue
        except Exception as error:  # noqa: BLE001  # the list is what this script is for
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if problem is None:
            right += 1
        else:
            wrong[case.name] = problem
    report.add(f"backend suite: {right} right, {refused} refused, {len(wrong)} wrong")
    for name, problem in wrong.items():
        report.add(f"  WRONG {name}: {problem}")


def check_case(core: Any, case: Any) -> str | None:
    """Returns the first mismatch, or None."""
    from hetero_core.testing.compare import describe_mismatch

    with core.load_network(case.model, "CARD") as loaded:
        request = loaded.create_infer_request()
        for inputs, expected in case.runs:
            feeds = {spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=False)}
            outputs = request.infer(feeds)
            for (name, value), target in zip(outputs.items(), expected, strict=True):
                mismatch = describe_mismatch(value, target, rtol=max(case.rtol, 1e-3), name=name)
                if mismatch is not None:
                    return mismatch
    return None


def make_timer(card: Any) -> Callable[[Callable[[], Any]], float]:
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


def time_median(measure: Callable[[Callable[[], Any]], float], work: Callable[[], Any], *, seconds: float = 1.0) -> float:
    """Returns the median seconds of at least five runs, after three that are not counted: kernels compile in them."""
    for _ in range(3):
        work()
    times: list[float] = []
    end = monotonic() + seconds
    while len(times) < 5 or (monotonic() < end and len(times) < 200):
        times.append(measure(work))
    return statistics.median(times)


def bind_run(loaded: Any, inputs: dict[str, Any]) -> Callable[[], Any]:
    """Returns a run on inputs that lie where the device takes them, its outputs left there."""
    from hetero_core import RunContext

    executable = loaded.executable
    card = executable.card
    placed = tuple(inputs[spec.name] if spec.memory == "host" else card.from_host(inputs[spec.name]) for spec in executable.inputs)
    context = RunContext(executable.create_state())
    return lambda: executable.run(placed, context)


def time_model(core: Any, card: Any, *, name: str, batch: int, dtype: str, clock: Clock) -> str:
    """Returns a row of the table: our times, the difference from CPU in float32, PyTorch's times, and how they compare."""
    from hetero_core.testing.compare import max_relative_difference

    network = core.read_network(make_model(name, batch))
    inputs = draw_inputs(network)
    expected = list(core.load_network(network, "CPU").infer(inputs).values()) if batch == 1 else None
    difference = ""
    with core.load_network(network, "CARD", {"INFERENCE_PRECISION_HINT": HINTS[dtype]}) as loaded:
        if expected is not None:
            outputs = list(loaded.infer(inputs).values())
            worst = max(max_relative_difference(ours, other) for ours, other in zip(outputs, expected, strict=True))
            difference = f"{worst:.1e}" + ("" if worst <= TOLERANCES[dtype] else " WRONG")
        seconds = time_median(make_timer(card), bind_run(loaded, inputs))
    eager, compiled, reason = time_torch(name, batch, dtype, time_median=time_median, may_compile=lambda: clock.has(60))
    cells = [f"{seconds * 1e3:.3f}", difference]
    for other in (eager, compiled):
        cells += ["", ""] if other is None else [f"{other * 1e3:.3f}", f"{other / seconds:.2f}"]
    return f"| {name} | {batch} | {dtype} | {' | '.join(cells)} | {reason} |"


def time_launch(core: Any, card: Any) -> Iterator[str]:
    """Yields what one run of three small operators costs: between events, and on the clock of the host."""
    import numpy as np
    import onnx.parser

    text = '<ir_version: 8, opset_import: ["": 17]> g (float[16] x) => (float[16] y) { a = Exp (x) b = Neg (a) y = Tanh (b) }'
    model = onnx.parser.parse_model(text)
    with core.load_network(model, "CARD") as loaded:
        run = bind_run(loaded, {"x": np.ones(16, np.float32)})
        on_host = time_median(measure_host, run, seconds=0.5)
        by_events = time_median(make_timer(card), run, seconds=0.5)
    yield f"run of three small operators: {on_host * 1e6:.1f} us on the host, {by_events * 1e6:.1f} us between events"


def time_splits(core: Any, name: str) -> Iterator[str]:
    """Yields the transfers and the time of a network cut in two between the card and CPU, either first, with what is wrong."""
    from hetero_core.testing.compare import max_relative_difference

    network = core.read_network(make_model(name, 1))
    inputs = draw_inputs(network)
    expected = list(core.load_network(network, "CPU").infer(inputs).values())
    count = len(network.nodes)
    for first, second in (("CARD", "CPU"), ("CPU", "CARD")):
        pins = {node.name: first if index < count // 2 else second for index, node in enumerate(network.nodes)}
        with core.load_network(network.with_affinity(pins), f"HETERO:{first},{second}", {"PERF_COUNT": True}) as loaded:
            request = loaded.create_infer_request()
            outputs = list(request.infer(inputs).values())
            worst = max(max_relative_difference(ours, other) for ours, other in zip(outputs, expected, strict=True))
            moved = [entry for entry in request.perf_counts if entry.operator == "transfer"]
            # Each value that crosses is moved once: those between the stages, and the card's own at the border.
            border = len(network.inputs) if first == "CARD" else len(network.outputs)
            transfers = loaded.get_metric("HETERO_BOUNDARY_TENSORS") + border
            seconds = time_median(measure_host, lambda r=request: r.infer(inputs), seconds=0.5)  # type: ignore[misc]  # bound now
        wrong = (
            ""
            if worst <= TOLERANCES["float32"] and len(moved) == transfers
            else f" WRONG: {worst:.1e} from CPU, {transfers} expected"
        )
        yield (
            f"{name} on HETERO:{first},{second}, halves: {seconds * 1e3:.2f} ms, {len(moved)} transfers, "
            f"{sum(entry.nbytes for entry in moved)} bytes{wrong}"
        )


def add_rows(report: Report, subject: str, make_rows: Callable[[], Iterator[str]]) -> None:
    """Adds rows as they come. An error is a row, so that the others still come."""
    try:
        for row in make_rows():
            report.add(row)
    except Exception as error:  # noqa: BLE001  # as above: what fails is a fact of the table
        report.add(f"| {subject} | WRONG: {type(error).__name__}: {' '.join(str(error).split())[:200]} |")


def check_parts(core: Any, card: Any, report: Report, options: argparse.Namespace) -> None:
    """Asks each part of the device by itself, before anything is built on it."""
    import gpu_parts as parts  # needs NumPy, which may have come with the wheels

    add_rows(report, "copies", lambda: parts.check_copies(card))
    for name in options.models[:2]:

        def check_network(name: str = name) -> Iterator[str]:
            network = core.read_network(make_model(name, 1))
            runs = 2 if options.dry else 20
            yield from parts.check_overlap(core, network, draw_inputs(network), name=name, runs=runs)

        add_rows(report, name, check_network)
    add_rows(report, "full card", lambda: parts.check_full_card(core, card))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--dtypes", nargs="*", choices=list(HINTS), default=["float32", "float16"])
    parser.add_argument("--cases", default="", help="regular expression for the cases of the backend suite")
    parser.add_argument("--checks", nargs="*", default=[], help="patterns for the checks of the conformance kit")
    parser.add_argument("--output", type=Path, default=Path(os.environ["OUT"]) / "gpu.md" if "OUT" in os.environ else None)
    parser.add_argument("--wheels", type=Path, help="a folder with wheels to take packages from")
    parser.add_argument("--dry", action="store_true", help="on a card of make-believe")
    return parser.parse_args()


def main() -> int:
    options = read_options()
    clock = Clock(options.seconds)
    add_checkout()
    announce_checkout()
    if options.wheels is not None:
        install_wheels(options.wheels)
    packages = require_packages()
    from hetero_core.errors import DeviceUnavailableError

    try:
        runtime = open_runtime(is_dry=options.dry)
    except DeviceUnavailableError as error:
        print(f"{Path(__file__).name}: nothing was measured: {error}")
        return NO_CARD
    report, card = Report(options.output), runtime.cards()[0]
    report.add(f"{card.facts.full_name}, compute capability {card.facts.capability}, {runtime.name}; {', '.join(packages)}\n")
    with make_core(runtime) as core:
        check_parts(core, card, report, options)
        report.add()
        check_kit(runtime, clock.share(0.25), options.checks, report)
        check_suite(core, clock.share(0.25), pattern=options.cases, report=report)
        report.add()
        add_rows(report, "launch", lambda: time_launch(core, card))
        report.add()
        for name in options.models[:2]:
            add_rows(report, name, lambda n=name: time_splits(core, n))  # type: ignore[misc]  # bound now
        report.add("\n| network | batch | type | ms | from CPU | eager: ms | x | compiled: ms | x | left out |")
        report.add("|---|---|---|---|---|---|---|---|---|---|")
        for batch, name, dtype in product(options.batches, options.models, options.dtypes):
            if clock.has(15):
                make_row = partial(time_model, core, card, name=name, batch=batch, dtype=dtype, clock=clock)
                add_rows(report, name, lambda make=make_row: iter([make()]))  # type: ignore[misc]  # bound now
            else:
                report.add(f"| {name} | {batch} | {dtype} | left out: no time |")
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
