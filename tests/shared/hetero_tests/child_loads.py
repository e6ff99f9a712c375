"""Loads a model in a child process, for tests of the memory that a load takes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

_SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from hetero_core import Core
from hetero_core.errors import HeteroError

answer = {"error": "", "outputs": {}}
with Core() as core:
    try:
        network = core.load_network(sys.stdin.buffer.read(), sys.argv[1])
        inputs = {spec.name: np.ones(spec.shape, np.float32) for spec in network.inputs}
        answer["outputs"] = {name: array.tolist() for name, array in network.infer(inputs).items()}
    except HeteroError as error:
        answer["error"] = f"{type(error).__name__}: {error}"
# Not ru_maxrss, which a child has from the process that it was forked from.
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
answer["peak"] = int(peak.split()[1]) >> 10
print(json.dumps(answer))
"""


@dataclass(frozen=True)
class ChildLoad:
    """The result of a load and a run on float32 inputs of 1.0: outputs as lists, type and text of an error, peak resident memory in MiB."""

    outputs: dict[str, Any]
    error: str
    peak: int


def load_in_child(content: bytes, device: str) -> ChildLoad:
    """Loads a model in a child process and runs it once. Raises: CalledProcessError if the child dies."""
    child = subprocess.run([sys.executable, "-c", _SCRIPT, device], input=content, capture_output=True, check=True, timeout=900)
    return ChildLoad(**json.loads(child.stdout))
