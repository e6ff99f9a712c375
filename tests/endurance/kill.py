"""Kills processes by SIGKILL at random moments while they compile into a shared cache folder, then checks the folder.

    python tests/endurance/kill.py --seed 1 --compiles 500

Four processes at a time load networks through the folder, and most of them are killed. A surviving process checks its outputs against a
formula. Afterwards a single process loads every network: each entry must be readable, each output correct, and no lock or partial file of
a killed process may remain. Exit code 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx.helper
import onnx.parser

from hetero_core import Core
from hetero_core.blobs import cache
from hetero_core.blobs.container import read_blob

DEVICES = ("CPU", "TEMPLATE", "HETERO:TEMPLATE,CPU")
SIZE = 1 << 17
"""Elements of each weight: 512 KiB, so that a write takes long enough to be killed."""
TEXT = f'<ir_version: 8, opset_import: ["": 17]> NAME (float[{SIZE}] x) => (float[{SIZE}] y) {{ a = Mul(x, w) b = Neg(a) y = Add(b, x) }}'
WHOLE = 4.0
"""A kill happens within this multiple of the time of an undisturbed load."""
LIMIT_EVERY, LIMIT = 5, 32 << 20
"""A load in LIMIT_EVERY has the cache limit LIMIT (bytes), so that entries are evicted and compiled again."""


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compiles", type=int, default=500)
    parser.add_argument("--networks", type=int, default=60, help="how many networks there are, each for three devices")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--lane", metavar="INDEX:FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.lane is not None:
        index, _, folder = arguments.lane.partition(":")
        run_lane(Random(f"{arguments.seed}:{index}"), arguments, Path(folder))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return storm(arguments, Path(folder) / "cache")


def say(text: str) -> None:
    """Writes a line to standard output and flushes it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def storm(arguments: argparse.Namespace, folder: Path) -> int:
    """Runs the lanes, then judges the folder; returns the exit code."""
    share = -(-arguments.compiles // arguments.processes)
    command = [sys.executable, __file__, "--seed", str(arguments.seed), "--compiles", str(share)]
    command += ["--networks", str(arguments.networks)]
    lanes = [
        subprocess.Popen([*command, "--lane", f"{index}:{folder}"], stdout=subprocess.PIPE, text=True)
        for index in range(arguments.processes)
    ]
    counts: Counter[str] = Counter()
    findings: list[str] = []
    for lane in lanes:
        printed, _ = lane.communicate()
        if lane.returncode != 0:
            findings.append(f"a lane ended with {lane.returncode}")
            continue
        told = json.loads(printed)
        counts.update(told["counts"])
        findings += told["findings"]
    say(f"storm, seed {arguments.seed}: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    findings += judge(folder, arguments.networks)
    for finding in findings:
        say(f"FINDING: {finding}")
    say(f"{len(findings)} findings")
    return 1 if findings else 0


def run_lane(random: Random, arguments: argparse.Namespace, folder: Path) -> None:
    """Starts children in sequence, kills each after a random time, and prints counts and findings as JSON."""
    counts: Counter[str] = Counter()
    findings: list[str] = []
    with tempfile.TemporaryDirectory() as apart:
        alone = [run_child(Random(f"{number}"), arguments.networks, Path(apart), "load", 60.0)[1] for number in range(3)]
    patience_of_place = {place: WHOLE * min(told[place] for told in alone) for place in ("load", "write")}
    for _ in range(arguments.compiles):
        # The write is a small but the most critical part of a load, so a third of the kills aim at it.
        place = random.choice(("load", "load", "write"))
        ending, told = run_child(random, arguments.networks, folder, place, random.uniform(0.0, patience_of_place[place]))
        if ending not in (0, -signal.SIGKILL):
            findings.append(f"a child ended with {ending}")
        counts["loads begun"] += 1
        counts["killed"] += bool(ending)
        counts[f"killed {told['moment']}" if ending else f"survived with a {told['answer']}"] += 1
        findings += told.get("warnings", [])
    say(json.dumps({"counts": counts, "findings": findings}))


def run_child(random: Random, networks: int, folder: Path, place: str, patience: float) -> tuple[int, dict[str, Any]]:
    """Forks a child that loads a network; kills it `patience` seconds after the start of its load, or of its write to the folder.

    Returns the exit code of the child and its report.
    """
    number, device, is_limited = random.randrange(networks), random.choice(DEVICES), random.randrange(LIMIT_EVERY) == 0
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            announce = partial(os.write, writing, b"\n")
            told = load_and_check(number, device, folder, limit=LIMIT if is_limited else 0, announce=announce)
            os.write(writing, json.dumps(told).encode())
            code = 0
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as stream:
        # The child sends a byte when the load starts, another byte if a write starts, then its report.
        text = stream.read(1) + (stream.read(1) if place == "write" else b"")
        if not select.select([reading], [], [], patience)[0]:
            os.kill(child, signal.SIGKILL)
        text += stream.read()
    ending = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return ending, json.loads(text) if ending == 0 else {"moment": find_moment(child, folder)}


def find_moment(child: int, folder: Path) -> str:
    """Returns the phase in which a child was killed, by its lock and partial files; "elsewhere" if they are gone."""
    for lock in folder.glob("*.lock"):
        with suppress(OSError):
            if lock.read_text() == f"process {child}":
                return "in a write" if list(folder.glob(f"{lock.stem}.*.partial")) else "in a compilation"
    return "elsewhere"


def make_model(number: int) -> onnx.ModelProto:
    """Returns y = x - x * w with w = number, number + 1, ... modulo 100."""
    model = onnx.parser.parse_model(TEXT.replace("NAME", f"network{number}"))
    weights = ((np.arange(SIZE) + number) % 100).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def load_and_check(
    number: int, device: str, folder: Path, *, limit: int = 0, announce: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Loads through the folder; returns hit or miss, seconds, and the warnings, among them wrong outputs.

    `announce` is called when the load starts and when an entry is written.
    """
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]  # a handler of three lines
    logger = logging.getLogger("hetero_core")
    logger.addHandler(handler)
    write_seconds = [0.0]
    write_blob = cache.write_blob

    def write_announced(*arguments: Any) -> None:
        announce()
        began = time.monotonic()
        write_blob(*arguments)
        write_seconds[0] = time.monotonic() - began

    cache.write_blob = write_announced
    try:
        with Core() as core:
            network = core.read_network(make_model(number))
            if ":" in device:
                network = network.with_affinity({"op:Neg": "CPU"})
            core.get_metric(device, "FULL_DEVICE_NAME")  # creates the device before the clock starts
            announce()
            began = time.monotonic()
            loaded = core.load_network(network, device, {"CACHE_DIR": str(folder), "CACHE_SIZE_LIMIT": limit})
            seconds = time.monotonic() - began
            x = (np.arange(SIZE) % 7).astype(np.float32)
            computed = loaded.infer({"x": x})["y"]
            # Integers below 2^24 are exact in float32.
            index = np.arange(SIZE)
            if not np.array_equal(computed, index % 7 - index % 7 * ((index + number) % 100)):
                warnings.append(f"WRONG NUMBERS: network{number} on {device}")
            answer = "hit" if loaded.get_metric("LOADED_FROM_CACHE") else "miss"
            return {"answer": answer, "load": seconds, "write": write_seconds[0], "warnings": warnings}
    finally:
        cache.write_blob = write_blob
        logger.removeHandler(handler)


def judge(folder: Path, networks: int) -> list[str]:
    """Returns the faults of the folder after the storm, and after two loads of every network through it."""
    findings = []
    files_of_suffix: Counter[str] = Counter(path.suffix for path in folder.iterdir())
    say("left by the storm: " + ", ".join(f"{count} {suffix}" for suffix, count in sorted(files_of_suffix.items())))
    for path in sorted(folder.glob("*.blob")):
        try:
            read_blob(path)
        except Exception as error:  # noqa: BLE001  # any error means a damaged entry
            findings.append(f"{path.name}: {error}")
    for name in ("first", "second"):
        answers: Counter[str] = Counter()
        for number in range(networks):
            for device in DEVICES:
                told = load_and_check(number, device, folder)
                answers[told["answer"]] += 1
                findings += told["warnings"]
        suffixes = Counter(path.suffix for path in folder.iterdir())
        say(f"{name} clean run: {answers['hit']} hits, {answers['miss']} misses, then " + str(dict(sorted(suffixes.items()))))
        if set(suffixes) != {".blob"}:
            findings.append(f"after the {name} clean run there are {dict(suffixes)}")
    if answers["miss"]:
        findings.append(f"{answers['miss']} entries were not kept")
    return findings


if __name__ == "__main__":
    sys.exit(main())
