"""Python imports this file at its start if its folder is on PYTHONPATH: puts front ends in the place of the packages that
HETERO_FRONTENDS lists. A `sitecustomize` that stands further down the path runs as well.
"""

import sys
from importlib import import_module
from pathlib import Path

try:
    from hetero_core.frontends.replacement import replace_at_start
except ModuleNotFoundError as error:
    if not str(error.name).startswith("hetero_core"):
        raise
    # The Python of another environment, which does not have hetero.
else:
    replace_at_start()

_paths = list(sys.path)
sys.path[:] = [path for path in _paths if path != str(Path(__file__).parent)]
_this = sys.modules.pop("sitecustomize")
try:
    import_module("sitecustomize")
except ModuleNotFoundError as error:
    if error.name != "sitecustomize":
        raise
finally:
    sys.path[:] = _paths
    sys.modules.setdefault("sitecustomize", _this)
