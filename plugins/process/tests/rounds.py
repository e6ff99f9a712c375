"""Rounds of a device that aborts, exits, hangs or exhausts memory in a child process, and the leaks after each kind of end.

    python plugins/process/tests/rounds.py --rounds 100 [--how ABORT --how EXIT --how HANG_WITH_LOCK --how EAT]

In every round a run breaks while a network on CPU in this process and another in a second child run; the next run of the broken
device
has to be right. Exits with 1 for a wrong result, an unexpected error, or a leaked process, descriptor or segment.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import numpy as np
import onnx.parser

from conftest import install_breaking
from hetero_core import Core, ExecutableNetwork
from hetero_core.errors import DeviceCrashedError, HeteroError, RequestCancelledError

WAYS = ("ABORT", "EXIT", "HANG_WITH_LOCK", "EAT")
_MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg (x) }'
_GOOD, _BAD = {"x": np.array([1.0, -2.0], np.float32)}, {"x": np.array([13.0, 1.0], np.float32)}
_LIMIT = 1 << 30
_WARM = 4
"""The round after which nothing more may be held: by then each thread has had its request on each network."""


def main() -> int:
    """Runs the rounds; returns 1 for any fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--how", action="append", choices=WAYS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        install_breaking(Path(folder))
        sys.path.insert(0, folder)
        return max(run_rounds(how, options.rounds) for how in options.how or WAYS)


def run_rounds(how: str, rounds: int) -> int:
    """Prints how the rounds of this kind ended and the leaks after them; returns 1 for any fault."""
    before, begin, ends, mistakes = count_holdings(), monotonic(), Counter[str](), 0
    with Core() as core, ThreadPoolExecutor(2) as pool:
        model = onnx.parser.parse_model(_MODEL)
        broken = core.load_network(model, "PROCESS:BREAKING", {"BREAKING_HOW": how, "PROCESS_MEMORY_LIMIT": _LIMIT})
        networks = [core.load_network(model, device) for device in ("CPU", "PROCESS:CPU")]
        held = None
        for index in range(rounds):
            runs = [pool.submit(is_right, network) for network in networks]
            ends[break_once(broken, is_hanging=how == "HANG_WITH_LOCK")] += 1
            mistakes += sum(not is_correct for is_correct in (is_right(broken), *(run.result() for run in runs)))
            if index == _WARM:
                held = count_holdings()
        grown = find_growth(held) if held is not None else Counter[str]()
    del broken, networks
    gc.collect()
    remains = count_holdings() - before
    expected = {"DeviceCrashedError", "RequestCancelledError", "MemoryError", "InferenceError"}
    sys.stdout.write(
        f"{how}: {rounds} rounds in {monotonic() - begin:.0f} s; {dict(ends)}; wrong results {mistakes}; "
        f"more than after the fifth round {dict(grown)}; left after the end {dict(remains)}\n"
    )
    sys.stdout.flush()
    return int(bool(mistakes or grown or remains or set(ends) - expected))


def find_growth(held: Counter[str]) -> Counter[str]:
    """Returns the growth over `held`; waits up to ten seconds, as the thread of a cancelled run may still release its arrays."""
    clock = threading.Event()
    for _ in range(200):
        gc.collect()
        if not (grown := count_holdings() - held):
            break
        clock.wait(0.05)
    return grown


def is_right(network: ExecutableNetwork) -> bool:
    return bool((network.infer(_GOOD)["y"] == -_GOOD["x"]).all())


def break_once(network: ExecutableNetwork, *, is_hanging: bool) -> str:
    """Returns the name of the error of a run that breaks."""
    request = network.create_infer_request()
    try:
        request.start_async(_BAD)
        if is_hanging:
            request.wait(0.1)
            request.cancel()
        request.wait()
    except (DeviceCrashedError, RequestCancelledError) as error:
        return type(error).__name__
    except (HeteroError, MemoryError) as error:
        return type(error).__name__
    return "no error"


def count_holdings() -> Counter[str]:
    """Counts the children of this process, its open descriptors and its segments of shared memory."""
    pid = os.getpid()
    children = [path for path in Path("/proc").glob("[0-9]*/stat") if _read_parent(path) == pid]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return Counter(
        processes=len(children),
        descriptors=len(os.listdir("/proc/self/fd")),
        segments=len({line.split()[4] for line in maps if "memfd:hetero" in line}),
    )


def _read_parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
