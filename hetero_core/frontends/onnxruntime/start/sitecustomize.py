"""Imported by Python at its start: puts hetero in the place of ONNX Runtime when the program first imports or looks for it.

Imports nothing else before. A `sitecustomize` that stands further down the path runs as well.
"""

import os
import sys
from importlib.util import find_spec


class _Trigger:
    """A finder that hands over to the front end's own finder at the first question about onnxruntime."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]  # no import of typing at each start
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(self)
        from hetero_core.frontends.onnxruntime.replacement import start

        start()
        return find_spec(name)


def _run_next() -> None:
    """Imports the next module of this name on the path."""
    own = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path) != own]
    this = sys.modules.pop("sitecustomize", None)
    before, sys.path[:] = list(sys.path), paths
    try:
        if find_spec("sitecustomize") is not None:
            __import__("sitecustomize")
    finally:
        sys.path[:] = before
        if this is not None:
            sys.modules["sitecustomize"] = this


if os.environ.get("HETERO_ONNXRUNTIME") == "1":
    sys.meta_path.insert(0, _Trigger())
_run_next()
