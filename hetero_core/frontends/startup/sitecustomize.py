"""Python imports this file first in each process that a program behind a front end starts; `replacement.run_program` puts its folder on
the path. It puts the front ends in place, and then runs the environment's own sitecustomize, which this file hides.
"""

import sys
from importlib import import_module
from pathlib import Path

_FOLDER = str(Path(__file__).parent)

try:
    from hetero_core.frontends.replacement import replace_at_start
except ModuleNotFoundError as error:
    if not str(error.name).startswith("hetero_core"):
        raise
    # A Python of another environment, without hetero.
else:
    replace_at_start()

_paths = list(sys.path)
sys.path[:] = [path for path in _paths if path != _FOLDER]
sys.modules.pop("sitecustomize", None)
try:
    import_module("sitecustomize")  # the environment's own
except ModuleNotFoundError as error:
    if error.name != "sitecustomize":
        raise
finally:
    sys.path[:] = _paths
