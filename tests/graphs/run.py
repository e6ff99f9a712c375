"""Tries ranges of drawn graphs on a device, and remembers in a JSON file which seeds are done: `nox -s graphs`.

    python tests/graphs/run.py CPU -c CPU_KERNELS=JIT --seeds 0:20000 --record graphs.json

A second call with the same file goes on with the seeds that are missing, with --again also with those that failed. Graphs are tried in a
child process, so that a device that crashes or hangs costs one seed. The exit code is 1 where the file has a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from hetero_core.conformance.graphs.drawing import VERSION

SEED_SECONDS = 300.0
CHILD_SEEDS = 200
"""After so many seeds a new child is started; what a device piles up ends with it."""
FAILING = ("wrong", "crashed", "hung", "broken")


def main() -> int:
    options = parse_options()
    if options.child:
        return run_child(options)
    record = Record(Path(options.record), name_subject(options))
    if options.again:
        record.forget_failures()
    first, last = (int(part) for part in options.seeds.split(":"))
    missing = [seed for seed in range(first, last) if not record.has(seed)]
    deadline = time.monotonic() + options.seconds if options.seconds else float("inf")
    while missing and time.monotonic() < deadline:
        chunk, missing = missing[:CHILD_SEEDS], missing[CHILD_SEEDS:]
        missing = run_chunk(options, record, chunk, deadline) + missing
    sys.stdout.write(f"{record.describe()}\n")
    return 1 if record.failures else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Tries drawn graphs on a device.")
    parser.add_argument("device")
    parser.add_argument("-c", "--config", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--reference", default=None, metavar="DEVICE", help="the device beside it in splits (TEMPLATE, or CPU)")
    parser.add_argument("--seeds", default="0:20000", metavar="FIRST:LAST", help="the seeds from FIRST on, without LAST")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so many seconds; 0 never")
    parser.add_argument("--record", default="graphs.json", metavar="FILE", help="what has been tried")
    parser.add_argument("--again", action="store_true", help="try the seeds again that failed or were disputed")
    parser.add_argument("--models", metavar="FOLDER", help="write the smallest failing models there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def name_subject(options: argparse.Namespace) -> str:
    """Returns what the results are filed under: the device with its configuration."""
    return " ".join([options.device, *sorted(options.config)])


class Record:
    """What has been tried: for each subject ranges of seeds, counts, and failures with their texts."""

    def __init__(self, path: Path, subject: str) -> None:
        self.path = path
        self.subject = subject
        whole = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        known = whole.get(subject, {})
        if known.get("drawing") != VERSION:
            known = {}
        self.done = {seed for first, last in known.get("ranges", []) for seed in range(first, last)}
        self.counts = Counter(known.get("counts", {}))
        self.failures: dict[str, str] = known.get("failures", {})
        self.disputes: dict[str, str] = known.get("disputes", {})
        self.refusals = Counter(known.get("refusals", {}))

    def has(self, seed: int) -> bool:
        return seed in self.done

    def add(self, result: dict[str, Any]) -> None:
        """Adds the outcome of a seed, and writes the file."""
        self.done.add(result["seed"])
        self.counts[result["status"]] += 1
        if result["status"] in FAILING:
            self.failures[str(result["seed"])] = result["reason"]
            sys.stdout.write(f"{self.subject}, seed {result['seed']}: {result['reason']}\n\n")
            sys.stdout.flush()
        elif result["status"] == "disputed":
            self.disputes[str(result["seed"])] = result["reason"]
        elif result["status"] == "refused":
            self.refusals[result["reason"].partition(": ")[2][:120]] += 1
        self.write()

    def forget_failures(self) -> None:
        """Takes out the seeds that failed and those that were disputed, so that they are tried again."""
        self.done -= {int(seed) for seed in (*self.failures, *self.disputes)}
        for status in (*FAILING, "disputed"):
            self.counts.pop(status, None)
        self.failures, self.disputes = {}, {}
        self.write()

    def write(self) -> None:
        """Writes the file anew, beside itself first; other subjects in it stay as they are."""
        whole = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        whole[self.subject] = {
            "drawing": VERSION,
            "ranges": list_ranges(self.done),
            "counts": dict(sorted(self.counts.items())),
            "failures": self.failures,
            "disputes": self.disputes,
            "refusals": dict(self.refusals.most_common()),
        }
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        beside.write_text(json.dumps(whole, indent=1), encoding="utf-8")
        beside.replace(self.path)

    def describe(self) -> str:
        ranges = ", ".join(f"{first} to {last - 1}" for first, last in list_ranges(self.done))
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.counts.items()))
        return f"{self.subject}: seeds {ranges}: {counts}"


def list_ranges(seeds: set[int]) -> list[list[int]]:
    """Returns the seeds as [first, behind the last] of each run without a gap."""
    ranges: list[list[int]] = []
    for seed in sorted(seeds):
        if ranges and ranges[-1][1] == seed:
            ranges[-1][1] = seed + 1
        else:
            ranges.append([seed, seed + 1])
    return ranges


def run_chunk(options: argparse.Namespace, record: Record, chunk: list[int], deadline: float) -> list[int]:
    """Tries these seeds in one child; returns those that were not reached."""
    command = [
        sys.executable,
        __file__,
        options.device,
        "--child",
        "--seeds",
        f"{chunk[0]}:{chunk[-1] + 1}",
        "--record",
        options.record,
    ]
    command += [argument for pair in options.config for argument in ("-c", pair)]
    command += ["--reference", options.reference] if options.reference is not None else []
    command += ["--models", options.models] if options.models else []
    wanted = list(chunk)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        lines: queue.Queue[str | None] = queue.Queue()
        errors: list[str] = []
        threads = (
            threading.Thread(target=lambda: read_lines(child.stdout, lines), daemon=True),
            threading.Thread(target=lambda: errors.extend(child.stderr or ()), daemon=True),
        )
        for thread in threads:
            thread.start()
        while wanted and time.monotonic() < deadline:
            try:
                line = lines.get(timeout=SEED_SECONDS)
            except queue.Empty:
                child.kill()
                record.add({"seed": wanted.pop(0), "status": "hung", "reason": f"no outcome within {SEED_SECONDS:g} s"})
                return wanted
            if line is None:
                threads[1].join(10)
                code = child.wait()
                record.add(
                    {
                        "seed": wanted.pop(0),
                        "status": "crashed",
                        "reason": f"the process ended with code {code}: {''.join(errors)[-600:]}",
                    }
                )
                return wanted
            result = json.loads(line)
            if result["seed"] in wanted:
                wanted.remove(result["seed"])
                record.add(result)
        child.kill()
    return wanted


def read_lines(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        if line.startswith("{"):
            lines.put(line)
    lines.put(None)


def run_child(options: argparse.Namespace) -> int:
    """Tries the seeds of a range that the record has not, one line of JSON for each."""
    warnings.simplefilter("ignore")
    from hetero_core import Core
    from hetero_core.conformance.facts import choose_reference
    from hetero_core.conformance.graphs.attempt import Subject

    record = Record(Path(options.record), name_subject(options))
    first, last = (int(part) for part in options.seeds.split(":"))
    reference = choose_reference(Core, options.device) if options.reference is None else options.reference
    config = dict(pair.split("=", 1) for pair in options.config)
    with Core() as core:
        exports = bool(core.get_metric(options.device, "IMPORT_EXPORT_SUPPORT"))
        subject = Subject(options.device, reference, exports, config)
        for seed in range(first, last):
            if not record.has(seed):
                sys.stdout.write(json.dumps(try_seed(core, subject, seed, options.models)) + "\n")
                sys.stdout.flush()
    return 0


def try_seed(core: Any, subject: Any, seed: int, models: str | None) -> dict[str, Any]:
    from hetero_core.conformance.graphs.attempt import try_graph
    from hetero_core.network.writer import write_network

    try:
        outcome = try_graph(core, subject, seed)
    except Exception as error:  # noqa: BLE001  # of the kit itself: a finding, too
        return {"seed": seed, "status": "broken", "reason": f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"}
    if outcome.smallest is not None and models:
        Path(models).mkdir(parents=True, exist_ok=True)
        name = "".join(letter if letter.isalnum() else "-" for letter in subject.device)
        write_network(outcome.smallest, Path(models) / f"{name}-{seed}.onnx")
    return {"seed": seed, "status": outcome.status, "reason": outcome.describe()}


if __name__ == "__main__":
    sys.exit(main())
