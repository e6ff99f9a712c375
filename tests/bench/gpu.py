"""Checks and times the GPU device on the card of this machine; without one it says why and ends with 3.

    python tests/bench/gpu.py [--seconds 480] [--models resnet50 bert] [--output gpu.md] [--dry]

Nothing of this checkout has to be installed. Copies, the conformance kit, onnx's cases, networks beside CPU, and splits with CPU;
lines are printed as they come, checks for which no time is left are named. Ends with 1 if an answer is wrong. `--dry` runs the same on
a fake card, to try the script; its times say nothing.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("numpy", "onnx", "ml_dtypes", "pluggy", "importlib_metadata", "threadpoolctl")
MODELS = ("resnet50", "bert", "gpt2_step", "mobilenet_v2", "densenet121", "vgg19")
# Largest difference over the largest value: sums of some thousand terms in another order, measured on the host, times four.
TOLERANCES = {"float32": 1e-3, "float16": 2e-2}
NO_CARD = 3


def announce_checkout() -> None:
    """Puts this checkout on the path, and gives what is not installed of it a version and entry points that only this process sees."""
    for folder in (ROOT, ROOT / "tests" / "shared", ROOT / "tests" / "bench", *sorted((ROOT / "plugins").iterdir())):
        sys.path.insert(0, str(folder))
    metadata = Path(tempfile.mkdtemp(prefix="hetero-metadata-"))
    for project in (ROOT / "pyproject.toml", *sorted((ROOT / "plugins").glob("*/pyproject.toml"))):
        facts = tomllib.loads(project.read_text())["project"]
        try:
            importlib.metadata.version(facts["name"])
        except importlib.metadata.PackageNotFoundError:
            own = metadata / f"{facts['name'].replace('-', '_')}-{facts['version']}.dist-info"
            own.mkdir()
            (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {facts['name']}\nVersion: {facts['version']}\n")
            groups = facts.get("entry-points", {})
            lines = [line for group, entries in groups.items() for line in (f"[{group}]", *map(" = ".join, entries.items()))]
            (own / "entry_points.txt").write_text("\n".join(lines) + "\n")
    sys.path.append(str(metadata))
    importlib.invalidate_caches()


def find_missing() -> list[str]:
    """Returns the distributions that have to be installed."""
    missing = []
    for module in NEEDED:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            missing.append(str(error.name).partition(".")[0].replace("_", "-"))
    return missing


class Report:
    """Lines that are printed and written as they come, so that a run which is stopped leaves its results. Ends at a time."""

    def __init__(self, path: Path | None, seconds: float) -> None:
        self._path = path
        if path is not None:
            path.write_text("")
        self._end = monotonic() + seconds
        self.is_right = True

    def add(self, line: str = "") -> None:
        """Adds a line; one with WRONG in it decides how the script ends."""
        self.is_right = self.is_right and "WRONG" not in line
        print(line, flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                print(line, file=file)

    def add_rows(self, subject: str, rows: Iterator[str]) -> None:
        """Adds rows as they come. An error is a row, so that the others still come."""
        try:
            for row in rows:
                self.add(row)
        except Exception as error:  # noqa: BLE001  # a failure is a result of this script
            self.add(f"| {subject} | WRONG: {type(error).__name__}: {' '.join(str(error).split())[:200]} |")

    def deadline(self, share: float) -> float:
        """Returns the time at which a part of the rest is over."""
        return monotonic() + (self._end - monotonic()) * share


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


def check_copies(card: Any) -> Iterator[str]:
    """Yields whether arrays of all sizes come back, while the host changes them, and how fast large ones cross."""
    import numpy as np

    for nbytes in (1, 1000, (4 << 20) - 1, 4 << 20, (8 << 20) + 5, (20 << 20) + 3):
        x = np.random.default_rng(nbytes).integers(0, 255, nbytes).astype(np.uint8)
        source = x.copy()
        placed = card.from_host(source)
        source.fill(7)
        if not np.array_equal(card.to_host(placed), x):
            yield f"copy of {nbytes} bytes: WRONG: it does not come back"
    large = np.ones(64 << 20, np.uint8)
    began = perf_counter()
    placed = card.from_host(large)
    with card.use(card.create_stream()):
        pass
    between = perf_counter()
    card.to_host(placed)
    rates = [64 / 1024 / seconds for seconds in (between - began, perf_counter() - between)]
    yield f"copies of six sizes come back; 64 MiB: {rates[0]:.1f} GiB/s to the card, {rates[1]:.1f} back"


def check_full_card(core: Any, card: Any) -> Iterator[str]:
    """Yields whether a run that does not fit raises our error, and whether the network runs again after it."""
    import numpy as np
    import onnx.parser

    from hetero_core.errors import DeviceMemoryError

    if not card.facts.memory_bytes:
        yield "full card: left out: this one has no limit"
        return
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1] x, int64[1] shape) => (float[M] y) <int64[1] axis = {0}>
        { a = Expand (x, shape) b = Exp (a) y = ReduceSum (b, axis) }"""
    with core.load_network(onnx.parser.parse_model(text), "CARD") as loaded:
        x = np.zeros(1, np.float32)
        try:
            loaded.infer({"x": x, "shape": np.array([card.facts.memory_bytes // 2])})
            yield "full card: WRONG: more than its memory fitted"
        except DeviceMemoryError as error:
            y = loaded.infer({"x": x, "shape": np.array([1000])})["y"]
            wrong = "" if abs(float(y.reshape(())) - 1000) < 1 else " WRONG: and then a small run is not right"
            yield f"full card: {str(error)[:160]}; a small run goes on{wrong}"


def check_kit(runtime: Any, patterns: list[str], deadline: float) -> Iterator[str]:
    """Runs the conformance kit, all but the operators, which the suite below has three times over."""
    from hetero_core.conformance.catalogue import choose_checks
    from hetero_core.conformance.runner import make_target, run_checks

    checks = [check for check in choose_checks((), patterns) if check.level != "operators"]
    counts: dict[str, int] = {}
    for outcome in run_checks(checks, make_target("CARD", make_core=lambda: make_core(runtime)), limit=60):
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
        if outcome.status == "failed":
            yield f"  WRONG {outcome.check.name}: {outcome.reason[:200]}"
        if monotonic() > deadline:
            yield f"conformance kit: stopped after {sum(counts.values())} of {len(checks)} checks, no time was left"
            break
    yield "conformance kit: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


def check_suite(core: Any, pattern: str, deadline: float) -> Iterator[str]:
    """Runs onnx's cases."""
    from hetero_core.errors import UnsupportedNodesError
    from hetero_core.testing.backend_cases import iterate_backend_cases

    right, refused, wrong = 0, 0, 0
    for case in iterate_backend_cases(pattern, kinds=("node", "simple", "pytorch-converted", "pytorch-operator")):
        if case.is_random:
            continue
        if monotonic() > deadline:
            yield f"backend suite: stopped at {case.name}, no time was left"
            break
        try:
            problem = check_case(core, case)
        except UnsupportedNodesError:
            refused += 1
            continue
        except Exception as error:  # noqa: BLE001  # a failure is a result of this script
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if problem is None:
            right += 1
        else:
            wrong += 1
            yield f"  WRONG {case.name}: {problem}"
    yield f"backend suite: {right} right, {refused} refused, {wrong} wrong"


def check_case(core: Any, case: Any) -> str | None:
    """Returns the first mismatch, or None."""
    from hetero_core.testing.compare import describe_mismatch

    with core.load_network(case.model, "CARD") as loaded:
        request = loaded.create_infer_request()
        for inputs, expected in case.runs:
            feeds = {spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=False)}
            for (name, value), target in zip(request.infer(feeds).items(), expected, strict=True):
                mismatch = describe_mismatch(value, target, rtol=max(case.rtol, 1e-3), name=name)
                if mismatch is not None:
                    return mismatch
    return None


def time_infer(request: Any, inputs: dict[str, Any], *, seconds: float) -> float:
    """Returns the median milliseconds of at least five runs from host to host, after three that are not counted."""
    for _ in range(3):
        request.infer(inputs)
    times: list[float] = []
    end = monotonic() + seconds
    while len(times) < 5 or monotonic() < end:
        began = perf_counter()
        request.infer(inputs)
        times.append(perf_counter() - began)
    return statistics.median(times) * 1e3


def find_difference(outputs: dict[str, Any], expected: dict[str, Any]) -> float:
    from hetero_core.testing.compare import max_relative_difference

    return max(max_relative_difference(outputs[name], expected[name]) for name in expected)


def time_model(core: Any, name: str, batch: int, dtypes: list[str], seconds: float) -> Iterator[str]:
    """Yields a row for each element type: milliseconds on the card, the difference from CPU in float32, and CPU's milliseconds."""
    from cases import make_case

    case = make_case(name, batch)
    network, inputs = core.read_network(case.model), case.runs[0]
    with core.load_network(network, "CPU") as loaded:
        request = loaded.create_infer_request()
        expected = {output: array.copy() for output, array in request.infer(inputs).items()}
        on_cpu = time_infer(request, inputs, seconds=seconds)
    for dtype in dtypes:
        converted = network if dtype == "float32" else network.with_precision("FP32", "FP16")
        with core.load_network(converted, "CARD") as loaded:
            request = loaded.create_infer_request()
            difference = find_difference(request.infer(inputs), expected)
            wrong = "" if difference <= TOLERANCES[dtype] else " WRONG"
            on_card = time_infer(request, inputs, seconds=seconds)
            yield f"| {name} | {batch} | {dtype} | {on_card:.3f} | {difference:.1e}{wrong} | {on_cpu:.3f} |"


def time_splits(core: Any, name: str, seconds: float) -> Iterator[str]:
    """Yields the transfers and the time of a network cut in two between the card and CPU, either first."""
    from cases import make_case

    case = make_case(name)
    network, inputs = core.read_network(case.model), case.runs[0]
    expected = core.load_network(network, "CPU").infer(inputs)
    middle = len(network.nodes) // 2
    for first, second in (("CARD", "CPU"), ("CPU", "CARD")):
        pins = {node.name: first if index < middle else second for index, node in enumerate(network.nodes)}
        with core.load_network(network.with_affinity(pins), f"HETERO:{first},{second}", {"PERF_COUNT": True}) as loaded:
            request = loaded.create_infer_request()
            difference = find_difference(request.infer(inputs), expected)
            moved = [entry for entry in request.perf_counts if entry.operator == "transfer"]
            # Each value that crosses is moved once: those between the stages, and the card's own at the border.
            border = len(network.inputs) if first == "CARD" else len(network.outputs)
            transfers = loaded.get_metric("HETERO_BOUNDARY_TENSORS") + border
            milliseconds = time_infer(request, inputs, seconds=seconds)
        is_right = difference <= TOLERANCES["float32"] and len(moved) == transfers
        wrong = "" if is_right else f" WRONG: {difference:.1e} from CPU, {transfers} expected"
        bytes_moved = sum(entry.nbytes for entry in moved)
        yield f"{name} on HETERO:{first},{second}, halves: {milliseconds:.2f} ms, {len(moved)} transfers, {bytes_moved} bytes{wrong}"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--row-seconds", type=float, default=1.0, help="how long each network is timed")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--dtypes", nargs="*", choices=list(TOLERANCES), default=list(TOLERANCES))
    parser.add_argument("--cases", default="", help="regular expression for onnx's cases")
    parser.add_argument("--checks", nargs="*", default=[], help="patterns for the checks of the conformance kit")
    parser.add_argument("--output", type=Path, help="a file for the report")
    parser.add_argument("--dry", action="store_true", help="on a fake card")
    options = parser.parse_args()
    announce_checkout()
    missing = find_missing()
    if missing:
        print(f"{Path(__file__).name}: nothing was measured: missing {' '.join(missing)}; pip install {' '.join(missing)}")
        return NO_CARD
    from hetero_core.errors import DeviceUnavailableError

    try:
        runtime = open_runtime(is_dry=options.dry)
    except DeviceUnavailableError as error:
        print(f"{Path(__file__).name}: nothing was measured: {error}")
        return NO_CARD
    report, card = Report(options.output, options.seconds), runtime.cards()[0]
    report.add(f"{card.facts.full_name}, compute capability {card.facts.capability}, {runtime.name}\n")
    with make_core(runtime) as core:
        report.add_rows("copies", check_copies(card))
        report.add_rows("full card", check_full_card(core, card))
        report.add_rows("conformance kit", check_kit(runtime, options.checks, report.deadline(0.25)))
        report.add_rows("backend suite", check_suite(core, options.cases, report.deadline(0.25)))
        for name in options.models[:2]:
            report.add_rows(name, time_splits(core, name, options.row_seconds))
        report.add("\n| network | batch | type | ms | from CPU | CPU: ms |\n|---|---|---|---|---|---|")
        end = report.deadline(1)
        for batch, name in product(options.batches, options.models):
            if monotonic() + 15 < end:
                report.add_rows(name, time_model(core, name, batch, options.dtypes, options.row_seconds))
            else:
                report.add(f"| {name} | {batch} | left out: no time |")
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
