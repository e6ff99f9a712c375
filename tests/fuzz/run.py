"""Fuzzes hetero with mutated models, blobs and cache entries; reports every foreign exception, crash and hang.

    python tests/fuzz/run.py --seed 1 --cases 1000              1000 cases of each kind, in a minute at most
    python tests/fuzz/run.py --seed 1 --seconds 600             for ten minutes
    python tests/fuzz/run.py --seed 1 --only model:17           a single case, in this process, with its traceback
    python tests/fuzz/run.py --devices ORT OPENVINO CPU         other devices than CPU, TEMPLATE and a split
    python tests/fuzz/run.py --kinds hostile --memory 16 --busy 60      models of 1 MB that ask for all memory or time

A worker process runs the cases with 2 GiB of memory and 10 s of processor time for each; if it dies or hangs, the case is reported as a
finding and a new worker continues. Exit code 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

IDLE = 60.0
"""The longest silence of a worker, in seconds of the clock, because a machine may be busy; twice as long before its first case."""


def main() -> int:
    """Returns the exit code."""
    arguments = parse_arguments()
    if arguments.worker:
        work(arguments)
        return 0
    if arguments.only:
        kind, _, index = arguments.only.partition(":")
        say(run_case(arguments, kind, int(index)))
        return 0
    findings, counts, slowest = supervise(arguments)
    cases = sum(counts.values()) + len(findings)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    say(f"{cases} cases, seed {arguments.seed}: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    say(f"the slowest case took {slowest:.2f} s, the largest process {peak >> 10} MiB; {len(findings)} findings")
    for case, text in findings.items():
        say(f"\n{case}\n{text}")
    return 1 if findings else 0


def parse_arguments() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kinds", nargs="+", default=["model", "blob", "cache"], help="or hostile")
    parser.add_argument("--devices", nargs="+", default=["CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU"])
    parser.add_argument("--memory", type=int, default=2, help="GiB of address space, libraries included")
    parser.add_argument("--busy", type=float, default=10.0, help="seconds of the processor after which a case counts as a hang")
    parser.add_argument("--only", default="", help="KIND:INDEX of one case")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--worker", action="store_true")
    return parser.parse_args()


def say(text: str) -> None:
    """Writes a line to standard output and flushes it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_case(arguments: argparse.Namespace, kind: str, index: int) -> str:
    """Returns the outcome of a case. Raises: the finding, an exception of any type."""
    from check import CHECKS, Case

    from hetero_core import Core

    logging.getLogger("hetero_core").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, Core() as core:
        random = Random(f"{arguments.seed}:{kind}:{index}")
        return CHECKS[kind](Case(core, index, random, Path(folder), arguments.devices))


def work(arguments: argparse.Namespace) -> None:
    """Runs cases and writes a JSON line before and after each."""
    from check import list_blobs, list_models  # onnx and all devices, imported before the clock of the first case starts

    resource.setrlimit(resource.RLIMIT_AS, (arguments.memory << 30,) * 2)
    list_blobs()
    end = time.monotonic() + arguments.seconds
    cases = arguments.cases if arguments.kinds != ["hostile"] else min(arguments.cases, len(list_models()))
    for index in range(arguments.first, cases):
        if time.monotonic() > end:
            return
        for kind in arguments.kinds:
            say(json.dumps({"case": f"{kind}:{index}"}))
            began = time.monotonic()
            try:
                outcome = {"outcome": f"{kind} {run_case(arguments, kind, index)}"}
            except BaseException:  # noqa: BLE001  # that is what is looked for
                outcome = {"finding": traceback.format_exc(limit=-12)}
            say(json.dumps({**outcome, "seconds": time.monotonic() - began}))


def supervise(arguments: argparse.Namespace) -> tuple[dict[str, str], Counter[str], float]:
    """Returns case -> finding, the count of each outcome, and the seconds of the slowest case."""
    findings: dict[str, str] = {}
    counts: Counter[str] = Counter()
    seconds = [0.0]
    end, first = time.monotonic() + arguments.seconds, 0
    while first < arguments.cases and time.monotonic() < end:
        command = [sys.executable, __file__, "--worker", "--seed", str(arguments.seed), "--cases", str(arguments.cases)]
        command += ["--kinds", *arguments.kinds, "--devices", *arguments.devices, "--memory", str(arguments.memory)]
        command += ["--first", str(first), "--seconds", str(end - time.monotonic())]
        last, error = follow(command, findings, counts, seconds, busy=arguments.busy)
        if not error:
            break
        findings[last] = error
        first = int(last.partition(":")[2]) + 1
    return findings, counts, seconds[0]


def follow(
    command: list[str], findings: dict[str, str], counts: Counter[str], seconds: list[float], *, busy: float
) -> tuple[str, str]:
    """Collects the lines of a worker; returns its last case and its cause of death, "" if it ended well."""
    case = ":-1"
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as worker,
    ):
        assert worker.stdout is not None
        watch = Watch(worker, busy)
        for line in worker.stdout:
            watch.note_life()
            said = json.loads(line)
            case = said.get("case", case)
            seconds[0] = max(seconds[0], said.get("seconds", 0.0))
            if "outcome" in said:
                counts[said["outcome"]] += 1
            if "finding" in said:
                findings[case] = said["finding"]
        code = worker.wait()
        watch.stop()
        errors.seek(0)
        return case, "" if code == 0 else f"the process ended with {code}{watch.verdict}\n{errors.read()[-2000:]}"


class Watch:
    """Kills a worker after too long a silence."""

    def __init__(self, worker: subprocess.Popen[str], limit: float) -> None:
        self._worker, self._limit = worker, limit
        # The busy limit starts after the imports.
        self._last, self._busy = time.monotonic() + IDLE, float("inf")
        self._stopped = threading.Event()
        self.verdict = ""
        threading.Thread(target=self._look, daemon=True).start()

    def note_life(self) -> None:
        """Starts both clocks again."""
        self._last, self._busy = time.monotonic(), read_busy_seconds(self._worker.pid)

    def stop(self) -> None:
        """Ends the watch."""
        self._stopped.set()

    def _look(self) -> None:
        while not self._stopped.wait(1):
            busy, idle = read_busy_seconds(self._worker.pid) - self._busy, time.monotonic() - self._last
            if busy > self._limit or idle > IDLE:
                self.verdict = f": killed, it computed for {busy:.0f} s and was silent for {idle:.0f} s"
                self._worker.kill()
                return


def read_busy_seconds(process: int) -> float:
    """Returns the processor time of a process so far, in seconds; 0 if the system does not report it."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
