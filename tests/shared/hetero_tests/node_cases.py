"""A cache of the node cases of onnx's backend suite: the first test process computes them, later processes read a file.

onnx computes the expected values of its pooling cases in Python loops at import: nine seconds in each process.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

VARIABLE = "NODE_CASES"
"""The environment variable with the folder of the file; if unset, every process computes the cases."""


def share_node_cases(load_kind: Callable[[str], list[Any]]) -> Callable[[str], list[Any]]:
    """Returns the function with its result for "node" cached in a file of the folder that VARIABLE names."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return load_kind
    # The cases depend on the versions of the packages that compute them.
    versions = "-".join(version(name) for name in ("onnx", "numpy", "ml_dtypes"))
    path = Path(folder) / f"node-cases-{sys.implementation.cache_tag}-{versions}.pickle"

    def load_shared(kind: str) -> list[Any]:
        return read_or_write(path, lambda: load_kind(kind)) if kind == "node" else load_kind(kind)

    return load_shared


def read_or_write(path: Path, compute: Callable[[], list[Any]]) -> list[Any]:
    """Returns the list in the file; on a miss, computes and writes it. The write is atomic."""
    if path.exists():
        with path.open("rb") as file:
            cases: list[Any] = pickle.load(file)
        return cases
    cases = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(f".{os.getpid()}")
    written.write_bytes(pickle.dumps(cases, pickle.HIGHEST_PROTOCOL))
    written.replace(path)
    return cases
