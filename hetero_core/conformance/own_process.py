"""Runs a network on an installed device in a process of its own, which has loaded nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hetero_core.conformance.check import CheckContext, CheckFailed, Skip

ABSENT = 70
"""The exit code of a process that does not have the device."""
PROCESS_SECONDS = 240
_SCRIPT = f"""
import json, sys
import numpy as np
from hetero_core import Core

device, kind, config, source, inputs, outputs = sys.argv[1:]
with Core() as core:
    if device.partition(":")[0].partition(".")[0] not in core.device_names:
        sys.exit({ABSENT})
    open_network = core.import_network if kind == "blob" else core.load_network
    with np.load(inputs) as arrays, open_network(source, device, json.loads(config)) as network:
        np.savez(outputs, **network.infer(dict(arrays)))
"""


def run_in_own_process(
    context: CheckContext,
    write: Callable[[str], None],
    inputs: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    kind: str,
    what: str,
) -> dict[str, Any]:
    """Returns the outputs of a network of the kind "blob" or "model", which `write` writes to a path.

    Raises: CheckFailed, which begins with `what`, if the process fails; Skip if the device is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in (kind, "inputs.npz", "outputs.npz")]
        write(paths[0])
        np.savez(paths[1], **inputs)
        values = {key: context.core.get_config(context.device, key) for key in sorted(context.configured)}
        ended = subprocess.run(
            [sys.executable, "-c", _SCRIPT, context.device, kind, json.dumps({**values, **config}), *paths],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=PROCESS_SECONDS,
        )
        if ended.returncode == ABSENT:
            raise Skip("the device is not installed, so that another process has none")
        if ended.returncode != 0:
            raise CheckFailed(f"{what}: {(ended.stderr.strip().splitlines() or ['no message'])[-1]}")
        with np.load(paths[2]) as outputs:
            return dict(outputs)
