from __future__ import annotations

import subprocess
import sys

from importlib_metadata import entry_points


def test_backend_of_torch_compile_is_imported_without_torch() -> None:
    [entry] = entry_points(group="torch_dynamo_backends", name="hetero")
    script = f"import sys; sys.modules['torch'] = None; from {entry.module} import {entry.attr}; print({entry.attr}.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("compile_graph\n", "")
