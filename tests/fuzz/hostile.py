"""Reads and loads models of at most 1 MB that ask for all memory or time, each in a child: `nox -s hostile`.

    python tests/fuzz/hostile.py                                    reads each, and loads it on CPU, TEMPLATE, ORT and OPENVINO
    python tests/fuzz/hostile.py --device READ --only constant_pad  one model, which is only read

A finding is a read that takes 1 GB more than the process had, or 20 s of the processor; a load that takes 2 GB; a signal; an exception
that is not hetero's. How long an engine may compile is for DEADLINE to say: a load of more than 60 s is ended and listed, and no finding.
The table names the limit in the error where reading is refused. Ends with 1 where there was a finding.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import children
from answers import open_core, say, tell, warm_up
from children import Death, run_in_children
from hostile_models import list_models

from hetero_core import HeteroError, errors

LIMITS, LIMITS_OF_LOAD = {"READ": (10**9, 20.0)}, (2 * 10**9, 60.0)
"""Bytes and seconds of the processor."""
DEVICES = ("READ", "CPU", "TEMPLATE", "ORT", "OPENVINO")
HOLE = 10 << 30
"""Bytes of the file without content that some models name as their weights."""


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=DEVICES, action="append")
    parser.add_argument("--only", help="a part of the names of the models to try", default="")
    arguments = parser.parse_args()
    warm_up()
    findings = 0
    with tempfile.TemporaryDirectory() as folder:
        with Path(folder, "hole.bin").open("wb") as file:
            file.truncate(HOLE)
        for name in [name for name in list_models() if arguments.only in name]:
            for device in arguments.device or DEVICES:
                if name.startswith("weights_") and device != "READ":
                    # An engine holds weights of gigabytes for anybody.
                    continue
                findings += report(name, device, *try_model(name, device, folder))
    say(f"{findings} findings")
    return 1 if findings else 0


def try_model(name: str, device: str, folder: str) -> tuple[str, bool]:
    """Returns what happens to a model in a child of its own, and whether that is a finding."""
    most_bytes, most_seconds = LIMITS.get(device, LIMITS_OF_LOAD)
    children.RESIDENT, children.BUSY = most_bytes + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, most_seconds
    (result,) = run_in_children(take, [(name, device, folder)])
    if isinstance(result, Death):
        return result.reason, device == "READ" or not result.reason.startswith("computed")
    if "foreign" in result:
        return str(result["foreign"]), True
    is_large = result["bytes"] > most_bytes or (device == "READ" and result["seconds"] > most_seconds)
    return f"{result['outcome']} ({result['bytes'] >> 20} MiB, {result['seconds']:.1f} s)", is_large


def report(name: str, device: str, text: str, is_finding: bool) -> int:
    """Writes a line; returns 1 for a finding."""
    say(f"{'FINDING' if is_finding else '       '} {name}, {device}: {text}")
    return int(is_finding)


def take(argument: tuple[str, str, str]) -> dict[str, Any]:
    """Returns the outcome of reading and loading a model, with the bytes that the process grew by and the seconds of the processor."""
    name, device, folder = argument
    content = list_models()[name]()
    if len(content) > 10**6:
        raise AssertionError(f"{name} has {len(content)} bytes")
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    result = read_and_load(content, device, folder)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    return result | {"bytes": grown, "seconds": time.process_time() - began}


def read_and_load(content: bytes, device: str, folder: str) -> dict[str, Any]:
    """Returns the outcome: refused by which limit, not loaded, or loaded."""
    core = open_core()
    try:
        network = core.read_network(content, base=folder)
    except errors.ReadLimitError as error:
        return {"outcome": f"refused by {str(error).partition('ReadLimits.')[2].partition(' is')[0]}"}
    except HeteroError as error:
        return tell(error, f"refused as {type(error).__name__}")
    if device == "READ":
        return {"outcome": "read"}
    try:
        loaded = core.load_network(network, device)
    except HeteroError as error:
        return tell(error, f"not loaded, {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    loaded.close()
    return {"outcome": "loaded"}


if __name__ == "__main__":
    sys.exit(main())
