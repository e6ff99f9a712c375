"""Times models on CPU and on other engines, each in processes of its own: `nox -s bench -- ...`, or this file.

    python tests/bench/bench_models.py [MODEL ...]              every engine on every model
    python tests/bench/bench_models.py --start [MODEL ...]      fresh processes until their first right answer; compiled blobs
    python tests/bench/bench_models.py --stability [MODEL ...]  many processes, alone and beside a busy one; what idling costs
    python tests/bench/bench_models.py --even [MODEL ...]       time against batch and depth; chains of tiny operators
    python tests/bench/bench_models.py --table FILE ...         the tables of what --json wrote, in Markdown

The engines take turns, in order and back. Environment variables that choose kernels or how threads wait are cleared in these
processes. Asserts nothing; ends with 1 where an engine failed. How it measures: docs/explanation/performance.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT_MODELS = {
    "start": ("resnet50", "squeezenet", "bert"),
    "stability": ("squeezenet", "resnet50"),
    "even": ("squeezenet", "resnet50"),
}
DEFAULT_ENGINES = {
    "models": ("CPU", "CPU:NUMPY", "CPU:JIT", "onnxruntime", "openvino", "openvino:default", "reference"),
    "start": ("CPU", "CPU:NUMPY", "CPU:JIT", "onnxruntime", "openvino"),
    "stability": ("CPU", "CPU:NUMPY", "CPU:JIT", "onnxruntime", "openvino"),
    "even": ("CPU", "CPU:NUMPY", "CPU:JIT", "onnxruntime", "openvino"),
}
DEFAULT_SECONDS = {"models": 2.0, "start": 0.0, "stability": 1.0, "even": 1.0}
DEFAULT_THREADS = {"models": [1, 2], "start": [2], "stability": [2], "even": [1, 2]}


def parse_arguments() -> argparse.Namespace:
    """Returns the command line, with the mode and its defaults filled in."""
    from speed.engines import ENGINES
    from speed.models import MODELS, check_name

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names; all, or the usual ones of a mode, by default")
    modes = parser.add_mutually_exclusive_group()
    for mode in ("start", "stability", "even"):
        modes.add_argument(f"--{mode}", dest="mode", action="store_const", const=mode)
    modes.add_argument("--table", type=Path, nargs="+", help="print the tables of these files")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, help="those that the mode needs by default")
    parser.add_argument("--threads", type=int, nargs="+")
    parser.add_argument("--batch", type=int, nargs="+", help="1 and 8 by default, 1 with a mode; with --even the points")
    parser.add_argument("--depth", type=int, nargs="+", help="with --even: the lengths of the chain of convolutions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="of each engine in each process")
    parser.add_argument("--processes", type=int, default=20, help="with --stability: of each engine, alone and beside a busy one")
    parser.add_argument("--json", type=Path, help="write all figures to this file, after every row")
    arguments = parser.parse_args()
    arguments.mode = mode = "models" if arguments.mode is None else arguments.mode
    arguments.models = arguments.models or list(DEFAULT_MODELS.get(mode, MODELS))
    for model in arguments.models:
        try:
            check_name(model)
        except ValueError as error:
            parser.error(str(error))
    for name, default in (("engines", DEFAULT_ENGINES), ("seconds", DEFAULT_SECONDS), ("threads", DEFAULT_THREADS)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, default[mode])
    return arguments


def describe_machine() -> str:
    """Returns the processor, and the versions of what is measured on it."""
    import os
    import platform
    from importlib.metadata import PackageNotFoundError, version

    model = platform.processor() or platform.machine()
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        names = [line.partition(":")[2].strip() for line in listing.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    facts = [f"{model}, {os.cpu_count()} processors", f"Python {platform.python_version()}"]
    for package in ("numpy", "numba", "onnx", "onnxruntime", "openvino"):
        try:
            facts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(facts)


class Report:
    """The figures as they come: a line for each, and the file, so that a run that is stopped has measured something."""

    def __init__(self, arguments: argparse.Namespace, skipped: Mapping[str, str]) -> None:
        from speed.children import list_cleared

        self._file: Path | None = arguments.json
        self.figures: dict[str, Any] = {
            "mode": arguments.mode,
            "machine": describe_machine(),
            "command": shlex.join(["python", "tests/bench/bench_models.py", *sys.argv[1:]]),
            "cleared": list_cleared(),
            "skipped": dict(skipped),
            "rounds": arguments.rounds,
            "seconds": arguments.seconds,
            "rows": [],
        }

    def tell(self, row: dict[str, Any]) -> None:
        """Prints a row and writes the file anew."""
        self.figures["rows"].append(row)
        engines = row.get("engines", {row.get("engine"): row})
        shown = []
        for engine, found in engines.items():
            figure = next((f"{key} {found[key]:.4g}" for key in ("median", "cold_answer", "deviation", "many") if key in found), "")
            shown.append(f"{engine}: {found.get('error', figure)}")
        place = " ".join(str(row[key]) for key in ("series", "model", "batch") if key in row)
        print(f"{place}, threads {row['threads']}; {', '.join(shown)}", flush=True)
        if self._file is not None:
            self._file.write_text(json.dumps(self.figures, indent=1), encoding="utf-8")

    def has_failed(self) -> bool:
        """Returns whether an engine failed in any row."""
        return any("error" in found for row in self.figures["rows"] for found in (row, *row.get("engines", {}).values()))


def measure(arguments: argparse.Namespace) -> int:
    """Runs a mode; returns the exit code."""
    from speed.evenness import BATCHES, DEPTHS, measure_evenness
    from speed.rounds import Plan, probe_engines, time_model
    from speed.stability import measure_stability
    from speed.start import time_starts
    from speed.tables import render

    # The children's caches: neither what a user has there nor anything that stays.
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as cache:
        reasons = probe_engines(arguments.engines, cache=Path(cache))
        skipped = {engine: reason for engine, reason in reasons.items() if reason is not None}
        for engine, reason in skipped.items():
            print(f"without {engine}: {reason}", flush=True)
        engines = [engine for engine in arguments.engines if engine not in skipped]
        batches = arguments.batch if arguments.batch is not None else [1, 8] if arguments.mode == "models" else [1]
        plan = Plan(engines, arguments.threads, batches, arguments.rounds, arguments.seconds, Path(cache))
        report = Report(arguments, skipped)
        print(f"{report.figures['machine']}; cleared: {', '.join(report.figures['cleared']) or 'nothing was set'}", flush=True)
        if arguments.mode == "even":
            points = {"batches": arguments.batch or BATCHES, "depths": arguments.depth or DEPTHS}
            measure_evenness(arguments.models, plan, report.tell, **points)
        for model in arguments.models if arguments.mode != "even" else ():
            if arguments.mode == "models":
                time_model(model, plan, report.tell)
            elif arguments.mode == "start":
                time_starts(model, plan, report.tell)
            else:
                measure_stability(model, plan, report.tell, processes=arguments.processes)
    print("", render(report.figures), sep="\n")
    return 1 if report.has_failed() else 0


def main() -> int:
    """Returns the exit code."""
    arguments = parse_arguments()
    if arguments.table is None:
        # An exception, not a sudden end: what is running is killed, and the folders go.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return measure(arguments)
    from speed.tables import render

    print("\n\n".join(render(json.loads(path.read_text(encoding="utf-8"))) for path in arguments.table))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        from speed.child import answer_task

        answer_task(Path(sys.argv[2]))
    else:
        sys.exit(main())
